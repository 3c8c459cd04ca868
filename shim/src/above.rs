//! What the records ask of the rooms above them. The records define the trait, and [`crate::start`] implements it: no
//! type of those rooms is known here.
//!
//! A call that is served at once asks nothing of this. It is asked when memory ran out, when freed memory is looked for
//! in graphs, and when the first context exists.

use crate::shim::Shim;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use std::ops::Range;

/// A block of the pool's, as the records have it.
#[derive(Clone, Copy)]
pub struct PoolBlock {
    /// What the program asked for.
    pub bytes: u64,
    /// Its place in the ledger.
    pub slot: u32,
}

/// The rooms above the records.
pub trait Above: Sync {
    /// The first context exists: from now on a control thread is no surprise to anyone.
    fn context_exists(&self, shim: &'static Shim);

    /// Whether a live graph refers to this memory, for certain.
    fn graph_refers_to(&self, memory: &Range<u64>) -> bool;

    /// Whether a live graph may refer to one of these ranges of addresses, which are sorted.
    fn graph_may_refer_to(&self, shim: &Shim, ranges: &[Range<u64>]) -> bool;

    /// The block of a pool that begins at an address.
    fn block_at(&self, addr: u64) -> Option<PoolBlock>;

    /// What the pool keeps idle on a device, and the most that this process may take of it (0: all), in bytes; `None`
    /// where there is no pool. Live bytes that threads have not added to their contexts are added before, if `adds`.
    fn idle_and_limit(&self, shim: &'static Shim, vendor: Vendor, device: Device, adds: bool) -> Option<(u64, u64)>;

    /// Gives back all idle blocks of the device of this thread's context, of all devices if it has none; how many
    /// bytes.
    fn flush_here(&self, vendor: Vendor) -> u64;
}
