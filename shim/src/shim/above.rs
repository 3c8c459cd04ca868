//! What the records ask of the rooms above them. The records define the trait, and [`crate::start`] implements it: no
//! type of those rooms is known here.
//!
//! A call that is served at once asks none of this. The rooms above are asked when memory ran out, when freed memory is
//! looked for in graphs, and when the first context exists.

use super::Shim;
use crate::call::Call;
use gpumem_wire::kinds::{AllocKind, Vendor};
use gpumem_wire::layout::StackRef;
use std::ops::Range;

/// The rooms above the records.
pub(crate) trait Above: Sync {
    /// The first context exists. From now on a control thread surprises nobody.
    fn context_exists(&self, shim: &'static Shim);

    /// The program is told that there is no device memory for its request.
    fn ran_out(&self, shim: &'static Shim, call: &Call, kind: AllocKind, bytes: u64, stack: StackRef);

    /// Memory is about to be freed, whose record is in this slot, and graphs are to be looked through for it.
    fn look_for_memory_in_graphs(&self, shim: &Shim, addr: u64, bytes: u64, slot: u32);

    /// The same for a block of the pool, if one begins at this address.
    fn look_for_block_in_graphs(&self, shim: &Shim, addr: u64);

    /// Whether a live graph may refer to one of these ranges of addresses, which are sorted.
    fn graph_may_refer_to(&self, shim: &Shim, ranges: &[Range<u64>]) -> bool;

    /// Whether a live graph refers to memory, for certain.
    fn graph_refers_to(&self, memory: &Range<u64>) -> bool;

    /// Gives back all idle blocks of the device of this thread's context, or of all devices if the thread has no
    /// context. The answer is the bytes that went back.
    fn flush_here(&self, vendor: Vendor) -> u64;
}
