//! The keys of the live view: one table for `?`, the command's help, and the meaning of a key.

use super::look::Tab;
use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Help,
    Quit,
    Tab(Tab),
    /// True: the next tab; false: the one before. The same for the other two.
    OtherTab(bool),
    /// By a line or a page, or to an end.
    Scroll(KeyCode),
    Open,
    Back,
    OtherSort(bool),
    Reverse,
    OtherGroup(bool),
    Filter,
    Pause,
    Slower,
    Faster,
    Now,
    Redraw,
    Suspend,
}

/// Every key as users write it, and what it does, in the order of `?`.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("?", "show these keys, or hide them"),
    ("q, Ctrl-C", "quit"),
    ("1 … 4, Tab, ← →", "go to a tab"),
    ("↑ ↓, j k, PgUp PgDn, Home End", "go through the rows"),
    ("Enter", "show all about a row; in the list of processes: open one"),
    ("Esc", "go back to the rows, remove the filter, or go back to the processes"),
    ("s, S, r", "sort by the next column, by the one before, the other way round"),
    (
        "g, G",
        "group by something else: site, stack, kind, size, thread, tag, context, device; graphs also by class and state",
    ),
    ("/", "show only rows with a text"),
    ("Space, p", "pause, go on"),
    ("+, -, R", "look less often, more often, at once"),
    ("Ctrl-L, Ctrl-Z", "draw anew, suspend"),
];

/// Returns how to read a tab; `of_one`: a process is chosen.
pub(super) fn reading(tab: Tab, of_one: bool) -> &'static [&'static str] {
    match tab {
        _ if !of_one => &[
            "A row for each process, as gpumem ps has it. per minute, history: the growth of all memory that it holds, \
             that is device, managed and host memory together.",
        ],
        Tab::Overview => &[
            "Above: totals over time, as gpumem stats --all has them. Below: what gpumem leaks says of each call site.",
            "per minute: the slope over the later half of the samples. history: a bar for each of the last 15 minutes, \
             or since the first sample, from its lowest to its highest value.",
        ],
        Tab::Allocations => {
            &["As gpumem allocs: a row for each group of live allocations. growth: over the later half of the samples."]
        }
        Tab::Graphs => {
            &["As gpumem graphs: what the graph cache holds and does, and a row for each group. ~: estimates."]
        }
        Tab::Events => &["As gpumem events, the newest first. Red: something failed. Yellow: something to look at."],
    }
}

/// Returns the meaning of a key; `None` if it has none.
pub(super) fn meaning(event: &KeyEvent) -> Option<Does> {
    use KeyCode::{BackTab, Backspace, Char, Down, End, Enter, Esc, F, Home, Left, PageDown, PageUp, Right, Up};
    // A capital letter is a key of its own, however the terminal reports it.
    let held = event.modifiers.difference(KeyModifiers::SHIFT);
    if held == KeyModifiers::CONTROL {
        return match event.code {
            Char('c') => Some(Does::Quit),
            Char('l') => Some(Does::Redraw),
            Char('z') => Some(Does::Suspend),
            _ => None,
        };
    }
    Some(match event.code {
        _ if !held.is_empty() => return None,
        Char('?') | F(1) => Does::Help,
        Char('q') => Does::Quit,
        Char(digit @ '1'..='4') => Does::Tab(Tab::value_variants()[digit as usize - '1' as usize]),
        KeyCode::Tab | Right => Does::OtherTab(true),
        BackTab | Left => Does::OtherTab(false),
        Char('k') => Does::Scroll(Up),
        Char('j') => Does::Scroll(Down),
        far @ (Up | Down | PageUp | PageDown | Home | End) => Does::Scroll(far),
        Enter => Does::Open,
        Esc | Backspace => Does::Back,
        Char('s') => Does::OtherSort(true),
        Char('S') => Does::OtherSort(false),
        Char('r') => Does::Reverse,
        Char('g') => Does::OtherGroup(true),
        Char('G') => Does::OtherGroup(false),
        Char('/') => Does::Filter,
        Char(' ' | 'p') => Does::Pause,
        Char('+') => Does::Slower,
        Char('-') => Does::Faster,
        Char('R') => Does::Now,
        _ => return None,
    })
}

/// Returns the table as lines of text.
pub(super) fn lines() -> impl Iterator<Item = String> {
    let width = KEYS.iter().map(|(keys, _)| crate::text::width(keys)).max().unwrap_or(0);
    KEYS.iter().map(move |(keys, says)| format!("  {keys}{}  {says}", " ".repeat(width - crate::text::width(keys))))
}

/// Returns the table as text, for the help of the command.
pub(super) fn help() -> String {
    format!("Keys, on a terminal:\n{}", lines().collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_help_says() {
        let press = |code, held| meaning(&KeyEvent::new(code, held));
        let (none, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
        assert_eq!(press(KeyCode::Char('S'), KeyModifiers::SHIFT), Some(Does::OtherSort(false)));
        assert_eq!((press(KeyCode::Char('c'), control), press(KeyCode::Char('c'), none)), (Some(Does::Quit), None));
        assert_eq!((press(KeyCode::Char('q'), none), press(KeyCode::Char('q'), control)), (Some(Does::Quit), None));
        assert_eq!(press(KeyCode::Char('4'), none), Some(Does::Tab(Tab::Events)));
        // Each single character that the help names has a meaning.
        let named = KEYS.iter().flat_map(|(keys, _)| keys.split([',', ' '])).filter(|key| key.chars().count() == 1);
        for key in named.filter(|key| key.is_ascii()) {
            assert!(key.chars().all(|c| press(KeyCode::Char(c), none).is_some()), "{key}");
        }
    }
}
