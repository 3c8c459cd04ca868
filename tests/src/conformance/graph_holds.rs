//! Things that graphs hold: memory of their own, and the program's objects.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

pub(super) const CHECKS: &[Check] = &[
    Check::documented("graph.memory_nodes", memory_nodes),
    Check::documented("graph.memory_nodes_one_exec", memory_nodes_one_exec),
    Check::documented("graph.memory_node_added", memory_node_added),
    Check::documented("graph.conditional_node", conditional_node),
    Check::documented("graph.user_object", user_object),
    Check::measured("graph.user_object_of_clones_and_children", user_object_of_clones_and_children),
    Check::measured("graph.user_object_through_an_update", user_object_through_an_update),
    Check::measured("graph.user_object_while_running", user_object_while_running),
];

const N: u64 = 2048;

fn expect(t: &mut Checker, what: &str, stream: &Strm, mem: &Mem, value: u32) -> Done {
    let wrong = t.gpu.wrong_words(stream, mem.words(), value)?;
    t.eq(&format!("{what}: words that are not {value}"), wrong, 0);
    Ok(())
}

fn captured_memory(t: &Checker, stream: &Strm, out: &Mem) -> Result<Graph, Stop> {
    Graph::capture(stream, || {
        let mut p = 0;
        ok("cuMemAllocAsync", cu!(cuMemAllocAsync(&mut p, N as usize * 4, stream.s)))?;
        // SAFETY: the memory is allocated in stream order before the kernels captured here, and
        // freed in stream order behind them.
        let scratch = unsafe { gpumem_kernels::Words::from_raw(p, N) }?;
        t.gpu.kernels.fill(stream.k(), scratch, 17)?;
        t.gpu.kernels.scale(stream.k(), out.words(), scratch, 2)?;
        ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))
    })
}

fn memory_nodes(t: &mut Checker) -> Done {
    let (stream, out) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = captured_memory(t, &stream, &out)?;
    t.eq("nodes: alloc, two kernels, free", graph.nodes()?.len(), 4);
    let exec = graph.instantiate()?;
    for _ in 0..2 {
        ok("cuMemsetD32Async", cu!(cuMemsetD32Async(out.p, 0, N as usize, stream.s)))?;
        exec.launch(&stream)?;
        expect(t, "a launch that allocates", &stream, &out, 34)?;
    }
    Ok(())
}

fn memory_nodes_one_exec(t: &mut Checker) -> Done {
    let (stream, out) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = captured_memory(t, &stream, &out)?;
    let exec = graph.instantiate()?;
    let mut e = null_mut();
    let second = cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, 0));
    t.yes("a second exec of a graph with memory nodes is refused", second != 0);
    drop(exec);
    t.eq("one after the first was destroyed", graph.instantiate().is_ok(), true);
    Ok(())
}

