//! Which nodes an exec accepts, and what happens to handles whose objects are gone.

use super::graph::{add_fill, kernel_params, with_fill};
use super::{Check, Checker, Done, cu, fixtures::*, ok};
use cudarc::driver::sys;
use gpumem_kernels::Kernel;
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("handles.node_at_an_old_address", node_at_an_old_address),
    Check::measured("handles.node_added_again", node_added_again),
    Check::measured("handles.node_of_a_clone", node_of_a_clone),
    Check::measured("handles.two_execs_of_one_graph", two_execs_of_one_graph),
    Check::measured("handles.node_inside_a_child", node_inside_a_child),
    Check::measured("handles.what_can_be_disabled", what_can_be_disabled),
    Check::measured("handles.kernel_refused", kernel_refused),
    Check::measured("handles.set_while_running", set_while_running),
    Check::measured("handles.unloaded_function", unloaded_function),
    Check::measured("handles.none", none),
    Check::measured("handles.instantiate_flags", instantiate_flags),
    Check::measured("handles.instantiate_with_parameters", instantiate_with_parameters),
];

const N: u64 = 512;

fn expect(t: &mut Checker, what: &str, stream: &Strm, mem: &Mem, value: u32) -> Done {
    let wrong = t.gpu.wrong_words(stream, mem.words(), value)?;
    t.eq(&format!("{what}: words that are not {value}"), wrong, 0);
    Ok(())
}

fn set_fill(t: &Checker, e: sys::CUgraphExec, node: sys::CUgraphNode, mem: &Mem, value: u32) -> u32 {
    with_fill(t, mem, value, |p| cu!(cuGraphExecKernelNodeSetParams_v2(e, node, p)))
}

/// A new graph's node often has the address of a destroyed one. The exec of the old graph refuses it all the same.
fn node_at_an_old_address(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::new()?;
    add_fill(t, &graph, &[], &mem, 1)?;
    let exec = graph.instantiate()?;
    drop(graph);
    for _ in 0..4 {
        let graph = Graph::new()?;
        let node = add_fill(t, &graph, &[], &mem, 2)?;
        t.eq("setting a new graph's node", set_fill(t, exec.e, node, &mem, 3), 1);
        t.eq("disabling it", cu!(cuGraphNodeSetEnabled(exec.e, node, 0)), 1);
    }
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 1)
}

/// Nodes may be added to the graph and removed. The exec keeps accepting the nodes that it was made of.
fn node_added_again(t: &mut Checker) -> Done {
    let (stream, a, b) = (Strm::non_blocking()?, t.gpu.words(N)?, t.gpu.words(N)?);
    let graph = Graph::new()?;
    let first = add_fill(t, &graph, &[], &a, 1)?;
    let second = add_fill(t, &graph, &[first], &b, 2)?;
    let exec = graph.instantiate()?;
    ok("cuGraphDestroyNode", cu!(cuGraphDestroyNode(second)))?;
    t.eq("setting the node that stayed", set_fill(t, exec.e, first, &a, 3), 0);
    let again = add_fill(t, &graph, &[first], &b, 4)?;
    let later = add_fill(t, &graph, &[], &b, 5)?;
    let got = [again, later].map(|n| set_fill(t, exec.e, n, &b, 6));
    t.eq("setting one added again, one added later", got, [1, 1]);
    t.eq("setting the node that stayed", set_fill(t, exec.e, first, &a, 7), 0);
    exec.launch(&stream)?;
    expect(t, "the first", &stream, &a, 7)?;
    expect(t, "the second", &stream, &b, 2)
}

fn node_of_a_clone(t: &mut Checker) -> Done {
    let (mem, graph, mut g, mut twin) = (t.gpu.words(N)?, Graph::new()?, null_mut(), null_mut());
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    ok("cuGraphClone", cu!(cuGraphClone(&mut g, graph.g)))?;
    let clone = Graph { g };
    ok("cuGraphNodeFindInClone", cu!(cuGraphNodeFindInClone(&mut twin, node, clone.g)))?;
    let (of_graph, of_clone) = (graph.instantiate()?, clone.instantiate()?);
    t.eq("the clone's node in the graph's exec", set_fill(t, of_graph.e, twin, &mem, 2), 1);
    t.eq("the graph's node in the clone's exec", set_fill(t, of_clone.e, node, &mem, 2), 1);
    t.eq("the clone's own", set_fill(t, of_clone.e, twin, &mem, 2), 0);
    Ok(())
}

