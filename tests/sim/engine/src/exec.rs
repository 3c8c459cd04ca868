//! Executable graphs: instantiate, launch, destroy; [`setters`].

mod setters;

pub use setters::{enabled, node_attrs, node_kernel, set_child, set_enabled, set_node};

use crate::capture;
use crate::config::config;
use crate::error::{Error, Result};
use crate::graph;
use crate::handle::H;
use crate::inside;
use crate::machine::{Machine, lock};
use crate::node::{Kind, NEWER_SINCE};
use crate::queue::Fence;
use crate::stream;
use crate::user_object;
use crate::work::{self, Step};
use std::collections::HashMap;
use std::sync::Arc;

/// Host and device bytes that a node of an exec costs: 20 execs of 1000 nodes of
/// each kind on an H200 (driver 580, CUDA 13.0).
pub fn cost(kind: &Kind) -> (u64, u64) {
    match kind {
        Kind::Kernel(_) => (5877, 2621),
        Kind::Memcpy(c) if c.is_linear() => (6613, 2621),
        Kind::Memcpy(_) | Kind::Staged { .. } => (6708, 2621),
        Kind::Empty | Kind::Child(_) => (2033, 0),
        // Memsets, host functions and events; others were not measured.
        _ => (4044, 0),
    }
}
const DEVICE_STEP: u64 = 2 << 20;

/// Instantiation flags.
pub const AUTO_FREE: u64 = 1;
pub const DEVICE_LAUNCH: u64 = 4;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
pub const UPLOAD: u64 = 2;
pub const USE_NODE_PRIORITY: u64 = 8;
/// A flag that no driver has yet. It does nothing.
const NEWER_FLAG: u64 = 64;
/// A flag that no program gives: the exec is HIP's. Its copies are checked only for
/// their number of rows, since the other rules of its runtime were not measured.
/// Updates leave attributes alone.
pub const ANY_COPY: u64 = 1 << 32;

pub struct Exec {
    pub flags: u64,
    pub ctx: H,
    pub device: u32,
    pub body: Body,
    /// Nodes of the graph that the exec was made from. Setters accept only these.
    pub map: Map,
    pub plan: Option<Arc<[Step]>>,
    pub last: Option<Fence>,
    pub host_bytes: u64,
    pub device_bytes: u64,
    pub user_objects: HashMap<H, u32>,
    pub source: H,
    /// True if it has nodes that allocate or free. Then it is its graph's only exec.
    pub memory: bool,
    /// It was launched, or uploaded.
    pub uploaded: bool,
}

impl Exec {
    /// The exec gets other contents. If it was never uploaded before, it is slower from then on (H200, driver 580).
    pub fn set(&self) {
        if !self.uploaded {
            crate::report::count("graph_early_settings", 1);
        }
    }
}

/// A graph's nodes, each after what it depends on.
pub struct Body {
    pub nodes: Vec<ExecNode>,
    /// Nodes on which no other depends, in the order in which they became such nodes.
    pub sinks: Vec<usize>,
    /// Number of nodes that the graph ever had.
    pub made: usize,
}

pub struct ExecNode {
    pub step: Step,
    pub enabled: bool,
    /// Dependencies as indices into the body, with the edge's data.
    pub deps: Vec<(usize, [u8; 8])>,
    pub child: Option<Body>,
    /// The graph's node that this one was made from, by the handle of that time.
    pub node: H,
    /// That node's place among all that the graph ever had.
    pub place: usize,
}

/// Places of the graph's nodes in the exec, by handle: the node's own number (another node may get the address of its
/// handle), and its place in each body from the outermost.
type Map = HashMap<H, (u64, Vec<usize>)>;

