//! Policy of the release: when blocks go back to the driver, and how many. The ways are in [`frees`].
//!
//! | when | what goes back | how long a thread waits |
//! |---|---|---|
//! | once a second ([`Releaser::housekeeping`]) | what is due with time, or above a bound | the control thread for a moment |
//! | at a free that has waited for the device ([`Releaser::release_due`]) | the same, a few blocks | the program, for the frees alone |
//! | before a block is asked for ([`Releaser::make_way_for`]) | blocks of other sizes | not at all |
//! | an allocation ran out, or a limit has no room ([`Releaser::flush`]) | all of a device | the request, for [`LONGEST_WAIT`] at most |
//! | `gpumem trim`, or another process needs memory ([`Releaser::give_back`]) | all | the caller |

mod frees;

use super::block::Block;
use super::blocks::Blocks;
use super::context_pool::{ContextPool, Most, Out};
use super::decay::Decay;
use super::idle_memory::IdleMemory;
use super::in_transit::{DESCHEDULED, TransitCounts, are_unchanged};
use super::switch::Switch;
use super::watcher::Watcher;
use crate::process::{cancel, clock};
use crate::progress::{activity, queries};
use crate::shim::Shim;
use crate::{backend, gate, records};
use frees::release_streams_are_used;
use gpumem_abi::types::Device;
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::Settings;
use std::time::{Duration, Instant};

/// Idle memory goes back when less than one part in this many of the device is free.
const LOW: u64 = 16;
/// This many idle bytes are worth the host memory that the first free on a release stream takes.
const WORTH_A_RELEASE_STREAM: u64 = 64 << 20;
/// How often in a row a context is found at work before its memory goes back on a release stream.
const MOST_BUSY: u64 = 3;
/// Longest wait of the control thread for the thread that frees. A real free of 2 GiB takes a millisecond (measured on
/// an H200, driver 580).
const LONGEST: Duration = Duration::from_millis(500);
/// Longest wait of a request that runs out: for the work that uses freed blocks (in deferred mode), or for the work
/// that a real free would wait for (if there are no other frees). Work that completes within this time was worth the
/// wait. Other work must not be waited for. Memory that is still kept then counts as taken.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Pause between two looks.
const SLEEP: Duration = Duration::from_micros(100);
/// The most blocks that go back inside one free of the program, which waits for them.
const MOST_RELEASED: usize = 4;
/// The most idle blocks that make way for one new block.
const MOST_IN_THE_WAY: usize = 64;

/// Gives blocks back to the driver.
#[repr(C)]
pub(crate) struct Releaser {
    switch: Switch,
    idle: IdleMemory,
    blocks: Blocks,
    decay: Decay,
    /// Who watches the blocks, if anyone does.
    watcher: Option<Box<dyn Watcher>>,
}

impl Releaser {
    pub(super) fn new(vendor: Vendor, watcher: Option<Box<dyn Watcher>>, is_open: bool) -> Self {
        let (switch, blocks) = (Switch::new(is_open), Blocks::new());
        Self { switch, blocks, watcher, idle: IdleMemory::new(vendor), decay: Decay::default() }
    }

    /// Applies new values of these variables.
    pub(super) fn apply_settings(&self, settings: &Settings) {
        self.decay.set(settings.pool_decay_ns());
        self.idle.apply_settings(settings);
    }

    #[inline(always)]
    pub(crate) fn switch(&self) -> &Switch {
        &self.switch
    }

    #[inline(always)]
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    #[inline(always)]
    pub(crate) fn watcher(&self) -> Option<&dyn Watcher> {
        self.watcher.as_deref()
    }

    #[inline(always)]
    pub(super) fn idle(&self) -> &IdleMemory {
        &self.idle
    }

    /// Keeps a block object as a spare one: it stands for no memory any more.
    pub(super) fn forget(&self, block: &'static Block) {
        self.watcher().into_iter().for_each(|watcher| watcher.forget(block));
        self.blocks.forget(block);
    }

