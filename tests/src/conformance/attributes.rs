//! Attributes of kernel nodes: which there are, which can be set, and how an update treats a difference.

use super::graph::{add_fill, with_fill};
use super::nodes::{PLAIN, extra_of, fill_block, read_kernel};
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok, skip};
use cudarc::driver::sys::{self, CUlaunchAttributeID as Id};
use gpumem_kernels::Kernel;
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("attributes.unset", unset),
    Check::measured("attributes.unreadable", unreadable),
    Check::measured("attributes.priority_of_the_stream", priority_of_the_stream),
    Check::measured("attributes.of_a_launch", of_a_launch),
    Check::measured("attributes.programmatic_is_an_edge", programmatic_is_an_edge),
    Check::measured("attributes.edges_of_a_call", edges_of_a_call),
    Check::measured("attributes.cluster_divides_the_grid", cluster_divides_the_grid),
    Check::documented("attributes.copied_and_kept", copied_and_kept),
    Check::measured("attributes.accepted_by_update", accepted_by_update),
    Check::measured("attributes.cooperative_takes_no_block", cooperative_takes_no_block),
    // Under the preload all handles that the process makes afterwards are real ones.
    Check::measured("attributes.set_but_never_read", set_but_never_read).alone(),
];

const N: u64 = 512;

/// The first three words of an attribute; those that are not written stay 0xee...
fn read(node: sys::CUgraphNode, id: Id) -> (u32, [u32; 3]) {
    let mut bytes = [0xeeu8; 64];
    let value = bytes.as_mut_ptr().cast::<sys::CUlaunchAttributeValue>();
    let status = cu!(cuGraphKernelNodeGetAttribute(node, id, value));
    let word = |i: usize| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
    (status, [word(0), word(1), word(2)])
}

/// An attribute whose value begins with these words.
fn attribute(id: Id, words: [u32; 3]) -> sys::CUlaunchAttribute {
    // SAFETY: the struct holds numbers, a union of numbers, and an enum that has a member 0, so all
    // zeroes is a valid value.
    let mut a: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    a.id = id;
    a.value.clusterDim.x = words[0];
    a.value.clusterDim.y = words[1];
    a.value.clusterDim.z = words[2];
    a
}

fn set(node: sys::CUgraphNode, a: &sys::CUlaunchAttribute) -> u32 {
    cu!(cuGraphKernelNodeSetAttribute(node, a.id, &a.value))
}

/// Launches a fill with these attributes.
fn launch(t: &Checker, stream: &Strm, mem: &Mem, attributes: &mut [sys::CUlaunchAttribute]) -> u32 {
    let config = launch_config(stream, 8, 256, attributes);
    with_fill(t, mem, 2, |p| cu!(cuLaunchKernelEx(&config, p.func, p.kernelParams, null_mut())))
}

/// The second of two captured launches, which has these attributes.
fn captured(t: &Checker, mem: &Mem, attributes: &mut [sys::CUlaunchAttribute]) -> Result<(Graph, Nodes), Stop> {
    let stream = Strm::non_blocking()?;
    let graph = Graph::capture(&stream, || {
        t.gpu.kernels.fill(stream.k(), mem.words(), 1)?;
        ok("cuLaunchKernelEx", launch(t, &stream, mem, attributes))
    })?;
    let nodes = graph.nodes()?;
    Ok((graph, nodes))
}

type Nodes = Vec<sys::CUgraphNode>;

fn hopper(t: &Checker) -> Done {
    match super::update_kernel::compute_major(t)? {
        9 => Ok(()),
        major => skip(format!("measured on compute capability 9 alone, this is {major}")),
    }
}

