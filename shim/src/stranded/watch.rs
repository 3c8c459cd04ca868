//! One allocation, from the request to the answer.

use super::state::sites::Asker;
use super::{SMALLEST, Verdict};
use crate::call::Call;
use crate::gate;
use crate::records;
use crate::shim::Shim;
use crate::stranded;
use gpumem_abi::types::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::layout::{ContextRef, StackRef};

/// An allocation of the program, examined if it is large enough.
pub(crate) struct Watch {
    asker: Option<Asker>,
    pub bytes: u64,
    /// Action on it.
    pub verdict: Verdict,
}

impl Watch {
    /// Judges a request for a block that the driver would have to make, in the given context or in the current one.
    #[inline]
    pub(crate) fn new(call: &Call, bytes: u64, context: Option<ContextRef>) -> Self {
        let small = Self { asker: None, bytes, verdict: Verdict::Nothing };
        if bytes < SMALLEST { small } else { Self::of_large(call, bytes, context).unwrap_or(small) }
    }

    fn of_large(call: &Call, bytes: u64, context: Option<ContextRef>) -> Option<Self> {
        gate::shim().filter(|shim| shim.stranded.on())?;
        gate::note(|shim| {
            let asker =
                stranded::asker(shim, call, context.unwrap_or_else(|| records::contexts::current(shim, call.vendor)));
            Self { asker: Some(asker), bytes, verdict: stranded::asked(shim, &asker, bytes) }
        })
    }

    /// Notes the answer to the request: this block, or no memory, by the driver or by a limit. Does nothing for a
    /// request that was refused here.
    #[inline]
    pub(crate) fn answered(&self, status: Status, addr: u64) {
        let Some(asker) = &self.asker else { return };
        match status {
            SUCCESS => drop(gate::note(|shim| self.made(shim, addr))),
            OUT_OF_MEMORY if self.verdict != Verdict::Refuse => {
                gate::note(|shim| stranded::failed(shim, asker, self.bytes));
            }
            _ => {}
        }
    }

    /// Notes that the request got this block.
    #[inline]
    pub(crate) fn made(&self, shim: &'static Shim, addr: u64) {
        if let Some(asker) = &self.asker {
            stranded::made(shim, asker, addr, self.bytes);
        }
    }

    /// Returns the call's stack, if one was to be taken. 0 if none could be.
    #[inline]
    pub(crate) fn stack(&self) -> Option<StackRef> {
        self.asker.map(|asker| asker.stack)
    }

    /// True if it is the growth of a pool inside the program.
    pub(crate) fn is_pool_growth(&self) -> bool {
        match &self.asker {
            Some(asker) => gate::note(|shim| stranded::is_pool_growth(shim, asker, self.bytes)).unwrap_or(false),
            None => super::inside() && self.bytes.is_multiple_of(super::ROUNDED),
        }
    }
}

/// Runs an allocation by `real`, which writes to `out`, unless it must be refused. Spilling takes more than one call
/// and is not done here.
///
/// # Safety
/// `out` is the program's out-parameter, which `real` has written when it succeeds.
#[inline]
pub(crate) unsafe fn watched(call: &Call, bytes: u64, out: *const DevicePtr, real: impl FnOnce() -> Status) -> Status {
    let watch = Watch::new(call, bytes, None);
    if watch.verdict == Verdict::Refuse {
        return OUT_OF_MEMORY;
    }
    let status = real();
    // SAFETY: our caller vouches that `real` writes `out` when it succeeds, and it has succeeded. A
    // driver that accepts NULL leaves nothing to read.
    let addr = if status == SUCCESS { unsafe { out.as_ref() }.copied() } else { None };
    watch.answered(status, addr.unwrap_or(0));
    status
}
