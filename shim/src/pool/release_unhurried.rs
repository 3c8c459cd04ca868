//! Idle memory goes back that nobody waits for: because time has passed, or because it is above a bound.
//!
//! A free in the order of a stream of ours waits for nothing, and the first such free costs host memory for good (see
//! [`super::release`]). So this memory goes back by real frees while its context is idle. If work begins between the
//! look and the free, the free waits. The free is therefore made on a thread of its own ([`super::release_aside`]). If
//! that thread has to wait, the control thread goes on without it.

use super::Pool;
use super::context_pool::{ContextPool, Most};
use super::release::release_streams_are_used;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// So many idle bytes are worth the host memory that the first free on a release stream takes.
const WORTH_A_RELEASE_STREAM: u64 = 64 << 20;
/// How often in a row a context is found at work before its memory goes back on a release stream.
const MOST_BUSY: u64 = 3;
/// How long the control thread waits for the thread that frees. A real free of 2 GiB takes a millisecond (measured on an
/// H200, driver 580).
const LONGEST: Duration = Duration::from_millis(500);

impl Pool {
    /// Gives back idle blocks of a context while it is idle, or on a release stream if it never is. The answer is the
    /// bytes that went back so far.
    pub(super) fn release_unhurried(&'static self, context_pool: &'static ContextPool, most: Most) -> u64 {
        if context_pool.idle() == 0 {
            return 0;
        }
        let has_release_stream = context_pool.gives_back_at_once();
        if has_release_stream && release_streams_are_used() {
            return self.release(context_pool, most, || context_pool.is_idle());
        }
        if context_pool.is_idle() {
            context_pool.found_busy.store(0, Relaxed);
            return self.release_aside(context_pool, most, LONGEST, |_| context_pool.is_idle()).unwrap_or(0);
        }
        let busy = context_pool.found_busy.fetch_add(1, Relaxed) + 1;
        let worth = context_pool.idle().min(most.bytes()) >= WORTH_A_RELEASE_STREAM;
        if has_release_stream && worth && busy >= MOST_BUSY { self.release(context_pool, most, || false) } else { 0 }
    }

    /// Gives back idle blocks of other sizes before a new block is asked for. The program's allocation must not wait
    /// for work. Without a release stream in use, a little memory stays until its time comes. Where frees wait for
    /// work, all of it stays, since work may begin after any look.
    pub(super) fn make_way(&'static self, context_pool: &'static ContextPool, most: Most) {
        let worth = release_streams_are_used() || most.bytes() >= WORTH_A_RELEASE_STREAM;
        if worth && context_pool.gives_back_at_once() {
            self.release(context_pool, most, || false);
        }
    }

    /// Gives back idle blocks for the user, who waits, whatever their context does.
    pub(super) fn release_for_user(&'static self, context_pool: &'static ContextPool) -> u64 {
        let all = Most::AtLeast(u64::MAX, usize::MAX);
        let aside = (context_pool.frees_wait() || !release_streams_are_used()) && context_pool.is_idle();
        let aside = aside.then(|| self.release_aside(context_pool, all, LONGEST, |_| context_pool.is_idle())).flatten();
        aside.unwrap_or(0) + self.release(context_pool, all, || false)
    }
}
