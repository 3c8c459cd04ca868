//! Executable graphs: instantiate, launch, setters, destroy.

use crate::capture;
use crate::error::{Error, Result};
use crate::graph;
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::node::{Attrs, Kind};
use crate::queue::Fence;
use crate::stream;
use crate::work::{self, Step};
use std::collections::HashMap;
use std::sync::Arc;

/// What one node of an exec costs: 5.8 MiB of host and 2.4 MiB of device
/// memory per 1000 nodes on an H200 (driver 580, CUDA 13.0).
pub const HOST_PER_NODE: u64 = 6082;
pub const DEVICE_PER_NODE: u64 = 2458;
const DEVICE_STEP: u64 = 2 << 20;

/// Instantiation flags.
pub const AUTO_FREE: u64 = 1;
pub const DEVICE_LAUNCH: u64 = 4;
pub const USE_NODE_PRIORITY: u64 = 8;

pub struct Exec {
    pub flags: u64,
    pub ctx: H,
    pub device: u32,
    pub nodes: Vec<ExecNode>,
    /// Nodes of the graph it was made from; setters accept only those.
    pub map: HashMap<H, usize>,
    pub plan: Option<Arc<[Step]>>,
    pub last: Option<Fence>,
    pub host_bytes: u64,
    pub device_bytes: u64,
    pub user_objects: HashMap<H, u32>,
    pub source: H,
    /// Whether it has alloc nodes: then it is its graph's only exec.
    pub memory: bool,
}

#[derive(Clone)]
pub struct ExecNode {
    pub step: Step,
    pub enabled: bool,
    /// Dependencies as indices into the exec, with the edge's data.
    pub deps: Vec<(usize, [u8; 8])>,
    /// For child graphs: their nodes.
    pub child: Vec<ExecNode>,
}

/// The nodes of a graph in launch order, and which handle became which.
pub fn flatten(m: &mut Machine, g: H) -> Result<(Vec<ExecNode>, HashMap<H, usize>)> {
    let order = graph::order(m, g)?;
    let map: HashMap<H, usize> = order.iter().enumerate().map(|(i, h)| (*h, i)).collect();
    let mut nodes = Vec::with_capacity(order.len());
    for h in order {
        let n = graph::node(m, h)?;
        let deps = n.deps.iter().map(|(d, data)| (map[d], *data)).collect();
        let step = Step { kind: n.kind.clone(), refs: n.refs.clone() };
        let child = match step.kind {
            Kind::Child(g) => flatten(m, g)?.0,
            _ => Vec::new(),
        };
        nodes.push(ExecNode { step, enabled: true, deps, child });
    }
    Ok((nodes, map))
}

fn count(nodes: &[ExecNode]) -> u64 {
    nodes.iter().map(|n| 1 + count(&n.child)).sum()
}

pub fn instantiate(ctx: H, g: H, flags: u64) -> Result<H> {
    if flags & !0xf != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    let (nodes, map) = flatten(&mut m, g)?;
    for n in &nodes {
        if let Kind::Kernel(k) = &n.step.kind {
            m.function(k.func)?;
        }
    }
    let memory = nodes.iter().any(|n| matches!(n.step.kind, Kind::MemAlloc(_) | Kind::MemFree(_)));
    if memory && m.graph(g)?.memory_exec != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    let device = m.device_of(ctx)?;
    let count = count(&nodes);
    let (host_bytes, device_bytes) = (count * HOST_PER_NODE, count * DEVICE_PER_NODE);
    let growth = m.devices[device as usize].graphs.growth(device_bytes, DEVICE_STEP);
    m.charge(device, growth)?;
    let heap = &mut m.devices[device as usize].graphs;
    heap.live += device_bytes;
    heap.held += growth;
    m.host_heap_grow(host_bytes);
    let user_objects = m.graph(g)?.user_objects.clone();
    for (object, count) in &user_objects {
        if let Some(o) = m.user_objects.get_mut(object) {
            o.refs += count;
        }
    }
    let h = m.handles.make("graph exec");
    if memory {
        m.graph(g)?.memory_exec = h;
    }
    let plan = None;
    let e = Exec {
        flags,
        ctx,
        device,
        nodes,
        map,
        plan,
        last: None,
        host_bytes,
        device_bytes,
        user_objects,
        source: g,
        memory,
    };
    m.execs.insert(h, e);
    Ok(h)
}

