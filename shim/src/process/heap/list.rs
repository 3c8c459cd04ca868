//! Lock-free list of free items of one kind: blocks of one length by their addresses, slots of a table by their
//! numbers.
//!
//! The list's head carries a tag. If an item is taken and put back while another thread looks, the tag has changed and
//! the other thread looks again.

use super::atomic::{AtomicU64, Ordering::*};

/// The first item in the lower `BITS` bits, and a tag above them. 0 means no item. Each item has room for its link, the
/// next item.
pub(crate) struct FreeList<const BITS: u32>(pub(crate) AtomicU64);

/// Bits of an address.
pub(super) const ADDRESS_BITS: u32 = 48;

impl<const BITS: u32> FreeList<BITS> {
    const FIRST: u64 = (1 << BITS) - 1;

    /// Takes an item for the calling thread alone; `None` if there is none. `link` returns the link of an item that was
    /// in the list.
    ///
    /// Accesses to the head are [`SeqCst`], in one order with others: a table keeps a word beside its lists that says
    /// which of them are empty. This costs nothing: x86-64 and aarch64 have the same instructions for it.
    #[inline(always)]
    pub(crate) fn take(&self, link: impl Fn(u64) -> u64) -> Option<u64> {
        let mut seen = self.0.load(SeqCst);
        while seen & Self::FIRST != 0 {
            // If another thread takes this item meanwhile, the exchange fails and the value read here is dropped.
            let next = link(seen & Self::FIRST) & Self::FIRST;
            match self.0.compare_exchange_weak(seen, next | Self::tag_after(seen), AcqRel, Acquire) {
                Ok(_) => return Some(seen & Self::FIRST),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Puts a chain of items on the list; `first` is its first item. `link_last` sets the link of its last item.
    #[inline(always)]
    pub(crate) fn put(&self, first: u64, link_last: impl Fn(u64)) {
        let mut seen = self.0.load(Relaxed);
        loop {
            link_last(seen & Self::FIRST);
            match self.0.compare_exchange_weak(seen, first | Self::tag_after(seen), SeqCst, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn tag_after(head: u64) -> u64 {
        (head & !Self::FIRST).wrapping_add(Self::FIRST + 1)
    }
}
