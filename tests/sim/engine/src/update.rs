//! cuGraphExecUpdate: what it carries over, what it refuses, and what it only
//! says it did. Measured on an H200 (driver 580, CUDA 13.0).

use crate::error::{Error, Result};
use crate::exec::{ExecNode, USE_NODE_PRIORITY, flatten};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::node::{Attrs, Copy3D, Kind, attr};
use crate::work;

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

/// Result of an update: the refusal with the new graph's node, if any.
pub struct Outcome {
    pub refusal: Option<(Refusal, H)>,
}

pub fn update(h: H, g: H) -> Result<Outcome> {
    let mut m = lock();
    m.exec(h)?;
    let (mut new, map) = flatten(&mut m, g)?;
    let e = m.exec(h)?;
    let (old, flags) = (e.nodes.clone(), e.flags);
    if let Err((refusal, index)) = compare(&m, &old, &new, flags) {
        let node = map.iter().find(|(_, i)| **i == index).map_or(0, |(h, _)| *h);
        return Ok(Outcome { refusal: Some((refusal, node)) });
    }
    carry(&old, &mut new);
    let e = m.exec(h)?;
    e.nodes = new;
    e.plan = None;
    Ok(Outcome { refusal: None })
}

/// What stays from the old exec: disabled nodes stay disabled, and whatever
/// cluster the new graph has, the old one silently stays.
fn carry(old: &[ExecNode], new: &mut [ExecNode]) {
    for (o, n) in old.iter().zip(new) {
        n.enabled = o.enabled;
        if let (Kind::Kernel(a), Kind::Kernel(b)) = (&o.step.kind, &mut n.step.kind) {
            match a.attrs.get(&attr::CLUSTER) {
                Some(cluster) => b.attrs.insert(attr::CLUSTER, *cluster),
                None => b.attrs.remove(&attr::CLUSTER),
            };
        }
        carry(&o.child, &mut n.child);
    }
}

/// Pairs the nodes in order; the first that cannot be updated, by index.
pub fn compare(
    m: &Machine,
    old: &[ExecNode],
    new: &[ExecNode],
    flags: u64,
) -> std::result::Result<(), (Refusal, usize)> {
    if old.len() != new.len() {
        return Err((Refusal::Topology, usize::MAX));
    }
    for (i, (o, n)) in old.iter().zip(new).enumerate() {
        if o.deps != n.deps {
            return Err((Refusal::Topology, i));
        }
        if o.step.kind.number() != n.step.kind.number() {
            return Err((Refusal::NodeType, i));
        }
        check(m, &o.step.kind, &n.step.kind, flags).map_err(|r| (r, i))?;
        compare(m, &o.child, &n.child, flags).map_err(|(r, _)| (r, i))?;
    }
    Ok(())
}

fn check(m: &Machine, old: &Kind, new: &Kind, flags: u64) -> std::result::Result<(), Refusal> {
    match (old, new) {
        (Kind::Kernel(a), Kind::Kernel(b)) => {
            if !m.functions.contains_key(&b.func) {
                return Err(Refusal::Error);
            }
            let differs = |id: u32| value(&a.attrs, id) != value(&b.attrs, id);
            if differs(attr::COOPERATIVE) || (flags & USE_NODE_PRIORITY != 0 && differs(attr::PRIORITY)) {
                return Err(Refusal::Attributes);
            }
            Ok(())
        }
        (Kind::Memcpy(a), Kind::Memcpy(b)) if !same_copy_shape(m, a, b) => Err(Refusal::Parameters),
        (Kind::Memset(a), Kind::Memset(b)) if (a.height > 1) != (b.height > 1) => Err(Refusal::Parameters),
        (Kind::MemAlloc(a), Kind::MemAlloc(b)) if a != b => Err(Refusal::NotSupported),
        (Kind::MemFree(a), Kind::MemFree(b)) if a != b => Err(Refusal::NotSupported),
        _ => Ok(()),
    }
}

/// An attribute that is absent equals one of zeroes.
fn value(attrs: &Attrs, id: u32) -> [u8; 64] {
    attrs.get(&id).copied().unwrap_or([0; 64])
}

/// Whether a copy keeps its direction and its number of dimensions.
pub fn same_copy_shape(m: &Machine, a: &Copy3D, b: &Copy3D) -> bool {
    let shape = |c: &Copy3D| {
        let dims = if c.depth > 1 {
            3
        } else if c.height > 1 {
            2
        } else {
            1
        };
        (work::is_host(m, &c.src), work::is_host(m, &c.dst), dims)
    };
    shape(a) == shape(b)
}

impl Outcome {
    /// 910 if it was refused.
    pub fn error(&self) -> Result {
        self.refusal.map_or(Ok(()), |_| Err(Error::EXEC_UPDATE_FAILURE))
    }
}
