//! The bounded set of real execs: which one may be taken, when another is made, which one goes.

use super::class::{Class, Shape, Template};
use super::handle::{Handle, Handles, Pending, lock};
use super::real::{self, LOST, Lane, Lease, NOWHERE, Real};
use super::records::{Packed, Records, Scratch};
use crate::backend::graphs::{GraphCalls, Reading};
use crate::clock;
use crate::gate;
use gpumem_abi::types::{OUT_OF_MEMORY, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{Pinned, Vendor};
use gpumem_wire::settings::Settings;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, Weak};

/// Bounds, as the user set them; 0: no such bound.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub count: u64,
    pub bytes: u64,
    pub idle_ns: u64,
}

/// Destroying an exec and instantiating it again costs about ten times a retarget, so it has to be
/// idle for this many times as long before another class gets its room.
const COLD_TIMES: u64 = 10;
/// Candidates that are asked whether they still run, before the bound is exceeded instead.
const MAX_TRIES: usize = 8;

/// Buffers for one call.
#[derive(Default)]
pub struct Work {
    pub reading: Reading,
    pub scratch: Scratch,
    pub target: Records,
    /// The clone that stands for the handle, if its class has clones.
    pub clone: Option<Arc<Template>>,
}

/// The graph cache of one vendor's library.
pub struct Cache {
    pub vendor: Vendor,
    pub calls: &'static dyn GraphCalls,
    pub bounds: Bounds,
    pub execs: Handles<Handle>,
    pub graphs: Handles<super::folded::GraphHandle>,
    pub fold: bool,
    /// Why new handles are the library's own: a [`Pinned`]; 0: they are not.
    closed: AtomicU8,
    /// Something was removed from a graph.
    pub removals: AtomicBool,
    /// Captures that are about to begin, and looks at streams that none may meet.
    pub beginning: AtomicU32,
    pub looking: AtomicU32,
    /// Near a bound: launches leave events, so that what runs can be told from what does not.
    pub pressed: AtomicBool,
    inner: Mutex<Inner>,
    works: Mutex<Vec<Box<Work>>>,
    pub(super) known: Mutex<Known>,
    pub(super) real_graphs: Mutex<super::folded::Graphs>,
    thrash: Thrash,
}

#[derive(Default)]
struct Inner {
    /// Every real exec there is or was.
    reals: Vec<&'static Real>,
    unused: Vec<&'static Real>,
    count: u64,
    bytes: u64,
}

/// Shapes and classes by what they are.
#[derive(Default)]
pub struct Known {
    /// Whether graphs with these features can be built again.
    pub rebuilds: FxHashMap<u64, bool>,
    pub shapes: FxHashMap<u64, Vec<Weak<Shape>>>,
    pub classes: FxHashMap<(usize, u64), Weak<Class>>,
}

/// Retargets for want of room, in a window.
#[derive(Default)]
struct Thrash {
    launches: AtomicU64,
    misses: AtomicU64,
    said_ns: AtomicU64,
}

/// A look every so many launches that were no hit.
const THRASH_WINDOW: u64 = 256;
/// Said at most once in this time, ns.
const THRASH_EVERY_NS: u64 = 60_000_000_000;

