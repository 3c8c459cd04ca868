//! Makes a handle for an exec of a graph.

use super::ExecStore;
use super::class::{Class, Recipe, Template};
use super::handle::{Apart, Body};
use super::nodes::KnownNodes;
use super::real::LOST;
use super::sources::Buffers;
use super::store::make::WantedExec;
use super::store::needed::Need;
use crate::backend::graphs::Read;
use crate::gate;
use crate::process::clock;
use crate::process::lock::lock;
use crate::records::handles::MadeHandle;
use gpumem_abi::types::Graph;
use gpumem_wire::kinds::Pinned;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// `…_DEVICE_LAUNCH`: kernels get the handle, and they do not know the shim's handles.
const DEVICE_LAUNCH: u64 = 4;
/// All flags that exist: `…_AUTO_FREE_ON_LAUNCH`, `…_UPLOAD`, `…_DEVICE_LAUNCH`, `…_USE_NODE_PRIORITY`.
const KNOWN_FLAGS: u64 = 15;
/// `…_UPLOAD`: done once, so it is no property of the exec.
const UPLOAD: u64 = 2;

/// Makes a handle for an exec of this graph. Calls the library only for the first handle of a class.
///
/// # Errors
/// The reason why the handle has to be the library's own. [`Pinned::None`] means that an instantiate failed: then the
/// library gives its own error.
pub(crate) fn instantiate_handle(
    cache: &'static ExecStore,
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
    if !cache.library().is_usable() {
        return Err(Pinned::None);
    }
    cache.library().calls.ready()?;
    let flags = flags & !UPLOAD;
    let made = || cache.sources().with_work(|work| made(cache, graph, flags, graph_serial, work));
    let _relaxed = cache.library().relax();
    cache.handles().contain(made).unwrap_or(Err(Pinned::None))
}

#[inline(always)]
fn made(
    cache: &'static ExecStore,
    graph: Graph,
    flags: u64,
    graph_serial: Option<u64>,
    work: &mut Buffers,
) -> Result<MadeHandle, Pinned> {
    let start = clock::precise_ns();
    let Meaning { class, recipe, template, of_class } = meaning(cache, graph, flags, work)?;
    // Setters name the present nodes of the graph. The program has no nodes of a folded graph.
    let nodes =
        cache.sources().folded(graph).is_none().then(|| KnownNodes::new(&work.reading.nodes, &mut work.scratch));
    let took = clock::precise_ns() - start;
    let (index, handle) = cache.handles().execs().take().ok_or(Pinned::Room)?;
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
    cache.need_is(Need::default(), need);
    let first = class.instantiate_ns.load(Relaxed) == 0;
    if first {
        // The first exec of a class is made here, so that errors appear where the program expects them.
        match cache.hold(handle, &body, LOST, work) {
            Ok(lease) => handle.gets(&lease, index),
            Err(_) => {
                cache.need_is(need, Need::default());
                *body = Body::default();
                cache.handles().execs().give(index);
                return Err(Pinned::None);
            }
        }
    }
    // From here on the exec keeps the class alive.
    drop(of_class);
    let saved_ns = class.instantiate_ns.load(Relaxed).saturating_sub(took);
    Ok(MadeHandle {
        index,
        handle: cache.handles().execs().address(index),
        class: class.number(),
        counts: class.shape.counts,
        source_bytes,
        resident: first,
        saved_ns: if first { 0 } else { saved_ns },
    })
}

/// Content of a new handle.
struct Meaning {
    class: Arc<Class>,
    recipe: Option<Recipe>,
    /// The clone that stands for the graph, if no recipe does.
    template: Option<Arc<Template>>,
    /// The template of the class's first exec.
    of_class: Option<Arc<Template>>,
}

#[inline(always)]
fn meaning(cache: &'static ExecStore, graph: Graph, flags: u64, work: &mut Buffers) -> Result<Meaning, Pinned> {
    let folded = cache.sources().folded(graph);
    let is_read = folded.is_none();
    Ok(match cache.sources().recipe_of(graph, folded, work)? {
        (Read::Whole, recipe) => {
            let recipe = recipe.ok_or(Pinned::Parameters)?;
            let class =
                cache.sources().known().class(&recipe.shape, flags, |shape, flags| Class::new(shape, flags, false));
            let first = is_read && class.instantiate_ns.load(Relaxed) == 0;
            let of_class =
                if first { cache.read_template(graph, &recipe, &mut WantedExec { class: &class, work }) } else { None };
            cache.sources().fold(graph, &recipe);
            Meaning { class, recipe: Some(recipe), template: None, of_class }
        }
        (read, _) => {
            let real = cache.sources().unfolded(graph).ok_or(Pinned::None)?;
            let template = Arc::new(Template::clone_of(real, cache.library().calls)?);
            let shared = read == Read::CloneShared;
            let (shape, _) = cache.sources().shape_of_reading(work, !shared);
            let class = match shared {
                true => cache.sources().known().class(&shape, flags, Class::of_clones),
                false => Arc::new(Class::new(shape, flags, true)),
            };
            Meaning { class, recipe: None, template: Some(template), of_class: None }
        }
    })
}
