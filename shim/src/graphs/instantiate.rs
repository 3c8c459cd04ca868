//! A handle is made, and ends.

use super::class::{Class, Recipe, Shape};
use super::handle::{Apart, Body, context_of};
use super::needed::Need;
use super::nodes::KnownNodes;
use super::real::LOST;
use super::{Cache, Work};
use crate::gate;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::process::lock::lock;
use crate::progress::activity;
use crate::progress::queries::capturing;
use crate::records;
use crate::records::handles::MadeHandle;
use crate::vendor::graphs::{Read, Reading};
use crate::vendor::source::{Packed, Source};
use gpumem_abi::types::{Graph, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::Pinned;
use rustc_hash::FxHasher;
use std::hash::Hasher;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Weak};

/// `…_DEVICE_LAUNCH`: kernels get the handle, and they know no handles of ours.
const DEVICE_LAUNCH: u64 = 4;
/// All flags that there are: `…_AUTO_FREE_ON_LAUNCH`, `…_UPLOAD`, `…_DEVICE_LAUNCH`, `…_USE_NODE_PRIORITY`.
const KNOWN_FLAGS: u64 = 15;
/// Sets of features that are remembered.
const MOST_FEATURES: usize = 1024;
/// `…_UPLOAD`: this is done once and is no property of the exec.
const UPLOAD: u64 = 2;

impl Cache {
    /// A handle for an exec of this graph. The library is called only for the first handle of a class.
    ///
    /// # Errors
    /// Why the handle has to be the library's own. [`Pinned::None`] means that an instantiate failed: then the library
    /// gives its own error.
    pub(crate) fn instantiate_handle(
        &self,
        graph: Graph,
        flags: u64,
        graph_serial: Option<u64>,
    ) -> Result<MadeHandle, Pinned> {
        if flags & DEVICE_LAUNCH != 0 {
            return Err(Pinned::DeviceLaunch);
        }
        if flags & !KNOWN_FLAGS != 0 {
            gate::record_if_started(|shim| shim.met(&format!("instantiate flags {:#x}", flags & !KNOWN_FLAGS)));
            return Err(Pinned::UnknownFlag);
        }
        if !self.usable() {
            return Err(Pinned::None);
        }
        self.library.calls.ready()?;
        let flags = flags & !UPLOAD;
        let made = || self.with_work(|work| self.made(graph, flags, graph_serial, work));
        let _relaxed = self.library.relax();
        self.handles.contain(made).unwrap_or(Err(Pinned::None))
    }

    fn made(&self, graph: Graph, flags: u64, graph_serial: Option<u64>, work: &mut Work) -> Result<MadeHandle, Pinned> {
        let start = clock::precise_ns();
        let folded = self.folded(graph);
        let is_read = folded.is_none();
        let real_graph = || self.unfolded(graph).ok_or(Pinned::None);
        let (class, recipe, template, of_class) = match self.recipe_of(graph, folded, work)? {
            (Read::Whole, recipe) => {
                let recipe = recipe.ok_or(Pinned::Parameters)?;
                let class = self.class_of(&recipe.shape, flags, |shape, flags| Class::new(shape, flags, false));
                let first = is_read && class.instantiate_ns.load(Relaxed) == 0;
                let of_class = if first { self.read_template(graph, &class, &recipe, work) } else { None };
                self.fold(graph, &recipe);
                (class, Some(recipe), None, of_class)
            }
            (read, _) => {
                let template = Arc::new(self.cloned(real_graph()?)?);
                let shared = read == Read::CloneShared;
                let (shape, _) = self.shape_of_reading(work, !shared);
                let class = match shared {
                    true => self.class_of(&shape, flags, Class::of_clones),
                    false => Arc::new(Class::new(shape, flags, true)),
                };
                (class, None, Some(template), None)
            }
        };
        // Setters name the nodes that the graph has now. Of a folded graph nobody has any nodes.
        let nodes = self.folded(graph).is_none().then(|| pack_nodes(work));
        let took = clock::precise_ns() - start;
        let (index, handle) = self.handles.take().ok_or(Pinned::Room)?;
        let source_bytes =
            recipe.as_ref().map_or(0, |recipe| recipe.source.bytes()) + nodes.as_ref().map_or(0, KnownNodes::bytes);
        let mut body = lock(&handle.body);
        *body = Body {
            class: Some(class.clone()),
            source: recipe.map(|recipe| recipe.source),
            graph: graph as u64,
            graph_serial: graph_serial.and_then(NonZeroU64::new),
            ..Body::default()
        };
        if template.is_some() || nodes.is_some() {
            *body.apart_mut() = Apart { template, nodes, ..Apart::default() };
        }
        handle.lost_its.store(false, Relaxed);
        let need = self.need_of(&body);
        self.need_is(Need::default(), need);
        let first = class.instantiate_ns.load(Relaxed) == 0;
        if first {
            // The first exec of a class is made here, so that errors appear where the program expects them.
            match self.hold(handle, &body, LOST, work) {
                Ok(lease) => handle.gets(&lease, index),
                Err(_) => {
                    self.need_is(need, Need::default());
                    *body = Body::default();
                    self.handles.give(index);
                    return Err(Pinned::None);
                }
            }
        }
        // From here on the exec keeps the class alive.
        drop(of_class);
        let saved_ns = class.instantiate_ns.load(Relaxed).saturating_sub(took);
        Ok(MadeHandle {
            index,
            handle: self.handles.address(index),
            class: class.number(),
            counts: class.shape.counts,
            source_bytes,
            resident: first,
            saved_ns: if first { 0 } else { saved_ns },
        })
    }

