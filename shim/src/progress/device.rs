//! Tells if a context, or any context of its device, has pending work, by asking or by waiting. No event of one context
//! covers the work of another. A free waits only for the work of its own context; destroying an exec may wait for that
//! of all.

use super::activity;
use super::queries::unless_capturing;
use crate::backend;
use crate::backend::memory::{self, Event, MemoryCalls};
use crate::gate;
use crate::process::clock;
use crate::process::lock::lock;
use crate::process::wiped::{Place, Word};
use crate::records;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Contexts that are being looked at, and contexts that are ending. An event in a context that has ended no longer
/// exists for the driver. Each process has its own ([`visits`]): in a child of a fork no thread looks, whatever the
/// parent did then.
#[derive(Default)]
pub(crate) struct Visits {
    now: Mutex<Now>,
    left: Condvar,
}

#[derive(Default)]
struct Now {
    here: Vec<u64>,
    closed: Vec<u64>,
}

// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const VISITS: Place<Visits> = unsafe { Place::new(Word::Visits) };

/// Returns this process's visits, made at the first call; `None` if there is no memory for it. They outlive a stop of
/// the recording, as the looking thread does.
fn visits() -> Option<&'static Visits> {
    VISITS.get_or_default()
}

/// Maximum time that a thread ending a context waits for threads that look at it. They may wait for its work, and so
/// does the driver when it ends a context.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_secs(30);

