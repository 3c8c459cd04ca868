//! Reading a graph: its edges, and the parameters of its nodes.

use super::graph::{add_fill, kernel_params, with_fill};
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok, skip};
use cudarc::driver::sys::{self, CUmemorytype};
use gpumem_kernels::Kernel;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("nodes.order_of_edges", order_of_edges),
    Check::measured("nodes.parameters_in_one_block", parameters_in_one_block),
    Check::measured("nodes.block_too_long", block_too_long),
    Check::measured("nodes.kernel_of_a_library", kernel_of_a_library),
    Check::measured("nodes.copies", copies),
    Check::measured("nodes.memsets", memsets),
    Check::measured("nodes.what_is_read_can_be_added_and_set", what_is_read_can_be_added_and_set),
    Check::measured("nodes.nothing_of_no_size", nothing_of_no_size),
    Check::documented("nodes.parameter_info", parameter_info),
    Check::measured("nodes.rejected", rejected),
];

const N: u64 = 512;

fn index(nodes: &[sys::CUgraphNode], node: sys::CUgraphNode) -> usize {
    nodes.iter().position(|n| *n == node).unwrap_or(usize::MAX)
}

/// All edges as indices into `nodes`.
fn edges(graph: &Graph, nodes: &[sys::CUgraphNode]) -> Result<Vec<(usize, usize)>, Stop> {
    let (mut from, mut to, mut data) = (vec![null_mut(); 32], vec![null_mut(); 32], [PLAIN; 32]);
    let mut n = 32;
    let status = cu!(cuGraphGetEdges_v2(graph.g, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut n));
    ok("cuGraphGetEdges", status)?;
    Ok(from.iter().zip(&to).take(n).map(|(f, t)| (index(nodes, *f), index(nodes, *t))).collect())
}

pub(super) const PLAIN: sys::CUgraphEdgeData =
    sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };

/// A node's dependencies as indices into `nodes`.
fn dependencies(node: sys::CUgraphNode, nodes: &[sys::CUgraphNode]) -> Result<Vec<usize>, Stop> {
    let (mut list, mut data, mut n) = (vec![null_mut(); 32], [PLAIN; 32], 32);
    let asked = cu!(cuGraphNodeGetDependencies_v2(node, list.as_mut_ptr(), data.as_mut_ptr(), &mut n));
    ok("cuGraphNodeGetDependencies", asked)?;
    Ok(list.iter().take(n).map(|d| index(nodes, *d)).collect())
}

/// Edges are listed by the node that they leave, in the order in which they were added to that node. Removing one puts
/// the last in its place. A node's dependencies have an order of their own.
fn order_of_edges(t: &mut Checker) -> Done {
    let (mem, graph) = (t.gpu.words(N)?, Graph::new()?);
    let a = add_fill(t, &graph, &[], &mem, 1)?;
    let b = add_fill(t, &graph, &[a], &mem, 2)?;
    let c = add_fill(t, &graph, &[a], &mem, 3)?;
    let d = add_fill(t, &graph, &[c, b], &mem, 4)?;
    let e = add_fill(t, &graph, &[], &mem, 5)?;
    let (from, to) = ([e, a], [d, e]);
    let added = cu!(cuGraphAddDependencies_v2(graph.g, from.as_ptr(), to.as_ptr(), null(), 2));
    ok("cuGraphAddDependencies", added)?;
    let nodes = graph.nodes()?;
    t.eq("nodes in the order of their making", nodes.clone(), vec![a, b, c, d, e]);
    let all = vec![(0, 1), (0, 2), (0, 4), (1, 3), (2, 3), (4, 3)];
    t.eq("edges", edges(&graph, &nodes)?, all.clone());
    t.eq("dependencies of the fourth", dependencies(d, &nodes)?, vec![2, 1, 4]);
    let mut g = null_mut();
    ok("cuGraphClone", cu!(cuGraphClone(&mut g, graph.g)))?;
    let clone = Graph { g };
    let cloned = clone.nodes()?;
    t.eq("edges of a clone", edges(&clone, &cloned)?, all);
    t.eq("dependencies of the fourth of a clone", dependencies(cloned[3], &cloned)?, vec![2, 1, 4]);
    ok("cuGraphDestroyNode", cu!(cuGraphDestroyNode(b)))?;
    t.eq("nodes without the second", graph.nodes()?, vec![a, c, d, e]);
    t.eq("edges without the second", edges(&graph, &nodes)?, vec![(0, 4), (0, 2), (2, 3), (4, 3)]);
    t.eq("dependencies of the fourth then", dependencies(d, &nodes)?, vec![2, 4]);
    Ok(())
}

