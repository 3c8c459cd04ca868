//! Graphs as the program builds or captures them.

use crate::error::{Error, Result};
use crate::handle::H;
use crate::inside;
use crate::machine::{Machine, lock};
use crate::node::{Conditional, Edge, Kind, Node, Views};
use crate::user_object;
use crate::work;
use std::collections::HashMap;

/// Host memory of a graph, bytes per node of any kind (20 graphs of 1000 nodes
/// on an H200, driver 580).
pub const HOST_PER_NODE: u64 = 1983;

pub struct Graph {
    pub nodes: Vec<H>,
    /// Nodes that it ever had, destroyed ones included.
    pub made: usize,
    /// Nodes on which no other depends, in the order in which they became such nodes.
    /// An update pairs nodes from these on.
    pub sinks: Vec<H>,
    /// The node that owns it, if it is a child graph.
    pub owner: H,
    pub clone_of: H,
    pub user_objects: HashMap<H, u32>,
    pub id: u64,
    /// The live exec of a graph with alloc nodes. There may be only one.
    pub memory_exec: H,
}

pub fn create(m: &mut Machine) -> H {
    let h = m.handles.make("graph");
    let id = m.id();
    let g = Graph {
        nodes: Vec::new(),
        made: 0,
        sinks: Vec::new(),
        owner: 0,
        clone_of: 0,
        user_objects: HashMap::new(),
        id,
        memory_exec: 0,
    };
    m.graphs.insert(h, g);
    h
}

pub fn destroy(h: H) -> Result {
    let _inside = inside::graph(h);
    let mut m = lock();
    if m.graph(h)?.owner != 0 {
        return Err(Error::INVALID_VALUE);
    }
    drop_graph(&mut m, h);
    Ok(())
}

pub fn drop_graph(m: &mut Machine, h: H) {
    let Some(g) = m.graphs.remove(&h) else { return };
    for n in &g.nodes {
        drop_node(m, *n);
    }
    for (object, count) in g.user_objects {
        user_object::release(m, object, count, None);
    }
    m.handles.retire("graph", h);
}

fn drop_node(m: &mut Machine, h: H) {
    let Some(n) = m.nodes.remove(&h) else { return };
    m.host_heap_shrink(HOST_PER_NODE);
    owned(&n.kind).iter().for_each(|g| drop_graph(m, *g));
    m.handles.retire("node", h);
}

/// The graphs that belong to a node.
fn owned(kind: &Kind) -> &[H] {
    match kind {
        Kind::Child(g) => std::slice::from_ref(g),
        Kind::Conditional(c) => &c.bodies,
        _ => &[],
    }
}

/// A condition of a graph, with the value that each launch gives it.
pub fn create_condition(graph: H, value: u32) -> Result<u64> {
    let mut m = lock();
    m.graph(graph)?;
    let handle = m.id();
    m.conditions.insert(handle, value);
    Ok(handle)
}

