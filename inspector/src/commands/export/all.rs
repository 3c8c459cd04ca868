//! Everything in a ledger, as JSON.

use crate::context::Context;
use crate::model::overview::Overview;
use crate::model::rows::{Alloc, Exec, Graph};
use crate::model::{Head, Ledger, growth, totals};
use crate::source::nvml::Books;
use crate::view::lazy::Lazy;
use gpumem_wire::counters;
use gpumem_wire::layout::{AllocSlot, ExecSlot, GraphSlot, StackRef};
use gpumem_wire::read;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Everything<'a> {
    process: crate::model::Head,
    #[serde(flatten)]
    overview: Overview,
    host: totals::Host,
    counters: std::collections::BTreeMap<&'static str, u64>,
    samples: Vec<std::collections::BTreeMap<&'static str, u64>>,
    stacks: Lazy<'a, StackRow>,
    allocations: Lazy<'a, WithStack<Alloc>>,
    graphs: Lazy<'a, WithStack<Graph>>,
    execs: Lazy<'a, WithStack<Exec>>,
}

#[derive(Serialize)]
struct StackRow {
    stack: StackRef,
    frames: Vec<crate::symbols::Frame>,
    allocs: u64,
    alloc_bytes: u64,
    graphs: u64,
    execs: u64,
}

/// A row, and the number of its call stack.
#[derive(Serialize)]
pub(super) struct WithStack<R> {
    #[serde(flatten)]
    of: R,
    stack: StackRef,
}

impl WithStack<Alloc> {
    pub(super) fn of_alloc(ledger: &Ledger, alloc: &AllocSlot) -> Self {
        Self { of: Alloc::of(ledger, alloc), stack: alloc.stack }
    }
}

pub(super) fn everything<'a>(context: &Context, ledger: &'a Ledger) -> Everything<'a> {
    let snapshot = &ledger.snapshot;
    let mut stacks: Vec<_> = snapshot.stacks.iter().collect();
    stacks.sort_by_key(|(reference, _)| **reference);
    Everything {
        process: Head::of(ledger),
        overview: Overview::of(ledger, &Books::default()),
        host: totals::host(&context.world, ledger),
        counters: counters::ALL.iter().map(|&(index, name, _)| (name, snapshot.counter(index))).collect(),
        samples: growth::samples(ledger),
        stacks: Lazy::of(stacks, move |(&stack, slot): (&u32, &read::Stack)| StackRow {
            stack,
            frames: ledger.frames(stack),
            allocs: slot.allocs,
            alloc_bytes: slot.alloc_bytes,
            graphs: slot.graphs,
            execs: slot.execs,
        }),
        allocations: Lazy::of(snapshot.allocs.iter().collect(), |alloc| WithStack::of_alloc(ledger, alloc)),
        graphs: Lazy::of(snapshot.graphs.iter().collect(), |graph: &GraphSlot| WithStack {
            of: Graph::of(ledger, graph),
            stack: graph.stack,
        }),
        execs: Lazy::of(snapshot.execs.iter().collect(), |exec: &ExecSlot| WithStack {
            of: Exec::of(ledger, exec),
            stack: exec.stack,
        }),
    }
}