fn two_execs_of_one_graph(t: &mut Checker) -> Done {
    let (stream, mem, graph) = (Strm::non_blocking()?, t.gpu.words(N)?, Graph::new()?);
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    let (one, two) = (graph.instantiate()?, graph.instantiate()?);
    t.eq("setting the first", set_fill(t, one.e, node, &mem, 2), 0);
    t.eq("setting the second", set_fill(t, two.e, node, &mem, 3), 0);
    ok("setting the graph", with_fill(t, &mem, 4, |p| cu!(cuGraphKernelNodeSetParams_v2(node, p))))?;
    for (exec, value) in [(&one, 2), (&two, 3)] {
        exec.launch(&stream)?;
        expect(t, "its launch", &stream, &mem, value)?;
    }
    t.eq("setting the first again", set_fill(t, one.e, node, &mem, 5), 0);
    Ok(())
}

fn node_inside_a_child(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (inner, outer, mut child, mut g) = (Graph::new()?, Graph::new()?, null_mut(), null_mut());
    add_fill(t, &inner, &[], &mem, 1)?;
    ok("child", cu!(cuGraphAddChildGraphNode(&mut child, outer.g, null(), 0, inner.g)))?;
    ok("cuGraphChildGraphNodeGetGraph", cu!(cuGraphChildGraphNodeGetGraph(child, &mut g)))?;
    let (mut node, mut n) = (null_mut(), 1);
    ok("cuGraphGetNodes", cu!(cuGraphGetNodes(g, &mut node, &mut n)))?;
    t.eq("destroying the child's graph", cu!(cuGraphDestroy(g)), 1);
    let exec = outer.instantiate()?;
    t.eq("setting it", set_fill(t, exec.e, node, &mem, 2), 0);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 2)?;
    t.eq("setting the original's node", set_fill(t, exec.e, inner.nodes()?[0], &mem, 3), 1);
    t.eq("disabling it", cu!(cuGraphNodeSetEnabled(exec.e, node, 0)), 0);
    ok("cuMemsetD32Async", cu!(cuMemsetD32Async(mem.p, 9, N as usize, stream.s)))?;
    exec.launch(&stream)?;
    expect(t, "the launch with it disabled", &stream, &mem, 9)
}

extern "C" fn nothing(_: *mut std::ffi::c_void) {}

/// Kernels, copies and memsets.
fn what_can_be_disabled(t: &mut Checker) -> Done {
    let (graph, mut nodes, ev) = (Graph::new()?, [null_mut(); 4], Ev::new()?);
    let host = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(nothing), userData: null_mut() };
    ok("host", cu!(cuGraphAddHostNode(&mut nodes[0], graph.g, null(), 0, &host)))?;
    ok("empty", cu!(cuGraphAddEmptyNode(&mut nodes[1], graph.g, null(), 0)))?;
    ok("event", cu!(cuGraphAddEventRecordNode(&mut nodes[2], graph.g, null(), 0, ev.e)))?;
    let inner = Graph::new()?;
    ok("child", cu!(cuGraphAddChildGraphNode(&mut nodes[3], graph.g, null(), 0, inner.g)))?;
    let exec = graph.instantiate()?;
    for (node, what) in nodes.into_iter().zip(["host", "empty", "event", "child"]) {
        let mut on = 9;
        let got = (cu!(cuGraphNodeSetEnabled(exec.e, node, 0)), cu!(cuGraphNodeGetEnabled(exec.e, node, &mut on)));
        t.eq(&format!("a {what} node: disabling, asking"), got, (1, 1));
    }
    let mem = t.gpu.words(N)?;
    t.eq("a kernel for a host node", set_fill(t, exec.e, nodes[0], &mem, 1), 1);
    Ok(())
}

