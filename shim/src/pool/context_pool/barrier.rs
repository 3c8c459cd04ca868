//! Checks for and waits for a context's pending work, by events after all of it. They are reused.

use super::ContextPool;
use crate::backend::memory::Event;
use crate::process::cancel;
use crate::progress::activity;
use crate::progress::device::look_in;
use crate::progress::queries::{capturing, unless_capturing};
use gpumem_abi::types::{SUCCESS, Status};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

impl ContextPool {
    /// Keeps an event for later, if it belongs to the present context.
    pub(in crate::pool) fn keep_event(&self, generation: u32, event: Option<Event>) {
        let mut events = self.events_now();
        if self.generation() == generation {
            events.extend(event);
        }
    }

    /// Returns an event after all work submitted so far, and the submission count. `None` during a capture, or if the
    /// driver has no such events.
    pub(super) fn event(&self) -> Option<(Event, Option<u64>)> {
        let submissions = activity::submissions_if_none_open();
        let event = self.record_event_after_all()?;
        Some((event?, submissions))
    }

    /// As [`MemoryCalls::record_event_after_all`](crate::backend::memory::MemoryCalls::record_event_after_all), in the
    /// current context, with a spare event if there is one. `None` during a capture.
    pub(super) fn record_event_after_all(&self) -> Option<Option<Event>> {
        let (generation, spare) = (self.generation(), self.events_now().pop());
        let event = unless_capturing(|| self.calls.record_event_after_all(self.context(), spare));
        match event {
            Some(event) => self.without_events.store(event.is_none(), Relaxed),
            None => self.keep_event(generation, spare),
        }
        event
    }

    /// Returns true if the driver supported an event after all work of the context when it was last asked for one.
    /// Drivers before 12.5 do not.
    pub(crate) fn has_events(&self) -> bool {
        !self.without_events.load(Relaxed)
    }

    /// Runs `f` in the context with an event after all its work, or without one if the driver has no such events. The
    /// event is kept for the next call. `None` during a capture.
    fn with_event<R>(&self, f: impl FnOnce(Option<Event>) -> R) -> Option<R> {
        self.within(|| {
            let generation = self.generation();
            let event = self.record_event_after_all()?;
            let result = f(event);
            self.keep_event(generation, event);
            Some(result)
        })
    }

    /// Waits for all work of the context and for no other work, as the driver's own free does. `None` if that would
    /// disturb a capture now.
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

    /// Returns true if the context is known to be idle. Does not wait.
    pub(crate) fn is_idle(&self) -> bool {
        if self.known_idle() {
            return true;
        }
        let submissions = activity::submissions_if_none_open();
        if submissions.is_none() {
            return false;
        }
        let completed = |event: Option<Event>| event.is_some_and(|event| self.calls.completed(event));
        // The calling thread may be the shim's own, so the context is kept from ending until the look is done.
        let look = || self.with_event(completed);
        let idle = look_in(self.vendor, self.context(), look).flatten() == Some(true);
        if idle {
            self.found_idle(submissions);
        }
        idle && activity::submissions_if_none_open() == submissions
    }

    /// Waits at most `longest` until the context is known to be idle. Returns true if it is.
    pub(crate) fn idle_within(&self, longest: Duration) -> bool {
        let mut is_idle = false;
        cancel::poll(longest, Duration::from_micros(100), || {
            is_idle = self.is_idle();
            is_idle || activity::broken() || capturing()
        });
        is_idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If captures are not counted, as here, one may be going on.
    #[test]
    fn an_event_that_a_capture_forbids_is_kept() {
        const SPARE: Event = 0xe0;
        let context_pool = ContextPool::for_test(1, 0, 0);
        context_pool.keep_event(context_pool.generation(), Some(SPARE));
        for _ in 0..3 {
            assert!(
                capturing()
                    && !context_pool.is_idle()
                    && context_pool.barrier().is_none()
                    && context_pool.record_event_after_all().is_none()
            );
            assert_eq!(*context_pool.events_now(), [SPARE]);
        }
    }
}
