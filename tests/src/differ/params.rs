//! Converts work to the parameters of the driver's functions: new nodes, changed nodes, work on a stream.

use super::api::Status;
use super::host::write_log;
use super::objects::{Real, cu};
use super::program::Id;
use super::work::{Buf, Kernel, Work};
use cudarc::driver::sys::{self, CUgraphNodeType as Type, CUlaunchAttributeID as Attribute, CUmemorytype};
use std::ffi::c_void;
use std::ptr::null_mut;

const BAD: Status = 1;

/// Calls `f` with a kernel node's parameters.
fn with_kernel<R>(real: &Real, work: &Work, f: impl FnOnce(&mut sys::CUDA_KERNEL_NODE_PARAMS) -> R) -> Option<R> {
    let k = work.kernel()?;
    let at = |buf: &Buf| real.address(*buf);
    // Numbers are little endian, so the first four bytes of a value are also right for a parameter of four bytes.
    let (mut values, words) = match work {
        Work::Fill { b, v, n, at: offset, .. } => {
            (vec![at(b) + u64::from(*offset) * 4, u64::from(*n), u64::from(*v)], *n)
        }
        Work::Scale { d, s, f, n, .. } => (vec![at(d), at(s), u64::from(*n), u64::from(*f)], *n),
        Work::Verify { b, v, n, m, .. } => (vec![at(b), u64::from(*n), u64::from(*v), at(m)], *n),
        Work::Spin { us, b, .. } => (vec![u64::from(*us) * 1000, b.as_ref().map_or(0, at)], 1),
        Work::Cluster { b, .. } => (vec![at(b)], 1),
        _ => return None,
    };
    let single = matches!(work, Work::Spin { .. });
    let block = if single { 1 } else { k.block.max(1).max(if k.block == 0 { 64 } else { 1 }) };
    let grid = if k.grid > 0 { k.grid } else { words.div_ceil(block.max(64)).max(k.cluster).max(1) };
    let grid = if single { k.cluster.max(1) } else { grid.next_multiple_of(k.cluster.max(1)) };
    let mut buffer = if k.packed { packed(work, &values) } else { Vec::new() };
    let mut size = buffer.len();
    let mut list: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
    // CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE, then the end.
    let (pointer, bytes) = (buffer.as_mut_ptr().cast::<c_void>(), (&raw mut size).cast::<c_void>());
    let number = |n: usize| std::ptr::without_provenance_mut::<c_void>(n);
    let mut extra = [number(1), pointer, number(2), bytes, null_mut()];
    let mut params = sys::CUDA_KERNEL_NODE_PARAMS {
        func: real.function(work) as sys::CUfunction,
        gridDimX: grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: k.shared,
        kernelParams: if k.packed { null_mut() } else { list.as_mut_ptr() },
        extra: if k.packed { extra.as_mut_ptr() } else { null_mut() },
        kern: null_mut(),
        ctx: null_mut(),
    };
    Some(f(&mut params))
}

/// A kernel's parameters in one buffer, each at a multiple of its size.
fn packed(work: &Work, values: &[u64]) -> Vec<u8> {
    let sizes: &[usize] = match work {
        Work::Fill { .. } => &[8, 8, 4],
        Work::Scale { .. } => &[8, 8, 8, 4],
        Work::Verify { .. } => &[8, 8, 4, 8],
        Work::Spin { .. } => &[8, 8],
        _ => &[8],
    };
    let mut bytes = Vec::new();
    for (value, size) in values.iter().zip(sizes) {
        bytes.resize(bytes.len().next_multiple_of(*size), 0);
        bytes.extend_from_slice(&value.to_le_bytes()[..*size]);
    }
    bytes
}

