//! Free things of one kind, in a list without a lock: blocks of one length by their addresses, slots of a table by their
//! numbers.
//!
//! The list's head carries a tag. If a thing is taken and put back while another thread looks, the tag has changed and
//! the other thread looks again.

use super::atomic::{AtomicU64, Ordering::*};

/// The first thing in the lower `BITS` bits, and a tag above them. 0 is no thing. Each thing has room for the next one,
/// its link.
pub(crate) struct FreeList<const BITS: u32>(pub(crate) AtomicU64);

/// Bits of an address.
pub(super) const ADDRESS_BITS: u32 = 48;

impl<const BITS: u32> FreeList<BITS> {
    const FIRST: u64 = (1 << BITS) - 1;

    /// Takes a thing that nobody else has now; `None` if there is none. `link`: what a thing has as its link, which was
    /// in the list.
    ///
    /// The accesses to the head are in one order with others that are [`SeqCst`]: a table keeps a word beside its lists
    /// that says which of them are empty. That costs nothing here: x86-64 and aarch64 have the same instructions for it.
    #[inline(always)]
    pub(crate) fn take(&self, link: impl Fn(u64) -> u64) -> Option<u64> {
        let mut seen = self.0.load(SeqCst);
        while seen & Self::FIRST != 0 {
            // If another thread takes this one meanwhile, the exchange fails and what was read is dropped.
            let next = link(seen & Self::FIRST) & Self::FIRST;
            match self.0.compare_exchange_weak(seen, next | Self::tag_after(seen), AcqRel, Acquire) {
                Ok(_) => return Some(seen & Self::FIRST),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Puts a chain of things, of which `first` is the first one. `link_last` sets the link of the last one.
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
