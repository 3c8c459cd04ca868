//! Functions with another signature since runtime 12.

use super::driver::P;

rt! {
    Ctx cudaGraphInstantiate [] (rt, out: P, g: P, flags: u64) { rt.cuGraphInstantiateWithFlags(out, g, flags) }
    Ctx cudaGraphExecUpdate [] (rt, h: P, g: P, out: P) { rt.cuGraphExecUpdate(h, g, out) }
}