/// A copy's parameters; `Copy` is one row.
fn copy(real: &Real, work: &Work) -> Option<sys::CUDA_MEMCPY3D> {
    let (d, s, width, height, d_pitch, s_pitch, d_at, s_at) = match work {
        Work::Copy { d, s, n, d_at, s_at } => (d, s, n * 4, 1, 0, 0, d_at * 4, s_at * 4),
        Work::Copy2 { d, s, w, h, d_pitch, s_pitch } => (d, s, *w, *h, *d_pitch, *s_pitch, 0, 0),
        _ => return None,
    };
    let side = |buf: &Buf, at: u32| {
        let address = real.address(*buf) + u64::from(at);
        if buf.is_device() {
            (CUmemorytype::CU_MEMORYTYPE_DEVICE, address, null_mut())
        } else {
            (CUmemorytype::CU_MEMORYTYPE_HOST, 0, address as *mut c_void)
        }
    };
    let ((dst_type, dst, dst_host), (src_type, src, src_host)) = (side(d, d_at), side(s, s_at));
    let mut params = no_copy();
    (params.dstMemoryType, params.dstDevice, params.dstHost) = (dst_type, dst, dst_host);
    (params.srcMemoryType, params.srcDevice, params.srcHost) = (src_type, src, src_host);
    (params.dstPitch, params.srcPitch) = (d_pitch as usize, s_pitch as usize);
    (params.WidthInBytes, params.Height, params.Depth) = (width as usize, height as usize, 1);
    Some(params)
}

/// A copy with no rows, no source and no destination.
pub fn no_copy() -> sys::CUDA_MEMCPY3D {
    let mut params = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    let at = params.as_mut_ptr();
    // SAFETY: the struct holds numbers and pointers, for which zero is valid, and two enums that
    // have no member 0. Both enums are set here. `at` points to the local `params`.
    unsafe {
        (&raw mut (*at).srcMemoryType).write(CUmemorytype::CU_MEMORYTYPE_DEVICE);
        (&raw mut (*at).dstMemoryType).write(CUmemorytype::CU_MEMORYTYPE_DEVICE);
        params.assume_init()
    }
}

fn memset(real: &Real, work: &Work) -> Option<sys::CUDA_MEMSET_NODE_PARAMS> {
    let of = |dst: u64, pitch: u32, value: u32, size: u32, width: u32, height: u32| sys::CUDA_MEMSET_NODE_PARAMS {
        dst,
        pitch: pitch as usize,
        value: if size < 4 { value & ((1 << (size * 8)) - 1) } else { value },
        elementSize: size,
        width: width as usize,
        height: height as usize,
    };
    match work {
        Work::Set { b, v, n, size, at } => Some(of(real.address(*b) + u64::from(*at) * 4, 0, *v, *size, *n, 1)),
        Work::Set2 { b, v, size, w, h, pitch } => Some(of(real.address(*b), *pitch, *v, *size, *w, *h)),
        _ => None,
    }
}

fn host(work: &Work) -> Option<sys::CUDA_HOST_NODE_PARAMS> {
    let Work::Host { log, v } = work else { return None };
    let which = usize::from(log.0 - Buf::DEVICE - Buf::HOST);
    Some(sys::CUDA_HOST_NODE_PARAMS { fn_: Some(write_log), userData: (which << 32 | *v as usize) as *mut c_void })
}

pub fn add(real: &Real, graph: sys::CUgraph, after: &[sys::CUgraphNode], work: &Work) -> (Status, sys::CUgraphNode) {
    let (mut node, list, n) = (null_mut(), after.as_ptr(), after.len());
    let status = match work {
        Work::Copy { .. } | Work::Copy2 { .. } => {
            copy(real, work).map_or(BAD, |p| cu!(cuGraphAddMemcpyNode(&mut node, graph, list, n, &p, real.ctx())))
        }
        Work::Set { .. } | Work::Set2 { .. } => {
            memset(real, work).map_or(BAD, |p| cu!(cuGraphAddMemsetNode(&mut node, graph, list, n, &p, real.ctx())))
        }
        Work::Host { .. } => host(work).map_or(BAD, |p| cu!(cuGraphAddHostNode(&mut node, graph, list, n, &p))),
        Work::Empty => cu!(cuGraphAddEmptyNode(&mut node, graph, list, n)),
        Work::Record { ev } => cu!(cuGraphAddEventRecordNode(&mut node, graph, list, n, real.event(*ev))),
        Work::Wait { ev } => cu!(cuGraphAddEventWaitNode(&mut node, graph, list, n, real.event(*ev))),
        Work::Child { g } => cu!(cuGraphAddChildGraphNode(&mut node, graph, list, n, real.handle(*g))),
        _ => with_kernel(real, work, |p| cu!(cuGraphAddKernelNode_v2(&mut node, graph, list, n, p))).unwrap_or(BAD),
    };
    match work.kernel() {
        Some(k) if status == 0 => {
            let status = attributes(node, k, false);
            if status != 0 {
                // A node without the attributes would run beside nodes that it must not meet.
                cu!(cuGraphDestroyNode(node));
            }
            (status, node)
        }
        _ => (status, node),
    }
}

