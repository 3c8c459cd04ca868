//! The library of a cache, and the states in which it is called. Each state is restored on any exit: a call of the
//! library may be left by an exception, or by the end of the thread.

use super::real::RealExec;
use crate::backend::graphs::GraphCalls;
use crate::process::cancel::Uncancelled;
use crate::progress::activity;
use crate::progress::device::ContextHold;
use crate::progress::queries::capturing;
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

/// The states of this thread. They are restored on drop.
#[must_use = "the states from before come back when this is dropped"]
pub(super) struct Within {
    calls: &'static dyn GraphCalls,
    /// Another context was entered.
    entered: bool,
    /// The previous mode, if the thread may make calls that a capture of it forbids. A cancelled thread must not end in
    /// a call of the shim: its unwinding would end the process.
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
    /// Allows this thread calls that a capture of it forbids, until the guard is dropped.
    pub(super) fn relax(self) -> Within {
        self.relax_in(0)
    }

    /// Makes this context current until the guard is dropped. 0: the current context stays.
    pub(super) fn enter(self, context: u64) -> Within {
        Within { calls: self.calls, entered: context != 0 && self.calls.enter(context), relaxed: None }
    }

    /// Does both: [`Self::relax`] and [`Self::enter`].
    pub(super) fn relax_in(self, context: u64) -> Within {
        let uncancelled = Uncancelled::new();
        let relaxed = Some((self.calls.relax(), uncancelled));
        let mut within = Within { calls: self.calls, entered: false, relaxed };
        within.entered = context != 0 && self.calls.enter(context);
        within
    }

    /// Makes the context of an exec current, and keeps it from ending, until the guards are dropped. `None` if it has
    /// ended or is ending now.
    pub(super) fn enter_context_of(self, real: &RealExec) -> Option<(Within, ContextHold)> {
        let context = real.context.load(Relaxed);
        let hold = ContextHold::begin(context)?;
        real.is_in(context).then(|| (self.enter(context), hold))
    }

    /// Returns true if the library answers normally. After a failure of work, all its calls return that error.
    pub(super) fn is_usable(self) -> bool {
        !activity::broken() || self.calls.allowed() == SUCCESS
    }

    /// Checks that execs may be made and destroyed now. A capture that forbids such calls is disturbed here as it is by
    /// the library's own call.
    ///
    /// # Errors
    /// The library's status during such a capture.
    pub(crate) fn allowed(self) -> Result<(), Status> {
        match capturing() {
            true => match self.calls.allowed() {
                SUCCESS => Ok(()),
                status => Err(status),
            },
            false => Ok(()),
        }
    }
}
