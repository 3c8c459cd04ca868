//! The cache: its bounds and what it counts, and what is known of shapes and classes.

use super::class::{Class, Shape, Template};
use super::handle::{Handle, Handles};
use super::needed::Needed;
use super::real::Real;
use crate::gate;
use crate::process::lock::lock;
use crate::vendor::graphs::{GraphCalls, Reading};
use crate::vendor::records::{Records, Scratch, Source};
use gpumem_wire::kinds::{Pinned, Vendor};
use gpumem_wire::settings::Settings;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, Weak};

/// Bounds, as the user set them; 0: no such bound. They may change while the process runs.
#[derive(Debug)]
pub struct Bounds {
    pub count: AtomicU64,
    pub bytes: AtomicU64,
    pub idle_ns: AtomicU64,
}

impl Bounds {
    /// Execs and bytes.
    fn most(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// Buffers for one call.
#[derive(Default)]
pub struct Work {
    pub reading: Reading,
    /// The source that `reading` has the records of: a handle is mostly launched right after its graph was
    /// read.
    pub read: Weak<Source>,
    pub scratch: Scratch,
    pub target: Records,
    /// The clone that stands for the handle, if its class has clones.
    pub clone: Option<Arc<Template>>,
}

/// The graph cache of one vendor's library. What a launch reads comes first, in one line of the processor's caches.
#[repr(C, align(64))]
pub struct Cache {
    /// Near a bound: launches leave events, so that what runs can be told from what does not.
    pub pressed: AtomicBool,
    pub execs: Handles<Handle>,
    pub vendor: Vendor,
    pub calls: &'static dyn GraphCalls,
    pub bounds: Bounds,
    pub graphs: Handles<super::folded::GraphHandle>,
    pub fold: AtomicBool,
    /// Why new handles are the library's own: a [`Pinned`]; 0: they are not.
    closed: AtomicU8,
    /// Captures that are about to begin, and queries of streams that no capture may meet.
    pub beginning: AtomicU32,
    pub querying: AtomicU32,
    /// Threads that destroy graphs which nothing refers to any more.
    pub ending: AtomicU32,
    /// Execs that no handle can use and that may still run.
    pub doomed: AtomicU32,
    /// Code that is about to be unloaded, and threads that instantiate a template of whatever code it was
    /// built of.
    pub going: AtomicU32,
    pub making: AtomicU32,
    pub(super) inner: Mutex<Inner>,
    /// Held by the control thread while it destroys execs; whether nothing is destroyed any more, as the process ends.
    pub(super) tending: Mutex<bool>,
    /// When memory was short last, ns.
    pub(super) short_ns: AtomicU64,
    works: Mutex<Vec<Work>>,
    pub(super) known: Mutex<Known>,
    pub(super) real_graphs: Mutex<super::folded::Graphs>,
    pub(super) thrash: Thrash,
}

/// What is counted.
#[derive(Default)]
pub(super) struct Inner {
    /// Every real exec there is or was.
    pub reals: Vec<&'static Real>,
    pub unused: Vec<&'static Real>,
    pub count: u64,
    pub bytes: u64,
    pub needed: Needed,
}

impl Inner {
    /// Real execs of a class; all that no handle has for ever, for 0.
    pub fn of_class(&self, class: usize) -> impl Iterator<Item = &'static Real> {
        let is = move |its: usize| its != 0 && (class == 0 || its == class);
        self.reals.iter().copied().filter(move |real| real.in_use() && is(real.class.load(Relaxed)))
    }
}

/// Shapes and classes by what they are.
#[derive(Default)]
pub struct Known {
    /// Whether graphs with these features can be built again.
    pub rebuilds: FxHashMap<u64, bool>,
    pub shapes: FxHashMap<u64, Vec<Weak<Shape>>>,
    pub classes: FxHashMap<(usize, u64), Weak<Class>>,
    /// So many of each are looked through for those that are gone.
    pub most_shapes: usize,
    pub most_classes: usize,
}

/// What is held against what the cache saves.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub launches: u64,
    pub saved_ns: u64,
    pub miss_ns: u64,
    pub at_ns: u64,
}

/// Retargets for want of room, in a window.
#[derive(Default)]
pub(super) struct Thrash {
    pub misses: AtomicU64,
    pub said_ns: AtomicU64,
    /// What the last look saw.
    pub before: Mutex<Seen>,
}

/// There are execs that are to go and could not yet: over the bounds, or good for nothing.
static OVER: AtomicBool = AtomicBool::new(false);

/// The program has waited for work: what could only go when that is over may go now.
#[inline(always)]
pub fn waited() {
    if OVER.load(Relaxed) {
        settle();
    }
}

/// Something is to go when it can.
pub(super) fn to_go() {
    OVER.store(true, Relaxed);
}

#[cold]
fn settle() {
    OVER.store(false, Relaxed);
    for cache in super::caches() {
        let _ = cache.relaxed(|| super::contained(cache, || cache.settle()));
        OVER.fetch_or(cache.over_bound() || cache.doomed.load(Relaxed) > 0, Relaxed);
    }
}

