//! Graphs: made, cloned, wired, looked at.

use crate::abi::{H, In, Out, Text};
use gpumem_sim_engine::node::Kind;
use gpumem_sim_engine::{Error, Result, graph, lock, user_object};

type Edge = [u8; 8];
const PLAIN: Edge = [0; 8];

/// Nodes with the data of their edges; plain edges where there is none.
pub fn deps(nodes: In<H>, edges: In<Edge>, n: usize) -> Result<Vec<(H, Edge)>> {
    let data = if edges.is_null() { vec![PLAIN; n] } else { edges.list(n)? };
    Ok(nodes.list(n)?.into_iter().zip(data).collect())
}

/// The usual pair: how many there are, or as many as fit, the rest zeroed. Room
/// for none gives 1, also if there are none (H200, driver 580).
fn list(out: Out<H>, n: Out<usize>, values: Vec<H>) -> Result {
    if out.is_null() {
        return n.set(values.len());
    }
    let room = n.get()?;
    if room == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let have = values.len();
    out.fill(room, values.into_iter().chain(std::iter::repeat(0)));
    n.set(have.min(room))
}

fn edge_lists(nodes: Out<H>, edges: Out<Edge>, n: Out<usize>, values: Vec<(H, Edge)>) -> Result {
    let plain = edges.is_null() && values.iter().any(|(_, d)| *d != PLAIN);
    if plain && !nodes.is_null() {
        // The old form cannot show data.
        return Err(Error::LOSSY_QUERY);
    }
    if !nodes.is_null() && !edges.is_null() {
        edges.fill(n.get()?, values.iter().map(|v| v.1));
    }
    list(nodes, n, values.into_iter().map(|v| v.0).collect())
}

fn all_edges(g: H, from: Out<H>, to: Out<H>, data: Out<Edge>, n: Out<usize>) -> Result {
    let edges = graph::edges(g)?;
    if from.is_null() != to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    if from.is_null() {
        return n.set(edges.len());
    }
    if data.is_null() && edges.iter().any(|e| e.2 != PLAIN) {
        return Err(Error::LOSSY_QUERY);
    }
    let room = n.get()?;
    if room == 0 {
        return Err(Error::INVALID_VALUE);
    }
    from.fill(room, edges.iter().map(|e| e.0));
    to.fill(room, edges.iter().map(|e| e.1));
    if !data.is_null() {
        data.fill(room, edges.iter().map(|e| e.2));
    }
    n.set(edges.len().min(room))
}

fn triples(from: In<H>, to: In<H>, data: In<Edge>, n: usize) -> Result<Vec<(H, H, Edge)>> {
    let to = deps(to, data, n)?;
    Ok(from.list(n)?.into_iter().zip(to).map(|(f, (t, d))| (f, t, d)).collect())
}

fn remove(g: H, from: In<H>, to: In<H>, n: usize) -> Result {
    let pairs: Vec<(H, H)> = from.list(n)?.into_iter().zip(to.list(n)?).collect();
    graph::remove_edges(g, &pairs)
}

fn node_edges(h: H, outgoing: bool) -> Result<Vec<(H, Edge)>> {
    let mut m = lock();
    let n = graph::node(&mut m, h)?;
    Ok(if outgoing { n.outs.clone() } else { n.deps.clone() })
}

