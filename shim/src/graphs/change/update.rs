//! Updates of an exec from a whole graph, by the program.

use super::InUse;
use crate::backend::graphs::Read;
use crate::gate;
use crate::graphs::class::{Class, Recipe, Shape};
use crate::graphs::handle::INVALID;
use crate::graphs::real::Lease;
use crate::graphs::retarget::{restore, retarget};
use crate::graphs::sources::Buffers;
use crate::graphs::store::needed::Need;
use crate::records;
use gpumem_abi::types::{Graph, GraphExec, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::kinds::Pinned;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Result of an update by the program.
pub(crate) enum Updated {
    /// The handle now has the graph's content. The library was not asked, or not about this exec.
    Virtually,
    /// Refused, as the library would do without looking at any node.
    Refused,
    /// The library decided.
    Really(Status),
}

impl InUse {
    /// Updates the handle from a graph for the program. `real` asks the library, with a real exec and graph.
    ///
    /// # Errors
    /// A status for the program if the handle is not valid.
    pub(crate) fn update(
        mut self,
        graph: Graph,
        real: impl FnOnce(GraphExec, Graph) -> Status,
    ) -> Result<Updated, Status> {
        let (store, sources, library) = (self.store, self.store.sources(), self.store.library());
        let mut recipe = None;
        if !self.body.apart().owned && !self.class.alone && library.is_usable() {
            let relaxed = library.relax();
            let verdict = store.handles().contain(|| sources.with_work(|work| self.follow(graph, work)))?;
            drop(relaxed);
            match verdict {
                UpdateVerdict::Followed => return Ok(Updated::Virtually),
                UpdateVerdict::Refused(recipe) => {
                    sources.fold(graph, &recipe);
                    return Ok(Updated::Refused);
                }
                UpdateVerdict::Asked(read) => recipe = read,
            }
        }
        // The library decides. It is given an exec that holds the handle's content.
        let known = sources.folded(graph).is_some();
        let real_graph = sources.unfolded(graph).ok_or(if known { OUT_OF_MEMORY } else { INVALID })?;
        store.replace_worn(self.index, self.handle, &self.body);
        let mut lease = self.real()?;
        let status = real(lease.real().exec(), real_graph);
        lease.body().updates = lease.body().updates.saturating_add(1);
        let follows = status == SUCCESS && {
            let becomes = |recipe| sources.with_work(|work| self.becomes(&mut lease, recipe, work));
            recipe.as_ref().is_some_and(becomes) || self.clone_follows(&mut lease, real_graph)
        };
        if status != SUCCESS || follows {
            self.publish(lease);
        } else {
            // The exec now holds what the library made of both graphs, so no other exec may stand in for it.
            self.own(lease, Pinned::DriverUpdate);
        }
        self.source_changed();
        if let Some(recipe) = recipe {
            // Programs instantiate a graph after its update was refused. Then the graph need not be read again.
            sources.fold(graph, &recipe);
        }
        Ok(Updated::Really(status))
    }

    /// Gives the graph's content to the handle, if both have one class.
    fn follow(&mut self, graph: Graph, work: &mut Buffers) -> UpdateVerdict {
        let (store, sources, library) = (self.store, self.store.sources(), self.store.library());
        let folded = sources.folded(graph);
        let read = folded.is_none();
        let Ok((Read::Whole, Some(recipe))) = sources.recipe_of(graph, folded, work) else {
            return UpdateVerdict::Asked(None);
        };
        if !Arc::ptr_eq(&recipe.shape, &self.class.shape) {
            let number = |shape: &Shape| (shape.context, shape.nodes());
            let (ours, theirs) = (number(&self.class.shape), number(&recipe.shape));
            return match ours.0 == theirs.0 && ours.1 != theirs.1 {
                true => UpdateVerdict::Refused(recipe),
                false => UpdateVerdict::Asked(Some(recipe)),
            };
        }
        if self.body.source.as_ref() == Some(&recipe.source) && self.body.edits().changes.is_empty() {
            sources.fold(graph, &recipe);
            return UpdateVerdict::Followed; // as right after instantiate
        }
        let mut resident = None;
        if let Some(mut lease) = self.handle.lease() {
            // The library may refuse to set a node, and also to set it back. Then another exec takes this one's place,
            // and the launches of the new exec have to wait for the last launch of this one.
            let Some(completed) = store.completion().completed_or_marked(&mut lease) else {
                return UpdateVerdict::Asked(Some(recipe));
            };
            resident = Some((lease, completed));
        }
        let (before, changes) = (self.body.source.replace(recipe.source.clone()), self.body.take_changes());
        // The resident exec is set now, as the library would do, so that launches stay short.
        if let Some((mut lease, completed)) = resident {
            if read {
                work.target_is_read();
            }
            let known = read || work.unfold(&self.body);
            let set = known && {
                let _entered = library.enter(self.class.shape.context);
                retarget(library, &mut lease, &mut work.target, &self.body.edits().disabled).is_ok()
            };
            if !set {
                // The library decides on the update. It is given an exec as it was before.
                if known && restore(library, &mut lease, &work.target).is_err() {
                    store.evict_and_destroy(lease, completed);
                }
                self.body.source = before;
                if !changes.is_empty() {
                    self.body.edits_mut().changes = changes;
                }
                return UpdateVerdict::Asked(Some(recipe));
            }
        }
        self.source_changed();
        sources.fold(graph, &recipe);
        UpdateVerdict::Followed
    }

    /// Follows an update by the library from a graph of another class. Returns true if the handle now has exactly that
    /// graph's content, and the exec is one of the graph's class.
    fn becomes(&mut self, lease: &mut Lease, recipe: &Recipe, work: &mut Buffers) -> bool {
        let body = &mut self.body;
        let Some(class) = body.class.clone().filter(|_| !body.apart().owned) else { return false };
        let mut shape = |shape: &Shape| shape.key.unpacked(&mut work.scratch).map(<[u8]>::to_vec);
        let shapes = shape(&class.shape).zip(shape(&recipe.shape));
        if !shapes.is_some_and(|(from, to)| self.store.library().calls.becomes(&from, &to)) {
            return false;
        }
        if !work.unpack(&recipe.shape, &recipe.source) {
            return false;
        }
        let now = self
            .store
            .sources()
            .known()
            .class(&recipe.shape, class.flags, |shape, flags| Class::new(shape, flags, false));
        if now.instantiate_ns.load(Relaxed) == 0 {
            // The library has accepted a graph of this class, so the class counts as one that it instantiates.
            now.took(class.instantiate_ns.load(Relaxed));
        }
        lease.real().class.store(Arc::as_ptr(&now) as usize, Relaxed);
        let exec = lease.body();
        exec.class = Some(now.clone());
        std::mem::swap(&mut exec.content, &mut work.target);
        body.source = Some(recipe.source.clone());
        body.take_changes();
        let (slot, number) = (self.handle.slot.load(Relaxed), now.number());
        gate::record_if_started(|shim| records::handles::class_is(shim, slot, number));
        let before = Need::of(body);
        body.class = Some(now);
        self.store.need_is(before, Need::of(body));
        true
    }

    /// Follows an update of the exec by the library from a graph. Returns true if a clone of that graph now stands for
    /// the handle.
    fn clone_follows(&mut self, lease: &mut Lease, graph: Graph) -> bool {
        let library = self.store.library();
        if self.body.apart().owned || !library.calls.behaviour().clones_follow {
            return false;
        }
        let relaxed = library.relax();
        let Some(clone) = self.store.sources().same_clone(&self.body, graph) else { return false };
        drop(relaxed);
        lease.body().holds = Arc::downgrade(&clone);
        self.body.apart_mut().template = Some(clone);
        true
    }
}

/// Answer to an update.
enum UpdateVerdict {
    /// The handle now has the graph's content.
    Followed,
    /// The graph has a different number of nodes than the handle's. The library compares no further either.
    Refused(Recipe),
    /// The library has to decide. Contains the graph's content, if it could be read completely.
    Asked(Option<Recipe>),
}
