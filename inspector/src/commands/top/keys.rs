//! The keys of the live view: one table for `?`, the command's help, and the meaning of a key.

use super::look::Tab;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Meaning of a key.
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
pub(super) struct KeyRow {
    /// The keys as users write them.
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

const fn line(keys: &'static str, says: &'static str, does: &'static [(KeyCode, KeyModifiers, Does)]) -> KeyRow {
    KeyRow { keys, says, does }
}

/// Every key, in the order of `?`.
pub(super) const KEYS: &[KeyRow] = &[
    line("?", "show these keys, or hide them", &[key('?', Does::Help), code(KeyCode::F(1), Does::Help)]),
    line("q, Ctrl-C", "quit", &[key('q', Does::Quit), ctrl('c', Does::Quit)]),
    line(
        "1 … 5, Tab, ← →",
        "go to a tab",
        &[
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
    ),
    line(
        "↑ ↓, j k, PgUp PgDn, Home End",
        "go through the rows",
        &[
            code(KeyCode::Up, Does::Up),
            key('k', Does::Up),
            code(KeyCode::Down, Does::Down),
            key('j', Does::Down),
            code(KeyCode::PageUp, Does::PageUp),
            code(KeyCode::PageDown, Does::PageDown),
            code(KeyCode::Home, Does::First),
            code(KeyCode::End, Does::Last),
        ],
    ),
    line("Enter", "show a row's call stacks; in the list of processes: open one", &[code(KeyCode::Enter, Does::Open)]),
    line(
        "Esc",
        "go back to the rows, remove the filter, or go back to the processes",
        &[code(KeyCode::Esc, Does::Back), code(KeyCode::Backspace, Does::Back)],
    ),
    line(
        "s, S, r",
        "sort by the next column, by the one before, the other way round",
        &[key('s', Does::NextSort), key('S', Does::PreviousSort), key('r', Does::Reverse)],
    ),
    line(
        "g, G",
        "group by something else: site, stack, kind, size, thread, tag, context, device; graphs also by class and state",
        &[key('g', Does::NextGroup), key('G', Does::PreviousGroup)],
    ),
    line("/", "show only rows with a text", &[key('/', Does::Filter)]),
    line("Space, p", "pause, go on", &[key(' ', Does::Pause), key('p', Does::Pause)]),
    line(
        "b, B",
        "take a baseline: columns show what changed since; end that",
        &[key('b', Does::Baseline), key('B', Does::EndBaseline)],
    ),
    line("m", "set a mark in the process (asks for its name)", &[key('m', Does::Mark)]),
    line("t", "trim: give what the pool keeps back to the driver (asks first)", &[key('t', Does::Trim)]),
    line(
        "+, -, R",
        "look less often, more often, at once",
        &[key('+', Does::Slower), key('-', Does::Faster), key('R', Does::Now)],
    ),
    line("Ctrl-L, Ctrl-Z", "draw anew, suspend", &[ctrl('l', Does::Redraw), ctrl('z', Does::Suspend)]),
];

/// Returns the meaning of a key; `None` if it has none.
pub(super) fn meaning(event: &KeyEvent) -> Option<Does> {
    // A capital letter is a key of its own, however the terminal reports it.
    let held = event.modifiers.difference(KeyModifiers::SHIFT);
    let all = KEYS.iter().flat_map(|line| line.does);
    all.clone().find(|(code, modifiers, _)| *code == event.code && *modifiers == held).map(|&(.., does)| does)
}

/// Returns the table as text, for the help of the command.
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
