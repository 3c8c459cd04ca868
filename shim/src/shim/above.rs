//! Questions of the records to the rooms above them. The records define the trait, and [`crate::start`] implements it:
//! no type of those rooms is known here.
//!
//! A call that is served at once asks none of this. The rooms above are asked when memory ran out, when freed memory is
//! looked for in graphs, and when the first context exists.

use super::Shim;
use gpumem_wire::kinds::Vendor;
use std::ops::Range;

/// The rooms above the records.
pub(crate) trait Above: Sync {
    /// Called when the first context exists. From now on a control thread does not surprise the program.
    fn context_exists(&self, shim: &'static Shim);

    /// True if a live graph may refer to one of these ranges of addresses, which are sorted.
    fn graph_may_refer_to(&self, shim: &Shim, ranges: &[Range<u64>]) -> bool;

    /// True if a live graph certainly refers to memory.
    fn graph_refers_to(&self, memory: &Range<u64>) -> bool;

    /// Frees all idle blocks of the device of this thread's context, or of all devices if the thread has no context.
    /// Returns the freed bytes.
    fn flush_here(&self, vendor: Vendor) -> u64;
}
