//! One look: turns a ledger into the plain data that is drawn.
//!
//! * [`overview`]: totals and their growth. [`allocs`]: live allocations in groups, and one group in detail.
//! * [`graphs`], [`pool`], [`events`]: the other tabs. [`processes`]: all processes.
//! * [`memory`]: data kept from one look to the next: counts for rates, the baseline, verdicts; the table of totals.

mod allocs;
mod events;
mod graphs;
mod memory;
mod overview;
mod pool;
mod processes;

pub(super) use memory::Memory;
pub(super) use processes::processes;

use super::look::{Ask, Cell, Head, Look, Row, Tab};
use crate::model::Ledger;
use crate::model::key::GroupKey;
use crate::model::sites::Sites;
use crate::source::world::World;
use crate::text::units;
use gpumem_wire::layout::StackRef;

/// The input of each tab.
struct View<'a> {
    world: &'a World,
    ledger: &'a Ledger,
    sites: Sites,
    ask: &'a Ask,
    memory: &'a Memory,
}

/// Most rows of a list: no user scrolls through more.
const MOST_ROWS: usize = 5000;

/// Cuts a list to the rows that are shown; returns the number of the others.
fn cut<T>(rows: &mut Vec<T>) -> usize {
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    rows.truncate(MOST_ROWS);
    left_out
}

/// Returns a call stack in lines.
fn frames(ledger: &Ledger, stack: StackRef) -> Vec<String> {
    ledger.frames(stack).iter().map(|frame| format!("  {}", frame.text())).collect()
}

impl View<'_> {
    /// Identifies a group whatever the order of the rows. Several stacks may have one name.
    fn id(&self, sites: &Sites, key: &GroupKey) -> String {
        match key {
            GroupKey::Stack(stack) => format!("stack {stack}"),
            _ => key.text(self.ledger, sites),
        }
    }

    /// Returns the row of a group, with its name as the last cell.
    fn row(&self, sites: &Sites, key: &GroupKey, mut cells: Vec<Cell>) -> Row {
        cells.push(Cell::Text(key.text(self.ledger, sites)));
        Row::new(self.id(sites, key), cells)
    }
}

/// Looks at a ledger.
pub(super) fn look(world: &World, ledger: &Ledger, ask: &Ask, memory: &mut Memory) -> Look {
    let sites = allocs::sites(ledger);
    memory.remember(ledger, ask);
    let view = View { world, ledger, sites, ask, memory };
    let mut look = Look::new(ask, head(&view), crate::model::Head::of(ledger).warnings());
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
