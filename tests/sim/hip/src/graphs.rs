//! Graphs: made, cloned, wired, looked at.

use crate::abi::{H, In, Out};
use crate::devices::version;
use gpumem_sim_engine::node::Kind;
use gpumem_sim_engine::{Error, Result, graph, lock, user_object};

const PLAIN: [u8; 8] = [0; 8];

/// The usual pair: how many there are, or as many as fit, the rest zeroed.
fn list(out: Out<H>, n: Out<usize>, values: Vec<H>) -> Result {
    if out.is_null() {
        return n.set(values.len());
    }
    let room = n.get()?;
    let have = values.len();
    out.fill(room, values.into_iter().chain(std::iter::repeat(0)));
    n.set(have.min(room))
}

fn pairs(from: In<H>, to: In<H>, n: usize) -> Result<Vec<(H, H)>> {
    Ok(from.list(n)?.into_iter().zip(to.list(n)?).collect())
}

/// HIP's number of a node's kind: CUDA's, but for the batches of memory
/// operations, which came after two kinds that CUDA does not have. Up to ROCm
/// 5.2 the numbers begin with 1 (hip_runtime_api.h).
fn number(kind: &Kind) -> u32 {
    match kind {
        Kind::MemOps(_) => 14,
        other => other.number() + (version() < 50_300_000) as u32,
    }
}

hip! {
    Init hipGraphCreate [] (c, out: Out<H>, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?.set(graph::create(&mut lock()))
    }
    Init hipGraphDestroy [] (c, g: H) { graph::destroy(g) }
    Init hipGraphClone [] (c, out: Out<H>, g: H) {
        out.need()?;
        out.set(graph::copy(&mut lock(), g)?)
    }
    Init hipGraphNodeFindInClone [] (c, out: Out<H>, node: H, clone: H) { out.set(graph::find_in_clone(node, clone)?) }
    Init hipGraphNodeGetType [] (c, node: H, out: Out<u32>) {
        out.set(number(&graph::node(&mut lock(), node)?.kind))
    }
    Init hipGraphGetNodes [] (c, g: H, out: Out<H>, n: Out<usize>) {
        let nodes = lock().graph(g)?.nodes.clone();
        list(out, n, nodes)
    }
    Init hipGraphGetRootNodes [] (c, g: H, out: Out<H>, n: Out<usize>) { list(out, n, graph::roots(g)?) }
    Init hipGraphGetEdges [] (c, g: H, from: Out<H>, to: Out<H>, n: Out<usize>) {
        let edges = graph::edges(g)?;
        if from.is_null() != to.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        if from.is_null() {
            return n.set(edges.len());
        }
        let room = n.get()?;
        from.fill(room, edges.iter().map(|e| e.0));
        to.fill(room, edges.iter().map(|e| e.1));
        n.set(edges.len().min(room))
    }
    Init hipGraphNodeGetDependencies [] (c, node: H, out: Out<H>, n: Out<usize>) {
        let deps = graph::node(&mut lock(), node)?.deps.iter().map(|d| d.0).collect();
        list(out, n, deps)
    }
    Init hipGraphNodeGetDependentNodes [] (c, node: H, out: Out<H>, n: Out<usize>) {
        let outs = graph::node(&mut lock(), node)?.outs.iter().map(|d| d.0).collect();
        list(out, n, outs)
    }
    Init hipGraphAddDependencies [] (c, g: H, from: In<H>, to: In<H>, n: usize) {
        let edges: Vec<_> = pairs(from, to, n)?.into_iter().map(|(f, t)| (f, t, PLAIN)).collect();
        graph::add_edges(g, &edges)
    }
    Init hipGraphRemoveDependencies [] (c, g: H, from: In<H>, to: In<H>, n: usize) {
        graph::remove_edges(g, &pairs(from, to, n)?)
    }
    Init hipGraphDestroyNode [] (c, node: H) { graph::destroy_node(node) }
    Init hipGraphChildGraphNodeGetGraph [] (c, node: H, out: Out<H>) {
        match graph::node(&mut lock(), node)?.kind {
            Kind::Child(g) => out.set(g),
            _ => Err(Error::INVALID_VALUE),
        }
    }
    Init hipUserObjectCreate [] (c, out: Out<H>, data: usize, destroy: usize, refs: u32, flags: u32) {
        if flags != 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(user_object::create(destroy, data, refs)?)
    }
    Init hipUserObjectRetain [] (c, h: H, n: u32) { user_object::retain(h, n) }
    Init hipUserObjectRelease [] (c, h: H, n: u32) {
        let mut m = lock();
        if !m.user_objects.contains_key(&h) {
            return Err(Error::INVALID_VALUE);
        }
        user_object::release(&mut m, h, n, None);
        Ok(())
    }
    Init hipGraphRetainUserObject [] (c, g: H, h: H, n: u32, flags: u32) {
        user_object::retain_in_graph(g, h, n, flags & 1 != 0)
    }
    Init hipGraphReleaseUserObject [] (c, g: H, h: H, n: u32) { user_object::release_in_graph(g, h, n) }
}
