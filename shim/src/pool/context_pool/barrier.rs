//! Whether a context has work left: waited for, or asked.

use super::ContextPool;
use crate::process::{cancel, clock};
use crate::progress::activity;
use crate::progress::device::look_in;
use crate::progress::queries::{capturing, unless_capturing};
use crate::vendor::memory::Event;
use gpumem_abi::types::{SUCCESS, Status};
use std::time::Duration;

impl ContextPool {
    /// Runs `f` in the context, with an event behind all its work, or without one where there are no such events. The
    /// event is used again. `None` if something captures.
    fn with_event<R>(&self, f: impl FnOnce(Option<Event>) -> R) -> Option<R> {
        self.within(|| {
            let generation = self.generation();
            let event = self.behind_all()?;
            let result = f(event);
            self.keep_event(generation, event);
            Some(result)
        })
    }

    /// Waits for all work of the context, as the driver's own free does, and for no other's. `None` if that
    /// cannot be now without disturbing a capture.
    pub(crate) fn barrier(&self) -> Option<Status> {
        let submissions = activity::submissions_if_none_open();
        let wait = |event| match event {
            Some(event) => Some(self.calls.wait(event)),
            None => unless_capturing(|| self.calls.synchronize()),
        };
        let status = self.with_event(wait)??;
        if status == SUCCESS {
            self.found_idle(submissions);
        }
        Some(status)
    }

    /// Whether the context is known to do nothing, asked without waiting.
    pub(crate) fn is_idle(&self) -> bool {
        if self.known_idle() {
            return true;
        }
        let submissions = activity::submissions_if_none_open();
        if submissions.is_none() {
            return false;
        }
        let over = |event: Option<Event>| event.is_some_and(|event| self.calls.completed(event));
        // The thread that asks may be ours: a context that is looked at stays until it is done.
        let look = || self.with_event(over);
        let idle = look_in(self.vendor, self.context(), look).flatten() == Some(true);
        if idle {
            self.found_idle(submissions);
        }
        idle && activity::submissions_if_none_open() == submissions
    }

    /// Waits until the context is known to do nothing, for so long at most.
    pub(in crate::pool) fn rests_within(&self, longest: Duration) -> bool {
        let end = clock::precise_ns() + longest.as_nanos() as u64;
        loop {
            if self.is_idle() {
                return true;
            }
            if clock::precise_ns() > end || activity::broken() || capturing() {
                return false;
            }
            cancel::sleep(Duration::from_micros(100));
        }
    }
}