/// Sets a node's attributes. `all`: also those that are 0.
pub fn attributes(node: sys::CUgraphNode, k: &Kernel, all: bool) -> Status {
    let set = |id: Attribute, fill: &dyn Fn(&mut sys::CUlaunchAttributeValue)| {
        // SAFETY: the union holds numbers only, so all zeroes is a valid value.
        let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
        fill(&mut value);
        cu!(cuGraphKernelNodeSetAttribute(node, id, &value))
    };
    let mut status = 0;
    if k.cooperative || all {
        status = set(Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &|v| v.cooperative = k.cooperative.into());
    }
    if status == 0 && (k.priority != 0 || all) {
        status = set(Attribute::CU_LAUNCH_ATTRIBUTE_PRIORITY, &|v| v.priority = k.priority);
    }
    if status == 0 && k.cluster > 0 {
        status = set(Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &|v| cluster(v, k.cluster));
    }
    status
}

fn cluster(value: &mut sys::CUlaunchAttributeValue, size: u32) {
    value.clusterDim.x = size;
    value.clusterDim.y = 1;
    value.clusterDim.z = 1;
}

pub fn set(real: &Real, node: sys::CUgraphNode, to: &Work) -> Status {
    match to {
        Work::Copy { .. } | Work::Copy2 { .. } => {
            copy(real, to).map_or(BAD, |p| cu!(cuGraphMemcpyNodeSetParams(node, &p)))
        }
        Work::Set { .. } | Work::Set2 { .. } => {
            memset(real, to).map_or(BAD, |p| cu!(cuGraphMemsetNodeSetParams(node, &p)))
        }
        Work::Host { .. } => host(to).map_or(BAD, |p| cu!(cuGraphHostNodeSetParams(node, &p))),
        Work::Record { ev } => cu!(cuGraphEventRecordNodeSetEvent(node, real.event(*ev))),
        Work::Wait { ev } => cu!(cuGraphEventWaitNodeSetEvent(node, real.event(*ev))),
        Work::Empty | Work::Child { .. } => BAD,
        _ => with_kernel(real, to, |p| cu!(cuGraphKernelNodeSetParams_v2(node, p))).unwrap_or(BAD),
    }
}

pub fn set_exec(real: &Real, exec: sys::CUgraphExec, node: sys::CUgraphNode, to: &Work, any: bool) -> Status {
    if any {
        return set_any(real, exec, node, to);
    }
    let ctx = real.ctx();
    match to {
        Work::Copy { .. } | Work::Copy2 { .. } => {
            copy(real, to).map_or(BAD, |p| cu!(cuGraphExecMemcpyNodeSetParams(exec, node, &p, ctx)))
        }
        Work::Set { .. } | Work::Set2 { .. } => {
            memset(real, to).map_or(BAD, |p| cu!(cuGraphExecMemsetNodeSetParams(exec, node, &p, ctx)))
        }
        Work::Host { .. } => host(to).map_or(BAD, |p| cu!(cuGraphExecHostNodeSetParams(exec, node, &p))),
        Work::Record { ev } => cu!(cuGraphExecEventRecordNodeSetEvent(exec, node, real.event(*ev))),
        Work::Wait { ev } => cu!(cuGraphExecEventWaitNodeSetEvent(exec, node, real.event(*ev))),
        Work::Child { g } => cu!(cuGraphExecChildGraphNodeSetParams(exec, node, real.handle(*g))),
        Work::Empty => BAD,
        _ => with_kernel(real, to, |p| cu!(cuGraphExecKernelNodeSetParams_v2(exec, node, p))).unwrap_or(BAD),
    }
}

