//! Functions that only runtime 12 has, or that have another signature there.

use super::core::{ask, write};
use super::devices::attribute;
use super::driver::{Location, P, Result, Rt};
use super::graphs::with_params;

/// cudaDeviceProp of runtime 12, the fields that are answered by name.
#[repr(C)]
struct Props {
    name: [u8; 256],
    uuid: [u8; 16],
    luid: [u8; 8],
    luid_mask: u32,
    total: usize,
    shared_per_block: usize,
    regs_per_block: i32,
    warp: i32,
    pitch: usize,
    max_threads: i32,
    max_block: [i32; 3],
    max_grid: [i32; 3],
    clock: i32,
    constant: usize,
    major: i32,
    minor: i32,
    texture_alignment: [usize; 2],
    overlap: i32,
    multiprocessors: i32,
    timeout: i32,
    integrated: i32,
    can_map_host: i32,
    compute_mode: i32,
    textures: [i32; 40],
    surface_alignment: usize,
    concurrent_kernels: i32,
    ecc: i32,
    pci_bus: i32,
    pci_device: i32,
    pci_domain: i32,
    tcc: i32,
    async_engines: i32,
    unified_addressing: i32,
    memory_clock: i32,
    memory_bus: i32,
    l2: i32,
    persisting_l2: i32,
    threads_per_multiprocessor: i32,
    priorities: i32,
    l1: [i32; 2],
    shared_per_multiprocessor: usize,
    regs_per_multiprocessor: i32,
    managed: i32,
    rest_a: [i32; 5],
    concurrent_managed: i32,
    preemption: i32,
    host_pointer: i32,
    cooperative: [i32; 2],
    shared_optin: usize,
    rest_b: [i32; 2],
    blocks_per_multiprocessor: i32,
    window: i32,
    reserved_shared: usize,
    rest_c: [i32; 4],
    pools: i32,
    rest_d: [i32; 71],
}

const _: () = assert!(size_of::<Props>() == 1032, "cudaDeviceProp has 1032 bytes in runtime 12");

fn properties(rt: Rt, out: P, n: i32) -> Result {
    // SAFETY: the struct holds numbers only, so all zeroes is a valid value.
    let mut p: Props = unsafe { std::mem::zeroed() };
    rt.cuDeviceGetName(p.name.as_mut_ptr() as P, 256, n)?;
    rt.cuDeviceGetUuid(p.uuid.as_mut_ptr() as P, n)?;
    p.total = ask(|q| rt.cuDeviceTotalMem(q, n))?;
    let a = |id| attribute(rt, id, n);
    p.shared_per_block = a(8) as usize;
    p.regs_per_block = a(12);
    p.warp = a(10);
    p.pitch = a(11) as usize;
    p.max_threads = a(1);
    p.max_block = [a(2), a(3), a(4)];
    p.max_grid = [a(5), a(6), a(7)];
    p.clock = a(13);
    p.constant = a(9) as usize;
    (p.major, p.minor) = (a(75), a(76));
    p.texture_alignment = [a(14) as usize, 32];
    p.overlap = a(15);
    p.multiprocessors = a(16);
    p.can_map_host = a(19);
    p.concurrent_kernels = a(31);
    (p.pci_bus, p.pci_device, p.pci_domain) = (a(33), a(34), a(50));
    p.async_engines = a(42);
    p.unified_addressing = a(40);
    (p.memory_clock, p.memory_bus, p.l2) = (a(36), a(37), a(38));
    p.threads_per_multiprocessor = a(39);
    p.priorities = a(78);
    p.shared_per_multiprocessor = a(81) as usize;
    p.regs_per_multiprocessor = a(82);
    (p.managed, p.concurrent_managed) = (a(83), a(89));
    p.cooperative = [a(95), 0];
    p.shared_optin = a(97) as usize;
    p.blocks_per_multiprocessor = a(106);
    p.pools = a(115);
    write(out, p)
}

