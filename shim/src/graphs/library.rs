//! The library that a cache stands for, and the states that its calls are made in. Each state is undone however a call
//! ends: a call of the library may be left by an exception, or by the end of the thread.

use super::real::RealExec;
use crate::process::cancel::Uncancelled;
use crate::progress::activity;
use crate::progress::device::ContextHold;
use crate::progress::queries::capturing;
use crate::vendor::graphs::GraphCalls;
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::kinds::Vendor;
use std::sync::atomic::Ordering::Relaxed;

/// One vendor's library.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Library {
    pub vendor: Vendor,
    pub calls: &'static dyn GraphCalls,
}

/// The states that this thread is in while this lives.
#[must_use = "the states from before come back when this is dropped"]
pub(super) struct Within {
    calls: &'static dyn GraphCalls,
    /// Another context was entered.
    entered: bool,
    /// The mode from before, if the thread may make calls that a capture of it forbids. A call of ours must not be where
    /// a cancelled thread ends: its unwinding would end the process.
    relaxed: Option<(i32, Uncancelled)>,
}

impl Drop for Within {
    fn drop(&mut self) {
        if self.entered {
            self.calls.leave();
        }
        if let Some((mode, _)) = self.relaxed {
            self.calls.unrelax(mode);
        }
    }
}

impl Library {
    /// While the answer lives, this thread may make calls that a capture of it forbids.
    pub(super) fn relax(self) -> Within {
        self.relax_in(0)
    }

    /// While the answer lives, this context is current. For 0, whatever context is.
    pub(super) fn enter(self, context: u64) -> Within {
        Within { calls: self.calls, entered: context != 0 && self.calls.enter(context), relaxed: None }
    }

    /// Both of these.
    pub(super) fn relax_in(self, context: u64) -> Within {
        let uncancelled = Uncancelled::new();
        let relaxed = Some((self.calls.relax(), uncancelled));
        let mut within = Within { calls: self.calls, entered: false, relaxed };
        within.entered = context != 0 && self.calls.enter(context);
        within
    }

    /// While the answer lives, the context of an exec is current and does not end. `None` if it ends just now or has
    /// ended.
    pub(super) fn enter_context_of(self, real: &RealExec) -> Option<(Within, ContextHold)> {
        let context = real.context.load(Relaxed);
        let hold = ContextHold::begin(context)?;
        real.is_in(context).then(|| (self.enter(context), hold))
    }

    /// Whether the library would answer normally. Where work went wrong, all its calls answer that error.
    pub(super) fn is_usable(self) -> bool {
        !activity::broken() || self.calls.allowed() == SUCCESS
    }

    /// Whether execs may be made and destroyed now. A capture that forbids such calls is disturbed here as it is by the
    /// library's own call.
    ///
    /// # Errors
    /// What the library answers then.
    pub(super) fn allowed(self) -> Result<(), Status> {
        match capturing() {
            true => match self.calls.allowed() {
                SUCCESS => Ok(()),
                status => Err(status),
            },
            false => Ok(()),
        }
    }
}