/// Sets a node of an exec by the function that takes nodes of all kinds.
fn set_any(real: &Real, exec: sys::CUgraphExec, node: sys::CUgraphNode, to: &Work) -> Status {
    // SAFETY: the struct holds numbers, pointers, and an enum that has a member 0, so all zeroes is
    // a valid value.
    let mut any: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
    let union = &mut any.__bindgen_anon_1;
    match to {
        Work::Copy { .. } | Work::Copy2 { .. } => {
            let Some(p) = copy(real, to) else { return BAD };
            any.type_ = Type::CU_GRAPH_NODE_TYPE_MEMCPY;
            union.memcpy = sys::CUDA_MEMCPY_NODE_PARAMS { flags: 0, reserved: 0, copyCtx: real.ctx(), copyParams: p };
        }
        Work::Set { .. } | Work::Set2 { .. } => {
            let Some(p) = memset(real, to) else { return BAD };
            any.type_ = Type::CU_GRAPH_NODE_TYPE_MEMSET;
            let (dst, pitch, value, width, height) = (p.dst, p.pitch, p.value, p.width, p.height);
            let (element, ctx) = (p.elementSize, real.ctx());
            union.memset =
                sys::CUDA_MEMSET_NODE_PARAMS_v2 { dst, pitch, value, elementSize: element, width, height, ctx };
        }
        Work::Host { .. } => {
            let Some(p) = host(to) else { return BAD };
            any.type_ = Type::CU_GRAPH_NODE_TYPE_HOST;
            union.host = sys::CUDA_HOST_NODE_PARAMS_v2 { fn_: p.fn_, userData: p.userData };
        }
        Work::Record { ev } => {
            any.type_ = Type::CU_GRAPH_NODE_TYPE_EVENT_RECORD;
            union.eventRecord = sys::CUDA_EVENT_RECORD_NODE_PARAMS { event: real.event(*ev) };
        }
        Work::Wait { ev } => {
            any.type_ = Type::CU_GRAPH_NODE_TYPE_WAIT_EVENT;
            union.eventWait = sys::CUDA_EVENT_WAIT_NODE_PARAMS { event: real.event(*ev) };
        }
        Work::Child { g } => {
            any.type_ = Type::CU_GRAPH_NODE_TYPE_GRAPH;
            let ownership = sys::CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
            union.graph = sys::CUDA_CHILD_GRAPH_NODE_PARAMS { graph: real.handle(*g), ownership };
        }
        Work::Empty => return BAD,
        _ => {
            any.type_ = Type::CU_GRAPH_NODE_TYPE_KERNEL;
            let set = with_kernel(real, to, |p| {
                any.__bindgen_anon_1.kernel = sys::CUDA_KERNEL_NODE_PARAMS_v3 {
                    func: p.func,
                    gridDimX: p.gridDimX,
                    gridDimY: 1,
                    gridDimZ: 1,
                    blockDimX: p.blockDimX,
                    blockDimY: 1,
                    blockDimZ: 1,
                    sharedMemBytes: p.sharedMemBytes,
                    kernelParams: p.kernelParams,
                    extra: p.extra,
                    kern: null_mut(),
                    ctx: null_mut(),
                };
                cu!(cuGraphExecNodeSetParams(exec, node, &mut any))
            });
            return set.unwrap_or(BAD);
        }
    }
    cu!(cuGraphExecNodeSetParams(exec, node, &mut any))
}

/// Puts work on a stream. `captured`: events become nodes, and are not part of the capture's order.
pub fn put(real: &Real, s: usize, work: &Work, captured: bool) -> Status {
    let stream = real.stream(s);
    match work {
        Work::Copy { d, s: from, n, d_at, s_at } => {
            let at = |buf: &Buf, at: u32| real.address(*buf) + u64::from(at) * 4;
            let (d_at, s_at, bytes) = (at(d, *d_at), at(from, *s_at), *n as usize * 4);
            match (d.is_device(), from.is_device()) {
                (true, true) => cu!(cuMemcpyDtoDAsync_v2(d_at, s_at, bytes, stream)),
                (true, false) => cu!(cuMemcpyHtoDAsync_v2(d_at, s_at as *const c_void, bytes, stream)),
                (false, true) => cu!(cuMemcpyDtoHAsync_v2(d_at as *mut c_void, s_at, bytes, stream)),
                (false, false) => cu!(cuMemcpyAsync(d_at, s_at, bytes, stream)),
            }
        }
        Work::Copy2 { .. } => copy(real, work).map_or(BAD, |p| cu!(cuMemcpy3DAsync_v2(&p, stream))),
        Work::Set { .. } | Work::Set2 { .. } => {
            let Some(p) = memset(real, work) else { return BAD };
            match (p.elementSize, p.height) {
                (1, 1) => cu!(cuMemsetD8Async(p.dst, p.value as u8, p.width, stream)),
                (2, 1) => cu!(cuMemsetD16Async(p.dst, p.value as u16, p.width, stream)),
                (_, 1) => cu!(cuMemsetD32Async(p.dst, p.value, p.width, stream)),
                (1, h) => cu!(cuMemsetD2D8Async(p.dst, p.pitch, p.value as u8, p.width, h, stream)),
                (2, h) => cu!(cuMemsetD2D16Async(p.dst, p.pitch, p.value as u16, p.width, h, stream)),
                (_, h) => cu!(cuMemsetD2D32Async(p.dst, p.pitch, p.value, p.width, h, stream)),
            }
        }
        Work::Temporary { b, v, n } => temporary(real.address(*b), *v, *n as usize, stream),
        Work::Host { .. } => host(work).map_or(BAD, |p| cu!(cuLaunchHostFunc(stream, p.fn_, p.userData))),
        Work::Record { ev } => cu!(cuEventRecordWithFlags(real.event(*ev), stream, captured.into())),
        Work::Wait { ev } => cu!(cuStreamWaitEvent(stream, real.event(*ev), captured.into())),
        Work::Empty | Work::Child { .. } => BAD,
        _ => with_kernel(real, work, |p| launch(p, work.kernel(), stream)).unwrap_or(BAD),
    }
}

