//! The line for text, and for a question before an action.

use super::super::look::Head;
use crate::text::units;
use gpumem_wire::command::Request;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Longest text.
const LONGEST: usize = 200;

/// An open prompt: the text so far, and its purpose.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Prompt {
    pub what: PromptKind,
    pub text: String,
}

/// Purpose of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum PromptKind {
    /// The filter, with its earlier value.
    Filter { before: String },
    /// The name of a mark.
    Mark,
    /// A question before the request is sent.
    Sure { question: String, request: Request },
}

/// Result of a key in a prompt.
pub(super) enum PromptAnswer {
    /// The prompt stays open.
    Goes,
    /// The prompt is closed without a result.
    Over,
    /// The prompt is closed, and nothing was done.
    Nothing,
    Do(Request),
}

impl Prompt {
    pub(super) fn new(what: PromptKind, text: &str) -> Self {
        Self { what, text: text.to_owned() }
    }

    /// Asks before a trim.
    pub(super) fn trim(head: &Head) -> Self {
        let (idle, pid) = (units::bytes(head.idle_bytes), head.pid);
        let question = format!("give {idle} that the pool keeps in pid {pid} back to the driver?");
        Self::new(PromptKind::Sure { question, request: Request::Trim { press: false } }, "")
    }

    /// Returns the text in front of the input.
    pub(in super::super) fn label(&self) -> String {
        match &self.what {
            PromptKind::Filter { .. } => "only rows with: ".into(),
            PromptKind::Mark => "name of the mark: ".into(),
            PromptKind::Sure { question, .. } => format!("{question} (y/n) "),
        }
    }

    pub(super) fn paste(&mut self, text: &str) {
        let room = LONGEST.saturating_sub(self.text.chars().count());
        if !matches!(self.what, PromptKind::Sure { .. }) {
            self.text.extend(text.chars().filter(|c| !c.is_control()).take(room));
        }
    }

    pub(super) fn key(&mut self, key: &KeyEvent) -> PromptAnswer {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (&self.what, key.code) {
            (PromptKind::Sure { request, .. }, KeyCode::Char('y' | 'Y')) if !control => {
                return PromptAnswer::Do(request.clone());
            }
            (PromptKind::Sure { .. }, _) => return PromptAnswer::Nothing,
            (PromptKind::Filter { before }, KeyCode::Esc) => {
                self.text = before.clone();
                return PromptAnswer::Over;
            }
            (_, KeyCode::Esc) => return PromptAnswer::Nothing,
            (_, KeyCode::Char('c' | 'g')) if control => return PromptAnswer::Nothing,
            (_, KeyCode::Enter) => return self.enter(),
            (_, KeyCode::Char('u')) if control => self.text.clear(),
            (_, KeyCode::Backspace) => drop(self.text.pop()),
            (_, KeyCode::Char(c)) if !control => self.paste(c.encode_utf8(&mut [0; 4])),
            _ => {}
        }
        PromptAnswer::Goes
    }

    fn enter(&self) -> PromptAnswer {
        let text = self.text.trim();
        match &self.what {
            PromptKind::Filter { .. } => PromptAnswer::Over,
            PromptKind::Mark if text.is_empty() => PromptAnswer::Nothing,
            PromptKind::Mark => PromptAnswer::Do(Request::Mark(text.to_owned())),
            PromptKind::Sure { .. } => PromptAnswer::Goes,
        }
    }
}