cu! {
    Init cuGraphCreate [cuGraphCreate 10000] [] (c, out: Out<H>, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?.set(graph::create(&mut lock()))
    }
    Init cuGraphDestroy [cuGraphDestroy 10000] [] (c, g: H) { graph::destroy(g) }
    Init cuGraphClone [cuGraphClone 10000] [] (c, out: Out<H>, g: H) {
        out.need()?;
        out.set(graph::copy(&mut lock(), g)?)
    }
    Init cuGraphNodeFindInClone [cuGraphNodeFindInClone 10000] [] (c, out: Out<H>, node: H, clone: H) {
        out.set(graph::find_in_clone(node, clone)?)
    }
    Init cuGraphNodeGetType [cuGraphNodeGetType 10000] [] (c, node: H, out: Out<u32>) {
        out.set(graph::node(&mut lock(), node)?.kind.number())
    }
    Init cuGraphGetNodes [cuGraphGetNodes 10000] [] (c, g: H, out: Out<H>, n: Out<usize>) {
        let nodes = lock().graph(g)?.nodes.clone();
        list(out, n, nodes)
    }
    Init cuGraphGetRootNodes [cuGraphGetRootNodes 10000] [] (c, g: H, out: Out<H>, n: Out<usize>) {
        list(out, n, graph::roots(g)?)
    }
    Init cuGraphGetEdges [cuGraphGetEdges_v2 12030] [] (c, g: H, from: Out<H>, to: Out<H>, data: Out<Edge>, n: Out<usize>) {
        all_edges(g, from, to, data, n)
    }
    Init cuGraphGetEdges [cuGraphGetEdges 10000] [] (c, g: H, from: Out<H>, to: Out<H>, n: Out<usize>) {
        all_edges(g, from, to, Out::at(0), n)
    }
    Init cuGraphNodeGetDependencies [cuGraphNodeGetDependencies_v2 12030] []
    (c, node: H, out: Out<H>, data: Out<Edge>, n: Out<usize>) {
        edge_lists(out, data, n, node_edges(node, false)?)
    }
    Init cuGraphNodeGetDependencies [cuGraphNodeGetDependencies 10000] [] (c, node: H, out: Out<H>, n: Out<usize>) {
        edge_lists(out, Out::at(0), n, node_edges(node, false)?)
    }
    Init cuGraphNodeGetDependentNodes [cuGraphNodeGetDependentNodes_v2 12030] []
    (c, node: H, out: Out<H>, data: Out<Edge>, n: Out<usize>) {
        edge_lists(out, data, n, node_edges(node, true)?)
    }
    Init cuGraphNodeGetDependentNodes [cuGraphNodeGetDependentNodes 10000] [] (c, node: H, out: Out<H>, n: Out<usize>) {
        edge_lists(out, Out::at(0), n, node_edges(node, true)?)
    }
    Init cuGraphAddDependencies [cuGraphAddDependencies_v2 12030] [] (c, g: H, from: In<H>, to: In<H>, data: In<Edge>, n: usize) {
        let mut edges = triples(from, to, data, n)?;
        // As measured on an H200, driver 580: all edges of a call get the data of the first.
        if let Some(first) = edges.first().map(|edge| edge.2) {
            edges.iter_mut().for_each(|edge| edge.2 = first);
        }
        graph::add_edges(g, &edges)
    }
    Init cuGraphAddDependencies [cuGraphAddDependencies 10000] [] (c, g: H, from: In<H>, to: In<H>, n: usize) {
        graph::add_edges(g, &triples(from, to, In::at(0), n)?)
    }
    Init cuGraphRemoveDependencies [cuGraphRemoveDependencies_v2 12030] []
    (c, g: H, from: In<H>, to: In<H>, data: In<Edge>, n: usize) {
        let _ = data.is_null();
        remove(g, from, to, n)
    }
    Init cuGraphRemoveDependencies [cuGraphRemoveDependencies 10000] [] (c, g: H, from: In<H>, to: In<H>, n: usize) {
        remove(g, from, to, n)
    }
    Init cuGraphDestroyNode [cuGraphDestroyNode 10000] [] (c, node: H) { graph::destroy_node(node) }
    Init cuGraphChildGraphNodeGetGraph [cuGraphChildGraphNodeGetGraph 10000] [] (c, node: H, out: Out<H>) {
        match graph::node(&mut lock(), node)?.kind {
            Kind::Child(g) => out.set(g),
            _ => Err(Error::INVALID_VALUE),
        }
    }
    Init cuGraphDebugDotPrint [cuGraphDebugDotPrint 11030] [] (c, g: H, path: Text, flags: u32) {
        let _ = flags;
        let mut text = String::from("digraph dot {\n");
        for (from, to, _) in graph::edges(g)? {
            text += &format!("\"{from:#x}\" -> \"{to:#x}\";\n");
        }
        std::fs::write(path.get()?, text + "}\n").map_err(|_| Error::OPERATING_SYSTEM)
    }
    Init cuGraphGetId [cuGraphGetId 13010] [] (c, g: H, out: Out<u32>) { out.set(lock().graph(g)?.id as u32) }
    Init cuUserObjectCreate [cuUserObjectCreate 11030] []
    (c, out: Out<H>, data: usize, destroy: usize, refs: u32, flags: u32) {
        if flags != 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(user_object::create(destroy, data, refs)?)
    }
    Init cuUserObjectRetain [cuUserObjectRetain 11030] [] (c, h: H, n: u32) { user_object::retain(h, n) }
    Init cuUserObjectRelease [cuUserObjectRelease 11030] [] (c, h: H, n: u32) {
        let mut m = lock();
        if !m.user_objects.contains_key(&h) {
            return Err(Error::INVALID_VALUE);
        }
        user_object::release(&mut m, h, n, None);
        Ok(())
    }
    Init cuGraphRetainUserObject [cuGraphRetainUserObject 11030] [] (c, g: H, h: H, n: u32, flags: u32) {
        user_object::retain_in_graph(g, h, n, flags & 1 != 0)
    }
    Init cuGraphReleaseUserObject [cuGraphReleaseUserObject 11030] [] (c, g: H, h: H, n: u32) {
        user_object::release_in_graph(g, h, n)
    }
}
