//! Reads a graph into a recipe, if other execs can stand in for one of the graph.

use super::{Buffers, Sources};
use crate::backend::graphs::{Read, Reading};
use crate::backend::source::{Packed, Source};
use crate::gate;
use crate::graphs::class::{Recipe, Shape, Template};
use crate::graphs::handle::Body;
use crate::progress::activity;
use gpumem_abi::types::Graph;
use gpumem_wire::kinds::Pinned;
use rustc_hash::FxHasher;
use std::hash::Hasher;
use std::sync::{Arc, Weak};

impl Sources {
    /// Returns the content of a graph. It is known if the graph is folded; otherwise the graph is read into
    /// `work.reading`.
    ///
    /// # Errors
    /// The reason why no other exec can stand in for one of this graph.
    pub(crate) fn recipe_of(
        &self,
        graph: Graph,
        folded: Option<Recipe>,
        work: &mut Buffers,
    ) -> Result<(Read, Option<Recipe>), Pinned> {
        if let Some(recipe) = folded {
            return Ok((Read::Whole, Some(recipe)));
        }
        let real = self.unfolded(graph).ok_or(Pinned::None)?;
        if self.holds_user_objects(real) {
            return Err(Pinned::UserObjects);
        }
        work.read = Weak::new();
        let read = self.library.calls.read(real, &mut work.reading);
        if !work.reading.unknown.is_empty() {
            gate::record_if_started(|shim| shim.met(&work.reading.unknown));
        }
        match read? {
            read @ (Read::CloneOnly | Read::CloneShared) => Ok((read, None)),
            // The library pairs the nodes of two graphs starting at the sinks, in the order in which they became sinks.
            // It does not return this order, but a clone keeps it (measured on an H200, driver 580).
            Read::Whole if work.reading.sinks > 1 => Ok((Read::CloneOnly, None)),
            // An update in the form from before CUDA 12 compares the indices of all nodes that both graphs ever had. A
            // clone keeps these indices as well (measured there too).
            Read::Whole if self.may_lack_nodes(graph) => Ok((Read::CloneOnly, None)),
            Read::Whole => {
                let (shape, base) = self.shape_of_reading(work, false);
                if base && !self.rebuilds(work) {
                    return Ok((Read::CloneOnly, None));
                }
                let base = match base {
                    true => None,
                    false => shape.base(&mut work.scratch),
                };
                // For the base itself this is the difference from itself.
                let base = base.as_deref().unwrap_or(&work.reading.records);
                let source = Arc::new(Source::fold(&work.reading.records, Some(base), &mut work.scratch));
                work.read = Arc::downgrade(&source);
                Ok((Read::Whole, Some(Recipe { shape, source })))
            }
        }
    }

    /// Returns the shape of the graph that was read, and true if the shape is new; then that graph is its base.
    pub(crate) fn shape_of_reading(&self, work: &mut Buffers, alone: bool) -> (Arc<Shape>, bool) {
        let Reading { shape, records, .. } = &work.reading;
        let mut hasher = FxHasher::default();
        hasher.write(shape);
        let id = hasher.finish();
        if !alone && let Some(known) = self.known.shape(shape, id, &mut work.scratch) {
            return (known, false);
        }
        if work.reading.waits_outside() {
            activity::outside(true);
        }
        let key = Packed::new(shape, &mut work.scratch);
        let context = shape.first_chunk().map_or(0, |context| u64::from_le_bytes(*context));
        let base = if alone { Source::default() } else { Source::fold(records, None, &mut work.scratch) };
        let made = Arc::new(Shape::new(key, id, &work.reading, context, base));
        if alone { (made, true) } else { self.known.add_shape(made) }
    }

    /// Returns true if a graph that is built from the reading reads the same. That is tried once for each set of
    /// features. Graphs that do not read the same are kept as clones.
    fn rebuilds(&self, work: &mut Buffers) -> bool {
        let features = self.library.calls.features(&work.reading.shape);
        if let Some(known) = self.known.rebuilds(features) {
            return known;
        }
        let Ok((graph, _)) = self.library.calls.build(&work.reading.shape, &work.reading.records, true) else {
            return false;
        };
        let mut again = Reading::default();
        let read = self.library.calls.read(graph, &mut again);
        self.library.calls.destroy_graph(graph);
        let same = again.shape == work.reading.shape && again.records == work.reading.records;
        let rebuilds = read == Ok(Read::Whole) && same;
        self.known.set_rebuilds(features, rebuilds);
        rebuilds
    }

    /// Clones a graph that has the handle's shape.
    pub(crate) fn same_clone(&self, body: &Body, graph: Graph) -> Option<Arc<Template>> {
        let class = body.class.as_ref().filter(|class| class.alone && !self.holds_user_objects(graph))?;
        self.with_work(|work| {
            work.read = Weak::new();
            let read = self.library.calls.read(graph, &mut work.reading).ok()?;
            let same = Packed::new(&work.reading.shape, &mut work.scratch) == class.shape.key;
            (read != Read::Whole && same).then_some(())?;
            Template::clone_of(graph, self.library.calls).ok().map(Arc::new)
        })
    }
}
