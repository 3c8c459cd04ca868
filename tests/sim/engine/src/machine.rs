//! All state of the simulated machine, behind one lock.

use crate::arena::{Arena, BLOCK};
use crate::capture::Capture;
use crate::config::config;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::exec::Exec;
use crate::graph::Graph;
use crate::handle::{H, Handles};
use crate::memory::{Alloc, Kind as MemoryKind};
use crate::module::{Function, Library, Module};
use crate::node::Node;
use crate::place::Place;
use crate::pool::Pool;
use crate::queue::{Fence, Queue};
use crate::report;
use crate::stream::Stream;
use crate::user_object::UserObject;
use crate::vmm::{Physical, Reservation};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

pub struct Device {
    pub total: u64,
    pub used: u64,
    pub primary: H,
    pub default_pool: H,
    pub current_pool: H,
    /// Device memory of graph execs. Memory that was held once stays held.
    pub graphs: Heap,
    /// Memory that alloc nodes of graphs hold, and its high-water mark.
    pub graph_mem: Heap,
}

/// Memory that a driver keeps for itself: it grows and is reused, and never
/// shrinks (measured on an H200: destroying every graph gave nothing back).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    pub live: u64,
    pub held: u64,
}

impl Heap {
    /// The bytes by which `held` must grow for `more` bytes, in steps of `step`.
    pub fn growth(&self, more: u64, step: u64) -> u64 {
        (self.live + more).next_multiple_of(step).saturating_sub(self.held)
    }
}

/// The state of a thread: its stack of contexts, and its capture mode.
#[derive(Default)]
pub struct Thread {
    pub stack: Vec<H>,
    pub capture_mode: u32,
}

pub struct Machine {
    pub handles: Handles,
    pub arena: Arena,
    pub devices: Vec<Device>,
    pub contexts: HashMap<H, Context>,
    pub greens: HashMap<H, crate::green::Green>,
    pub streams: HashMap<H, Stream>,
    /// Streams that outlived their green context.
    pub detached: HashSet<H>,
    pub events: HashMap<H, Event>,
    pub graphs: HashMap<H, Graph>,
    pub nodes: HashMap<H, Node>,
    pub execs: HashMap<H, Exec>,
    pub modules: HashMap<H, Module>,
    pub libraries: HashMap<H, Library>,
    pub functions: HashMap<H, Function>,
    /// Default and current pools of places that are no device's memory.
    pub default_pools: HashMap<Place, H>,
    pub current_pools: HashMap<Place, H>,
    pub pools: HashMap<H, Pool>,
    pub arrays: HashMap<H, crate::array::Array>,
    pub physical: HashMap<H, Physical>,
    pub reservations: BTreeMap<u64, Reservation>,
    pub graph_blocks: HashMap<u64, crate::pool::GraphBlock>,
    pub imports: HashMap<u64, crate::ipc::Import>,
    pub user_objects: HashMap<H, UserObject>,
    pub unloaded: crate::module::Unloaded,
    /// Conditions of graphs, with the value that a launch begins with.
    pub conditions: HashMap<u64, u32>,
    pub captures: HashMap<u64, Capture>,
    pub allocs: BTreeMap<u64, Alloc>,
    /// Memory of cuMemAlloc whose stream-ordered free is pending, and the stream.
    pub freeing: HashMap<u64, H>,
    pub freed: Vec<crate::pool::Freed>,
    pub threads: HashMap<u64, Thread>,
    /// Notes of test programs about their memory.
    pub notes: crate::note::Notes,
    /// Host memory that graphs and execs cost.
    pub graph_host: Heap,
    pub host_heap: Vec<Vec<u8>>,
    /// The driver's own threads, which run destructors of user objects.
    pub callbacks: Arc<Queue>,
    /// The most execs that ever lived at a time.
    pub peak_execs: u64,
    next_id: u64,
}

static MACHINE: OnceLock<Mutex<Machine>> = OnceLock::new();

thread_local!(static HELD: Cell<bool> = const { Cell::new(false) });

