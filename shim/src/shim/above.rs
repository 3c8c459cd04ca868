//! Questions of the records to the rooms above them. The records define the trait, and [`crate::start`] implements it:
//! no type of those rooms is known here.
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
    /// Called when the first context exists. From now on a control thread does not surprise the program.
    fn context_exists(&self, shim: &'static Shim);

    /// Called when the program is told that there is no device memory for its request.
    fn ran_out(&self, shim: &'static Shim, call: &Call, kind: AllocKind, bytes: u64, stack: StackRef);

    /// Looks through the graphs for memory that is about to be freed, whose record is in this slot.
    fn look_for_memory_in_graphs(&self, shim: &Shim, addr: u64, bytes: u64, slot: u32);

    /// As [`look_for_memory_in_graphs`](Self::look_for_memory_in_graphs), for a block of the pool, if one begins at
    /// this address.
    fn look_for_block_in_graphs(&self, shim: &Shim, addr: u64);

    /// True if a live graph may refer to one of these ranges of addresses, which are sorted.
    fn graph_may_refer_to(&self, shim: &Shim, ranges: &[Range<u64>]) -> bool;

    /// True if a live graph certainly refers to memory.
    fn graph_refers_to(&self, memory: &Range<u64>) -> bool;

    /// Frees all idle blocks of the device of this thread's context, or of all devices if the thread has no context.
    /// Returns the freed bytes.
    fn flush_here(&self, vendor: Vendor) -> u64;
}
