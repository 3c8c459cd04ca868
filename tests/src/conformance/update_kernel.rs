//! Which changes ExecUpdate applies and which it refuses: kernel nodes and their attributes.

use super::graph::{kernel_params, with_fill};
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok, skip};
use cudarc::driver::sys::{self, CUlaunchAttributeID as Attribute};
use gpumem_kernels::Kernel;
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("update.kernel_parameters", kernel_parameters),
    Check::measured("update.kernel_grid_and_block", kernel_grid_and_block),
    Check::measured("update.kernel_shared_memory", kernel_shared_memory),
    Check::measured("update.another_kernel", another_kernel),
    Check::measured("update.cooperative_refused", cooperative_refused),
    Check::measured("update.cooperative_while_it_runs", cooperative_while_it_runs),
    Check::measured("update.priority_refused", priority_refused),
    Check::measured("update.programmatic_edge_refused", programmatic_edge_refused),
    Check::measured("update.captured_cluster_kept", captured_cluster_kept),
    Check::measured("update.cluster_of_a_node_kept", cluster_of_a_node_kept),
];

const N: u64 = 2048;
const REFUSED: u32 = 910;

fn expect(t: &mut Checker, what: &str, stream: &Strm, mem: &Mem, value: u32) -> Done {
    let wrong = t.gpu.wrong_words(stream, mem.words(), value)?;
    t.eq(&format!("{what}: words that are not {value}"), wrong, 0);
    Ok(())
}

/// A graph of one node that fills `mem`; `change` may alter its launch.
fn fill_with(
    t: &Checker,
    mem: &Mem,
    value: u32,
    change: impl FnOnce(&mut sys::CUDA_KERNEL_NODE_PARAMS),
) -> Result<Graph, Stop> {
    let (graph, mut node) = (Graph::new()?, null_mut());
    let status = with_fill(t, mem, value, |params| {
        let mut params = *params;
        change(&mut params);
        cu!(cuGraphAddKernelNode_v2(&mut node, graph.g, null(), 0, &params))
    });
    ok("cuGraphAddKernelNode", status)?;
    Ok(graph)
}

fn fill(t: &Checker, mem: &Mem, value: u32) -> Result<Graph, Stop> {
    fill_with(t, mem, value, |_| ())
}

fn kernel_parameters(t: &mut Checker) -> Done {
    let (stream, a, b) = (Strm::non_blocking()?, t.gpu.words(N)?, t.gpu.words(N)?);
    let exec = fill(t, &a, 1)?.instantiate()?;
    t.eq("other buffer, other value", exec.update(&fill(t, &b, 2)?).0, 0);
    ok("cuMemsetD32Async", cu!(cuMemsetD32Async(a.p, 9, N as usize, stream.s)))?;
    exec.launch(&stream)?;
    expect(t, "the new buffer", &stream, &b, 2)?;
    expect(t, "the old buffer", &stream, &a, 9)
}

/// One thread of one block fills all words, and so do many threads. The result and the driver's answer show that both
/// ran.
fn kernel_grid_and_block(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let exec = fill(t, &mem, 1)?.instantiate()?;
    let single = fill_with(t, &mem, 2, |p| (p.gridDimX, p.blockDimX) = (1, 1))?;
    let wide = fill_with(t, &mem, 3, |p| (p.gridDimX, p.gridDimY, p.blockDimX) = (30, 2, 64))?;
    for (graph, value) in [(single, 2), (wide, 3)] {
        t.eq("another grid and block", exec.update(&graph).0, 0);
        exec.launch(&stream)?;
        expect(t, "the launch", &stream, &mem, value)?;
    }
    Ok(())
}

fn kernel_shared_memory(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let exec = fill(t, &mem, 1)?.instantiate()?;
    let more = fill_with(t, &mem, 2, |p| p.sharedMemBytes = 4096)?;
    t.eq("4 KiB of dynamic shared memory more", exec.update(&more).0, 0);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 2)
}

fn another_kernel(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let exec = fill(t, &mem, 7)?.instantiate()?;
    exec.launch(&stream)?;
    let (graph, mut node) = (Graph::new()?, null_mut());
    let (mut dst, mut src, mut n, mut factor) = (mem.p, mem.p, N, 6u32);
    let mut list = [(&raw mut dst).cast(), (&raw mut src).cast(), (&raw mut n).cast(), (&raw mut factor).cast()];
    let params = kernel_params(t, Kernel::Scale, &mut list);
    let added = cu!(cuGraphAddKernelNode_v2(&mut node, graph.g, null(), 0, &params));
    ok("cuGraphAddKernelNode", added)?;
    t.eq("gpumem_fill, then gpumem_scale", exec.update(&graph).0, 0);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 42)
}

