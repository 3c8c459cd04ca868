//! One call of the program: whose API, and where it came from.

use crate::gate;
use crate::shim::Shim;
use crate::stacks::Regs;
use gpumem_wire::kinds::Vendor;
use std::cell::Cell;

/// A call that came in at a door.
#[derive(Clone, Copy)]
pub struct Call {
    pub vendor: Vendor,
    regs: Regs,
}

thread_local! {
    /// The call of a runtime's function that this thread is in: its site is the one worth keeping.
    static ANCHOR: Cell<Option<Call>> = const { Cell::new(None) };
    /// Records that this thread made at the driver.
    static RECORDS: Cell<u64> = const { Cell::new(0) };
}

impl Call {
    #[inline(always)]
    pub fn new(vendor: Vendor, regs: Regs) -> Self {
        Self { vendor, regs }
    }

    /// Where the program called: the runtime's function if this call comes from inside one.
    #[inline]
    pub fn site(&self) -> Regs {
        ANCHOR.get().map_or(self.regs, |anchor| anchor.regs)
    }

    /// Keeps books after the real call succeeded; starts the shim if need be.
    #[inline]
    pub fn record<R>(&self, f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
        RECORDS.set(RECORDS.get().wrapping_add(1));
        gate::record(f)
    }

    /// Keeps books of something that does not start the shim: failures, frees, attributes.
    #[inline]
    pub fn note<R>(&self, f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
        RECORDS.set(RECORDS.get().wrapping_add(1));
        gate::record_if_started(f)
    }
}

/// While it lives, calls of this thread belong to the runtime's call that it was made for.
pub struct Anchor {
    outer: Option<Call>,
    name: &'static str,
    records: u64,
}

/// Remembers a call of a runtime's function for the driver calls that it will make.
#[inline]
pub fn anchor(call: Call, name: &'static str) -> Anchor {
    // A runtime's function inside another (a wrapper library): the outer one is the program's.
    let outer = ANCHOR.get();
    ANCHOR.set(outer.or(Some(call)));
    Anchor { outer, name, records: RECORDS.get() }
}

impl Drop for Anchor {
    #[inline]
    fn drop(&mut self) {
        ANCHOR.set(self.outer);
        if RECORDS.get() == self.records && !gate::busy() {
            gate::record_if_started(|shim| shim.runtime_call_unseen(self.name));
        }
    }
}
