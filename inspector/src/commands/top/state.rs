//! The state of the view, and the effects of keys on it. Nothing here reads, draws or waits: it takes keys and looks,
//! and returns the work to do.
//!
//! * [`prompt`]: the line for text and questions.
//! * [`rows`]: the rows that are shown, their order, and the chosen one.

mod prompt;
mod rows;

use prompt::PromptAnswer;
pub(super) use prompt::{Prompt, PromptKind};
pub(super) use rows::Rows;

use super::keys::{Does, meaning};
use super::look::{Ask, Look, Tab};
use clap::ValueEnum;
use gpumem_wire::command::Request;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// State of the view.
#[derive(Default)]
pub(super) struct State {
    /// The request for the next look.
    pub ask: Ask,
    pub filter: String,
    pub prompt: Option<Prompt>,
    /// True while the help is shown.
    pub help: bool,
    /// First line that is shown of a text: the help, a row's detail, or a tab without rows.
    pub from: usize,
    /// The last line that it can begin with.
    pub last_from: usize,
    baselines: u64,
    pub message: Option<Message>,
    /// True if keys may not change the process.
    readonly: bool,
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

/// Work to do besides looking.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    Quit,
    Suspend,
    /// Redraw everything.
    Redraw,
    /// Look now.
    Now,
    /// Send a request to the process.
    Act(Request),
}

/// Shortest and longest interval that keys can set.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

impl State {
    /// Returns the initial state.
    pub(super) fn new(whom: Option<PathBuf>, interval: Duration, readonly: bool) -> Self {
        Self { ask: Ask { whom, interval, ..Ask::default() }, readonly, page: 1, ..Self::default() }
    }

    /// True if a text is shown that keys scroll through: no row is chosen.
    pub(super) fn is_text(&self) -> bool {
        self.help || self.ask.detail.is_some() || self.ask.whom.is_some() && self.ask.tab == Tab::Pool
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

    /// Handles a key.
    pub(super) fn key(&mut self, key: &KeyEvent, look: Option<&Look>) -> Option<Effect> {
        self.message = None;
        if self.prompt.is_some() {
            return self.type_key(key, look);
        }
        let does = meaning(key)?;
        match does {
            Does::Quit => return Some(Effect::Quit),
            _ if self.is_text() && self.in_text(does) => {}
            _ if self.help => {}
            Does::Suspend => return Some(Effect::Suspend),
            Does::Redraw => return Some(Effect::Redraw),
            Does::Now => return Some(Effect::Now),
            _ if self.go(does) || self.arrange(does, look) => {}
            _ => self.act(does, look),
        }
        None
    }

    /// Handles a key in a text; false: the key has its usual meaning.
    fn in_text(&mut self, does: Does) -> bool {
        match does {
            Does::Scroll(far) => self.from = scrolled(self.from, far, self.page).min(self.last_from),
            Does::Help | Does::Back | Does::Open if self.help => (self.help, self.from) = (false, 0),
            Does::Back | Does::Open if self.ask.detail.is_some() => (self.ask.detail, self.from) = (None, 0),
            Does::Open | Does::OtherSort(_) | Does::Reverse => {}
            Does::OtherGroup(_) if self.ask.detail.is_some() => {}
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
                (self.ask.whom, self.ask.tab, self.ask.baseline) = (None, Tab::Overview, 0);
                self.ask.paused = false;
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

    /// Changes the order of the rows; false: the key does not do that.
    fn arrange(&mut self, does: Does, look: Option<&Look>) -> bool {
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
            Does::EndBaseline => self.ask.baseline = 0,
            Does::Baseline if self.ask.whom.is_none() => self.say("choose a process with Enter"),
            Does::Baseline => {
                self.baselines += 1;
                self.ask.baseline = self.baselines;
                self.say("growth counts from now on; B ends that");
            }
            _ => return false,
        }
        true
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

    /// Starts an action on the process, or a text prompt.
    fn act(&mut self, does: Does, look: Option<&Look>) {
        if does == Does::Filter {
            self.prompt = Some(Prompt::new(PromptKind::Filter { before: self.filter.clone() }, &self.filter));
            return;
        }
        if self.ask.whom.is_none() {
            return self.say("choose a process with Enter");
        }
        // Right after a process is chosen, the last look is still the list of all.
        let look = look.filter(|look| look.ask.whom == self.ask.whom);
        let Some(head) = look.and_then(|look| look.head.as_ref()) else {
            return self.say("one moment: the process is being looked at");
        };
        match does {
            _ if self.readonly => self.complain("--readonly: nothing of the process is changed"),
            _ if !head.running => self.complain("this needs a running process"),
            Does::Mark => self.prompt = Some(Prompt::new(PromptKind::Mark, "")),
            Does::Trim => self.prompt = Some(Prompt::trim(head)),
            _ => {}
        }
    }

    fn type_key(&mut self, key: &KeyEvent, look: Option<&Look>) -> Option<Effect> {
        let mut prompt = self.prompt.take()?;
        let answer = prompt.key(key);
        self.take_filter(&prompt, look);
        match answer {
            PromptAnswer::Goes => self.prompt = Some(prompt),
            PromptAnswer::Over => {}
            PromptAnswer::Nothing => self.say("nothing was done"),
            PromptAnswer::Do(request) => return Some(Effect::Act(request)),
        }
        None
    }

    /// Pastes text into an open text prompt.
    pub(super) fn paste(&mut self, text: &str, look: Option<&Look>) {
        let Some(mut prompt) = self.prompt.take() else { return };
        prompt.paste(text);
        self.take_filter(&prompt, look);
        self.prompt = Some(prompt);
    }

    /// Filters by the text of a prompt, if it is for that.
    fn take_filter(&mut self, prompt: &Prompt, look: Option<&Look>) {
        if let PromptKind::Filter { .. } = prompt.what {
            self.filter.clone_from(&prompt.text);
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