/// Sets one attribute of the only node.
fn set(graph: &Graph, id: Attribute, fill_in: impl FnOnce(&mut sys::CUlaunchAttributeValue)) -> Result<u32, Stop> {
    // SAFETY: the union holds numbers only, so all zeroes is a valid value.
    let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
    fill_in(&mut value);
    Ok(cu!(cuGraphKernelNodeSetAttribute(graph.nodes()?[0], id, &value)))
}

fn cooperative_refused(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (plain, cooperative) = (fill(t, &mem, 1)?, fill(t, &mem, 1)?);
    let id = Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    ok("setting COOPERATIVE", set(&cooperative, id, |v| v.cooperative = 1)?)?;
    let (from_plain, from_cooperative) = (plain.instantiate()?, cooperative.instantiate()?);
    t.eq("plain, then cooperative", from_plain.update(&cooperative).0, REFUSED);
    t.eq("cooperative, then plain", from_cooperative.update(&plain).0, REFUSED);
    Ok(())
}

/// A launch of the exec waits on one stream. After the update, a launch on another stream runs the new graph.
fn cooperative_while_it_runs(t: &mut Checker) -> Done {
    let (one, two, mem) = (Strm::non_blocking()?, Strm::non_blocking()?, t.gpu.words(N)?);
    let (from, to) = (fill(t, &mem, 1)?, fill(t, &mem, 2)?);
    for graph in [&from, &to] {
        let id = Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        ok("setting COOPERATIVE", set(graph, id, |v| v.cooperative = 1)?)?;
    }
    let exec = from.instantiate()?;
    t.gpu.spin(&one, 20)?;
    exec.launch(&one)?;
    t.eq("the update", exec.update(&to).0, 0);
    exec.launch(&two)?;
    one.sync()?;
    expect(t, "the second launch", &two, &mem, 2)
}

fn priority_refused(t: &mut Checker) -> Done {
    let (mut least, mut greatest) = (0, 0);
    let range = cu!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    ok("cuCtxGetStreamPriorityRange", range)?;
    if least == greatest {
        return skip("the device has one priority only");
    }
    let mem = t.gpu.words(N)?;
    let (low, high) = (fill(t, &mem, 1)?, fill(t, &mem, 1)?);
    let id = Attribute::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    ok("setting PRIORITY", set(&low, id, |v| v.priority = least)?)?;
    ok("setting PRIORITY", set(&high, id, |v| v.priority = greatest)?)?;
    let mut e = null_mut();
    // USE_NODE_PRIORITY
    ok("instantiate", cu!(cuGraphInstantiateWithFlags(&mut e, low.g, 8)))?;
    t.eq("another node priority under USE_NODE_PRIORITY", Exec { e }.update(&high).0, REFUSED);
    Ok(())
}

/// Two fills in a row. With `programmatic` the second may start before the first has ended.
fn pair(t: &Checker, stream: &Strm, mem: &Mem, programmatic: bool) -> Result<Graph, Stop> {
    Graph::capture(stream, || {
        t.gpu.kernels.fill(stream.k(), mem.words(), 1)?;
        // SAFETY: the struct holds numbers, a union of numbers, and an enum that has a member 0, so
        // all zeroes is a valid value.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = Attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let attributes = &mut std::slice::from_mut(&mut attribute)[..usize::from(programmatic)];
        let config = launch_config(stream, 8, 256, attributes);
        let status = with_fill(t, mem, 2, |p| cu!(cuLaunchKernelEx(&config, p.func, p.kernelParams, null_mut())));
        ok("cuLaunchKernelEx", status)
    })
}

fn programmatic_edge_refused(t: &mut Checker) -> Done {
    if compute_major(t)? < 9 {
        return skip("the device has no programmatic launches (before sm_90)");
    }
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (plain, early) = (pair(t, &stream, &mem, false)?, pair(t, &stream, &mem, true)?);
    let (from_plain, from_early) = (plain.instantiate()?, early.instantiate()?);
    t.eq("plain, then programmatic edge", from_plain.update(&early).0, REFUSED);
    t.eq("programmatic, then plain edge", from_early.update(&plain).0, REFUSED);
    Ok(())
}

pub(super) fn compute_major(t: &Checker) -> Result<i32, Stop> {
    let id = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let mut major = 0;
    ok("cuDeviceGetAttribute", cu!(cuDeviceGetAttribute(&mut major, id, t.gpu.device)))?;
    Ok(major)
}

/// Writes how many blocks its cluster has. By hand, for clusters need sm_90.
pub(crate) const CLUSTER_PTX: &std::ffi::CStr = c"
.version 7.8
.target sm_90
.address_size 64
.visible .entry cluster_size(.param .u64 out)
{
    .reg .b32 %n;
    .reg .b64 %p;
    ld.param.u64 %p, [out];
    cvta.to.global.u64 %p, %p;
    mov.u32 %n, %cluster_nctaid.x;
    st.global.u32 [%p], %n;
    ret;
}";

