//! One look: turns a ledger into the plain data that is drawn.
//!
//! * [`overview`]: totals and their growth. [`allocs`]: live allocations in groups, and one group in detail.
//! * [`graphs`], [`pool`], [`events`]: the other tabs. [`processes`]: all processes.
//! * [`memory`]: data kept from one look to the next: counts for rates, the baseline, verdicts.

mod allocs;
mod events;
mod graphs;
mod memory;
mod overview;
mod pool;
mod processes;

pub(super) use memory::Memory;
pub(super) use processes::processes;

use super::look::{Ask, Head, Look, Tab};
use crate::model::Ledger;
use crate::model::sites::Sites;
use crate::source::world::World;
use crate::text::units;

/// The input of each tab.
struct View<'a> {
    world: &'a World,
    ledger: &'a Ledger,
    sites: Sites,
    ask: &'a Ask,
    memory: &'a Memory,
}

/// Looks at a ledger.
pub(super) fn look(world: &World, ledger: &Ledger, ask: &Ask, memory: &mut Memory) -> Look {
    let sites = allocs::sites(ledger);
    memory.remember(ledger, ask);
    let view = View { world, ledger, sites, ask, memory };
    let mut look = Look::new(ask, head(&view), ledger.head().warnings());
    look.warnings.extend(ledger.cut_short());
    match ask.tab {
        Tab::Overview | Tab::Allocations => {
            match ask.tab {
                Tab::Overview => overview::fill(&view, &mut look),
                _ => look.list = allocs::sheet(&view, ask.by),
            }
            look.detail = ask.detail.as_ref().map(|id| allocs::detail(&view, id));
        }
        Tab::Graphs => graphs::fill(&view, &mut look),
        Tab::Pool => pool::fill(&view, &mut look),
        Tab::Events => events::fill(&view, &mut look),
    }
    look.unnamed = ledger.symbols.wanted().len();
    look
}

fn head(view: &View) -> Head {
    let ledger = view.ledger;
    let recorded = format!("recorded for {}", units::span(ledger.age(ledger.snapshot.header.created_ns)));
    let running = ledger.status.running();
    let contexts = ledger.snapshot.contexts.values().filter(|context| context.gone_ns == 0);
    Head {
        name: ledger.name(),
        pid: ledger.pid(),
        status: if running && !ledger.status.is_parked() {
            recorded
        } else {
            format!("{}, {recorded}", ledger.status.text())
        },
        running,
        idle_bytes: contexts.fold(0, |sum: u64, context| sum.saturating_add(context.idle_bytes)),
        baseline_age: view.memory.baseline().map(|baseline| baseline.at.elapsed()),
    }
}