/// Reads a kernel node; what is not written stays as in `kernel_params` of spin.
pub(super) fn read_kernel(t: &Checker, node: sys::CUgraphNode) -> Result<sys::CUDA_KERNEL_NODE_PARAMS, Stop> {
    let mut params = kernel_params(t, Kernel::Spin, &mut []);
    ok("cuGraphKernelNodeGetParams", cu!(cuGraphKernelNodeGetParams_v2(node, &mut params)))?;
    Ok(params)
}

/// A fill's parameters as one block, and something behind them.
pub(super) fn fill_block(words: u64, value: u32) -> [u8; 24] {
    let mut block = [0; 24];
    block[..8].copy_from_slice(&words.to_le_bytes());
    block[8..16].copy_from_slice(&N.to_le_bytes());
    block[16..20].copy_from_slice(&value.to_le_bytes());
    block
}

/// `extra` for this much of a block.
pub(super) fn extra_of(block: &mut [u8; 24], size: &mut usize) -> [*mut c_void; 5] {
    let [pointer, bytes] = [1, 2].map(std::ptr::without_provenance_mut::<c_void>);
    [pointer, block.as_mut_ptr().cast(), bytes, std::ptr::from_mut(size).cast(), null_mut()]
}

/// A block with more bytes than the kernel takes is refused. A launch returns another status than setters.
fn block_too_long(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = Graph::new()?;
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    let exec = graph.instantiate()?;
    for (size, launched, set) in [(20, 0, 0), (21, 701, 1), (24, 701, 1)] {
        let (mut block, mut size) = (fill_block(mem.p, 5), size);
        let mut extra = extra_of(&mut block, &mut size);
        let (f, extra) = (t.gpu.kernels.function(Kernel::Fill), extra.as_mut_ptr());
        let launch = cu!(cuLaunchKernel(f, 8, 1, 1, 256, 1, 1, 0, stream.s, null_mut(), extra));
        t.eq(&format!("cuLaunchKernel with {size} bytes of 20"), launch, launched);
        let params = sys::CUDA_KERNEL_NODE_PARAMS { kernelParams: null_mut(), extra, ..read_kernel(t, node)? };
        let of_graph = cu!(cuGraphKernelNodeSetParams_v2(node, &params));
        t.eq(&format!("a graph's setter with {size}"), of_graph, set);
        let of_exec = cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, node, &params));
        t.eq(&format!("an exec's setter with {size}"), of_exec, set);
    }
    stream.sync()
}

/// Parameters given as one block (`extra`) are read back as one, not as a list.
fn parameters_in_one_block(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let (mut block, mut size) = (fill_block(mem.p, 77), 20);
    let mut extra = extra_of(&mut block, &mut size);
    let f = t.gpu.kernels.function(Kernel::Fill);
    let graph = Graph::capture(&stream, || {
        let list = extra.as_mut_ptr();
        ok("cuLaunchKernel", cu!(cuLaunchKernel(f, 8, 1, 1, 256, 1, 1, 0, stream.s, null_mut(), list)))
    })?;
    let read = read_kernel(t, graph.nodes()?[0])?;
    t.yes("kernelParams is NULL", read.kernelParams.is_null());
    if read.extra.is_null() {
        return Err(Stop::Fail("extra is NULL".into()));
    }
    let (mut at, mut len) = (null_mut::<u8>(), 0usize);
    for pair in 0.. {
        // SAFETY: `extra` is not null, and the driver's list is pairs of name and value up to a
        // name of 0. The loop ends there. Value 2 is the address of a size.
        unsafe {
            let name = *read.extra.add(2 * pair);
            match name as usize {
                1 => at = (*read.extra.add(2 * pair + 1)).cast(),
                2 => len = *(*read.extra.add(2 * pair + 1)).cast::<usize>(),
                _ => break,
            }
        }
    }
    t.eq("bytes of the block", len, 20);
    if !at.is_null() && len == 20 {
        // SAFETY: the driver gave `at` and says that 20 bytes are there. They are the node's copy,
        // and the graph is alive.
        t.eq("the block", unsafe { std::slice::from_raw_parts(at, 20) }, &block[..20]);
        t.yes("the block is the driver's own", at != block.as_mut_ptr());
    }
    let (again, mut node) = (Graph::new()?, null_mut());
    t.eq("adding what was read", cu!(cuGraphAddKernelNode_v2(&mut node, again.g, null(), 0, &read)), 0);
    again.instantiate()?.launch(&stream)?;
    let wrong = t.gpu.wrong_words(&stream, mem.words(), 77)?;
    t.eq("words that it did not write", wrong, 0);
    Ok(())
}