fn unset(t: &mut Checker) -> Done {
    hopper(t)?;
    let (mem, graph) = (t.gpu.words(N)?, Graph::new()?);
    let hand = add_fill(t, &graph, &[], &mem, 1)?;
    let (_graph, launched) = captured(t, &mem, &mut [])?;
    for (what, node, spread) in [("a node made by hand", hand, 0), ("a captured launch", launched[1], 1)] {
        let one = |id| (read(node, id).0, read(node, id).1[0]);
        t.eq(&format!("COOPERATIVE of {what}"), one(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE), (0, 0));
        t.eq(&format!("PRIORITY of {what}"), one(Id::CU_LAUNCH_ATTRIBUTE_PRIORITY), (0, 0));
        t.eq(&format!("MEM_SYNC_DOMAIN of {what}"), one(Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN), (0, 0));
        let cluster = read(node, Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        t.eq(&format!("CLUSTER_DIMENSION of {what}"), cluster, (0, [0; 3]));
        let policy = one(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
        t.eq(&format!("CLUSTER_SCHEDULING_POLICY of {what}"), policy, (0, spread));
        // Two bytes: the default domain and the remote one.
        let map = one(Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP);
        t.eq(&format!("MEM_SYNC_DOMAIN_MAP of {what}"), map, (0, 0xeeee_0100));
    }
    Ok(())
}

fn unreadable(t: &mut Checker) -> Done {
    let (mem, graph) = (t.gpu.words(N)?, Graph::new()?);
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    for id in [
        Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
        Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
        Id::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
    ] {
        t.eq(&format!("reading {id:?}"), read(node, id).0, 1);
        t.eq(&format!("setting {id:?}"), set(node, &attribute(id, [1, 0, 0])), 1);
    }
    let (mut other, ctx, memset) = (null_mut(), t.gpu.primary, super::update::memset(&mem, 1, 4));
    ok("memset", cu!(cuGraphAddMemsetNode(&mut other, graph.g, std::ptr::null(), 0, &memset, ctx)))?;
    t.eq("reading one of a memset", read(other, Id::CU_LAUNCH_ATTRIBUTE_PRIORITY).0, 1);
    Ok(())
}

fn priority_of_the_stream(t: &mut Checker) -> Done {
    let (mut least, mut greatest) = (0, 0);
    ok("priorities", cu!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest)))?;
    if least == greatest {
        return skip("the device has one priority only");
    }
    let (mem, mut s) = (t.gpu.words(N)?, null_mut());
    ok("cuStreamCreateWithPriority", cu!(cuStreamCreateWithPriority(&mut s, 1, greatest)))?;
    let stream = Strm { s };
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 3)?))?;
    let got = read(graph.nodes()?[0], Id::CU_LAUNCH_ATTRIBUTE_PRIORITY);
    t.eq("the node's priority", (got.0, got.1[0] as i32), (0, greatest));
    Ok(())
}

fn of_a_launch(t: &mut Checker) -> Done {
    hopper(t)?;
    let mem = t.gpu.words(N)?;
    for (id, words, seen) in [
        (Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [1, 0, 0], 1),
        (Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, [2, 1, 1], 3),
        (Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, [-2i32 as u32, 0, 0], 1),
        (Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, [1, 0, 0], 1),
        (Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, [50, 0, 0], 1),
    ] {
        let (_graph, nodes) = captured(t, &mem, &mut [attribute(id, words)])?;
        let got = read(nodes[1], id);
        t.eq(&format!("{id:?} of the node"), (got.0, &got.1[..seen]), (0, &words[..seen]));
        let first = read(nodes[0], id);
        t.yes(&format!("{id:?} of the launch before it"), first.1[..seen] != words[..seen]);
    }
    let stream = Strm::non_blocking()?;
    let graph = Graph::capture(&stream, || {
        let policy = attribute(Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, [1, 0, 0]);
        t.eq("a launch with SYNCHRONIZATION_POLICY", launch(t, &stream, &mem, &mut [policy]), 1);
        Ok(())
    })?;
    t.eq("nodes of it", graph.nodes()?.len(), 0);
    Ok(())
}