/// How an exec came to a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Just instantiated.
    New,
    /// The exec of a handle that was destroyed.
    Parked,
    /// Taken from another handle.
    Taken,
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
                count: settings.graph_cache,
                bytes: settings.graph_cache_bytes,
                idle_ns: settings.graph_idle,
            },
            execs: Handles::new(starts.0)?,
            graphs: Handles::new(starts.1)?,
            fold: settings.graph_fold && calls.ways().folds,
            closed: AtomicU8::new(0),
            removals: AtomicBool::new(false),
            beginning: AtomicU32::new(0),
            looking: AtomicU32::new(0),
            pressed: AtomicBool::new(false),
            inner: Mutex::default(),
            works: Mutex::default(),
            known: Mutex::default(),
            real_graphs: Mutex::default(),
            thrash: Thrash::default(),
        })
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

    /// Real execs of a class (all, for 0), the least recently used first; parked ones before others.
    fn candidates(&self, class: usize) -> Vec<&'static Real> {
        let inner = lock(&self.inner);
        let of_class = |real: &&&Real| match real.class.load(Relaxed) {
            0 => false,
            its => class == 0 || its == class,
        };
        let mut found: Vec<_> = inner.reals.iter().filter(|real| real.in_use()).filter(of_class).copied().collect();
        drop(inner);
        found.sort_by_cached_key(|real| (real.owner.load(Relaxed) != 0, real.used_ns.load(Relaxed)));
        found
    }

    /// Counts an exec that is about to be made, if there is room for it; without room if `over`.
    pub fn reserve(&self, (host, device): (u64, u64), over: bool) -> bool {
        let mut inner = lock(&self.inner);
        let Bounds { count, bytes: most, .. } = self.bounds;
        let bytes = host + device;
        let room = (count == 0 || inner.count < count) && (most == 0 || inner.bytes + bytes <= most);
        if room || over {
            inner.count += 1;
            inner.bytes += bytes;
            self.look_at_pressure(&inner);
        }
        room
    }

    /// An exec is gone, or was not made after all.
    pub fn release(&self, (host, device): (u64, u64)) {
        let mut inner = lock(&self.inner);
        inner.count -= 1;
        inner.bytes -= host + device;
        self.look_at_pressure(&inner);
    }

    fn look_at_pressure(&self, inner: &Inner) {
        let Bounds { count, bytes, .. } = self.bounds;
        let near = |now: u64, most: u64| most != 0 && now >= most - most / 4;
        self.pressed.store(near(inner.count, count) || near(inner.bytes, bytes), Relaxed);
    }

    pub fn over_bound(&self) -> bool {
        let inner = lock(&self.inner);
        let Bounds { count, bytes, .. } = self.bounds;
        (count != 0 && inner.count > count) || (bytes != 0 && inner.bytes > bytes)
    }

    /// Takes an exec from whoever has it, if its last launch is over or ran on this same lane.
    ///
    /// The handle that had it remembers the launch that may still run.
    pub fn take(&self, real: &'static Real, lane: Lane) -> Option<Lease> {
        let mut lease = real.lease()?;
        if !real.in_use() || real.class.load(Relaxed) == 0 {
            return None;
        }
        let last = real.lane.load(Relaxed);
        if !self.earlier_over(&mut lease) {
            return None;
        }
        let pending = match last {
            NOWHERE => false,
            _ if self.is_over(&mut lease, last) => false,
            _ if last != lane || !self.calls.ways().outlived => return None,
            _ => {
                if !real.marked.load(Relaxed) {
                    let body = lease.body();
                    body.event = self.calls.mark(body.event.take(), real::stream_of(last)?);
                    body.event?;
                }
                true
            }
        };
        self.part(&mut lease, pending, last);
        Some(lease)
    }

    /// Takes an exec that is known not to run, to destroy it. Instantiating waits for destroyed execs
    /// that still run, when it needs their memory (measured on an H200, driver 580: after nine of 400
    /// nodes each), and the program may be what lets them end.
    pub fn take_idle(&self, real: &'static Real) -> Option<Lease> {
        self.take(real, LOST)
    }

    /// Ends the bond between an exec and its handle.
    fn part(&self, lease: &mut Lease, pending: bool, lane: Lane) {
        let real = lease.real();
        let owner = real.owner.swap(0, Relaxed);
        let handle = owner.checked_sub(1).and_then(|index| self.execs.get(index));
        if let Some(handle) = handle {
            handle.real.store(std::ptr::null_mut(), Release);
            let slot = handle.slot.load(Relaxed);
            gate::record_if_started(|shim| shim.exec_left(slot));
            if pending {
                let event = lease.body().event.take();
                let old = match event {
                    Some(event) => lock(&handle.pending).replace(Pending { event, lane }),
                    None => None,
                };
                if let Some(old) = old {
                    self.calls.drop_event(old.event);
                }
            }
        }
        real.marked.store(false, Relaxed);
        real.lane.store(if pending { lane } else { NOWHERE }, Relaxed);
    }

    /// Whether the last launch of an exec is known to be over.
    pub(super) fn is_over(&self, lease: &mut Lease, lane: Lane) -> bool {
        if lease.real().marked.load(Relaxed) {
            return lease.body().event.is_some_and(|event| self.calls.done(event));
        }
        let Some(stream) = real::stream_of(lane) else { return false };
        self.undisturbed(|| self.calls.idle(stream)).unwrap_or(false)
    }

    /// Runs a look at a stream if nothing captures; captures that begin wait for it.
    pub fn undisturbed<R>(&self, look: impl FnOnce() -> R) -> Option<R> {
        self.looking.fetch_add(1, SeqCst);
        let free = self.beginning.load(SeqCst) == 0 && !capturing();
        let result = free.then(look);
        self.looking.fetch_sub(1, SeqCst);
        result
    }

    /// A real exec for a class, leased: one that is parked, cold or the least recently used, else a
    /// new one.
    ///
    /// # Errors
    /// The library's, from instantiate.
    pub fn acquire(&self, class: &Arc<Class>, lane: Lane, work: &mut Work) -> Result<(Lease, Found), Status> {
        let key = Arc::as_ptr(class) as usize;
        let now = clock::now_ns();
        let age = |real: &Real| now.saturating_sub(real.used_ns.load(Relaxed));
        let cold = |real: &Real| self.bounds.idle_ns != 0 && age(real) > self.bounds.idle_ns;
        let ours = if class.shared { self.candidates(key) } else { Vec::new() };
        let mut tries = MAX_TRIES;
        let mut attempt = |real: &'static Real| {
            tries = tries.checked_sub(1)?;
            let found = if real.owner.load(Relaxed) == 0 { Found::Parked } else { Found::Taken };
            self.take(real, lane).map(|lease| (lease, found))
        };
        let free = |real: &&'static Real| real.owner.load(Relaxed) == 0 || cold(real);
        if let Some(lease) = ours.iter().copied().filter(free).find_map(&mut attempt) {
            return Ok(lease);
        }
        let bytes = self.estimate(&class.shape);
        if self.reserve(bytes, false) {
            self.make_way_for_growth(key, age);
            return self.make(class, bytes, work).map(|lease| (lease, Found::New));
        }
        let all = self.candidates(0);
        let of_others = |real: &&'static Real| real.class.load(Relaxed) != key;
        self.missed();
        // Another class's cold exec first; then our own oldest; then anyone's.
        let cold_other = all.iter().copied().filter(of_others).find(|real| cold(real) || real.owner.load(Relaxed) == 0);
        if let Some(lease) = cold_other.and_then(|real| self.take_idle(real)) {
            self.end(lease, true);
            if self.reserve(bytes, false) {
                return self.make(class, bytes, work).map(|lease| (lease, Found::New));
            }
        }
        if let Some(lease) = ours.iter().copied().find_map(&mut attempt) {
            return Ok(lease);
        }
        for real in all.iter().copied().filter(of_others).take(MAX_TRIES) {
            if let Some(lease) = self.take_idle(real) {
                self.end(lease, true);
                if self.reserve(bytes, false) {
                    return self.make(class, bytes, work).map(|lease| (lease, Found::New));
                }
            }
        }
        // Nobody waits for what runs: over the bound, and back when something is over.
        if !self.reserve(bytes, true) {
            gate::record_if_started(|shim| shim.count(counters::OVER_BOUND, 1));
        }
        self.make(class, bytes, work).map(|lease| (lease, Found::New))
    }

    /// Before another exec is made: one that nobody has wanted for long goes, so that the library can
    /// use its memory again. It never gives any back.
    fn make_way_for_growth(&self, key: usize, age: impl Fn(&Real) -> u64) {
        if self.bounds.idle_ns == 0 {
            return;
        }
        let long = self.bounds.idle_ns.saturating_mul(COLD_TIMES);
        let goes = |real: &&'static Real| {
            let limit = if real.owner.load(Relaxed) == 0 { self.bounds.idle_ns } else { long };
            real.class.load(Relaxed) != key && age(real) > limit
        };
        if let Some(lease) = self.candidates(0).into_iter().find(goes).and_then(|real| self.take_idle(real)) {
            self.end(lease, true);
        }
    }

    /// Host and device bytes that an exec of this shape takes.
    pub fn estimate(&self, shape: &Shape) -> (u64, u64) {
        crate::registry::estimate::exec_bytes(&shape.counts)
    }

    /// Instantiates one more exec, for which room is reserved.
    fn make(&self, class: &Arc<Class>, bytes: (u64, u64), work: &mut Work) -> Result<Lease, Status> {
        self.instantiate(class, bytes, work).inspect_err(|_| self.release(bytes))
    }

    /// The same, whatever the bounds say.
    pub(super) fn make_over(&self, class: &Arc<Class>, work: &mut Work) -> Result<Lease, Status> {
        let bytes = self.estimate(&class.shape);
        self.reserve(bytes, true);
        self.make(class, bytes, work)
    }

    fn instantiate(&self, class: &Arc<Class>, bytes: (u64, u64), work: &mut Work) -> Result<Lease, Status> {
        let template = self.template(class, work)?;
        let start = clock::precise_ns();
        let exec = match self.calls.instantiate(template.graph, class.flags) {
            Err(OUT_OF_MEMORY) => {
                self.relieve();
                self.calls.instantiate(template.graph, class.flags)?
            }
            other => other?,
        };
        class.took(clock::precise_ns() - start);
        let content = Records::clone(&template.records);
        Ok(self.keep(class, template, exec, content, bytes))
    }

    /// Puts an exec just instantiated among the others; its room is reserved.
    pub fn keep(
        &self,
        class: &Arc<Class>,
        template: Arc<Template>,
        exec: gpumem_abi::types::GraphExec,
        content: Records,
        bytes: (u64, u64),
    ) -> Lease {
        let mut lease = self.slot();
        let real = lease.real();
        *lease.body() = real::Body {
            class: Some(class.clone()),
            holds: Arc::downgrade(&template),
            template: Some(template),
            content,
            event: lease.body().event.take(),
            ..Default::default()
        };
        real.owner.store(0, Relaxed);
        real.lane.store(NOWHERE, Relaxed);
        real.marked.store(false, Relaxed);
        real.used_ns.store(clock::now_ns(), Relaxed);
        real.set_bytes(bytes);
        real.context.store(class.shape.context, Relaxed);
        real.class.store(Arc::as_ptr(class) as usize, Relaxed);
        lease.set_exec(exec);
        let context = class.shape.context;
        gate::record_if_started(|shim| shim.real_made(self.vendor, context, bytes));
        lease
    }

    /// A place for a real exec, leased.
    fn slot(&self) -> Lease {
        loop {
            let unused = lock(&self.inner).unused.pop();
            let real = unused.unwrap_or_else(|| {
                let real: &'static Real = Box::leak(Box::default());
                lock(&self.inner).reals.push(real);
                real
            });
            // A thread may look at a place that is not in use, for a moment.
            if let Some(lease) = real.lease() {
                return lease;
            }
            lock(&self.inner).unused.push(real);
            std::thread::yield_now();
        }
    }

    /// Destroys a real exec. Launches of it that run go on.
    pub fn end(&self, lease: Lease, evicted: bool) {
        self.end_in(lease, evicted, false);
    }

    /// The same; if its context is gone already, without calls to the library.
    pub fn end_in(&self, mut lease: Lease, evicted: bool, gone: bool) {
        let real = lease.real();
        let exec = real.exec();
        let body = std::mem::take(lease.body());
        // One that its handle owns is not among those that are counted.
        let counted = real.class.swap(0, Relaxed) != 0;
        real.owner.store(0, Relaxed);
        real.lane.store(NOWHERE, Relaxed);
        lease.set_exec(std::ptr::null_mut());
        let bytes = real.take_bytes();
        let context = real.context.swap(0, Relaxed);
        drop(lease);
        if gone {
            std::mem::forget(body);
        } else {
            self.calls.destroy_exec(exec);
            body.event.into_iter().chain(body.earlier).for_each(|event| self.calls.drop_event(event));
        }
        lock(&self.inner).unused.push(real);
        if counted {
            self.release(bytes);
            gate::record_if_started(|shim| shim.real_ended(self.vendor, context, bytes, evicted));
        }
    }

    /// The template of a class: the one there is, or one built of what the handle means, which
    /// `work.target` holds.
    fn template(&self, class: &Arc<Class>, work: &mut Work) -> Result<Arc<Template>, Status> {
        if class.alone {
            return work.clone.clone().ok_or(super::launch::INVALID);
        }
        if let Some(template) = class.template() {
            return Ok(template);
        }
        const INVALID: Status = 1;
        let base = class.shape.base(&mut work.scratch).ok_or(INVALID)?;
        let shape = class.shape.key.unpacked(&mut work.scratch).ok_or(INVALID)?;
        let (graph, nodes) = self.calls.build(shape, &work.target)?;
        let records = Arc::new(work.target.clone());
        let template = Arc::new(Template::new(graph, nodes, records, base, self.calls));
        class.set_template(&template);
        Ok(template)
    }

    /// Templates that hold functions of code that goes are good for no more execs.
    pub fn forget_templates(&self, of: impl Fn(&Class, &Records) -> bool) {
        let classes: Vec<_> = lock(&self.known).classes.values().filter_map(Weak::upgrade).collect();
        for class in classes {
            if class.template().is_some_and(|template| of(&class, &template.records)) {
                class.forget_template();
            }
        }
    }

    /// Memory is short: what nobody needs now goes.
    pub fn relieve(&self) {
        for real in self.candidates(0) {
            if let Some(lease) = self.take_idle(real) {
                self.end(lease, true);
            }
        }
        self.calls.trim();
        gate::record_if_started(|shim| {
            shim.count(counters::OOM_RETRIES, 1);
            shim.count(counters::GRAPH_TRIMS, 1);
        });
    }

    /// Back under the bounds after they were exceeded.
    pub fn settle(&self) {
        for real in self.candidates(0) {
            if !self.over_bound() {
                return;
            }
            if let Some(lease) = self.take_idle(real) {
                self.end(lease, true);
            }
        }
    }

    /// All real execs, for those who look for some.
    pub fn reals(&self) -> Vec<&'static Real> {
        lock(&self.inner).reals.clone()
    }

    /// A launch found no exec of its own and no room for one.
    fn missed(&self) {
        let misses = self.thrash.misses.fetch_add(1, Relaxed) + 1;
        if misses % THRASH_WINDOW != 0 {
            return;
        }
        let launches = gate::record_if_started(|shim| shim.ledger.counter(counters::LAUNCHES)).unwrap_or(0);
        let before = self.thrash.launches.swap(launches, Relaxed);
        let (now, said) = (clock::now_ns(), self.thrash.said_ns.load(Relaxed));
        // More than half of the launches since the last look.
        if launches.wrapping_sub(before) >= 2 * THRASH_WINDOW || (said != 0 && now - said < THRASH_EVERY_NS) {
            return;
        }
        self.thrash.said_ns.store(now, Relaxed);
        let (count, bytes) = {
            let inner = lock(&self.inner);
            (inner.count, inner.bytes)
        };
        let by_count = self.bounds.count != 0 && count >= self.bounds.count;
        gate::record_if_started(|shim| shim.cache_thrashes(by_count, count, bytes));
    }

    /// What a shape is known by.
    pub fn shape_of(&self, key: &Packed, id: u64) -> Option<Arc<Shape>> {
        let known = lock(&self.known);
        known.shapes.get(&id)?.iter().filter_map(Weak::upgrade).find(|shape| shape.key == *key)
    }
}

/// Whether anything in the process captures; yes, if nobody counts.
pub fn capturing() -> bool {
    gate::record_if_started(|shim| shim.registry.streams.capturing() > 0).unwrap_or(true)
}
