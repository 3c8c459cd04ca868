//! Functions that the headers of CUDA 13 no longer declare; the driver still has them.

use super::api::{NO_FUNCTION, Status};
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphExecUpdateResult, CUgraphNode};

fn find<F: Copy>(name: &[u8]) -> Option<F> {
    // SAFETY: each caller below names as `F` the type that cuda.h before 12.0 has for the name. The
    // library is never closed.
    unsafe { sys::culib().get::<F>(name) }.ok().map(|f| *f)
}

pub fn instantiate(exec: &mut CUgraphExec, graph: CUgraph, node: &mut CUgraphNode, log: &mut [i8; 64]) -> Status {
    type F = unsafe extern "C" fn(*mut CUgraphExec, CUgraph, *mut CUgraphNode, *mut i8, usize) -> u32;
    let f = find::<F>(b"cuGraphInstantiate_v2\0");
    // SAFETY: `f` has the driver's type for this name. Our caller's graph is alive, the pointers
    // are references, and `log` has the length that is passed.
    f.map_or(NO_FUNCTION, |f| unsafe { f(exec, graph, node, log.as_mut_ptr(), log.len()) })
}

pub fn update(exec: CUgraphExec, graph: CUgraph, node: &mut CUgraphNode, why: &mut CUgraphExecUpdateResult) -> Status {
    type F = unsafe extern "C" fn(CUgraphExec, CUgraph, *mut CUgraphNode, *mut CUgraphExecUpdateResult) -> u32;
    let f = find::<F>(b"cuGraphExecUpdate\0");
    // SAFETY: `f` has the driver's type for this name. Our caller's exec and graph are alive, and
    // the pointers are references.
    f.map_or(NO_FUNCTION, |f| unsafe { f(exec, graph, node, why) })
}
