//! Asks everything that can be asked of a graph and its nodes, and answers in the program's words.

use super::objects::{KERNELS, Real, cu};
use super::program::Id;
use super::work::Buf;
use cudarc::driver::sys::{self, CUgraphNodeType as Type, CUmemorytype};
use std::ptr::null_mut;

/// Asks for a list twice: first for its length, then for its items.
fn list(ask: impl Fn(*mut sys::CUgraphNode, *mut usize) -> u32) -> Result<Vec<usize>, u32> {
    let mut count = 0;
    match ask(null_mut(), &mut count) {
        0 => {}
        status => return Err(status),
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut nodes = vec![null_mut(); count];
    match ask(nodes.as_mut_ptr(), &mut count) {
        0 => Ok(nodes.into_iter().map(|node| node as usize).collect()),
        status => Err(status),
    }
}

/// Everything about a graph; `numbers` are those of its nodes in the order in which they were made.
pub fn query(real: &mut Real, g: Id, numbers: &[usize]) -> Vec<String> {
    let graph = real.handle(g);
    let nodes = match list(|nodes, count| cu!(cuGraphGetNodes(graph, nodes, count))) {
        Ok(nodes) => nodes,
        Err(status) => return vec![format!("cuGraphGetNodes = {status}")],
    };
    if nodes.len() != numbers.len() {
        return vec![format!("{} nodes, not {}", nodes.len(), numbers.len())];
    }
    if let Some(handles) = real.graphs.get_mut(&g)
        && handles.nodes.is_empty()
    {
        handles.nodes = vec![0; numbers.iter().max().map_or(0, |most| most + 1)];
        nodes.iter().zip(numbers).for_each(|(node, n)| handles.nodes[*n] = *node);
    }
    let known = real.graphs.get(&g).map(|handles| handles.nodes.clone()).unwrap_or_default();
    let number = |node: usize| known.iter().position(|known| *known == node).map_or("?".into(), |n| n.to_string());
    let roots = list(|nodes, count| cu!(cuGraphGetRootNodes(graph, nodes, count)));
    let mut lines = vec![match roots {
        Ok(roots) => format!("roots {}", sorted(roots.into_iter().map(number))),
        Err(status) => format!("cuGraphGetRootNodes = {status}"),
    }];
    for node in &nodes {
        let handle = *node as sys::CUgraphNode;
        let after = list(|nodes, count| {
            let mut edges = vec![NO_EDGE; 64];
            let edges = if nodes.is_null() { null_mut() } else { edges.as_mut_ptr() };
            cu!(cuGraphNodeGetDependencies_v2(handle, nodes, edges, count))
        });
        let after = match after {
            Ok(after) => sorted(after.into_iter().map(number)),
            Err(status) => format!("cuGraphNodeGetDependencies = {status}"),
        };
        lines.push(format!("node {}: {} after {after}", number(*node), describe(real, handle)));
    }
    lines
}

// SAFETY: CUgraphEdgeData holds numbers only, so all zeroes is a valid value.
const NO_EDGE: sys::CUgraphEdgeData = unsafe { std::mem::zeroed() };

fn sorted(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    names.sort();
    format!("[{}]", names.join(" "))
}

/// An address as a place in a buffer.
fn place(real: &Real, address: u64) -> String {
    let inside = |buf: &Buf| {
        !buf.is_log() && (real.address(*buf)..real.address(*buf) + u64::from(Buf::WORDS) * 4).contains(&address)
    };
    match (0..Buf::COUNT).map(Buf).find(inside) {
        Some(buf) => format!("{buf}+{}", address - real.address(buf)),
        None if address == 0 => "null".into(),
        None => "elsewhere".into(),
    }
}

fn describe(real: &Real, node: sys::CUgraphNode) -> String {
    let mut kind = Type::CU_GRAPH_NODE_TYPE_EMPTY;
    match cu!(cuGraphNodeGetType(node, &mut kind)) {
        0 => {}
        status => return format!("cuGraphNodeGetType = {status}"),
    }
    let told = match kind {
        Type::CU_GRAPH_NODE_TYPE_KERNEL => kernel(real, node),
        Type::CU_GRAPH_NODE_TYPE_MEMCPY => memcpy(real, node),
        Type::CU_GRAPH_NODE_TYPE_MEMSET => memset(real, node),
        Type::CU_GRAPH_NODE_TYPE_HOST => host(node),
        Type::CU_GRAPH_NODE_TYPE_GRAPH => child(node),
        _ => Ok(format!("kind {}", kind as u32)),
    };
    told.unwrap_or_else(|status| format!("{kind:?} that answers {status}"))
}

fn ok(status: u32) -> Result<(), u32> {
    if status == 0 { Ok(()) } else { Err(status) }
}

fn kernel(real: &Real, node: sys::CUgraphNode) -> Result<String, u32> {
    // SAFETY: the struct holds numbers and pointers that may be null, so all zeroes is a valid
    // value.
    let mut p: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    ok(cu!(cuGraphKernelNodeGetParams_v2(node, &mut p)))?;
    let form = if p.kernelParams.is_null() { " packed" } else { "" };
    let shape = format!("grid {} block {} shared {}{form}", p.gridDimX, p.blockDimX, p.sharedMemBytes);
    let mut known =
        real.modules.iter().flat_map(|(m, module)| module.functions.iter().enumerate().map(move |(i, f)| (*m, i, *f)));
    let Some((m, i, _)) = known.find(|(_, _, function)| *function == p.func as usize) else {
        return Ok(format!("a kernel, {shape}"));
    };
    let pointers: &[bool] =
        [&[true, false, false][..], &[true, true, false, false], &[true, false, false, true], &[false, true]][i];
    let sizes: &[usize] = [&[8, 8, 4][..], &[8, 8, 8, 4], &[8, 8, 4, 8], &[8, 8]][i];
    let mut values = Vec::new();
    let buffer = packed(&p);
    for (n, (pointer, size)) in pointers.iter().zip(sizes).enumerate() {
        let at = if !p.kernelParams.is_null() {
            // SAFETY: not null, and the driver's list has one pointer for each parameter of the
            // kernel. `sizes` has as many elements as the kernel has parameters.
            unsafe { *p.kernelParams.add(n) }
        } else if let Some(buffer) = buffer {
            // SAFETY: the driver's buffer holds all parameters of the kernel, each at a multiple of
            // its size. `offset_of` computes the places in the same way.
            unsafe { buffer.byte_add(offset_of(sizes, n)) }
        } else {
            break;
        };
        // SAFETY: the driver keeps a value of `size` bytes at `at` while the node lives, and sizes
        // are 8 or 4 bytes.
        let value = unsafe {
            if *size == 8 { at.cast::<u64>().read_unaligned() } else { at.cast::<u32>().read_unaligned().into() }
        };
        values.push(if *pointer { place(real, value) } else { value.to_string() });
    }
    let mut attributes = String::new();
    use sys::CUlaunchAttributeID as Id;
    // SAFETY: the union holds numbers only, so all zeroes is a valid value.
    let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
    if cu!(cuGraphKernelNodeGetAttribute(node, Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &mut value)) == 0 {
        // SAFETY: the driver has just written this member: COOPERATIVE was asked for. All members
        // are numbers.
        attributes += &format!(" cooperative {}", unsafe { value.cooperative });
    }
    if cu!(cuGraphKernelNodeGetAttribute(node, Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, &mut value)) == 0 {
        // SAFETY: the driver has just written this member: PRIORITY was asked for. All members are
        // numbers.
        attributes += &format!(" priority {}", unsafe { value.priority });
    }
    if cu!(cuGraphKernelNodeGetAttribute(node, Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &mut value)) == 0 {
        // SAFETY: the driver has just written this member: CLUSTER_DIMENSION was asked for. All
        // members are numbers.
        attributes += &format!(" cluster {}", unsafe { value.clusterDim.x });
    }
    let name = KERNELS[i].to_string_lossy();
    Ok(format!("{name} of m{m} {shape} ({}){attributes}", values.join(", ")))
}

fn offset_of(sizes: &[usize], n: usize) -> usize {
    sizes[..n].iter().fold(0usize, |at, size| at.next_multiple_of(*size) + size).next_multiple_of(sizes[n])
}

/// The packed parameters of a node, if the node has its parameters in that form.
fn packed(p: &sys::CUDA_KERNEL_NODE_PARAMS) -> Option<*mut std::ffi::c_void> {
    if p.extra.is_null() {
        return None;
    }
    // SAFETY: not null. The driver's list is pairs of a number and a pointer up to a zero, and has
    // two pairs for packed parameters: the buffer (1) and its size.
    unsafe {
        let pairs = [(*p.extra, *p.extra.add(1)), (*p.extra.add(2), *p.extra.add(3))];
        pairs.into_iter().find(|(what, _)| *what as usize == 1).map(|(_, buffer)| buffer)
    }
}

fn memcpy(real: &Real, node: sys::CUgraphNode) -> Result<String, u32> {
    let mut p = super::params::no_copy();
    ok(cu!(cuGraphMemcpyNodeGetParams(node, &mut p)))?;
    let side = |kind: CUmemorytype, device: u64, host: u64| match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => place(real, host),
        _ => place(real, device),
    };
    let to = side(p.dstMemoryType, p.dstDevice, p.dstHost as u64);
    let from = side(p.srcMemoryType, p.srcDevice, p.srcHost as u64);
    let pitch = if p.Height > 1 { format!(" pitch {} {}", p.dstPitch, p.srcPitch) } else { String::new() };
    Ok(format!("copy {from} to {to}, {} x {} x {}{pitch}", p.WidthInBytes, p.Height, p.Depth))
}

