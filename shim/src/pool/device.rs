//! Whether the device of a context has work left: waited for, or asked. No event of one context covers the
//! work of another, so all contexts of the device are asked.

use super::lock;
use super::looks::undisturbed;
use super::owner::Owner;
use crate::backend::memory::{self, Event, MemoryCalls};
use crate::{activity, clock, gate};
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::ContextRef;
use std::sync::Mutex;

/// Held while contexts that may be none of the asking thread's are looked at, which waits for no work.
static VISITING: Mutex<()> = Mutex::new(());

/// An event on an idle device is over when that is asked for the first time, two µs after it was made (measured
/// on an H200, driver 580), ns.
const SOON_NS: u64 = 5_000;

/// Whether the device of a context is known to do nothing, and to be given nothing but what the calling thread
/// is about to: asked without waiting for work. `None` where the library cannot be asked.
pub fn rests(vendor: Vendor, context: u64) -> Option<bool> {
    let calls = memory::calls(vendor);
    if !calls.sees_all() || !calls.tells_all() {
        return None;
    }
    let quiet = activity::quiet_but_here();
    // Contexts that are looked at stay until it is done.
    let _visiting = lock(&VISITING);
    let known = gate::shim().and_then(|shim| Some((shim, shim.known_context(vendor, context)?)));
    let Some((shim, record)) = known.filter(|_| quiet.is_some()) else { return Some(false) };
    let over = |event: Option<Event>| {
        event.is_some_and(|event| {
            let end = clock::precise_ns() + SOON_NS;
            let mut over = calls.over(event);
            while !over && clock::precise_ns() < end {
                over = calls.over(event);
            }
            over
        })
    };
    let contexts: Vec<u64> = contexts_beside(record, context).collect();
    let are_all = shim.are_all_contexts(contexts.len());
    let all_over = || contexts.into_iter().all(|context| behind_all_of(calls, context, None, over) == Some(true));
    let rest = || all_over() && activity::quiet_but_here() == quiet;
    Some(if are_all { activity::no_outside_if(rest) } else { rest() })
}

/// All contexts on the device of one, that one last.
fn contexts_beside(record: ContextRef, context: u64) -> impl Iterator<Item = u64> {
    let others = gate::shim().map_or_else(Vec::new, |shim| shim.other_contexts(record));
    others.into_iter().chain([context])
}

/// Runs `f` in a context, with an event behind all its work (of `spare` ones, if there are any), or without one
/// where there are no such events. `None` if something captures.
fn behind_all_of<R>(
    calls: &'static dyn MemoryCalls,
    context: u64,
    spare: Option<&Mutex<Vec<Event>>>,
    f: impl FnOnce(Option<Event>) -> R,
) -> Option<R> {
    calls.within(context, || {
        let known = spare.and_then(|spare| lock(spare).pop());
        let event = undisturbed(|| calls.behind_all(context, known))?;
        let result = f(event);
        match (event, spare) {
            (Some(event), Some(spare)) => lock(spare).push(event),
            (Some(event), None) => calls.drop_event(event),
            (None, _) => {}
        }
        Some(result)
    })
}

/// Waits until nobody looks at a context that has just been taken out of the books.
pub fn left_alone() {
    drop(lock(&VISITING));
}

impl Owner {
    /// Waits for all work of the device, as the driver's own free does. `None` if that cannot be now
    /// without disturbing a capture.
    pub fn barrier(&self) -> Option<Status> {
        let quiet = activity::quiet();
        for context in self.contexts_of_device() {
            let wait = |event| match event {
                Some(event) => Some(self.calls.wait(event)),
                None => undisturbed(|| self.calls.synchronize()),
            };
            let status = self.behind_all_of(context, wait)??;
            if status != SUCCESS {
                return Some(status);
            }
        }
        self.clean(quiet);
        Some(SUCCESS)
    }

    /// All contexts of the device, this one last.
    fn contexts_of_device(&self) -> impl Iterator<Item = u64> {
        contexts_beside(self.record, self.context)
    }

    /// As the function of this name, for a context of the device.
    fn behind_all_of<R>(&self, context: u64, f: impl FnOnce(Option<Event>) -> R) -> Option<R> {
        behind_all_of(self.calls, context, (context == self.context).then_some(&self.events), f)
    }

    /// Whether other contexts work on the device, which no event of this one covers.
    pub fn is_shared(&self) -> bool {
        gate::shim().is_none_or(|shim| !shim.other_contexts(self.record).is_empty())
    }

    /// Whether the device is known to do nothing, asked without waiting: no context of it has work left.
    pub fn is_idle(&self) -> bool {
        if self.is_clean() {
            return true;
        }
        let quiet = activity::quiet();
        if quiet.is_none() {
            return false;
        }
        // The thread that asks may be ours: contexts that are looked at stay until it is done.
        let _visiting = lock(&VISITING);
        let over = |event: Option<Event>| event.is_some_and(|event| self.calls.over(event));
        let idle = self.contexts_of_device().all(|context| self.behind_all_of(context, over) == Some(true));
        if idle {
            self.clean(quiet);
        }
        idle && activity::quiet() == quiet
    }
}
