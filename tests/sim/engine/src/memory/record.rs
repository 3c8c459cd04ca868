//! A driver's own records of an allocation, in memory of the program's heap.
//!
//! On an H200 words that refer to each of 256 blocks were found there (docs/decisions/references.md), in records of
//! several kinds that point to one another. The simulator never reads these records. Freed records stay as they are.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The records of one allocation.
pub(super) struct Record {
    fields: usize,
    node: usize,
    entry: usize,
    /// 0: none.
    bare: usize,
}

#[repr(C)]
struct Fields {
    /// The same in all records.
    kind: &'static str,
    previous: usize,
    next: usize,
    /// The same in a few records that were made one after the other.
    parent: usize,
    flags: u64,
    size: u64,
    base: u64,
    end: u64,
    id: u64,
    node: usize,
}

/// A node of a tree by address.
#[repr(C)]
struct Node {
    links: [usize; 3],
    color: u64,
    first: u64,
    last: u64,
    record: usize,
}

/// An entry of a table by address. Only its link to the record shows that it is the driver's.
#[repr(C)]
struct Entry {
    next: usize,
    key: u64,
    record: usize,
}

/// Puts a value into new memory of the program's heap. The answer is its address.
fn keep<T>(value: T) -> usize {
    // SAFETY: malloc gives room for a T, aligned for any of words, or null.
    unsafe {
        let at = libc::malloc(size_of::<T>()).cast::<T>();
        if at.is_null() {
            crate::heap::exhausted();
        }
        at.write(value);
        at as usize
    }
}

impl Record {
    /// `has_bare`: the address also lies in a piece of memory with nothing else in it.
    pub(super) fn new(base: u64, size: u64, id: u64, has_bare: bool) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        static NODE: AtomicUsize = AtomicUsize::new(0);
        const OF_A_PARENT: u64 = 5;
        let (end, parent) = (base + size, (id / OF_A_PARENT) as usize * 0x1_0001_0010);
        let previous = LAST.load(Relaxed);
        let last = end.saturating_sub(1).max(base);
        let other = NODE.load(Relaxed);
        let node =
            keep(Node { links: [other, previous ^ 0x40, other ^ 0x1000], color: id % 2, first: base, last, record: 0 });
        let fields =
            keep(Fields { kind: "allocation", previous, next: 0, parent, flags: id % 3, size, base, end, id, node });
        // SAFETY: `keep` has just given the node's memory for a Node, and nobody else has it.
        unsafe { (*(node as *mut Node)).record = fields };
        let entry = keep(Entry { next: other, key: base, record: fields });
        let bare = if has_bare { keep([base, 0, 0, 0, 0, 0, 0, 0]) } else { 0 };
        LAST.store(fields, Relaxed);
        NODE.store(node, Relaxed);
        Self { fields, node, entry, bare }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        for at in [self.fields, self.node, self.entry, self.bare] {
            // SAFETY: `new` got each of them from malloc, or it is null, and each is freed once.
            unsafe { libc::free(at as *mut _) };
        }
    }
}
