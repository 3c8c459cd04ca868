//! The shim's state of the calling thread, in one place, so that a hook looks it up once.
//!
//! It lies in the shim's own memory, from the thread's first recorded call on. It stays while the program's destructors
//! run at the end of the thread. Another thread gets it once the kernel says that its thread has ended. A thread for
//! which there is no memory records nothing.

use super::clock::Recent;
use super::errno::KeepErrno;
use super::regs::Regs;
use super::thread_end::{Life, Lifetime};
use super::tls::thread_pointer;
use gpumem_wire::layout::ContextRef;
use once_cell::race::OnceBox;
use std::alloc::{Layout, alloc};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// The state of a thread. Fields that most calls touch come first, in one cache line.
#[repr(C, align(64))]
pub struct Local {
    /// True while this thread is recording: calls that it makes meanwhile are not recorded.
    pub busy: Cell<bool>,
    /// True if it has launched kernels and not waited since: see [`crate::stranded`].
    pub launched: Cell<bool>,
    shard: Cell<u32>,
    tid: Cell<u32>,
    /// The generation of contexts in which this thread's context was found to be the only one and has not been changed
    /// since; 0: not known.
    pub only_context: Cell<u32>,
    /// Number of records that this thread made.
    pub records: Cell<u64>,
    /// As `only_context`, set once an allocation of a runtime reached that context's pool.
    pub runtime_context: Cell<u32>,
    /// Idle blocks in this thread's cache.
    pub cache: Slot,
    /// Its last reading of the clock.
    pub recent: Recent,
    /// This thread's serial numbers: the next one, and how many are left.
    serials: Cell<(u64, u64)>,
    /// The context of its last record.
    pub context: Cell<LastContext>,
    /// The runtime call that this thread is in, whose call site is the useful one.
    pub caller: Cell<Option<Regs>>,
    /// The part of [`super::device_calls`] that is its own.
    pub device_calls: Cell<u64>,
    /// True while it asks for memory that it can do without: [`super::heap::softly`].
    pub soft: Cell<bool>,
    /// Labels for its allocations.
    pub tags: Tags,
    /// State of its stack walks ([`crate::stacks`]). The next thread with this memory inherits it.
    pub walks: Slot,
}

/// A place for a reference that only the owning room sets and takes.
pub struct Slot(Cell<*const c_void>);

// SAFETY: a thread reaches its own slots only, through `local`. The constant that stands for no
// slot (`Tags::innermost`) is shared, but never set.
unsafe impl Sync for Slot {}

impl Slot {
    const fn empty() -> Self {
        Self(Cell::new(std::ptr::null()))
    }

    /// Returns its reference.
    ///
    /// # Safety
    /// `T` is the type of all that is ever put in.
    #[inline(always)]
    pub unsafe fn get<T>(&self) -> Option<&'static T> {
        // SAFETY: `set` takes references that live for ever, and null stands for none. Our caller
        // vouches that `T` is the type that was put in.
        unsafe { self.0.get().cast::<T>().as_ref() }
    }

    #[inline]
    pub fn set<T>(&self, to: Option<&'static T>) {
        self.0.set(to.map_or(std::ptr::null(), std::ptr::from_ref).cast());
    }
}

/// A context that was looked up, and when that result expires.
#[derive(Clone, Copy)]
pub struct LastContext {
    pub vendor: u8,
    pub handle: u64,
    pub generation: u32,
    pub context: ContextRef,
}

/// Maximum depth of nested tags; deeper ones are counted and ignored.
const DEPTH: usize = 64;

impl Local {
    const fn new() -> Self {
        Local {
            busy: Cell::new(false),
            launched: Cell::new(false),
            shard: Cell::new(0),
            tid: Cell::new(0),
            only_context: Cell::new(0),
            records: Cell::new(0),
            runtime_context: Cell::new(0),
            cache: Slot::empty(),
            recent: Recent::never(),
            serials: Cell::new((0, 0)),
            context: Cell::new(LastContext { vendor: 0, handle: 0, generation: 0, context: 0 }),
            caller: Cell::new(None),
            device_calls: Cell::new(0),
            soft: Cell::new(false),
            tags: Tags { depth: Cell::new(0), tags: [const { Slot::empty() }; DEPTH] },
            walks: Slot::empty(),
        }
    }