/// Programmatic serialization is an edge out of port 1, of type 1; queries that
/// cannot tell give CUDA_ERROR_LOSSY_QUERY.
fn programmatic_is_an_edge(t: &mut Checker) -> Done {
    hopper(t)?;
    let (mem, early) = (t.gpu.words(N)?, Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    let (graph, nodes) = captured(t, &mem, &mut [attribute(early, [1, 0, 0])])?;
    let (mut from, mut to, mut data, mut n) = ([null_mut(); 4], [null_mut(); 4], [PLAIN; 4], 4);
    let all = cu!(cuGraphGetEdges_v2(graph.g, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut n));
    t.eq("cuGraphGetEdges", (all, n, from[0], to[0]), (0, 1, nodes[0], nodes[1]));
    t.eq("ports and type", (data[0].from_port, data[0].to_port, data[0].type_), (1, 0, 1));
    n = 4;
    let lossy = cu!(cuGraphNodeGetDependencies_v2(nodes[1], from.as_mut_ptr(), null_mut(), &mut n));
    t.eq("dependencies without their data", lossy, 402);
    let mut g = null_mut();
    ok("cuGraphClone", cu!(cuGraphClone(&mut g, graph.g)))?;
    let clone = Graph { g };
    n = 4;
    let all = cu!(cuGraphGetEdges_v2(clone.g, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut n));
    t.eq("a clone's edge", (all, n, data[0].from_port, data[0].type_), (0, 1, 1, 1));
    Ok(())
}

/// Edges that one call adds all get the data of the first edge. Edges that are added one by one get their own.
fn edges_of_a_call(t: &mut Checker) -> Done {
    hopper(t)?;
    let (mem, early) = (t.gpu.words(N)?, sys::CUgraphEdgeData { from_port: 1, type_: 1, ..PLAIN });
    for (at_once, second) in [(true, 1), (false, 0)] {
        let graph = Graph::new()?;
        let nodes = [
            add_fill(t, &graph, &[], &mem, 1)?,
            add_fill(t, &graph, &[], &mem, 2)?,
            add_fill(t, &graph, &[], &mem, 3)?,
        ];
        let add = |index: usize, data: &[sys::CUgraphEdgeData]| {
            let (from, to) = (&nodes[index..], &nodes[index + 1..]);
            cu!(cuGraphAddDependencies_v2(graph.g, from.as_ptr(), to.as_ptr(), data.as_ptr(), data.len()))
        };
        if at_once {
            ok("cuGraphAddDependencies_v2", add(0, &[early, PLAIN]))?;
        } else {
            ok("cuGraphAddDependencies_v2", add(0, &[early]))?;
            ok("cuGraphAddDependencies_v2", add(1, &[PLAIN]))?;
        }
        let (mut from, mut to, mut data, mut n) = ([null_mut(); 4], [null_mut(); 4], [PLAIN; 4], 4);
        let all = cu!(cuGraphGetEdges_v2(graph.g, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut n));
        t.eq("cuGraphGetEdges", (all, n), (0, 2));
        let of = |node| (0..n).find(|&edge| from[edge] == node).map_or(9, |edge| data[edge].type_);
        t.eq("types of the first and the second", (of(nodes[0]), of(nodes[1])), (1, second));
    }
    Ok(())
}

fn cluster_divides_the_grid(t: &mut Checker) -> Done {
    hopper(t)?;
    let (mem, graph) = (t.gpu.words(N)?, Graph::new()?);
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    let id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    t.eq("clusters of 3 in a grid of 8", set(node, &attribute(id, [3, 1, 1])), 912);
    t.eq("clusters of 2 in a grid of 8", set(node, &attribute(id, [2, 1, 1])), 0);
    let exec = graph.instantiate()?;
    let of_three = |f: &dyn Fn(&sys::CUDA_KERNEL_NODE_PARAMS) -> u32| {
        with_fill(t, &mem, 1, |p| f(&sys::CUDA_KERNEL_NODE_PARAMS { gridDimX: 3, ..*p }))
    };
    let in_exec = of_three(&|p| cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, node, p)));
    let in_graph = of_three(&|p| cu!(cuGraphKernelNodeSetParams_v2(node, p)));
    t.eq("a grid of 3 in the exec, in the graph", (in_exec, in_graph), (912, 912));
    // The copy of attributes returns another status and copies none of them.
    let priority = Id::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    ok("setting PRIORITY", set(node, &attribute(priority, [-1i32 as u32, 0, 0])))?;
    for (grid, copied, clusters) in [(3, 1, 0), (6, 0, 2)] {
        let mut of_grid = null_mut();
        let added = with_fill(t, &mem, 1, |p| {
            let params = sys::CUDA_KERNEL_NODE_PARAMS { gridDimX: grid, ..*p };
            cu!(cuGraphAddKernelNode_v2(&mut of_grid, graph.g, std::ptr::null(), 0, &params))
        });
        ok("cuGraphAddKernelNode", added)?;
        let (before, said) = (read(of_grid, priority), cu!(cuGraphKernelNodeCopyAttributes(of_grid, node)));
        t.eq(&format!("copied to a grid of {grid}"), (said, read(of_grid, id).1[0]), (copied, clusters));
        t.eq("with its priority", read(of_grid, priority) != before, copied == 0);
    }
    t.eq("no clusters", set(node, &attribute(id, [0; 3])), 0);
    Ok(())
}

/// Setting parameters leaves attributes alone; clones and copies have them.
fn copied_and_kept(t: &mut Checker) -> Done {
    let (mem, graph) = (t.gpu.words(N)?, Graph::new()?);
    let a = add_fill(t, &graph, &[], &mem, 1)?;
    let b = add_fill(t, &graph, &[a], &mem, 2)?;
    let id = Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    ok("setting COOPERATIVE", set(a, &attribute(id, [1, 0, 0])))?;
    let copied = cu!(cuGraphKernelNodeCopyAttributes(b, a));
    t.eq("cuGraphKernelNodeCopyAttributes", (copied, read(b, id).1[0]), (0, 1));
    ok("setting parameters", with_fill(t, &mem, 3, |p| cu!(cuGraphKernelNodeSetParams_v2(a, p))))?;
    t.eq("after setting parameters", read(a, id).1[0], 1);
    let mut g = null_mut();
    ok("cuGraphClone", cu!(cuGraphClone(&mut g, graph.g)))?;
    let clone = Graph { g };
    let seen: Vec<u32> = clone.nodes()?.iter().map(|n| read(*n, id).1[0]).collect();
    t.eq("in a clone", seen, vec![1, 1]);
    Ok(())
}

