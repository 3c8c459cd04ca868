//! The pool: device memory that the program freed is kept, and serves its later requests.
//!
//! It stands under `cuMemAlloc`, `hipMalloc` and their frees. Its unit is the block ([`block`]): one allocation of the
//! driver's, which is never split.
//!
//! This file has the pool itself and what is done with all of it. The others are parts of it. A part uses those below
//! it, from top to bottom:
//!
//! * The pools of the process: [`pools`].
//! * A request: [`fast_path`] if the thread's cache has a block, else [`serve`]. A free: [`free`]. In strict mode a
//!   free returns when no work uses the block any more, as the driver's free does. In deferred mode it returns at once,
//!   and the block waits for an event. Questions about memory are answered as if there were no pool: [`answers`].
//! * Blocks go back to the driver in time ([`decay`]), above bounds ([`bound`]), and when an allocation runs out
//!   ([`crate::request`]). How blocks go back: [`release`]; on a thread of their own: [`release_aside`]; when nobody
//!   waits for it: [`release_unhurried`]; when memory is short: [`release_all`]. A context that ends takes its blocks
//!   with it: [`context_end`]. What may be taken at all, `GPUMEM_LIMIT`: [`quota`]; with others, `GPUMEM_LIMIT_GROUP`:
//!   [`shared_quota`]. What both give back for a request: [`flush`].
//! * Writes where nobody should write are found: [`guarded`], by the [`guard`].
//! * Where the driver itself refers to device memory is learned from blocks that the program never knows of:
//!   [`private`]. Live blocks are read while the program goes on: [`reading`].
//! * Threads' caches are emptied: [`gather`].
//! * What is recorded of blocks: [`block_records`].
//! * Idle blocks are kept by thread ([`thread`]), and by context ([`context_pool`], which also knows whether the
//!   context has work left).
//! * [`claims`]: which blocks a reader may read, so that they do not go back meanwhile.
//! * [`block`]: a block, and all of them by address. [`size`]: the classes of sizes. [`in_transit`]: what is on its
//!   way.
//!
//! The pool steps aside while anything captures, when not all calls are seen, when a context is broken, and once
//! devices reach into each other's memory. The real functions alone decide then.
//!
//! No vendor is known here: all calls are those of [`crate::vendor::memory`].

pub(crate) mod answers;
pub(crate) mod block;
mod block_records;
mod blocks;
mod bound;
mod claims;
pub(crate) mod context_end;
pub(crate) mod context_pool;
pub(crate) mod decay;
mod fast_path;
mod flush;
pub(crate) mod free;
mod gather;
pub(crate) mod guard;
pub(crate) mod guarded;
pub(crate) mod in_transit;
mod pools;
pub(crate) mod private;
pub(crate) mod quota;
pub(crate) mod reading;
mod release;
mod release_all;
mod release_aside;
mod release_unhurried;
pub(crate) mod serve;
pub(crate) mod shared_quota;
pub(crate) mod size;
pub(crate) mod thread;

pub(crate) use crate::process::lock::lock;
pub(crate) use pools::{all, note_shown, of, of_limited, open, pin, state, step_aside, step_back_in};

use crate::process::{fences, threads};
use crate::progress::activity;
use crate::records;
use crate::shim::Shim;
use crate::vendor::memory::{self, MemoryCalls};
use crate::{gate, vendor};
use block::Block;
use blocks::Blocks;
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

/// How many live bytes a thread may leave out of its context's total, so that threads need not write one word.
const UNREPORTED: i64 = 32 << 20;

