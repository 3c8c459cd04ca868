//! What the shim knows of the calling thread, in `const` thread-locals without destructors.

use crate::registry::reported::Tag;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
    static SHARD: Cell<u32> = const { Cell::new(0) };
    static TAGS: Cell<Tags> = const { Cell::new(Tags { depth: 0, tags: [None; DEPTH] }) };
}

/// Tags nest this deep; deeper ones are counted and ignored.
const DEPTH: usize = 64;

#[derive(Clone, Copy)]
struct Tags {
    depth: u32,
    tags: [Option<&'static Tag>; DEPTH],
}

/// The thread's number as the kernel has it, asked for once. The first call also tells `new`.
#[inline]
pub fn tid(new: impl FnOnce(u32)) -> u32 {
    let known = TID.get();
    if known != 0 {
        return known;
    }
    // SAFETY: a plain system call.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    TID.set(tid);
    new(tid);
    tid
}

/// Forgets this thread's number: after a fork it is another one.
pub fn forget() {
    TID.set(0);
}

/// A small number to spread threads over shards.
#[inline]
pub fn shard() -> usize {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let known = SHARD.get();
    if known != 0 {
        return known as usize;
    }
    let shard = NEXT.fetch_add(1, Relaxed).max(1);
    SHARD.set(shard);
    shard as usize
}

/// The innermost tag that is in force, if any.
#[inline]
pub fn tag() -> Option<&'static Tag> {
    TAGS.with(|tags| {
        // SAFETY: no other reference to the cell's value exists while this one is read.
        let tags = unsafe { &*tags.as_ptr() };
        match tags.depth as usize {
            0 => None,
            depth => tags.tags[depth.min(DEPTH) - 1],
        }
    })
}

/// Puts a tag in force; `None` hides the outer ones.
pub fn push_tag(tag: Option<&'static Tag>) {
    TAGS.with(|tags| {
        // SAFETY: as in `tag`.
        let tags = unsafe { &mut *tags.as_ptr() };
        if let Some(place) = tags.tags.get_mut(tags.depth as usize) {
            *place = tag;
        }
        tags.depth = tags.depth.saturating_add(1);
    });
}

/// Ends the innermost tag; more pops than pushes do nothing.
pub fn pop_tag() {
    TAGS.with(|tags| {
        // SAFETY: as in `tag`.
        let tags = unsafe { &mut *tags.as_ptr() };
        tags.depth = tags.depth.saturating_sub(1);
    });
}