    /// Runs once a second on the control thread.
    pub(super) fn housekeeping(&'static self, shim: &'static Shim) {
        self.idle.collect(shim);
        self.idle.caches().report_all(shim);
        for context_pool in self.idle.contexts().all() {
            let Some(_hold) = context_pool.hold().filter(|_| !self.switch.is_ending()) else { continue };
            let now = clock::now_ns();
            context_pool.reap(now);
            self.idle.measure(context_pool);
            if self.switch.is_closed() {
                self.end_quarantine(context_pool);
            }
            let all_goes = self.switch.is_closed() || self.is_low(shim, context_pool);
            let over = if all_goes { context_pool.idle() } else { self.idle.over_most(context_pool) };
            let due = self.decay.due(context_pool, now).max(over);
            if due > 0 {
                self.release_unhurried(context_pool, Most::Within(due, usize::MAX));
            }
            self.idle.tell(shim, context_pool);
        }
    }

    /// Returns true if the device has little memory left for other processes, and the shim chooses the bound.
    fn is_low(&self, shim: &Shim, context_pool: &'static ContextPool) -> bool {
        if !self.idle.chooses_bound() || context_pool.idle() == 0 {
            return false;
        }
        let info = context_pool.within(|| backend::of(context_pool.vendor).memory_info());
        let Some((free, total)) = info else { return false };
        self.idle.tell(shim, context_pool);
        let (context, device) = (context_pool.record(), context_pool.device);
        records::contexts::pool_asked(shim, context_pool.vendor, context, device, free, total);
        free < total / LOW
    }

    /// Gives back idle blocks of a context that no thread waits for: while the context is idle, or on a release stream
    /// if it never is. Returns the bytes that went back so far.
    ///
    /// A free on a release stream waits for nothing, and the first one costs host memory for good. So this memory goes
    /// back by real frees while its context is idle. If work begins between the look and the free, the free waits. The
    /// free is therefore made on a separate thread, and the control thread goes on without it.
    fn release_unhurried(&'static self, context_pool: &'static ContextPool, most: Most) -> u64 {
        if context_pool.idle() == 0 {
            return 0;
        }
        let has_release_stream = context_pool.gives_back_at_once();
        if has_release_stream && release_streams_are_used() {
            return self.release(context_pool, most);
        }
        if context_pool.is_idle() {
            context_pool.count_busy(false);
            return self.release_aside(context_pool, most, LONGEST, |_| context_pool.is_idle()).unwrap_or(0);
        }
        let busy = context_pool.count_busy(true);
        let worth = context_pool.idle().min(most.bytes()) >= WORTH_A_RELEASE_STREAM;
        if has_release_stream && worth && busy >= MOST_BUSY { self.release(context_pool, most) } else { 0 }
    }

    /// Gives back what is due, inside a barrier that the program itself has asked for.
    pub(super) fn release_due(&self, context_pool: &'static ContextPool) {
        self.idle.measure(context_pool);
        // If frees wait for work, memory goes back only here.
        let over = if context_pool.frees_wait() { self.idle.over_most(context_pool) } else { 0 };
        let must = context_pool.in_the_way(0).max(over);
        let due = self.decay.due_at_times(context_pool, clock::now_ns());
        // The decay curve takes a share of each block from its first moment on. A block goes once enough is due for it.
        let most = if must > 0 { Most::AtLeast(must, MOST_RELEASED) } else { Most::Within(due, MOST_RELEASED) };
        if most.bytes() > 0 {
            self.release_at_wait(context_pool, most, || true);
        }
    }

    /// Gives back idle blocks above the bound, inside a free of the program that has made its barrier.
    #[cold]
    pub(super) fn trim_to_max(&self, context_pool: &'static ContextPool) {
        let most = Most::AtLeast(self.idle.over_most(context_pool), MOST_RELEASED);
        self.release_at_wait(context_pool, most, || context_pool.known_idle());
    }