struct Clusters {
    function: sys::CUfunction,
    out: Mem,
    stream: Strm,
}

impl Clusters {
    fn new(t: &Checker) -> Result<Clusters, Stop> {
        if compute_major(t)? < 9 {
            return skip("the device has no clusters (before sm_90)");
        }
        let (mut module, mut function) = (null_mut(), null_mut());
        let loaded = cu!(cuModuleLoadData(&mut module, CLUSTER_PTX.as_ptr().cast()));
        let name = c"cluster_size".as_ptr();
        if loaded != 0 || cu!(cuModuleGetFunction(&mut function, module, name)) != 0 {
            return skip(format!("a kernel for sm_90 is not loaded ({loaded})"));
        }
        Ok(Clusters { function, out: t.gpu.words(1)?, stream: Strm::non_blocking()? })
    }

    /// One launch with this cluster size (0: none given), captured.
    fn captured(&self, size: u32) -> Result<Graph, Stop> {
        Graph::capture(&self.stream, || {
            // SAFETY: the struct holds numbers, a union of numbers, and an enum that has a member
            // 0, so all zeroes is a valid value.
            let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
            attribute.id = Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute.value.clusterDim.x = size;
            attribute.value.clusterDim.y = 1;
            attribute.value.clusterDim.z = 1;
            let attributes = &mut std::slice::from_mut(&mut attribute)[..usize::from(size > 0)];
            let config = launch_config(&self.stream, 8, 32, attributes);
            let mut out = self.out.p;
            let mut list = [(&raw mut out).cast()];
            let launched = cu!(cuLaunchKernelEx(&config, self.function, list.as_mut_ptr(), null_mut()));
            ok("cuLaunchKernelEx", launched)
        })
    }

    /// The same kernel as a node made by hand, with the size as an attribute of the node.
    fn by_hand(&self, t: &Checker, size: u32) -> Result<Graph, Stop> {
        let (graph, mut node, mut out) = (Graph::new()?, null_mut(), self.out.p);
        let mut list = [(&raw mut out).cast()];
        let mut params = kernel_params(t, Kernel::Spin, &mut list);
        params.func = self.function;
        params.blockDimX = 32;
        let added = cu!(cuGraphAddKernelNode_v2(&mut node, graph.g, null(), 0, &params));
        ok("cuGraphAddKernelNode", added)?;
        if size > 0 {
            let status = set(&graph, Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, |v| {
                v.clusterDim.x = size;
                v.clusterDim.y = 1;
                v.clusterDim.z = 1;
            })?;
            ok("setting CLUSTER_DIMENSION", status)?;
        }
        Ok(graph)
    }

    /// The size that a launch of `exec` runs with.
    fn seen(&self, exec: &Exec) -> Result<u32, Stop> {
        const NEVER: u32 = 0xffff;
        ok("cuMemsetD32Async", cu!(cuMemsetD32Async(self.out.p, NEVER, 1, self.stream.s)))?;
        exec.launch(&self.stream)?;
        self.stream.sync()?;
        match self.out.read(1)?[0] {
            NEVER => skip("the device does not run kernels of its own text"),
            n => Ok(n),
        }
    }
}

/// An update from size `from` to size `to` succeeds; what runs afterwards is `want`.
fn cluster_update(
    t: &mut Checker,
    clusters: &Clusters,
    (from, old): (u32, Graph),
    (to, new): (u32, Graph),
    want: u32,
) -> Done {
    let exec = old.instantiate()?;
    t.eq("the size before", clusters.seen(&exec)?, from.max(1));
    t.eq("the update", exec.update(&new).0, 0);
    t.eq(&format!("the size after {from} -> {to}"), clusters.seen(&exec)?, want);
    Ok(())
}

/// The driver answers success and keeps the old size, for captured launches too. So its verdict alone does not prove
/// that two graphs may share an exec.
fn captured_cluster_kept(t: &mut Checker) -> Done {
    let c = Clusters::new(t)?;
    for (from, to) in [(2, 4), (0, 2), (2, 0)] {
        let want = from.max(1);
        cluster_update(t, &c, (from, c.captured(from)?), (to, c.captured(to)?), want)?;
    }
    Ok(())
}

/// The driver also keeps a size that was set as an attribute of a node.
fn cluster_of_a_node_kept(t: &mut Checker) -> Done {
    let c = Clusters::new(t)?;
    for (from, to) in [(2, 4), (0, 2), (2, 0)] {
        let want = from.max(1);
        cluster_update(t, &c, (from, c.by_hand(t, from)?), (to, c.by_hand(t, to)?), want)?;
    }
    Ok(())
}
