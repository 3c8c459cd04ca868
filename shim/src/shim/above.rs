//! Questions of lower rooms to rooms above them. The records define the trait, and [`crate::start`] implements it: no
//! type of the upper rooms is known here.
//!
//! A call that is served at once asks none of this. The rooms above are asked when memory ran out, and when the first
//! context exists.

use super::Shim;
use gpumem_wire::kinds::Vendor;

/// Rooms above the records that rooms below them call.
pub(crate) trait Above: Sync {
    /// Called when the first context exists. From now on a control thread does not surprise the program.
    fn context_exists(&self, shim: &'static Shim);

    /// Frees all idle blocks of the device of this thread's context, or of all devices if the thread has no context.
    /// Returns the freed bytes.
    fn flush_here(&self, vendor: Vendor) -> u64;
}
