//! Which changes ExecUpdate applies and which it refuses: nodes other than kernels, and the shape of the graph.

use super::graph::add_fill;
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use cudarc::driver::sys::{self, CUgraphExecUpdateResult as Why, CUmemorytype};
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("update.right_after_instantiate", right_after_instantiate),
    Check::measured("update.memset_value_and_size", memset_value_and_size),
    Check::measured("update.memcpy_size", memcpy_size),
    Check::measured("update.memcpy_direction_refused", memcpy_direction_refused),
    Check::measured("update.memcpy_1d_to_2d_refused", memcpy_1d_to_2d_refused),
    Check::measured("update.refused_exec_runs_as_before", refused_exec_runs_as_before),
    Check::documented("update.more_nodes_refused", more_nodes_refused),
    Check::documented("update.other_edges_refused", other_edges_refused),
    Check::documented("update.other_kind_refused", other_kind_refused),
    Check::documented("update.tells_the_node", tells_the_node),
];

const N: u64 = 2048;
const REFUSED: u32 = 910;

fn expect(t: &mut Checker, what: &str, stream: &Strm, mem: &Mem, value: u32) -> Done {
    let wrong = t.gpu.wrong_words(stream, mem.words(), value)?;
    t.eq(&format!("{what}: words that are not {value}"), wrong, 0);
    Ok(())
}

/// A memset of the first `words` words of `mem`.
pub(super) fn memset(mem: &Mem, value: u32, words: usize) -> sys::CUDA_MEMSET_NODE_PARAMS {
    sys::CUDA_MEMSET_NODE_PARAMS { dst: mem.p, pitch: 0, value, elementSize: 4, width: words, height: 1 }
}

fn memset_graph(t: &Checker, mem: &Mem, value: u32, words: usize) -> Result<Graph, Stop> {
    let (graph, mut node, params) = (Graph::new()?, null_mut(), memset(mem, value, words));
    let ctx = t.gpu.primary;
    let added = cu!(cuGraphAddMemsetNode(&mut node, graph.g, null(), 0, &params, ctx));
    ok("cuGraphAddMemsetNode", added)?;
    Ok(graph)
}

enum Side<'a> {
    Device(&'a Mem),
    Host(*mut u32),
}

fn copy_graph(
    t: &Checker,
    dst: &Side,
    src: &Side,
    (width, height, pitch): (usize, usize, usize),
) -> Result<Graph, Stop> {
    let kind = |s: &Side| match s {
        Side::Device(m) => (CUmemorytype::CU_MEMORYTYPE_DEVICE, m.p, null_mut()),
        Side::Host(p) => (CUmemorytype::CU_MEMORYTYPE_HOST, 0, p.cast()),
    };
    let ((dst_type, dst_device, dst_host), (src_type, src_device, src_host)) = (kind(dst), kind(src));
    let params = sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: src_type,
        srcHost: src_host,
        srcDevice: src_device,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: pitch,
        srcHeight: height,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: dst_type,
        dstHost: dst_host,
        dstDevice: dst_device,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: pitch,
        dstHeight: height,
        WidthInBytes: width,
        Height: height,
        Depth: 1,
    };
    let (graph, mut node) = (Graph::new()?, null_mut());
    let ctx = t.gpu.primary;
    let added = cu!(cuGraphAddMemcpyNode(&mut node, graph.g, null(), 0, &params, ctx));
    ok("cuGraphAddMemcpyNode", added)?;
    Ok(graph)
}

fn right_after_instantiate(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 3)?))?;
    let exec = graph.instantiate()?;
    t.eq("an update from its own graph", exec.update(&graph).0, 0);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 3)
}

fn memset_value_and_size(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let first = memset_graph(t, &mem, 7, 10)?;
    let exec = first.instantiate()?;
    let (status, _) = exec.update(&memset_graph(t, &mem, 8, N as usize)?);
    t.eq("the update", status, 0);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 8)
}

