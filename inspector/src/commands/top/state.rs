//! The state of the view, and the effects of keys on it. Nothing here reads, draws or waits: it takes keys and looks,
//! and returns the work to do.
//!
//! * [`rows`]: the rows that are shown, their order, and the chosen one.

mod rows;

pub(super) use rows::Rows;

use super::keys::{Does, meaning};
use super::look::{Ask, Look, Tab};
use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// State of the view.
#[derive(Default)]
pub(super) struct State {
    /// The request for the next look.
    pub ask: Ask,
    pub filter: String,
    /// While the filter is typed: its earlier value.
    before: Option<String>,
    /// True while the help is shown.
    pub help: bool,
    /// First line that is shown of a text: the help, a row's detail, or a tab without rows.
    pub from: usize,
    /// The last line that it can begin with.
    pub last_from: usize,
    pub message: Option<Message>,
    /// Rows that fit on the screen.
    pub page: usize,
    lists: HashMap<Option<Tab>, Rows>,
}

/// A message at the bottom until the next key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub text: String,
    pub bad: bool,
}

/// Longest filter.
const LONGEST: usize = 200;
/// Shortest and longest interval that keys can set.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

impl State {
    /// Returns the initial state.
    pub(super) fn new(whom: Option<PathBuf>, interval: Duration) -> Self {
        Self { ask: Ask { whom, interval, ..Ask::default() }, page: 1, ..Self::default() }
    }

    /// True if a text is shown that keys scroll through: no row is chosen.
    pub(super) fn is_text(&self) -> bool {
        self.help || self.ask.detail.is_some()
    }

    /// True while the filter is typed.
    pub(super) fn is_typing(&self) -> bool {
        self.before.is_some()
    }

    /// Returns the order of the rows, and the chosen one.
    pub(super) fn rows(&self) -> Rows {
        self.lists.get(&self.place()).cloned().unwrap_or_default()
    }

    fn place(&self) -> Option<Tab> {
        self.ask.whom.as_ref().map(|_| self.ask.tab)
    }

    fn change_rows(&mut self, change: impl FnOnce(&mut Rows)) {
        change(self.lists.entry(self.place()).or_default());
    }

    /// Takes a look: the chosen row stays chosen, wherever it is now.
    pub(super) fn looked(&mut self, look: &Look) {
        let filter = self.filter.clone();
        self.change_rows(|rows| rows.follow(&look.list, &filter));
    }

    /// Handles a key. Returns its meaning if that is work besides looking: to quit, suspend, redraw, or look now.
    pub(super) fn key(&mut self, key: &KeyEvent, look: Option<&Look>) -> Option<Does> {
        self.message = None;
        if self.is_typing() {
            self.type_key(key, look);
            return None;
        }
        let does = meaning(key)?;
        match does {
            Does::Quit => return Some(does),
            _ if self.is_text() && self.in_text(does) => {}
            _ if self.help => {}
            Does::Suspend | Does::Redraw | Does::Now => return Some(does),
            Does::Filter => self.before = Some(self.filter.clone()),
            _ if self.go(does) => {}
            _ => self.arrange(does, look),
        }
        None
    }

    /// Handles a key in a text; false: the key has its usual meaning.
    fn in_text(&mut self, does: Does) -> bool {
        match does {
            Does::Scroll(far) => self.from = scrolled(self.from, far, self.page).min(self.last_from),
            Does::Help | Does::Back | Does::Open if self.help => (self.help, self.from) = (false, 0),
            Does::Back | Does::Open if self.ask.detail.is_some() => (self.ask.detail, self.from) = (None, 0),
            Does::Open | Does::OtherSort(_) | Does::OtherGroup(_) | Does::Reverse => {}
            _ => return false,
        }
        true
    }

    /// Moves to another place; false: the key does not do that.
    fn go(&mut self, does: Does) -> bool {
        let of_one = self.ask.whom.is_some();
        match does {
            Does::Help => (self.help, self.from) = (true, 0),
            Does::Tab(tab) if of_one => self.show(tab),
            Does::OtherTab(forward) if of_one => self.show(next(self.ask.tab, forward)),
            Does::Tab(_) | Does::OtherTab(_) => self.say("choose a process with Enter"),
            Does::Back if !self.filter.is_empty() => self.filter.clear(),
            Does::Back if of_one => {
                (self.ask.whom, self.ask.tab, self.ask.paused) = (None, Tab::Overview, false);
            }
            Does::Back => {}
            _ => return false,
        }
        true
    }

