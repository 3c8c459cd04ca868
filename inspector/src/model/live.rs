//! Records and samples of each call stack, tag and class.

use super::Ledger;
use super::balance::Count;
use super::history::{Samples, Series};
use gpumem_wire::growth;
use gpumem_wire::kinds::{AllocKind, GrowthKind};
use gpumem_wire::layout::StackRef;
use rustc_hash::FxHashMap;

/// Facts of one stack, tag or class, then summed over those with the same name.
#[derive(Default)]
pub(super) struct Live {
    pub series: Series,
    pub has_row: bool,
    /// Its bytes are measured by the fall of free memory.
    pub is_measured: bool,
    pub bytes: u64,
    /// Time and bytes of each live record.
    pub born: Vec<(u64, u64)>,
    pub peak: u64,
    pub ever: u64,
    pub count: Count,
    /// Times of the first and the last record; 0: unknown.
    pub first_ns: u64,
    pub last_ns: u64,
    pub stack: StackRef,
}

impl Live {
    fn add(&mut self, time_ns: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.born.push((time_ns, bytes));
    }

    /// Returns the time of the last record, as far as it is known; 0: unknown.
    pub(super) fn newest_ns(&self) -> u64 {
        self.born.iter().map(|&(time_ns, _)| time_ns).max().unwrap_or(0).max(self.last_ns)
    }

    pub(super) fn join(&mut self, other: Self) {
        self.series.add(other.series);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.is_measured |= other.is_measured;
        self.born.extend(other.born);
        self.peak = self.peak.saturating_add(other.peak);
        self.ever = self.ever.saturating_add(other.ever);
        self.count.join(other.count);
        self.first_ns = [self.first_ns, other.first_ns].into_iter().filter(|&ns| ns > 0).min().unwrap_or(0);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.stack = self.stack.max(other.stack);
    }
}

/// Returns the facts of each stack, tag and class, by its number.
pub(super) fn numbered(ledger: &Ledger, samples: &Samples) -> FxHashMap<growth::Key, Live> {
    let mut all: FxHashMap<growth::Key, Live> = FxHashMap::default();
    for (row, slot) in ledger.snapshot.growth.rows() {
        // A kind of a later version has no name here.
        let Some(kind) = GrowthKind::from_u8(slot.kind) else { continue };
        let live = all.entry((kind, slot.key)).or_default();
        live.series.add(samples.row(ledger, row, slot));
        (live.has_row, live.peak, live.last_ns) = (true, slot.peak_bytes, slot.made_ns);
    }
    let mut add = |key, time_ns, bytes, count: &dyn Fn(&mut Count)| {
        let live = all.entry(key).or_default();
        live.add(time_ns, bytes);
        count(&mut live.count);
    };
    for alloc in &ledger.snapshot.allocs {
        growth::keys_of_alloc(alloc).for_each(|key| add(key, alloc.time_ns, alloc.bytes, &|_| {}));
    }
    for graph in &ledger.snapshot.graphs {
        add(growth::key_of_graph(graph), graph.time_ns, graph.held_bytes(), &Count::add_graph);
    }
    for exec in &ledger.snapshot.execs {
        let add_exec = |count: &mut Count| count.add_exec(exec);
        growth::keys_of_exec(exec).for_each(|key| add(key, exec.time_ns, exec.held_bytes(), &add_exec));
    }
    for stream in ledger.snapshot.streams.values() {
        add(growth::key_of_stream(stream), stream.time_ns, 0, &|_| {});
    }
    for context in ledger.snapshot.contexts.values() {
        growth::key_of_context(context).into_iter().for_each(|key| add(key, context.time_ns, 0, &|_| {}));
    }
    for code in ledger.snapshot.allocs.iter().filter(|alloc| alloc.kind == AllocKind::Code as u8 && alloc.extra == 1) {
        all.entry((GrowthKind::Code, code.stack.into())).or_default().is_measured = true;
    }
    for (&stack, totals) in &ledger.snapshot.stacks {
        for kind in growth::WITHOUT_MEMORY {
            if let Some(live) = all.get_mut(&(kind, stack.into())) {
                (live.stack, live.first_ns) = (stack, totals.first_ns);
            }
        }
        let graphs = totals.graphs.saturating_add(totals.execs);
        for (kind, made) in [(GrowthKind::Site, totals.allocs), (GrowthKind::Graphs, graphs)] {
            if let Some(live) = all.get_mut(&(kind, stack.into())) {
                (live.ever, live.stack, live.first_ns) = (made, stack, totals.first_ns);
                if kind == GrowthKind::Graphs {
                    live.count.add_made(totals);
                }
            }
        }
    }
    all
}
