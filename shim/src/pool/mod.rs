//! The pool keeps device memory that the program freed, and serves later requests with it.
//!
//! It serves `cuMemAlloc`, `hipMalloc` and their frees. Its unit is the block ([`block`]): one allocation of the
//! driver, which is never split.
//!
//! A pool is made of parts, each a type with private fields in its own file. [`Pool`] combines them; no other file of
//! this folder uses the whole of it. A part uses only the parts below it. From top to bottom:
//!
//! | part | contents |
//! |---|---|
//! | [`Quota`](quota::Quota) | `GPUMEM_LIMIT`, and with others `GPUMEM_LIMIT_GROUP`: the limit of all memory |
//! | [`Releaser`](releaser::Releaser) | when and how blocks go back to the driver, and which |
//! | [`IdleMemory`](idle_memory::IdleMemory) | where idle blocks are, and their bounds |
//! | [`ThreadCaches`](thread_caches::ThreadCaches), [`ContextPools`](context_pools::ContextPools) | blocks that threads keep ([`thread`]), blocks that contexts keep ([`context_pool`], which also knows if the context has pending work) |
//! | [`Decay`](decay::Decay) | the memory that goes back with time |
//! | [`Blocks`](blocks::Blocks) | all blocks by address ([`block`]) |
//! | [`BlockRules`](rules::BlockRules), [`Switch`](switch::Switch) | how blocks are used; if the pool is on now |
//!
//! The rest are functions that take the parts they use:
//!
//! * The pools of the process: [`pools`].
//! * A request: [`fast_path`] if the thread's cache has a block, else [`Pool::find`]. A free: [`free`]. In strict mode a
//!   free returns once no work uses the block, as the driver's free does. In deferred mode it returns at once, and the
//!   block waits for an event. Questions about memory are answered as if there were no pool: [`answers`].
//! * A context ends with its blocks: [`context_end`]. What watches blocks is handed them: [`watcher`].
//! * Memory that is taken for a moment and goes back first: [`private`].
//! * Records of blocks: [`block_records`]. Blocks that a reader may read: [`claims`]. Size classes: [`size`]. Memory in
//!   transit: [`in_transit`]. The lock of a thread's cache: [`biased_lock`].
//!
//! The pool steps aside during captures, if not all calls are seen, if a context is broken, and once devices access
//! each other's memory. The real functions alone decide then.
//!
//! This folder knows no vendor: all calls are those of [`crate::backend::memory`].

pub(crate) mod answers;
mod biased_lock;
pub(crate) mod block;
mod block_records;
mod blocks;
pub(crate) mod claims;
pub(crate) mod context_end;
pub(crate) mod context_pool;
mod context_pools;
mod decay;
mod fast_path;
mod free;
mod idle_memory;
pub(crate) mod in_transit;
mod pools;
pub(crate) mod private;
pub(crate) mod quota;
mod releaser;
mod rules;
pub(crate) mod size;
mod switch;
pub(crate) mod thread;
mod thread_caches;
pub(crate) mod watcher;

mod sync {
    pub(super) use crate::process::fences::{heavy, light};
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
    pub(super) use std::thread::yield_now;
}

pub(crate) use crate::process::lock::lock;
pub(crate) use pools::{
    LISTENS_EVERY, all, give_to_group, housekeeping, note_shown, of, of_limited, open, pin, state, step_aside,
    step_back_in, trim,
};
pub use switch::is_peer_access_enabled;
pub(crate) use switch::peer_access_enabled;