/// A library, and its fill kernel. Unloaded when dropped.
struct Library(sys::CUlibrary, sys::CUkernel);

impl Library {
    fn load() -> Result<Library, Stop> {
        let (mut lib, mut kernel, ptx) = (null_mut(), null_mut(), gpumem_kernels::PTX.as_ptr());
        let (none, values) = (null_mut(), null_mut());
        let status = cu!(cuLibraryLoadData(&mut lib, ptx.cast(), none, values, 0, null_mut(), null_mut(), 0));
        ok("cuLibraryLoadData", status)?;
        let found = cu!(cuLibraryGetKernel(&mut kernel, lib, Kernel::Fill.name().as_ptr()));
        ok("cuLibraryGetKernel", found)?;
        Ok(Library(lib, kernel))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        cu!(cuLibraryUnload(self.0));
    }
}

/// A node can name a library's kernel in `kern`. It is read back with the kernel's function in the context. `func`
/// takes functions only.
fn kernel_of_a_library(t: &mut Checker) -> Done {
    let (stream, mem, library) = (Strm::non_blocking()?, t.gpu.words(N)?, Library::load()?);
    let (graph, mut node, mut function) = (Graph::new()?, null_mut(), null_mut());
    ok("cuKernelGetFunction", cu!(cuKernelGetFunction(&mut function, library.1)))?;
    let add = |func, kern, node: &mut _| {
        with_fill(t, &mem, 6, |p| {
            let p = sys::CUDA_KERNEL_NODE_PARAMS { func, kern, ..*p };
            cu!(cuGraphAddKernelNode_v2(node, graph.g, null(), 0, &p))
        })
    };
    let in_func = add(library.1.cast(), null_mut(), &mut node);
    let neither = add(null_mut(), null_mut(), &mut node);
    let by_function = add(function, null_mut(), &mut node);
    let by_kernel = add(null_mut(), library.1, &mut node);
    t.eq("adding the kernel as a function", in_func, 400);
    t.eq("adding nothing", neither, 400);
    t.eq("adding its function", by_function, 0);
    t.eq("adding the kernel", by_kernel, 0);
    let captured = Graph::capture(&stream, || {
        let f: sys::CUfunction = library.1.cast();
        let launched = |p: &sys::CUDA_KERNEL_NODE_PARAMS| {
            cu!(cuLaunchKernel(f, 8, 1, 1, 256, 1, 1, 0, stream.s, p.kernelParams, null_mut()))
        };
        ok("cuLaunchKernel", with_fill(t, &mem, 7, launched))
    })?;
    for (what, node) in [("a node", node), ("a captured launch", captured.nodes()?[0])] {
        let read = read_kernel(t, node)?;
        t.eq(&format!("the function of {what}"), read.func, function);
        t.eq(&format!("the kernel of {what}"), read.kern, library.1);
        t.eq(&format!("the context of {what}"), read.ctx, t.gpu.primary);
    }
    let (mut of_function, mut of_library) = (null_mut(), null_mut());
    ok("cuFuncGetModule", cu!(cuFuncGetModule(&mut of_function, function)))?;
    ok("cuLibraryGetModule", cu!(cuLibraryGetModule(&mut of_library, library.0)))?;
    t.eq("the module of the function", of_function, of_library);
    captured.instantiate()?.launch(&stream)?;
    t.eq("words not written", t.gpu.wrong_words(&stream, mem.words(), 7)?, 0);
    drop((captured, graph));
    Ok(())
}

