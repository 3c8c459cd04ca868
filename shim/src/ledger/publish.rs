//! How a slot is written, and how a reader that holds no lock has it whole.
//!
//! The check is a slot's first word in part. While a slot changes, it has none. A check tells of the slot's sealed part
//! alone. So the order in which words are written and read is what keeps the totals behind that part together with it.

use super::atomic::{AtomicU64, Ordering::*, fence};
use gpumem_wire::layout::Sealed;

/// Writes a slot into its words: no valid check while it changes, the right one last.
#[inline(always)]
pub(super) fn publish<T: Sealed>(words: &[AtomicU64], slot: &T) {
    let check = slot.seal();
    let (all, _) = slot.as_bytes().as_chunks::<8>();
    words[0].store(0, Relaxed);
    // Who sees one of the words below also sees that the slot had no check, or has another one.
    fence(Release);
    for at in 1..all.len().min(words.len()) {
        words[at].store(u64::from_le_bytes(all[at]), Relaxed);
    }
    words[0].store((u64::from_le_bytes(all[0]) & !0xffff_ffff) | u64::from(check), Release);
}

/// Reads a slot into `slot`. False if it is free, or changes meanwhile: what was read may be a mix then.
#[inline]
pub(super) fn read_whole<T: Sealed>(words: &[AtomicU64], slot: &mut T) -> bool {
    let first = words[0].load(Acquire);
    // Most slots of a table that has shrunk are free.
    if first as u32 == 0 {
        return false;
    }
    for (into, word) in slot.as_mut_bytes().chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    // What was read comes before this second look.
    fence(Acquire);
    words[0].load(Relaxed) == first && slot.as_bytes()[..8] == first.to_le_bytes() && slot.seal() == first as u32
}