    /// Gives back idle blocks of other sizes to make way for a new one.
    ///
    /// The program's allocation must not wait for work. Without a release stream in use, a little memory stays until it
    /// is due. If frees wait for work, all of it stays, since work may begin after any look.
    pub(crate) fn make_way_for(&self, context_pool: &'static ContextPool, rounded: u64) {
        let in_the_way = context_pool.in_the_way(rounded);
        let worth = in_the_way >= WORTH_A_RELEASE_STREAM || in_the_way > 0 && release_streams_are_used();
        if worth && context_pool.gives_back_at_once() {
            self.release(context_pool, Most::AtLeast(in_the_way, MOST_IN_THE_WAY));
        }
    }

    /// Returns true if idle blocks can go back now: a real free is refused during a capture.
    pub(crate) fn may_flush(&self, context_pool: &ContextPool) -> bool {
        !queries::capturing() || context_pool.gives_back_at_once()
    }

    /// Returns the longest time that a block or a request may be in transit.
    pub(crate) fn longest_transit(&self, context_pool: &ContextPool) -> Duration {
        if !self.idle.may_have_pending() && context_pool.gives_back_at_once() {
            return DESCHEDULED;
        }
        // A free that waits for work has already waited for some time. That time is subtracted.
        let of_device = self.idle.contexts().on(context_pool.device);
        let waited = of_device.iter().map(|other| other.freeing().at_work_for()).max();
        LONGEST_WAIT.saturating_sub(waited.unwrap_or_default())
    }

    /// Gives back all idle blocks of a context's device, if they can go back now. Returns true if there may be room
    /// since: some went back, or memory in transit has arrived. `before`: the earlier transit counts.
    pub(super) fn may_have_made_room(
        &'static self,
        context_pool: &ContextPool,
        before: &[(&TransitCounts, u64)],
    ) -> bool {
        self.may_flush(context_pool)
            && (self.flush(context_pool.device) > 0 || !are_unchanged(before, self.longest_transit(context_pool)))
    }

    /// Gives back all idle blocks of a device. Returns the bytes that went back. Freed blocks that pending work uses
    /// stay, if that work does not complete soon.
    pub(crate) fn flush(&'static self, device: Device) -> u64 {
        let Some(shim) = gate::shim() else { return 0 };
        self.idle.caches().gather(shim);
        // Another thread may be ending this context. It waits until this is done.
        let give_back =
            |context_pool: &'static ContextPool| context_pool.hold().map_or(0, |_hold| self.release_all(context_pool));
        let released = self.idle.contexts().on(device).into_iter().map(give_back).sum();
        shim.count(counters::POOL_FLUSHES, 1);
        released
    }

    /// Gives back all idle blocks of a context. Returns the bytes that went back. In deferred mode, and if frees wait,
    /// waits for work that may complete.
    fn release_all(&'static self, context_pool: &'static ContextPool) -> u64 {
        if context_pool.has_pending() {
            let _transit = context_pool.in_transit.blocks.begin();
            context_pool.wait_for_freed(LONGEST_WAIT);
        }
        self.leave_quarantine(context_pool, context_pool.take_quarantine());
        if context_pool.idle() == 0 {
            return 0;
        }
        // Blocks that a late reader may still read do not go back.
        context_pool.settle_readers_within(LONGEST_WAIT);
        if context_pool.gives_back_at_once() {
            return self.release(context_pool, Most::ALL);
        }
        if context_pool.calls.has_context_events() {
            let idle = context_pool.idle_within(LONGEST_WAIT);
            return if idle { self.release_in_time(context_pool, ContextPool::is_idle) } else { 0 };
        }
        // Without events after all work it is unknown if the context is idle. The free then waits, unless some of the
        // work is known to wait for the program itself.
        self.release_in_time(context_pool, |_| !activity::is_outside())
    }