/// A copy without sides.
pub(super) fn no_copy() -> sys::CUDA_MEMCPY3D {
    // SAFETY: CUDA_MEMCPY3D holds numbers and pointers, for which zero is valid, and two enums that
    // have no member 0. Both enums are set before `assume_init`.
    unsafe {
        let mut p = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
        (*p.as_mut_ptr()).srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        (*p.as_mut_ptr()).dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        p.assume_init()
    }
}

/// The only node's copy, of one captured call.
fn captured_copy(call: impl FnOnce(sys::CUstream) -> u32) -> Result<(Graph, sys::CUDA_MEMCPY3D), Stop> {
    let stream = Strm::non_blocking()?;
    let graph = Graph::capture(&stream, || ok("the copy", call(stream.s)))?;
    let mut p = no_copy();
    ok("cuGraphMemcpyNodeGetParams", cu!(cuGraphMemcpyNodeGetParams(graph.nodes()?[0], &mut p)))?;
    Ok((graph, p))
}

/// Copies of one row have neither pitch nor height, and the memory types that the
/// call had in its name.
fn copies(t: &mut Checker) -> Done {
    use CUmemorytype::{CU_MEMORYTYPE_DEVICE as DEVICE, CU_MEMORYTYPE_HOST as HOST, CU_MEMORYTYPE_UNIFIED as UNIFIED};
    let (a, b, mut host) = (t.gpu.words(N)?, t.gpu.words(N)?, vec![0u32; N as usize]);
    let (a, b, h) = (a.p, b.p, host.as_mut_ptr().cast::<c_void>());
    let inside = captured_copy(|s| cu!(cuMemcpyDtoDAsync_v2(a, b, 256, s)))?.1;
    let up = captured_copy(|s| cu!(cuMemcpyHtoDAsync_v2(a, h, 256, s)))?.1;
    let down = captured_copy(|s| cu!(cuMemcpyDtoHAsync_v2(h, a, 256, s)))?.1;
    let any = captured_copy(|s| cu!(cuMemcpyAsync(a, b, 256, s)))?.1;
    let types = [(inside, DEVICE, DEVICE), (up, HOST, DEVICE), (down, DEVICE, HOST), (any, UNIFIED, UNIFIED)];
    for (i, (p, from, to)) in types.into_iter().enumerate() {
        t.eq(&format!("memory types of copy {i}"), (p.srcMemoryType, p.dstMemoryType), (from, to));
        t.eq(&format!("size of copy {i}"), (p.WidthInBytes, p.Height, p.Depth), (256, 1, 1));
        let rest = (p.srcPitch, p.srcHeight, p.dstPitch, p.dstHeight);
        t.eq(&format!("pitches and heights of copy {i}"), rest, (0, 0, 0, 0));
    }
    t.eq("sides inside", (inside.srcDevice, inside.dstDevice), (b, a));
    t.eq("sides up", (up.srcHost, up.dstDevice), (h.cast_const(), a));
    t.eq("sides down", (down.srcDevice, down.dstHost), (a, h));
    t.eq("sides of any memory", (any.srcDevice, any.dstDevice), (b, a));
    Ok(())
}

fn captured_memset(call: impl FnOnce(sys::CUstream) -> u32) -> Result<(Graph, sys::CUDA_MEMSET_NODE_PARAMS), Stop> {
    let stream = Strm::non_blocking()?;
    let graph = Graph::capture(&stream, || ok("the memset", call(stream.s)))?;
    let mut p = sys::CUDA_MEMSET_NODE_PARAMS { dst: 0, pitch: 9, value: 0, elementSize: 0, width: 0, height: 0 };
    ok("cuGraphMemsetNodeGetParams", cu!(cuGraphMemsetNodeGetParams(graph.nodes()?[0], &mut p)))?;
    Ok((graph, p))
}

