//! Building, instantiating and launching graphs.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use cudarc::driver::sys;
use gpumem_kernels::Kernel;
use std::{ffi::c_void, ptr::null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("graph.exec_outlives_its_graph", exec_outlives_its_graph),
    Check::measured("graph.captured_parameters_can_be_read", captured_parameters_can_be_read),
    Check::documented("graph.parameters_are_copied", parameters_are_copied),
    Check::documented("graph.dependencies", dependencies),
    Check::documented("graph.clone", clone),
    Check::documented("graph.child_is_a_copy", child_is_a_copy),
    Check::documented("graph.changes_do_not_reach_execs", changes_do_not_reach_execs),
    Check::documented("graph.host_node", host_node),
    Check::documented("graph.empty", empty),
    Check::measured("graph.flags", flags),
    Check::documented("graph.cycle_is_refused", cycle_is_refused),
    Check::documented("graph.upload", upload),
    Check::documented("graph.five_argument_instantiate", five_argument_instantiate),
];

const N: u64 = 2048;

/// A kernel node's parameters over values that the caller keeps alive.
pub(super) fn kernel_params(t: &Checker, kernel: Kernel, params: &mut [*mut c_void]) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: t.gpu.kernels.function(kernel),
        gridDimX: 8,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 256,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: params.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}

/// Calls `f` with the parameters of a node that fills `mem` with `value`.
pub(super) fn with_fill<R>(
    t: &Checker,
    mem: &Mem,
    value: u32,
    f: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> R,
) -> R {
    let (mut p, mut n, mut v) = (mem.p, mem.bytes as u64 / 4, value);
    let mut params = [(&raw mut p).cast(), (&raw mut n).cast(), (&raw mut v).cast()];
    f(&kernel_params(t, Kernel::Fill, &mut params))
}

/// Adds a node that fills `mem` with `value` after `after`.
pub(super) fn add_fill(
    t: &Checker,
    graph: &Graph,
    after: &[sys::CUgraphNode],
    mem: &Mem,
    value: u32,
) -> Result<sys::CUgraphNode, Stop> {
    let mut node = null_mut();
    let status = with_fill(t, mem, value, |params| {
        cu!(cuGraphAddKernelNode_v2(&mut node, graph.g, after.as_ptr(), after.len(), params))
    });
    ok("cuGraphAddKernelNode", status)?;
    Ok(node)
}

fn expect(t: &mut Checker, what: &str, stream: &Strm, mem: &Mem, value: u32) -> Done {
    let wrong = t.gpu.wrong_words(stream, mem.words(), value)?;
    t.eq(&format!("{what}: words that are not {value}"), wrong, 0);
    Ok(())
}

fn exec_outlives_its_graph(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 7)?))?;
    let exec = graph.instantiate()?;
    drop(graph);
    for _ in 0..3 {
        ok("cuMemsetD32Async", cu!(cuMemsetD32Async(mem.p, 0, N as usize, stream.s)))?;
        exec.launch(&stream)?;
        expect(t, "a launch after cuGraphDestroy", &stream, &mem, 7)?;
    }
    Ok(())
}

/// `extra` is NULL on captured nodes and `kernelParams` points at values that the
/// driver owns, whatever way the kernel was launched.
fn captured_parameters_can_be_read(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 71)?))?;
    let mut params = kernel_params(t, Kernel::Scale, &mut []);
    let status = cu!(cuGraphKernelNodeGetParams_v2(graph.nodes()?[0], &mut params));
    ok("cuGraphKernelNodeGetParams", status)?;
    t.yes("extra is NULL", params.extra.is_null());
    t.eq("the function", params.func, t.gpu.kernels.function(Kernel::Fill));
    t.eq("grid and block", (params.gridDimX, params.blockDimX), (8, 256));
    if params.kernelParams.is_null() {
        return Err(Stop::Fail("kernelParams is NULL".into()));
    }
    // SAFETY: the kernel declares three parameters, u64, u64 and u32. The driver's list has one
    // valid pointer for each while the node lives, and the graph is alive.
    let (p, n, v) = unsafe {
        let list = std::slice::from_raw_parts(params.kernelParams, 3);
        (*list[0].cast::<u64>(), *list[1].cast::<u64>(), *list[2].cast::<u32>())
    };
    t.eq("the parameters' values", (p, n, v), (mem.p, N, 71));
    Ok(())
}

