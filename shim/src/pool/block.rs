//! One block: an allocation of the driver, and its owner.

use super::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use crate::ledger::table::NO_SLOT;

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// None: there is no such block now.
    Gone = 0,
    /// The program.
    Live = 1,
    /// The thread that is freeing it.
    Busy = 2,
    /// The pool.
    Idle = 3,
}

/// Stands for "no size class".
pub(crate) const NO_CLASS: u32 = u32::MAX;

/// The block has to be freed by the real call: the program has shared it, or has asked something that only a block of
/// its own can answer.
pub(crate) const PINNED: u32 = 1;
/// Managed memory in place of device memory.
pub(crate) const MANAGED: u32 = 2;
/// Pinned host memory in place of device memory.
pub(crate) const HOST: u32 = 4;
/// The guard watches the parts of the block outside the program's part, and counts their bytes. The program's part
/// begins [`FRONT`] bytes after the driver's address.
pub(crate) const WATCHED: u32 = 8;
pub(crate) const ZONED: u32 = 16;
pub(crate) const FRONTED: u32 = 32;
/// Bytes in front of the program's part of such a block. This number keeps the driver's alignment.
pub(crate) const FRONT: u64 = 512;
/// The whole block held the guard's byte when it was last read, shortly before it became idle. So its zones need no
/// fill.
pub(crate) const INTACT: u32 = 64;
/// The block is not device memory, so the pool does not keep it.
pub(crate) const SPILLED: u32 = MANAGED | HOST;

/// One allocation of the driver.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// The start of the program's part. It is the start of the block, unless the guard has a zone in front.
    addr: AtomicU64,
    /// Bytes that the driver gave.
    bytes: AtomicU64,
    /// Bytes of the program's last request. May be 0 while the block is idle.
    asked: AtomicU64,
    /// The size class under which threads keep the block, as returned by [`super::size::class_of`]. [`NO_CLASS`]:
    /// threads do not keep blocks of this size.
    class: AtomicU32,
    /// The slot of its record in the ledger. The slot stays with the block.
    slot: AtomicU32,
    flags: AtomicU32,
    state: AtomicU32,
    pub(super) context_pool: AtomicPtr<()>,
    /// The time since which the block is idle, ns, and its position in the order of idle blocks.
    idle_ns: AtomicU64,
    turn: AtomicU64,
}

/// Methods that read and write fields.
macro_rules! fields {
    ($($read:ident, $write:ident: $of:ty;)*) => {$(
        #[inline(always)]
        pub(crate) fn $read(&self) -> $of {
            self.$read.load(Relaxed)
        }

        #[inline(always)]
        pub(super) fn $write(&self, value: $of) {
            self.$read.store(value, Relaxed);
        }
    )*};
}

impl Block {
    fields! {
        addr, set_addr: u64;
        bytes, set_bytes: u64;
        asked, set_asked: u64;
        slot, set_slot: u32;
        idle_ns, set_idle_ns: u64;
        turn, set_turn: u64;
    }

    /// Returns its size class. Threads keep blocks of this size.
    #[inline(always)]
    pub(super) fn class(&self) -> usize {
        self.class.load(Relaxed) as usize
    }

    /// Makes this the block of a new allocation.
    pub(crate) fn begin(&self, (addr, bytes): (u64, u64), asked: u64, class: Option<usize>, flags: u32) {
        self.set_addr(addr);
        self.set_bytes(bytes);
        self.set_asked(asked);
        self.class.store(class.map_or(NO_CLASS, |class| class as u32), Relaxed);
        self.flags.store(flags, Relaxed);
    }

    /// Returns the bytes of the program's request, which are 0 from now on.
    pub(super) fn take_asked(&self) -> u64 {
        self.asked.swap(0, Relaxed)
    }

    /// Returns the slot of its record, which it no longer has.
    pub(super) fn take_slot(&self) -> u32 {
        self.slot.swap(NO_SLOT, Relaxed)
    }

    #[inline]
    pub(crate) fn is(&self, state: State) -> bool {
        self.state.load(Acquire) == state as u32
    }

    /// Sets the state. Only the block's owner may call this.
    #[inline]
    pub(crate) fn set(&self, state: State) {
        self.state.store(state as u32, Release);
    }

    /// Changes the state from `from` to `to` if the block is at this address and in state `from`.
    #[inline]
    pub(crate) fn turn_to(&self, addr: u64, from: State, to: State) -> bool {
        if self.state.compare_exchange(from as u32, to as u32, AcqRel, Acquire).is_err() {
            return false;
        }
        if self.addr.load(Relaxed) == addr {
            return true;
        }
        // The block was given up meanwhile and now stands for another allocation.
        self.state.store(from as u32, Release);
        false
    }

    /// As [`Block::turn_to`] from live to idle, at half the cost. If two threads free a block at once, either thread
    /// may set the last state, and still only one of them takes the block. So this is for the program's frees alone,
    /// since a correct program does not free a block twice.
    #[inline(always)]
    pub(crate) fn turn_idle(&self, addr: u64) -> bool {
        if !self.is(State::Live) || self.addr.load(Relaxed) != addr {
            return false;
        }
        let before = self.state.swap(State::Idle as u32, AcqRel);
        let taken = before == State::Live as u32 && self.addr.load(Relaxed) == addr;
        if !taken {
            self.state.store(before, Release);
        }
        taken
    }

    /// Requires that the block is freed by the real call.
    pub(super) fn pin(&self) {
        self.mark(PINNED);
    }

    /// Sets these flags.
    pub(crate) fn mark(&self, flags: u32) {
        self.flags.fetch_or(flags, Release);
    }

    /// Clears these flags. Returns the flags before.
    pub(crate) fn unmark(&self, flags: u32) -> u32 {
        self.flags.fetch_and(!flags, AcqRel)
    }

    /// Returns true if it has no flags.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.flags.load(Relaxed) == 0
    }

    /// Returns true if the guard watches it. Comes after the fills of its zones.
    pub(crate) fn is_watched(&self) -> bool {
        self.flags.load(Acquire) & WATCHED != 0
    }

    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags.load(Relaxed) & flags != 0
    }

    /// Returns the bytes of the program's request, and the slot of the block's record.
    pub(super) fn memory(&self) -> (u64, u32) {
        (self.asked(), self.slot())
    }

    /// Returns the driver's address.
    pub(crate) fn base(&self) -> u64 {
        self.driver_address(self.addr())
    }

    /// Returns the driver's address if the program's part begins at `addr`.
    pub(crate) fn driver_address(&self, addr: u64) -> u64 {
        if self.has(FRONTED) { addr - FRONT } else { addr }
    }
}
