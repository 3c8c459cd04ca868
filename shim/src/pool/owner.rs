//! The blocks of one context: idle ones by size and age, those that wait for work to be over, and
//! what all of them take.

use super::back::Most;
use super::block::{Block, State};
use super::device::Visit;
use super::lock;
use super::moves::Moves;
use crate::activity;
use crate::process::clock;
use crate::vendor::memory::{Event, MemoryCalls};
use gpumem_abi::types::{Device, SUCCESS, Status};
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::ContextRef;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

/// Growth that idle blocks need not make way for: this share of the most that was ever live, and these
/// bytes at least.
const GROWTH_SHARE: u64 = 6;
const GROWTH_BYTES: u64 = 32 << 20;
/// Freed blocks that wait for an event together, and their bytes at most: to record one and to ask for it takes
/// longer than all else of a free, and whoever needs one of them asks at once.
const GATHERED: usize = 8;
const GATHERED_BYTES: u64 = 32 << 20;
/// Freed blocks that one event covers at most.
const BATCH: usize = 64;
/// Events that wait at a time, unless many blocks were freed since the last.
const MOST_BATCHES: usize = 64;
/// Never.
const NEVER: u64 = u64::MAX;

/// The pool of one context.
pub struct Owner {
    pub vendor: Vendor,
    pub context: u64,
    pub record: ContextRef,
    pub device: Device,
    /// Idle bytes that it may keep where the user sets no bound.
    pub share: u64,
    pub calls: &'static dyn MemoryCalls,
    /// The context is gone, and all blocks with it.
    pub gone: AtomicBool,
    /// Submissions that are known to be over, as [`activity::quiet`] counts them.
    clean_at: AtomicU64,
    without_events: AtomicBool,
    /// The pool has, or had, blocks of other contexts on the device.
    pub has_neighbours: AtomicBool,
    /// Bytes of real blocks, live and idle.
    held: AtomicU64,
    /// Bytes of idle blocks here; those in threads' caches are not among them.
    idle: AtomicU64,
    pub idle_peak: AtomicU64,
    live_peak: AtomicU64,
    inner: Mutex<Inner>,
    /// Events of ours that cover nothing now.
    pub(super) events: Mutex<Vec<Event>>,
    /// Threads that give blocks back now, or wait for some: the context stays.
    releasing: AtomicUsize,
    /// The stream on which blocks are given back: [`UNKNOWN`], [`NONE`], or what it is.
    pub(super) lane: AtomicUsize,
    /// Times, one after the other, that memory was to go back and the context was at work.
    pub(super) found_busy: AtomicU64,
    /// Blocks of its device that are on their way.
    pub moves: &'static Moves,
}

/// While it lives, a context stays. Nothing of the pool's is locked meanwhile.
pub struct Staying<'a> {
    owner: &'a Owner,
    _visit: Visit,
}

impl Drop for Staying<'_> {
    fn drop(&mut self) {
        self.owner.releasing.fetch_sub(1, SeqCst);
    }
}

#[derive(Default)]
struct Inner {
    /// By size and address: the lowest address of the smallest size that fits is taken, so that a
    /// program that does the same again gets the same addresses.
    by_size: BTreeMap<(u64, u64), &'static Block>,
    by_age: BTreeMap<u64, &'static Block>,
    turn: u64,
    /// Freed, and not covered by an event yet.
    open: Vec<&'static Block>,
    next_batch: u64,
    batches: VecDeque<Batch>,
    /// Freed, and kept from use for a while.
    quarantine: VecDeque<&'static Block>,
    quarantined: u64,
}

struct Batch {
    /// Events are used again; this is not.
    number: u64,
    event: Event,
    /// What [`activity::quiet`] said before the event was recorded.
    quiet: Option<u64>,
    blocks: Vec<&'static Block>,
}

#[cfg(test)]
impl Owner {
    /// One of a context that no driver knows.
    pub fn made_up(context: u64, device: Device, share: u64) -> &'static Self {
        use crate::vendor::memory;
        let (vendor, moves) = (Vendor::Cuda, Box::leak(Box::default()));
        Box::leak(Box::new(Self::new(vendor, context, 0, device, share, memory::calls(vendor), moves)))
    }
}

impl Owner {
    pub fn new(
        vendor: Vendor,
        context: u64,
        record: ContextRef,
        device: Device,
        share: u64,
        calls: &'static dyn MemoryCalls,
        moves: &'static Moves,
    ) -> Self {
        Self {
            vendor,
            context,
            record,
            device,
            share,
            calls,
            gone: AtomicBool::new(false),
            clean_at: AtomicU64::new(NEVER),
            without_events: AtomicBool::new(false),
            has_neighbours: AtomicBool::new(false),
            held: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            idle_peak: AtomicU64::new(0),
            live_peak: AtomicU64::new(0),
            inner: Mutex::default(),
            events: Mutex::default(),
            releasing: AtomicUsize::new(0),
            lane: AtomicUsize::new(super::back::UNKNOWN),
            found_busy: AtomicU64::new(0),
            moves,
        }
    }

