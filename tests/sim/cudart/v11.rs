//! Functions that had another signature until runtime 11.

use super::driver::P;

rt! {
    Ctx cudaGraphInstantiate [] (rt, out: P, g: P, node: P, log: P, size: usize) {
        rt.cuGraphInstantiate(out, g, node, log, size)
    }
    Ctx cudaGraphExecUpdate [] (rt, h: P, g: P, node: P, why: P) { rt.v1_cuGraphExecUpdate(h, g, node, why) }
}