    /// Creates a state for one question of a thread for which there is no memory. It counts as recording, so that
    /// nothing is recorded.
    fn for_now() -> Self {
        let local = Self::new();
        local.busy.set(true);
        local.shard.set(OWN as u32 + 1);
        local.tid.set(os_id() as u32);
        local
    }
}

thread_pointer!("gpumem_local", Local);

/// Runs `f` with the calling thread's state.
#[inline(always)]
pub(crate) fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    // SAFETY: `f` gets the reference for its own call only: its lifetime is that of the argument.
    match unsafe { here() } {
        Some(local) => f(local),
        None => without(f),
    }
}

#[cold]
#[inline(never)]
fn without<R>(f: impl FnOnce(&Local) -> R) -> R {
    f(&Local::for_now())
}

/// Runs `f` with the calling thread's state if it has one; takes no memory for it.
#[inline(always)]
pub(crate) fn if_known<R>(f: impl FnOnce(&Local) -> R) -> Option<R> {
    // SAFETY: the pointer leads to the state that `first` has found for this thread, which is there until the thread is
    // gone. `f` gets the reference for its own call only.
    unsafe { known().as_ref() }.map(f)
}

/// As [`local`], for callers that are inlined whole. `None`: there is no memory.
///
/// # Safety
/// The reference is not kept beyond the call that the thread is in, nor given to another thread.
#[inline(always)]
pub(crate) unsafe fn here<'a>() -> Option<&'a Local> {
    // SAFETY: the pointer leads to the state that `first` has found for this thread, which is there until the thread is
    // gone. Our caller keeps the reference no longer than that.
    match unsafe { known().as_ref() } {
        None => first(),
        local => local,
    }
}

#[cold]
#[inline(never)]
fn first<'a>() -> Option<&'a Local> {
    let _errno = KeepErrno::new();
    let block = Block::take()?;
    // A signal handler may have been faster; its state is then lost.
    know(&block.local);
    Some(&block.local)
}

/// The state of a thread, and a mutex that tells if the thread still lives. Blocks are never freed.
#[repr(C)]
struct Block {
    local: Local,
    life: Life,
    next: AtomicPtr<Block>,
}

#[cfg(test)]
thread_local! {
    /// Makes this thread find no memory.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// All blocks, the newest first.
static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(null_mut());
/// The block from which the next thread begins to look for a free one.
static NEXT: AtomicPtr<Block> = AtomicPtr::new(null_mut());

impl Block {
    /// Returns a block for the calling thread: one whose thread has ended, or a new one.
    fn take() -> Option<&'static Self> {
        /// Number of blocks that a thread examines, so that making many threads does not take quadratic time.
        const LOOKS: usize = 64;
        #[cfg(test)]
        if REFUSED.get() {
            return None;
        }
        // SAFETY: both are null or lead to a block that `make` has published, and blocks are never freed.
        let block_at = |at: &AtomicPtr<Self>| unsafe { at.load(Acquire).as_ref::<'static>() };
        let begin = block_at(&NEXT).or_else(|| block_at(&BLOCKS));
        let (mut at, mut looks) = (begin, 0);
        while let Some(block) = at {
            at = block_at(&block.next).or_else(|| block_at(&BLOCKS));
            if let Some(held) = block.life.hold() {
                held.for_life();
                NEXT.store(at.map_or(null_mut(), |next| from_ref(next).cast_mut()), Release);
                let walks = block.local.walks.0.get();
                // SAFETY: this thread holds the block's life, so its last thread has ended and no other one has it.
                unsafe { (&raw const block.local).cast_mut().write(Local::new()) };
                block.local.walks.0.set(walks);
                return Some(block);
            }
            looks += 1;
            if looks == LOOKS || at.map(from_ref) == begin.map(from_ref) {
                break;
            }
        }
        NEXT.store(at.map_or(null_mut(), |next| from_ref(next).cast_mut()), Release);
        Self::make()
    }

    fn make() -> Option<&'static Self> {
        // SAFETY: the layout is not empty. What is made there is not moved, and no other thread knows it before it is
        // published.
        let block = unsafe {
            let block = alloc(Layout::new::<Self>()).cast::<Self>();
            if block.is_null() {
                return None;
            }
            (&raw mut (*block).local).write(Local::new());
            (&raw mut (*block).next).write(AtomicPtr::new(null_mut()));
            Life::make_at(&raw mut (*block).life);
            &*block
        };
        block.life.hold().expect("it is new").for_life();
        let mut newest = BLOCKS.load(Acquire);
        loop {
            block.next.store(newest, Relaxed);
            match BLOCKS.compare_exchange_weak(newest, from_ref(block).cast_mut(), AcqRel, Acquire) {
                Ok(_) => return Some(block),
                Err(now) => newest = now,
            }
        }
    }
}

