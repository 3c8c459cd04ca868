//! The keys of the live view: one table, from which `?`, the help of the command and what a key does are made.

use super::look::Tab;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Help,
    Quit,
    Tab(Tab),
    NextTab,
    PreviousTab,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Open,
    Back,
    NextSort,
    PreviousSort,
    Reverse,
    NextGroup,
    PreviousGroup,
    Filter,
    Pause,
    Baseline,
    EndBaseline,
    Mark,
    Trim,
    Slower,
    Faster,
    Now,
    Redraw,
    Suspend,
}

/// A line of the table.
pub(super) struct Line {
    /// As people write it.
    pub keys: &'static str,
    pub says: &'static str,
    does: &'static [(KeyCode, KeyModifiers, Does)],
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;

const fn key(c: char, does: Does) -> (KeyCode, KeyModifiers, Does) {
    (KeyCode::Char(c), NONE, does)
}

const fn ctrl(c: char, does: Does) -> (KeyCode, KeyModifiers, Does) {
    (KeyCode::Char(c), CTRL, does)
}

const fn code(code: KeyCode, does: Does) -> (KeyCode, KeyModifiers, Does) {
    (code, NONE, does)
}

/// Every key, in the order in which `?` shows them.
pub(super) const KEYS: &[Line] = &[
    Line {
        keys: "?",
        says: "show these keys, or hide them",
        does: &[key('?', Does::Help), code(KeyCode::F(1), Does::Help)],
    },
    Line { keys: "q, Ctrl-C", says: "quit", does: &[key('q', Does::Quit), ctrl('c', Does::Quit)] },
    Line {
        keys: "1 … 5, Tab, ← →",
        says: "go to a tab",
        does: &[
            key('1', Does::Tab(Tab::Overview)),
            key('2', Does::Tab(Tab::Allocations)),
            key('3', Does::Tab(Tab::Graphs)),
            key('4', Does::Tab(Tab::Pool)),
            key('5', Does::Tab(Tab::Events)),
            code(KeyCode::Tab, Does::NextTab),
            code(KeyCode::Right, Does::NextTab),
            code(KeyCode::BackTab, Does::PreviousTab),
            code(KeyCode::Left, Does::PreviousTab),
        ],
    },
    Line {
        keys: "↑ ↓, j k, PgUp PgDn, Home End",
        says: "go through the rows",
        does: &[
            code(KeyCode::Up, Does::Up),
            key('k', Does::Up),
            code(KeyCode::Down, Does::Down),
            key('j', Does::Down),
            code(KeyCode::PageUp, Does::PageUp),
            code(KeyCode::PageDown, Does::PageDown),
            code(KeyCode::Home, Does::First),
            code(KeyCode::End, Does::Last),
        ],
    },
    Line {
        keys: "Enter",
        says: "look closely at a row: its call stacks; of all processes: at this one",
        does: &[code(KeyCode::Enter, Does::Open)],
    },
    Line {
        keys: "Esc",
        says: "go back: to the rows, to no filter, to all processes",
        does: &[code(KeyCode::Esc, Does::Back), code(KeyCode::Backspace, Does::Back)],
    },
    Line {
        keys: "s, S, r",
        says: "sort by the next column, by the one before, the other way round",
        does: &[key('s', Does::NextSort), key('S', Does::PreviousSort), key('r', Does::Reverse)],
    },
    Line {
        keys: "g, G",
        says: "group by something else: site, stack, kind, size, thread, tag, context, device; graphs also by class and state",
        does: &[key('g', Does::NextGroup), key('G', Does::PreviousGroup)],
    },
    Line { keys: "/", says: "show only rows with a text", does: &[key('/', Does::Filter)] },
    Line { keys: "Space, p", says: "pause, go on", does: &[key(' ', Does::Pause), key('p', Does::Pause)] },
    Line {
        keys: "b, B",
        says: "take a baseline: columns show what changed since; end that",
        does: &[key('b', Does::Baseline), key('B', Does::EndBaseline)],
    },
    Line { keys: "m", says: "set a mark in the process (asks for its name)", does: &[key('m', Does::Mark)] },
    Line {
        keys: "t",
        says: "trim: give what the pool keeps back to the driver (asks first)",
        does: &[key('t', Does::Trim)],
    },
    Line {
        keys: "+, -, R",
        says: "look less often, more often, at once",
        does: &[key('+', Does::Slower), key('-', Does::Faster), key('R', Does::Now)],
    },
    Line {
        keys: "Ctrl-L, Ctrl-Z",
        says: "draw anew, suspend",
        does: &[ctrl('l', Does::Redraw), ctrl('z', Does::Suspend)],
    },
];

/// What a key does; `None`: nothing.
pub(super) fn meaning(event: &KeyEvent) -> Option<Does> {
    // A capital letter is a key of its own, however a terminal says so.
    let held = event.modifiers.difference(KeyModifiers::SHIFT);
    let all = KEYS.iter().flat_map(|line| line.does);
    all.clone().find(|(code, modifiers, _)| *code == event.code && *modifiers == held).map(|&(.., does)| does)
}

/// The table as text, for the help of the command.
pub(super) fn help() -> String {
    let width = KEYS.iter().map(|line| crate::text::width(line.keys)).max().unwrap_or(0);
    let mut help = String::from("Keys, on a terminal:\n");
    for line in KEYS {
        let gap = " ".repeat(width - crate::text::width(line.keys));
        help.push_str(&format!("  {}{gap}  {}\n", line.keys, line.says));
    }
    help.pop();
    help
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_does_two_things() {
        let all: Vec<_> = KEYS.iter().flat_map(|line| line.does).map(|(code, held, _)| (*code, *held)).collect();
        for (at, key) in all.iter().enumerate() {
            assert!(!all[..at].contains(key), "{key:?}");
        }
        let shifted = KeyEvent::new(KeyCode::Char('S'), KeyModifiers::SHIFT);
        assert_eq!(meaning(&shifted), Some(Does::PreviousSort));
        assert_eq!(meaning(&KeyEvent::new(KeyCode::Char('c'), CTRL)), Some(Does::Quit));
        assert_eq!(meaning(&KeyEvent::new(KeyCode::Char('c'), NONE)), None);
    }
}
