//! The line in which something is typed, or asked before it is done.

use super::super::look::Head;
use crate::text::units;
use gpumem_wire::command::Request;
use gpumem_wire::settings;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Longest text that is typed.
const LONGEST: usize = 200;

/// What is typed, and what for.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Prompt {
    pub what: PromptKind,
    pub text: String,
}

/// What it is for.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum PromptKind {
    /// The filter, and what it was before.
    Filter { before: String },
    /// The name of a mark.
    Mark,
    /// `VARIABLE=VALUE`.
    Set,
    /// Whether this is really to be done.
    Sure { question: String, request: Request },
}

/// What a key came to.
pub(super) enum Answer {
    /// More is typed.
    Goes,
    /// Something else is asked.
    Asks(Box<Prompt>),
    /// Nothing is to be done.
    Over,
    No(String),
    /// What was typed cannot be; it can be changed.
    Wrong(String),
    Do(Request),
}

impl Prompt {
    pub(super) fn new(what: PromptKind, text: &str) -> Self {
        Self { what, text: text.to_owned() }
    }

    /// Whether to trim.
    pub(super) fn trim(head: &Head) -> Self {
        let (idle, pid) = (units::bytes(head.idle_bytes), head.pid);
        let question = format!("give {idle} that the pool keeps in pid {pid} back to the driver?");
        Self::new(PromptKind::Sure { question, request: Request::Trim { press: false } }, "")
    }

    /// What stands before the text.
    pub(in super::super) fn label(&self) -> String {
        match &self.what {
            PromptKind::Filter { .. } => "only rows with: ".into(),
            PromptKind::Mark => "name of the mark: ".into(),
            PromptKind::Set => "set VARIABLE=VALUE: ".into(),
            PromptKind::Sure { question, .. } => format!("{question} (y/n) "),
        }
    }

    pub(super) fn paste(&mut self, text: &str) {
        let room = LONGEST.saturating_sub(self.text.chars().count());
        if !matches!(self.what, PromptKind::Sure { .. }) {
            self.text.extend(text.chars().filter(|c| !c.is_control()).take(room));
        }
    }

    pub(super) fn key(&mut self, key: &KeyEvent, head: Option<&Head>) -> Answer {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (&self.what, key.code) {
            (PromptKind::Sure { request, .. }, KeyCode::Char('y' | 'Y')) if !control => Answer::Do(request.clone()),
            (PromptKind::Sure { .. }, _) => Answer::No("nothing was done".into()),
            (PromptKind::Filter { before }, KeyCode::Esc) => {
                self.text = before.clone();
                Answer::Over
            }
            (_, KeyCode::Esc) => Answer::No("nothing was done".into()),
            (_, KeyCode::Char('c' | 'g')) if control => Answer::No("nothing was done".into()),
            (_, KeyCode::Enter) => self.enter(head),
            (_, KeyCode::Char('u')) if control => {
                self.text.clear();
                Answer::Goes
            }
            (_, KeyCode::Backspace) => {
                self.text.pop();
                Answer::Goes
            }
            (_, KeyCode::Char(c)) if !control => {
                self.paste(c.encode_utf8(&mut [0; 4]));
                Answer::Goes
            }
            _ => Answer::Goes,
        }
    }

    fn enter(&self, head: Option<&Head>) -> Answer {
        let text = self.text.trim();
        match &self.what {
            PromptKind::Filter { .. } => Answer::Over,
            PromptKind::Mark | PromptKind::Set if text.is_empty() => Answer::No("nothing was done".into()),
            PromptKind::Mark => Answer::Do(Request::Mark(text.to_owned())),
            PromptKind::Set => set(text, head),
            PromptKind::Sure { .. } => Answer::Goes,
        }
    }
}

/// Whether this variable is to be set, if it can be.
fn set(text: &str, head: Option<&Head>) -> Answer {
    let Some((name, value)) = text.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
        return Answer::Wrong(format!("{text:?} is no VARIABLE=VALUE, such as POOL_MAX=1GiB"));
    };
    let setting = match settings::change(name, value) {
        Ok((setting, _)) => setting,
        Err(why) => return Answer::Wrong(why),
    };
    let value = if value.is_empty() { "default" } else { value };
    let old = head.and_then(|head| head.variables.iter().find(|(known, _)| known == setting.name));
    let old = old.map(|(_, old)| old.as_str()).filter(|old| !old.is_empty()).unwrap_or("unset");
    let pid = head.map_or(0, |head| head.pid);
    let question = format!("set {} of pid {pid} from {old} to {value}?", setting.name);
    let request = Request::Set { name: setting.name.into(), value: value.into(), force: false };
    Answer::Asks(Box::new(Prompt::new(PromptKind::Sure { question, request }, "")))
}