impl Cache {
    /// `None` if no handles can be reserved.
    pub fn new(
        vendor: Vendor,
        calls: &'static dyn GraphCalls,
        settings: &Settings,
        starts: (&'static AtomicUsize, &'static AtomicUsize),
    ) -> Option<Self> {
        Some(Self {
            vendor,
            calls,
            bounds: Bounds {
                count: settings.graph_cache.into(),
                bytes: settings.graph_cache_bytes.into(),
                idle_ns: settings.graph_idle.into(),
            },
            execs: Handles::new(starts.0)?,
            graphs: Handles::new(starts.1)?,
            fold: settings.graph_fold.into(),
            closed: AtomicU8::new(0),
            beginning: AtomicU32::new(0),
            ending: AtomicU32::new(0),
            doomed: AtomicU32::new(0),
            going: AtomicU32::new(0),
            making: AtomicU32::new(0),
            querying: AtomicU32::new(0),
            pressed: AtomicBool::new(false),
            inner: Mutex::default(),
            tending: Mutex::default(),
            short_ns: AtomicU64::new(0),
            works: Mutex::default(),
            known: Mutex::default(),
            real_graphs: Mutex::default(),
            thrash: Thrash::default(),
        })
    }

    /// Goes by these variables from now on.
    pub fn goes_by(&self, settings: &Settings) {
        let Bounds { count, bytes, idle_ns } = &self.bounds;
        bytes.store(settings.graph_cache_bytes, Relaxed);
        idle_ns.store(settings.graph_idle, Relaxed);
        self.fold.store(settings.graph_fold, Relaxed);
        // 0 turns the cache off, and what there is keeps its bound.
        if settings.graph_cache != 0 {
            count.store(settings.graph_cache, Relaxed);
        }
    }

    /// Whether new handles may be ours.
    ///
    /// # Errors
    /// Why not.
    pub fn is_open(&self) -> Result<(), Pinned> {
        match self.closed.load(Relaxed) {
            0 => Ok(()),
            why => Err(Pinned::from_u8(why).unwrap_or(Pinned::UnknownCall)),
        }
    }

    /// From now on new handles are the library's own.
    pub fn close(&self, why: Pinned) {
        self.closed.store(why as u8, Relaxed);
    }

    /// Runs `f` with buffers.
    pub fn with_work<R>(&self, f: impl FnOnce(&mut Work) -> R) -> R {
        let mut work = lock(&self.works).pop().unwrap_or_default();
        let result = f(&mut work);
        work.clone = None;
        let mut works = lock(&self.works);
        // As many as threads usually meet here.
        if works.len() < 4 {
            works.push(work);
        }
        result
    }

    /// Counts an exec that is about to be made, if there is room for it; without room if `over`.
    pub fn reserve(&self, (host, device): (u64, u64), over: bool) -> bool {
        let mut inner = lock(&self.inner);
        let bytes = host + device;
        let room = self.has_room(inner.count, inner.bytes + bytes);
        if room || over {
            inner.count += 1;
            inner.bytes += bytes;
            self.look_at_pressure(&inner);
        }
        room
    }

    /// Whether there would be room for an exec if another went.
    pub(super) fn fits_in_place_of(&self, (host, device): (u64, u64), other: &Real) -> bool {
        let inner = lock(&self.inner);
        let left = inner.bytes.saturating_sub(other.bytes());
        self.has_room(inner.count.saturating_sub(1), left + host + device)
    }

    /// Whether there may be one more than so many, with so many bytes in all.
    fn has_room(&self, others: u64, bytes: u64) -> bool {
        let (count, most) = self.bounds.most();
        (count == 0 || others < count) && (most == 0 || bytes <= most)
    }

    /// An exec is gone, or was not made after all.
    pub fn release(&self, (host, device): (u64, u64)) {
        let mut inner = lock(&self.inner);
        inner.count -= 1;
        inner.bytes -= host + device;
        self.look_at_pressure(&inner);
    }

    fn look_at_pressure(&self, inner: &Inner) {
        let (count, bytes) = self.bounds.most();
        let near = |now: u64, most: u64| most != 0 && now >= most - most / 4;
        self.pressed.store(near(inner.count, count) || near(inner.bytes, bytes), Relaxed);
        if self.exceeds(inner) {
            to_go();
        }
    }

    fn exceeds(&self, inner: &Inner) -> bool {
        let (count, bytes) = self.bounds.most();
        (count != 0 && inner.count > count) || (bytes != 0 && inner.bytes > bytes)
    }

    pub fn over_bound(&self) -> bool {
        self.exceeds(&lock(&self.inner))
    }

    /// All real execs, for those who look for some.
    pub fn reals(&self) -> Vec<&'static Real> {
        lock(&self.inner).reals.clone()
    }

    /// Another context may get the handle of one that goes: its graphs are of other shapes.
    pub fn forget_classes_of(&self, context: u64) {
        let mut known = lock(&self.known);
        let of_another = |shape: &Weak<Shape>| shape.upgrade().is_some_and(|shape| shape.context != context);
        known.shapes.retain(|_, same| {
            same.retain(of_another);
            !same.is_empty()
        });
        known.classes.retain(|_, class| class.upgrade().is_some_and(|class| class.shape.context != context));
    }

    /// The shape that has these bytes, which `id` is the fingerprint of.
    pub fn shape_of(&self, bytes: &[u8], id: u64, scratch: &mut Scratch) -> Option<Arc<Shape>> {
        let same: Vec<_> = lock(&self.known).shapes.get(&id)?.iter().filter_map(Weak::upgrade).collect();
        same.into_iter().find(|shape| shape.is(bytes, scratch))
    }
}

/// Whether anything in the process captures; yes, if nobody counts.
pub fn capturing() -> bool {
    gate::record_if_started(|shim| shim.registry.streams.capturing() > 0).unwrap_or(true)
}
