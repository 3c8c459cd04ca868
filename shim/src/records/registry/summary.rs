//! The line of totals for stderr at exit.

use super::Registry;
use crate::ledger::Ledger;
use gpumem_wire::counters;
use gpumem_wire::kinds::Space;
use gpumem_wire::location::Tally;
use gpumem_wire::units;

impl Registry {
    /// Returns the totals made and left, in one line.
    pub(crate) fn summary(&self, ledger: &Ledger) -> String {
        let sum = |of: fn(Tally) -> usize, space| {
            Tally::all_in(space).fold(0_u64, |sum, row| sum.wrapping_add(ledger.counter(of(row))))
        };
        let live = |space| sum(Tally::alloc_bytes, space).wrapping_sub(sum(Tally::free_bytes, space));
        let made = |of: fn(Tally) -> usize| Tally::all_of_memory().map(|row| ledger.counter(of(row))).sum::<u64>();
        let all = made(Tally::allocs);
        let unknown = match live(Space::Unknown) {
            0 => String::new(),
            bytes => format!(", {} unknown where", units::bytes(bytes)),
        };
        let graphs = ledger.counter(counters::GRAPHS_CREATED);
        let execs = ledger.counter(counters::EXECS_CREATED);
        format!(
            "allocations: {all} made, {} not freed ({} device, {} managed, {} host{unknown}); graphs: {graphs} made, {execs} instantiated, {} launches, {} graphs and {} execs not destroyed{}",
            all.wrapping_sub(made(Tally::frees)),
            units::bytes(live(Space::Device)),
            units::bytes(live(Space::Managed)),
            units::bytes(live(Space::Host)),
            ledger.counter(counters::LAUNCHES),
            graphs.wrapping_sub(ledger.counter(counters::GRAPHS_DESTROYED)),
            execs.wrapping_sub(ledger.counter(counters::EXECS_DESTROYED)),
            cache_summary(ledger),
        )
    }
}

/// Returns the graph cache's totals, if it had any handles.
fn cache_summary(ledger: &Ledger) -> String {
    let handles = ledger.counter(counters::HANDLES_MADE);
    if handles == 0 {
        return String::new();
    }
    let left = |made, ended| ledger.counter(made).wrapping_sub(ledger.counter(ended));
    format!(
        "; graph cache: {handles} handles on {} real execs ({} left, {}), {} retargets, sources of {}",
        ledger.counter(counters::REAL_EXECS_MADE),
        left(counters::REAL_EXECS_MADE, counters::REAL_EXECS_ENDED),
        units::bytes(left(counters::REAL_BYTES_ADDED, counters::REAL_BYTES_REMOVED)),
        ledger.counter(counters::RETARGETS),
        units::bytes(left(counters::SOURCE_BYTES_ADDED, counters::SOURCE_BYTES_REMOVED)),
    )
}