pub fn flatten(m: &mut Machine, g: H) -> Result<(Body, Map)> {
    let order = graph::order(m, g)?;
    let index: HashMap<H, usize> = order.iter().enumerate().map(|(i, h)| (*h, i)).collect();
    let (mut nodes, mut map) = (Vec::with_capacity(order.len()), Map::new());
    for (i, h) in order.into_iter().enumerate() {
        let n = graph::node(m, h)?;
        let place = n.place;
        map.insert(h, (n.id, vec![i]));
        let deps = n.deps.iter().map(|(d, data)| (index[d], *data)).collect();
        let step = Step { kind: n.kind.clone(), refs: n.refs.clone() };
        let child = match &step.kind {
            Kind::Conditional(c) => c.chosen().map(|g| flatten(m, g)).transpose()?.map(|(body, _)| body),
            Kind::Child(g) => {
                let g = *g;
                let (body, inner) = flatten(m, g)?;
                map.extend(inner.into_iter().map(|(h, (id, path))| (h, (id, [vec![i], path].concat()))));
                Some(body)
            }
            _ => None,
        };
        nodes.push(ExecNode { step, enabled: true, deps, child, node: h, place });
    }
    let g = m.graph(g)?;
    let sinks = g.sinks.iter().filter_map(|s| index.get(s).copied()).collect();
    Ok((Body { nodes, sinks, made: g.made }, map))
}

impl Body {
    /// True if the nodes are not one chain.
    fn branches(&self) -> bool {
        let first = self.nodes.iter().filter(|n| n.deps.is_empty()).count();
        let edges: usize = self.nodes.iter().map(|n| n.deps.len()).sum();
        first > 1 || self.sinks.len() > 1 || edges > self.nodes.len().saturating_sub(1)
    }

    /// Calls `f` with each node, those of child graphs included.
    fn each(&self, f: &mut impl FnMut(&ExecNode)) {
        for n in &self.nodes {
            f(n);
            n.child.iter().for_each(|c| c.each(f));
        }
    }
}

/// Why a graph was not instantiated: CUgraphInstantiateResult and the node.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub error: Error,
    pub result: u32,
    pub node: H,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, result: 1, node: 0 }
    }
}

pub fn instantiate(ctx: H, g: H, flags: u64) -> Result<H> {
    instantiate_or_why(ctx, g, flags).map_err(|r| r.error)
}

pub fn instantiate_or_why(ctx: H, g: H, flags: u64) -> std::result::Result<H, Refused> {
    // AUTO_FREE does not go with DEVICE_LAUNCH.
    let newer = if config().driver_version >= NEWER_SINCE { NEWER_FLAG } else { 0 };
    if flags & !(0xf | newer) != 0 || flags & (AUTO_FREE | DEVICE_LAUNCH) == AUTO_FREE | DEVICE_LAUNCH {
        return Err(Error::INVALID_VALUE.into());
    }
    let _inside = inside::graph(g);
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    if let Some(node) = graph::in_cycle(&mut m, g)? {
        return Err(Refused { error: Error::INVALID_VALUE, result: 2, node });
    }
    let (body, map) = flatten(&mut m, g)?;
    let (mut host_bytes, mut device_bytes, mut loaded, mut not_on_device) = (0, 0, Ok(()), 0);
    body.each(&mut |n| {
        let (host, device) = cost(&n.step.kind);
        host_bytes += host;
        device_bytes += device;
        match &n.step.kind {
            // A real driver crashes here.
            Kind::Kernel(k) => loaded = loaded.and(m.still_loaded(k, "instantiate reads")),
            Kind::Memcpy(_) | Kind::Memset(_) | Kind::Child(_) => {}
            _ if not_on_device == 0 => not_on_device = n.node,
            _ => {}
        }
    });
    loaded?;
    if flags & DEVICE_LAUNCH != 0 && not_on_device != 0 {
        return Err(Refused { error: Error::INVALID_VALUE, result: 3, node: not_on_device });
    }
    let nodes = &body.nodes;
    let memory = nodes.iter().any(|n| matches!(n.step.kind, Kind::MemAlloc(_) | Kind::MemFree(_)));
    if memory && m.graph(g)?.memory_exec != 0 {
        return Err(Error::NOT_SUPPORTED.into());
    }
    let device = m.device_of(ctx)?;
    let growth = m.devices[device as usize].graphs.growth(device_bytes, DEVICE_STEP);
    m.charge(device, growth)?;
    let heap = &mut m.devices[device as usize].graphs;
    heap.live += device_bytes;
    heap.held += growth;
    m.host_heap_grow(host_bytes);
    crate::report::count("graph_instantiations", 1);
    let user_objects = m.graph(g)?.user_objects.clone();
    user_object::retain_all(&mut m, &user_objects);
    let h = m.handles.make("graph exec");
    if memory {
        m.graph(g)?.memory_exec = h;
    }
    let plan = None;
    let e = Exec {
        flags,
        ctx,
        device,
        body,
        map,
        plan,
        last: None,
        host_bytes,
        device_bytes,
        user_objects,
        source: g,
        memory,
        uploaded: false,
    };
    m.execs.insert(h, e);
    m.peak_execs = m.peak_execs.max(m.execs.len() as u64);
    Ok(h)
}

