//! The pool: device memory that the program freed is kept, and serves its later requests.
//!
//! It stands under `cuMemAlloc`, `hipMalloc` and their frees. Its unit is the block ([`block`]): one allocation of the
//! driver's, which is never split.
//!
//! This file has the pool itself and what is done with all of it. The others are parts of it. A part uses those below
//! it, from top to bottom:
//!
//! * The pools of the process: [`pools`].
//! * A request: [`hit`] if the thread has a block, else [`serve`]. A free: [`give`]. In strict mode it returns when no
//!   work uses the block any more, as the driver's free does. In deferred mode it returns at once, and the block waits
//!   for an event. Questions about memory are answered as if there were no pool: [`ask`].
//! * Blocks go back to the driver in time ([`decay`]), above bounds ([`bound`]), and when an allocation runs out
//!   ([`crate::reclaim`]). How they go back: [`unhurried`], [`short`], [`aside`], [`back`]. A context that ends takes its
//!   blocks with it: [`context_end`]. What may be taken at all, `GPUMEM_LIMIT`: [`quota`]; with others, `GPUMEM_LIMIT_GROUP`:
//!   [`shared_quota`].
//! * Writes where nobody should write are found: [`guarded`], by the [`guard`].
//! * What the driver keeps of its memory is looked at with blocks of our own: [`private`]. Live
//!   blocks are read: [`reading`].
//! * What is recorded of blocks: [`block_records`].
//! * Idle blocks are kept by thread ([`thread`]), and by context ([`context_pool`], which also knows whether the
//!   context has work left).
//! * [`block`]: a block, and all of them by address. [`size`]: the classes of sizes. [`in_transit`]: what is on its
//!   way.
//!
//! The pool steps aside while anything captures, when not all calls are seen, when a context is broken, and once
//! devices reach into each other's memory. The real functions alone decide then.
//!
//! No vendor is known here: all calls are those of [`crate::vendor::memory`].

mod aside;
pub(crate) mod ask;
mod back;
pub(crate) mod block;
mod block_records;
mod bound;
pub(crate) mod context_end;
pub(crate) mod context_pool;
pub(crate) mod decay;
pub(crate) mod give;
pub(crate) mod guard;
pub(crate) mod guarded;
mod hit;
pub(crate) mod in_transit;
mod pools;
pub(crate) mod private;
pub(crate) mod quota;
pub(crate) mod reading;
pub(crate) mod serve;
pub(crate) mod shared_quota;
mod short;
pub(crate) mod size;
pub(crate) mod thread;
mod unhurried;

pub(crate) use crate::process::lock::lock;
pub(crate) use pools::{all, note_shown, of, of_limited, open, pin, state, step_aside, step_back_in};

use crate::process::{fences, threads};
use crate::progress::activity;
use crate::records;
use crate::shim::Shim;
use crate::vendor::memory::{self, MemoryCalls};
use crate::{gate, vendor};
use block::{Block, Map};
use context_pool::ContextPool;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::{Interception, Mode, Vendor};
use gpumem_wire::settings::{Fill, FreeMode, OomFallback, Settings};
use guard::Guard;
use in_transit::InTransit;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::*};
use thread::ThreadCache;

/// Live bytes that a thread may keep from its context's total, so that threads do not meet there.
const UNREPORTED: i64 = 32 << 20;

