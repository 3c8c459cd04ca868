//! Functions that no hook knows: what is done where the program calls one, or is given one.
//!
//! Such a function may be handed a handle of ours, may keep an address that the pool handed out, and may give the
//! device work that nobody counts.

use crate::progress::activity;
use crate::{graphs, pool};
use gpumem_abi::types::GraphExec;
use gpumem_wire::kinds::Vendor;

/// Whether a word is a handle of ours to an exec.
#[inline(always)]
pub(crate) fn is_handle(vendor: Vendor, word: usize) -> bool {
    graphs::exec_index(vendor, word as GraphExec).is_some()
}

/// Puts the real handle in place of each word that is a handle of ours.
#[inline]
pub(crate) fn give_real_handles(words: &mut [usize; 6]) {
    graphs::swap(words);
}

/// The function may keep each word that is an address of the pool's: its block is the driver's from its free on.
pub(crate) fn may_keep(words: &[usize]) {
    words.iter().for_each(|word| pool::pin(*word as u64));
}

/// The function may give the device work: from now on no free may take it for idle without asking.
pub(crate) fn may_submit() {
    activity::uncountable();
}

/// A function that may take a handle of ours goes out as it is.
pub(crate) fn goes_past(name: &str) {
    graphs::unknown_passed(name);
}
