//! Events, the newest first.

use super::super::look::{BAD, Cell, EVENTS, Look, PLAIN, Row, Sheet, WARN};
use super::{MOST_ROWS, View, frames};
use crate::model::events::{name, sentence, severity};
use crate::model::sites::Sites;
use crate::source::liveness::real_ns;
use crate::text::units;
use gpumem_wire::kinds::Severity;
use gpumem_wire::layout::EventSlot;

/// Fills the tab.
pub(super) fn fill(view: &View, look: &mut Look) {
    let events = &view.ledger.snapshot.events;
    let sites = Sites::of_events(view.ledger);
    look.list = Sheet {
        columns: EVENTS,
        rows: events.iter().rev().take(MOST_ROWS).map(|event| row(view, &sites, event)).collect(),
        left_out: events.len().saturating_sub(MOST_ROWS),
        empty: "no events",
        ..Sheet::default()
    };
    if let Some(lost) = events.first().map(|event| event.seq).filter(|&lost| lost > 0) {
        look.lines = vec![format!("{} older events are no longer kept: GPUMEM_EVENTS", units::number(lost))];
    }
    look.detail = view.ask.detail.as_ref().map(|id| detail(view, id));
}

fn row(view: &View, sites: &Sites, event: &EventSlot) -> Row {
    let said = sentence(view.ledger, event);
    let site = if event.stack == 0 { Cell::Empty } else { Cell::text(&*sites.name(event.stack)) };
    let thread = format!("{} {}", event.tid, view.ledger.thread(event.tid));
    let cells = vec![
        Cell::Age(view.ledger.age(event.time_ns)),
        Cell::text(name(event)),
        Cell::text(thread.trim_end()),
        Cell::text(said),
        site,
    ];
    let style = match severity(event) {
        Severity::Info => PLAIN,
        Severity::Warning => WARN,
        Severity::Error => BAD,
    };
    Row::new(event.seq.to_string(), cells).style(style)
}

fn detail(view: &View, id: &str) -> Vec<String> {
    let ledger = view.ledger;
    let Some(event) = ledger.snapshot.events.iter().find(|event| event.seq.to_string() == id) else {
        return vec!["this event is no longer kept".into()];
    };
    let clock = units::clock(real_ns(&ledger.snapshot.header, event.time_ns));
    let mut lines = vec![
        name(event),
        String::new(),
        sentence(ledger, event),
        String::new(),
        format!("when     {clock}, {} ago", units::span(ledger.age(event.time_ns))),
        format!("thread   {} {}", event.tid, ledger.thread(event.tid)),
        format!("context  {} {}", event.context, ledger.device(event.context)),
    ];
    if event.stack != 0 {
        lines.push(String::new());
        lines.extend(frames(ledger, event.stack));
    }
    lines
}