/// The pool of one vendor's library.
pub(crate) struct Pool {
    pub vendor: Vendor,
    pub calls: &'static dyn MemoryCalls,
    pub map: Map,
    /// A free does not wait.
    deferred: AtomicBool,
    /// Some free did not wait: blocks may wait for events.
    was_deferred: AtomicBool,
    pub fill: Fill,
    pub quarantine: u64,
    /// Finds writes where nobody should write, if that was asked for.
    pub guard: Option<Guard>,
    managed: AtomicBool,
    /// An [`OomFallback`], by its number.
    fallback: AtomicU8,
    /// Idle bytes of each device at most; all ones: a share of the device.
    max: AtomicU64,
    /// Idle bytes that a thread may keep for itself: a small part of the bound.
    most_of_a_thread: AtomicU64,
    /// Threads that have a cache.
    threads: AtomicU64,
    pub decay_ns: AtomicU64,
    /// Bytes of each device that this process may take; 0: as many as there are.
    pub limit: AtomicU64,
    /// A group limits this process, too.
    grouped: bool,
    /// Bytes that requests on their way have been granted of it, by device.
    reserved: Mutex<Vec<(Device, u64)>>,
    /// Blocks are as large as what was asked for, where questions about sizes are not seen.
    exact: bool,
    /// Blocks come and go as they are: of classes of sizes, not filled, not kept from use.
    plain: bool,
    /// All that submits work is seen, and all that changes a thread's context.
    sees_all: bool,
    /// Nothing is kept, and only the limit holds: the pool is off, or the process is ending.
    closed: AtomicBool,
    /// The process is ending: nothing is given back any more.
    ending: AtomicBool,
    owners: Mutex<Vec<&'static ContextPool>>,
    /// Those of contexts that have ended, in the order of that.
    ended: Mutex<VecDeque<&'static ContextPool>>,
    caches: Mutex<Vec<&'static ThreadCache>>,
    /// More than one thread has a cache, or had one.
    has_threads: AtomicBool,
    /// Where the next look for ended threads begins.
    looked: AtomicUsize,
    spare: Mutex<Vec<&'static Block>>,
    any_spare: AtomicBool,
    /// What is on its way on each device.
    in_transit: Mutex<Vec<(Device, &'static InTransit)>>,
}

/// Devices were let into each other's memory: work of one may use blocks of another, which no barrier of
/// the owner's covers.
static REACHED: AtomicBool = AtomicBool::new(false);

/// Devices are let into each other's memory.
pub(crate) fn reached_into() {
    REACHED.store(true, SeqCst);
}

pub fn is_reached_into() -> bool {
    REACHED.load(Relaxed)
}

impl Pool {
    /// `keeps`: whether it is on; else only the limit holds.
    pub(crate) fn new(vendor: Vendor, settings: &Settings, keeps: bool) -> Self {
        fences::prepare();
        let (calls, exact) = (memory::calls(vendor), vendor == Vendor::Hip);
        let guard = if exact || !keeps { None } else { Guard::new(settings) };
        let pool = Self {
            vendor,
            calls,
            map: Map::new(),
            deferred: AtomicBool::new(false),
            was_deferred: AtomicBool::new(false),
            fill: settings.pool_fill,
            quarantine: settings.quarantine,
            managed: AtomicBool::new(false),
            fallback: AtomicU8::new(0),
            max: AtomicU64::new(0),
            most_of_a_thread: AtomicU64::new(0),
            threads: AtomicU64::new(0),
            decay_ns: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            grouped: settings.limit_group.is_some(),
            reserved: Mutex::default(),
            exact,
            plain: !exact && settings.pool_fill == Fill::None && settings.quarantine == 0 && guard.is_none(),
            guard,
            sees_all: calls.sees_all(),
            closed: AtomicBool::new(!keeps || pools::STEPPED_ASIDE.load(SeqCst)),
            ending: AtomicBool::new(false),
            owners: Mutex::default(),
            ended: Mutex::default(),
            caches: Mutex::default(),
            has_threads: AtomicBool::new(false),
            looked: AtomicUsize::new(0),
            spare: Mutex::default(),
            any_spare: AtomicBool::new(false),
            in_transit: Mutex::default(),
        };
        pool.goes_by(settings);
        pool
    }