fn kernel_refused(t: &mut Checker) -> Done {
    let (stream, mem, graph) = (Strm::non_blocking()?, t.gpu.words(N)?, Graph::new()?);
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    let exec = graph.instantiate()?;
    let set = |change: &dyn Fn(&mut sys::CUDA_KERNEL_NODE_PARAMS)| {
        with_fill(t, &mem, 2, |p| {
            let mut p = *p;
            change(&mut p);
            cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, node, &p))
        })
    };
    let got = [
        set(&|p| p.gridDimX = 0),
        set(&|p| p.kernelParams = null_mut()),
        set(&|p| p.sharedMemBytes = 1 << 20),
        set(&|p| p.func = null_mut()),
    ];
    t.eq("no grid, no parameters, too much shared memory, no function", got, [1, 1, 1, 400]);
    exec.launch(&stream)?;
    expect(t, "it runs as before", &stream, &mem, 1)?;
    let (mut dst, mut src, mut n, mut factor) = (mem.p, mem.p, N, 6u32);
    let mut list = [(&raw mut dst).cast(), (&raw mut src).cast(), (&raw mut n).cast(), (&raw mut factor).cast()];
    let other = kernel_params(t, Kernel::Scale, &mut list);
    t.eq("another function", cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, node, &other)), 0);
    exec.launch(&stream)?;
    expect(t, "scaled by it", &stream, &mem, 6)
}

/// Setters and destroying an exec do not wait for running launches. Setters take effect in later launches only.
fn set_while_running(t: &mut Checker) -> Done {
    let (stream, mem, first, done) = (Strm::non_blocking()?, t.gpu.words(N)?, t.gpu.words(N)?, Ev::new()?);
    let outlasted = outlasted(|ms| {
        let graph = Graph::capture(&stream, || {
            t.gpu.spin(&stream, ms)?;
            Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 1)?)
        })?;
        let (nodes, exec) = (graph.nodes()?, graph.instantiate()?);
        exec.launch(&stream)?;
        done.record(&stream)?;
        t.gpu.kernels.scale(stream.k(), first.words(), mem.words(), 1)?;
        let set = (set_fill(t, exec.e, nodes[1], &mem, 2), cu!(cuGraphNodeSetEnabled(exec.e, nodes[0], 0)));
        let then = done.query();
        t.eq("setting and disabling", set, (0, 0));
        exec.launch(&stream)?;
        drop(exec);
        expect(t, "the first launch", &stream, &first, 1)?;
        expect(t, "the second, its exec destroyed", &stream, &mem, 2)?;
        Ok(then)
    })?;
    t.yes("the first launch runs once both returned", outlasted);
    Ok(())
}

/// A call that names a function of an unloaded module is refused. A node with such a function can be given another.
fn unloaded_function(t: &mut Checker) -> Done {
    let (stream, mem, mut module, mut f) = (Strm::non_blocking()?, t.gpu.words(N)?, null_mut(), null_mut());
    ok("cuModuleLoadData", cu!(cuModuleLoadData(&mut module, gpumem_kernels::PTX.as_ptr().cast())))?;
    let name = Kernel::Fill.name().as_ptr();
    ok("cuModuleGetFunction", cu!(cuModuleGetFunction(&mut f, module, name)))?;
    let with = |value, call: &mut dyn FnMut(&sys::CUDA_KERNEL_NODE_PARAMS) -> u32| {
        with_fill(t, &mem, value, |p| call(&sys::CUDA_KERNEL_NODE_PARAMS { func: f, ..*p }))
    };
    let (graph, mut node) = (Graph::new()?, null_mut());
    ok("add", with(1, &mut |p| cu!(cuGraphAddKernelNode_v2(&mut node, graph.g, null(), 0, p))))?;
    let exec = graph.instantiate()?;
    exec.launch(&stream)?;
    stream.sync()?;
    ok("cuModuleUnload", cu!(cuModuleUnload(module)))?;
    let mut more = null_mut();
    let got = [
        with(2, &mut |p| cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, node, p))),
        with(2, &mut |p| cu!(cuGraphAddKernelNode_v2(&mut more, graph.g, null(), 0, p))),
        with(2, &mut |p| cu!(cuLaunchKernel(f, 8, 1, 1, 256, 1, 1, 0, stream.s, p.kernelParams, null_mut()))),
        cu!(cuFuncGetParamInfo(f, 0, &mut 0, &mut 0)),
    ];
    t.eq("setting, adding, launching, asking", got, [400; 4]);
    t.eq("setting a function that is there", set_fill(t, exec.e, node, &mem, 3), 0);
    exec.launch(&stream)?;
    expect(t, "its launch", &stream, &mem, 3)
}

