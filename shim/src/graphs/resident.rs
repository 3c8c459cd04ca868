//! The exec that holds a handle's content: shared by launches, leased by a thread that changes or takes it.

use super::real::{Lease, RealExec};
use super::sync::{AtomicPtr, Ordering::*, yield_now};
use std::ptr::{from_ref, null_mut};

/// A handle's real exec. Null: the handle has none now.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Resident(AtomicPtr<RealExec>);

impl Resident {
    /// Returns the exec, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&'static RealExec> {
        // SAFETY: null, or a RealExec from a leaked box: real execs are reused and never freed.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Returns true if this exec is the handle's.
    #[inline(always)]
    pub(super) fn is(&self, real: &RealExec) -> bool {
        std::ptr::eq(self.0.load(Acquire), real)
    }

    /// Shares the lease of an exec that [`Self::get`] gave, if the handle still has the exec and it `suits` then.
    #[inline(always)]
    pub(super) fn share(&self, real: &RealExec, suits: impl FnOnce() -> bool) -> bool {
        if !real.share() {
            return false;
        }
        // Checked once more, because the exec may have been taken away before the lease was shared.
        let shared = self.is(real) && suits();
        if !shared {
            real.unshare();
        }
        shared
    }

    /// Leases the exec. `None` if there is none. Waits only for launches of this same handle, which would wait for one
    /// another in the library too.
    pub(super) fn lease(&self) -> Option<Lease> {
        loop {
            let real: &'static RealExec = self.get()?;
            if real.lost.load(Acquire) {
                self.clear();
                return None;
            }
            match real.lease() {
                Some(lease) if self.is(real) => return Some(lease),
                _ => yield_now(),
            }
        }
    }

    /// Sets the exec, which is leased.
    pub(super) fn set(&self, lease: &Lease) {
        self.0.store(from_ref(lease.real()).cast_mut(), Release);
    }

    /// Leaves the handle without an exec.
    pub(super) fn clear(&self) {
        self.0.store(null_mut(), Release);
    }
}
