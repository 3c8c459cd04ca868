//! What the shim knows of the calling thread: one `const` thread-local without a destructor, so that
//! a hook looks for it once and thread-local destructors of the program may still call in.

use crate::call::Call;
use crate::pool::thread::ThreadCache;
use crate::registry::reported::Tag;
use crate::stacks;
use gpumem_wire::layout::ContextRef;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The state of a thread. What most calls touch comes first, in one line of the processor's caches.
#[repr(C, align(64))]
pub struct Local {
    /// This thread keeps books: calls that it makes meanwhile are not recorded.
    pub busy: Cell<bool>,
    /// It has launched kernels and not waited since: see [`crate::stranded`].
    pub launched: Cell<bool>,
    shard: Cell<u32>,
    tid: Cell<u32>,
    /// The generation of contexts in which this thread's context was found to be the only one there is, and
    /// has not been changed since; 0: not known.
    pub only_context: Cell<u32>,
    /// Records that this thread made.
    pub records: Cell<u64>,
    /// As `only_context`, once an allocation of a runtime's came to that context's pool.
    pub runtime_context: Cell<u32>,
    /// Idle blocks that this thread keeps.
    pub cache: Cell<Option<&'static ThreadCache>>,
    /// Serial numbers that are this thread's: the next one, and how many are left.
    serials: Cell<(u64, u64)>,
    /// The context of its last record.
    pub context: Cell<LastContext>,
    /// The call of a runtime's function that this thread is in: its site is the one worth keeping.
    pub anchor: Cell<Option<Call>>,
    tags: Tags,
    /// Its last walk of the stack.
    pub walks: stacks::Thread,
}

/// A context that was looked up, and when it stops being true.
#[derive(Clone, Copy)]
pub struct LastContext {
    pub vendor: u8,
    pub handle: u64,
    pub generation: u32,
    pub context: ContextRef,
}

/// Tags nest this deep; deeper ones are counted and ignored.
const DEPTH: usize = 64;

struct Tags {
    depth: Cell<u32>,
    tags: [Cell<Option<&'static Tag>>; DEPTH],
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            busy: Cell::new(false),
            launched: Cell::new(false),
            shard: Cell::new(0),
            tid: Cell::new(0),
            only_context: Cell::new(0),
            records: Cell::new(0),
            runtime_context: Cell::new(0),
            cache: Cell::new(None),
            serials: Cell::new((0, 0)),
            context: Cell::new(LastContext { vendor: 0, handle: 0, generation: 0, context: 0 }),
            anchor: Cell::new(None),
            tags: Tags { depth: Cell::new(0), tags: [const { Cell::new(None) }; DEPTH] },
            walks: stacks::Thread::new(),
        }
    };
}

/// Where a thread's state is, in storage that every thread has from its start: one load, where asking the
/// loader takes dozens of instructions each time (a hook asks some twenty times). A preloaded library always
/// has room there, one that is opened later nearly always (glibc keeps some for it); `-Z tls-model`, which
/// would say the same of all of [`LOCAL`], is not stable.
#[cfg(target_arch = "x86_64")]
mod place {
    use super::{LOCAL, Local};
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.gpumem_local, \"awT\", @nobits",
        ".globl gpumem_local",
        ".hidden gpumem_local",
        ".type gpumem_local, @tls_object",
        ".size gpumem_local, 8",
        ".p2align 3",
        "gpumem_local:",
        ".zero 8",
        ".popsection",
    );

    /// The state of the calling thread, for as long as it lives.
    #[inline(always)]
    pub fn get() -> *const Local {
        let known: *const Local;
        // SAFETY: reads eight bytes of this thread's static storage, which is laid out above.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + gpumem_local@GOTTPOFF]",
                "mov {at}, qword ptr fs:[{at}]",
                at = out(reg) known,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        if known.is_null() { first() } else { known }
    }

    #[cold]
    #[inline(never)]
    fn first() -> *const Local {
        let local = LOCAL.with(std::ptr::from_ref);
        // SAFETY: writes the eight bytes that `get` reads.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + gpumem_local@GOTTPOFF]",
                "mov qword ptr fs:[{at}], {local}",
                at = out(reg) _,
                local = in(reg) local,
                options(nostack, preserves_flags)
            );
        }
        local
    }
}

/// Runs `f` with the state of the calling thread.
#[inline(always)]
pub fn local<R>(f: impl FnOnce(&Local) -> R) -> R {
    // SAFETY: the reference ends with `f`.
    f(unsafe { state() })
}

