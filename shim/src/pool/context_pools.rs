//! The pools of all contexts of one vendor, current and ended.

use super::context_pool::ContextPool;
use super::in_transit::InTransit;
use super::lock;
use crate::backend;
use crate::backend::memory::{self, MemoryCalls};
use crate::records::contexts;
use crate::records::pooled;
use crate::shim::Shim;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::ContextRef;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Number of contexts that end before the pool of an ended one is reused.
const ENDED_AT_LEAST: usize = 64;

pub(super) struct ContextPools {
    vendor: Vendor,
    calls: &'static dyn MemoryCalls,
    /// All calls that submit work or change a thread's context are seen.
    sees_all: bool,
    live: Mutex<Vec<&'static ContextPool>>,
    /// The pools of ended contexts, in the order in which they ended.
    ended: Mutex<VecDeque<&'static ContextPool>>,
    /// Transit counts of each device.
    in_transit: Mutex<Vec<(Device, &'static InTransit)>>,
}

impl ContextPools {
    pub(super) fn new(vendor: Vendor) -> Self {
        let calls = memory::calls(vendor);
        let sees_all = calls.sees_all();
        let (live, ended, in_transit) = Default::default();
        Self { vendor, calls, sees_all, live, ended, in_transit }
    }

    /// Returns true if all calls that submit work or change a thread's context are seen.
    #[inline(always)]
    pub(super) fn see_all(&self) -> bool {
        self.sees_all
    }

    /// Returns the pools of the current contexts.
    pub(super) fn all(&self) -> Vec<&'static ContextPool> {
        lock(&self.live).iter().filter(|context_pool| !context_pool.is_gone()).copied().collect()
    }

    /// Returns the pools of a device's current contexts.
    pub(super) fn on(&self, device: Device) -> Vec<&'static ContextPool> {
        let mut on_device = self.all();
        on_device.retain(|context_pool| context_pool.device == device);
        on_device
    }

    /// Returns true if the program has one context and this thread is in it, as far as calls are seen.
    #[inline]
    fn is_in_the_only_one(&self, shim: &Shim) -> bool {
        self.sees_all && contexts::has_the_only_context(shim)
    }

    /// Returns this thread's context, and reports it to the records.
    #[inline]
    fn current(&self, shim: &Shim) -> Option<u64> {
        let context = backend::of(self.vendor).current_context()?;
        contexts::found(shim);
        Some(context)
    }

    /// Returns true if this thread has a context.
    #[inline]
    pub(super) fn has_current(&self, shim: &Shim) -> bool {
        self.is_in_the_only_one(shim) || self.current(shim).is_some()
    }

    /// Returns the pool of this thread's context. `last`: the pool of an earlier look. Uses `find` if the context has
    /// changed.
    #[inline]
    pub(super) fn here(
        &self,
        shim: &'static Shim,
        last: Option<&'static ContextPool>,
        find: impl FnOnce(u64) -> Option<&'static ContextPool>,
    ) -> Option<&'static ContextPool> {
        let last = last.filter(|last| last.vendor == self.vendor && !last.is_gone());
        if last.is_some() && self.is_in_the_only_one(shim) {
            return last;
        }
        let context = self.current(shim)?;
        last.filter(|last| last.context() == context).or_else(|| find(context))
    }

    /// Returns the pool of a context that this thread is in, and true if the pool is new.
    pub(super) fn find(&self, shim: &'static Shim, context: u64) -> Option<(&'static ContextPool, bool)> {
        let record = contexts::current(shim, self.vendor);
        let device = backend::of(self.vendor).current_device()?;
        let has_release_streams = self.calls.has_release_streams(device);
        let mut live = lock(&self.live);
        let is_it = |known: &&&ContextPool| known.context() == context && !known.is_gone();
        if let Some(known) = live.iter().find(is_it) {
            return Some((known, false));
        }
        let context_pool = self.begin(&mut live, context, record, device, pooled::device_share(shim, record));
        drop(live);
        if !has_release_streams {
            context_pool.note_no_release_stream();
        }
        Some((context_pool, true))
    }

    /// Makes the pool for one more context.
    fn begin(
        &self,
        live: &mut Vec<&'static ContextPool>,
        context: u64,
        record: ContextRef,
        device: Device,
        share: u64,
    ) -> &'static ContextPool {
        let context_pool = match self.ended_long_ago(device) {
            Some(context_pool) => {
                context_pool.begin_again(context, record);
                context_pool
            }
            None => {
                let in_transit = self.in_transit_on(device);
                let new = ContextPool::new(self.vendor, context, record, device, share, self.calls, in_transit);
                Box::leak(Box::new(new))
            }
        };
        add(live, context_pool);
        context_pool
    }

    /// Makes a new pool for a context whose end was refused: threads' caches may still be bound to the old one.
    pub(super) fn begin_instead_of(&self, before: &ContextPool) -> &'static ContextPool {
        let again: &'static ContextPool = Box::leak(Box::new(before.renewed()));
        add(&mut lock(&self.live), again);
        again
    }

    /// Forgets the pools of contexts that are gone.
    pub(super) fn forget_gone(&self) {
        lock(&self.live).retain(|context_pool| !context_pool.is_gone());
    }

    /// Keeps pools that no thread's cache is bound to any more, for reuse.
    pub(super) fn keep_ended(&self, context_pools: Vec<&'static ContextPool>) {
        lock(&self.ended).extend(context_pools);
    }

    /// Returns the pool of an ended context of this device for reuse. A faulty program may still have a thread at work
    /// on a pool whose context ended. That thread gets time to finish: a pool is reused only after [`ENDED_AT_LEAST`]
    /// other contexts have ended.
    fn ended_long_ago(&self, device: Device) -> Option<&'static ContextPool> {
        let mut ended = lock(&self.ended);
        let long_ago = ended.len().checked_sub(ENDED_AT_LEAST)?;
        let at = ended.iter().take(long_ago).position(|context_pool| context_pool.device == device)?;
        ended.remove(at)
    }

    /// Returns the transit counts of a device.
    fn in_transit_on(&self, device: Device) -> &'static InTransit {
        let mut all = lock(&self.in_transit);
        let known = all.iter().find(|(its, _)| *its == device).map(|(_, in_transit)| *in_transit);
        known.unwrap_or_else(|| {
            let in_transit: &'static InTransit = Box::leak(Box::default());
            all.push((device, in_transit));
            in_transit
        })
    }
}