    /// Whether no work was submitted since the last that is known to be over.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.calls.sees_all() && self.is_still()
    }

    /// As [`Owner::is_clean`], where all that submits work is seen.
    #[inline(always)]
    pub fn is_still(&self) -> bool {
        activity::is_still(self.clean_at.load(Acquire))
    }

    /// Work that was submitted before this count is over.
    pub(super) fn clean(&self, at: Option<u64>) {
        if let Some(at) = at {
            // Counts only grow; NEVER is the one above them all.
            let _ = self.clean_at.fetch_update(AcqRel, Acquire, |known| (known == NEVER || known < at).then_some(at));
        }
    }

    /// Has the context stay while its blocks are given back: whoever ends it waits. `None` if it is gone.
    pub fn staying(&self) -> Option<Staying<'_>> {
        // Of the last release of a primary context it is known afterwards only that it ended it.
        let _visit = Visit::begin(self.context)?;
        self.releasing.fetch_add(1, SeqCst);
        let staying = Staying { owner: self, _visit };
        (!self.gone.load(SeqCst)).then_some(staying)
    }

    /// Waits until nobody gives blocks back any more, for so long at most. Whoever begins after this was called sees
    /// that the context is gone, or that the pool is closed.
    pub fn wait_for_releases(&self, longest: Duration) {
        let end = clock::precise_ns() + longest.as_nanos() as u64;
        while self.releasing.load(SeqCst) != 0 && clock::precise_ns() < end {
            crate::process::cancel::sleep(Duration::from_micros(50));
        }
    }

    /// Runs a call in this context.
    pub fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        self.calls.within(self.context, f)
    }

    /// An event behind all work submitted so far, and the count of that. `None` if something captures or
    /// there are no such events.
    fn event(&self) -> Option<(Event, Option<u64>)> {
        let quiet = activity::quiet();
        let event = self.behind_all()?;
        Some((event?, quiet))
    }

    /// As [`MemoryCalls::behind_all`], in the current context, with a spare event if there is one. `None` if something
    /// captures.
    pub(super) fn behind_all(&self) -> Option<Option<Event>> {
        let spare = lock(&self.events).pop();
        let event = super::looks::undisturbed(|| self.calls.behind_all(self.context, spare));
        match event {
            Some(event) => self.without_events.store(event.is_none(), Relaxed),
            None => lock(&self.events).extend(spare),
        }
        event
    }

    /// Whether the last event behind all work of the context could be had: drivers before 12.5 have none.
    pub fn has_events(&self) -> bool {
        !self.without_events.load(Relaxed)
    }

    /// Bytes of real blocks.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Bytes of idle blocks that no thread has.
    pub fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }

    /// A real block came, of so many bytes.
    pub fn grew(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        self.live_peak.fetch_max(held.saturating_sub(self.idle()), Relaxed);
    }

    /// A real block is gone.
    pub fn shrank(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Relaxed);
    }

    /// Bytes of idle blocks that should make way for this growth.
    pub fn in_the_way(&self, growth: u64) -> u64 {
        let held = self.held() + growth;
        let peak = self.live_peak.load(Relaxed).max(held.saturating_sub(self.idle()));
        held.saturating_sub(peak + (peak / GROWTH_SHARE).max(GROWTH_BYTES)).min(self.idle())
    }

    /// A block of so many bytes, or a little more.
    pub fn take(&self, rounded: u64, slack: u64) -> Option<&'static Block> {
        let mut inner = lock(&self.inner);
        let (&key, &block) = inner.by_size.range((rounded, 0)..).next()?;
        if key.0 > rounded + slack {
            return None;
        }
        inner.by_size.remove(&key);
        inner.by_age.remove(&block.turn.load(Relaxed));
        let idle = self.idle.fetch_sub(key.0, Relaxed) - key.0;
        self.live_peak.fetch_max(self.held().saturating_sub(idle), Relaxed);
        Some(block)
    }

    /// Keeps a block that no work uses any more.
    pub fn keep(&self, block: &'static Block, now_ns: u64) {
        let mut inner = lock(&self.inner);
        self.idle.fetch_add(block.bytes.load(Relaxed), Relaxed);
        self.keep_in(&mut inner, block, now_ns);
    }

    /// Its bytes are counted as idle already.
    fn keep_in(&self, inner: &mut Inner, block: &'static Block, now_ns: u64) {
        let (bytes, addr) = (block.bytes.load(Relaxed), block.addr.load(Relaxed));
        block.idle_ns.store(now_ns, Relaxed);
        block.turn.store(inner.turn, Relaxed);
        block.set(State::Idle);
        inner.by_age.insert(inner.turn, block);
        inner.turn += 1;
        inner.by_size.insert((bytes, addr), block);
        self.idle_peak.fetch_max(self.idle(), Relaxed);
    }

    /// Looks whether the work that may use a block is over by now; if not, the block is kept until it is.
    pub fn is_over_or_kept(&self, block: &'static Block, now_ns: u64) -> bool {
        let keep = || {
            block.idle_ns.store(now_ns, Relaxed);
            block.set(State::Idle);
            self.idle.fetch_add(block.bytes.load(Relaxed), Relaxed);
        };
        let quiet = activity::quiet();
        {
            let mut inner = lock(&self.inner);
            // Nothing was submitted since the last event: it covers this block too.
            let covers = |batch: &&mut Batch| quiet.is_some() && batch.quiet == quiet && batch.blocks.len() < BATCH;
            if let Some(batch) = inner.batches.back_mut().filter(covers) {
                keep();
                batch.blocks.push(block);
                return false;
            }
            // More events than this tell nothing that fewer do not.
            let open = inner.open.len();
            let bytes: u64 = inner.open.iter().chain([&block]).map(|block| block.bytes.load(Relaxed)).sum();
            if open + 1 < GATHERED && bytes <= GATHERED_BYTES || inner.batches.len() >= MOST_BATCHES && open < BATCH {
                keep();
                inner.open.push(block);
                return false;
            }
        }
        // Before the event: what is freed from here on is not covered.
        let mut blocks = std::mem::take(&mut lock(&self.inner).open);
        let Some((event, quiet)) = self.within(|| self.event()) else {
            keep();
            blocks.push(block);
            lock(&self.inner).open.extend(blocks);
            return false;
        };
        if self.within(|| self.calls.over(event)) {
            self.clean(quiet);
            lock(&self.events).push(event);
            self.keep_all(&mut lock(&self.inner), blocks, now_ns);
            return true;
        }
        keep();
        blocks.push(block);
        self.push_batch(&mut lock(&self.inner), event, quiet, blocks);
        false
    }

    /// Keeps blocks that waited and that no work uses any more.
    fn keep_all(&self, inner: &mut Inner, blocks: impl IntoIterator<Item = &'static Block>, now_ns: u64) {
        blocks.into_iter().for_each(|block| self.keep_in(inner, block, now_ns));
    }

    fn push_batch(&self, inner: &mut Inner, event: Event, quiet: Option<u64>, blocks: Vec<&'static Block>) {
        let number = inner.next_batch;
        inner.next_batch += 1;
        inner.batches.push_back(Batch { number, event, quiet, blocks });
    }

    /// Puts an event behind the work that may use what was freed since the last batch.
    fn close_batch(&self) {
        let blocks = std::mem::take(&mut lock(&self.inner).open);
        if blocks.is_empty() {
            return;
        }
        match self.within(|| self.event()) {
            Some((event, quiet)) => {
                self.push_batch(&mut lock(&self.inner), event, quiet, blocks);
            }
            None => {
                lock(&self.inner).open.extend(blocks);
            }
        }
    }

    /// Takes in what no work uses any more, and covers the rest by events.
    pub fn reap(&self, now_ns: u64) {
        self.close_batch();
        loop {
            let front = lock(&self.inner).batches.front().map(|batch| (batch.number, batch.event));
            let Some((number, event)) = front else { return };
            if !self.within(|| self.calls.over(event)) {
                return;
            }
            let mut inner = lock(&self.inner);
            // Another thread may have been here.
            if inner.batches.front().is_none_or(|batch| batch.number != number) {
                continue;
            }
            let Some(batch) = inner.batches.pop_front() else { return };
            self.keep_all(&mut inner, batch.blocks, now_ns);
            drop(inner);
            self.clean(batch.quiet);
            lock(&self.events).push(event);
        }
    }

    /// Whether something waits for work to be over.
    pub fn has_pending(&self) -> bool {
        let inner = lock(&self.inner);
        !inner.open.is_empty() || !inner.batches.is_empty()
    }

    /// Waits until no work uses what was freed so far, for so long at most, and not while something captures.
    pub fn settle(&self, longest: Duration) {
        let end = clock::precise_ns() + longest.as_nanos() as u64;
        self.reap(clock::now_ns());
        // What is freed from here on is not waited for.
        let until = lock(&self.inner).next_batch;
        let waits = || lock(&self.inner).batches.front().is_some_and(|batch| batch.number < until);
        while waits() && clock::precise_ns() < end && !activity::broken() && !super::looks::capturing() {
            crate::process::cancel::sleep(Duration::from_micros(50));
            self.reap(clock::now_ns());
        }
    }

    /// As [`Owner::barrier`], and takes in what was freed before it.
    pub fn barrier_for_all(&self, now_ns: u64) -> Option<Status> {
        // What is freed from here on is not covered.
        let (open, batches) = {
            let mut inner = lock(&self.inner);
            (std::mem::take(&mut inner.open), std::mem::take(&mut inner.batches))
        };
        let status = self.barrier();
        let events: Vec<Event> = batches.iter().map(|batch| batch.event).collect();
        let blocks = open.into_iter().chain(batches.into_iter().flat_map(|batch| batch.blocks));
        let mut inner = lock(&self.inner);
        match status {
            Some(SUCCESS) => self.keep_all(&mut inner, blocks, now_ns),
            _ => inner.open.extend(blocks),
        }
        drop(inner);
        lock(&self.events).extend(events);
        status
    }

    /// Keeps a block from use until so many bytes were freed after it; those whose time is over.
    pub fn quarantine(&self, block: &'static Block, most: u64) -> Vec<&'static Block> {
        let mut inner = lock(&self.inner);
        block.set(State::Idle);
        inner.quarantined += block.bytes.load(Relaxed);
        self.idle.fetch_add(block.bytes.load(Relaxed), Relaxed);
        inner.quarantine.push_back(block);
        let mut over = Vec::new();
        while inner.quarantined > most
            && let Some(first) = inner.quarantine.pop_front()
        {
            inner.quarantined -= first.bytes.load(Relaxed);
            self.idle.fetch_sub(first.bytes.load(Relaxed), Relaxed);
            over.push(first);
        }
        over
    }

    /// The blocks that are idle for longest, taken out: so many of `most`, which is what is left of it afterwards.
    pub(super) fn oldest(&self, most: &mut Most, count: usize) -> Vec<&'static Block> {
        let mut inner = lock(&self.inner);
        let mut out = Vec::new();
        while out.len() < count
            && let Some((&turn, &block)) = inner.by_age.first_key_value()
        {
            let bytes = block.bytes.load(Relaxed);
            match most {
                Most::AtLeast(0, _) | Most::AtLeast(_, 0) => break,
                Most::AtLeast(left, blocks) => (*left, *blocks) = (left.saturating_sub(bytes), *blocks - 1),
                Most::Within(left) => match left.checked_sub(bytes) {
                    Some(less) => *left = less,
                    None => break,
                },
            }
            inner.by_age.remove(&turn);
            inner.by_size.remove(&(bytes, block.addr.load(Relaxed)));
            self.idle.fetch_sub(bytes, Relaxed);
            out.push(block);
        }
        out
    }

    /// Ends the quarantine of all blocks in it.
    pub fn end_quarantine(&self, now_ns: u64) {
        let mut inner = lock(&self.inner);
        inner.quarantined = 0;
        let blocks = std::mem::take(&mut inner.quarantine);
        self.keep_all(&mut inner, blocks, now_ns);
    }

    /// Bytes and age, ns, of each idle block that can be given back.
    pub fn ages(&self, now_ns: u64) -> Vec<(u64, u64)> {
        let inner = lock(&self.inner);
        let age = |block: &&Block| now_ns.saturating_sub(block.idle_ns.load(Relaxed));
        inner.by_age.values().map(|block| (block.bytes.load(Relaxed), age(block))).collect()
    }

    /// Keeps a block that work may use, until that is over.
    pub fn keep_waiting(&self, block: &'static Block, now_ns: u64) {
        let mut inner = lock(&self.inner);
        block.idle_ns.store(now_ns, Relaxed);
        block.set(State::Idle);
        self.idle.fetch_add(block.bytes.load(Relaxed), Relaxed);
        inner.open.push(block);
    }

    /// The context ends, and with it all that is kept here: blocks that no work uses, and those that wait.
    pub fn let_go(&self) -> (Vec<&'static Block>, Vec<&'static Block>) {
        drop(std::mem::take(&mut *lock(&self.events)));
        let mut inner = lock(&self.inner);
        let Inner { by_age, open, batches, quarantine, .. } = std::mem::take(&mut *inner);
        let idle: Vec<_> = by_age.into_values().chain(quarantine).collect();
        let waiting: Vec<_> = open.into_iter().chain(batches.into_iter().flat_map(|batch| batch.blocks)).collect();
        let bytes = idle.iter().chain(&waiting).map(|block| block.bytes.load(Relaxed)).sum();
        self.idle.fetch_sub(bytes, Relaxed);
        (idle, waiting)
    }

    pub fn blocks(&self) -> u64 {
        let inner = lock(&self.inner);
        let pending: usize = inner.batches.iter().map(|batch| batch.blocks.len()).sum();
        (inner.by_age.len() + inner.open.len() + inner.quarantine.len() + pending) as u64
    }
}
