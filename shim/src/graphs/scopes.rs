//! States that have to be undone however a call ends. A call of the library may be left by an exception, or by the end
//! of the thread.

use super::Cache;
use super::handle::Body;
use super::handle::context_of;
use super::real::RealExec;
use crate::process::cancel::Uncancelled;
use crate::progress::device::ContextHold;
use crate::vendor::graphs::GraphCalls;
use std::sync::atomic::Ordering::Relaxed;

/// While this lives, this thread may make calls that a capture of it forbids. Inside is the mode from before.
struct Unforbidden {
    calls: &'static dyn GraphCalls,
    mode: i32,
    /// A call of ours must not be where a cancelled thread ends: its unwinding would end the process.
    _uncancelled: Uncancelled,
}

impl Drop for Unforbidden {
    fn drop(&mut self) {
        self.calls.unrelax(self.mode);
    }
}

/// While this lives, another context is current.
struct Entered(&'static dyn GraphCalls);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Cache {
    /// Runs `f`, which may make calls that a capture of this thread forbids.
    pub(crate) fn relaxed<R>(&self, f: impl FnOnce() -> R) -> R {
        let _uncancelled = Uncancelled::new();
        let _unforbidden = Unforbidden { calls: self.calls, mode: self.calls.relax(), _uncancelled };
        f()
    }

    /// Runs `f` in a context. For 0, in whatever context is current.
    pub(crate) fn in_context<R>(&self, context: u64, f: impl FnOnce() -> R) -> R {
        let _entered = (context != 0 && self.calls.enter(context)).then(|| Entered(self.calls));
        f()
    }

    /// Runs `f` in the context of an exec. The context does not end meanwhile. `None` if it ends just now or has ended.
    pub(super) fn in_context_of<R>(&self, real: &RealExec, f: impl FnOnce() -> R) -> Option<R> {
        let context = real.context.load(Relaxed);
        let _hold = ContextHold::begin(context)?;
        real.is_in(context).then(|| self.in_context(context, f))
    }

    /// Both of these: in the context of what a handle means.
    pub(crate) fn alone_with_driver<R>(&self, body: &Body, f: impl FnOnce() -> R) -> R {
        self.relaxed(|| self.in_context(context_of(body), f))
    }
}
