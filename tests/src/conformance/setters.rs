//! Changing single nodes of an exec.

use super::graph::{add_fill, with_fill};
use super::update::memset;
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use cudarc::driver::sys;
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("setters.node_of_a_destroyed_graph", node_of_a_destroyed_graph),
    Check::measured("setters.node_of_the_update_graph", node_of_the_update_graph),
    Check::measured("setters.disabled_stays_through_update", disabled_stays_through_update),
    Check::documented("setters.kernel_parameters", kernel_parameters),
    Check::documented("setters.memset_parameters", memset_parameters),
    Check::documented("setters.undone_by_update", undone_by_update),
    Check::documented("setters.disabled_nodes_do_nothing", disabled_nodes_do_nothing),
    Check::documented("setters.enabled_belongs_to_one_exec", enabled_belongs_to_one_exec),
];

const N: u64 = 2048;

fn expect(t: &mut Checker, what: &str, stream: &Strm, mem: &Mem, value: u32) -> Done {
    let wrong = t.gpu.wrong_words(stream, mem.words(), value)?;
    t.eq(&format!("{what}: words that are not {value}"), wrong, 0);
    Ok(())
}

/// Sets the kernel node's value in the exec.
fn set_fill(t: &Checker, exec: &Exec, node: sys::CUgraphNode, mem: &Mem, value: u32) -> u32 {
    with_fill(t, mem, value, |p| cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, node, p)))
}

/// A fill, and the exec of the graph that holds it.
fn one(t: &Checker, mem: &Mem, value: u32) -> Result<(Graph, sys::CUgraphNode, Exec), Stop> {
    let graph = Graph::new()?;
    let node = add_fill(t, &graph, &[], mem, value)?;
    let exec = graph.instantiate()?;
    Ok((graph, node, exec))
}

fn kernel_parameters(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (graph, node, exec) = one(t, &mem, 1)?;
    t.eq("cuGraphExecKernelNodeSetParams", set_fill(t, &exec, node, &mem, 2), 0);
    exec.launch(&stream)?;
    expect(t, "the changed exec", &stream, &mem, 2)?;
    graph.instantiate()?.launch(&stream)?;
    expect(t, "a new exec of the same graph", &stream, &mem, 1)
}

fn memset_parameters(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (graph, mut node) = (Graph::new()?, null_mut());
    let ctx = t.gpu.primary;
    let params = memset(&mem, 3, N as usize);
    let added = cu!(cuGraphAddMemsetNode(&mut node, graph.g, null(), 0, &params, ctx));
    ok("cuGraphAddMemsetNode", added)?;
    let exec = graph.instantiate()?;
    let other = memset(&mem, 4, N as usize);
    let set = cu!(cuGraphExecMemsetNodeSetParams(exec.e, node, &other, ctx));
    t.eq("cuGraphExecMemsetNodeSetParams", set, 0);
    exec.launch(&stream)?;
    expect(t, "the changed exec", &stream, &mem, 4)
}

fn undone_by_update(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (graph, node, exec) = one(t, &mem, 1)?;
    ok("set", set_fill(t, &exec, node, &mem, 2))?;
    ok("update", exec.update(&graph).0)?;
    exec.launch(&stream)?;
    expect(t, "after an update from the unchanged graph", &stream, &mem, 1)
}

fn node_of_a_destroyed_graph(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (graph, node, exec) = one(t, &mem, 1)?;
    drop(graph);
    t.eq("setting its node", set_fill(t, &exec, node, &mem, 2), 1);
    t.eq("disabling its node", cu!(cuGraphNodeSetEnabled(exec.e, node, 0)), 1);
    Ok(())
}

fn node_of_the_update_graph(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (_graph, node, exec) = one(t, &mem, 1)?;
    let other = Graph::new()?;
    let theirs = add_fill(t, &other, &[], &mem, 5)?;
    ok("update", exec.update(&other).0)?;
    t.eq("setting a node of the update's graph", set_fill(t, &exec, theirs, &mem, 6), 1);
    t.eq("setting a node of its own graph", set_fill(t, &exec, node, &mem, 7), 0);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 7)
}

fn enabled(exec: &Exec, node: sys::CUgraphNode) -> (u32, u32) {
    let mut value = 9;
    (cu!(cuGraphNodeGetEnabled(exec.e, node, &mut value)), value)
}

fn disabled_stays_through_update(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (_graph, node, exec) = one(t, &mem, 1)?;
    ok("disable", cu!(cuGraphNodeSetEnabled(exec.e, node, 0)))?;
    let other = Graph::new()?;
    add_fill(t, &other, &[], &mem, 5)?;
    ok("update", exec.update(&other).0)?;
    t.eq("the node after an update", enabled(&exec, node), (0, 0));
    ok("cuMemsetD32Async", cu!(cuMemsetD32Async(mem.p, 8, N as usize, stream.s)))?;
    exec.launch(&stream)?;
    expect(t, "a launch with the node disabled", &stream, &mem, 8)?;
    ok("enable", cu!(cuGraphNodeSetEnabled(exec.e, node, 1)))?;
    exec.launch(&stream)?;
    expect(t, "a launch with the node enabled again", &stream, &mem, 5)
}

fn disabled_nodes_do_nothing(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::new()?;
    let first = add_fill(t, &graph, &[], &mem, 1)?;
    let second = add_fill(t, &graph, &[first], &mem, 2)?;
    let exec = graph.instantiate()?;
    t.eq("a new exec's node", enabled(&exec, second), (0, 1));
    t.eq("disabling it", cu!(cuGraphNodeSetEnabled(exec.e, second, 0)), 0);
    t.eq("the node then", enabled(&exec, second), (0, 0));
    exec.launch(&stream)?;
    expect(t, "only the first ran", &stream, &mem, 1)?;
    t.eq("enabling it", cu!(cuGraphNodeSetEnabled(exec.e, second, 1)), 0);
    exec.launch(&stream)?;
    expect(t, "both ran", &stream, &mem, 2)
}

fn enabled_belongs_to_one_exec(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (graph, node, exec) = one(t, &mem, 1)?;
    let other = graph.instantiate()?;
    ok("disable", cu!(cuGraphNodeSetEnabled(exec.e, node, 0)))?;
    t.eq("in another exec of the same graph", enabled(&other, node), (0, 1));
    t.eq("in an exec made afterwards", enabled(&graph.instantiate()?, node), (0, 1));
    Ok(())
}