rt! {
    Init cudaGetDeviceProperties_v2 [] (rt, out: P, n: i32) { properties(rt, out, n) }
    Init cudaGetDeviceProperties [] (rt, out: P, n: i32) { properties(rt, out, n) }
    Ctx cudaMemPrefetchAsync [cudaMemPrefetchAsync_ptsz] (rt, p: P, n: usize, dev: i32, s: P) {
        // Device -1 is the CPU.
        let at = if dev < 0 { Location { kind: 2, id: 0 } } else { Location { kind: 1, id: dev } };
        rt.cuMemPrefetchAsync(p, n, at, 0, s)
    }
    Ctx cudaMemPrefetchAsync_v2 [cudaMemPrefetchAsync_v2_ptsz] (rt, p: P, n: usize, at: Location, flags: u32, s: P) {
        rt.cuMemPrefetchAsync(p, n, at, flags, s)
    }
    Ctx cudaMemAdvise [] (rt, p: P, n: usize, advice: u32, dev: i32) {
        let at = if dev < 0 { Location { kind: 2, id: 0 } } else { Location { kind: 1, id: dev } };
        rt.cuMemAdvise(p, n, advice, at)
    }
    Ctx cudaMemAdvise_v2 [] (rt, p: P, n: usize, advice: u32, at: Location) { rt.cuMemAdvise(p, n, advice, at) }
    Ctx cudaEventElapsedTime_v2 [] (rt, out: P, a: P, b: P) { rt.cuEventElapsedTime(out, a, b) }
    Ctx cudaStreamGetCaptureInfo_v2 [cudaStreamGetCaptureInfo_v2_ptsz] (rt, s: P, status: P, id: P, g: P, deps: P, n: P) {
        rt.cuStreamGetCaptureInfo(s, status, id, g, deps, n)
    }
    Ctx cudaStreamGetCaptureInfo_v3 [cudaStreamGetCaptureInfo_v3_ptsz]
    (rt, s: P, status: P, id: P, g: P, deps: P, edges: P, n: P) {
        rt.v2_cuStreamGetCaptureInfo(s, status, id, g, deps, edges, n)
    }
    Ctx cudaStreamUpdateCaptureDependencies [cudaStreamUpdateCaptureDependencies_ptsz]
    (rt, s: P, deps: P, n: usize, flags: u32) {
        rt.cuStreamUpdateCaptureDependencies(s, deps, n, flags)
    }
    Ctx cudaStreamUpdateCaptureDependencies_v2 [cudaStreamUpdateCaptureDependencies_v2_ptsz]
    (rt, s: P, deps: P, edges: P, n: usize, flags: u32) {
        rt.v2_cuStreamUpdateCaptureDependencies(s, deps, edges, n, flags)
    }
    Ctx cudaGraphGetEdges [] (rt, g: P, from: P, to: P, n: P) { rt.cuGraphGetEdges(g, from, to, n) }
    Ctx cudaGraphGetEdges_v2 [] (rt, g: P, from: P, to: P, data: P, n: P) { rt.v2_cuGraphGetEdges(g, from, to, data, n) }
    Ctx cudaGraphNodeGetDependencies [] (rt, node: P, out: P, n: P) { rt.cuGraphNodeGetDependencies(node, out, n) }
    Ctx cudaGraphNodeGetDependencies_v2 [] (rt, node: P, out: P, data: P, n: P) {
        rt.v2_cuGraphNodeGetDependencies(node, out, data, n)
    }
    Ctx cudaGraphNodeGetDependentNodes [] (rt, node: P, out: P, n: P) { rt.cuGraphNodeGetDependentNodes(node, out, n) }
    Ctx cudaGraphNodeGetDependentNodes_v2 [] (rt, node: P, out: P, data: P, n: P) {
        rt.v2_cuGraphNodeGetDependentNodes(node, out, data, n)
    }
    Ctx cudaGraphAddDependencies [] (rt, g: P, from: P, to: P, n: usize) { rt.cuGraphAddDependencies(g, from, to, n) }
    Ctx cudaGraphAddDependencies_v2 [] (rt, g: P, from: P, to: P, data: P, n: usize) {
        rt.v2_cuGraphAddDependencies(g, from, to, data, n)
    }
    Ctx cudaGraphRemoveDependencies [] (rt, g: P, from: P, to: P, n: usize) { rt.cuGraphRemoveDependencies(g, from, to, n) }
    Ctx cudaGraphRemoveDependencies_v2 [] (rt, g: P, from: P, to: P, data: P, n: usize) {
        rt.v2_cuGraphRemoveDependencies(g, from, to, data, n)
    }
    Ctx cudaGraphAddNode [] (rt, out: P, g: P, deps: P, n: usize, p: P) {
        with_params(rt, p, |q| rt.cuGraphAddNode(out, g, deps, n, q))
    }
    Ctx cudaGraphAddNode_v2 [] (rt, out: P, g: P, deps: P, data: P, n: usize, p: P) {
        with_params(rt, p, |q| rt.v2_cuGraphAddNode(out, g, deps, data, n, q))
    }
    Ctx cudaGraphKernelNodeCopyAttributes [] (rt, src: P, dst: P) { rt.cuGraphKernelNodeCopyAttributes(dst, src) }
}