/// A node that allocates has its address from the start. What a launch allocates lives until a free of that address. The
/// graph can neither be cloned nor lose a node.
fn memory_node_added(t: &mut Checker) -> Done {
    let (graph, stream, mut node) = (Graph::new()?, Strm::non_blocking()?, null_mut());
    // SAFETY: the struct holds numbers, pointers, and enums that have a member 0, so all zeroes is a valid value.
    let (mut params, mut read): (sys::CUDA_MEM_ALLOC_NODE_PARAMS, sys::CUDA_MEM_ALLOC_NODE_PARAMS) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    params.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    params.poolProps.location.id = t.gpu.device;
    params.bytesize = N as usize * 4;
    let added = cu!(cuGraphAddMemAllocNode(&mut node, graph.g, std::ptr::null(), 0, &mut params));
    ok("cuGraphAddMemAllocNode", added)?;
    ok("cuGraphMemAllocNodeGetParams", cu!(cuGraphMemAllocNodeGetParams(node, &mut read)))?;
    t.yes("it has an address", params.dptr != 0);
    t.eq("address and bytes", (read.dptr, read.bytesize), (params.dptr, params.bytesize));
    t.yes("the node cannot be destroyed", cu!(cuGraphDestroyNode(node)) != 0);
    t.yes("the graph cannot be cloned", graph.copy().is_err());
    let launch = |exec: &Exec| cu!(cuGraphLaunch(exec.e, stream.s));
    let (at, mut base, mut bytes) = (params.dptr, 0, 0);
    let mut is_known = move || cu!(cuMemGetAddressRange_v2(&mut base, &mut bytes, at)) == 0;
    let exec = graph.instantiate()?;
    t.yes("nothing is allocated before the first launch", !is_known());
    t.eq("a launch", launch(&exec), 0);
    t.yes("what it allocated is known", is_known());
    t.yes("another one, before the memory is freed", launch(&exec) != 0);
    t.eq("cuMemFreeAsync", cu!(cuMemFreeAsync(params.dptr, stream.s)), 0);
    t.yes("and not any more, from the call on", !is_known());
    t.eq("a launch after that", launch(&exec), 0);
    stream.sync()?;
    t.eq("cuMemFree", cu!(cuMemFree_v2(params.dptr)), 0);
    drop(exec);
    // AUTO_FREE_ON_LAUNCH.
    let mut e = null_mut();
    ok("cuGraphInstantiateWithFlags", cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, 1)))?;
    let exec = Exec { e };
    t.eq("launches that free first", (launch(&exec), launch(&exec)), (0, 0));
    stream.sync()?;
    drop(exec);
    drop(graph);
    t.yes("what the last launch allocated outlives graph and exec", is_known());
    t.eq("cuMemFree after graph and exec are gone", cu!(cuMemFree_v2(params.dptr)), 0);
    t.yes("after that it is gone", !is_known());
    Ok(())
}

static RELEASED: AtomicU32 = AtomicU32::new(0);

extern "C" fn release(_object: *mut c_void) {
    RELEASED.fetch_add(1, SeqCst);
}

/// An object that a graph holds lives as long as the graph or any exec of it; its
/// destructor comes soon after, on a thread of the driver's.
fn user_object(t: &mut Checker) -> Done {
    let before = RELEASED.load(SeqCst);
    let (graph, stream) = (Graph::new()?, Strm::non_blocking()?);
    hold(&graph)?;
    let exec = graph.instantiate()?;
    drop(graph);
    exec.launch(&stream)?;
    stream.sync()?;
    t.eq("destructor calls while an exec lives", RELEASED.load(SeqCst) - before, 0);
    drop(exec);
    ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
    let gone = released(before + 1) - before;
    t.eq("destructor calls once the exec is gone", gone, 1);
    Ok(())
}

/// Creates an object and gives the graph its only reference.
fn hold(graph: &Graph) -> Done {
    use cudarc::driver::sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as NO_SYNC;
    use cudarc::driver::sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as MOVE;
    let mut object = null_mut();
    let made = cu!(cuUserObjectCreate(&mut object, null_mut(), Some(release), 1, NO_SYNC as u32));
    ok("cuUserObjectCreate", made)?;
    ok("cuGraphRetainUserObject", cu!(cuGraphRetainUserObject(graph.g, object, 1, MOVE as u32)))
}

/// How many destructors have run, once they are `want` or no more can be expected.
fn released(want: u32) -> u32 {
    let asked = std::time::Instant::now();
    while RELEASED.load(SeqCst) < want && asked.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    RELEASED.load(SeqCst)
}

/// How many destructors ran that should not have, after some time.
fn not_released(before: u32) -> u32 {
    std::thread::sleep(std::time::Duration::from_millis(20));
    RELEASED.load(SeqCst) - before
}

fn user_object_of_clones_and_children(t: &mut Checker) -> Done {
    let (before, graph, outer) = (RELEASED.load(SeqCst), Graph::new()?, Graph::new()?);
    hold(&graph)?;
    let (mut g, mut child) = (null_mut(), null_mut());
    ok("cuGraphClone", cu!(cuGraphClone(&mut g, graph.g)))?;
    let clone = Graph { g };
    ok("child", cu!(cuGraphAddChildGraphNode(&mut child, outer.g, std::ptr::null(), 0, graph.g)))?;
    drop(graph);
    t.eq("destructor calls while a clone and a child live", not_released(before), 0);
    drop(clone);
    t.eq("while a child lives", not_released(before), 0);
    drop(outer);
    t.eq("when all are gone", released(before + 1) - before, 1);
    Ok(())
}