fn memsets(t: &mut Checker) -> Done {
    let mem = t.gpu.words(N)?;
    let p = mem.p;
    let bytes = captured_memset(|s| cu!(cuMemsetD8Async(p, 0x5a, 100, s)))?.1;
    let halves = captured_memset(|s| cu!(cuMemsetD16Async(p, 0x5a5b, 100, s)))?.1;
    let words = captured_memset(|s| cu!(cuMemsetD32Async(p, 0x5a5b5c5d, 100, s)))?.1;
    let rows = captured_memset(|s| cu!(cuMemsetD2D8Async(p, 128, 0x5a, 100, 3, s)))?.1;
    let want =
        [(bytes, 0x5a, 1, 0, 1), (halves, 0x5a5b, 2, 0, 1), (words, 0x5a5b5c5d, 4, 0, 1), (rows, 0x5a, 1, 128, 3)];
    for (i, (m, value, element, pitch, height)) in want.into_iter().enumerate() {
        t.eq(&format!("value and element of memset {i}"), (m.value, m.elementSize), (value, element));
        t.eq(&format!("place of memset {i}"), (m.dst, m.pitch, m.width, m.height), (p, pitch, 100, height));
    }
    Ok(())
}

fn what_is_read_can_be_added_and_set(t: &mut Checker) -> Done {
    let (a, b, ctx) = (t.gpu.words(N)?, t.gpu.words(N)?, t.gpu.primary);
    let (graph, copy) = captured_copy(|s| cu!(cuMemcpyAsync(a.p, b.p, 256, s)))?;
    let (again, mut node) = (Graph::new()?, null_mut());
    t.eq("adding the copy", cu!(cuGraphAddMemcpyNode(&mut node, again.g, null(), 0, &copy, ctx)), 0);
    let exec = graph.instantiate()?;
    let set = cu!(cuGraphExecMemcpyNodeSetParams(exec.e, graph.nodes()?[0], &copy, ctx));
    t.eq("setting the copy", set, 0);
    t.eq("updating from the copy added", exec.update(&again).0, 0);
    let (graph, memset) = captured_memset(|s| cu!(cuMemsetD8Async(a.p, 1, 100, s)))?;
    let again = Graph::new()?;
    t.eq("adding the memset", cu!(cuGraphAddMemsetNode(&mut node, again.g, null(), 0, &memset, ctx)), 0);
    let exec = graph.instantiate()?;
    let set = cu!(cuGraphExecMemsetNodeSetParams(exec.e, graph.nodes()?[0], &memset, ctx));
    t.eq("setting the memset", set, 0);
    t.eq("updating from the memset added", exec.update(&again).0, 0);
    let stream = Strm::non_blocking()?;
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), a.words(), 5)?))?;
    let (kernel, again) = (read_kernel(t, graph.nodes()?[0])?, Graph::new()?);
    t.eq("adding the kernel", cu!(cuGraphAddKernelNode_v2(&mut node, again.g, null(), 0, &kernel)), 0);
    let exec = graph.instantiate()?;
    t.eq("setting the kernel", cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, graph.nodes()?[0], &kernel)), 0);
    t.eq("updating from the kernel added", exec.update(&again).0, 0);
    exec.launch(&stream)?;
    t.eq("words not written", t.gpu.wrong_words(&stream, a.words(), 5)?, 0);
    Ok(())
}

/// Copies and memsets of nothing succeed and leave no node.
fn nothing_of_no_size(t: &mut Checker) -> Done {
    let (stream, a, b) = (Strm::non_blocking()?, t.gpu.words(N)?, t.gpu.words(N)?);
    let graph = Graph::capture(&stream, || {
        ok("cuMemcpyDtoDAsync", cu!(cuMemcpyDtoDAsync_v2(a.p, b.p, 0, stream.s)))?;
        ok("cuMemsetD8Async", cu!(cuMemsetD8Async(a.p, 1, 0, stream.s)))
    })?;
    let (mut n, mut node) = (9, null_mut());
    t.eq("how many nodes", (cu!(cuGraphGetNodes(graph.g, null_mut(), &mut n)), n), (0, 0));
    t.eq("nodes, with room for none", cu!(cuGraphGetNodes(graph.g, &mut node, &mut n)), 1);
    Ok(())
}

