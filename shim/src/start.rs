//! Starts the shim with the program's first call that makes or initialises something, and gives it the rooms above its
//! records ([`Above`]).

use crate::process::threads;
use crate::shim::Above;
use crate::shim::Shim;
use crate::{control, gate, request, share};
use gpumem_wire::kinds::Vendor;

/// Records after the real call succeeded; starts the shim if necessary.
#[inline]
pub(crate) fn record<R>(f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    threads::local(|local| local.recorded());
    gate::record(&Rooms, f)
}

/// Notes that a runtime function made something without a driver call that our hooks saw. So some calls are not seen.
#[cold]
pub(crate) fn unseen(name: &str) {
    gate::record(&Rooms, |shim| shim.went_past(&format!("{name} reached a driver past the shim")));
}

pub(crate) struct Rooms;

impl Above for Rooms {
    fn context_exists(&self, shim: &'static Shim) {
        share::begin(shim);
        control::start(shim);
    }

    fn flush_here(&self, vendor: Vendor) -> u64 {
        request::flush_here(vendor)
    }
}