    /// Goes by these variables from now on.
    pub(crate) fn goes_by(&self, settings: &Settings) {
        let deferred = settings.free == FreeMode::Deferred;
        self.was_deferred.fetch_or(deferred, Relaxed);
        self.deferred.store(deferred, Relaxed);
        self.managed.store(settings.pool_managed, Relaxed);
        self.fallback.store(settings.oom_fallback as u8, Relaxed);
        self.decay_ns.store(settings.pool_decay, Relaxed);
        self.set_max(settings.pool_max);
        self.set_limit(settings.limit.unwrap_or(0));
    }

    /// Whether a free does not wait.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred.load(Relaxed)
    }

    /// Whether blocks may wait for events.
    fn may_have_pending(&self) -> bool {
        self.was_deferred.load(Relaxed)
    }

    /// Whether the growth of the program's own pools is placed in managed memory.
    pub(crate) fn is_managed(&self) -> bool {
        self.managed.load(Relaxed)
    }

    /// Where an allocation that runs out goes.
    pub(crate) fn fallback(&self) -> OomFallback {
        OomFallback::VALUES.get(self.fallback.load(Relaxed) as usize).copied().unwrap_or_default()
    }

    /// Whether the real functions alone decide now.
    #[inline(always)]
    pub(crate) fn aside(&self, shim: &Shim) -> bool {
        let header = shim.ledger.header();
        self.closed.load(Relaxed)
            || is_reached_into()
            || shim.registry.streams.capturing() > 0
            || activity::broken()
            || header.interception().load(Relaxed) != Interception::Complete as u32
            || header.mode().load(Relaxed) != Mode::Active as u32
    }

    /// From now on every free is the real one, nothing is kept, and nothing goes back.
    fn end(&self) {
        self.shut();
        self.ending.store(true, SeqCst);
    }

    /// Serves and keeps nothing from now on. No lock is taken: the allocator calls this.
    pub(crate) fn shut(&self) {
        self.closed.store(true, SeqCst);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// The owner of a context's blocks, for the calling thread's context.
    #[inline]
    fn owner_here(&self, shim: &'static Shim, cache: &ThreadCache) -> Option<&'static ContextPool> {
        // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
        let last = unsafe { cache.last_owner().as_ref() };
        let last = last.filter(|last| last.vendor == self.vendor && !last.gone.load(Relaxed));
        if last.is_some() && self.sees_all && records::contexts::has_the_only_context(shim) {
            return last;
        }
        let context = vendor::of(self.vendor).current_context()?;
        records::contexts::found(shim);
        last.filter(|last| last.context() == context).or_else(|| self.find_owner(shim, context))
    }

    #[cold]
    fn find_owner(&self, shim: &'static Shim, context: u64) -> Option<&'static ContextPool> {
        let record = records::contexts::current(shim, self.vendor);
        let device = vendor::of(self.vendor).current_device()?;
        let has_release_streams = self.calls.has_release_streams(device);
        let mut owners = lock(&self.owners);
        let known = owners.iter().find(|owner| owner.context() == context && !owner.gone.load(Relaxed));
        if let Some(known) = known {
            return Some(known);
        }
        let share = records::pooled::device_share(shim, record);
        let owner = self.owner_for(&mut owners, context, record, device, share);
        drop(owners);
        if !has_release_streams {
            owner.note_no_release_stream();
            self.measure(owner);
        }
        self.share_out();
        records::pooled::limit(shim, record, self.limit.load(Relaxed));
        Some(owner)
    }

    /// What is on its way on a device.
    fn in_transit_on(&self, device: Device) -> &'static InTransit {
        let mut all = lock(&self.in_transit);
        let known = all.iter().find(|(its, _)| *its == device).map(|(_, in_transit)| *in_transit);
        known.unwrap_or_else(|| {
            let in_transit: &'static InTransit = Box::leak(Box::default());
            all.push((device, in_transit));
            in_transit
        })
    }

    /// Blocks of one more context.
    fn add(&self, owners: &mut Vec<&'static ContextPool>, owner: &'static ContextPool) {
        for other in owners.iter().filter(|other| other.device == owner.device && !other.gone.load(Relaxed)) {
            other.has_neighbours.store(true, Relaxed);
            owner.has_neighbours.store(true, Relaxed);
        }
        owners.push(owner);
    }

    pub(crate) fn owners(&self) -> Vec<&'static ContextPool> {
        lock(&self.owners).iter().filter(|owner| !owner.gone.load(Relaxed)).copied().collect()
    }

    /// This thread's cache.
    #[inline]
    fn cache(&self) -> &'static ThreadCache {
        match threads::local(ThreadCache::of) {
            Some(cache) => cache,
            None => self.new_cache(),
        }
    }