/// The pool of one vendor's library.
pub(crate) struct Pool {
    pub vendor: Vendor,
    pub calls: &'static dyn MemoryCalls,
    pub blocks: Blocks,
    /// Deferred mode: a free does not wait.
    deferred: AtomicBool,
    /// Some free did not wait, so blocks may wait for events.
    was_deferred: AtomicBool,
    pub fill: Fill,
    pub quarantine: u64,
    /// The guard, if the user asked for it.
    pub guard: Option<Guard>,
    managed: AtomicBool,
    /// An [`OomFallback`], by its number.
    fallback: AtomicU8,
    /// The most idle bytes of each device. All ones: a share of the device.
    max: AtomicU64,
    /// Idle bytes that a thread may keep for itself: a small part of the bound.
    most_of_a_thread: AtomicU64,
    /// Threads that have a cache.
    threads: AtomicU64,
    pub decay_ns: AtomicU64,
    /// The bytes of each device that this process may take. 0: no limit.
    pub limit: AtomicU64,
    /// Whether a group limits this process, too.
    grouped: bool,
    /// The bytes of that limit which requests on their way have been granted, by device.
    reserved: Mutex<Vec<(Device, u64)>>,
    /// Blocks are exactly as large as the request, because questions about sizes are not seen.
    exact: bool,
    /// Blocks come and go as they are: they have sizes of classes, are not filled and are not kept from use.
    plain: bool,
    /// All calls that submit work are seen, and all that change a thread's context.
    sees_all: bool,
    /// Nothing is kept and only the limit holds, because the pool is off or the process is ending.
    closed: AtomicBool,
    /// The process is ending: nothing is given back any more.
    ending: AtomicBool,
    context_pools: Mutex<Vec<&'static ContextPool>>,
    /// The pools of ended contexts, in the order in which they ended.
    ended: Mutex<VecDeque<&'static ContextPool>>,
    caches: Mutex<Vec<&'static ThreadCache>>,
    /// More than one thread has, or had, a cache.
    has_threads: AtomicBool,
    /// Where the next look for ended threads begins.
    looked: AtomicUsize,
    /// What is on its way on each device.
    in_transit: Mutex<Vec<(Device, &'static InTransit)>>,
}

/// Devices may access each other's memory. Work of one device may then use blocks of another, and no barrier of the
/// block's context covers that work.
static REACHED: AtomicBool = AtomicBool::new(false);

/// From now on devices may access each other's memory.
pub(crate) fn reached_into() {
    REACHED.store(true, SeqCst);
}

pub fn is_reached_into() -> bool {
    REACHED.load(Relaxed)
}

impl Pool {
    /// `keeps`: whether the pool is on. Otherwise only the limit holds.
    pub(crate) fn new(vendor: Vendor, settings: &Settings, keeps: bool) -> Self {
        fences::prepare();
        let (calls, exact) = (memory::calls(vendor), vendor == Vendor::Hip);
        let guard = if exact || !keeps { None } else { Guard::new(settings) };
        let pool = Self {
            vendor,
            calls,
            blocks: Blocks::new(),
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
            context_pools: Mutex::default(),
            ended: Mutex::default(),
            caches: Mutex::default(),
            has_threads: AtomicBool::new(false),
            looked: AtomicUsize::new(0),
            in_transit: Mutex::default(),
        };
        pool.goes_by(settings);
        pool
    }