/// The machine, locked by this thread.
pub struct Locked(MutexGuard<'static, Machine>);

impl std::ops::Deref for Locked {
    type Target = Machine;
    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// The machine, locked. Nothing that waits may hold it; locking it twice on
/// one thread panics rather than hangs.
pub fn lock() -> Locked {
    assert!(!HELD.get(), "this thread has the machine locked already");
    let machine = MACHINE.get_or_init(|| Mutex::new(Machine::new()));
    let guard = machine.lock().unwrap_or_else(|e| e.into_inner());
    HELD.set(true);
    Locked(guard)
}

impl Machine {
    fn new() -> Machine {
        let c = config();
        // On aarch64 this runs under qemu. It keeps a record of each page: 64 GiB take it a quarter of a second and
        // 400 MiB.
        let (times, least) = if cfg!(target_arch = "aarch64") { (2, 8 << 30) } else { (8, 64 << 30) };
        let size = (c.device_mem * c.devices.max(1) as u64 * times).clamp(least, 4 << 40);
        let arena =
            Arena::new(size.next_multiple_of(BLOCK)).expect("the simulator needs memfd_create and address space");
        crate::work::publish_view(&arena);
        let mut m = Machine {
            handles: Handles::new(),
            arena,
            devices: Vec::new(),
            contexts: HashMap::new(),
            greens: HashMap::new(),
            streams: HashMap::new(),
            detached: HashSet::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            nodes: HashMap::new(),
            execs: HashMap::new(),
            modules: HashMap::new(),
            libraries: HashMap::new(),
            functions: HashMap::new(),
            default_pools: HashMap::new(),
            current_pools: HashMap::new(),
            pools: HashMap::new(),
            arrays: HashMap::new(),
            physical: HashMap::new(),
            reservations: BTreeMap::new(),
            graph_blocks: HashMap::new(),
            imports: HashMap::new(),
            user_objects: HashMap::new(),
            unloaded: HashMap::new(),
            conditions: HashMap::new(),
            captures: HashMap::new(),
            allocs: BTreeMap::new(),
            freeing: HashMap::new(),
            freed: Vec::new(),
            threads: HashMap::new(),
            notes: Default::default(),
            graph_host: Heap::default(),
            host_heap: Vec::new(),
            callbacks: Queue::new(),
            peak_execs: 0,
            next_id: 1,
        };
        for ordinal in 0..c.devices {
            let pool = m.handles.make("pool");
            m.pools.insert(pool, Pool::at(Place::Device(ordinal)));
            let primary = m.handles.make("context");
            m.contexts.insert(primary, Context::unborn(primary, ordinal));
            m.devices.push(Device {
                total: c.device_mem,
                used: 0,
                primary,
                default_pool: pool,
                current_pool: pool,
                graphs: Heap::default(),
                graph_mem: Heap::default(),
            });
        }
        m
    }

    /// A number never given before: buffer ids, stream ids, capture ids.
    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub fn thread(&mut self) -> &mut Thread {
        self.threads.entry(crate::lifecycle::thread_id()).or_default()
    }

    /// The error for an unknown handle. The use of a destroyed handle is a violation.
    pub fn missing(&self, kind: &str, h: H) -> Error {
        if self.detached.contains(&h) {
            report::violation("dead_handle", &format!("the green context of {kind} {h:#x} was destroyed"));
            return Error::CONTEXT_IS_DESTROYED;
        }
        if self.handles.known(h) {
            report::violation("dead_handle", &format!("{kind} {h:#x} was destroyed"));
        }
        // Graphs, their nodes and execs give 1, destroyed or NULL (H200, driver 580).
        if kind.starts_with("graph") { Error::INVALID_VALUE } else { Error::INVALID_HANDLE }
    }

    /// Takes `bytes` of a device's memory, or gives out-of-memory.
    pub fn charge(&mut self, device: u32, bytes: u64) -> Result {
        let d = &mut self.devices[device as usize];
        if d.used + bytes > d.total {
            return Err(Error::OUT_OF_MEMORY);
        }
        if device == 0 && bytes > 0 {
            crate::card::take(bytes)?;
        }
        d.used += bytes;
        self.tell();
        Ok(())
    }

    pub fn refund(&mut self, device: u32, bytes: u64) {
        let d = &mut self.devices[device as usize];
        let bytes = bytes.min(d.used);
        d.used -= bytes;
        if device == 0 && bytes > 0 {
            crate::card::give(bytes);
        }
        self.tell();
    }

    /// Writes the bytes in use to the word of `SIM_SHARED`.
    fn tell(&self) {
        crate::shared::tell(self.devices.iter().map(|device| device.used).sum());
    }

    /// The fences of all work of a device.
    pub fn device_fences(&self, device: u32) -> Vec<Fence> {
        let on = |ctx: &H| self.contexts.get(ctx).is_some_and(|c| c.device == device);
        let streams = self.streams.values().filter(|s| on(&s.ctx)).map(|s| s.queue.tail());
        let orphans = self.contexts.values().filter(|c| c.device == device).flat_map(|c| c.orphans.iter());
        streams.chain(orphans.cloned()).filter(|f| !f.reached()).collect()
    }

    /// The same for one context.
    pub fn context_fences(&self, ctx: H) -> Vec<Fence> {
        // The streams of its green contexts count as its own.
        let streams = self.streams.values().filter(|s| s.ctx == ctx || self.owner(s.ctx) == ctx);
        let streams = streams.map(|s| s.queue.tail());
        let orphans = self.contexts.get(&ctx).into_iter().flat_map(|c| c.orphans.iter());
        streams.chain(orphans.cloned()).filter(|f| !f.reached()).collect()
    }

    /// Counts host memory of graphs; with `SIM_HOST_HEAP=real` it is touched.
    pub fn host_heap_grow(&mut self, bytes: u64) {
        let growth = self.graph_host.growth(bytes, 4096);
        self.graph_host.live += bytes;
        self.graph_host.held += growth;
        if config().real_host_heap && growth > 0 {
            self.host_heap.push(vec![1; growth as usize]);
        }
    }

    pub fn host_heap_shrink(&mut self, bytes: u64) {
        self.graph_host.live = self.graph_host.live.saturating_sub(bytes);
    }
}

macro_rules! lookups {
    ($($field:ident, $get:ident, $ty:ty, $kind:literal;)*) => {
        impl Machine {
            $(
                /// The object behind a handle. A destroyed handle is a violation.
                pub fn $get(&mut self, h: H) -> Result<&mut $ty> {
                    if !self.$field.contains_key(&h) {
                        return Err(self.missing($kind, h));
                    }
                    self.$field.get_mut(&h).ok_or(Error::INVALID_HANDLE)
                }
            )*
        }
    };
}

lookups! {
    contexts, context, Context, "context";
    streams, stream, Stream, "stream";
    events, event, Event, "event";
    graphs, graph, Graph, "graph";
    execs, exec, Exec, "graph exec";
    modules, module, Module, "module";
    libraries, library, Library, "library";
    functions, function, Function, "function";
    pools, pool, Pool, "memory pool";
}

/// Every number, by name.
fn stats(m: &Machine) -> Vec<(&'static str, u64)> {
    let device = |f: fn(&Device) -> u64| m.devices.iter().map(f).sum::<u64>();
    let counted = || m.allocs.values().filter(|a| a.kind.counts());
    let lies = |a: &Alloc| match a.kind {
        MemoryKind::Pool(pool) => m.pools.get(&pool).map_or(Place::Host, |pool| pool.place),
        MemoryKind::Managed => Place::Managed(0, 0),
        MemoryKind::Host | MemoryKind::Registered => Place::Host,
        _ => Place::Device(a.device),
    };
    // Mappings are addresses of physical memory, which counts where it lies. Arrays are among the allocations.
    let memory = || {
        m.allocs
            .values()
            .filter(|a| !matches!(a.kind, MemoryKind::Mapped(_) | MemoryKind::Imported | MemoryKind::Graph))
    };
    let own = || m.physical.values().filter(|p| p.foreign.is_none());
    let held = |wanted: fn(Place) -> bool| {
        let allocs = memory().filter(|a| wanted(lies(a))).map(|a| a.size).sum::<u64>();
        allocs + own().filter(|p| wanted(p.place)).map(|p| p.size).sum::<u64>()
    };
    vec![
        ("violations", report::violations()),
        ("device_used", device(|d| d.used)),
        ("graph_device_live", device(|d| d.graphs.live)),
        ("graph_device_held", device(|d| d.graphs.held)),
        ("graph_host_live", m.graph_host.live),
        ("graph_host_held", m.graph_host.held),
        ("own_host", crate::heap::taken()),
        ("live_allocations", counted().count() as u64),
        ("live_bytes", counted().map(|a| a.size).sum()),
        ("memory_on_devices", held(|place| place.device().is_some())),
        ("memory_on_host", held(Place::on_host)),
        ("memory_managed", held(|place| matches!(place, Place::Managed(..)))),
        ("memory_count", memory().count() as u64 + own().count() as u64),
        ("live_graphs", m.graphs.len() as u64),
        ("live_nodes", m.nodes.len() as u64),
        ("live_execs", m.execs.len() as u64),
        ("live_streams", m.streams.values().filter(|s| !s.builtin).count() as u64),
        ("live_events", m.events.len() as u64),
        ("live_modules", m.modules.len() as u64),
        ("live_captures", m.captures.len() as u64),
        ("live_user_objects", m.user_objects.len() as u64),
        ("peak_execs", m.peak_execs),
        ("noted_live", m.notes.live().0),
        ("noted_bytes", m.notes.live().1),
    ]
}

/// A number for tests, by name; `None` if there is no such number.
pub fn stat(name: &str) -> Option<u64> {
    stats(&lock()).into_iter().find(|(n, _)| *n == name).map(|(_, v)| v)
}

/// With `SIM_STATS`: all numbers, now.
pub fn write_stats() {
    let Some(machine) = MACHINE.get() else { return };
    if let Ok(m) = machine.try_lock() {
        report::write_stats(&stats(&m));
    }
}

/// With `SIM_LEAKS=1`: what is still allocated now.
pub fn report_leaks() {
    if !config().leaks {
        return;
    }
    let Some(machine) = MACHINE.get() else { return };
    let Ok(m) = machine.try_lock() else { return };
    for (addr, a) in m.allocs.iter().filter(|(_, a)| a.kind.counts()) {
        report::violation("leak", &format!("{} bytes at {addr:#x} ({:?})", a.size, a.kind));
    }
}
