//! A request for memory: a block that is idle, or a new one.

use super::back::Most;
use super::block::{Block, NO_CLASS, SPILLED, State};
use super::ladder::Given;
use super::owner::Owner;
use super::records;
use super::{Pool, UNTOLD, give, size};
use crate::call::Call;
use crate::process::clock;
use crate::shim::Shim;
use crate::stranded::{SMALLEST, Verdict, Watch};
use gpumem_abi::types::{DevicePtr, OUT_OF_MEMORY as NO_MEMORY, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::settings::{Fill, OomFallback};
use std::sync::atomic::Ordering::*;

/// Idle blocks that make way for one new block at most.
const MOST_IN_THE_WAY: usize = 64;

/// How a request went so far.
enum Found {
    Block(&'static Block),
    /// There is none that fits.
    None(&'static Owner, u64),
    /// The pool has nothing to do with it.
    Aside,
}

impl Pool {
    /// Serves a request, by `real` if it has to. `None` if the pool has nothing to do with it.
    ///
    /// # Safety
    /// `out` is the program's out-parameter, `real` the real function.
    #[inline]
    pub unsafe fn alloc(
        &'static self,
        call: &Call,
        real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
        out: *mut DevicePtr,
        bytes: usize,
    ) -> Option<Status> {
        if out.is_null() || bytes == 0 {
            return None;
        }
        match call.note(|shim| self.find(shim, call, bytes as u64))? {
            Found::Block(block) => {
                if self.fill != Fill::None {
                    self.filled(block);
                }
                // SAFETY: the program's out-parameter, which is not NULL.
                unsafe { out.write(block.addr.load(Relaxed)) };
                Some(SUCCESS)
            }
            // SAFETY: the caller's promise.
            Found::None(owner, rounded) => Some(unsafe { self.grow(call, owner, real, out, bytes as u64, rounded) }),
            Found::Aside => None,
        }
    }

    #[inline]
    fn find(&'static self, shim: &'static Shim, call: &Call, bytes: u64) -> Found {
        if self.aside(shim) {
            shim.count(counters::POOL_PASSED, 1);
            return Found::Aside;
        }
        let rounded = if self.exact { Some(bytes) } else { size::rounded(bytes) };
        let Some(rounded) = rounded else { return Found::Aside };
        let cache = self.cache();
        let Some(owner) = self.owner_here(shim, cache) else { return Found::Aside };
        let (mut block, mut told) = (None, bytes as i64);
        if let Some(mut taken) = cache.enter() {
            if !std::ptr::eq(taken.owner(), owner) {
                self.rebind(shim, &mut taken, owner);
            }
            block = self.class_of(rounded).and_then(|class| taken.pop_for(class));
            if block.is_some() {
                told = taken.tell(bytes as i64, self.untold_at_most());
            }
        }
        let block = match block.or_else(|| self.take_central(owner, rounded)) {
            Some(block) => block,
            None => return Found::None(owner, rounded),
        };
        self.handed_out(shim, call, block, owner, bytes, told);
        Found::Block(block)
    }

    /// An idle block is the program's. `told`: live bytes that its context is to be told of now.
    pub(super) fn handed_out(
        &'static self,
        shim: &'static Shim,
        call: &Call,
        block: &'static Block,
        owner: &'static Owner,
        bytes: u64,
        told: i64,
    ) {
        block.asked.store(bytes, Relaxed);
        if bytes >= SMALLEST && shim.stranded.waiting() {
            shim.stranded_served(call, bytes);
        }
        records::hit(shim, call, block, owner, bytes, told);
        block.set(State::Live);
    }

    /// The class of blocks that threads keep.
    #[inline]
    pub(super) fn class_of(&self, rounded: u64) -> Option<usize> {
        if self.exact { None } else { size::class_of(rounded) }
    }

    fn slack(&self, rounded: u64) -> u64 {
        if self.exact { 0 } else { size::slack(rounded) }
    }

    fn take_central(&self, owner: &'static Owner, rounded: u64) -> Option<&'static Block> {
        if owner.idle() == 0 {
            return None;
        }
        let take = || owner.take(rounded, self.slack(rounded));
        if !self.deferred || !owner.has_pending() {
            return take();
        }
        take().or_else(|| {
            owner.reap(clock::now_ns());
            take()
        })
    }

    /// Live bytes that a thread may keep from its context: none where they are counted against a limit.
    #[inline]
    pub(super) fn untold_at_most(&self) -> i64 {
        if self.limit.load(Relaxed) == 0 { UNTOLD } else { 0 }
    }

    /// Binds a thread's cache to another context; what it had goes to all.
    #[cold]
    pub(super) fn rebind(&self, shim: &'static Shim, taken: &mut super::thread::Taken<'_>, owner: *const Owner) {
        let before = taken.owner();
        let untold = taken.untold();
        let now = clock::now_ns();
        let blocks = taken.rebind(owner);
        // SAFETY: owners are never freed.
        if let Some(before) = unsafe { before.cast::<Owner>().as_ref() } {
            let before: &'static Owner = before;
            records::add_live(shim, before, untold);
            if !before.gone.load(Relaxed) {
                blocks.into_iter().for_each(|block| before.keep(block, now));
            }
        }
    }

    /// Takes a thread's cache empty, for all to have; whether that could be done.
    pub(super) fn empty(&self, shim: &'static Shim, cache: &super::ThreadCache) -> bool {
        let Some(mut taken) = cache.take() else { return false };
        let owner = taken.owner();
        self.rebind(shim, &mut taken, owner);
        true
    }

    /// A request that no idle block fits: one more block.
    ///
    /// # Safety
    /// As for [`Pool::alloc`].
    #[cold]
    unsafe fn grow(
        &'static self,
        call: &Call,
        owner: &'static Owner,
        real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
        out: *mut DevicePtr,
        bytes: u64,
        rounded: u64,
    ) -> Status {
        let life = owner.life();
        // What a thread kept that has ended meanwhile.
        if self.collect_ended()
            && let Some(block) = self.take_central(owner, rounded)
        {
            call.note(|shim| self.handed_out(shim, call, block, owner, bytes, bytes as i64));
            // SAFETY: the program's out-parameter, which is not NULL.
            unsafe { out.write(block.addr.load(Relaxed)) };
            return SUCCESS;
        }
        // Idle blocks of other sizes make way.
        let in_the_way = owner.in_the_way(rounded);
        if in_the_way > 0 {
            self.make_way(owner, Most::AtLeast(in_the_way, MOST_IN_THE_WAY));
        }
        let watch = Watch::new(call, bytes, Some(owner.record()));
        // SAFETY: the real function, with the program's out-parameter: what it leaves there is native's.
        let mut ask = |bytes: u64| unsafe { real(out, bytes as usize) };
        let got = match watch.verdict {
            Verdict::Refuse => return NO_MEMORY,
            Verdict::Spill => self.spill(call, owner, bytes, OomFallback::Managed),
            Verdict::Nothing if self.managed && watch.is_pool_growth(call) => {
                self.spill(call, owner, bytes, OomFallback::Managed)
            }
            Verdict::Nothing => Err(NO_MEMORY),
        };
        let mut room = None;
        match got.or_else(|_| self.climb(call, owner, rounded, bytes, &mut ask, &mut room)) {
            Ok(given) => {
                // SAFETY: the program's out-parameter, which is not NULL.
                let addr = unsafe { given.addr.inspect(|&addr| out.write(addr)).unwrap_or_else(|| out.read()) };
                self.adopt(call, (owner, life), addr, given, &watch);
                SUCCESS
            }
            Err(status) => {
                watch.answered(call, status, 0);
                call.note(|shim| shim.allocation_failed(call, AllocKind::Device, bytes, status));
                status
            }
        }
    }

    /// Takes up a block that the driver has just given at `addr`, as the program's, for what the owner was then.
    fn adopt(&'static self, call: &Call, (owner, life): (&'static Owner, u32), addr: u64, given: Given, watch: &Watch) {
        let block = self.spare();
        block.addr.store(addr, Relaxed);
        block.bytes.store(given.bytes, Relaxed);
        // One that was spilled goes back to the driver; a class has blocks of one size.
        let is_of_a_class = |bytes: &u64| given.flags & SPILLED == 0 && size::rounded(*bytes) == Some(*bytes);
        let class = Some(given.bytes).filter(is_of_a_class).and_then(|bytes| self.class_of(bytes));
        block.class.store(class.map_or(NO_CLASS, |class| class as u32), Relaxed);
        block.asked.store(watch.bytes, Relaxed);
        block.flags.store(given.flags, Relaxed);
        block.set_owner(owner);
        if given.flags & SPILLED == 0 {
            owner.grew(given.bytes);
        }
        call.note(|shim| {
            records::miss(shim, call, block, owner, watch.bytes, watch.stack());
            watch.made(shim, addr);
        });
        block.set(State::Live);
        self.map.insert(addr, block);
        // Its context ended meanwhile, and the memory with it.
        if owner.life() != life && block.turn_to(addr, State::Live, State::Gone) {
            self.map.remove(addr);
        }
    }

    /// Fills a block that is about to be the program's, if that was asked for.
    #[cold]
    fn filled(&self, block: &'static Block) {
        if let (Fill::Zero, Some(owner)) = (self.fill, block.owner()) {
            give::fill(owner, block, 0);
        }
    }
}