/// An exec holds the objects of the graph of its last update, and no longer those that it held before.
fn user_object_through_an_update(t: &mut Checker) -> Done {
    let (before, mem) = (RELEASED.load(SeqCst), t.gpu.words(N)?);
    let graph = |held| -> Result<Graph, Stop> {
        let graph = Graph::new()?;
        super::graph::add_fill(t, &graph, &[], &mem, 1)?;
        if held {
            hold(&graph)?;
        }
        Ok(graph)
    };
    let (plain, holding, other) = (graph(false)?, graph(true)?, graph(false)?);
    let exec = plain.instantiate()?;
    let updated = exec.update(&holding).0;
    drop(holding);
    let kept = not_released(before);
    let again = exec.update(&other).0;
    let given_up = released(before + 1) - before;
    t.eq("the updates", (updated, again), (0, 0));
    t.eq("destructor calls after the update's graph is gone", kept, 0);
    t.eq("after an update from another", given_up, 1);
    Ok(())
}

/// An exec that is destroyed while it runs keeps the objects until it is done.
fn user_object_while_running(t: &mut Checker) -> Done {
    let (stream, end) = (Strm::non_blocking()?, Ev::new()?);
    let outlasted = outlasted(|ms| {
        let before = RELEASED.load(SeqCst);
        let graph = Graph::capture(&stream, || t.gpu.spin(&stream, ms))?;
        hold(&graph)?;
        let exec = graph.instantiate()?;
        drop(graph);
        exec.launch(&stream)?;
        end.record(&stream)?;
        drop(exec);
        let kept = not_released(before);
        // This query comes after the count. If the work is still running now, it was running then.
        let then = end.query();
        if then == RUNNING {
            t.eq("destructor calls while it runs", kept, 0);
        }
        stream.sync()?;
        t.eq("when it is done", released(before + 1) - before, 1);
        Ok(then)
    })?;
    t.yes("it was seen to run", outlasted);
    Ok(())
}

/// A conditional node runs its body if the launch gives its condition a value. The node owns the body's graph.
fn conditional_node(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    for value in [0u32, 1] {
        let (graph, mut handle, mut node) = (Graph::new()?, 0, null_mut());
        // ASSIGN_DEFAULT
        let made = cu!(cuGraphConditionalHandleCreate(&mut handle, graph.g, t.gpu.primary, value, 1));
        if made == 801 {
            return super::skip("the device has no conditional nodes");
        }
        ok("cuGraphConditionalHandleCreate", made)?;
        // SAFETY: the struct holds numbers, pointers, and an enum that has a member 0, so all
        // zeroes is a valid value.
        let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
        params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        let form = sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF;
        let (size, list, ctx) = (1, null_mut(), t.gpu.primary);
        let conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS { handle, type_: form, size, phGraph_out: list, ctx };
        params.__bindgen_anon_1.conditional = conditional;
        let none = std::ptr::null();
        ok("cuGraphAddNode", cu!(cuGraphAddNode_v2(&mut node, graph.g, none, none.cast(), 0, &mut params)))?;
        // SAFETY: the driver accepted the node, so `phGraph_out` leads to a list of `size` graphs,
        // which is one.
        let body = unsafe { *params.__bindgen_anon_1.conditional.phGraph_out };
        // The node owns this graph, so the check must not destroy it.
        let body = std::mem::ManuallyDrop::new(Graph { g: body });
        super::graph::add_fill(t, &body, &[], &mem, 8)?;
        t.eq("destroying the body", cu!(cuGraphDestroy(body.g)), 1);
        let exec = graph.instantiate()?;
        ok("cuMemsetD32Async", cu!(cuMemsetD32Async(mem.p, 9, N as usize, stream.s)))?;
        exec.launch(&stream)?;
        expect(t, &format!("the launch with {value}"), &stream, &mem, if value == 1 { 8 } else { 9 })?;
    }
    Ok(())
}