/// Memory that lives for four operations. Returns the status of the first operation that fails.
fn temporary(to: u64, v: u32, n: usize, stream: sys::CUstream) -> Status {
    let mut address = 0;
    let mut status = cu!(cuMemAllocAsync(&mut address, n * 4, stream));
    if status == 0 {
        status = cu!(cuMemsetD32Async(address, v, n, stream));
        if status == 0 {
            status = cu!(cuMemcpyDtoDAsync_v2(to, address, n * 4, stream));
        }
        let freed = cu!(cuMemFreeAsync(address, stream));
        status = if status == 0 { freed } else { status };
    }
    status
}

fn launch(p: &sys::CUDA_KERNEL_NODE_PARAMS, k: Option<&Kernel>, stream: sys::CUstream) -> Status {
    let mut attributes = Vec::new();
    let mut attribute = |id: Attribute, fill: &dyn Fn(&mut sys::CUlaunchAttributeValue)| {
        // SAFETY: the struct holds numbers, a union of numbers, and an enum that has a member 0, so
        // all zeroes is a valid value.
        let mut one: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        one.id = id;
        fill(&mut one.value);
        attributes.push(one);
    };
    if let Some(k) = k {
        if k.cluster > 0 {
            attribute(Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &|v| cluster(v, k.cluster));
        }
        if k.cooperative {
            attribute(Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &|v| v.cooperative = 1);
        }
        if k.priority != 0 {
            attribute(Attribute::CU_LAUNCH_ATTRIBUTE_PRIORITY, &|v| v.priority = k.priority);
        }
        if k.early {
            let id = Attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute(id, &|v| v.programmaticStreamSerializationAllowed = 1);
        }
    }
    if attributes.is_empty() {
        let (list, extra) = (p.kernelParams, p.extra);
        return cu!(cuLaunchKernel(p.func, p.gridDimX, 1, 1, p.blockDimX, 1, 1, p.sharedMemBytes, stream, list, extra));
    }
    let config = sys::CUlaunchConfig {
        gridDimX: p.gridDimX,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: p.blockDimX,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: p.sharedMemBytes,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    cu!(cuLaunchKernelEx(&config, p.func, p.kernelParams, p.extra))
}

/// Launches each kernel of a module once, on memory that no program uses.
pub fn first_launches(real: &Real, m: Id, scratch: u64) -> Status {
    let k = Kernel { m, ..Kernel::default() };
    let (b, s) = (Buf(0), Buf(1));
    let all = [
        Work::Fill { b, v: 0, n: 4, at: 0, k: k.clone() },
        Work::Scale { d: b, s, f: 1, n: 4, k: k.clone() },
        Work::Verify { b, v: 0, n: 4, m: s, k: k.clone() },
        Work::Spin { us: 1, b: None, k },
    ];
    for work in &all {
        // Sizes are 0 and nothing is touched; the spin takes a microsecond.
        let function = real.function(work) as sys::CUfunction;
        let mut own = match work {
            Work::Fill { .. } => [scratch, 0, 0, 0],
            Work::Scale { .. } => [scratch, scratch, 0, 0],
            Work::Verify { .. } => [scratch, 0, 0, scratch],
            _ => [1000, 0, 0, 0],
        };
        let mut list: Vec<*mut c_void> = own.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let (stream, list, extra) = (real.stream(0), list.as_mut_ptr(), null_mut());
        let status = cu!(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, list, extra));
        if status != 0 {
            return status;
        }
    }
    cu!(cuStreamSynchronize(real.stream(0)))
}