fn memcpy_size(t: &mut Checker) -> Done {
    let stream = Strm::non_blocking()?;
    let (from, to) = (t.gpu.words(N)?, t.gpu.words(N)?);
    ok("cuMemsetD32", cu!(cuMemsetD32_v2(from.p, 5, N as usize)))?;
    ok("cuMemsetD32", cu!(cuMemsetD32_v2(to.p, 0, N as usize)))?;
    ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
    let of = |bytes| copy_graph(t, &Side::Device(&to), &Side::Device(&from), (bytes, 1, 0));
    let exec = of(64)?.instantiate()?;
    let (status, _) = exec.update(&of(N as usize * 4)?);
    t.eq("the update", status, 0);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &to, 5)
}

fn memcpy_direction_refused(t: &mut Checker) -> Done {
    let (a, b) = (t.gpu.words(N)?, t.gpu.words(N)?);
    let mut host = vec![0u32; N as usize];
    let host = Side::Host(host.as_mut_ptr());
    let bytes = (N as usize * 4, 1, 0);
    let inside = copy_graph(t, &Side::Device(&a), &Side::Device(&b), bytes)?;
    let upload = copy_graph(t, &Side::Device(&a), &host, bytes)?;
    let exec = inside.instantiate()?;
    t.eq("device to device, then host to device", exec.update(&upload).0, REFUSED);
    let exec = upload.instantiate()?;
    t.eq("host to device, then device to device", exec.update(&inside).0, REFUSED);
    Ok(())
}

fn memcpy_1d_to_2d_refused(t: &mut Checker) -> Done {
    let (a, b) = (t.gpu.words(N)?, t.gpu.words(N)?);
    let (a, b) = (Side::Device(&a), Side::Device(&b));
    let flat = copy_graph(t, &a, &b, (1024, 1, 0))?;
    let rows = copy_graph(t, &a, &b, (256, 4, 1024))?;
    let exec = flat.instantiate()?;
    t.eq("a copy of one row, then of four", exec.update(&rows).0, REFUSED);
    Ok(())
}

fn refused_exec_runs_as_before(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let one = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 4)?))?;
    let two = Graph::capture(&stream, || {
        t.gpu.kernels.fill(stream.k(), mem.words(), 5)?;
        Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 6)?)
    })?;
    let exec = one.instantiate()?;
    t.eq("the update", exec.update(&two).0, REFUSED);
    exec.launch(&stream)?;
    expect(t, "the launch", &stream, &mem, 4)?;
    t.eq("an update afterwards from its own graph", exec.update(&one).0, 0);
    Ok(())
}

/// `n` fills in a row.
fn chain(t: &Checker, mem: &Mem, n: usize) -> Result<Graph, Stop> {
    let graph = Graph::new()?;
    let mut last = add_fill(t, &graph, &[], mem, 1)?;
    for i in 1..n {
        last = add_fill(t, &graph, &[last], mem, i as u32 + 1)?;
    }
    Ok(graph)
}

fn more_nodes_refused(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let (two, three) = (chain(t, &mem, 2)?, chain(t, &mem, 3)?);
    for (have, want) in [(&two, &three), (&three, &two)] {
        let exec = have.instantiate()?;
        let (status, info) = exec.update(want);
        t.eq("the update", status, REFUSED);
        let reason = Why::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        t.eq("its reason", info.result, reason);
    }
    Ok(())
}

fn other_edges_refused(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let fan = Graph::new()?;
    let root = add_fill(t, &fan, &[], &mem, 1)?;
    add_fill(t, &fan, &[root], &mem, 2)?;
    add_fill(t, &fan, &[root], &mem, 3)?;
    let exec = chain(t, &mem, 3)?.instantiate()?;
    let (status, info) = exec.update(&fan);
    t.eq("a chain, then a fan of as many nodes", status, REFUSED);
    t.eq("its reason", info.result, Why::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    Ok(())
}

fn other_kind_refused(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let exec = chain(t, &mem, 1)?.instantiate()?;
    let (status, info) = exec.update(&memset_graph(t, &mem, 1, 16)?);
    t.eq("a kernel, then a memset", status, REFUSED);
    t.eq("its reason", info.result, Why::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    Ok(())
}

fn tells_the_node(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let exec = chain(t, &mem, 1)?.instantiate()?;
    let other = memset_graph(t, &mem, 1, 16)?;
    let (_, info) = exec.update(&other);
    t.eq("the node that was refused", info.errorNode, other.nodes()?[0]);
    Ok(())
}
