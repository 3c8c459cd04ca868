//! The program updates an exec from a whole graph, or uploads it. change_node.rs changes single nodes.

use super::class::Recipe;
use super::class::{Class, Shape};
use super::handle::INVALID;
use super::handle::{Body, Handle};
use super::handle::{context_of, source_bytes};
use super::real::{LOST, Lease};
use super::retarget::{restore, retarget};
use super::store::needed::Need;
use super::{Cache, Work};
use crate::gate;
use crate::progress::queries::capturing;
use crate::records;
use crate::vendor::graphs::{Read, StreamArg};
use gpumem_abi::types::{Graph, GraphExec, NOT_READY, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::kinds::Pinned;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// How an update by the program went.
pub(crate) enum Updated {
    /// The handle means the graph now. The library was not asked, or not about this exec.
    Virtually,
    /// Refused, as the library would do without a look at any node.
    Refused,
    /// The library decided.
    Really(Status),
}

impl Cache {
    /// The program updates a handle from a graph. `real` asks the library, with a real exec and graph.
    ///
    /// # Errors
    /// A status for the program when the handle is no good.
    pub(crate) fn update(
        &'static self,
        index: u32,
        graph: Graph,
        real: impl FnOnce(GraphExec, Graph) -> Status,
    ) -> Result<Updated, Status> {
        let (handle, mut body, class) = self.handles().live(index)?;
        let mut recipe = None;
        if !body.apart().owned && !class.alone && self.usable() {
            let follow = || self.sources.with_work(|work| self.follow(handle, &mut body, &class, graph, work));
            let relaxed = self.library.relax();
            let verdict = self.handles().contain(follow)?;
            drop(relaxed);
            match verdict {
                Verdict::Followed => return Ok(Updated::Virtually),
                Verdict::Refused(recipe) => {
                    self.sources.fold(graph, &recipe);
                    return Ok(Updated::Refused);
                }
                Verdict::Asked(read) => recipe = read,
            }
        }
        // The library decides, and is given an exec that holds what the handle means.
        let known = self.sources.folded(graph).is_some();
        let library = self.sources.unfolded(graph).ok_or(if known { OUT_OF_MEMORY } else { INVALID })?;
        self.replace_worn(index, handle, &body);
        let mut lease = self.real_for(handle, &body)?;
        let status = real(lease.real().exec(), library);
        lease.body().updates = lease.body().updates.saturating_add(1);
        let follows = status == SUCCESS && {
            let mut becomes =
                |recipe| self.sources.with_work(|work| self.becomes(&mut lease, handle, &mut body, recipe, work));
            recipe.as_ref().is_some_and(&mut becomes) || self.clone_follows(&mut lease, &mut body, library)
        };
        if status != SUCCESS || follows {
            self.handles().publish(lease, index, handle);
        } else {
            // The exec now holds what the library made of both graphs, and no other exec may stand in for it.
            self.store.own(lease, index, handle, &mut body, Pinned::DriverUpdate);
        }
        self.source_changed(handle, &body);
        if let Some(recipe) = recipe {
            // Programs instantiate a graph after its update was refused. The graph need not be read again then.
            self.sources.fold(graph, &recipe);
        }
        Ok(Updated::Really(status))
    }

    /// If the graph is of the handle's class, the handle means it from now on.
    fn follow(
        &'static self,
        handle: &Handle,
        body: &mut Body,
        class: &Class,
        graph: Graph,
        work: &mut Work,
    ) -> Verdict {
        let folded = self.sources.folded(graph);
        let read = folded.is_none();
        let Ok((Read::Whole, Some(recipe))) = self.sources.recipe_of(graph, folded, work) else {
            return Verdict::Asked(None);
        };
        if !Arc::ptr_eq(&recipe.shape, &class.shape) {
            let number = |shape: &Shape| (shape.context, shape.nodes());
            let (ours, theirs) = (number(&class.shape), number(&recipe.shape));
            return match ours.0 == theirs.0 && ours.1 != theirs.1 {
                true => Verdict::Refused(recipe),
                false => Verdict::Asked(Some(recipe)),
            };
        }
        if body.source.as_ref() == Some(&recipe.source) && body.edits().changes.is_empty() {
            self.sources.fold(graph, &recipe);
            return Verdict::Followed; // as right after instantiate
        }
        let mut resident = None;
        if let Some(mut lease) = handle.lease() {
            // The library may refuse to set a node, and also to set it back. Then another exec takes this one's place,
            // and the launches of the new exec have to wait for the last launch of this one.
            let Some(completed) = self.store.completion().completed_or_marked(&mut lease) else {
                return Verdict::Asked(Some(recipe));
            };
            resident = Some((lease, completed));
        }
        let (before, changes) = (body.source.replace(recipe.source.clone()), body.take_changes());
        // The resident exec is set now, as the library would do, so that launches stay short.
        if let Some((mut lease, completed)) = resident {
            if read {
                work.target_is_read();
            }
            let known = read || work.unfold(body);
            let set = known && {
                let _entered = self.library.enter(class.shape.context);
                retarget(self.library, &mut lease, &mut work.target, &body.edits().disabled).is_ok()
            };
            if !set {
                // The library decides about the update, and is given an exec that is as it was before.
                if known && restore(self.library, &mut lease, &work.target).is_err() {
                    self.store.evict_and_destroy(lease, completed);
                }
                body.source = before;
                if !changes.is_empty() {
                    body.edits_mut().changes = changes;
                }
                return Verdict::Asked(Some(recipe));
            }
        }
        self.source_changed(handle, body);
        self.sources.fold(graph, &recipe);
        Verdict::Followed
    }

    /// The library has updated a handle's exec from a graph of another class. Whether the handle now means exactly that
    /// graph, and the exec is one of the graph's class.
    fn becomes(
        &'static self,
        lease: &mut Lease,
        handle: &Handle,
        body: &mut Body,
        recipe: &Recipe,
        work: &mut Work,
    ) -> bool {
        let Some(class) = body.class.clone().filter(|_| !body.apart().owned) else { return false };
        let mut shape = |shape: &Shape| shape.key.unpacked(&mut work.scratch).map(<[u8]>::to_vec);
        let shapes = shape(&class.shape).zip(shape(&recipe.shape));
        if !shapes.is_some_and(|(from, to)| self.library.calls.becomes(&from, &to)) {
            return false;
        }
        if !work.unpack(&recipe.shape, &recipe.source) {
            return false;
        }
        let now = self.sources.class_of(&recipe.shape, class.flags, |shape, flags| Class::new(shape, flags, false));
        if now.instantiate_ns.load(Relaxed) == 0 {
            // The library has taken a graph of this class, so the class counts as one that it instantiates.
            now.took(class.instantiate_ns.load(Relaxed));
        }
        lease.real().class.store(Arc::as_ptr(&now) as usize, Relaxed);
        let exec = lease.body();
        exec.class = Some(now.clone());
        std::mem::swap(&mut exec.content, &mut work.target);
        body.source = Some(recipe.source.clone());
        body.take_changes();
        let (slot, number) = (handle.slot.load(Relaxed), now.number());
        gate::record_if_started(|shim| records::handles::class_is(shim, slot, number));
        let before = Need::of(body);
        body.class = Some(now);
        self.store.need_is(before, Need::of(body));
        true
    }

    /// Tells the records how many bytes a handle's source takes now.
    pub(super) fn source_changed(&'static self, handle: &Handle, body: &Body) {
        if !body.apart().owned {
            let (slot, bytes) = (handle.slot.load(Relaxed), source_bytes(body));
            gate::record_if_started(|shim| records::handles::source_is(shim, slot, bytes));
        }
    }

    /// The handle's real exec, leased. If the handle has none, one is made to hold what the handle means.
    pub(super) fn real_for(&'static self, handle: &Handle, body: &Body) -> Result<Lease, Status> {
        match handle.lease() {
            Some(lease) => Ok(lease),
            None => {
                let _within = self.library.relax_in(context_of(body));
                self.held(handle, body, LOST)
            }
        }
    }

    /// Runs `f` with the handle's real exec. If `why` gives a reason, the exec stays with the handle from now on.
    pub(crate) fn with_real<R>(
        &'static self,
        index: u32,
        why: Option<Pinned>,
        f: impl FnOnce(GraphExec) -> R,
    ) -> Result<R, Status> {
        let (handle, mut body, _) = self.handles().live(index)?;
        let lease = self.real_for(handle, &body)?;
        let result = f(lease.real().exec());
        match why {
            Some(why) => self.store.own(lease, index, handle, &mut body, why),
            None => self.handles().publish(lease, index, handle),
        }
        Ok(result)
    }

    /// The program uploads a handle. `real` uploads a real exec.
    ///
    /// Some libraries have uploads that cannot be trusted ([`GraphBehaviour::uploads`](crate::vendor::graphs::GraphBehaviour)). There the
    /// first launch uploads. While something captures, and for a stream that is not valid, the library itself has to
    /// answer.
    ///
    /// # Errors
    /// A status for the program when the handle is not valid.
    pub(crate) fn upload(
        &'static self,
        index: u32,
        to: StreamArg,
        real: impl FnOnce(GraphExec) -> Status,
    ) -> Result<Status, Status> {
        let owned = self.handles().live(index)?.1.apart().owned;
        if !owned && !self.library.calls.behaviour().uploads {
            let said = self.store.completion().query_stream(to, || !capturing(), || self.library.calls.query(to));
            if matches!(said, Some(SUCCESS | NOT_READY)) {
                return Ok(SUCCESS);
            }
        }
        self.with_real(index, None, real)
    }
}

/// How an update is to be answered.
enum Verdict {
    /// The handle means the graph now.
    Followed,
    /// The graph has another number of nodes than the handle's. The library compares no further either.
    Refused(Recipe),
    /// The library has to decide. Inside is what the graph holds, if it could be read whole.
    Asked(Option<Recipe>),
}
