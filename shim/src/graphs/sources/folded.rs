//! The shim's graph handles. A captured graph that the program keeps without node handles is held as a recipe while it
//! is unused. It is built again on its next use.

use super::Sources;
use crate::gate;
use crate::graphs::class::Recipe;
use crate::graphs::handle::INVALID;
use crate::graphs::nodes::{self, KnownNodes};
use crate::process::handle_range::index_in;
use crate::process::lock::lock;
use crate::process::raised::Raised;
use crate::records;
use gpumem_abi::types::{Graph, GraphNode, Status};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// A graph as the program knows it.
#[derive(Default)]
pub(crate) struct GraphHandle {
    body: Mutex<GraphBody>,
}

#[derive(Default)]
struct GraphBody {
    in_use: bool,
    /// The library's graph, if there is one now.
    real: Option<usize>,
    /// A function that may give out nodes was called with the graph. The graph is never folded again.
    seen: bool,
    recipe: Option<Recipe>,
    /// The nodes of the graph that was built from the recipe.
    nodes: Option<KnownNodes>,
}

impl GraphHandle {
    /// Returns the known content of the graph. `None` if the handle has no graph. `Some(None)` if the content is
    /// unknown, or cannot be looked up without waiting.
    pub(crate) fn recipe_if_free(&self) -> Option<Option<Recipe>> {
        let Ok(body) = self.body.try_lock() else { return Some(None) };
        // A graph that the program has seen may have been changed since.
        body.in_use.then(|| body.recipe.clone().filter(|_| !body.seen))
    }

    /// Forgets a recipe whose context ends: nothing can be built from it any more.
    pub(super) fn forget_recipe_of(&self, context: u64) {
        lock(&self.body).recipe.take_if(|recipe| recipe.shape.context == context);
    }
}

/// The most graphs that were folded and are not destroyed yet. Destroying one takes 0.1 ms for 1000 nodes (measured on
/// an H200, driver 580). When the program next waits for the device, it may have that time to spare.
const MOST_WAITING: usize = 2;

/// Graphs that wait to be destroyed, in all caches; one more while the process is parked.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Counts one thing more, or less, that the program's waits have to look after.
pub(crate) fn count_waiting(more: bool) {
    if more {
        WAITING.fetch_add(1, Relaxed);
    } else {
        WAITING.fetch_sub(1, Relaxed);
    }
}

/// Returns true if graphs wait to be destroyed, or the process is parked.
#[inline(always)]
pub(crate) fn any_waiting() -> bool {
    WAITING.load(Relaxed) != 0
}

/// Knowledge about the library's own graphs.
#[derive(Default)]
pub(crate) struct Graphs {
    /// Graphs that were folded and are to be destroyed, each with its context.
    waiting: VecDeque<(usize, u64)>,
    /// Graphs whose handles the program was given during their capture. It may hold their nodes.
    given_out: FxHashSet<usize>,
    /// Graphs that hold references to objects of the program.
    user_objects: FxHashSet<usize>,
    /// The index of each graph's handle.
    handles: FxHashMap<usize, u32>,
}

impl Graphs {
    /// Queues a graph that has to be destroyed before this context ends.
    fn wait_to_go(&mut self, graph: Graph, context: u64) {
        self.waiting.push_back((graph as usize, context));
        WAITING.fetch_add(1, Relaxed);
    }
}

impl Sources {
    #[cfg(test)]
    pub(crate) fn wait_to_go(&self, graph: Graph, context: u64) {
        lock(&self.real_graphs).wait_to_go(graph, context);
    }

    /// Returns true if new graphs are the shim's, so that they can be folded.
    fn folds(&self) -> bool {
        self.fold.load(Relaxed) && self.library.calls.behaviour().folds
    }

    fn graph_index(&self, graph: Graph) -> Option<u32> {
        index_in(self.graphs.start(), graph as usize)
    }

    /// Returns a captured graph's handle: the shim's, unless the program has seen the graph already.
    pub(crate) fn captured(&self, real: Graph) -> Graph {
        let mut known = lock(&self.real_graphs);
        let seen = known.given_out.remove(&(real as usize));
        if let Some(&index) = known.handles.get(&(real as usize)) {
            // The graph was captured into the program's own graph.
            return self.graphs.address(index);
        }
        if !self.folds() || seen {
            return real;
        }
        drop(known);
        let Some((index, handle)) = self.graphs.take() else { return real };
        *lock(&handle.body) = GraphBody { in_use: true, real: Some(real as usize), ..Default::default() };
        lock(&self.real_graphs).handles.insert(real as usize, index);
        self.graphs.address(index)
    }

