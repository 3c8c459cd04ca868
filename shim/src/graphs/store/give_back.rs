//! Gives back unused execs if memory is short, and repeats the call that ran out.

use super::ExecStore;
use super::take::IdleDevices;
use crate::gate;
use crate::graphs::real::RealExec;
use crate::process::clock;
use crate::{backend, records};
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::counters;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// If memory was last short longer ago than this, the next shortage is a new one.
const SHORT_SINCE_NS: u64 = 1_000_000_000;

impl ExecStore {
    /// Repeats a call with a graph that ran out of memory. Before that, gives back all unused memory on the device of
    /// `context` (0: of this thread's context). If memory stays short, only the first such call is an event.
    pub(crate) fn again<R>(&'static self, context: u64, call: impl FnOnce() -> Result<R, Status>) -> Result<R, Status> {
        let is_first = age_of(&self.short_ns, clock::now_ns()) > SHORT_SINCE_NS;
        let entered = self.library.enter(context);
        let bytes = self.give_back_all().unwrap_or(0);
        drop(entered);
        let answer = call();
        let status = answer.as_ref().err().copied().unwrap_or(SUCCESS);
        if is_first {
            gate::record_if_started(|shim| records::handles::tried_again(shim, bytes, status));
        }
        answer
    }

    /// Gives back all unused memory, here and in the pool, because memory of this device is short. Returns the bytes,
    /// as far as they are known; `None` if there was nothing to give back.
    pub(crate) fn give_back_all(&'static self) -> Option<u64> {
        self.short_ns.store(clock::now_ns(), Relaxed);
        let mut bytes = gate::shim().map_or(0, |shim| shim.above.flush_here(self.library.vendor));
        let mut anything = bytes > 0;
        let mut idle_devices = IdleDevices::default();
        let here = self.contexts_here();
        let is_here = |real: &RealExec| here.as_ref().is_none_or(|here| here.contains(&real.context.load(Relaxed)));
        for real in self.execs.in_order(0).into_iter().filter(|real| is_here(real)) {
            if let Some(idle) = self.take_idle(real, &mut idle_devices) {
                bytes += real.bytes();
                self.end_idle(idle, true);
                anything = true;
            }
        }
        self.sources.destroy_folded(None, false);
        self.library.calls.trim();
        anything |= gate::shim().is_some_and(|shim| shim.registry.memory_nodes.load(Relaxed));
        gate::record_if_started(|shim| {
            shim.count(counters::OOM_RETRIES, 1);
            shim.count(counters::GRAPH_TRIMS, 1);
        });
        anything.then_some(bytes)
    }

    /// Returns the contexts on the device of this thread's context. `None` if the device is unknown.
    fn contexts_here(&self) -> Option<Vec<u64>> {
        let context = backend::of(self.library.vendor).current_context()?;
        let shim = gate::shim()?;
        records::contexts::known(shim, self.library.vendor, context)?;
        Some(records::contexts::others(shim, self.library.vendor, context).into_iter().chain([context]).collect())
    }
}

/// Returns the age of a time, ns. The time 0 means never.
pub(super) fn age_of(time_ns: &AtomicU64, now: u64) -> u64 {
    match time_ns.load(Relaxed) {
        0 => u64::MAX,
        then => now.saturating_sub(then),
    }
}
