//! Changes of an exec by the program: an update from a graph ([`update`]), a change of one node ([`node`]), or another
//! call of the library with the exec.

mod node;
mod update;

pub(crate) use node::NodeChange;
pub(crate) use update::Updated;

use super::class::Class;
use super::handle::{Body, Handle, context_of, source_bytes};
use super::real::{LOST, Lease};
use super::store::ExecStore;
use crate::backend::graphs::StreamArg;
use crate::gate;
use crate::progress::queries::capturing;
use crate::records;
use gpumem_abi::types::{GraphExec, NOT_READY, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::kinds::Pinned;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

/// A handle that the program's call uses, with its body locked.
pub(crate) struct InUse {
    store: &'static ExecStore,
    index: u32,
    handle: &'static Handle,
    body: MutexGuard<'static, Body>,
    /// The handle's class when the call began.
    class: Arc<Class>,
}

impl InUse {
    /// # Errors
    /// A status for the program if the handle is not valid.
    pub(crate) fn begin(cache: &'static ExecStore, index: u32) -> Result<Self, Status> {
        let (handle, body, class) = cache.handles().live(index)?;
        Ok(Self { store: cache, index, handle, body, class })
    }

    /// Leases the handle's real exec. If the handle has none, makes one that holds the handle's content.
    fn real(&self) -> Result<Lease, Status> {
        if let Some(lease) = self.handle.lease() {
            return Ok(lease);
        }
        let _within = self.store.library().relax_in(context_of(&self.body));
        self.store.held(self.handle, &self.body, LOST)
    }

    /// Gives the exec to the handle.
    fn publish(&self, lease: Lease) {
        self.store.handles().publish(lease, self.index, self.handle);
    }

    /// Keeps the exec with the handle from now on.
    fn own(&mut self, lease: Lease, why: Pinned) {
        self.store.own(lease, self.index, self.handle, &mut self.body, why);
    }

    /// Reports to the records how many bytes the handle's source takes now.
    fn source_changed(&self) {
        if !self.body.apart().owned {
            let (slot, bytes) = (self.handle.slot.load(Relaxed), source_bytes(&self.body));
            gate::record_if_started(|shim| records::handles::source_is(shim, slot, bytes));
        }
    }

    /// Runs `f` with the real exec. If `why` gives a reason, the exec stays with the handle from now on.
    ///
    /// # Errors
    /// The library's status, if the handle has no exec and none can be made.
    pub(crate) fn with_real<R>(mut self, why: Option<Pinned>, f: impl FnOnce(GraphExec) -> R) -> Result<R, Status> {
        let lease = self.real()?;
        let result = f(lease.real().exec());
        match why {
            Some(why) => self.own(lease, why),
            None => self.publish(lease),
        }
        Ok(result)
    }
}

/// Uploads a handle for the program. `real` uploads a real exec.
///
/// Some libraries have unreliable uploads ([`GraphBehaviour::uploads`](crate::backend::graphs::GraphBehaviour)). There
/// the first launch uploads. During a capture, and for an invalid stream, the library itself has to answer.
///
/// # Errors
/// A status for the program if the handle is not valid.
pub(crate) fn upload(
    cache: &'static ExecStore,
    index: u32,
    to: StreamArg,
    real: impl FnOnce(GraphExec) -> Status,
) -> Result<Status, Status> {
    let used = InUse::begin(cache, index)?;
    let calls = cache.library().calls;
    if !used.body.apart().owned && !calls.behaviour().uploads {
        let said = cache.completion().query_stream(to, || !capturing(), || calls.query(to));
        if matches!(said, Some(SUCCESS | NOT_READY)) {
            return Ok(SUCCESS);
        }
    }
    match used.with_real(None, real) {
        // The program got this memory when it instantiated. Its launches can do without an exec.
        Ok(OUT_OF_MEMORY) | Err(OUT_OF_MEMORY) => Ok(SUCCESS),
        status => status,
    }
}
