//! After an illegal address nothing works. In a process of its own.

use super::{Check, Checker, Done, cu, fixtures::*};
use gpumem_kernels::Words;

pub(super) const CHECKS: &[Check] = &[Check::measured("sticky.every_call_gives_700", every_call_gives_700).alone()];

const ILLEGAL_ADDRESS: u32 = 700;

fn every_call_gives_700(t: &mut Checker) -> Done {
    let (mem, stream) = (Mem::new(4096)?, Strm::non_blocking()?);
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 1)?))?;
    let exec = graph.instantiate()?;
    // SAFETY: this breaks the promise on purpose: no memory is at 0x100. The kernel's fault ends
    // this context and touches no memory of the host.
    let nowhere = unsafe { Words::from_raw(0x100, 1) }?;
    t.gpu.kernels.fill(stream.k(), nowhere, 1)?;
    t.eq("cuStreamSynchronize", cu!(cuStreamSynchronize(stream.s)), ILLEGAL_ADDRESS);
    let (mut p, mut free, mut total) = (0, 0, 0);
    t.eq("cuMemAlloc", cu!(cuMemAlloc_v2(&mut p, 4096)), ILLEGAL_ADDRESS);
    t.eq("cuMemFree", cu!(cuMemFree_v2(mem.p)), ILLEGAL_ADDRESS);
    t.eq("cuMemFree(0)", cu!(cuMemFree_v2(0)), ILLEGAL_ADDRESS);
    t.eq("cuMemGetInfo", cu!(cuMemGetInfo_v2(&mut free, &mut total)), ILLEGAL_ADDRESS);
    let mut other = std::ptr::null_mut();
    t.eq("cuGraphInstantiate", cu!(cuGraphInstantiateWithFlags(&mut other, graph.g, 0)), ILLEGAL_ADDRESS);
    t.eq("cuGraphLaunch", cu!(cuGraphLaunch(exec.e, stream.s)), ILLEGAL_ADDRESS);
    t.eq("cuCtxSynchronize", cu!(cuCtxSynchronize()), ILLEGAL_ADDRESS);
    t.eq("cuCtxSynchronize again", cu!(cuCtxSynchronize()), ILLEGAL_ADDRESS);
    Ok(())
}
