//! A handle is made, and ends.

use super::class::{Class, Template};
use super::handle::{Apart, Body, context_of};
use super::nodes::KnownNodes;
use super::real::LOST;
use super::store::needed::Need;
use super::{Cache, Work};
use crate::gate;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::process::lock::lock;
use crate::progress::activity;
use crate::progress::queries::capturing;
use crate::records;
use crate::records::handles::MadeHandle;
use crate::vendor::graphs::Read;
use gpumem_abi::types::{Graph, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::Pinned;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// `…_DEVICE_LAUNCH`: kernels get the handle, and they know no handles of ours.
const DEVICE_LAUNCH: u64 = 4;
/// All flags that there are: `…_AUTO_FREE_ON_LAUNCH`, `…_UPLOAD`, `…_DEVICE_LAUNCH`, `…_USE_NODE_PRIORITY`.
const KNOWN_FLAGS: u64 = 15;
/// `…_UPLOAD`: this is done once and is no property of the exec.
const UPLOAD: u64 = 2;

impl Cache {
    /// A handle for an exec of this graph. The library is called only for the first handle of a class.
    ///
    /// # Errors
    /// Why the handle has to be the library's own. [`Pinned::None`] means that an instantiate failed: then the library
    /// gives its own error.
    pub(crate) fn instantiate_handle(
        &'static self,
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
        let made = || self.sources.with_work(|work| self.made(graph, flags, graph_serial, work));
        let _relaxed = self.library.relax();
        self.handles().contain(made).unwrap_or(Err(Pinned::None))
    }

    fn made(
        &'static self,
        graph: Graph,
        flags: u64,
        graph_serial: Option<u64>,
        work: &mut Work,
    ) -> Result<MadeHandle, Pinned> {
        let start = clock::precise_ns();
        let folded = self.sources.folded(graph);
        let is_read = folded.is_none();
        let real_graph = || self.sources.unfolded(graph).ok_or(Pinned::None);
        let (class, recipe, template, of_class) = match self.sources.recipe_of(graph, folded, work)? {
            (Read::Whole, recipe) => {
                let recipe = recipe.ok_or(Pinned::Parameters)?;
                let class = self.sources.class_of(&recipe.shape, flags, |shape, flags| Class::new(shape, flags, false));
                let first = is_read && class.instantiate_ns.load(Relaxed) == 0;
                let of_class =
                    if first { self.store.read_template(&self.sources, graph, &class, &recipe, work) } else { None };
                self.sources.fold(graph, &recipe);
                (class, Some(recipe), None, of_class)
            }
            (read, _) => {
                let template = Arc::new(Template::clone_of(real_graph()?, self.library.calls)?);
                let shared = read == Read::CloneShared;
                let (shape, _) = self.sources.shape_of_reading(work, !shared);
                let class = match shared {
                    true => self.sources.class_of(&shape, flags, Class::of_clones),
                    false => Arc::new(Class::new(shape, flags, true)),
                };
                (class, None, Some(template), None)
            }
        };
        // Setters name the nodes that the graph has now. Of a folded graph nobody has any nodes.
        let nodes = self.sources.folded(graph).is_none().then(|| pack_nodes(work));
        let took = clock::precise_ns() - start;
        let (index, handle) = self.handles().take().ok_or(Pinned::Room)?;
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
        let need = Need::of(&body);
        self.store.need_is(Need::default(), need);
        let first = class.instantiate_ns.load(Relaxed) == 0;
        if first {
            // The first exec of a class is made here, so that errors appear where the program expects them.
            match self.hold(handle, &body, LOST, work) {
                Ok(lease) => handle.gets(&lease, index),
                Err(_) => {
                    self.store.need_is(need, Need::default());
                    *body = Body::default();
                    self.handles().give(index);
                    return Err(Pinned::None);
                }
            }
        }
        // From here on the exec keeps the class alive.
        drop(of_class);
        let saved_ns = class.instantiate_ns.load(Relaxed).saturating_sub(took);
        Ok(MadeHandle {
            index,
            handle: self.handles().address(index),
            class: class.number(),
            counts: class.shape.counts,
            source_bytes,
            resident: first,
            saved_ns: if first { 0 } else { saved_ns },
        })
    }

    /// Whether the library would answer normally. Where work went wrong, all its calls answer that error.
    pub(super) fn usable(&'static self) -> bool {
        !activity::broken() || self.library.calls.allowed() == SUCCESS
    }

    /// Whether execs may be made and destroyed now. A capture that forbids such calls is disturbed here as it is by the
    /// library's own call.
    ///
    /// # Errors
    /// What the library answers then.
    pub(crate) fn allowed(&'static self) -> Result<(), Status> {
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
    pub(crate) fn end_handle(&'static self, index: u32) -> Result<(), Status> {
        let handle = self.handles().get(index).ok_or(super::handle::INVALID)?;
        self.allowed()?;
        let mut guard = lock(&handle.body);
        if guard.class.is_none() && guard.apart().ended.is_none() {
            return Err(super::handle::INVALID);
        }
        let body = std::mem::take(&mut *guard);
        self.store.need_is(Need::of(&body), Need::default());
        let within = self.library.relax_in(context_of(&body));
        self.store.retire_exec(handle, &body);
        drop(within);
        let slot = handle.slot.swap(NO_SLOT, Relaxed);
        drop(guard);
        self.handles().give(index);
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
