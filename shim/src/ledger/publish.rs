//! Writes a slot so that a reader without a lock gets it whole.
//!
//! The check is a part of a slot's first word. While a slot changes, it has no check. A check covers only the slot's
//! sealed part. The order of writes and reads keeps the totals behind that part consistent with it.

use super::atomic::{AtomicU64, Ordering::*, fence};
use gpumem_wire::layout::Sealed;

/// Writes a slot into its words: without a valid check while it changes, the right check last.
#[inline(always)]
pub(super) fn publish<T: Sealed>(words: &[AtomicU64], slot: &T) {
    let check = slot.seal();
    let (all, _) = slot.as_bytes().as_chunks::<8>();
    words[0].store(0, Relaxed);
    // A reader that sees one of the words below also sees that the slot had no check, or has another one.
    fence(Release);
    for at in 1..all.len().min(words.len()) {
        words[at].store(u64::from_le_bytes(all[at]), Relaxed);
    }
    words[0].store((u64::from_le_bytes(all[0]) & !0xffff_ffff) | u64::from(check), Release);
}

/// Reads a slot into `slot`. Returns false if it is free or changes meanwhile; `slot` may then be a mix.
#[inline]
pub(super) fn read_whole<T: Sealed>(words: &[AtomicU64], slot: &mut T) -> bool {
    let first = words[0].load(Acquire);
    // In a table that has shrunk most slots are free.
    if first as u32 == 0 {
        return false;
    }
    for (into, word) in slot.as_mut_bytes().chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    // The reads above come before this second look.
    fence(Acquire);
    words[0].load(Relaxed) == first && slot.as_bytes()[..8] == first.to_le_bytes() && slot.seal() == first as u32
}
