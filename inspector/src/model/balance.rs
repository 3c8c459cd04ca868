//! Graphs and execs that call sites made and destroyed, and the bytes that the remaining ones would take without the
//! graph cache.

use super::Ledger;
use super::history::{Samples, Series};
use super::verdict::{self, Turnover, Verdict};
use gpumem_wire::counters;
use gpumem_wire::kinds::ExecState;
use gpumem_wire::layout::ExecSlot;
use gpumem_wire::read::Stack;
use serde::Serialize;

/// Execs of a call site, or its graphs if it holds more graphs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Balance {
    /// `exec` or `graph`.
    pub what: &'static str,
    pub made: u64,
    /// Destroyed by the program, before the end of their context.
    pub destroyed: u64,
    /// Estimated growth without the graph cache, for execs under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_bytes_per_minute: Option<f64>,
}

/// The counts behind a [`Balance`].
#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    graphs_made: u64,
    graphs: u64,
    execs_made: u64,
    execs: u64,
    /// Estimated sum of real exec bytes, one real exec for each exec.
    native_bytes: u64,
    is_under_cache: bool,
}

impl Count {
    pub(super) fn add_graph(&mut self) {
        self.graphs += 1;
    }

    pub(super) fn add_exec(&mut self, exec: &ExecSlot) {
        self.execs += 1;
        let real = exec.host_bytes.saturating_add(exec.device_bytes);
        self.native_bytes = self.native_bytes.saturating_add(real);
        self.is_under_cache |= !matches!(exec.exec_state(), Some(ExecState::Native) | None);
    }

    pub(super) fn add_made(&mut self, stack: &Stack) {
        self.graphs_made = self.graphs_made.saturating_add(stack.graphs);
        self.execs_made = self.execs_made.saturating_add(stack.execs);
    }

    pub(super) fn join(&mut self, other: Self) {
        self.graphs_made = self.graphs_made.saturating_add(other.graphs_made);
        self.graphs += other.graphs;
        self.execs_made = self.execs_made.saturating_add(other.execs_made);
        self.execs += other.execs;
        self.native_bytes = self.native_bytes.saturating_add(other.native_bytes);
        self.is_under_cache |= other.is_under_cache;
    }

    /// Returns the verdict on the number of graphs or execs over time, given the verdict on their bytes, with the
    /// balance if the made ones are counted. The graph cache keeps the bytes of ever more execs flat, so their number
    /// shows the program's behaviour.
    pub(super) fn judge(
        &self,
        ledger: &Ledger,
        samples: &Samples,
        series: &Series,
        turnover: Turnover,
        by_bytes: Verdict,
    ) -> (Verdict, Option<Balance>) {
        let counts = series.counts();
        let by_count = verdict::judge(&counts.steps(), turnover).at_a_rate(counts.per_minute(samples));
        let verdict = if by_count == Verdict::GrowsSteadily { by_count } else { by_bytes };
        (verdict, self.balance(ledger, samples, &counts))
    }

    /// `counts`: the number over time. `None` if the ledger does not count the made ones.
    fn balance(&self, ledger: &Ledger, samples: &Samples, counts: &Series) -> Option<Balance> {
        let of_execs = self.execs_made > 0 && self.execs >= self.graphs;
        let (what, made, live, counter) = match of_execs {
            true => ("exec", self.execs_made, self.execs, counters::EXECS_DESTROYED),
            false => ("graph", self.graphs_made, self.graphs, counters::GRAPHS_DESTROYED),
        };
        // The program did not destroy a record that was dropped or that ended with its context.
        let destroyed = made.saturating_sub(live).min(ledger.snapshot.counter(counter));
        let each = self.native_bytes as f64 / self.execs.max(1) as f64;
        let native = counts.per_minute(samples) * each;
        let native_bytes_per_minute = (of_execs && self.is_under_cache).then_some(native);
        (made > 0).then_some(Balance { what, made, destroyed, native_bytes_per_minute })
    }
}