    /// Gives back all idle blocks by real frees, and waits for these frees for a limited time. Returns the bytes that
    /// went back. Calls `may` before each free.
    fn release_in_time(&'static self, context_pool: &'static ContextPool, may: fn(&ContextPool) -> bool) -> u64 {
        let start = Instant::now();
        loop {
            let left = LONGEST_WAIT.saturating_sub(start.elapsed());
            let goes_on = move |is_left: bool| !is_left && may(context_pool);
            if let Some(released) = self.release_aside(context_pool, Most::ALL, left, goes_on) {
                return released;
            }
            // The frees of another thread have already waited in vain for that long.
            if left.is_zero() || context_pool.freeing().at_work_for() > LONGEST_WAIT {
                return 0;
            }
            cancel::sleep(SLEEP);
        }
    }

    /// Gives back all idle blocks, of one device or of all. Returns the bytes that went back and the bytes that stay
    /// because work is pending. `at_once`: a thread waits for the memory, so a release stream is used if possible.
    pub(super) fn give_back(&'static self, shim: &'static Shim, device: Option<Device>, at_once: bool) -> (u64, u64) {
        self.idle.caches().gather(shim);
        let (mut back, mut stays) = (0, 0);
        let contexts = self.idle.contexts();
        for context_pool in device.map_or_else(|| contexts.all(), |device| contexts.on(device)) {
            let Some(_hold) = context_pool.hold().filter(|_| !self.switch.is_ending()) else { continue };
            context_pool.reap(clock::now_ns());
            self.end_quarantine(context_pool);
            let is_aside = || (context_pool.frees_wait() || !release_streams_are_used()) && context_pool.is_idle();
            if !(at_once && context_pool.gives_back_at_once()) && is_aside() {
                let aside = self.release_aside(context_pool, Most::ALL, LONGEST, |_| context_pool.is_idle());
                back += aside.unwrap_or(0);
            }
            back += self.release(context_pool, Most::ALL);
            stays += self.idle.of(context_pool);
            self.idle.tell(shim, context_pool);
        }
        (back, stays)
    }

    /// Ends the quarantine of freed blocks.
    pub(super) fn leave_quarantine(&self, context_pool: &'static ContextPool, out: Option<Out>) {
        if let (Some(watcher), Some(out)) = (self.watcher(), &out) {
            watcher.leave(context_pool, &out.blocks);
        }
        self.keep_read(context_pool, out);
    }

    /// Keeps blocks that have left the quarantine and were looked at.
    pub(super) fn keep_read(&self, context_pool: &'static ContextPool, out: Option<Out>) {
        let Some(out) = out else { return };
        if let Some(watcher) = self.watcher() {
            out.blocks.iter().for_each(|block| watcher.forget(block));
        }
        let now = clock::now_ns();
        out.blocks.iter().for_each(|block| context_pool.keep(block, now));
    }

    /// Ends the quarantine of all freed blocks, unless a capture is going on: their memory is needed.
    fn end_quarantine(&self, context_pool: &'static ContextPool) {
        if !queries::capturing() {
            self.leave_quarantine(context_pool, context_pool.take_quarantine());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request waits for a thread's frees only for the rest of [`LONGEST_WAIT`]; it does not wait for one that has
    /// used up that time.
    #[test]
    fn frees_that_wait_for_long_are_waited_for_no_longer() {
        let releaser: &'static Releaser = Box::leak(Box::new(Releaser::new(Vendor::Cuda, None, true)));
        let context_pool = ContextPool::for_test(1, 0, 0);
        for waited in [LONGEST_WAIT, LONGEST_WAIT - Duration::from_millis(300)] {
            let _frees = context_pool.freeing().turn().unwrap().since(waited);
            let start = Instant::now();
            assert_eq!(releaser.release_in_time(context_pool, |_| true), 0);
            // The other thread's time counts; otherwise this request would have waited its whole time.
            assert!(
                start.elapsed() < LONGEST_WAIT / 2 && context_pool.freeing().at_work_for() >= LONGEST_WAIT,
                "{waited:?}"
            );
        }
    }
}
