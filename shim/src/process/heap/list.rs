//! Free blocks of one length, in a list without a lock.
//!
//! The list's head carries a tag. If a block is taken and put back while another thread looks, the tag has changed and
//! the other thread looks again.

use super::atomic::{AtomicU64, Ordering::*};

/// Addresses have 48 bits; the rest of a head is its tag.
pub(super) const ADDRESS: u64 = (1 << 48) - 1;

/// The address of the first block, and a tag in the bits above the address. The first word of each block has the address
/// of the next one.
pub(super) struct List(pub(super) AtomicU64);

impl List {
    /// The address of a block that nobody else has now; `None` if there is none. `link`: the first word of a block that
    /// was in the list.
    #[inline(always)]
    pub(super) fn take<'a>(&self, link: impl Fn(u64) -> &'a AtomicU64) -> Option<u64> {
        let mut seen = self.0.load(Acquire);
        while seen & ADDRESS != 0 {
            // If another thread takes this block meanwhile, the exchange fails and what was read is dropped.
            let next = link(seen & ADDRESS).load(Relaxed) & ADDRESS;
            match self.0.compare_exchange_weak(seen, next | tag_after(seen), AcqRel, Acquire) {
                Ok(_) => return Some(seen & ADDRESS),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Puts a chain of blocks, linked from `first` to the block that has `last` as its first word.
    #[inline(always)]
    pub(super) fn put(&self, first: u64, last: &AtomicU64) {
        let mut seen = self.0.load(Relaxed);
        loop {
            last.store(seen & ADDRESS, Relaxed);
            match self.0.compare_exchange_weak(seen, first | tag_after(seen), AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

fn tag_after(head: u64) -> u64 {
    (head & !ADDRESS).wrapping_add(ADDRESS + 1)
}