    /// Follows these variables from now on.
    pub(crate) fn goes_by(&self, settings: &Settings) {
        let deferred = settings.free == FreeMode::Deferred;
        self.was_deferred.fetch_or(deferred, Relaxed);
        self.deferred.store(deferred, Relaxed);
        self.managed.store(settings.pool_managed, Relaxed);
        self.fallback.store(settings.oom_fallback as u8, Relaxed);
        self.decay_ns.store(settings.pool_decay_ns(), Relaxed);
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

    /// Whether growth of the program's own memory pools is placed in managed memory.
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

    /// From now on every free is the real one, nothing is kept, and nothing goes back any more.
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

    /// The pool of the calling thread's context.
    #[inline]
    fn context_pool_here(&self, shim: &'static Shim, cache: &ThreadCache) -> Option<&'static ContextPool> {
        // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
        let last = unsafe { cache.last_context_pool().as_ref() };
        let last = last.filter(|last| last.vendor == self.vendor && !last.gone.load(Relaxed));
        if last.is_some() && self.sees_all && records::contexts::has_the_only_context(shim) {
            return last;
        }
        let context = vendor::of(self.vendor).current_context()?;
        records::contexts::found(shim);
        last.filter(|last| last.context() == context).or_else(|| self.find_context_pool(shim, context))
    }

    #[cold]
    fn find_context_pool(&self, shim: &'static Shim, context: u64) -> Option<&'static ContextPool> {
        let record = records::contexts::current(shim, self.vendor);
        let device = vendor::of(self.vendor).current_device()?;
        let has_release_streams = self.calls.has_release_streams(device);
        let mut context_pools = lock(&self.context_pools);
        let known = context_pools
            .iter()
            .find(|context_pool| context_pool.context() == context && !context_pool.gone.load(Relaxed));
        if let Some(known) = known {
            return Some(known);
        }
        let share = records::pooled::device_share(shim, record);
        let context_pool = self.context_pool_for(&mut context_pools, context, record, device, share);
        drop(context_pools);
        if !has_release_streams {
            context_pool.note_no_release_stream();
            self.measure(context_pool);
        }
        self.share_out();
        records::pooled::limit(shim, record, self.limit.load(Relaxed));
        Some(context_pool)
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

    /// Adds the pool of one more context.
    fn add(&self, context_pools: &mut Vec<&'static ContextPool>, context_pool: &'static ContextPool) {
        for other in
            context_pools.iter().filter(|other| other.device == context_pool.device && !other.gone.load(Relaxed))
        {
            other.has_neighbours.store(true, Relaxed);
            context_pool.has_neighbours.store(true, Relaxed);
        }
        context_pools.push(context_pool);
    }

    pub(crate) fn context_pools(&self) -> Vec<&'static ContextPool> {
        lock(&self.context_pools).iter().filter(|context_pool| !context_pool.gone.load(Relaxed)).copied().collect()
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
        // A thread that keeps blocks is listed among the threads.
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

    /// Adds to the contexts' totals the live bytes that threads have left out of them.
    pub(crate) fn report_all(&self, shim: &'static Shim) {
        for cache in self.caches().into_iter().filter(|cache| cache.keeps_bytes()) {
            let Some(taken) = cache.take() else { continue };
            let (context_pool, unreported) = (taken.context_pool(), taken.unreported());
            drop(taken);
            // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
            if let Some(context_pool) = unsafe { context_pool.as_ref() } {
                block_records::add_live(shim, context_pool, unreported);
            }
        }
    }

    /// A block object stands for no memory any more.
    fn forget(&self, block: &'static Block) {
        if let Some(guard) = &self.guard {
            guard.unwatch(gate::shim(), block);
            guard.forget_freed(gate::shim(), block);
        }
        self.blocks.forget(block);
    }

    /// Idle bytes of a context, those in threads' caches among them.
    pub(crate) fn idle(&self, context_pool: &'static ContextPool) -> u64 {
        let of_threads =
            self.caches().into_iter().filter(|cache| std::ptr::eq(cache.last_context_pool(), context_pool));
        context_pool.idle() + of_threads.map(|cache| cache.bytes.load(Relaxed)).sum::<u64>()
    }

    /// The pool of the calling thread's context, as the records know it.
    pub(crate) fn context_pool_of_thread(&self, shim: &'static Shim) -> Option<&'static ContextPool> {
        self.context_pool_here(shim, self.cache())
    }

    /// Whether there is a limit, of this process alone or of its group.
    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.grouped || self.limit.load(Relaxed) != 0
    }

    fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
        self.context_pools().into_iter().for_each(|context_pool| {
            gate::record_if_started(|shim| records::pooled::limit(shim, context_pool.record(), bytes));
        });
    }

    /// The free of the block that `addr` lies in has to be the real one, since others may know of the block.
    pub(crate) fn pin(&self, addr: u64) {
        if let Some(block) = self.blocks.around(addr) {
            block.flags.fetch_or(block::PINNED, Relaxed);
        }
    }
}