fn parameter_info(t: &mut Checker) -> Done {
    let library = Library::load()?;
    for kernel in Kernel::ALL {
        let f = t.gpu.kernels.function(kernel);
        let (mut offset, mut end) = (0, 0);
        for (i, size) in kernel.parameter_sizes().iter().enumerate() {
            let mut got = 0;
            let status = cu!(cuFuncGetParamInfo(f, i, &mut offset, &mut got));
            t.eq(&format!("{kernel:?}, parameter {i}"), (status, got), (0, *size));
            t.yes(&format!("{kernel:?}, parameter {i}: its place"), offset >= end && offset % size == 0);
            end = offset + size;
        }
        let beyond = cu!(cuFuncGetParamInfo(f, kernel.parameter_sizes().len(), &mut offset, null_mut()));
        t.eq(&format!("{kernel:?}, one more"), beyond, 1);
    }
    let (mut offset, mut size, mut module) = (9, 0, null_mut());
    let status = cu!(cuKernelGetParamInfo(library.1, 2, &mut offset, &mut size));
    t.eq("the third of a library's fill", (status, offset, size), (0, 16, 4));
    // A launch takes both, questions about functions take no kernel.
    let (mut name, mut value, mut function) = (null(), 0, null_mut());
    let local = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    t.eq("a kernel's function", cu!(cuKernelGetFunction(&mut function, library.1)), 0);
    t.eq("a function's function", cu!(cuKernelGetFunction(&mut null_mut(), function.cast())), 400);
    t.eq("of a kernel", cu!(cuFuncGetAttribute(&mut value, local, library.1.cast())), 400);
    t.eq("name of a kernel as a function's", cu!(cuFuncGetName(&mut name, library.1.cast())), 400);
    t.eq("loaded by its function", cu!(cuFuncLoad(function)), 0);
    t.eq("of its function", (cu!(cuFuncGetAttribute(&mut value, local, function)), value), (0, 0));
    let f = t.gpu.kernels.function(Kernel::Fill);
    t.eq("cuFuncGetModule", (cu!(cuFuncGetModule(&mut module, f)), module.is_null()), (0, false));
    Ok(())
}

/// Parameters that are refused for a new node.
fn rejected(t: &mut Checker) -> Done {
    let (mem, graph, mut node) = (t.gpu.words(N)?, Graph::new()?, null_mut());
    let kernel = |change: &dyn Fn(&mut sys::CUDA_KERNEL_NODE_PARAMS), node: &mut _| {
        with_fill(t, &mem, 1, |p| {
            let mut p = *p;
            change(&mut p);
            cu!(cuGraphAddKernelNode_v2(node, graph.g, null(), 0, &p))
        })
    };
    let got = [
        kernel(&|p| p.kernelParams = null_mut(), &mut node),
        kernel(&|p| p.gridDimX = 0, &mut node),
        kernel(&|p| p.blockDimX = 2048, &mut node),
    ];
    t.eq("no parameters, no grid, too large a block", got, [1, 1, 1]);
    let mut copy = no_copy();
    (copy.srcDevice, copy.dstDevice) = (mem.p, mem.p + 1024);
    let ctx = t.gpu.primary;
    for (width, height, want) in [(0, 1, 1), (64, 0, 1), (64, 1, 0)] {
        (copy.WidthInBytes, copy.Height, copy.Depth) = (width, height, 1);
        let status = cu!(cuGraphAddMemcpyNode(&mut node, graph.g, null(), 0, &copy, ctx));
        t.eq(&format!("a copy of {width} bytes and {height} rows"), status, want);
    }
    let wild = super::update::memset(&mem, 1, 0);
    let empty = cu!(cuGraphAddMemsetNode(&mut node, graph.g, null(), 0, &wild, ctx));
    t.eq("a memset of nothing", empty, 1);
    if graph.nodes()?.len() != 1 {
        return skip("what was refused left nodes");
    }
    Ok(())
}