fn none(t: &mut Checker) -> Done {
    let (stream, mem, graph, mut n) = (Strm::non_blocking()?, t.gpu.words(N)?, Graph::new()?, 0);
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    let (mut exec, mut kind) = (null_mut(), sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY);
    let got = [
        cu!(cuGraphLaunch(null_mut(), stream.s)),
        set_fill(t, null_mut(), node, &mem, 2),
        cu!(cuGraphExecDestroy(null_mut())),
        cu!(cuGraphDestroy(null_mut())),
        cu!(cuGraphGetNodes(null_mut(), null_mut(), &mut n)),
        cu!(cuGraphNodeGetType(null_mut(), &mut kind)),
        cu!(cuGraphInstantiateWithFlags(&mut exec, null_mut(), 0)),
    ];
    t.eq("NULL for an exec, a graph, a node", got, [1; 7]);
    Ok(())
}

fn instantiate_flags(t: &mut Checker) -> Done {
    let (mem, graph) = (t.gpu.words(N)?, Graph::new()?);
    add_fill(t, &graph, &[], &mem, 1)?;
    // AUTO_FREE_ON_LAUNCH 1, UPLOAD 2, DEVICE_LAUNCH 4, USE_NODE_PRIORITY 8
    for (flags, want, told) in [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (4, 0, 4),
        (5, 1, 0),
        (8, 0, 0),
        (9, 0, 1),
        (10, 1, 0),
        (12, 0, 4),
        (16, 1, 0),
    ] {
        let (mut e, mut got) = (null_mut(), 77);
        let status = cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, flags));
        t.eq(&format!("flags {flags}"), status, want);
        if status == 0 {
            let exec = Exec { e };
            ok("cuGraphExecGetFlags", cu!(cuGraphExecGetFlags(exec.e, &mut got)))?;
            t.eq(&format!("what is told of flags {flags}"), got, told);
        }
    }
    Ok(())
}

fn instantiate_with_parameters(t: &mut Checker) -> Done {
    use sys::CUgraphInstantiateResult as Result;
    let (mem, stream, good, cyclic) = (t.gpu.words(N)?, Strm::non_blocking()?, Graph::new()?, Graph::new()?);
    add_fill(t, &good, &[], &mem, 1)?;
    let a = add_fill(t, &cyclic, &[], &mem, 1)?;
    let b = add_fill(t, &cyclic, &[a], &mem, 1)?;
    ok("close", cu!(cuGraphAddDependencies_v2(cyclic.g, &b, &a, null(), 1)))?;
    let make = |graph: &Graph, flags: u64| {
        let mut p = sys::CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags,
            hUploadStream: stream.s,
            hErrNode_out: 8 as sys::CUgraphNode,
            result_out: Result::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        let untouched = 16 as sys::CUgraphExec;
        let mut e = untouched;
        let status = cu!(cuGraphInstantiateWithParams(&mut e, graph.g, &mut p));
        let made = e != untouched;
        if status == 0 && made {
            cu!(cuGraphExecDestroy(e));
        }
        (status, made, p.result_out, p.hErrNode_out)
    };
    let fine = (0, true, Result::CUDA_GRAPH_INSTANTIATE_SUCCESS, null_mut());
    t.eq("no flags", make(&good, 0), fine);
    t.eq("UPLOAD", make(&good, 2), fine);
    let (status, made, why, node) = make(&cyclic, 0);
    let structure = Result::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    t.eq("a cycle", (status, made, why), (1, false, structure));
    t.yes("the node told is one of the cycle's", node == a || node == b);
    let host = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(nothing), userData: null_mut() };
    let mut called = null_mut();
    ok("host", cu!(cuGraphAddHostNode(&mut called, good.g, null(), 0, &host)))?;
    let not_there = Result::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
    t.eq("a host function on the device", make(&good, 4), (1, false, not_there, called));
    Ok(())
}
