//! cuGraphExecUpdate: which changes it makes, which it refuses, and which it only
//! claims to have made. Measured on an H200 (driver 580, CUDA 13.0).

use crate::error::{Error, Result};
use crate::exec::{ANY_COPY, Body, ExecNode, USE_NODE_PRIORITY, flatten};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::node::{Attrs, Copy3D, Kind, Memset, attr};
use crate::user_object;
use crate::work;
use std::collections::{HashMap, VecDeque};

/// Why an update was refused, as CUgraphExecUpdateResult numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Error = 1,
    Topology = 2,
    NodeType = 3,
    Function = 4,
    Parameters = 5,
    NotSupported = 6,
    Attributes = 8,
}

/// A refusal: the new graph's node, and, if an edge is the cause, the node that
/// the edge comes from. 0 is no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub why: Refusal,
    pub node: H,
    pub from: H,
}

/// Result of an update.
pub struct Outcome {
    pub refusal: Option<Mismatch>,
}

impl Outcome {
    /// 910 if it was refused.
    pub fn error(&self) -> Result {
        self.refusal.map_or(Ok(()), |_| Err(Error::EXEC_UPDATE_FAILURE))
    }
}

/// Which node of the new body stands for each of the old one.
pub struct Pairs {
    with: Vec<usize>,
    inside: HashMap<usize, Pairs>,
}

pub fn update(h: H, g: H) -> Result<Outcome> {
    update_after(h, g, |_, _, _, _| Ok(()))
}

/// Pairs nodes by the form from before CUDA 12, which first compares the nodes in another order.
pub fn update_before_12(h: H, g: H) -> Result<Outcome> {
    update_after(h, g, before_12)
}

type Look = fn(&Machine, &Body, &Body, u64) -> std::result::Result<(), Mismatch>;

fn update_after(h: H, g: H, look: Look) -> Result<Outcome> {
    let _inside = crate::inside::exec_and_graph(h, || g);
    crate::report::count("graph_updates", 1);
    let mut m = lock();
    m.exec(h)?;
    let (new, _) = flatten(&mut m, g)?;
    let e = &m.execs[&h];
    let looked = look(&m, &e.body, &new, e.flags);
    let pairs = match looked.and_then(|()| pair(&m, &e.body, &new, e.flags)) {
        Ok(pairs) => pairs,
        Err(refusal) => return Ok(Outcome { refusal: Some(refusal) }),
    };
    // The exec now holds the user objects of the new graph, and no longer those of the old one.
    let objects = m.graph(g)?.user_objects.clone();
    user_object::retain_all(&mut m, &objects);
    let e = m.exec(h)?;
    e.set();
    let flags = e.flags;
    carry(&mut e.body, new, &pairs, flags);
    e.plan = None;
    let (given_up, last) = (std::mem::replace(&mut e.user_objects, objects), e.last.clone());
    for (object, count) in given_up {
        user_object::release(&mut m, object, count, last.clone());
    }
    Ok(Outcome { refusal: None })
}

const NOBODY: usize = usize::MAX;

/// Pairs the nodes breadth first, against the edges: from the sinks, the latest
/// first, along each node's dependencies in their order.
pub fn pair(m: &Machine, old: &Body, new: &Body, flags: u64) -> std::result::Result<Pairs, Mismatch> {
    let refused = |why, node, from| Err(Mismatch { why, node, from });
    if old.nodes.len() != new.nodes.len() || old.sinks.len() > new.sinks.len() {
        return refused(Refusal::Topology, 0, 0);
    }
    if new.sinks.len() > old.sinks.len() {
        let one_more = new.sinks[new.sinks.len() - 1 - old.sinks.len()];
        return refused(Refusal::Topology, new.nodes[one_more].node, 0);
    }
    let (mut with, mut back) = (vec![NOBODY; old.nodes.len()], vec![NOBODY; old.nodes.len()]);
    let (mut todo, mut inside) = (VecDeque::new(), HashMap::new());
    for (o, n) in old.sinks.iter().rev().zip(new.sinks.iter().rev()) {
        (with[*o], back[*n]) = (*n, *o);
        todo.push_back((*o, *n));
    }
    while let Some((o, n)) = todo.pop_front() {
        let (a, b) = (&old.nodes[o], &new.nodes[n]);
        if a.deps.len() != b.deps.len() {
            return refused(Refusal::Topology, b.node, 0);
        }
        if a.step.kind.number() != b.step.kind.number() {
            return refused(Refusal::NodeType, b.node, 0);
        }
        check(m, &a.step.kind, &b.step.kind, flags).map_err(|why| Mismatch { why, node: b.node, from: 0 })?;
        if let (Some(a), Some(b)) = (&a.child, &b.child) {
            inside.insert(o, pair(m, a, b, flags)?);
        }
        for ((from_a, data_a), (from_b, data_b)) in a.deps.iter().zip(&b.deps) {
            let together = with[*from_a] == *from_b;
            let free = with[*from_a] == NOBODY && back[*from_b] == NOBODY;
            if data_a != data_b || !(together || free) {
                return refused(Refusal::Topology, b.node, new.nodes[*from_b].node);
            }
            if free {
                (with[*from_a], back[*from_b]) = (*from_b, *from_a);
                todo.push_back((*from_a, *from_b));
            }
        }
    }
    Ok(Pairs { with, inside })
}