/// As [`local`], for what is inlined whole, which a closure is not.
///
/// # Safety
/// The reference is not kept beyond the call that the thread is in, nor given to another thread.
#[inline(always)]
pub unsafe fn state<'a>() -> &'a Local {
    #[cfg(target_arch = "x86_64")]
    let state = place::get();
    #[cfg(not(target_arch = "x86_64"))]
    let state = LOCAL.with(std::ptr::from_ref);
    // SAFETY: `LOCAL` has no destructor: it is there until its thread is gone.
    unsafe { &*state }
}

/// The thread's number as the kernel has it, asked for once. The first call also tells `new`.
#[inline]
pub fn tid(new: impl FnOnce(u32)) -> u32 {
    match local(|local| local.tid.get()) {
        0 => first_tid(new),
        known => known,
    }
}

/// The thread's number with the kernel. (The C library has a function for it since 2.30 alone.)
pub fn os_id() -> libc::pid_t {
    // SAFETY: a plain query.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// Whether the kernel has a thread of this process still.
pub fn is_known(tid: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) == 0 }
}

#[cold]
fn first_tid(new: impl FnOnce(u32)) -> u32 {
    let tid = os_id() as u32;
    local(|local| local.tid.set(tid));
    new(tid);
    tid
}

/// Forgets this thread's number, and what its process had for it: after a fork both are others.
pub fn forget() {
    local(|local| {
        local.tid.set(0);
        local.cache.set(None);
    });
}

/// This thread's current context may be another from now on.
#[inline]
pub fn context_changes() {
    local(|local| local.only_context.set(0));
}

/// For what asks several things of a thread: it is looked for once.
impl Local {
    /// The next of the serial numbers that are this thread's; `more` gives so many, from the first on.
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

    /// Whether the thread has its numbers, and keeps no books now.
    #[inline(always)]
    pub fn is_known(&self) -> bool {
        self.tid.get() != 0 && self.shard.get() != 0 && !self.busy.get()
    }

    /// As [`tid`], of a thread that is known.
    #[inline(always)]
    pub fn known_tid(&self) -> u32 {
        self.tid.get()
    }

    /// As [`shard`], of a thread that is known.
    #[inline(always)]
    pub fn known_shard(&self) -> usize {
        self.shard.get() as usize
    }

    /// Whether a tag is in force, or was hidden.
    #[inline(always)]
    pub fn has_tag(&self) -> bool {
        self.tags.depth.get() != 0
    }

    /// Another record was made.
    #[inline(always)]
    pub fn recorded(&self) {
        self.records.set(self.records.get().wrapping_add(1));
    }
}

/// A small number to spread threads over shards.
#[inline]
pub fn shard() -> usize {
    match local(|local| local.shard.get()) {
        0 => first_shard(),
        known => known as usize,
    }
}

/// Has this thread, which is one of ours, share its shard with others of ours: those of its own are the program's.
pub fn share_counts() {
    const OURS: u32 = u32::MAX;
    local(|local| local.shard.set(OURS));
}

#[cold]
fn first_shard() -> usize {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let shard = NEXT.fetch_add(1, Relaxed).max(1);
    local(|local| local.shard.set(shard));
    shard as usize
}

/// The innermost tag that is in force, if any.
#[inline]
pub fn tag() -> Option<&'static Tag> {
    local(|local| match local.tags.depth.get() as usize {
        0 => None,
        depth => local.tags.tags[depth.min(DEPTH) - 1].get(),
    })
}

/// Puts a tag in force; `None` hides the outer ones.
pub fn push_tag(tag: Option<&'static Tag>) {
    local(|local| {
        let depth = local.tags.depth.get();
        if let Some(place) = local.tags.tags.get(depth as usize) {
            place.set(tag);
        }
        local.tags.depth.set(depth.saturating_add(1));
    });
}

/// Ends the innermost tag; more pops than pushes do nothing.
pub fn pop_tag() {
    local(|local| local.tags.depth.set(local.tags.depth.get().saturating_sub(1)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_nest_and_too_many_pops_do_nothing() {
        pop_tag();
        assert!(tag().is_none());
        push_tag(Tag::of(b"outer"));
        for _ in 0..DEPTH + 3 {
            push_tag(Tag::of(b"inner"));
        }
        assert_eq!(tag().map(Tag::text), Some(&b"inner"[..]));
        for _ in 0..DEPTH + 3 {
            pop_tag();
        }
        assert_eq!(tag().map(Tag::text), Some(&b"outer"[..]));
        pop_tag();
        assert!(tag().is_none());
    }
}