fn memset(real: &Real, node: sys::CUgraphNode) -> Result<String, u32> {
    // SAFETY: the struct holds numbers only, so all zeroes is a valid value.
    let mut p: sys::CUDA_MEMSET_NODE_PARAMS = unsafe { std::mem::zeroed() };
    ok(cu!(cuGraphMemsetNodeGetParams(node, &mut p)))?;
    let pitch = if p.height > 1 { format!(" pitch {}", p.pitch) } else { String::new() };
    Ok(format!(
        "set {} to {} of {} bytes, {} x {}{pitch}",
        place(real, p.dst),
        p.value,
        p.elementSize,
        p.width,
        p.height
    ))
}

fn host(node: sys::CUgraphNode) -> Result<String, u32> {
    let mut p = sys::CUDA_HOST_NODE_PARAMS { fn_: None, userData: null_mut() };
    ok(cu!(cuGraphHostNodeGetParams(node, &mut p)))?;
    let ours = p.fn_.is_some_and(|f| f as usize == super::host::write_log as *const () as usize);
    Ok(format!("host function {} {:#x}", if ours { "log" } else { "?" }, p.userData as usize))
}

fn child(node: sys::CUgraphNode) -> Result<String, u32> {
    let mut graph = null_mut();
    ok(cu!(cuGraphChildGraphNodeGetGraph(node, &mut graph)))?;
    let mut count = 0;
    ok(cu!(cuGraphGetNodes(graph, null_mut(), &mut count)))?;
    Ok(format!("child of {count} nodes"))
}