/// The answer of the form from before CUDA 12. It does not support another number of nodes. Nodes that were
/// destroyed since count. Then it compares place by place, in the order in which the nodes were made: whether both graphs
/// have a node there, its number of edges, and its kind.
fn before_12(m: &Machine, old: &Body, new: &Body, flags: u64) -> std::result::Result<(), Mismatch> {
    let refused = |why, node| Err(Mismatch { why, node, from: 0 });
    if old.made != new.made {
        return refused(Refusal::NotSupported, 0);
    }
    fn as_made(body: &Body) -> Vec<Option<(&ExecNode, [usize; 2])>> {
        let mut nodes: Vec<_> = body.nodes.iter().map(|node| (node, [node.deps.len(), 0])).collect();
        body.nodes.iter().flat_map(|node| &node.deps).for_each(|(from, _)| nodes[*from].1[1] += 1);
        let mut places = vec![None; body.made];
        nodes.into_iter().for_each(|(node, edges)| places[node.place] = Some((node, edges)));
        places
    }
    for pair in as_made(old).into_iter().zip(as_made(new)) {
        let ((a, edges), (b, others)) = match pair {
            (Some(a), Some(b)) => (a, b),
            (None, None) => continue,
            (_, there) => return refused(Refusal::Topology, there.map_or(0, |(node, _)| node.node)),
        };
        if edges != others {
            return refused(Refusal::Topology, b.node);
        }
        if a.step.kind.number() != b.step.kind.number() {
            return refused(Refusal::NodeType, b.node);
        }
        check(m, &a.step.kind, &b.step.kind, flags).or_else(|why| refused(why, b.node))?;
    }
    Ok(())
}

/// The parts of the old exec that stay: its nodes' places, which nodes are disabled, and the
/// cluster, whatever the new graph has. On HIP all attributes stay (clr 6.4,
/// hip_graph_internal.hpp, `GraphKernelNode::SetParams`).
pub fn carry(old: &mut Body, new: Body, pairs: &Pairs, flags: u64) {
    let mut new: Vec<Option<ExecNode>> = new.nodes.into_iter().map(Some).collect();
    for (i, o) in old.nodes.iter_mut().enumerate() {
        let Some(mut n) = new.get_mut(pairs.with[i]).and_then(Option::take) else { continue };
        if let (Kind::Kernel(a), Kind::Kernel(b)) = (&o.step.kind, &mut n.step.kind) {
            match a.attrs.get(&attr::CLUSTER) {
                _ if flags & ANY_COPY != 0 => b.attrs = a.attrs.clone(),
                Some(cluster) => drop(b.attrs.insert(attr::CLUSTER, *cluster)),
                None => drop(b.attrs.remove(&attr::CLUSTER)),
            }
        }
        o.step = n.step;
        if let (Some(a), Some(b), Some(pairs)) = (&mut o.child, n.child, pairs.inside.get(&i)) {
            carry(a, b, pairs, flags);
        }
    }
}

fn check(m: &Machine, old: &Kind, new: &Kind, flags: u64) -> std::result::Result<(), Refusal> {
    let allowed = |yes: bool, why| if yes { Ok(()) } else { Err(why) };
    match (old, new) {
        (Kind::Kernel(a), Kind::Kernel(b)) => {
            // A real driver crashes here.
            m.still_loaded(b, "an update reads").map_err(|_| Refusal::Error)?;
            if flags & ANY_COPY != 0 {
                return Ok(());
            }
            let same = |id: u32| value(&a.attrs, id) == value(&b.attrs, id);
            let priority = flags & USE_NODE_PRIORITY == 0 || same(attr::PRIORITY);
            allowed(same(attr::COOPERATIVE) && same(attr::NVLINK_CENTRIC) && priority, Refusal::Attributes)
        }
        (Kind::Memcpy(a), Kind::Memcpy(b)) => {
            if flags & ANY_COPY != 0 && a.is_row() != b.is_row() {
                // clr 6.2, hip_graph_internal.hpp: `SetParams` of either class casts the other's node to its own.
                crate::report::violation("copy_class", "an update reads a copy of a row as one of a volume, or so");
            }
            allowed(a == b || may_become(m, a, b, flags), Refusal::Parameters)
        }
        (Kind::Memset(a), Kind::Memset(b)) => allowed(may_set(a, b), Refusal::Parameters),
        (Kind::MemAlloc(a), Kind::MemAlloc(b)) => allowed(a == b, Refusal::NotSupported),
        (Kind::MemFree(a), Kind::MemFree(b)) => allowed(a == b, Refusal::NotSupported),
        _ => Ok(()),
    }
}

/// A missing attribute equals an attribute of zeroes.
fn value(attrs: &Attrs, id: u32) -> [u8; 64] {
    attrs.get(&id).copied().unwrap_or([0; 64])
}

/// True if a copy of an exec may be changed into another copy: one row to one row, the same memory types, no change
/// between memory of a context and memory of no context. Copies of several rows may not change at all, not even their
/// addresses.
pub fn may_become(m: &Machine, a: &Copy3D, b: &Copy3D, flags: u64) -> bool {
    if flags & ANY_COPY != 0 {
        return (a.height > 1, a.depth > 1) == (b.height > 1, b.depth > 1);
    }
    let side = |a, b| work::without_context(m, a) == work::without_context(m, b) && a.space == b.space;
    a.is_linear() && b.is_linear() && side(&a.src, &b.src) && side(&a.dst, &b.dst)
}

/// The same for memsets. In a memset of several rows, address and value may change.
pub fn may_set(a: &Memset, b: &Memset) -> bool {
    let rows = |s: &Memset| (s.pitch, s.elem, s.width, s.height);
    if a.height > 1 || b.height > 1 { rows(a) == rows(b) } else { true }
}