    /// Notes that the program was given a graph that is being captured.
    pub(crate) fn given_out(&self, real: Graph) {
        lock(&self.real_graphs).given_out.insert(real as usize);
    }

    /// Remembers that the graph holds references to objects of the program.
    pub(crate) fn note_user_objects(&self, real: Graph) {
        lock(&self.real_graphs).user_objects.insert(real as usize);
    }

    pub(crate) fn holds_user_objects(&self, real: Graph) -> bool {
        lock(&self.real_graphs).user_objects.contains(&(real as usize))
    }

    /// Notes that one graph now holds another's content, as its clone or with it as a child graph.
    pub(crate) fn inherits(&self, from: Graph, to: Graph) {
        let mut known = lock(&self.real_graphs);
        if known.user_objects.contains(&(from as usize)) {
            known.user_objects.insert(to as usize);
        }
    }

    /// Returns true if the program may have destroyed nodes of a graph. The graph of a destroyed node is unknown. But
    /// the program has no node to destroy of a shim's graph that it has not seen.
    pub(super) fn may_lack_nodes(&self, graph: Graph) -> bool {
        let handle = self.graph_index(graph).and_then(|index| self.graphs.get(index));
        nodes::any_destroyed() && handle.is_none_or(|handle| lock(&handle.body).seen)
    }

    /// Returns the content of a graph of the shim, if known.
    pub(crate) fn folded(&self, graph: Graph) -> Option<Recipe> {
        let handle = self.graphs.get(self.graph_index(graph)?)?;
        let body = lock(&handle.body);
        // A graph that the program has seen may have been changed since.
        body.recipe.clone().filter(|_| !body.seen)
    }

    /// Returns the library's graph of a handle, for calls that give out no node. `None` if it cannot be built now.
    pub(crate) fn unfolded(&self, graph: Graph) -> Option<Graph> {
        self.library_graph(graph, false)
    }

    /// As [`Self::unfolded`]. If the graph is `seen`, for any call: from now on the program may have its nodes.
    pub(crate) fn library_graph(&self, graph: Graph, seen: bool) -> Option<Graph> {
        let Some(index) = self.graph_index(graph) else { return Some(graph) };
        let handle = self.graphs.get(index)?;
        let mut body = lock(&handle.body);
        if !body.in_use {
            return None;
        }
        body.seen |= seen;
        if let Some(real) = body.real {
            return Some(real as Graph);
        }
        let recipe = body.recipe.as_ref()?;
        let (built, nodes) = self.build(recipe)?;
        body.real = Some(built as usize);
        body.nodes = Some(self.with_work(|work| KnownNodes::new(&nodes, &mut work.scratch)));
        lock(&self.real_graphs).handles.insert(built as usize, index);
        gate::record_if_started(|shim| records::handles::graph_folded(shim, graph, None));
        Some(built)
    }

    fn build(&self, recipe: &Recipe) -> Option<(Graph, Vec<GraphNode>)> {
        let _within = self.library.relax_in(recipe.shape.context);
        self.with_work(|work| {
            work.unpack(&recipe.shape, &recipe.source).then_some(())?;
            let shape = recipe.shape.key.unpacked(&mut work.scratch)?;
            self.library.calls.build(shape, &work.target, true).ok()
        })
    }

    /// Folds a graph of the shim whose content was read: the recipe stands for the graph from now on.
    pub(crate) fn fold(&self, graph: Graph, recipe: &Recipe) {
        let Some(real) = self.folded_out_of(graph, recipe) else { return };
        let mut known = lock(&self.real_graphs);
        known.wait_to_go(real, recipe.shape.context);
        let oldest = if known.waiting.len() > MOST_WAITING { known.waiting.pop_front() } else { None };
        // A thread that destroys the context finds its graphs here, or waits for the thread that took them.
        let _ending = Raised::new(&self.ending);
        drop(known);
        if let Some((graph, _)) = oldest {
            WAITING.fetch_sub(1, Relaxed);
            self.library.calls.destroy_graph(graph as Graph);
        }
    }

    /// As [`Self::fold`], but the caller gets the library's graph. `None` if the graph stays as it is.
    pub(crate) fn folded_out_of(&self, graph: Graph, recipe: &Recipe) -> Option<Graph> {
        let handle = self.graph_index(graph).and_then(|index| self.graphs.get(index))?;
        let mut body = lock(&handle.body);
        if body.seen || !body.in_use {
            return None;
        }
        body.recipe = Some(recipe.clone());
        let real = body.real.take()?;
        drop(body);
        lock(&self.real_graphs).handles.remove(&real);
        let bytes = recipe.source.bytes();
        gate::record_if_started(|shim| records::handles::graph_folded(shim, graph, Some(bytes)));
        Some(real as Graph)
    }