/// A conditional node with `size` bodies, which are empty graphs.
pub fn conditional(handle: u64, form: u32, size: u32) -> Result<Kind> {
    let most = [2, 1, u32::MAX];
    if form > 2 || size == 0 || size > most[form as usize] {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    let value = *m.conditions.get(&handle).ok_or(Error::INVALID_VALUE)?;
    let bodies = (0..size).map(|_| create(&mut m)).collect();
    Ok(Kind::Conditional(Conditional { handle, form, bodies, value }))
}

/// A node of the program's; unknown ones give 1.
pub fn node(m: &mut Machine, h: H) -> Result<&mut Node> {
    if !m.nodes.contains_key(&h) {
        return Err(m.missing("graph node", h));
    }
    m.nodes.get_mut(&h).ok_or(Error::INVALID_VALUE)
}

pub fn add_node(m: &mut Machine, graph: H, deps: &[Edge], kind: Kind) -> Result<H> {
    m.graph(graph)?;
    for (i, (d, _)) in deps.iter().enumerate() {
        let same = m.nodes.get(d).is_some_and(|n| n.graph == graph);
        if !same || deps[..i].iter().any(|(e, _)| e == d) {
            return Err(Error::INVALID_VALUE);
        }
    }
    let refs = work::refs(m, &kind);
    let h = m.handles.make("node");
    for g in owned(&kind) {
        m.graph(*g)?.owner = h;
    }
    let (views, id) = (Views::new(&kind), m.id());
    let g = m.graph(graph)?;
    let place = g.made;
    g.made += 1;
    m.nodes.insert(h, Node { id, graph, place, kind, deps: deps.to_vec(), outs: Vec::new(), origin: 0, refs, views });
    for (d, data) in deps {
        node(m, *d)?.outs.push((h, *data));
    }
    let g = m.graph(graph)?;
    g.nodes.push(h);
    g.sinks.retain(|s| deps.iter().all(|(d, _)| d != s));
    g.sinks.push(h);
    m.host_heap_grow(HOST_PER_NODE);
    Ok(h)
}

/// Replaces a node's parameters; its kind must stay.
pub fn set_node(h: H, kind: Kind) -> Result {
    let graph = lock().nodes.get(&h).map_or(0, |n| n.graph);
    let _inside = inside::graph(graph);
    let mut m = lock();
    if node(&mut m, h)?.kind.number() != kind.number() {
        return Err(Error::INVALID_VALUE);
    }
    if let Kind::Kernel(k) = &kind {
        crate::attrs::divides(k.grid, &k.attrs)?;
        crate::attrs::takes_block(k.packed, &k.attrs)?;
    }
    let refs = work::refs(&m, &kind);
    let n = node(&mut m, h)?;
    n.views = Views::new(&kind);
    n.kind = kind;
    n.refs = refs;
    Ok(())
}

pub fn destroy_node(h: H) -> Result {
    let mut m = lock();
    let n = node(&mut m, h)?;
    if matches!(n.kind, Kind::MemAlloc(_) | Kind::MemFree(_)) {
        return Err(Error::NOT_SUPPORTED);
    }
    let (graph, deps, outs) = (n.graph, n.deps.clone(), n.outs.clone());
    for (d, _) in deps {
        unhook(&mut m, graph, d, h)?;
    }
    for (o, _) in outs {
        unhook(&mut m, graph, h, o)?;
    }
    let g = m.graph(graph)?;
    g.nodes.retain(|n| *n != h);
    g.sinks.retain(|n| *n != h);
    drop_node(&mut m, h);
    Ok(())
}

/// Removes the edge. In each list, the last edge takes its place.
fn unhook(m: &mut Machine, graph: H, from: H, to: H) -> Result {
    let away = |list: &mut Vec<Edge>, other: H| {
        if let Some(i) = list.iter().position(|(n, _)| *n == other) {
            list.swap_remove(i);
        }
    };
    away(&mut node(m, to)?.deps, from);
    let outs = &mut node(m, from)?.outs;
    away(outs, to);
    if outs.is_empty() {
        m.graph(graph)?.sinks.push(from);
    }
    Ok(())
}

/// A copy of a graph, child graphs and user objects included. Alloc and free
/// nodes cannot be copied.
pub fn copy(m: &mut Machine, from: H) -> Result<H> {
    let list = m.graph(from)?.nodes.clone();
    let memory = |n: &Node| matches!(n.kind, Kind::MemAlloc(_) | Kind::MemFree(_));
    if list.iter().any(|h| m.nodes.get(h).is_some_and(memory)) {
        return Err(Error::NOT_SUPPORTED);
    }
    let objects = m.graph(from)?.user_objects.clone();
    let to = create(m);
    let mut map: HashMap<H, H> = HashMap::new();
    for h in &list {
        let n = node(m, *h)?;
        let (kind, refs, place) = (n.kind.clone(), n.refs.clone(), n.place);
        let kind = match kind {
            Kind::Child(g) => Kind::Child(copy(m, g)?),
            Kind::Conditional(c) => {
                let bodies = c.bodies.iter().map(|g| copy(m, *g)).collect::<Result<_>>()?;
                Kind::Conditional(Conditional { bodies, ..c })
            }
            k => k,
        };
        let new = add_node(m, to, &[], kind)?;
        let n = node(m, new)?;
        (n.origin, n.refs, n.place) = (*h, refs, place);
        map.insert(*h, new);
    }
    let moved = |edges: &[Edge]| edges.iter().filter_map(|(n, d)| Some((*map.get(n)?, *d))).collect::<Vec<_>>();
    for h in &list {
        let (deps, outs) = {
            let n = node(m, *h)?;
            (moved(&n.deps), moved(&n.outs))
        };
        let n = node(m, map[h])?;
        n.deps = deps;
        n.outs = outs;
    }
    user_object::retain_all(m, &objects);
    let made = m.graph(from)?.made;
    let sinks = m.graph(from)?.sinks.iter().filter_map(|s| map.get(s).copied()).collect();
    let g = m.graph(to)?;
    g.user_objects = objects;
    (g.sinks, g.made) = (sinks, made);
    g.clone_of = from;
    Ok(to)
}

/// The node of `clone` that was made from `original`.
pub fn find_in_clone(original: H, clone: H) -> Result<H> {
    let mut m = lock();
    let list = m.graph(clone)?.nodes.clone();
    list.into_iter().find(|n| m.nodes.get(n).is_some_and(|n| n.origin == original)).ok_or(Error::INVALID_VALUE)
}

/// All edges, ordered by the node they leave: `(from, to, data)`.
pub fn edges(h: H) -> Result<Vec<(H, H, [u8; 8])>> {
    let mut m = lock();
    let list = m.graph(h)?.nodes.clone();
    let out = |n: &H| m.nodes.get(n).map(|x| x.outs.clone()).unwrap_or_default();
    Ok(list.iter().flat_map(|n| out(n).into_iter().map(|(to, d)| (*n, to, d))).collect())
}

pub fn roots(h: H) -> Result<Vec<H>> {
    let mut m = lock();
    let list = m.graph(h)?.nodes.clone();
    Ok(list.into_iter().filter(|n| m.nodes.get(n).is_some_and(|n| n.deps.is_empty())).collect())
}

pub fn add_edges(h: H, list: &[(H, H, [u8; 8])]) -> Result {
    let mut m = lock();
    m.graph(h)?;
    for (from, to, data) in list {
        let inside = |m: &mut Machine, n: H| node(m, n).map(|n| n.graph == h);
        if !inside(&mut m, *from)? || !inside(&mut m, *to)? || from == to {
            return Err(Error::INVALID_VALUE);
        }
        // A cycle is accepted here; instantiating it fails.
        if node(&mut m, *to)?.deps.iter().any(|(d, _)| d == from) {
            return Err(Error::INVALID_VALUE);
        }
        node(&mut m, *to)?.deps.push((*from, *data));
        node(&mut m, *from)?.outs.push((*to, *data));
        m.graph(h)?.sinks.retain(|s| s != from);
    }
    Ok(())
}

pub fn remove_edges(h: H, list: &[(H, H)]) -> Result {
    let mut m = lock();
    m.graph(h)?;
    for (from, to) in list {
        if !node(&mut m, *to)?.deps.iter().any(|(d, _)| d == from) {
            return Err(Error::INVALID_VALUE);
        }
        unhook(&mut m, h, *from, *to)?;
    }
    Ok(())
}

/// All nodes that are neither on a cycle nor behind one, each after the nodes that it depends on.
fn sortable(m: &mut Machine, h: H) -> Result<Vec<H>> {
    let list = m.graph(h)?.nodes.clone();
    let mut waiting: HashMap<H, usize> = HashMap::new();
    for n in &list {
        let count = node(m, *n)?.deps.len();
        waiting.insert(*n, count);
    }
    let mut sorted: Vec<H> = list.iter().filter(|n| waiting[n] == 0).copied().collect();
    let mut at = 0;
    while at < sorted.len() {
        for (o, _) in m.nodes[&sorted[at]].outs.clone() {
            if let Some(w) = waiting.get_mut(&o) {
                *w -= 1;
                if *w == 0 {
                    sorted.push(o);
                }
            }
        }
        at += 1;
    }
    Ok(sorted)
}

/// All nodes, each after the nodes that it depends on; error 1 if there is a cycle.
pub fn order(m: &mut Machine, h: H) -> Result<Vec<H>> {
    let (sorted, all) = (sortable(m, h)?, m.graph(h)?.nodes.len());
    if sorted.len() == all { Ok(sorted) } else { Err(Error::INVALID_VALUE) }
}

/// A node on a cycle, or behind one, if there is any.
pub fn in_cycle(m: &mut Machine, h: H) -> Result<Option<H>> {
    let sorted = sortable(m, h)?;
    let list = &m.graph(h)?.nodes;
    if sorted.len() == list.len() {
        return Ok(None);
    }
    let sorted: std::collections::HashSet<H> = sorted.into_iter().collect();
    Ok(list.iter().find(|n| !sorted.contains(n)).copied())
}