    fn show(&mut self, tab: Tab) {
        if tab != self.ask.tab {
            (self.ask.tab, self.ask.detail, self.from) = (tab, None, 0);
            self.filter.clear();
        }
    }

    /// Changes which rows are shown, in which order, and how often they are read.
    fn arrange(&mut self, does: Does, look: Option<&Look>) {
        let (filter, page) = (self.filter.clone(), self.page);
        let fits = look.filter(|look| look.ask.whom == self.ask.whom && look.ask.tab == self.ask.tab);
        match does {
            Does::Scroll(far) => {
                if let Some(look) = fits {
                    self.change_rows(|rows| rows.move_to(scrolled(rows.at, far, page), &look.list, &filter));
                }
            }
            Does::OtherSort(_) | Does::Reverse => {
                if let Some(look) = fits {
                    self.change_rows(|rows| {
                        rows.sort(does, &look.list);
                        rows.follow(&look.list, &filter);
                    });
                }
            }
            Does::OtherGroup(forward) => self.group(forward),
            Does::Open => self.open(fits),
            Does::Slower => self.ask.interval = (self.ask.interval * 2).min(INTERVALS.1),
            Does::Faster => self.ask.interval = (self.ask.interval / 2).max(INTERVALS.0.min(self.ask.interval)),
            Does::Pause => self.ask.paused = !self.ask.paused,
            _ => {}
        }
    }

    fn group(&mut self, forward: bool) {
        match self.ask.tab {
            Tab::Allocations => self.ask.by = next(self.ask.by, forward),
            Tab::Graphs => self.ask.graphs_by = next(self.ask.graphs_by, forward),
            _ => self.say("groups are in Allocations and Graphs"),
        }
    }

    fn open(&mut self, look: Option<&Look>) {
        let Some(look) = look else { return };
        let Some(row) = self.rows().chosen(&look.list, &self.filter) else { return };
        let row = &look.list.keys[row];
        match &row.ledger {
            Some(ledger) => {
                self.ask.whom = Some(ledger.clone());
                self.lists.retain(|place, _| place.is_none());
                self.filter.clear();
            }
            None if self.ask.whom.is_some() => (self.ask.detail, self.from) = (Some(row.id.clone()), 0),
            None => self.say("there is no ledger to look at"),
        }
    }

    /// Handles a key while the filter is typed.
    fn type_key(&mut self, key: &KeyEvent, look: Option<&Look>) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => self.filter = self.before.take().unwrap_or_default(),
            KeyCode::Char('c' | 'g') if control => self.filter = self.before.take().unwrap_or_default(),
            KeyCode::Enter => self.before = None,
            KeyCode::Char('u') if control => self.filter.clear(),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if !control => return self.paste(c.encode_utf8(&mut [0; 4]), look),
            _ => {}
        }
        look.into_iter().for_each(|look| self.looked(look));
    }

    /// Adds text to the filter, while it is typed.
    pub(super) fn paste(&mut self, text: &str, look: Option<&Look>) {
        if self.is_typing() {
            let room = LONGEST.saturating_sub(self.filter.chars().count());
            self.filter.extend(text.chars().filter(|c| !c.is_control()).take(room));
            look.into_iter().for_each(|look| self.looked(look));
        }
    }

    /// Shows a message until the next key.
    pub(super) fn say(&mut self, text: &str) {
        self.message = Some(Message { text: text.to_owned(), bad: false });
    }

    /// Shows an error until the next key.
    pub(super) fn complain(&mut self, text: &str) {
        self.message = Some(Message { text: text.to_owned(), bad: true });
    }
}

/// Returns the position after a line or a page.
fn scrolled(at: usize, far: KeyCode, page: usize) -> usize {
    match far {
        KeyCode::Up => at.saturating_sub(1),
        KeyCode::Down => at.saturating_add(1),
        KeyCode::PageUp => at.saturating_sub(page.max(1)),
        KeyCode::PageDown => at.saturating_add(page.max(1)),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => at,
    }
}

/// Returns the value before or after this one, in a circle.
fn next<T: ValueEnum + PartialEq>(now: T, forward: bool) -> T {
    let all = T::value_variants();
    let at = all.iter().position(|value| *value == now).unwrap_or(0);
    all[(at + if forward { 1 } else { all.len() - 1 }) % all.len()].clone()
}

#[cfg(test)]
mod tests;