use crate::call::Call;
use crate::gate;
use crate::process::errno::KeepErrno;
use crate::process::fences;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use crate::stranded::{self, SMALLEST, Watch};
use answers::NOWHERE;
use block::{Block, INTACT, SPILLED, State};
use context_pool::ContextPool;
use free::{FreeParts, FreeStep};
use gpumem_abi::types::{Device, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::Settings;
use quota::Quota;
use releaser::Releaser;
use rules::BlockRules;
use thread_caches::rebind;
use watcher::NewWatcher;

/// Memory that was obtained for a request.
#[derive(Clone, Copy)]
pub(crate) struct Obtained {
    /// Its address, if the real function did not write it to the program's out-parameter.
    pub addr: Option<u64>,
    pub bytes: u64,
    pub flags: u32,
}

/// Result of the first look at a request: how to go on.
pub(crate) enum Lookup {
    Block(&'static Block),
    /// No idle block fits.
    None(&'static ContextPool, u64),
    /// The pool does not handle the request.
    Aside,
}

/// The pool of one vendor's library. Fields that each request of the fast path reads are placed together, at the
/// beginning of the pool and of each part.
#[repr(C, align(64))]
pub(crate) struct Pool {
    pub vendor: Vendor,
    pub rules: BlockRules,
    pub quota: Quota,
    pub releaser: Releaser,
}

impl Pool {
    /// Makes a pool. `keeps`: true if the pool may be on; otherwise only the limit holds.
    fn new(vendor: Vendor, settings: &Settings, keeps: bool, watcher: NewWatcher) -> Self {
        fences::prepare();
        let exact = vendor == Vendor::Hip;
        let watcher = if exact || !keeps { None } else { watcher(settings) };
        let is_watched = watcher.is_some();
        let releaser = Releaser::new(vendor, watcher, keeps && settings.pool);
        let rules = BlockRules::new(settings, exact, is_watched, releaser.idle().contexts().see_all());
        releaser.apply_settings(settings);
        Self { vendor, rules, quota: Quota::new(settings), releaser }
    }

    /// Applies new values of these variables.
    pub(crate) fn apply_settings(&self, settings: &Settings) {
        self.releaser.apply_settings(settings);
        self.rules.apply_settings(settings);
        self.quota.apply_settings(settings, &self.context_pools());
    }

    pub(crate) fn context_pools(&self) -> Vec<&'static ContextPool> {
        self.releaser.idle().contexts().all()
    }

    /// Returns the pool of the calling thread's context, as the records know it.
    pub(crate) fn context_pool_of_thread(&self, shim: &'static Shim) -> Option<&'static ContextPool> {
        self.releaser.idle().context_pool_of_thread(shim)
    }

    /// Returns the idle bytes of a device.
    pub(crate) fn idle_on(&self, device: Device) -> u64 {
        self.releaser.idle().on(device)
    }

    /// Adds to the contexts' totals the live bytes that threads have left out of them.
    pub(crate) fn report_all(&self, shim: &'static Shim) {
        self.releaser.idle().caches().report_all(shim);
    }

    /// Takes an idle block for a request, if one fits.
    #[inline]
    pub(crate) fn find(&'static self, shim: &'static Shim, call: &Call, bytes: u64) -> Lookup {
        let Self { rules, quota, releaser, .. } = self;
        if releaser.switch().aside(shim) {
            shim.count(counters::POOL_PASSED, 1);
            return Lookup::Aside;
        }
        let rounded = match releaser.watcher() {
            None => rules.rounded(bytes),
            Some(watcher) => watcher.rounded(bytes),
        };
        let Some(rounded) = rounded else { return Lookup::Aside };
        let idle = releaser.idle();
        let cache = idle.cache();
        let Some(context_pool) = idle.context_pool_here(shim, cache) else { return Lookup::Aside };
        let (mut block, mut reported) = (None, bytes as i64);
        if let Some(mut taken) = cache.enter() {
            if !cache.is_of(context_pool) {
                rebind(shim, &mut taken, Some(context_pool));
            }
            block = rules.class_of(rounded).and_then(|class| taken.pop_for(class));
            if block.is_some() {
                reported = taken.report(bytes as i64, quota.unreported_at_most());
            }
        }
        let block = block.or_else(|| idle.take(rules, context_pool, rounded));
        let Some(block) = block.or_else(|| idle.take_of_ended_threads(shim, rules, context_pool, rounded)) else {
            return Lookup::None(context_pool, rounded);
        };
        hand_out(shim, call, block, context_pool, bytes, reported);
        Lookup::Block(block)
    }

    /// Fills a block that is about to be live again, and has it watched, if the user asked for that.
    #[inline]
    pub(crate) fn fill(&self, block: &'static Block) {
        if self.rules.change_served() {
            self.change_served(block);
        }
    }

    #[cold]
    fn change_served(&self, block: &'static Block) {
        let Some(context_pool) = ContextPool::of(block) else { return };
        if self.rules.zero() {
            let _errno = KeepErrno::new();
            context_pool.fill(block, 0);
            block.unmark(INTACT);
        }
        if let Some(watcher) = self.releaser.watcher() {
            watcher.watch(context_pool, block);
        }
    }

    /// Makes a live block of memory that the driver has just given at `addr`. `generation`: the context pool's
    /// generation when the request began. Returns the start of the program's part.
    pub(crate) fn adopt(
        &self,
        call: &Call,
        (context_pool, generation): (&'static ContextPool, u32),
        addr: u64,
        obtained: Obtained,
        watch: &Watch,
    ) -> u64 {
        let Self { rules, releaser, .. } = self;
        let (blocks, is_spilled) = (releaser.blocks(), obtained.flags & SPILLED != 0);
        let (addr, flags) = match releaser.watcher().filter(|_| !is_spilled) {
            Some(watcher) => watcher.start(addr, obtained.bytes, watch.bytes),
            None => (addr, 0),
        };
        let block = blocks.spare();
        // A spilled block goes back to the driver when it is freed. All blocks of a class have one size.
        let is_of_a_class = |bytes: &u64| !is_spilled && size::rounded(*bytes) == Some(*bytes);
        let class = Some(obtained.bytes).filter(is_of_a_class).and_then(|bytes| rules.class_of(bytes));
        block.begin((addr, obtained.bytes), watch.bytes, class, obtained.flags | flags);
        context_pool.claim(block);
        if !is_spilled {
            context_pool.grew(obtained.bytes);
            if let Some(watcher) = releaser.watcher() {
                watcher.watch(context_pool, block);
            }
        }
        gate::note(|shim| {
            block_records::miss(shim, call, block, context_pool, watch.bytes, watch.stack());
            watch.made(shim, addr);
        });
        block.set(State::Live);
        blocks.insert(addr, block);
        releaser.idle().measure(context_pool);
        // The context ended meanwhile, and the memory with it.
        if context_pool.generation() != generation && block.turn_to(addr, State::Live, State::Gone) {
            blocks.remove(addr);
        }
        addr
    }

    /// Returns the parts that a free uses.
    #[inline(always)]
    fn frees(&self) -> FreeParts<'_> {
        let Self { rules, quota, releaser, .. } = self;
        FreeParts { rules, quota, releaser }
    }

    /// Frees a block. Returns `None` if no block of the pool is at this address. `real` is the real function.
    #[inline]
    pub(crate) fn free(&'static self, call: &Call, addr: u64, real: impl FnOnce(u64) -> Status) -> Option<Status> {
        let free = self.frees();
        match gate::note(|shim| free.begin(shim, addr)) {
            Some(FreeStep::Done) => Some(SUCCESS),
            Some(FreeStep::NotOurs) => None,
            Some(FreeStep::Twice) => Some(real(NOWHERE)),
            Some(FreeStep::Real(block)) => Some(free.give_up(block, real)),
            Some(FreeStep::Wait(block, context_pool)) => Some(free.wait(call, block, context_pool, real)),
            // Recording has ended, so the block goes back to the driver.
            None => Some(free.give_up(free.take_live(addr)?, real)),
        }
    }

    /// Frees in stream order: the driver decides, and the block belongs to the driver from then on.
    pub(crate) fn free_async(&'static self, addr: u64, real: impl FnOnce(u64) -> Status) -> Option<Status> {
        let free = self.frees();
        match free.take_live(addr) {
            Some(block) => {
                gate::note(|shim| stranded::freed(shim, addr, || Some(block.memory())));
                Some(free.give_up(block, real))
            }
            None => self.releaser.blocks().get(addr).filter(|block| block.is(State::Idle)).map(|_| real(NOWHERE)),
        }
    }
}

/// Makes an idle block live. `reported`: live bytes to add to its context's total now.
fn hand_out(
    shim: &'static Shim,
    call: &Call,
    block: &'static Block,
    context_pool: &'static ContextPool,
    bytes: u64,
    reported: i64,
) {
    block.set_asked(bytes);
    if bytes >= SMALLEST && shim.stranded.waiting() {
        stranded::served(shim, call, bytes);
    }
    shim.count(counters::POOL_HITS, 1);
    let stack = shim.site(call.site(), Made::Memory(bytes));
    block_records::listed(shim, block, context_pool, bytes, stack);
    block_records::add_live(shim, context_pool, reported);
    block.set(State::Live);
}