/// Keeps a context from ending while it lives.
pub(crate) struct ContextHold(u64, &'static Visits);

impl ContextHold {
    /// Holds a context; `None` while the context is ending. A thread that ends it removes it, and all that is in it,
    /// from the records before it may be looked at again. So the caller must ask next if the records still have it.
    pub(crate) fn begin(context: u64) -> Option<Self> {
        let all = visits()?;
        let mut visits = lock(&all.now);
        if visits.closed.contains(&context) {
            return None;
        }
        visits.here.push(context);
        Some(Self(context, all))
    }

    /// True if a thread waits for its end.
    pub(crate) fn is_wanted(&self) -> bool {
        lock(&self.1.now).closed.contains(&self.0)
    }
}

/// Returns a name for a device's primary context whose handle is unknown. It is no handle.
pub(crate) fn primary_of(device: Device) -> u64 {
    u64::MAX - u64::from(device as u32)
}

/// Runs a look at a context, which does not end meanwhile. `None` if it is ending or has ended.
pub(crate) fn look_in<R>(vendor: Vendor, context: u64, look: impl FnOnce() -> R) -> Option<R> {
    let _hold = ContextHold::begin(context)?;
    records::contexts::known(gate::shim()?, vendor, context)?;
    Some(look())
}

/// Waits for threads that end these contexts. Called before contexts come to live, or live on, so that the contents of
/// an old context are out of the records before a new one takes its place.
pub(crate) fn stay(contexts: Vec<u64>) -> Vec<ContextHold> {
    let Some(all) = visits().filter(|_| !contexts.is_empty()) else { return Vec::new() };
    let visits = lock(&all.now);
    let closed = |visits: &mut Now| contexts.iter().any(|context| visits.closed.contains(context));
    let (mut visits, _) =
        all.left.wait_timeout_while(visits, LONGEST_HOLD, closed).unwrap_or_else(std::sync::PoisonError::into_inner);
    visits.here.extend(&contexts);
    contexts.into_iter().map(|context| ContextHold(context, all)).collect()
}

impl Drop for ContextHold {
    fn drop(&mut self) {
        let mut visits = lock(&self.1.now);
        if let Some(at) = visits.here.iter().position(|&here| here == self.0) {
            visits.here.swap_remove(at);
        }
        self.1.left.notify_all();
    }
}

/// Lets contexts end while it lives: no other thread looks at them.
pub(crate) struct NoHolds(Vec<u64>, Option<&'static Visits>);

/// Waits until no thread looks at contexts that are about to end.
pub(crate) fn close(contexts: impl IntoIterator<Item = u64>) -> NoHolds {
    let closed = NoHolds(contexts.into_iter().collect(), visits());
    if let Some(all) = closed.1 {
        let mut visits = lock(&all.now);
        visits.closed.extend(&closed.0);
        let visited = |visits: &mut Now| visits.here.iter().any(|here| closed.0.contains(here));
        drop(all.left.wait_timeout_while(visits, LONGEST_HOLD, visited));
    }
    closed
}

impl Drop for NoHolds {
    fn drop(&mut self) {
        let Some(all) = self.1 else { return };
        let mut visits = lock(&all.now);
        for context in &self.0 {
            if let Some(at) = visits.closed.iter().position(|closed| closed == context) {
                visits.closed.swap_remove(at);
            }
        }
        all.left.notify_all();
    }
}

/// An event on an idle device has completed when it is queried for the first time, two µs after it was recorded
/// (measured on an H200, driver 580), ns.
const SOON_NS: u64 = 5_000;

/// True if [`is_idle`] has an answer.
pub(crate) fn can_tell(vendor: Vendor) -> bool {
    let calls = memory::calls(vendor);
    calls.sees_all() && calls.has_context_events()
}

/// Returns true if a context's device is known to be idle, apart from what the calling thread itself is about to
/// submit. Asked without waiting for work. `None` if the library cannot be asked.
pub(crate) fn is_idle(vendor: Vendor, context: u64) -> Option<bool> {
    if !can_tell(vendor) {
        return None;
    }
    let (calls, submissions) = (memory::calls(vendor), activity::submissions_if_none_open_elsewhere());
    let known = gate::shim().and_then(|shim| Some((shim, records::contexts::known(shim, vendor, context)?)));
    let Some((shim, _)) = known.filter(|_| submissions.is_some()) else { return Some(false) };
    let has_completed = |event: Option<Event>| {
        event.is_some_and(|event| {
            let end = clock::precise_ns() + SOON_NS;
            let mut completed = calls.completed(event);
            while !completed && clock::precise_ns() < end {
                completed = calls.completed(event);
            }
            completed
        })
    };
    let contexts: Vec<u64> = contexts_beside(vendor, context).collect();
    let are_all = records::contexts::are_all(shim, contexts.len());
    let is_idle = |context| look_in(vendor, context, || behind_all_of(calls, context, has_completed));
    let all_idle = || contexts.into_iter().all(|context| is_idle(context).flatten() == Some(true));
    let device_idle = || all_idle() && activity::submissions_if_none_open_elsewhere() == submissions;
    Some(if are_all { activity::no_outside_if(device_idle) } else { device_idle() })
}

/// True if a remaining context reports that its work failed. HIP's contexts are not asked.
pub(crate) fn is_any_broken(vendor: Vendor) -> bool {
    let all = gate::shim().map_or_else(Vec::new, |shim| records::contexts::all(shim, vendor));
    let refuses = |context| memory::calls(vendor).within(context, || backend::of(vendor).memory_info().is_none());
    let is_broken = |context| look_in(vendor, context, || refuses(context)) == Some(true);
    vendor == Vendor::Cuda && all.into_iter().any(|(context, _)| is_broken(context))
}

/// Returns all contexts on a context's device, that context last.
fn contexts_beside(vendor: Vendor, context: u64) -> impl Iterator<Item = u64> {
    let others = gate::shim().map_or_else(Vec::new, |shim| records::contexts::others(shim, vendor, context));
    others.into_iter().chain([context])
}

/// Runs `f` in a context, with an event behind all its work, or without one if there are no such events. `None` if
/// something captures.
fn behind_all_of<R>(calls: &'static dyn MemoryCalls, context: u64, f: impl FnOnce(Option<Event>) -> R) -> Option<R> {
    calls.within(context, || {
        let event = unless_capturing(|| calls.record_event_after_all(context, None))?;
        let result = f(event);
        if let Some(event) = event {
            calls.drop_event(event);
        }
        Some(result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that retains the context has to wait also while the records no longer know such a context.
    #[test]
    fn a_primary_context_is_not_made_again_while_it_is_let_go() {
        const DEVICE: Device = 7;
        let closed = close([primary_of(DEVICE)]);
        std::thread::scope(|scope| {
            let retains = scope.spawn(|| drop(stay(vec![primary_of(DEVICE)])));
            drop(stay(vec![primary_of(DEVICE + 1)]));
            assert!(ContextHold::begin(primary_of(DEVICE)).is_none() && !retains.is_finished());
            drop(closed);
            retains.join().unwrap();
        });
        assert!(ContextHold::begin(primary_of(DEVICE)).is_some());
    }

    /// Otherwise a thread of the child that ends a context would wait for a thread that does not exist.
    #[test]
    fn a_child_has_no_visits_of_its_parents() {
        const CONTEXT: u64 = 7;
        let is_visited = || lock(&visits().unwrap().now).here.contains(&CONTEXT);
        let visit = ContextHold::begin(CONTEXT).unwrap();
        // SAFETY: between fork and exit the child may only do what a child of a program's fork may.
        // It reads one list and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = is_visited().into();
            // SAFETY: _exit takes a number and ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: `child` is the process made above and is waited for once. `status` is a local
        // that takes the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(is_visited());
        drop(visit);
        assert!(!is_visited());
    }
}
