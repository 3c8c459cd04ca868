//! Idle memory goes back that nobody waits for: by time, or above a bound.
//!
//! A free in the order of a stream of ours waits for nothing, and the first one costs host memory for good (see
//! [`super::back`]). So this memory goes back by real frees while its context does nothing. Work that begins between the
//! look and the free makes the free wait. The free is therefore made on a thread of its own ([`super::aside`]). If it has
//! to wait, the control thread goes on without it.

use super::Pool;
use super::back::release_streams_are_used;
use super::context_pool::{ContextPool, Most};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// So many bytes are worth the host memory that the first free on a release stream takes.
const WORTH_A_RELEASE_STREAM: u64 = 64 << 20;
/// Times that a context was found at work, one after the other, before its memory goes back on a release stream.
const MOST_BUSY: u64 = 3;
/// How long the control thread waits for the thread that frees. A real free of 2 GiB takes a millisecond (measured on an
/// H200, driver 580).
const LONGEST: Duration = Duration::from_millis(500);

impl Pool {
    /// Gives back idle blocks of a context while it does nothing, or if it never does; bytes given back so far.
    pub(super) fn release_unhurried(&'static self, owner: &'static ContextPool, most: Most) -> u64 {
        if owner.idle() == 0 {
            return 0;
        }
        let has_release_stream = owner.gives_back_at_once();
        if has_release_stream && release_streams_are_used() {
            return self.release(owner, most, || owner.is_idle());
        }
        if owner.is_idle() {
            owner.found_busy.store(0, Relaxed);
            return self.release_aside(owner, most, LONGEST, |_| owner.is_idle()).unwrap_or(0);
        }
        let busy = owner.found_busy.fetch_add(1, Relaxed) + 1;
        let worth = owner.idle().min(most.bytes()) >= WORTH_A_RELEASE_STREAM;
        if has_release_stream && worth && busy >= MOST_BUSY { self.release(owner, most, || false) } else { 0 }
    }

    /// Gives back idle blocks of other sizes before a new one is asked for. The program's allocation must not wait for
    /// work: without a release stream in use, little memory stays until its time comes. Where frees wait, all of it does,
    /// since work may begin after any look.
    pub(super) fn make_way(&'static self, owner: &'static ContextPool, most: Most) {
        let worth = release_streams_are_used() || most.bytes() >= WORTH_A_RELEASE_STREAM;
        if worth && owner.gives_back_at_once() {
            self.release(owner, most, || false);
        }
    }

    /// Gives back idle blocks for the user, who waits: whatever their context does.
    pub(super) fn release_for_user(&'static self, owner: &'static ContextPool) -> u64 {
        let all = Most::AtLeast(u64::MAX, usize::MAX);
        let aside = (owner.frees_wait() || !release_streams_are_used()) && owner.is_idle();
        let aside = aside.then(|| self.release_aside(owner, all, LONGEST, |_| owner.is_idle())).flatten();
        aside.unwrap_or(0) + self.release(owner, all, || false)
    }
}