fn parameters_are_copied(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (graph, mut node) = (Graph::new()?, null_mut());
    let (mut p, mut n, mut v) = (mem.p, N, 13u32);
    let mut list = [(&raw mut p).cast(), (&raw mut n).cast(), (&raw mut v).cast::<c_void>()];
    let params = kernel_params(t, Kernel::Fill, &mut list);
    let added = cu!(cuGraphAddKernelNode_v2(&mut node, graph.g, std::ptr::null(), 0, &params));
    ok("cuGraphAddKernelNode", added)?;
    (v, p, n) = (99, 0, 0);
    std::hint::black_box((&mut p, &mut n, &mut v));
    graph.instantiate()?.launch(&stream)?;
    expect(t, "values changed after adding the node", &stream, &mem, 13)
}

/// fill a; a -> b and a -> c at the same time; b filled after both.
fn dependencies(t: &mut Checker) -> Done {
    let stream = Strm::non_blocking()?;
    let [a, b, c] = [t.gpu.words(N)?, t.gpu.words(N)?, t.gpu.words(N)?];
    let graph = Graph::new()?;
    let first = add_fill(t, &graph, &[], &a, 1)?;
    let left = add_fill(t, &graph, &[first], &b, 2)?;
    let right = add_fill(t, &graph, &[first], &c, 3)?;
    let last = add_fill(t, &graph, &[left, right], &b, 4)?;
    let mut count = 0;
    ok("cuGraphGetRootNodes", cu!(cuGraphGetRootNodes(graph.g, null_mut(), &mut count)))?;
    t.eq("root nodes", count, 1);
    let asked = cu!(cuGraphNodeGetDependencies_v2(last, null_mut(), null_mut(), &mut count));
    ok("cuGraphNodeGetDependencies", asked)?;
    t.eq("dependencies of the last", count, 2);
    graph.instantiate()?.launch(&stream)?;
    expect(t, "b", &stream, &b, 4)?;
    expect(t, "c", &stream, &c, 3)
}

fn clone(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::new()?;
    let node = add_fill(t, &graph, &[], &mem, 21)?;
    let (clone, mut in_clone) = (graph.copy()?, null_mut());
    ok("cuGraphNodeFindInClone", cu!(cuGraphNodeFindInClone(&mut in_clone, node, clone.g)))?;
    t.yes("the clone has a node of its own", in_clone != node);
    let set = with_fill(t, &mem, 22, |p| cu!(cuGraphKernelNodeSetParams_v2(node, p)));
    t.eq("setting the original's node", set, 0);
    drop(graph);
    clone.instantiate()?.launch(&stream)?;
    expect(t, "the clone", &stream, &mem, 21)
}

fn child_is_a_copy(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (inner, outer, mut child) = (Graph::new()?, Graph::new()?, null_mut());
    let node = add_fill(t, &inner, &[], &mem, 31)?;
    let none = std::ptr::null();
    let added = cu!(cuGraphAddChildGraphNode(&mut child, outer.g, none, 0, inner.g));
    ok("cuGraphAddChildGraphNode", added)?;
    with_fill(t, &mem, 32, |p| cu!(cuGraphKernelNodeSetParams_v2(node, p)));
    drop(inner);
    outer.instantiate()?.launch(&stream)?;
    expect(t, "the child", &stream, &mem, 31)
}