/// Returns the kernel's number of this thread, asked for once. The first call also passes it to `new`.
#[inline]
pub(crate) fn tid(new: impl FnOnce(u32)) -> u32 {
    match local(|local| local.tid.get()) {
        0 => first_tid(new),
        known => known,
    }
}

/// Asks the kernel for this thread's number. (The C library has a function for it only since 2.30.)
pub(crate) fn os_id() -> libc::pid_t {
    // SAFETY: gettid takes no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// True if the kernel still has this thread of this process.
pub(crate) fn is_known(tid: u32) -> bool {
    // SAFETY: tgkill takes numbers, and signal 0 is sent to no thread.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) == 0 }
}

#[cold]
fn first_tid(new: impl FnOnce(u32)) -> u32 {
    let tid = os_id() as u32;
    local(|local| local.tid.set(tid));
    new(tid);
    tid
}

/// Forgets this thread's number and its process's values for it: after a fork both differ.
pub(crate) fn forget() {
    if_known(|local| {
        local.tid.set(0);
        local.cache.set::<c_void>(None);
    });
}

/// Notes that this thread's current context may change.
#[inline]
pub(crate) fn context_changes() {
    if_known(|local| local.only_context.set(0));
}

/// For callers that ask several things of a thread: the state is looked up once.
impl Local {
    /// Returns this thread's next serial number; `more` takes a given number of them and returns the first.
    #[inline(always)]
    pub fn serial(&self, more: impl FnOnce(u64) -> u64) -> u64 {
        /// Numbers taken at a time.
        const AT_ONCE: u64 = 256;
        let (next, left) = match self.serials.get() {
            (_, 0) => (more(AT_ONCE), AT_ONCE),
            known => known,
        };
        self.serials.set((next + 1, left - 1));
        next
    }

    /// Makes the thread take new serial numbers for its next records.
    pub fn ends_serials(&self) {
        self.serials.set((0, 0));
    }

    /// True if the thread has its numbers and is not recording now.
    #[inline(always)]
    pub fn is_known(&self) -> bool {
        self.tid.get() != 0 && self.shard.get() != 0 && !self.busy.get()
    }

    /// As [`shard`].
    #[inline(always)]
    pub fn shard(&self) -> usize {
        match self.shard.get() {
            0 => first_shard(),
            known => known as usize,
        }
    }

    /// As [`tid`], for a known thread.
    #[inline(always)]
    pub fn known_tid(&self) -> u32 {
        self.tid.get()
    }

    /// As [`shard`], for a known thread.
    #[inline(always)]
    pub fn known_shard(&self) -> usize {
        self.shard.get() as usize
    }

    /// True if a tag is in force, or was hidden.
    #[inline(always)]
    pub fn has_tag(&self) -> bool {
        self.tags.depth.get() != 0
    }

    /// Counts another record.
    #[inline(always)]
    pub fn recorded(&self) {
        self.records.set(self.records.get().wrapping_add(1));
    }
}

/// Returns a small number that spreads threads over shards.
#[inline]
pub(crate) fn shard() -> usize {
    local(Local::shard)
}

/// Makes this thread, which is ours, share its shard with our other threads, because threads' own shards are for the
/// program.
pub(crate) fn share_counts() {
    const OURS: u32 = u32::MAX;
    local(|local| local.shard.set(OURS));
}

/// Shards up to this number, from 1, each belong to one thread at a time. Threads may share the ones above.
pub(crate) const OWN: usize = 64;

#[cold]
#[inline(never)]
fn first_shard() -> usize {
    const SHARED: u32 = 1 << 20;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let shared = || OWN + 1 + (NEXT.fetch_add(1, Relaxed) % SHARED) as usize;
    let shard = own_shard().unwrap_or_else(shared);
    local(|local| local.shard.set(shard as u32));
    shard
}

/// Returns the first number that no living thread has. A process that keeps making threads has few at a time.
fn own_shard() -> Option<usize> {
    static LIVES: [OnceBox<Lifetime>; OWN] = [const { OnceBox::new() }; OWN];
    LIVES.iter().enumerate().find_map(|(index, life)| {
        life.get_or_init(Box::default).hold()?.for_life();
        Some(index + 1)
    })
}

/// Labels set by the program, innermost last.
pub struct Tags {
    depth: Cell<u32>,
    tags: [Slot; DEPTH],
}

impl Tags {
    /// Returns the innermost label: empty if there is none, or if it hides the outer ones.
    #[inline]
    pub fn innermost(&self) -> &Slot {
        static NONE: Slot = Slot::empty();
        match self.depth.get() as usize {
            0 => &NONE,
            depth => &self.tags[depth.min(DEPTH) - 1],
        }
    }

    /// Makes room for another label and returns it. `None`: the label is only counted, and the deepest one with room
    /// stays in force.
    pub fn push(&self) -> Option<&Slot> {
        let depth = self.depth.get();
        self.depth.set(depth.saturating_add(1));
        self.tags.get(depth as usize)
    }

    /// Ends the innermost label. Extra calls do nothing.
    pub fn pop(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }
}

/// Returns the calling thread's name, as the kernel has it.
pub(crate) fn name() -> Vec<u8> {
    let mut name = [0_u8; 17];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, the last of them NUL, and `name` has 17.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    std::ffi::CStr::from_bytes_until_nul(&name).map_or(Vec::new(), |name| name.to_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The thread counts as recording, so it records nothing; and it shares its numbers with others.
    #[test]
    fn a_thread_without_memory_records_nothing() {
        let thread = std::thread::spawn(|| {
            let is_busy = || local(|local| (local.busy.replace(true), local.is_known()));
            REFUSED.set(true);
            let without = (is_busy(), is_busy(), shard() > OWN, tid(|_| panic!("listed")));
            assert_eq!(without, ((true, false), (true, false), true, os_id() as u32));
            assert_eq!(if_known(|_| ()), None);
            REFUSED.set(false);
            assert_eq!((is_busy(), is_busy()), ((false, false), (true, false)));
        });
        thread.join().expect("no panic");
    }

    /// Memory of ended threads serves new ones, without the old contents.
    #[test]
    fn memory_of_ended_threads_is_used_again() {
        let blocks = || {
            let mut at = BLOCKS.load(Acquire);
            // SAFETY: null ends the list, all else are blocks, which are never freed.
            std::iter::from_fn(|| unsafe { at.as_ref() }.inspect(|block| at = block.next.load(Acquire))).count()
        };
        for _ in 0..200 {
            let all_are_there = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                let thread = || {
                    assert!(local(|local| local.records.replace(7) == 0 && !local.busy.replace(true)));
                    all_are_there.wait();
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(thread)).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
        }
        assert!((8..100).contains(&blocks()), "{} blocks for eight threads at a time", blocks());
    }

    /// However many threads there were, the living ones have distinct numbers of their own.
    #[test]
    fn numbers_of_ended_threads_are_used_again() {
        for _ in 0..100 {
            let all_are_there = std::sync::Barrier::new(OWN / 4);
            let numbers: BTreeSet<usize> = std::thread::scope(|scope| {
                let number = || {
                    let number = shard();
                    all_are_there.wait();
                    number
                };
                let threads: Vec<_> = (0..OWN / 4).map(|_| scope.spawn(number)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(numbers.len(), OWN / 4);
            assert!(numbers.iter().all(|&number| (1..=OWN).contains(&number)), "{numbers:?}");
        }
    }
}