/// Updates the exec of a node without the attribute from a graph with it, and back.
fn updates(t: &Checker, mem: &Mem, a: &sys::CUlaunchAttribute, flags: u64) -> Result<Option<[u32; 2]>, Stop> {
    let (plain, other) = (Graph::new()?, Graph::new()?);
    add_fill(t, &plain, &[], mem, 1)?;
    if set(add_fill(t, &other, &[], mem, 1)?, a) != 0 {
        return Ok(None);
    }
    let (mut e, mut f) = (null_mut(), null_mut());
    ok("instantiate", cu!(cuGraphInstantiateWithFlags(&mut e, plain.g, flags)))?;
    let exec = Exec { e };
    ok("instantiate", cu!(cuGraphInstantiateWithFlags(&mut f, other.g, flags)))?;
    let back = Exec { e: f };
    Ok(Some([exec.update(&other).0, back.update(&plain).0]))
}

fn accepted_by_update(t: &mut Checker) -> Done {
    hopper(t)?;
    let mem = t.gpu.words(N)?;
    for (id, value) in [
        (Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 1),
        (Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, -2i32 as u32),
        (Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, 1),
        (Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, 0x0101),
        (Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50),
    ] {
        let got = updates(t, &mem, &attribute(id, [value, 0, 0]), 0)?;
        t.eq(&format!("{id:?}, set and not set"), got, Some([0, 0]));
    }
    let priority = attribute(Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, [-2i32 as u32, 0, 0]);
    t.eq("PRIORITY under USE_NODE_PRIORITY", updates(t, &mem, &priority, 8)?, Some([910, 910]));
    Ok(())
}

/// NVLink-centric scheduling can be set but not read, and an update distinguishes graphs by it.
fn set_but_never_read(t: &mut Checker) -> Done {
    hopper(t)?;
    let mem = t.gpu.words(N)?;
    let a = attribute(Id::CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING, [1, 0, 0]);
    let Some(got) = updates(t, &mem, &a, 0)? else { return skip("the driver does not know it") };
    t.eq("updates from without to with, and back", got, [910, 910]);
    let graph = Graph::new()?;
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    ok("setting it", set(node, &a))?;
    t.eq("reading it", read(node, a.id).0, 1);
    Ok(())
}

/// A launch of a cooperative kernel takes its parameters in one block (`extra`), and its node does not: calls that
/// would give a node such a block are refused and change nothing.
fn cooperative_takes_no_block(t: &mut Checker) -> Done {
    let (stream, mem, graph) = (Strm::non_blocking()?, t.gpu.words(N)?, Graph::new()?);
    let (mut block, mut size) = (fill_block(mem.p, 5), 20);
    let mut extra = extra_of(&mut block, &mut size);
    let (f, extra) = (t.gpu.kernels.function(Kernel::Fill), extra.as_mut_ptr());
    let values = add_fill(t, &graph, &[], &mem, 1)?;
    let in_block = sys::CUDA_KERNEL_NODE_PARAMS { kernelParams: null_mut(), extra, ..read_kernel(t, values)? };
    let mut node = null_mut();
    ok("cuGraphAddKernelNode", cu!(cuGraphAddKernelNode_v2(&mut node, graph.g, null(), 0, &in_block)))?;
    let cooperative = |on| attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [on, 0, 0]);
    t.eq("cooperative, of a node with values", set(values, &cooperative(1)), 0);
    t.eq("cooperative, of a node with a block", set(node, &cooperative(1)), 1);
    t.eq("not cooperative, of a node with a block", set(node, &cooperative(0)), 0);
    t.eq("attributes copied to a node with a block", cu!(cuGraphKernelNodeCopyAttributes(node, values)), 1);
    let exec = graph.instantiate()?;
    t.eq("a block for a cooperative node", cu!(cuGraphKernelNodeSetParams_v2(values, &in_block)), 1);
    t.eq("the same for an exec's", cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, values, &in_block)), 1);
    t.eq("no longer cooperative", set(values, &cooperative(0)), 0);
    t.eq("a block for it then", cu!(cuGraphKernelNodeSetParams_v2(values, &in_block)), 0);

    let mut attributes = [cooperative(1)];
    let config = launch_config(&stream, 1, 256, &mut attributes);
    let launch = || cu!(cuLaunchKernelEx(&config, f, null_mut(), extra));
    t.eq("a launch with a block", launch(), 0);
    stream.sync()?;
    begin(&stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    t.eq("a captured one", launch(), 1);
    let mut captured = null_mut();
    t.eq("the end of that capture", cu!(cuStreamEndCapture(stream.s, &mut captured)), 901);
    Ok(())
}
