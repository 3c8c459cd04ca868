//! Changes that a program makes in an exec: parameters, child graphs, attributes, and which nodes are enabled.

use super::{ExecNode, flatten};
use crate::error::{Error, Result};
use crate::graph;
use crate::handle::H;
use crate::inside;
use crate::machine::{Machine, lock};
use crate::node::{Attrs, Kernel, Kind};
use crate::work::{self, Step};

/// The exec's own version of a node of its graph. A node of a destroyed graph gives
/// error 1, and so does a new node at the address of a destroyed one.
fn slot(m: &mut Machine, h: H, node: H) -> Result<&mut ExecNode> {
    let id = m.nodes.get(&node).map(|n| n.id);
    let e = m.exec(h)?;
    let (known, path) = e.map.get(&node).ok_or(Error::INVALID_VALUE)?;
    if id != Some(*known) {
        return Err(Error::INVALID_VALUE);
    }
    let (last, outer) = path.split_last().ok_or(Error::INVALID_VALUE)?;
    let mut body = &mut e.body;
    for i in outer {
        body = body.nodes[*i].child.as_mut().ok_or(Error::INVALID_VALUE)?;
    }
    e.plan = None;
    body.nodes.get_mut(*last).ok_or(Error::INVALID_VALUE)
}

/// A setter counts as a call with the exec, and with the graph whose node it names.
fn inside_setter(h: H, node: H) -> inside::Inside {
    inside::exec_and_graph(h, || lock().nodes.get(&node).map_or(0, |n| n.graph))
}

/// Sets the parameters of one node of an exec; attributes of kernels stay.
pub fn set_node(h: H, node: H, mut kind: Kind) -> Result {
    let _inside = inside_setter(h, node);
    let mut m = lock();
    let refs = work::refs(&m, &kind);
    let old = slot(&mut m, h, node)?.step.kind.clone();
    let flags = m.exec(h)?.flags;
    let fits = match (&old, &mut kind) {
        (Kind::Kernel(a), Kind::Kernel(b)) => {
            b.attrs = a.attrs.clone();
            crate::attrs::divides(b.grid, &b.attrs)?;
            crate::attrs::takes_block(b.packed, &b.attrs)?;
            true
        }
        (Kind::Memcpy(a), Kind::Memcpy(b)) => crate::update::may_become(&m, a, b, flags),
        (Kind::Memset(a), Kind::Memset(b)) => crate::update::may_set(a, b),
        (Kind::MemAlloc(_) | Kind::MemFree(_), _) => false,
        (a, b) => a.number() == b.number(),
    };
    if !fits {
        return Err(Error::INVALID_VALUE);
    }
    slot(&mut m, h, node)?.step = Step { kind, refs };
    m.exec(h)?.set();
    crate::report::count("graph_node_settings", 1);
    Ok(())
}

/// cuGraphExecChildGraphNodeSetParams: takes the child's parameters from a graph of
/// the same topology. A graph of another topology gives error 910.
pub fn set_child(h: H, node: H, g: H) -> Result {
    let _inside = inside_setter(h, node);
    let mut m = lock();
    let (new, _) = flatten(&mut m, g)?;
    let flags = m.exec(h)?.flags;
    let Some(mut child) = slot(&mut m, h, node)?.child.take() else {
        return Err(Error::INVALID_VALUE);
    };
    let pairs = crate::update::pair(&m, &child, &new, flags);
    let fits = pairs.map(|pairs| crate::update::carry(&mut child, new, &pairs, flags));
    slot(&mut m, h, node)?.child = Some(child);
    fits.map_err(|_| Error::EXEC_UPDATE_FAILURE)
}

/// Returns the switch that enables a node. Only kernel, memset and memcpy nodes have this switch.
fn switch(m: &mut Machine, h: H, node: H) -> Result<&mut bool> {
    let n = slot(m, h, node)?;
    match n.step.kind {
        Kind::Kernel(_) | Kind::Memset(_) | Kind::Memcpy(_) => Ok(&mut n.enabled),
        _ => Err(Error::INVALID_VALUE),
    }
}

pub fn set_enabled(h: H, node: H, enabled: bool) -> Result {
    let _inside = inside_setter(h, node);
    *switch(&mut lock(), h, node)? = enabled;
    Ok(())
}

pub fn enabled(h: H, node: H) -> Result<bool> {
    switch(&mut lock(), h, node).map(|on| *on)
}

/// A node's kernel, to be read or changed.
pub fn node_kernel(m: &mut Machine, node: H) -> Result<&mut Kernel> {
    match &mut graph::node(m, node)?.kind {
        Kind::Kernel(k) => Ok(k),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// The attributes that a kernel node has, to be read or replaced.
pub fn node_attrs(m: &mut Machine, node: H) -> Result<&mut Attrs> {
    node_kernel(m, node).map(|k| &mut k.attrs)
}