/// Destroys an exec. A launch that is pending goes on. With `SIM_DESTROY_WAITS` the call may wait for all of the
/// device's work.
pub fn destroy(h: H) -> Result {
    let _inside = inside::exec_and_graph(h, || lock().execs.get(&h).map_or(0, |exec| exec.source));
    let mut m = lock();
    m.exec(h)?;
    capture::forbid_unsafe(&mut m)?;
    let e = m.exec(h)?;
    if config().destroy_waits && e.body.branches() {
        let fences = {
            let device = e.device;
            m.device_fences(device)
        };
        drop(m);
        if fences.iter().any(|fence| !fence.reached()) {
            crate::report::count("graph_destroy_waits", 1);
        }
        crate::queue::wait_all(&fences);
        m = lock();
    }
    drop_exec(&mut m, h);
    Ok(())
}

pub fn drop_exec(m: &mut Machine, h: H) {
    let Some(e) = m.execs.remove(&h) else { return };
    // The driver keeps its heaps: only what is live shrinks.
    m.host_heap_shrink(e.host_bytes);
    let heap = &mut m.devices[e.device as usize].graphs;
    heap.live = heap.live.saturating_sub(e.device_bytes);
    if let Some(g) = m.graphs.get_mut(&e.source)
        && g.memory_exec == h
    {
        g.memory_exec = 0;
    }
    for (object, count) in e.user_objects {
        user_object::release(m, object, count, e.last.clone());
    }
    m.handles.retire("graph exec", h);
}

/// The steps of a body. A step refers to the memory that is at its address when it
/// runs, so an exec that was set to an address also serves later allocations there.
fn steps(body: &Body, out: &mut Vec<Step>) {
    for n in body.nodes.iter().filter(|n| n.enabled) {
        match &n.child {
            None => {
                let mut step = n.step.clone();
                step.refs.iter_mut().for_each(|r| r.id = 0);
                out.push(step);
            }
            Some(child) => steps(child, out),
        }
    }
}

/// Launches an exec. Launches of one exec run one after another, whatever
/// their streams.
pub fn launch(h: H, s: H) -> Result {
    let _inside = inside::exec(h);
    let mut m = lock();
    m.exec(h)?;
    if capture::active(&mut m, s)? {
        capture::invalidate_of(&mut m, s);
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    capture::forbid_implicit(&mut m, s)?;
    let e = m.exec(h)?;
    let plan = match &e.plan {
        Some(plan) => plan.clone(),
        None => {
            let mut list = Vec::new();
            steps(&e.body, &mut list);
            let plan: Arc<[Step]> = list.into();
            e.plan = Some(plan.clone());
            plan
        }
    };
    let (auto_free, mut deps) = (e.flags & AUTO_FREE != 0, e.last.clone().into_iter().collect::<Vec<_>>());
    if e.memory {
        crate::pool::prepare_launch(&mut m, &plan, auto_free)?;
    }
    let mut records = Vec::new();
    for step in plan.iter() {
        match step.kind {
            Kind::EventWait(ev) => deps.extend(m.event(ev)?.fences.iter().cloned()),
            Kind::EventRecord(ev) => records.push(ev),
            _ => {}
        }
    }
    deps.retain(|f| !f.reached());
    let times: Vec<_> = records.iter().filter_map(|ev| m.events.get(ev).map(|e| e.time.clone())).collect();
    let ctx = m.stream(s)?.ctx;
    let running = crate::note::submitted(&m, &plan);
    let run = move || {
        plan.iter().for_each(|step| work::perform(step, ctx));
        drop(running);
        for t in times {
            t.store(crate::event::now_ns(), std::sync::atomic::Ordering::SeqCst);
        }
    };
    let fence = stream::enqueue(&mut m, s, deps, Box::new(run))?;
    for ev in records {
        m.event(ev)?.fences = vec![fence.clone()];
    }
    let e = m.exec(h)?;
    (e.last, e.uploaded) = (Some(fence), true);
    crate::report::count("graph_launches", 1);
    Ok(())
}