    /// What a graph holds. It is known if the graph is folded; otherwise the graph is read into `work.reading`.
    ///
    /// # Errors
    /// Why no other exec can stand in for one of this graph.
    pub(crate) fn recipe_of(
        &self,
        graph: Graph,
        folded: Option<Recipe>,
        work: &mut Work,
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
            // The library pairs the nodes of two graphs from the sinks on, in the order in which they became sinks. It
            // does not tell this order, and a clone keeps it (measured on an H200, driver 580).
            Read::Whole if work.reading.sinks > 1 => Ok((Read::CloneOnly, None)),
            // An update in the form from before CUDA 12 compares the places of all nodes that both graphs ever had. A
            // clone keeps these places as well (measured there too).
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

    /// The shape of what was read. Whether the shape is new; then what was read is its base.
    pub(super) fn shape_of_reading(&self, work: &mut Work, alone: bool) -> (Arc<Shape>, bool) {
        let Reading { shape, records, .. } = &work.reading;
        let mut hasher = FxHasher::default();
        hasher.write(shape);
        let id = hasher.finish();
        if !alone && let Some(known) = self.shape_of(shape, id, &mut work.scratch) {
            return (known, false);
        }
        if work.reading.waits_outside() {
            activity::outside(true);
        }
        let key = Packed::new(shape, &mut work.scratch);
        let context = shape.first_chunk().map_or(0, |context| u64::from_le_bytes(*context));
        let base = if alone { Source::default() } else { Source::fold(records, None, &mut work.scratch) };
        let made = Arc::new(Shape::new(key, id, &work.reading, context, base));
        if alone {
            return (made, true);
        }
        let mut known = lock(&self.known);
        known.forget_gone_shapes();
        let same = known.shapes.entry(id).or_default();
        same.retain(|shape| shape.strong_count() > 0);
        // Another thread may have made the same shape first.
        if let Some(first) = same.iter().filter_map(Weak::upgrade).find(|shape| shape.key == made.key) {
            return (first, false);
        }
        same.push(Arc::downgrade(&made));
        (made, true)
    }

    /// Whether a graph built from what was read reads the same. That is tried once for each set of features. Graphs for
    /// which it does not are kept as clones.
    fn rebuilds(&self, work: &mut Work) -> bool {
        let features = self.library.calls.features(&work.reading.shape);
        if let Some(&known) = lock(&self.known).rebuilds.get(&features) {
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
        let mut known = lock(&self.known);
        if known.rebuilds.len() >= MOST_FEATURES {
            known.rebuilds.clear();
        }
        known.rebuilds.insert(features, rebuilds);
        rebuilds
    }

    pub(super) fn class_of(&self, shape: &Arc<Shape>, flags: u64, new: fn(Arc<Shape>, u64) -> Class) -> Arc<Class> {
        let mut known = lock(&self.known);
        known.forget_gone_classes();
        let entry = known.classes.entry((Arc::as_ptr(shape) as usize, flags)).or_default();
        if let Some(class) = entry.upgrade().filter(|class| Arc::ptr_eq(&class.shape, shape)) {
            return class;
        }
        let class = Arc::new(new(shape.clone(), flags));
        *entry = Arc::downgrade(&class);
        class
    }

    /// Whether the library would answer normally. Where work went wrong, all its calls answer that error.
    pub(super) fn usable(&self) -> bool {
        !activity::broken() || self.library.calls.allowed() == SUCCESS
    }

    /// Whether execs may be made and destroyed now. A capture that forbids such calls is disturbed here as it is by the
    /// library's own call.
    ///
    /// # Errors
    /// What the library answers then.
    pub(crate) fn allowed(&self) -> Result<(), Status> {
        match capturing() {
            true => match self.library.calls.allowed() {
                SUCCESS => Ok(()),
                status => Err(status),
            },
            false => Ok(()),
        }
    }

    /// A handle ends.
    ///
    /// # Errors
    /// 1 if it is not in use.
    pub(crate) fn end_handle(&self, index: u32) -> Result<(), Status> {
        let handle = self.handles.get(index).ok_or(super::handle::INVALID)?;
        self.allowed()?;
        let mut guard = lock(&handle.body);
        if guard.class.is_none() && guard.apart().ended.is_none() {
            return Err(super::handle::INVALID);
        }
        let body = std::mem::take(&mut *guard);
        self.need_is(self.need_of(&body), Need::default());
        let within = self.library.relax_in(context_of(&body));
        self.part_for_ever(handle, &body);
        drop(within);
        let slot = handle.slot.swap(NO_SLOT, Relaxed);
        drop(guard);
        self.handles.give(index);
        gate::record_if_started(|shim| {
            shim.count(counters::HANDLES_ENDED, 1);
            records::handles::source_is(shim, slot, 0);
        });
        Ok(())
    }
}

/// The nodes just read.
fn pack_nodes(work: &mut Work) -> KnownNodes {
    KnownNodes::new(&work.reading.nodes, &mut work.scratch)
}
