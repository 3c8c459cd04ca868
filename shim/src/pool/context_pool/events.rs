//! Events after all work of a context. They are reused.

use super::ContextPool;
use crate::backend::memory::Event;
use crate::progress::{activity, queries};
use std::sync::atomic::Ordering::*;

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
        let event = queries::unless_capturing(|| self.calls.record_event_after_all(self.context(), spare));
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
}