fn changes_do_not_reach_execs(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::new()?;
    let node = add_fill(t, &graph, &[], &mem, 41)?;
    let before = graph.instantiate()?;
    let set = with_fill(t, &mem, 42, |p| cu!(cuGraphKernelNodeSetParams_v2(node, p)));
    t.eq("cuGraphKernelNodeSetParams", set, 0);
    let after = graph.instantiate()?;
    before.launch(&stream)?;
    expect(t, "the exec from before the change", &stream, &mem, 41)?;
    after.launch(&stream)?;
    expect(t, "the exec from after it", &stream, &mem, 42)
}

extern "C" fn count_call(counter: *mut c_void) {
    // SAFETY: `counter` is the u32 that `host_node` passes with this function. It outlives the
    // launches, and the stream runs one call at a time.
    unsafe { *counter.cast::<u32>() += 1 };
}

fn host_node(t: &mut Checker) -> Done {
    let (stream, graph) = (Strm::non_blocking()?, Graph::new()?);
    let (mut calls, mut node) = (0u32, null_mut());
    let params = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(count_call), userData: (&raw mut calls).cast() };
    let added = cu!(cuGraphAddHostNode(&mut node, graph.g, std::ptr::null(), 0, &params));
    ok("cuGraphAddHostNode", added)?;
    let exec = graph.instantiate()?;
    exec.launch(&stream)?;
    exec.launch(&stream)?;
    stream.sync()?;
    // SAFETY: `calls` is a local u32. The synchronise above means that both callbacks have
    // returned.
    t.eq("calls of the host function", unsafe { std::ptr::read_volatile(&raw const calls) }, 2);
    Ok(())
}

fn empty(t: &mut Checker) -> Done {
    let (stream, graph) = (Strm::non_blocking()?, Graph::new()?);
    let exec = graph.instantiate()?;
    t.eq("launching a graph without nodes", cu!(cuGraphLaunch(exec.e, stream.s)), 0);
    stream.sync()
}

fn flags(t: &mut Checker) -> Done {
    let (graph, mut exec, mut flags) = (Graph::new()?, null_mut(), 0);
    // AUTO_FREE_ON_LAUNCH and USE_NODE_PRIORITY: PyTorch's.
    let made = cu!(cuGraphInstantiateWithFlags(&mut exec, graph.g, 9));
    ok("cuGraphInstantiateWithFlags", made)?;
    let exec = Exec { e: exec };
    t.eq("cuGraphExecGetFlags", cu!(cuGraphExecGetFlags(exec.e, &mut flags)), 0);
    // The second of them is not told (H200, driver 580).
    t.eq("the flags", flags, 1);
    Ok(())
}

fn cycle_is_refused(t: &mut Checker) -> Done {
    let (mem, graph) = (t.gpu.words(N)?, Graph::new()?);
    let a = add_fill(t, &graph, &[], &mem, 1)?;
    let b = add_fill(t, &graph, &[a], &mem, 2)?;
    let closed = cu!(cuGraphAddDependencies_v2(graph.g, &b, &a, std::ptr::null(), 1));
    let mut e = null_mut();
    let made = if closed == 0 { cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, 0)) } else { 1 };
    t.yes("a cycle is refused when made or when instantiated", made != 0);
    t.yes("no exec comes of it", e.is_null());
    Ok(())
}

fn upload(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 8)?))?;
    ok("cuMemsetD32", cu!(cuMemsetD32_v2(mem.p, 0, N as usize)))?;
    ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
    let exec = graph.instantiate()?;
    t.eq("cuGraphUpload", cu!(cuGraphUpload(exec.e, stream.s)), 0);
    expect(t, "an upload runs nothing", &stream, &mem, 0)?;
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 8)
}

fn five_argument_instantiate(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 6)?))?;
    let exec = graph.instantiate_with_log()?;
    exec.launch(&stream)?;
    expect(t, "its launch", &stream, &mem, 6)
}