/// Safe while it runs: what was launched keeps running.
pub fn destroy(h: H) -> Result {
    let mut m = lock();
    m.exec(h)?;
    capture::forbid_unsafe(&mut m)?;
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
        graph::release_object(m, object, count, e.last.clone());
    }
    m.handles.retire("graph exec", h);
}

fn steps(nodes: &[ExecNode], out: &mut Vec<Step>) {
    for n in nodes.iter().filter(|n| n.enabled) {
        if n.child.is_empty() {
            out.push(n.step.clone());
        } else {
            steps(&n.child, out);
        }
    }
}

/// Launches an exec. Launches of one exec run one after another, whatever
/// their streams.
pub fn launch(h: H, s: H) -> Result {
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
            steps(&e.nodes, &mut list);
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
    let run = move || {
        plan.iter().for_each(|step| work::perform(step, ctx));
        for t in times {
            t.store(crate::event::now_ns(), std::sync::atomic::Ordering::SeqCst);
        }
    };
    let fence = stream::enqueue(&mut m, s, deps, Box::new(run))?;
    for ev in records {
        m.event(ev)?.fences = vec![fence.clone()];
    }
    m.exec(h)?.last = Some(fence);
    crate::report::count("graph_launches", 1);
    Ok(())
}

fn slot(m: &mut Machine, h: H, node: H) -> Result<&mut ExecNode> {
    // A destroyed graph's nodes are unknown; those of another graph too.
    if !m.nodes.contains_key(&node) {
        m.exec(h)?;
        return Err(Error::INVALID_VALUE);
    }
    let e = m.exec(h)?;
    let i = *e.map.get(&node).ok_or(Error::INVALID_VALUE)?;
    e.plan = None;
    e.nodes.get_mut(i).ok_or(Error::INVALID_VALUE)
}

/// Sets the parameters of one node of an exec; attributes of kernels stay.
pub fn set_node(h: H, node: H, mut kind: Kind) -> Result {
    let mut m = lock();
    let refs = work::refs(&m, &kind);
    let old = slot(&mut m, h, node)?.step.kind.clone();
    match (&old, &mut kind) {
        (Kind::Kernel(a), Kind::Kernel(b)) => b.attrs = a.attrs.clone(),
        (Kind::Memcpy(a), Kind::Memcpy(b)) if !crate::update::same_copy_shape(&m, a, b) => {
            return Err(Error::INVALID_VALUE);
        }
        (Kind::MemAlloc(_) | Kind::MemFree(_), _) => return Err(Error::INVALID_VALUE),
        (a, b) if a.number() != b.number() => return Err(Error::INVALID_VALUE),
        _ => {}
    }
    slot(&mut m, h, node)?.step = Step { kind, refs };
    Ok(())
}

/// cuGraphExecChildGraphNodeSetParams: the child's parameters from a graph of
/// the same topology.
pub fn set_child(h: H, node: H, g: H) -> Result {
    let mut m = lock();
    let (new, _) = flatten(&mut m, g)?;
    let flags = m.exec(h)?.flags;
    let old = slot(&mut m, h, node)?.child.clone();
    if crate::update::compare(&m, &old, &new, flags).is_err() {
        return Err(Error::INVALID_VALUE);
    }
    slot(&mut m, h, node)?.child = new;
    Ok(())
}

/// Only kernel, memset and memcpy nodes can be disabled.
pub fn set_enabled(h: H, node: H, enabled: bool) -> Result {
    let mut m = lock();
    let n = slot(&mut m, h, node)?;
    if !matches!(n.step.kind, Kind::Kernel(_) | Kind::Memset(_) | Kind::Memcpy(_)) {
        return Err(Error::INVALID_VALUE);
    }
    n.enabled = enabled;
    Ok(())
}

pub fn enabled(h: H, node: H) -> Result<bool> {
    let mut m = lock();
    Ok(slot(&mut m, h, node)?.enabled)
}

/// The attributes that a kernel node has, to be read or replaced.
pub fn node_attrs(m: &mut Machine, node: H) -> Result<&mut Attrs> {
    match &mut graph::node(m, node)?.kind {
        Kind::Kernel(k) => Ok(&mut k.attrs),
        _ => Err(Error::INVALID_VALUE),
    }
}