    /// Destroys folded graphs that wait for it: those of one context, if one is given. If that context is `gone`, the
    /// library has destroyed them.
    pub(crate) fn destroy_folded(&self, context: Option<u64>, gone: bool) {
        let mut known = lock(&self.real_graphs);
        let all = std::mem::take(&mut known.waiting);
        let (now, later): (VecDeque<_>, _) =
            all.into_iter().partition(|(_, its)| context.is_none_or(|one| one == *its));
        known.waiting = later;
        WAITING.fetch_sub(now.len(), Relaxed);
        // As in `fold`.
        let _ending = Raised::new(&self.ending);
        drop(known);
        if !now.is_empty() && !gone {
            let _relaxed = self.library.relax();
            now.into_iter().for_each(|(graph, _)| self.library.calls.destroy_graph(graph as Graph));
        }
    }

    /// Ends a graph of the shim. Returns the library's graph of it, which the real function has to destroy. `Ok(None)`
    /// if there is none.
    ///
    /// # Errors
    /// 1 if the handle is not in use.
    pub(crate) fn end_graph(&self, graph: Graph) -> Result<Option<Graph>, Status> {
        let index = self.graph_index(graph).ok_or(INVALID)?;
        let handle = self.graphs.get(index).ok_or(INVALID)?;
        let mut body = lock(&handle.body);
        if !body.in_use {
            return Err(INVALID);
        }
        let body = std::mem::take(&mut *body);
        if let Some(real) = body.real {
            lock(&self.real_graphs).handles.remove(&real);
            self.forget_graph(real as Graph);
        }
        self.graphs.give(index);
        Ok(body.real.map(|real| real as Graph))
    }

    /// Forgets a graph of the library that is gone.
    pub(crate) fn forget_graph(&self, real: Graph) {
        let mut known = lock(&self.real_graphs);
        known.user_objects.remove(&(real as usize));
        known.given_out.remove(&(real as usize));
    }

    /// Returns the program's handle of a library's graph.
    pub(crate) fn handle_of(&self, real: Graph) -> Graph {
        lock(&self.real_graphs).handles.get(&(real as usize)).map_or(real, |&index| self.graphs.address(index))
    }

    /// Returns the index of a node in the graph that was built from its recipe.
    pub(crate) fn place_in_unfolded(&self, graph: Graph, node: GraphNode) -> Option<u32> {
        let handle = self.graphs.get(self.graph_index(graph)?)?;
        let body = lock(&handle.body);
        self.with_work(|work| body.nodes.as_ref()?.place_of(node, &mut work.scratch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graphs::tests::{FakeLibrary, library, start};
    use gpumem_wire::settings::Settings;
    use std::ptr::without_provenance_mut;

    fn sources() -> Sources {
        let (settings, _) = Settings::read(std::iter::empty());
        Sources::new(library(FakeLibrary::default()).0, &settings, start()).unwrap()
    }

    fn graph(at: usize) -> Graph {
        without_provenance_mut(at)
    }

    #[test]
    fn a_captured_graph_has_a_handle_of_ours_until_it_ends() {
        let (sources, real) = (sources(), graph(0x90));
        let ours = sources.captured(real);
        assert_ne!(ours, real);
        assert_eq!((sources.handle_of(real), sources.unfolded(ours)), (ours, Some(real)));
        assert_eq!((sources.end_graph(ours), sources.end_graph(ours)), (Ok(Some(real)), Err(INVALID)));
        assert_eq!((sources.handle_of(real), sources.unfolded(ours)), (real, None));
    }

    /// The program may have its nodes.
    #[test]
    fn a_graph_that_was_seen_during_its_capture_stays_the_librarys_own() {
        let (sources, real) = (sources(), graph(0x90));
        sources.given_out(real);
        assert_eq!(sources.captured(real), real);
        assert_eq!(sources.unfolded(real), Some(real));
    }

    #[test]
    fn what_holds_the_programs_objects_passes_that_on() {
        let sources = sources();
        sources.note_user_objects(graph(0x90));
        sources.inherits(graph(0x90), graph(0x98));
        sources.inherits(graph(0xa0), graph(0xa8));
        let holds = |at| sources.holds_user_objects(graph(at));
        assert_eq!([0x90, 0x98, 0xa0, 0xa8].map(holds), [true, true, false, false]);
        sources.forget_graph(graph(0x98));
        assert!(!holds(0x98));
    }
}
