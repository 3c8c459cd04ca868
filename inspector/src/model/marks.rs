//! Moments that a user can name: a span ago, or a mark.

use super::Ledger;
use crate::text::{clean, units};
use gpumem_wire::kinds::EventKind;
use gpumem_wire::layout::EventSlot;
use std::time::Duration;

/// Start of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// This long ago.
    Span(Duration),
    /// The newest mark of this name.
    Mark(String),
}

/// A moment with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub name: String,
    /// Time on the ledger's clock.
    pub at_ns: u64,
}

/// Marks that are listed if the requested one does not exist.
const NAMED: usize = 8;

/// Returns all marks still in the ledger, oldest first.
pub(super) fn marks(ledger: &Ledger) -> impl Iterator<Item = &EventSlot> {
    ledger.snapshot.events.iter().filter(|event| event.kind == EventKind::Mark as u8)
}

/// Resolves a moment.
///
/// # Errors
/// There is no such mark; the message lists the existing ones.
pub(crate) fn moment(ledger: &Ledger, since: &Since) -> Result<Moment, String> {
    let name = match since {
        Since::Span(span) => {
            let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            let at_ns = ledger.status.now_ns.saturating_sub(ns);
            return Ok(Moment { name: format!("the last {}", units::span(ns)), at_ns });
        }
        Since::Mark(name) => name,
    };
    let text = |event: &EventSlot| ledger.snapshot.text(event.text).into_owned();
    match marks(ledger).filter(|event| text(event) == *name).last() {
        Some(mark) => Ok(Moment { name: format!("mark {}", clean(name)), at_ns: mark.time_ns }),
        None => Err(missing(ledger, name, text)),
    }
}

/// Returns the message for a missing mark. Events are a ring, so older marks may be gone.
fn missing(ledger: &Ledger, name: &str, text: impl Fn(&EventSlot) -> String) -> String {
    let (name, there) = (clean(name), those_there(ledger, text));
    match ledger.snapshot.events.first() {
        Some(oldest) if oldest.seq > 0 => format!(
            "no mark that is left is called {name:?}; {there}; {} older events were pushed out, and it may have been \
             among them: a larger GPUMEM_EVENTS keeps more",
            units::number(oldest.seq)
        ),
        _ => format!("no mark is called {name:?}; {there}"),
    }
}

fn those_there(ledger: &Ledger, text: impl Fn(&EventSlot) -> String) -> String {
    let mut names: Vec<String> = Vec::new();
    for mark in marks(ledger) {
        let name = format!("{:?}", clean(&text(mark)));
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match names.len() {
        0 => "there is none: gpumem mark NAME sets one".into(),
        more if more > NAMED => format!("the newest are {}", names[more - NAMED..].join(", ")),
        _ => format!("there are {}", names.join(", ")),
    }
}
