//! Functions of runtime 13 that have another signature than in 12.

use super::core::{ask, write};
use super::devices::attribute;
use super::driver::{Location, P, Result, Rt};
use super::graphs::with_params;
use cudarc::runtime::sys::cudaDeviceProp;

fn properties(rt: Rt, out: P, n: i32) -> Result {
    // SAFETY: the struct holds numbers only, so all zeroes is a valid value.
    let mut p: cudaDeviceProp = unsafe { std::mem::zeroed() };
    rt.cuDeviceGetName(p.name.as_mut_ptr() as P, 256, n)?;
    rt.cuDeviceGetUuid(&raw mut p.uuid as P, n)?;
    p.totalGlobalMem = ask(|q| rt.cuDeviceTotalMem(q, n))?;
    let a = |id| attribute(rt, id, n);
    p.sharedMemPerBlock = a(8) as usize;
    p.regsPerBlock = a(12);
    p.warpSize = a(10);
    p.memPitch = a(11) as usize;
    p.maxThreadsPerBlock = a(1);
    p.maxThreadsDim = [a(2), a(3), a(4)];
    p.maxGridSize = [a(5), a(6), a(7)];
    p.totalConstMem = a(9) as usize;
    (p.major, p.minor) = (a(75), a(76));
    p.textureAlignment = a(14) as usize;
    p.multiProcessorCount = a(16);
    p.canMapHostMemory = a(19);
    p.concurrentKernels = a(31);
    (p.pciBusID, p.pciDeviceID, p.pciDomainID) = (a(33), a(34), a(50));
    p.asyncEngineCount = a(42);
    p.unifiedAddressing = a(40);
    (p.memoryBusWidth, p.l2CacheSize) = (a(37), a(38));
    p.maxThreadsPerMultiProcessor = a(39);
    p.streamPrioritiesSupported = a(78);
    p.sharedMemPerMultiprocessor = a(81) as usize;
    p.regsPerMultiprocessor = a(82);
    (p.managedMemory, p.concurrentManagedAccess) = (a(83), a(89));
    p.cooperativeLaunch = a(95);
    p.sharedMemPerBlockOptin = a(97) as usize;
    p.maxBlocksPerMultiProcessor = a(106);
    p.memoryPoolsSupported = a(115);
    write(out, p)
}

rt! {
    Init cudaGetDeviceProperties [] (rt, out: P, n: i32) { properties(rt, out, n) }
    Ctx cudaMemPrefetchAsync [cudaMemPrefetchAsync_ptsz] (rt, p: P, n: usize, at: Location, flags: u32, s: P) {
        rt.cuMemPrefetchAsync(p, n, at, flags, s)
    }
    Ctx cudaMemAdvise [] (rt, p: P, n: usize, advice: u32, at: Location) { rt.cuMemAdvise(p, n, advice, at) }
    Ctx cudaMemGetDefaultMemPool [] (rt, out: P, at: P, kind: u32) { rt.cuMemGetDefaultMemPool(out, at, kind) }
    Ctx cudaMemGetMemPool [] (rt, out: P, at: P, kind: u32) { rt.cuMemGetMemPool(out, at, kind) }
    Ctx cudaMemSetMemPool [] (rt, at: P, kind: u32, pool: P) { rt.cuMemSetMemPool(at, kind, pool) }
    Ctx cudaStreamGetCaptureInfo [cudaStreamGetCaptureInfo_ptsz]
    (rt, s: P, status: P, id: P, g: P, deps: P, edges: P, n: P) {
        rt.v2_cuStreamGetCaptureInfo(s, status, id, g, deps, edges, n)
    }
    Ctx cudaStreamUpdateCaptureDependencies [cudaStreamUpdateCaptureDependencies_ptsz]
    (rt, s: P, deps: P, edges: P, n: usize, flags: u32) {
        rt.v2_cuStreamUpdateCaptureDependencies(s, deps, edges, n, flags)
    }
    Ctx cudaGraphGetEdges [] (rt, g: P, from: P, to: P, data: P, n: P) { rt.v2_cuGraphGetEdges(g, from, to, data, n) }
    Ctx cudaGraphNodeGetDependencies [] (rt, node: P, out: P, data: P, n: P) {
        rt.v2_cuGraphNodeGetDependencies(node, out, data, n)
    }
    Ctx cudaGraphNodeGetDependentNodes [] (rt, node: P, out: P, data: P, n: P) {
        rt.v2_cuGraphNodeGetDependentNodes(node, out, data, n)
    }
    Ctx cudaGraphAddDependencies [] (rt, g: P, from: P, to: P, data: P, n: usize) {
        rt.v2_cuGraphAddDependencies(g, from, to, data, n)
    }
    Ctx cudaGraphRemoveDependencies [] (rt, g: P, from: P, to: P, data: P, n: usize) {
        rt.v2_cuGraphRemoveDependencies(g, from, to, data, n)
    }
    Ctx cudaGraphAddNode [] (rt, out: P, g: P, deps: P, data: P, n: usize, p: P) {
        with_params(rt, p, |q| rt.v2_cuGraphAddNode(out, g, deps, data, n, q))
    }
    Ctx cudaGraphKernelNodeCopyAttributes [] (rt, dst: P, src: P) { rt.cuGraphKernelNodeCopyAttributes(dst, src) }
}