    #[cold]
    fn new_cache(&self) -> &'static ThreadCache {
        // A thread that keeps something is one of those that are listed.
        gate::shim().map(Shim::tid);
        let mut caches = lock(&self.caches);
        let unused = caches.iter().find(|cache| cache.begin());
        let cache = unused.copied().unwrap_or_else(|| {
            let made: &'static ThreadCache = Box::leak(Box::default());
            made.begin();
            caches.push(made);
            self.has_threads.store(caches.len() > 1, Relaxed);
            made
        });
        drop(caches);
        self.share_out();
        threads::local(|local| cache.belongs_to(local));
        cache
    }

    pub(crate) fn caches(&self) -> Vec<&'static ThreadCache> {
        lock(&self.caches).clone()
    }

    /// Tells contexts of the live bytes that threads have kept from them.
    pub(crate) fn report_all(&self, shim: &'static Shim) {
        for cache in self.caches().into_iter().filter(|cache| cache.keeps_bytes()) {
            let Some(taken) = cache.take() else { continue };
            let (owner, unreported) = (taken.owner(), taken.unreported());
            drop(taken);
            // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
            if let Some(owner) = unsafe { owner.as_ref() } {
                block_records::add_live(shim, owner, unreported);
            }
        }
    }

    /// A block that stands for nothing.
    fn spare(&self) -> &'static Block {
        let pop = || {
            let mut spare = lock(&self.spare);
            let block = spare.pop();
            self.any_spare.store(!spare.is_empty(), Relaxed);
            block
        };
        let spare = if self.any_spare.load(Relaxed) { pop() } else { None };
        spare.unwrap_or_else(|| Box::leak(Box::default()))
    }

    /// A block stands for nothing any more.
    fn forget(&self, block: &'static Block) {
        if let Some(guard) = &self.guard {
            guard.unwatch(gate::shim(), block);
            guard.forget_freed(gate::shim(), block);
        }
        block.set(block::State::Gone);
        let mut spare = lock(&self.spare);
        spare.push(block);
        self.any_spare.store(true, Relaxed);
    }

    /// Idle bytes of a context, those that threads have among them.
    pub(crate) fn idle(&self, owner: &'static ContextPool) -> u64 {
        let of_threads = self.caches().into_iter().filter(|cache| std::ptr::eq(cache.last_owner(), owner));
        owner.idle() + of_threads.map(|cache| cache.bytes.load(Relaxed)).sum::<u64>()
    }

    /// The owner of the blocks of this thread's context.
    pub(crate) fn owner_of_thread(&self, shim: &'static Shim) -> Option<&'static ContextPool> {
        self.owner_here(shim, self.cache())
    }

    /// Whether there is a limit, of this process alone or of its group.
    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.grouped || self.limit.load(Relaxed) != 0
    }

    fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
        self.owners().into_iter().for_each(|owner| {
            gate::record_if_started(|shim| records::pooled::limit(shim, owner.record(), bytes));
        });
    }

    /// A block's free has to be the real one: others may know of it. The block that `addr` lies in.
    pub(crate) fn pin(&self, addr: u64) {
        if let Some(block) = self.map.around(addr) {
            block.flags.fetch_or(block::PINNED, Relaxed);
        }
    }
}