/// Adds the pool of one more context.
fn add(live: &mut Vec<&'static ContextPool>, context_pool: &'static ContextPool) {
    let is_beside = |other: &&&ContextPool| other.device == context_pool.device && !other.is_gone();
    for other in live.iter().filter(is_beside) {
        other.note_neighbour();
        context_pool.note_neighbour();
    }
    live.push(context_pool);
}

#[cfg(test)]
impl ContextPools {
    /// Adds a pool for a context that no driver knows.
    pub(super) fn add_for_test(&self, context: u64, device: Device, share: u64) -> &'static ContextPool {
        self.begin(&mut lock(&self.live), context, 1, device, share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_one_device_are_neighbours() {
        let contexts = ContextPools::new(Vendor::Cuda);
        let [one, far, other] =
            [(1, 0), (2, 1), (3, 0)].map(|(context, device)| contexts.add_for_test(context, device, 0));
        assert!(one.has_neighbours() && other.has_neighbours());
        assert!(!far.has_neighbours());
        assert!(std::ptr::eq(one.in_transit, other.in_transit) && !std::ptr::eq(one.in_transit, far.in_transit));
        one.end();
        assert_eq!((contexts.all().len(), contexts.on(0).len()), (2, 1));
    }

    /// A pool is reused for its device, and only after many other contexts have ended.
    #[test]
    fn pools_of_contexts_that_ended_long_ago_are_used_again() {
        let contexts = ContextPools::new(Vendor::Cuda);
        let end = |context, device| {
            let context_pool = contexts.add_for_test(context, device, 0);
            context_pool.end();
            contexts.forget_gone();
            contexts.keep_ended(vec![context_pool]);
            context_pool
        };
        let first = end(1, 0);
        for context in 0..ENDED_AT_LEAST as u64 {
            assert!(!std::ptr::eq(end(2 + context, 1), first));
        }
        let again = end(1000, 0);
        assert!(std::ptr::eq(again, first) && again.context() == 1000 && again.generation() == 1);
    }
}
