//! Functions without a hook: handling when the program is given one, or calls one.

use crate::progress::activity;
use crate::{graphs, pool};
use gpumem_abi::types::GraphExec;
use gpumem_wire::kinds::Vendor;

/// True if a word is a handle of ours to an exec.
#[inline(always)]
pub(crate) fn is_handle(vendor: Vendor, word: usize) -> bool {
    graphs::exec_index(vendor, word as GraphExec).is_some()
}

/// Replaces each word that is a handle of ours by the real handle.
#[inline]
pub(crate) fn give_real_handles(words: &mut [usize; 6]) {
    graphs::swap(words);
}

/// Pins each block of the pool that an argument is an address in, since the function may keep it. Such a block goes
/// back to the driver when it is freed.
pub(crate) fn may_keep(words: &[usize]) {
    words.iter().for_each(|word| pool::pin(*word as u64));
}

/// Notes that the function may give the device work. From now on no free may assume without asking that the device is
/// idle.
pub(crate) fn may_submit() {
    activity::uncountable();
}

/// Notes that a function that may take a handle of ours is handed out without a thunk.
pub(crate) fn goes_past(name: &str) {
    graphs::unknown_passed(name);
}
