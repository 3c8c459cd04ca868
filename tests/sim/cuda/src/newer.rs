//! Functions of newer drivers: one of 13.1, and three that no driver has yet. `cuGetProcAddress` gives them from their
//! versions on, if the simulated driver's version allows it.

use crate::abi::{H, Out};
use gpumem_sim_engine::config::config;
use gpumem_sim_engine::{Error, exec, graph, lock, memory};

cu! {
    Init cuGraphNodeGetContainingGraph [cuGraphNodeGetContainingGraph 13010] [] (c, node: H, out: Out<H>) {
        if config().driver_version < 13010 {
            return Err(Error::NOT_SUPPORTED);
        }
        let graph = graph::node(&mut lock(), node)?.graph;
        out.set(graph)
    }
    /// Asks about an exec.
    Init cuGraphExecGetNodeCount [cuGraphExecGetNodeCount 13090] [] (c, h: H, out: Out<usize>) {
        let nodes = lock().exec(h)?.body.nodes.len();
        out.set(nodes)
    }
    /// Launches an exec, by a name that says neither that it launches nor that it takes one.
    Init cuStreamRun [cuStreamRun 13090] [cuStreamRun_ptsz 13090] (c, s: H, h: H) {
        exec::launch(h, c.stream(s)?)
    }
    /// Allocates device memory beside other memory.
    Ctx cuMemAllocNear [cuMemAllocNear 13090] [] (c, out: Out<u64>, size: usize, near: u64) {
        out.need()?;
        if lock().find(near).is_none() {
            return Err(Error::INVALID_VALUE);
        }
        out.set(memory::alloc(c.ctx, size as u64)?)
    }
}
