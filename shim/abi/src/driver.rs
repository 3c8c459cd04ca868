//! Rows of the CUDA driver API.
//!
//! `symbol ["base name" first-version flavour = sys] => module::hook(arguments);`
//!
//! * *base name, first version, flavour*: `cuGetProcAddress(base, v, …)` gives this symbol for `v` from the first
//!   version on, up to the next row of the same base name and flavour (`legacy` default stream, or `ptds`: per-thread
//!   default stream). A test compares it with the headers ([`crate::known`]).
//! * *sys*: the function of cudarc's `sys` with the same ABI, or `none` if it has none.

/// Passes all rows to the named macro, as `emit! { row; row; … }`.
#[macro_export]
macro_rules! driver_functions {
    ($emit:path) => { $emit! {
        // Lookup of functions.
        cuGetProcAddress ["cuGetProcAddress" 11030 legacy = none] => procaddr::v1(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: u64);
        cuGetProcAddress_v2 ["cuGetProcAddress" 12000 legacy = cuGetProcAddress_v2] => procaddr::v2(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);

        // Life of process and contexts.
        cuInit ["cuInit" 2000 legacy = cuInit] => process::init(flags: c_uint);
        cuCtxCreate_v2 ["cuCtxCreate" 3020 legacy = none] => context::create_v2(ctx: *mut Context, flags: c_uint, device: Device);
        cuCtxCreate_v3 ["cuCtxCreate" 11040 legacy = none] => context::create_v3(ctx: *mut Context, params: Opaque, len: c_int, flags: c_uint, device: Device);
        cuCtxCreate_v4 ["cuCtxCreate" 12050 legacy = cuCtxCreate_v4] => context::create_v4(ctx: *mut Context, params: Opaque, flags: c_uint, device: Device);
        cuCtxDestroy ["cuCtxDestroy" 2000 legacy = none] => context::destroy(ctx: Context);
        cuCtxDestroy_v2 ["cuCtxDestroy" 4000 legacy = cuCtxDestroy_v2] => context::destroy(ctx: Context);
        cuDevicePrimaryCtxRetain ["cuDevicePrimaryCtxRetain" 7000 legacy = cuDevicePrimaryCtxRetain] => context::retain_primary(ctx: *mut Context, device: Device);
        cuDevicePrimaryCtxRelease ["cuDevicePrimaryCtxRelease" 7000 legacy = none] => context::release_primary(device: Device);
        cuDevicePrimaryCtxRelease_v2 ["cuDevicePrimaryCtxRelease" 11000 legacy = cuDevicePrimaryCtxRelease_v2] => context::release_primary(device: Device);
        cuDevicePrimaryCtxReset ["cuDevicePrimaryCtxReset" 7000 legacy = none] => context::reset_primary(device: Device);
        cuDevicePrimaryCtxReset_v2 ["cuDevicePrimaryCtxReset" 11000 legacy = cuDevicePrimaryCtxReset_v2] => context::reset_primary(device: Device);
        cuCtxSetCurrent ["cuCtxSetCurrent" 4000 legacy = cuCtxSetCurrent] => context::set_current(ctx: Context);
        cuCtxPushCurrent ["cuCtxPushCurrent" 2000 legacy = none] => context::set_current(ctx: Context);
        cuCtxPushCurrent_v2 ["cuCtxPushCurrent" 4000 legacy = cuCtxPushCurrent_v2] => context::set_current(ctx: Context);
        cuCtxPopCurrent ["cuCtxPopCurrent" 2000 legacy = none] => context::set_current(ctx: *mut Context);
        cuCtxPopCurrent_v2 ["cuCtxPopCurrent" 4000 legacy = cuCtxPopCurrent_v2] => context::set_current(ctx: *mut Context);
        cuCtxSetLimit ["cuCtxSetLimit" 3010 legacy = cuCtxSetLimit] => context::set_limit(limit: c_uint, value: usize);
        cuGreenCtxCreate ["cuGreenCtxCreate" 12040 legacy = cuGreenCtxCreate] => green::create(green: *mut Context, desc: Opaque, device: Device, flags: c_uint);
        cuGreenCtxDestroy ["cuGreenCtxDestroy" 12040 legacy = cuGreenCtxDestroy] => green::destroy(green: Context);
        cuCtxFromGreenCtx ["cuCtxFromGreenCtx" 12040 legacy = cuCtxFromGreenCtx] => green::to_context(ctx: *mut Context, green: Context);
        cuCtxAttach ["cuCtxAttach" 2000 legacy = cuCtxAttach] => context::attach(ctx: *mut Context, flags: c_uint);
        cuCtxDetach ["cuCtxDetach" 2000 legacy = cuCtxDetach] => context::detach(ctx: Context);

        // Device memory.
        cuMemAlloc_v2 ["cuMemAlloc" 3020 legacy = cuMemAlloc_v2] => memory::alloc(ptr: *mut DevicePtr, bytes: usize);
        cuMemAllocPitch_v2 ["cuMemAllocPitch" 3020 legacy = cuMemAllocPitch_v2] => memory::alloc_pitch(ptr: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint);
        cuMemAllocManaged ["cuMemAllocManaged" 6000 legacy = cuMemAllocManaged] => memory::alloc_managed(ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        cuMemFree_v2 ["cuMemFree" 3020 legacy = cuMemFree_v2] => memory::free(ptr: DevicePtr);
        cuMemGetInfo_v2 ["cuMemGetInfo" 3020 legacy = cuMemGetInfo_v2] => memory::get_info(free: *mut usize, total: *mut usize);

        // Host memory.
        cuMemAllocHost_v2 ["cuMemAllocHost" 3020 legacy = cuMemAllocHost_v2] => host::alloc(ptr: *mut DevicePtr, bytes: usize);
        cuMemHostAlloc ["cuMemHostAlloc" 2020 legacy = cuMemHostAlloc] => host::alloc_flags(ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        cuMemFreeHost ["cuMemFreeHost" 2000 legacy = cuMemFreeHost] => host::free(ptr: DevicePtr);
        cuMemHostRegister ["cuMemHostRegister" 4000 legacy = none] => host::register(ptr: DevicePtr, bytes: usize, flags: c_uint);
        cuMemHostRegister_v2 ["cuMemHostRegister" 6050 legacy = cuMemHostRegister_v2] => host::register(ptr: DevicePtr, bytes: usize, flags: c_uint);
        cuMemHostUnregister ["cuMemHostUnregister" 4000 legacy = cuMemHostUnregister] => host::unregister(ptr: DevicePtr);

        // Stream-ordered memory.
        cuMemAllocAsync ["cuMemAllocAsync" 11020 legacy = cuMemAllocAsync] => memory::alloc_async(ptr: *mut DevicePtr, bytes: usize, stream: Stream);
        cuMemAllocAsync_ptsz ["cuMemAllocAsync" 11020 ptds = cuMemAllocAsync] => memory::alloc_async(ptr: *mut DevicePtr, bytes: usize, stream: Stream);
        cuMemAllocFromPoolAsync ["cuMemAllocFromPoolAsync" 11020 legacy = cuMemAllocFromPoolAsync] => memory::alloc_from_pool(ptr: *mut DevicePtr, bytes: usize, pool: MemPool, stream: Stream);
        cuMemAllocFromPoolAsync_ptsz ["cuMemAllocFromPoolAsync" 11020 ptds = cuMemAllocFromPoolAsync] => memory::alloc_from_pool(ptr: *mut DevicePtr, bytes: usize, pool: MemPool, stream: Stream);
        cuMemFreeAsync ["cuMemFreeAsync" 11020 legacy = cuMemFreeAsync] => memory::free_async(ptr: DevicePtr, stream: Stream);
        cuMemFreeAsync_ptsz ["cuMemFreeAsync" 11020 ptds = cuMemFreeAsync] => memory::free_async(ptr: DevicePtr, stream: Stream);
        cuMemPoolCreate ["cuMemPoolCreate" 11020 legacy = cuMemPoolCreate] => driver_pool::create(pool: *mut MemPool, props: Opaque);
        cuMemPoolDestroy ["cuMemPoolDestroy" 11020 legacy = cuMemPoolDestroy] => driver_pool::destroy(pool: MemPool);
        cuDeviceGetDefaultMemPool ["cuDeviceGetDefaultMemPool" 11020 legacy = cuDeviceGetDefaultMemPool] => driver_pool::of_device(pool: *mut MemPool, device: Device);
        cuDeviceGetMemPool ["cuDeviceGetMemPool" 11020 legacy = cuDeviceGetMemPool] => driver_pool::current(pool: *mut MemPool, device: Device);
        cuDeviceSetMemPool ["cuDeviceSetMemPool" 11020 legacy = cuDeviceSetMemPool] => driver_pool::choose(device: Device, pool: MemPool);
        cuMemGetDefaultMemPool ["cuMemGetDefaultMemPool" 13000 legacy = cuMemGetDefaultMemPool] => driver_pool::at(pool: *mut MemPool, location: *mut MemLocation, kind: c_int);
        cuMemGetMemPool ["cuMemGetMemPool" 13000 legacy = cuMemGetMemPool] => driver_pool::at(pool: *mut MemPool, location: *mut MemLocation, kind: c_int);
        cuMemSetMemPool ["cuMemSetMemPool" 13000 legacy = cuMemSetMemPool] => driver_pool::choose_at(location: *mut MemLocation, kind: c_int, pool: MemPool);
        cuMemPoolExportPointer ["cuMemPoolExportPointer" 11020 legacy = cuMemPoolExportPointer] => ipc::export_pool_pointer(data: Opaque, ptr: DevicePtr);
        cuMemPoolImportPointer ["cuMemPoolImportPointer" 11020 legacy = cuMemPoolImportPointer] => ipc::import_pool_pointer(ptr: *mut DevicePtr, pool: MemPool, data: Opaque);

        // Virtual memory management.
        cuMemCreate ["cuMemCreate" 10020 legacy = cuMemCreate] => vmm::create(handle: *mut VmmHandle, bytes: usize, prop: Opaque, flags: u64);
        cuMemRelease ["cuMemRelease" 10020 legacy = cuMemRelease] => vmm::release(handle: VmmHandle);
        cuMemRetainAllocationHandle ["cuMemRetainAllocationHandle" 11000 legacy = cuMemRetainAllocationHandle] => vmm::retain(handle: *mut VmmHandle, addr: Opaque);
        cuMemImportFromShareableHandle ["cuMemImportFromShareableHandle" 10020 legacy = cuMemImportFromShareableHandle] => vmm::import(handle: *mut VmmHandle, os_handle: Opaque, kind: c_int);
        cuMulticastCreate ["cuMulticastCreate" 12010 legacy = cuMulticastCreate] => vmm::multicast(handle: *mut VmmHandle, prop: *const MulticastProp);
        cuMemAddressReserve ["cuMemAddressReserve" 10020 legacy = cuMemAddressReserve] => vmm::reserve(ptr: *mut DevicePtr, bytes: usize, alignment: usize, addr: DevicePtr, flags: u64);
        cuMemAddressFree ["cuMemAddressFree" 10020 legacy = cuMemAddressFree] => vmm::unreserve(ptr: DevicePtr, bytes: usize);
        cuMemMap ["cuMemMap" 10020 legacy = cuMemMap] => vmm::map(ptr: DevicePtr, bytes: usize, offset: usize, handle: VmmHandle, flags: u64);
        cuMemUnmap ["cuMemUnmap" 10020 legacy = cuMemUnmap] => vmm::unmap(ptr: DevicePtr, bytes: usize);

        // Arrays.
        cuArrayCreate_v2 ["cuArrayCreate" 3020 legacy = cuArrayCreate_v2] => array::create(array: *mut Array, desc: *const ArrayDescriptor);
        cuArray3DCreate_v2 ["cuArray3DCreate" 3020 legacy = cuArray3DCreate_v2] => array::create_3d(array: *mut Array, desc: *const Array3dDescriptor);
        cuArrayDestroy ["cuArrayDestroy" 2000 legacy = cuArrayDestroy] => array::destroy(array: Array);
        cuMipmappedArrayCreate ["cuMipmappedArrayCreate" 5000 legacy = cuMipmappedArrayCreate] => array::create_mipmapped(array: *mut Array, desc: *const Array3dDescriptor, levels: c_uint);
        cuMipmappedArrayDestroy ["cuMipmappedArrayDestroy" 5000 legacy = cuMipmappedArrayDestroy] => array::destroy(array: Array);

        // Memory of other processes and other APIs.
        cuIpcGetMemHandle ["cuIpcGetMemHandle" 4010 legacy = cuIpcGetMemHandle] => ipc::export(handle: Opaque, ptr: DevicePtr);
        cuIpcOpenMemHandle ["cuIpcOpenMemHandle" 4010 legacy = none] => ipc::open(ptr: *mut DevicePtr, handle: IpcMemHandle, flags: c_uint);
        cuIpcOpenMemHandle_v2 ["cuIpcOpenMemHandle" 11000 legacy = cuIpcOpenMemHandle_v2] => ipc::open(ptr: *mut DevicePtr, handle: IpcMemHandle, flags: c_uint);
        cuIpcCloseMemHandle ["cuIpcCloseMemHandle" 4010 legacy = cuIpcCloseMemHandle] => ipc::close(ptr: DevicePtr);
        cuImportExternalMemory ["cuImportExternalMemory" 10000 legacy = cuImportExternalMemory] => ipc::import_external(memory: *mut ExternalMemory, desc: *const ExternalMemoryDesc);
        cuDestroyExternalMemory ["cuDestroyExternalMemory" 10000 legacy = cuDestroyExternalMemory] => ipc::destroy_external(memory: ExternalMemory);
        cuExternalMemoryGetMappedBuffer ["cuExternalMemoryGetMappedBuffer" 10000 legacy = cuExternalMemoryGetMappedBuffer] => ipc::map_external(ptr: *mut DevicePtr, memory: ExternalMemory, desc: *const ExternalBufferDesc);

        // Events, streams and captures.
        cuEventCreate ["cuEventCreate" 2000 legacy = cuEventCreate] => event::create(event: *mut Opaque, flags: c_uint);
        cuEventDestroy ["cuEventDestroy" 2000 legacy = none] => event::destroy(event: Opaque);
        cuEventDestroy_v2 ["cuEventDestroy" 4000 legacy = cuEventDestroy_v2] => event::destroy(event: Opaque);
        cuStreamCreate ["cuStreamCreate" 2000 legacy = cuStreamCreate] => stream::create(stream: *mut Stream, flags: c_uint);
        cuStreamCreateWithPriority ["cuStreamCreateWithPriority" 5050 legacy = cuStreamCreateWithPriority] => stream::create_with_priority(stream: *mut Stream, flags: c_uint, priority: c_int);
        cuGreenCtxStreamCreate ["cuGreenCtxStreamCreate" 12050 legacy = cuGreenCtxStreamCreate] => green::create_stream(stream: *mut Stream, green: Context, flags: c_uint, priority: c_int);
        cuStreamDestroy ["cuStreamDestroy" 2000 legacy = none] => stream::destroy(stream: Stream);
        cuStreamDestroy_v2 ["cuStreamDestroy" 4000 legacy = cuStreamDestroy_v2] => stream::destroy(stream: Stream);
        cuStreamBeginCapture ["cuStreamBeginCapture" 10000 legacy = none] => capture::begin_v1(stream: Stream);
        cuStreamBeginCapture_ptsz ["cuStreamBeginCapture" 10000 ptds = none] => capture::begin_v1(stream: Stream);
        cuStreamBeginCapture_v2 ["cuStreamBeginCapture" 10010 legacy = cuStreamBeginCapture_v2] => capture::begin(stream: Stream, mode: c_int);
        cuStreamBeginCapture_v2_ptsz ["cuStreamBeginCapture" 10010 ptds = cuStreamBeginCapture_v2] => capture::begin(stream: Stream, mode: c_int);
        cuStreamBeginCaptureToGraph ["cuStreamBeginCaptureToGraph" 12030 legacy = cuStreamBeginCaptureToGraph] => capture::begin_to_graph(stream: Stream, graph: Graph, deps: Opaque, data: Opaque, len: usize, mode: c_int);
        cuStreamBeginCaptureToGraph_ptsz ["cuStreamBeginCaptureToGraph" 12030 ptds = cuStreamBeginCaptureToGraph] => capture::begin_to_graph(stream: Stream, graph: Graph, deps: Opaque, data: Opaque, len: usize, mode: c_int);
        cuStreamEndCapture ["cuStreamEndCapture" 10000 legacy = cuStreamEndCapture] => capture::end(stream: Stream, graph: *mut Graph);
        cuStreamEndCapture_ptsz ["cuStreamEndCapture" 10000 ptds = cuStreamEndCapture] => capture::end(stream: Stream, graph: *mut Graph);
        cuStreamGetCaptureInfo ["cuStreamGetCaptureInfo" 10010 legacy = none] => graph_use::capture_info(stream: Stream, status: *mut c_int, id: *mut u64);
        cuStreamGetCaptureInfo_ptsz ["cuStreamGetCaptureInfo" 10010 ptds = none] => graph_use::capture_info(stream: Stream, status: *mut c_int, id: *mut u64);
        cuStreamGetCaptureInfo_v2 ["cuStreamGetCaptureInfo" 11030 legacy = none] => graph_use::capture_info_v2(stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, len: *mut usize);
        cuStreamGetCaptureInfo_v2_ptsz ["cuStreamGetCaptureInfo" 11030 ptds = none] => graph_use::capture_info_v2(stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, len: *mut usize);
        cuStreamGetCaptureInfo_v3 ["cuStreamGetCaptureInfo" 12030 legacy = cuStreamGetCaptureInfo_v3] => graph_use::capture_info_v3(stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, data: *mut Opaque, len: *mut usize);
        cuStreamGetCaptureInfo_v3_ptsz ["cuStreamGetCaptureInfo" 12030 ptds = cuStreamGetCaptureInfo_v3] => graph_use::capture_info_v3(stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, data: *mut Opaque, len: *mut usize);
        cuStreamBeginRecaptureToGraph ["cuStreamBeginRecaptureToGraph" 13030 legacy = none] => capture::begin_anew(stream: Stream, mode: c_int, graph: Graph, callback: Opaque, data: Opaque);
        cuStreamBeginRecaptureToGraph_ptsz ["cuStreamBeginRecaptureToGraph" 13030 ptds = none] => capture::begin_anew(stream: Stream, mode: c_int, graph: Graph, callback: Opaque, data: Opaque);
        cuStreamBeginCaptureToCig ["cuStreamBeginCaptureToCig" 13010 legacy = none] => capture::begin_to_cig(stream: Stream, params: Opaque);
        cuStreamBeginCaptureToCig_ptsz ["cuStreamBeginCaptureToCig" 13010 ptds = none] => capture::begin_to_cig(stream: Stream, params: Opaque);
        cuStreamEndCaptureToCig ["cuStreamEndCaptureToCig" 13010 legacy = none] => capture::end_to_cig(stream: Stream);
        cuStreamEndCaptureToCig_ptsz ["cuStreamEndCaptureToCig" 13010 ptds = none] => capture::end_to_cig(stream: Stream);
        cuStreamSetAttribute ["cuStreamSetAttribute" 11000 legacy = cuStreamSetAttribute] => stream::set_attribute(stream: Stream, attribute: c_int, value: Opaque);
        cuStreamSetAttribute_ptsz ["cuStreamSetAttribute" 11000 ptds = cuStreamSetAttribute] => stream::set_attribute(stream: Stream, attribute: c_int, value: Opaque);

        // Graphs.
        cuGraphCreate ["cuGraphCreate" 10000 legacy = cuGraphCreate] => graph::create(graph: *mut Graph, flags: c_uint);
        cuGraphClone ["cuGraphClone" 10000 legacy = cuGraphClone] => graph::clone(clone: *mut Graph, original: Graph);
        cuGraphDestroy ["cuGraphDestroy" 10000 legacy = cuGraphDestroy] => graph::destroy(graph: Graph);
        cuGraphInstantiate ["cuGraphInstantiate" 10000 legacy = none] => graph::instantiate_log(exec: *mut GraphExec, graph: Graph, error_node: *mut GraphNode, log: *mut c_char, log_bytes: usize);
        cuGraphInstantiate_v2 ["cuGraphInstantiate" 11000 legacy = none] => graph::instantiate_log(exec: *mut GraphExec, graph: Graph, error_node: *mut GraphNode, log: *mut c_char, log_bytes: usize);
        cuGraphInstantiateWithFlags ["cuGraphInstantiateWithFlags" 11040 legacy = cuGraphInstantiateWithFlags] => graph::instantiate(exec: *mut GraphExec, graph: Graph, flags: u64);
        cuGraphInstantiateWithParams ["cuGraphInstantiateWithParams" 12000 legacy = cuGraphInstantiateWithParams] => graph::instantiate_params(exec: *mut GraphExec, graph: Graph, params: *mut GraphInstantiateParams);
        cuGraphInstantiateWithParams_ptsz ["cuGraphInstantiateWithParams" 12000 ptds = cuGraphInstantiateWithParams] => graph::instantiate_params_ptsz(exec: *mut GraphExec, graph: Graph, params: *mut GraphInstantiateParams);
        cuGraphDestroyNode ["cuGraphDestroyNode" 10000 legacy = cuGraphDestroyNode] => graph_use::destroy_node(node: GraphNode);
        cuGraphGetNodes ["cuGraphGetNodes" 10000 legacy = cuGraphGetNodes] => graph_use::get_nodes(graph: Graph, nodes: *mut GraphNode, len: *mut usize);
        cuGraphAddMemAllocNode ["cuGraphAddMemAllocNode" 11040 legacy = cuGraphAddMemAllocNode] => graph_memory::add_alloc(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque);
        cuGraphAddChildGraphNode ["cuGraphAddChildGraphNode" 10000 legacy = cuGraphAddChildGraphNode] => graph_use::add_child(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, child: Graph);
        cuGraphAddNode ["cuGraphAddNode" 12020 legacy = none] => graph_use::add_node(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque);
        cuGraphAddNode_v2 ["cuGraphAddNode" 12030 legacy = cuGraphAddNode_v2] => graph_use::add_node_v2(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, data: Opaque, len: usize, params: Opaque);
        cuGraphAddNode_v3 ["cuGraphAddNode" 13040 legacy = none] => graph_use::add_node_v2(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, data: Opaque, len: usize, params: Opaque);
        cuGraphKernelNodeSetAttribute ["cuGraphKernelNodeSetAttribute" 11000 legacy = cuGraphKernelNodeSetAttribute] => graph_use::set_attribute(node: GraphNode, attribute: c_int, value: Opaque);
        cuGraphKernelNodeCopyAttributes ["cuGraphKernelNodeCopyAttributes" 11000 legacy = cuGraphKernelNodeCopyAttributes] => graph_use::copy_attributes(to: GraphNode, from: GraphNode);
        cuGraphNodeSetParams ["cuGraphNodeSetParams" 12020 legacy = cuGraphNodeSetParams] => graph_use::node_set_params(node: GraphNode, params: Opaque);
        cuGraphNodeSetParams_v2 ["cuGraphNodeSetParams" 13040 legacy = none] => graph_use::node_set_params(node: GraphNode, params: Opaque);
        cuGraphRetainUserObject ["cuGraphRetainUserObject" 11030 legacy = cuGraphRetainUserObject] => graph_use::retain_user_object(graph: Graph, object: Opaque, count: c_uint, flags: c_uint);

        // Executable graphs.
        cuGraphLaunch ["cuGraphLaunch" 10000 legacy = cuGraphLaunch] => exec::launch(exec: GraphExec, stream: Stream);
        cuGraphLaunch_ptsz ["cuGraphLaunch" 10000 ptds = cuGraphLaunch] => exec::launch_ptsz(exec: GraphExec, stream: Stream);
        cuGraphExecDestroy ["cuGraphExecDestroy" 10000 legacy = cuGraphExecDestroy] => exec::destroy(exec: GraphExec);
        cuGraphExecUpdate ["cuGraphExecUpdate" 10020 legacy = none] => exec::update_v1(exec: GraphExec, graph: Graph, error_node: *mut GraphNode, result: *mut c_int);
        cuGraphExecUpdate_v2 ["cuGraphExecUpdate" 12000 legacy = cuGraphExecUpdate_v2] => exec::update(exec: GraphExec, graph: Graph, info: Opaque);
        cuGraphNodeSetEnabled ["cuGraphNodeSetEnabled" 11060 legacy = cuGraphNodeSetEnabled] => exec_node::set_enabled(exec: GraphExec, node: GraphNode, enabled: c_uint);
        cuGraphExecNodeSetParams ["cuGraphExecNodeSetParams" 12020 legacy = cuGraphExecNodeSetParams] => exec_node::set_any(exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphExecKernelNodeSetParams ["cuGraphExecKernelNodeSetParams" 10010 legacy = none] => exec_node::set_kernel(exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphExecKernelNodeSetParams_v2 ["cuGraphExecKernelNodeSetParams" 12000 legacy = cuGraphExecKernelNodeSetParams_v2] => exec_node::set_kernel_v2(exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphExecMemcpyNodeSetParams ["cuGraphExecMemcpyNodeSetParams" 10020 legacy = cuGraphExecMemcpyNodeSetParams] => exec_node::set_memcpy(exec: GraphExec, node: GraphNode, params: Opaque, ctx: Context);
        cuGraphExecMemsetNodeSetParams ["cuGraphExecMemsetNodeSetParams" 10020 legacy = cuGraphExecMemsetNodeSetParams] => exec_node::set_memset(exec: GraphExec, node: GraphNode, params: Opaque, ctx: Context);
        cuGraphExecHostNodeSetParams ["cuGraphExecHostNodeSetParams" 10020 legacy = cuGraphExecHostNodeSetParams] => exec_node::set_host(exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphExecChildGraphNodeSetParams ["cuGraphExecChildGraphNodeSetParams" 11010 legacy = cuGraphExecChildGraphNodeSetParams] => exec_node::set_child(exec: GraphExec, node: GraphNode, child: Graph);
        cuGraphExecEventRecordNodeSetEvent ["cuGraphExecEventRecordNodeSetEvent" 11010 legacy = cuGraphExecEventRecordNodeSetEvent] => exec_node::set_params(exec: GraphExec, node: GraphNode, event: Opaque);
        cuGraphExecEventWaitNodeSetEvent ["cuGraphExecEventWaitNodeSetEvent" 11010 legacy = cuGraphExecEventWaitNodeSetEvent] => exec_node::set_params(exec: GraphExec, node: GraphNode, event: Opaque);
        cuGraphExecExternalSemaphoresSignalNodeSetParams ["cuGraphExecExternalSemaphoresSignalNodeSetParams" 11020 legacy = cuGraphExecExternalSemaphoresSignalNodeSetParams] => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphExecExternalSemaphoresWaitNodeSetParams ["cuGraphExecExternalSemaphoresWaitNodeSetParams" 11020 legacy = cuGraphExecExternalSemaphoresWaitNodeSetParams] => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphExecBatchMemOpNodeSetParams ["cuGraphExecBatchMemOpNodeSetParams" 11070 legacy = cuGraphExecBatchMemOpNodeSetParams] => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphUpload ["cuGraphUpload" 11010 legacy = cuGraphUpload] => exec::upload(exec: GraphExec, stream: Stream);
        cuGraphUpload_ptsz ["cuGraphUpload" 11010 ptds = cuGraphUpload] => exec::upload_ptsz(exec: GraphExec, stream: Stream);
        cuGraphExecGetFlags ["cuGraphExecGetFlags" 12000 legacy = cuGraphExecGetFlags] => exec::get_flags(exec: GraphExec, flags: *mut u64);
        cuGraphExecGetId ["cuGraphExecGetId" 13010 legacy = none] => exec::get_id(exec: GraphExec, id: *mut c_uint);
        cuGraphNodeGetEnabled ["cuGraphNodeGetEnabled" 11060 legacy = cuGraphNodeGetEnabled] => exec_node::get_enabled(exec: GraphExec, node: GraphNode, enabled: *mut c_uint);

        // Code.
        cuModuleLoad ["cuModuleLoad" 2000 legacy = cuModuleLoad] => code::load_module(module: *mut Opaque, file: Opaque);
        cuModuleLoadData ["cuModuleLoadData" 2000 legacy = cuModuleLoadData] => code::load_module(module: *mut Opaque, image: Opaque);
        cuModuleLoadDataEx ["cuModuleLoadDataEx" 2010 legacy = cuModuleLoadDataEx] => code::load_module_ex(module: *mut Opaque, image: Opaque, options: c_uint, names: Opaque, values: Opaque);
        cuModuleLoadFatBinary ["cuModuleLoadFatBinary" 2000 legacy = cuModuleLoadFatBinary] => code::load_module(module: *mut Opaque, image: Opaque);
        cuLibraryLoadData ["cuLibraryLoadData" 12000 legacy = cuLibraryLoadData] => code::load_library(library: *mut Opaque, code: Opaque, options: Opaque, values: Opaque, len: c_uint, library_options: Opaque, library_values: Opaque, library_len: c_uint);
        cuLibraryLoadFromFile ["cuLibraryLoadFromFile" 12000 legacy = cuLibraryLoadFromFile] => code::load_library(library: *mut Opaque, file: Opaque, options: Opaque, values: Opaque, len: c_uint, library_options: Opaque, library_values: Opaque, library_len: c_uint);
        cuModuleGetFunction ["cuModuleGetFunction" 2000 legacy = cuModuleGetFunction] => code::get_function(function: *mut Opaque, module: Opaque, name: Opaque);
        cuKernelGetFunction ["cuKernelGetFunction" 12000 legacy = cuKernelGetFunction] => code::get_own(function: *mut Opaque, kernel: Opaque);
        cuLibraryGetModule ["cuLibraryGetModule" 12000 legacy = cuLibraryGetModule] => code::get_own(module: *mut Opaque, library: Opaque);
        cuFuncLoad ["cuFuncLoad" 12040 legacy = none] => code::load_function(function: Opaque);
        cuModuleUnload ["cuModuleUnload" 2000 legacy = cuModuleUnload] => graph_use::module_unload(module: Opaque);
        cuLibraryUnload ["cuLibraryUnload" 12000 legacy = cuLibraryUnload] => graph_use::library_unload(library: Opaque);
        cuFuncSetAttribute ["cuFuncSetAttribute" 9000 legacy = cuFuncSetAttribute] => graph_use::set_function_attribute(function: Opaque, attribute: c_int, value: c_int);
        cuKernelSetAttribute ["cuKernelSetAttribute" 12000 legacy = cuKernelSetAttribute] => graph_use::set_kernel_attribute(attribute: c_int, value: c_int, kernel: Opaque, device: Device);

        // Work: kernels and host functions.
        cuLaunch ["cuLaunch" 2000 legacy = cuLaunch] => submit::older_kernel(function: Opaque);
        cuLaunchCooperativeKernel ["cuLaunchCooperativeKernel" 9000 legacy = cuLaunchCooperativeKernel] => submit::cooperative_kernel(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, params: Opaque);
        cuLaunchCooperativeKernel_ptsz ["cuLaunchCooperativeKernel" 9000 ptds = cuLaunchCooperativeKernel] => submit::cooperative_kernel(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, params: Opaque);
        cuLaunchCooperativeKernelMultiDevice ["cuLaunchCooperativeKernelMultiDevice" 9000 legacy = cuLaunchCooperativeKernelMultiDevice] => submit::older_cooperative_kernels(launches: Opaque, len: c_uint, flags: c_uint);
        cuLaunchGrid ["cuLaunchGrid" 2000 legacy = cuLaunchGrid] => submit::older_kernel(function: Opaque, grid_x: c_int, grid_y: c_int);
        cuLaunchGridAsync ["cuLaunchGridAsync" 2000 legacy = cuLaunchGridAsync] => submit::older_kernel(function: Opaque, grid_x: c_int, grid_y: c_int, stream: Stream);
        cuLaunchHostFunc ["cuLaunchHostFunc" 10000 legacy = cuLaunchHostFunc] => submit::outside(stream: Stream, function: Opaque, data: Opaque);
        cuLaunchHostFunc_ptsz ["cuLaunchHostFunc" 10000 ptds = cuLaunchHostFunc] => submit::outside(stream: Stream, function: Opaque, data: Opaque);
        cuLaunchHostFunc_v2 ["cuLaunchHostFunc" 13010 legacy = none] => submit::outside(stream: Stream, function: Opaque, data: Opaque, sync_mode: c_uint);
        cuLaunchHostFunc_v2_ptsz ["cuLaunchHostFunc" 13010 ptds = none] => submit::outside(stream: Stream, function: Opaque, data: Opaque, sync_mode: c_uint);
        cuLaunchKernel ["cuLaunchKernel" 4000 legacy = cuLaunchKernel] => submit::kernel(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, params: Opaque, extra: Opaque);
        cuLaunchKernel_ptsz ["cuLaunchKernel" 7000 ptds = cuLaunchKernel] => submit::kernel(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, params: Opaque, extra: Opaque);
        cuLaunchKernelEx ["cuLaunchKernelEx" 11060 legacy = cuLaunchKernelEx] => submit::kernel_with_attributes(config: *const LaunchConfig, function: Opaque, params: Opaque, extra: Opaque);
        cuLaunchKernelEx_ptsz ["cuLaunchKernelEx" 11060 ptds = cuLaunchKernelEx] => submit::kernel_with_attributes(config: *const LaunchConfig, function: Opaque, params: Opaque, extra: Opaque);
        cuStreamAddCallback ["cuStreamAddCallback" 5000 legacy = cuStreamAddCallback] => submit::outside(stream: Stream, callback: Opaque, data: Opaque, flags: c_uint);
        cuStreamAddCallback_ptsz ["cuStreamAddCallback" 7000 ptds = cuStreamAddCallback] => submit::outside(stream: Stream, callback: Opaque, data: Opaque, flags: c_uint);

        // Work: copies.
        cuMemcpy ["cuMemcpy" 4000 legacy = cuMemcpy] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize);
        cuMemcpy_ptds ["cuMemcpy" 7000 ptds = cuMemcpy] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize);
        cuMemcpy2D ["cuMemcpy2D" 2000 legacy = none] => submit::work(copy: Opaque);
        cuMemcpy2D_v2 ["cuMemcpy2D" 3020 legacy = cuMemcpy2D_v2] => submit::copy_2d(copy: Opaque);
        cuMemcpy2D_v2_ptds ["cuMemcpy2D" 7000 ptds = cuMemcpy2D_v2] => submit::copy_2d(copy: Opaque);
        cuMemcpy2DAsync ["cuMemcpy2DAsync" 2000 legacy = none] => submit::work(copy: Opaque, stream: Stream);
        cuMemcpy2DAsync_v2 ["cuMemcpy2DAsync" 3020 legacy = cuMemcpy2DAsync_v2] => submit::copy_2d(copy: Opaque, stream: Stream);
        cuMemcpy2DAsync_v2_ptsz ["cuMemcpy2DAsync" 7000 ptds = cuMemcpy2DAsync_v2] => submit::copy_2d(copy: Opaque, stream: Stream);
        cuMemcpy2DUnaligned ["cuMemcpy2DUnaligned" 2000 legacy = none] => submit::work(copy: Opaque);
        cuMemcpy2DUnaligned_v2 ["cuMemcpy2DUnaligned" 3020 legacy = cuMemcpy2DUnaligned_v2] => submit::copy_2d(copy: Opaque);
        cuMemcpy2DUnaligned_v2_ptds ["cuMemcpy2DUnaligned" 7000 ptds = cuMemcpy2DUnaligned_v2] => submit::copy_2d(copy: Opaque);
        cuMemcpy3D ["cuMemcpy3D" 2000 legacy = none] => submit::work(copy: Opaque);
        cuMemcpy3D_v2 ["cuMemcpy3D" 3020 legacy = cuMemcpy3D_v2] => submit::copy_3d(copy: Opaque);
        cuMemcpy3D_v2_ptds ["cuMemcpy3D" 7000 ptds = cuMemcpy3D_v2] => submit::copy_3d(copy: Opaque);
        cuMemcpy3DAsync ["cuMemcpy3DAsync" 2000 legacy = none] => submit::work(copy: Opaque, stream: Stream);
        cuMemcpy3DAsync_v2 ["cuMemcpy3DAsync" 3020 legacy = cuMemcpy3DAsync_v2] => submit::copy_3d(copy: Opaque, stream: Stream);
        cuMemcpy3DAsync_v2_ptsz ["cuMemcpy3DAsync" 7000 ptds = cuMemcpy3DAsync_v2] => submit::copy_3d(copy: Opaque, stream: Stream);
        cuMemcpy3DBatchAsync ["cuMemcpy3DBatchAsync" 12080 legacy = none] => submit::work(len: usize, ops: Opaque, failed: Opaque, flags: u64, stream: Stream);
        cuMemcpy3DBatchAsync_ptsz ["cuMemcpy3DBatchAsync" 12080 ptds = none] => submit::work(len: usize, ops: Opaque, failed: Opaque, flags: u64, stream: Stream);
        cuMemcpy3DBatchAsync_v2 ["cuMemcpy3DBatchAsync" 13000 legacy = cuMemcpy3DBatchAsync_v2] => submit::work(len: usize, ops: Opaque, flags: u64, stream: Stream);
        cuMemcpy3DBatchAsync_v2_ptsz ["cuMemcpy3DBatchAsync" 13000 ptds = cuMemcpy3DBatchAsync_v2] => submit::work(len: usize, ops: Opaque, flags: u64, stream: Stream);
        cuMemcpy3DPeer ["cuMemcpy3DPeer" 4000 legacy = cuMemcpy3DPeer] => submit::copy_3d(copy: Opaque);
        cuMemcpy3DPeer_ptds ["cuMemcpy3DPeer" 7000 ptds = cuMemcpy3DPeer] => submit::copy_3d(copy: Opaque);
        cuMemcpy3DPeerAsync ["cuMemcpy3DPeerAsync" 4000 legacy = cuMemcpy3DPeerAsync] => submit::copy_3d(copy: Opaque, stream: Stream);
        cuMemcpy3DPeerAsync_ptsz ["cuMemcpy3DPeerAsync" 7000 ptds = cuMemcpy3DPeerAsync] => submit::copy_3d(copy: Opaque, stream: Stream);
        cuMemcpy3DWithAttributesAsync ["cuMemcpy3DWithAttributesAsync" 13020 legacy = none] => submit::work(op: Opaque, flags: u64, stream: Stream);
        cuMemcpy3DWithAttributesAsync_ptsz ["cuMemcpy3DWithAttributesAsync" 13020 ptds = none] => submit::work(op: Opaque, flags: u64, stream: Stream);
        cuMemcpyAsync ["cuMemcpyAsync" 4000 legacy = cuMemcpyAsync] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize, stream: Stream);
        cuMemcpyAsync_ptsz ["cuMemcpyAsync" 7000 ptds = cuMemcpyAsync] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize, stream: Stream);
        cuMemcpyAtoA ["cuMemcpyAtoA" 2000 legacy = none] => submit::work(dst: Array, dst_offset: c_uint, src: Array, src_offset: c_uint, bytes: c_uint);
        cuMemcpyAtoA_v2 ["cuMemcpyAtoA" 3020 legacy = cuMemcpyAtoA_v2] => submit::work(dst: Array, dst_offset: usize, src: Array, src_offset: usize, bytes: usize);
        cuMemcpyAtoA_v2_ptds ["cuMemcpyAtoA" 7000 ptds = cuMemcpyAtoA_v2] => submit::work(dst: Array, dst_offset: usize, src: Array, src_offset: usize, bytes: usize);
        cuMemcpyAtoD ["cuMemcpyAtoD" 2000 legacy = none] => submit::work(dst: c_uint, src: Array, src_offset: c_uint, bytes: c_uint);
        cuMemcpyAtoD_v2 ["cuMemcpyAtoD" 3020 legacy = cuMemcpyAtoD_v2] => submit::work(dst: DevicePtr, src: Array, src_offset: usize, bytes: usize);
        cuMemcpyAtoD_v2_ptds ["cuMemcpyAtoD" 7000 ptds = cuMemcpyAtoD_v2] => submit::work(dst: DevicePtr, src: Array, src_offset: usize, bytes: usize);
        cuMemcpyAtoH ["cuMemcpyAtoH" 2000 legacy = none] => submit::work(dst: Opaque, src: Array, src_offset: c_uint, bytes: c_uint);
        cuMemcpyAtoH_v2 ["cuMemcpyAtoH" 3020 legacy = cuMemcpyAtoH_v2] => submit::work(dst: Opaque, src: Array, src_offset: usize, bytes: usize);
        cuMemcpyAtoH_v2_ptds ["cuMemcpyAtoH" 7000 ptds = cuMemcpyAtoH_v2] => submit::work(dst: Opaque, src: Array, src_offset: usize, bytes: usize);
        cuMemcpyAtoHAsync ["cuMemcpyAtoHAsync" 2000 legacy = none] => submit::work(dst: Opaque, src: Array, src_offset: c_uint, bytes: c_uint, stream: Stream);
        cuMemcpyAtoHAsync_v2 ["cuMemcpyAtoHAsync" 3020 legacy = cuMemcpyAtoHAsync_v2] => submit::work(dst: Opaque, src: Array, src_offset: usize, bytes: usize, stream: Stream);
        cuMemcpyAtoHAsync_v2_ptsz ["cuMemcpyAtoHAsync" 7000 ptds = cuMemcpyAtoHAsync_v2] => submit::work(dst: Opaque, src: Array, src_offset: usize, bytes: usize, stream: Stream);
        cuMemcpyBatchAsync ["cuMemcpyBatchAsync" 12080 legacy = none] => submit::work(dsts: Opaque, srcs: Opaque, sizes: Opaque, len: usize, attributes: Opaque, indices: Opaque, attributes_len: usize, failed: Opaque, stream: Stream);
        cuMemcpyBatchAsync_ptsz ["cuMemcpyBatchAsync" 12080 ptds = none] => submit::work(dsts: Opaque, srcs: Opaque, sizes: Opaque, len: usize, attributes: Opaque, indices: Opaque, attributes_len: usize, failed: Opaque, stream: Stream);
        cuMemcpyBatchAsync_v2 ["cuMemcpyBatchAsync" 13000 legacy = cuMemcpyBatchAsync_v2] => submit::work(dsts: Opaque, srcs: Opaque, sizes: Opaque, len: usize, attributes: Opaque, indices: Opaque, attributes_len: usize, stream: Stream);
        cuMemcpyBatchAsync_v2_ptsz ["cuMemcpyBatchAsync" 13000 ptds = cuMemcpyBatchAsync_v2] => submit::work(dsts: Opaque, srcs: Opaque, sizes: Opaque, len: usize, attributes: Opaque, indices: Opaque, attributes_len: usize, stream: Stream);
        cuMemcpyDtoA ["cuMemcpyDtoA" 2000 legacy = none] => submit::work(dst: Array, dst_offset: c_uint, src: c_uint, bytes: c_uint);
        cuMemcpyDtoA_v2 ["cuMemcpyDtoA" 3020 legacy = cuMemcpyDtoA_v2] => submit::work(dst: Array, dst_offset: usize, src: DevicePtr, bytes: usize);
        cuMemcpyDtoA_v2_ptds ["cuMemcpyDtoA" 7000 ptds = cuMemcpyDtoA_v2] => submit::work(dst: Array, dst_offset: usize, src: DevicePtr, bytes: usize);
        cuMemcpyDtoD ["cuMemcpyDtoD" 2000 legacy = none] => submit::work(dst: c_uint, src: c_uint, bytes: c_uint);
        cuMemcpyDtoD_v2 ["cuMemcpyDtoD" 3020 legacy = cuMemcpyDtoD_v2] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize);
        cuMemcpyDtoD_v2_ptds ["cuMemcpyDtoD" 7000 ptds = cuMemcpyDtoD_v2] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize);
        cuMemcpyDtoDAsync ["cuMemcpyDtoDAsync" 3000 legacy = none] => submit::work(dst: c_uint, src: c_uint, bytes: c_uint, stream: Stream);
        cuMemcpyDtoDAsync_v2 ["cuMemcpyDtoDAsync" 3020 legacy = cuMemcpyDtoDAsync_v2] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize, stream: Stream);
        cuMemcpyDtoDAsync_v2_ptsz ["cuMemcpyDtoDAsync" 7000 ptds = cuMemcpyDtoDAsync_v2] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize, stream: Stream);
        cuMemcpyDtoH ["cuMemcpyDtoH" 2000 legacy = none] => submit::work(dst: Opaque, src: c_uint, bytes: c_uint);
        cuMemcpyDtoH_v2 ["cuMemcpyDtoH" 3020 legacy = cuMemcpyDtoH_v2] => submit::work(dst: Opaque, src: DevicePtr, bytes: usize);
        cuMemcpyDtoH_v2_ptds ["cuMemcpyDtoH" 7000 ptds = cuMemcpyDtoH_v2] => submit::work(dst: Opaque, src: DevicePtr, bytes: usize);
        cuMemcpyDtoHAsync ["cuMemcpyDtoHAsync" 2000 legacy = none] => submit::work(dst: Opaque, src: c_uint, bytes: c_uint, stream: Stream);
        cuMemcpyDtoHAsync_v2 ["cuMemcpyDtoHAsync" 3020 legacy = cuMemcpyDtoHAsync_v2] => submit::work(dst: Opaque, src: DevicePtr, bytes: usize, stream: Stream);
        cuMemcpyDtoHAsync_v2_ptsz ["cuMemcpyDtoHAsync" 7000 ptds = cuMemcpyDtoHAsync_v2] => submit::work(dst: Opaque, src: DevicePtr, bytes: usize, stream: Stream);
        cuMemcpyHtoA ["cuMemcpyHtoA" 2000 legacy = none] => submit::work(dst: Array, dst_offset: c_uint, src: Opaque, bytes: c_uint);
        cuMemcpyHtoA_v2 ["cuMemcpyHtoA" 3020 legacy = cuMemcpyHtoA_v2] => submit::work(dst: Array, dst_offset: usize, src: Opaque, bytes: usize);
        cuMemcpyHtoA_v2_ptds ["cuMemcpyHtoA" 7000 ptds = cuMemcpyHtoA_v2] => submit::work(dst: Array, dst_offset: usize, src: Opaque, bytes: usize);
        cuMemcpyHtoAAsync ["cuMemcpyHtoAAsync" 2000 legacy = none] => submit::work(dst: Array, dst_offset: c_uint, src: Opaque, bytes: c_uint, stream: Stream);
        cuMemcpyHtoAAsync_v2 ["cuMemcpyHtoAAsync" 3020 legacy = cuMemcpyHtoAAsync_v2] => submit::work(dst: Array, dst_offset: usize, src: Opaque, bytes: usize, stream: Stream);
        cuMemcpyHtoAAsync_v2_ptsz ["cuMemcpyHtoAAsync" 7000 ptds = cuMemcpyHtoAAsync_v2] => submit::work(dst: Array, dst_offset: usize, src: Opaque, bytes: usize, stream: Stream);
        cuMemcpyHtoD ["cuMemcpyHtoD" 2000 legacy = none] => submit::work(dst: c_uint, src: Opaque, bytes: c_uint);
        cuMemcpyHtoD_v2 ["cuMemcpyHtoD" 3020 legacy = cuMemcpyHtoD_v2] => submit::work(dst: DevicePtr, src: Opaque, bytes: usize);
        cuMemcpyHtoD_v2_ptds ["cuMemcpyHtoD" 7000 ptds = cuMemcpyHtoD_v2] => submit::work(dst: DevicePtr, src: Opaque, bytes: usize);
        cuMemcpyHtoDAsync ["cuMemcpyHtoDAsync" 2000 legacy = none] => submit::work(dst: c_uint, src: Opaque, bytes: c_uint, stream: Stream);
        cuMemcpyHtoDAsync_v2 ["cuMemcpyHtoDAsync" 3020 legacy = cuMemcpyHtoDAsync_v2] => submit::work(dst: DevicePtr, src: Opaque, bytes: usize, stream: Stream);
        cuMemcpyHtoDAsync_v2_ptsz ["cuMemcpyHtoDAsync" 7000 ptds = cuMemcpyHtoDAsync_v2] => submit::work(dst: DevicePtr, src: Opaque, bytes: usize, stream: Stream);
        cuMemcpyPeer ["cuMemcpyPeer" 4000 legacy = cuMemcpyPeer] => submit::work(dst: DevicePtr, dst_ctx: Context, src: DevicePtr, src_ctx: Context, bytes: usize);
        cuMemcpyPeer_ptds ["cuMemcpyPeer" 7000 ptds = cuMemcpyPeer] => submit::work(dst: DevicePtr, dst_ctx: Context, src: DevicePtr, src_ctx: Context, bytes: usize);
        cuMemcpyPeerAsync ["cuMemcpyPeerAsync" 4000 legacy = cuMemcpyPeerAsync] => submit::work(dst: DevicePtr, dst_ctx: Context, src: DevicePtr, src_ctx: Context, bytes: usize, stream: Stream);
        cuMemcpyPeerAsync_ptsz ["cuMemcpyPeerAsync" 7000 ptds = cuMemcpyPeerAsync] => submit::work(dst: DevicePtr, dst_ctx: Context, src: DevicePtr, src_ctx: Context, bytes: usize, stream: Stream);
        cuMemcpyWithAttributesAsync ["cuMemcpyWithAttributesAsync" 13020 legacy = none] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize, attributes: Opaque, stream: Stream);
        cuMemcpyWithAttributesAsync_ptsz ["cuMemcpyWithAttributesAsync" 13020 ptds = none] => submit::work(dst: DevicePtr, src: DevicePtr, bytes: usize, attributes: Opaque, stream: Stream);
        cuFabricCpyBatchAsync ["cuFabricCpyBatchAsync" 13050 legacy = none] => submit::work(len: usize, ops: Opaque, flags: u64, stream: Stream);
        cuFabricCpyBatchAsync_ptsz ["cuFabricCpyBatchAsync" 13050 ptds = none] => submit::work(len: usize, ops: Opaque, flags: u64, stream: Stream);

        // Work: fills.
        cuMemsetD16 ["cuMemsetD16" 2000 legacy = none] => submit::work(dst: c_uint, value: u16, len: c_uint);
        cuMemsetD16_v2 ["cuMemsetD16" 3020 legacy = cuMemsetD16_v2] => submit::work(dst: DevicePtr, value: u16, len: usize);
        cuMemsetD16_v2_ptds ["cuMemsetD16" 7000 ptds = cuMemsetD16_v2] => submit::work(dst: DevicePtr, value: u16, len: usize);
        cuMemsetD16Async ["cuMemsetD16Async" 3020 legacy = cuMemsetD16Async] => submit::work(dst: DevicePtr, value: u16, len: usize, stream: Stream);
        cuMemsetD16Async_ptsz ["cuMemsetD16Async" 7000 ptds = cuMemsetD16Async] => submit::work(dst: DevicePtr, value: u16, len: usize, stream: Stream);
        cuMemsetD2D16 ["cuMemsetD2D16" 2000 legacy = none] => submit::work(dst: c_uint, pitch: c_uint, value: u16, width: c_uint, height: c_uint);
        cuMemsetD2D16_v2 ["cuMemsetD2D16" 3020 legacy = cuMemsetD2D16_v2] => submit::work(dst: DevicePtr, pitch: usize, value: u16, width: usize, height: usize);
        cuMemsetD2D16_v2_ptds ["cuMemsetD2D16" 7000 ptds = cuMemsetD2D16_v2] => submit::work(dst: DevicePtr, pitch: usize, value: u16, width: usize, height: usize);
        cuMemsetD2D16Async ["cuMemsetD2D16Async" 3020 legacy = cuMemsetD2D16Async] => submit::work(dst: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Stream);
        cuMemsetD2D16Async_ptsz ["cuMemsetD2D16Async" 7000 ptds = cuMemsetD2D16Async] => submit::work(dst: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Stream);
        cuMemsetD2D32 ["cuMemsetD2D32" 2000 legacy = none] => submit::work(dst: c_uint, pitch: c_uint, value: c_uint, width: c_uint, height: c_uint);
        cuMemsetD2D32_v2 ["cuMemsetD2D32" 3020 legacy = cuMemsetD2D32_v2] => submit::work(dst: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize);
        cuMemsetD2D32_v2_ptds ["cuMemsetD2D32" 7000 ptds = cuMemsetD2D32_v2] => submit::work(dst: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize);
        cuMemsetD2D32Async ["cuMemsetD2D32Async" 3020 legacy = cuMemsetD2D32Async] => submit::work(dst: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream);
        cuMemsetD2D32Async_ptsz ["cuMemsetD2D32Async" 7000 ptds = cuMemsetD2D32Async] => submit::work(dst: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream);
        cuMemsetD2D8 ["cuMemsetD2D8" 2000 legacy = none] => submit::work(dst: c_uint, pitch: c_uint, value: u8, width: c_uint, height: c_uint);
        cuMemsetD2D8_v2 ["cuMemsetD2D8" 3020 legacy = cuMemsetD2D8_v2] => submit::work(dst: DevicePtr, pitch: usize, value: u8, width: usize, height: usize);
        cuMemsetD2D8_v2_ptds ["cuMemsetD2D8" 7000 ptds = cuMemsetD2D8_v2] => submit::work(dst: DevicePtr, pitch: usize, value: u8, width: usize, height: usize);
        cuMemsetD2D8Async ["cuMemsetD2D8Async" 3020 legacy = cuMemsetD2D8Async] => submit::work(dst: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Stream);
        cuMemsetD2D8Async_ptsz ["cuMemsetD2D8Async" 7000 ptds = cuMemsetD2D8Async] => submit::work(dst: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Stream);
        cuMemsetD32 ["cuMemsetD32" 2000 legacy = none] => submit::work(dst: c_uint, value: c_uint, len: c_uint);
        cuMemsetD32_v2 ["cuMemsetD32" 3020 legacy = cuMemsetD32_v2] => submit::work(dst: DevicePtr, value: c_uint, len: usize);
        cuMemsetD32_v2_ptds ["cuMemsetD32" 7000 ptds = cuMemsetD32_v2] => submit::work(dst: DevicePtr, value: c_uint, len: usize);
        cuMemsetD32Async ["cuMemsetD32Async" 3020 legacy = cuMemsetD32Async] => submit::work(dst: DevicePtr, value: c_uint, len: usize, stream: Stream);
        cuMemsetD32Async_ptsz ["cuMemsetD32Async" 7000 ptds = cuMemsetD32Async] => submit::work(dst: DevicePtr, value: c_uint, len: usize, stream: Stream);
        cuMemsetD8 ["cuMemsetD8" 2000 legacy = none] => submit::work(dst: c_uint, value: u8, len: c_uint);
        cuMemsetD8_v2 ["cuMemsetD8" 3020 legacy = cuMemsetD8_v2] => submit::work(dst: DevicePtr, value: u8, len: usize);
        cuMemsetD8_v2_ptds ["cuMemsetD8" 7000 ptds = cuMemsetD8_v2] => submit::work(dst: DevicePtr, value: u8, len: usize);
        cuMemsetD8Async ["cuMemsetD8Async" 3020 legacy = cuMemsetD8Async] => submit::work(dst: DevicePtr, value: u8, len: usize, stream: Stream);
        cuMemsetD8Async_ptsz ["cuMemsetD8Async" 7000 ptds = cuMemsetD8Async] => submit::work(dst: DevicePtr, value: u8, len: usize, stream: Stream);

        // Work: managed and mapped memory, decompression.
        cuMemBatchDecompressAsync ["cuMemBatchDecompressAsync" 12060 legacy = cuMemBatchDecompressAsync] => submit::work(params: Opaque, len: usize, flags: c_uint, failed: Opaque, stream: Stream);
        cuMemBatchDecompressAsync_ptsz ["cuMemBatchDecompressAsync" 12060 ptds = cuMemBatchDecompressAsync] => submit::work(params: Opaque, len: usize, flags: c_uint, failed: Opaque, stream: Stream);
        cuMemDiscardAndPrefetchBatchAsync ["cuMemDiscardAndPrefetchBatchAsync" 13000 legacy = cuMemDiscardAndPrefetchBatchAsync] => submit::work(ptrs: Opaque, sizes: Opaque, len: usize, locations: Opaque, indices: Opaque, locations_len: usize, flags: u64, stream: Stream);
        cuMemDiscardAndPrefetchBatchAsync_ptsz ["cuMemDiscardAndPrefetchBatchAsync" 13000 ptds = cuMemDiscardAndPrefetchBatchAsync] => submit::work(ptrs: Opaque, sizes: Opaque, len: usize, locations: Opaque, indices: Opaque, locations_len: usize, flags: u64, stream: Stream);
        cuMemDiscardBatchAsync ["cuMemDiscardBatchAsync" 13000 legacy = cuMemDiscardBatchAsync] => submit::work(ptrs: Opaque, sizes: Opaque, len: usize, flags: u64, stream: Stream);
        cuMemDiscardBatchAsync_ptsz ["cuMemDiscardBatchAsync" 13000 ptds = cuMemDiscardBatchAsync] => submit::work(ptrs: Opaque, sizes: Opaque, len: usize, flags: u64, stream: Stream);
        cuMemMapArrayAsync ["cuMemMapArrayAsync" 11010 legacy = cuMemMapArrayAsync] => submit::work(maps: Opaque, len: c_uint, stream: Stream);
        cuMemMapArrayAsync_ptsz ["cuMemMapArrayAsync" 11010 ptds = cuMemMapArrayAsync] => submit::work(maps: Opaque, len: c_uint, stream: Stream);
        cuMemPrefetchAsync ["cuMemPrefetchAsync" 8000 legacy = none] => submit::work(ptr: DevicePtr, len: usize, dst: Device, stream: Stream);
        cuMemPrefetchAsync_ptsz ["cuMemPrefetchAsync" 8000 ptds = none] => submit::work(ptr: DevicePtr, len: usize, dst: Device, stream: Stream);
        cuMemPrefetchAsync_v2 ["cuMemPrefetchAsync" 12020 legacy = cuMemPrefetchAsync_v2] => submit::work(ptr: DevicePtr, len: usize, location: MemLocation, flags: c_uint, stream: Stream);
        cuMemPrefetchAsync_v2_ptsz ["cuMemPrefetchAsync" 12020 ptds = cuMemPrefetchAsync_v2] => submit::work(ptr: DevicePtr, len: usize, location: MemLocation, flags: c_uint, stream: Stream);
        cuMemPrefetchBatchAsync ["cuMemPrefetchBatchAsync" 13000 legacy = cuMemPrefetchBatchAsync] => submit::work(ptrs: Opaque, sizes: Opaque, len: usize, locations: Opaque, indices: Opaque, locations_len: usize, flags: u64, stream: Stream);
        cuMemPrefetchBatchAsync_ptsz ["cuMemPrefetchBatchAsync" 13000 ptds = cuMemPrefetchBatchAsync] => submit::work(ptrs: Opaque, sizes: Opaque, len: usize, locations: Opaque, indices: Opaque, locations_len: usize, flags: u64, stream: Stream);
        cuStreamAttachMemAsync ["cuStreamAttachMemAsync" 6000 legacy = cuStreamAttachMemAsync] => submit::work(stream: Stream, ptr: DevicePtr, bytes: usize, flags: c_uint);
        cuStreamAttachMemAsync_ptsz ["cuStreamAttachMemAsync" 7000 ptds = cuStreamAttachMemAsync] => submit::work(stream: Stream, ptr: DevicePtr, bytes: usize, flags: c_uint);

        // Work: values, events and semaphores to write and to wait for.
        cuCtxRecordEvent ["cuCtxRecordEvent" 12050 legacy = cuCtxRecordEvent] => submit::work(ctx: Context, event: Opaque);
        cuCtxWaitEvent ["cuCtxWaitEvent" 12050 legacy = cuCtxWaitEvent] => submit::work(ctx: Context, event: Opaque);
        cuEventRecord ["cuEventRecord" 2000 legacy = cuEventRecord] => submit::work(event: Opaque, stream: Stream);
        cuEventRecord_ptsz ["cuEventRecord" 7000 ptds = cuEventRecord] => submit::work(event: Opaque, stream: Stream);
        cuEventRecordWithFlags ["cuEventRecordWithFlags" 11010 legacy = cuEventRecordWithFlags] => submit::work(event: Opaque, stream: Stream, flags: c_uint);
        cuEventRecordWithFlags_ptsz ["cuEventRecordWithFlags" 11010 ptds = cuEventRecordWithFlags] => submit::work(event: Opaque, stream: Stream, flags: c_uint);
        cuGreenCtxRecordEvent ["cuGreenCtxRecordEvent" 12040 legacy = cuGreenCtxRecordEvent] => submit::work(ctx: Context, event: Opaque);
        cuGreenCtxWaitEvent ["cuGreenCtxWaitEvent" 12040 legacy = cuGreenCtxWaitEvent] => submit::work(ctx: Context, event: Opaque);
        cuSignalExternalSemaphoresAsync ["cuSignalExternalSemaphoresAsync" 10000 legacy = cuSignalExternalSemaphoresAsync] => submit::work(semaphores: Opaque, params: Opaque, len: c_uint, stream: Stream);
        cuSignalExternalSemaphoresAsync_ptsz ["cuSignalExternalSemaphoresAsync" 10000 ptds = cuSignalExternalSemaphoresAsync] => submit::work(semaphores: Opaque, params: Opaque, len: c_uint, stream: Stream);
        cuStreamBatchMemOp ["cuStreamBatchMemOp" 8000 legacy = none] => submit::outside(stream: Stream, len: c_uint, params: Opaque, flags: c_uint);
        cuStreamBatchMemOp_ptsz ["cuStreamBatchMemOp" 8000 ptds = none] => submit::outside(stream: Stream, len: c_uint, params: Opaque, flags: c_uint);
        cuStreamBatchMemOp_v2 ["cuStreamBatchMemOp" 11070 legacy = cuStreamBatchMemOp_v2] => submit::outside(stream: Stream, len: c_uint, params: Opaque, flags: c_uint);
        cuStreamBatchMemOp_v2_ptsz ["cuStreamBatchMemOp" 11070 ptds = cuStreamBatchMemOp_v2] => submit::outside(stream: Stream, len: c_uint, params: Opaque, flags: c_uint);
        cuStreamWaitEvent ["cuStreamWaitEvent" 3020 legacy = cuStreamWaitEvent] => capture::wait_event(stream: Stream, event: Opaque, flags: c_uint);
        cuStreamWaitEvent_ptsz ["cuStreamWaitEvent" 7000 ptds = cuStreamWaitEvent] => capture::wait_event(stream: Stream, event: Opaque, flags: c_uint);
        cuStreamWaitValue32 ["cuStreamWaitValue32" 8000 legacy = none] => submit::outside(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWaitValue32_ptsz ["cuStreamWaitValue32" 8000 ptds = none] => submit::outside(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWaitValue32_v2 ["cuStreamWaitValue32" 11070 legacy = cuStreamWaitValue32_v2] => submit::outside(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWaitValue32_v2_ptsz ["cuStreamWaitValue32" 11070 ptds = cuStreamWaitValue32_v2] => submit::outside(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWaitValue64 ["cuStreamWaitValue64" 9000 legacy = none] => submit::outside(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuStreamWaitValue64_ptsz ["cuStreamWaitValue64" 9000 ptds = none] => submit::outside(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuStreamWaitValue64_v2 ["cuStreamWaitValue64" 11070 legacy = cuStreamWaitValue64_v2] => submit::outside(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuStreamWaitValue64_v2_ptsz ["cuStreamWaitValue64" 11070 ptds = cuStreamWaitValue64_v2] => submit::outside(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue32 ["cuStreamWriteValue32" 8000 legacy = none] => submit::work(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWriteValue32_ptsz ["cuStreamWriteValue32" 8000 ptds = none] => submit::work(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWriteValue32_v2 ["cuStreamWriteValue32" 11070 legacy = cuStreamWriteValue32_v2] => submit::work(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWriteValue32_v2_ptsz ["cuStreamWriteValue32" 11070 ptds = cuStreamWriteValue32_v2] => submit::work(stream: Stream, addr: DevicePtr, value: c_uint, flags: c_uint);
        cuStreamWriteValue64 ["cuStreamWriteValue64" 9000 legacy = none] => submit::work(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue64_ptsz ["cuStreamWriteValue64" 9000 ptds = none] => submit::work(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue64_v2 ["cuStreamWriteValue64" 11070 legacy = cuStreamWriteValue64_v2] => submit::work(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue64_v2_ptsz ["cuStreamWriteValue64" 11070 ptds = cuStreamWriteValue64_v2] => submit::work(stream: Stream, addr: DevicePtr, value: u64, flags: c_uint);
        cuWaitExternalSemaphoresAsync ["cuWaitExternalSemaphoresAsync" 10000 legacy = cuWaitExternalSemaphoresAsync] => submit::outside(semaphores: Opaque, params: Opaque, len: c_uint, stream: Stream);
        cuWaitExternalSemaphoresAsync_ptsz ["cuWaitExternalSemaphoresAsync" 10000 ptds = cuWaitExternalSemaphoresAsync] => submit::outside(semaphores: Opaque, params: Opaque, len: c_uint, stream: Stream);

        // Work: objects of graphics APIs.
        cuEGLStreamConsumerAcquireFrame ["cuEGLStreamConsumerAcquireFrame" 7000 legacy = none] => submit::work(conn: Opaque, resource: Opaque, streams: Opaque, timeout: c_uint);
        cuEGLStreamConsumerReleaseFrame ["cuEGLStreamConsumerReleaseFrame" 7000 legacy = none] => submit::work(conn: Opaque, resource: Opaque, streams: Opaque);
        cuEGLStreamProducerPresentFrame ["cuEGLStreamProducerPresentFrame" 7000 legacy = none] => submit::work(conn: Opaque, frame: EglFrame, streams: Opaque);
        cuEGLStreamProducerReturnFrame ["cuEGLStreamProducerReturnFrame" 7000 legacy = none] => submit::work(conn: Opaque, frame: Opaque, streams: Opaque);
        cuGLMapBufferObject ["cuGLMapBufferObject" 2000 legacy = none] => submit::work(ptr: Opaque, bytes: Opaque, buffer: c_uint);
        cuGLMapBufferObject_v2 ["cuGLMapBufferObject" 3020 legacy = none] => submit::work(ptr: Opaque, bytes: Opaque, buffer: c_uint);
        cuGLMapBufferObject_v2_ptds ["cuGLMapBufferObject" 7000 ptds = none] => submit::work(ptr: Opaque, bytes: Opaque, buffer: c_uint);
        cuGLMapBufferObjectAsync ["cuGLMapBufferObjectAsync" 2030 legacy = none] => submit::work(ptr: Opaque, bytes: Opaque, buffer: c_uint, stream: Stream);
        cuGLMapBufferObjectAsync_v2 ["cuGLMapBufferObjectAsync" 3020 legacy = none] => submit::work(ptr: Opaque, bytes: Opaque, buffer: c_uint, stream: Stream);
        cuGLMapBufferObjectAsync_v2_ptsz ["cuGLMapBufferObjectAsync" 7000 ptds = none] => submit::work(ptr: Opaque, bytes: Opaque, buffer: c_uint, stream: Stream);
        cuGLUnmapBufferObject ["cuGLUnmapBufferObject" 2000 legacy = none] => submit::work(buffer: c_uint);
        cuGLUnmapBufferObjectAsync ["cuGLUnmapBufferObjectAsync" 2030 legacy = none] => submit::work(buffer: c_uint, stream: Stream);
        cuGraphicsMapResources ["cuGraphicsMapResources" 3000 legacy = cuGraphicsMapResources] => submit::work(len: c_uint, resources: Opaque, stream: Stream);
        cuGraphicsMapResources_ptsz ["cuGraphicsMapResources" 7000 ptds = cuGraphicsMapResources] => submit::work(len: c_uint, resources: Opaque, stream: Stream);
        cuGraphicsUnmapResources ["cuGraphicsUnmapResources" 3000 legacy = cuGraphicsUnmapResources] => submit::work(len: c_uint, resources: Opaque, stream: Stream);
        cuGraphicsUnmapResources_ptsz ["cuGraphicsUnmapResources" 7000 ptds = cuGraphicsUnmapResources] => submit::work(len: c_uint, resources: Opaque, stream: Stream);

        // Waiting.
        cuCtxSynchronize ["cuCtxSynchronize" 2000 legacy = cuCtxSynchronize] => sync::waited();
        cuCtxSynchronize_v2 ["cuCtxSynchronize" 13000 legacy = cuCtxSynchronize_v2] => sync::waited(ctx: Context);
        cuStreamSynchronize ["cuStreamSynchronize" 2000 legacy = cuStreamSynchronize] => sync::waited(stream: Stream);
        cuStreamSynchronize_ptsz ["cuStreamSynchronize" 7000 ptds = cuStreamSynchronize] => sync::waited(stream: Stream);
        cuStreamQuery ["cuStreamQuery" 2000 legacy = cuStreamQuery] => sync::waited(stream: Stream);
        cuStreamQuery_ptsz ["cuStreamQuery" 7000 ptds = cuStreamQuery] => sync::waited(stream: Stream);
        cuEventSynchronize ["cuEventSynchronize" 2000 legacy = cuEventSynchronize] => sync::waited(event: Opaque);
        cuEventQuery ["cuEventQuery" 2000 legacy = cuEventQuery] => sync::waited(event: Opaque);

        // Queries and changes by the program of memory that may be ours.
        cuPointerGetAttribute ["cuPointerGetAttribute" 4000 legacy = cuPointerGetAttribute] => peer::get_attribute(data: Opaque, attribute: c_int, ptr: DevicePtr);
        cuPointerGetAttributes ["cuPointerGetAttributes" 7000 legacy = cuPointerGetAttributes] => peer::get_attributes(len: c_uint, attributes: *mut c_int, data: *mut Opaque, ptr: DevicePtr);
        cuPointerSetAttribute ["cuPointerSetAttribute" 6000 legacy = cuPointerSetAttribute] => peer::set_attribute(value: Opaque, attribute: c_int, ptr: DevicePtr);
        cuMemGetAddressRange_v2 ["cuMemGetAddressRange" 3020 legacy = cuMemGetAddressRange_v2] => peer::address_range(base: *mut DevicePtr, bytes: *mut usize, ptr: DevicePtr);
        cuMemGetHandleForAddressRange ["cuMemGetHandleForAddressRange" 11070 legacy = cuMemGetHandleForAddressRange] => peer::range_handle(handle: Opaque, ptr: DevicePtr, bytes: usize, kind: c_int, flags: u64);
        cuLogicalEndpointBindAddr ["cuLogicalEndpointBindAddr" 13030 legacy = none] => peer::bind_to_endpoint(endpoint: c_uint, device: Device, offset: u64, ptr: DevicePtr, bytes: u64, flags: u64);
        cuCtxEnablePeerAccess ["cuCtxEnablePeerAccess" 4000 legacy = cuCtxEnablePeerAccess] => peer::enable(ctx: Context, flags: c_uint);
        cuCtxDisablePeerAccess ["cuCtxDisablePeerAccess" 4000 legacy = cuCtxDisablePeerAccess] => peer::disable(ctx: Context);
    } };
}

/// Functions that take handles of graphs or of their nodes and have no meaning of their own: they are passed on, with
/// the real handles in place of ours.
///
/// `symbol ["base name" first-version flavour = sys] (arguments);`: as above, arguments by their names. Those called
/// `graph` and `exec` are the handles that may be ours. Names newer than 13.0, and their versions, come from cudarc's
/// bindings, and from the names that cudart 13.5 asks for.
#[macro_export]
macro_rules! graph_thunks {
    ($emit:path) => { $emit! {
        cuGraphAddBatchMemOpNode ["cuGraphAddBatchMemOpNode" 11070 legacy = cuGraphAddBatchMemOpNode] (node, graph, deps, len, params);
        cuGraphAddDependencies ["cuGraphAddDependencies" 10000 legacy = none] (graph, from, to, len);
        cuGraphAddDependencies_v2 ["cuGraphAddDependencies" 12030 legacy = cuGraphAddDependencies_v2] (graph, from, to, data, len);
        cuGraphAddEmptyNode ["cuGraphAddEmptyNode" 10000 legacy = cuGraphAddEmptyNode] (node, graph, deps, len);
        cuGraphAddEventRecordNode ["cuGraphAddEventRecordNode" 11010 legacy = cuGraphAddEventRecordNode] (node, graph, deps, len, event);
        cuGraphAddEventWaitNode ["cuGraphAddEventWaitNode" 11010 legacy = cuGraphAddEventWaitNode] (node, graph, deps, len, event);
        cuGraphAddExternalSemaphoresSignalNode ["cuGraphAddExternalSemaphoresSignalNode" 11020 legacy = cuGraphAddExternalSemaphoresSignalNode] (node, graph, deps, len, params);
        cuGraphAddExternalSemaphoresWaitNode ["cuGraphAddExternalSemaphoresWaitNode" 11020 legacy = cuGraphAddExternalSemaphoresWaitNode] (node, graph, deps, len, params);
        cuGraphAddHostNode ["cuGraphAddHostNode" 10000 legacy = cuGraphAddHostNode] (node, graph, deps, len, params);
        cuGraphAddKernelNode ["cuGraphAddKernelNode" 10000 legacy = none] (node, graph, deps, len, params);
        cuGraphAddKernelNode_v2 ["cuGraphAddKernelNode" 12000 legacy = cuGraphAddKernelNode_v2] (node, graph, deps, len, params);
        cuGraphAddMemFreeNode ["cuGraphAddMemFreeNode" 11040 legacy = cuGraphAddMemFreeNode] (node, graph, deps, len, ptr);
        cuGraphAddMemcpyNode ["cuGraphAddMemcpyNode" 10000 legacy = cuGraphAddMemcpyNode] (node, graph, deps, len, params, ctx);
        cuGraphAddMemsetNode ["cuGraphAddMemsetNode" 10000 legacy = cuGraphAddMemsetNode] (node, graph, deps, len, params, ctx);
        cuGraphBatchMemOpNodeGetParams ["cuGraphBatchMemOpNodeGetParams" 11070 legacy = cuGraphBatchMemOpNodeGetParams] (node, params);
        cuGraphBatchMemOpNodeSetParams ["cuGraphBatchMemOpNodeSetParams" 11070 legacy = cuGraphBatchMemOpNodeSetParams] (node, params);
        cuGraphChildGraphNodeGetGraph ["cuGraphChildGraphNodeGetGraph" 10000 legacy = cuGraphChildGraphNodeGetGraph] (node, out);
        cuGraphConditionalHandleCreate ["cuGraphConditionalHandleCreate" 12030 legacy = cuGraphConditionalHandleCreate] (handle, graph, ctx, value, flags);
        cuGraphRemoveDependencies ["cuGraphRemoveDependencies" 10000 legacy = none] (graph, from, to, len);
        cuGraphRemoveDependencies_v2 ["cuGraphRemoveDependencies" 12030 legacy = cuGraphRemoveDependencies_v2] (graph, from, to, data, len);
        cuGraphDebugDotPrint ["cuGraphDebugDotPrint" 11030 legacy = cuGraphDebugDotPrint] (graph, path, flags);
        cuGraphEventRecordNodeGetEvent ["cuGraphEventRecordNodeGetEvent" 11010 legacy = cuGraphEventRecordNodeGetEvent] (node, event);
        cuGraphEventRecordNodeSetEvent ["cuGraphEventRecordNodeSetEvent" 11010 legacy = cuGraphEventRecordNodeSetEvent] (node, event);
        cuGraphEventWaitNodeGetEvent ["cuGraphEventWaitNodeGetEvent" 11010 legacy = cuGraphEventWaitNodeGetEvent] (node, event);
        cuGraphEventWaitNodeSetEvent ["cuGraphEventWaitNodeSetEvent" 11010 legacy = cuGraphEventWaitNodeSetEvent] (node, event);
        cuGraphExternalSemaphoresSignalNodeGetParams ["cuGraphExternalSemaphoresSignalNodeGetParams" 11020 legacy = cuGraphExternalSemaphoresSignalNodeGetParams] (node, params);
        cuGraphExternalSemaphoresSignalNodeSetParams ["cuGraphExternalSemaphoresSignalNodeSetParams" 11020 legacy = cuGraphExternalSemaphoresSignalNodeSetParams] (node, params);
        cuGraphExternalSemaphoresWaitNodeGetParams ["cuGraphExternalSemaphoresWaitNodeGetParams" 11020 legacy = cuGraphExternalSemaphoresWaitNodeGetParams] (node, params);
        cuGraphExternalSemaphoresWaitNodeSetParams ["cuGraphExternalSemaphoresWaitNodeSetParams" 11020 legacy = cuGraphExternalSemaphoresWaitNodeSetParams] (node, params);
        cuGraphGetEdges ["cuGraphGetEdges" 10000 legacy = none] (graph, from, to, len);
        cuGraphGetEdges_v2 ["cuGraphGetEdges" 12030 legacy = cuGraphGetEdges_v2] (graph, from, to, data, len);
        cuGraphGetId ["cuGraphGetId" 13010 legacy = none] (graph, id);
        cuGraphGetRootNodes ["cuGraphGetRootNodes" 10000 legacy = cuGraphGetRootNodes] (graph, nodes, len);
        cuGraphHostNodeGetParams ["cuGraphHostNodeGetParams" 10000 legacy = cuGraphHostNodeGetParams] (node, params);
        cuGraphHostNodeSetParams ["cuGraphHostNodeSetParams" 10000 legacy = cuGraphHostNodeSetParams] (node, params);
        cuGraphKernelNodeGetAttribute ["cuGraphKernelNodeGetAttribute" 11000 legacy = cuGraphKernelNodeGetAttribute] (node, attribute, value);
        cuGraphKernelNodeGetParams ["cuGraphKernelNodeGetParams" 10000 legacy = none] (node, params);
        cuGraphKernelNodeGetParams_v2 ["cuGraphKernelNodeGetParams" 12000 legacy = cuGraphKernelNodeGetParams_v2] (node, params);
        cuGraphKernelNodeSetParams ["cuGraphKernelNodeSetParams" 10000 legacy = none] (node, params);
        cuGraphKernelNodeSetParams_v2 ["cuGraphKernelNodeSetParams" 12000 legacy = cuGraphKernelNodeSetParams_v2] (node, params);
        cuGraphMemAllocNodeGetParams ["cuGraphMemAllocNodeGetParams" 11040 legacy = cuGraphMemAllocNodeGetParams] (node, params);
        cuGraphMemFreeNodeGetParams ["cuGraphMemFreeNodeGetParams" 11040 legacy = cuGraphMemFreeNodeGetParams] (node, ptr);
        cuGraphMemcpyNodeGetParams ["cuGraphMemcpyNodeGetParams" 10000 legacy = cuGraphMemcpyNodeGetParams] (node, params);
        cuGraphMemcpyNodeSetParams ["cuGraphMemcpyNodeSetParams" 10000 legacy = cuGraphMemcpyNodeSetParams] (node, params);
        cuGraphMemsetNodeGetParams ["cuGraphMemsetNodeGetParams" 10000 legacy = cuGraphMemsetNodeGetParams] (node, params);
        cuGraphMemsetNodeSetParams ["cuGraphMemsetNodeSetParams" 10000 legacy = cuGraphMemsetNodeSetParams] (node, params);
        cuGraphNodeFindInClone ["cuGraphNodeFindInClone" 10000 legacy = cuGraphNodeFindInClone] (out, node, graph);
        cuGraphNodeGetContainingGraph ["cuGraphNodeGetContainingGraph" 13010 legacy = none] (node, out);
        cuGraphNodeGetDependencies ["cuGraphNodeGetDependencies" 10000 legacy = none] (node, deps, len);
        cuGraphNodeGetDependencies_v2 ["cuGraphNodeGetDependencies" 12030 legacy = cuGraphNodeGetDependencies_v2] (node, deps, data, len);
        cuGraphNodeGetDependentNodes ["cuGraphNodeGetDependentNodes" 10000 legacy = none] (node, nodes, len);
        cuGraphNodeGetDependentNodes_v2 ["cuGraphNodeGetDependentNodes" 12030 legacy = cuGraphNodeGetDependentNodes_v2] (node, nodes, data, len);
        cuGraphNodeGetLocalId ["cuGraphNodeGetLocalId" 13010 legacy = none] (node, id);
        cuGraphNodeGetParams ["cuGraphNodeGetParams" 13020 legacy = none] (node, params);
        cuGraphNodeGetToolsId ["cuGraphNodeGetToolsId" 13010 legacy = none] (node, id);
        cuGraphNodeGetType ["cuGraphNodeGetType" 10000 legacy = cuGraphNodeGetType] (node, kind);
        cuGraphReleaseUserObject ["cuGraphReleaseUserObject" 11030 legacy = cuGraphReleaseUserObject] (graph, object, count);
    } };
}

/// Driver functions that the shim calls itself: `symbol = sys (arguments);`. They are the driver's own, or another
/// interposer's behind us, even if the symbol is a row above.
#[macro_export]
macro_rules! driver_calls {
    ($emit:path) => { $emit! {
        cuDriverGetVersion = cuDriverGetVersion (version: *mut c_int);
        cuCtxGetCurrent = cuCtxGetCurrent (ctx: *mut Context);
        cuCtxGetDevice = cuCtxGetDevice (device: *mut Device);
        cuDeviceGetCount = cuDeviceGetCount (devices: *mut c_int);
        cuDeviceGetName = cuDeviceGetName (name: *mut c_char, len: c_int, device: Device);
        cuDeviceGetUuid_v2 = cuDeviceGetUuid_v2 (uuid: *mut [u8; 16], device: Device);
        cuDeviceTotalMem_v2 = cuDeviceTotalMem_v2 (bytes: *mut usize, device: Device);
        cuDevicePrimaryCtxGetState = cuDevicePrimaryCtxGetState (device: Device, flags: *mut c_uint, active: *mut c_int);
        cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool (pool: *mut MemPool, device: Device);
        cuMemPoolGetAttribute = cuMemPoolGetAttribute (pool: MemPool, attribute: c_int, value: *mut u64);
        cuDeviceGetGraphMemAttribute = cuDeviceGetGraphMemAttribute (device: Device, attribute: c_int, value: *mut u64);
        cuCheckpointProcessGetState = none (pid: c_int, state: *mut c_int);
        cuMemGetAddressRange_v2 = cuMemGetAddressRange_v2 (base: *mut DevicePtr, bytes: *mut usize, ptr: DevicePtr);

        // Contexts, modules, functions.
        cuCtxPushCurrent_v2 = cuCtxPushCurrent_v2 (ctx: Context);
        cuCtxPopCurrent_v2 = cuCtxPopCurrent_v2 (ctx: *mut Context);
        cuPointerGetAttributes = cuPointerGetAttributes (len: c_uint, attributes: *mut c_int, data: *mut Opaque, ptr: DevicePtr);
        cuFuncGetAttribute = cuFuncGetAttribute (value: *mut c_int, attribute: c_int, function: Opaque);
        cuModuleGetGlobal_v2 = cuModuleGetGlobal_v2 (address: *mut DevicePtr, bytes: *mut usize, module: Opaque, name: *const c_char);
        cuFuncGetModule = cuFuncGetModule (module: *mut Opaque, function: Opaque);
        cuFuncGetParamInfo = cuFuncGetParamInfo (function: Opaque, index: usize, offset: *mut usize, bytes: *mut usize);
        cuKernelGetParamInfo = cuKernelGetParamInfo (kernel: Opaque, index: usize, offset: *mut usize, bytes: *mut usize);
        cuKernelGetFunction = cuKernelGetFunction (function: *mut Opaque, kernel: Opaque);
        cuKernelGetLibrary = cuKernelGetLibrary (library: *mut Opaque, kernel: Opaque);
        cuLibraryGetModule = cuLibraryGetModule (module: *mut Opaque, library: Opaque);

        // Streams, events, captures.
        cuEventCreate = cuEventCreate (event: *mut Opaque, flags: c_uint);
        cuEventRecord = cuEventRecord (event: Opaque, stream: Stream);
        cuEventRecord_ptsz = cuEventRecord (event: Opaque, stream: Stream);
        cuEventQuery = cuEventQuery (event: Opaque);
        cuEventDestroy_v2 = cuEventDestroy_v2 (event: Opaque);
        cuStreamWaitEvent = cuStreamWaitEvent (stream: Stream, event: Opaque, flags: c_uint);
        cuStreamWaitEvent_ptsz = cuStreamWaitEvent (stream: Stream, event: Opaque, flags: c_uint);
        cuStreamQuery = cuStreamQuery (stream: Stream);
        cuStreamQuery_ptsz = cuStreamQuery (stream: Stream);
        cuStreamGetFlags = cuStreamGetFlags (stream: Stream, flags: *mut c_uint);
        cuStreamGetCaptureInfo_v2 = none (stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, len: *mut usize);
        cuStreamIsCapturing = cuStreamIsCapturing (stream: Stream, status: *mut c_int);
        cuStreamIsCapturing_ptsz = cuStreamIsCapturing (stream: Stream, status: *mut c_int);
        cuThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode (mode: *mut c_int);

        // Graphs and their nodes.
        cuGraphCreate = cuGraphCreate (graph: *mut Graph, flags: c_uint);
        cuGraphClone = cuGraphClone (clone: *mut Graph, original: Graph);
        cuGraphDestroy = cuGraphDestroy (graph: Graph);
        cuGraphGetNodes = cuGraphGetNodes (graph: Graph, nodes: *mut GraphNode, len: *mut usize);
        cuGraphNodeGetDependencies_v2 = cuGraphNodeGetDependencies_v2 (node: GraphNode, deps: *mut GraphNode, data: Opaque, len: *mut usize);
        cuGraphNodeGetType = cuGraphNodeGetType (node: GraphNode, kind: *mut c_int);
        cuGraphNodeGetContainingGraph = none (node: GraphNode, graph: *mut Graph);
        cuGraphChildGraphNodeGetGraph = cuGraphChildGraphNodeGetGraph (node: GraphNode, graph: *mut Graph);
        cuGraphKernelNodeGetParams_v2 = cuGraphKernelNodeGetParams_v2 (node: GraphNode, params: Opaque);
        cuGraphKernelNodeSetParams_v2 = cuGraphKernelNodeSetParams_v2 (node: GraphNode, params: Opaque);
        cuGraphMemcpyNodeSetParams = cuGraphMemcpyNodeSetParams (node: GraphNode, params: Opaque);
        cuGraphMemsetNodeSetParams = cuGraphMemsetNodeSetParams (node: GraphNode, params: Opaque);
        cuGraphHostNodeSetParams = cuGraphHostNodeSetParams (node: GraphNode, params: Opaque);
        cuGraphKernelNodeGetAttribute = cuGraphKernelNodeGetAttribute (node: GraphNode, attribute: c_int, value: Opaque);
        cuGraphKernelNodeSetAttribute = cuGraphKernelNodeSetAttribute (node: GraphNode, attribute: c_int, value: Opaque);
        cuGraphMemcpyNodeGetParams = cuGraphMemcpyNodeGetParams (node: GraphNode, params: Opaque);
        cuGraphMemsetNodeGetParams = cuGraphMemsetNodeGetParams (node: GraphNode, params: Opaque);
        cuGraphHostNodeGetParams = cuGraphHostNodeGetParams (node: GraphNode, params: Opaque);
        cuGraphAddKernelNode_v2 = cuGraphAddKernelNode_v2 (node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque);
        cuGraphAddMemcpyNode = cuGraphAddMemcpyNode (node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque, ctx: Context);
        cuGraphAddMemsetNode = cuGraphAddMemsetNode (node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque, ctx: Context);
        cuGraphAddHostNode = cuGraphAddHostNode (node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque);
        cuGraphAddEmptyNode = cuGraphAddEmptyNode (node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize);
        cuGraphAddDependencies_v2 = cuGraphAddDependencies_v2 (graph: Graph, from: *const GraphNode, to: *const GraphNode, data: Opaque, len: usize);

        // Executable graphs.
        cuGraphInstantiateWithFlags = cuGraphInstantiateWithFlags (exec: *mut GraphExec, graph: Graph, flags: u64);
        cuGraphExecDestroy = cuGraphExecDestroy (exec: GraphExec);
        cuGraphUpload = cuGraphUpload (exec: GraphExec, stream: Stream);
        cuGraphUpload_ptsz = cuGraphUpload (exec: GraphExec, stream: Stream);
        cuGraphNodeSetEnabled = cuGraphNodeSetEnabled (exec: GraphExec, node: GraphNode, enabled: c_uint);
        cuGraphExecKernelNodeSetParams_v2 = cuGraphExecKernelNodeSetParams_v2 (exec: GraphExec, node: GraphNode, params: Opaque);
        cuGraphExecMemcpyNodeSetParams = cuGraphExecMemcpyNodeSetParams (exec: GraphExec, node: GraphNode, params: Opaque, ctx: Context);
        cuGraphExecMemsetNodeSetParams = cuGraphExecMemsetNodeSetParams (exec: GraphExec, node: GraphNode, params: Opaque, ctx: Context);
        cuGraphExecHostNodeSetParams = cuGraphExecHostNodeSetParams (exec: GraphExec, node: GraphNode, params: Opaque);
        cuDeviceGraphMemTrim = cuDeviceGraphMemTrim (device: Device);

        // Memory that the pool takes, frees and waits for.
        cuMemFree_v2 = cuMemFree_v2 (ptr: DevicePtr);
        cuMemFreeAsync = cuMemFreeAsync (ptr: DevicePtr, stream: Stream);
        cuStreamCreate = cuStreamCreate (stream: *mut Stream, flags: c_uint);
        cuStreamDestroy_v2 = cuStreamDestroy_v2 (stream: Stream);
        cuStreamSynchronize = cuStreamSynchronize (stream: Stream);
        cuMemAllocManaged = cuMemAllocManaged (ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        cuMemHostAlloc = cuMemHostAlloc (ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        cuMemHostGetDevicePointer_v2 = cuMemHostGetDevicePointer_v2 (device: *mut DevicePtr, host: DevicePtr, flags: c_uint);
        cuMemFreeHost = cuMemFreeHost (ptr: DevicePtr);
        cuMemsetD8_v2 = cuMemsetD8_v2 (dst: DevicePtr, value: u8, len: usize);
        cuCtxRecordEvent = cuCtxRecordEvent (ctx: Context, event: Opaque);
        cuCtxSynchronize = none ();
        cuEventSynchronize = cuEventSynchronize (event: Opaque);
        cuDeviceGetAttribute = cuDeviceGetAttribute (value: *mut c_int, attribute: c_int, device: Device);

        // Reads by the guard.
        cuModuleLoadData = cuModuleLoadData (module: *mut Opaque, image: Opaque);
        cuModuleGetFunction = cuModuleGetFunction (function: *mut Opaque, module: Opaque, name: *const c_char);
        cuLaunchKernel = cuLaunchKernel (function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, params: *mut Opaque, extra: *mut Opaque);
        cuMemcpyDtoHAsync_v2 = cuMemcpyDtoHAsync_v2 (dst: Opaque, src: DevicePtr, bytes: usize, stream: Stream);
        cuMemcpyHtoDAsync_v2 = cuMemcpyHtoDAsync_v2 (dst: DevicePtr, src: Opaque, bytes: usize, stream: Stream);
        cuFuncGetName = none (name: *mut *const c_char, function: Opaque);

        // The work of a single node.
        cuLaunchKernelEx = cuLaunchKernelEx (config: Opaque, function: Opaque, params: *mut Opaque, extra: *mut Opaque);
        cuLaunchKernelEx_ptsz = cuLaunchKernelEx (config: Opaque, function: Opaque, params: *mut Opaque, extra: *mut Opaque);
        cuLaunchHostFunc = cuLaunchHostFunc (stream: Stream, function: Opaque, data: Opaque);
        cuLaunchHostFunc_ptsz = cuLaunchHostFunc (stream: Stream, function: Opaque, data: Opaque);
        cuMemcpy3DAsync_v2 = cuMemcpy3DAsync_v2 (params: Opaque, stream: Stream);
        cuMemcpy3DAsync_v2_ptsz = cuMemcpy3DAsync_v2 (params: Opaque, stream: Stream);
        cuMemsetD8Async = cuMemsetD8Async (dst: DevicePtr, value: u8, len: usize, stream: Stream);
        cuMemsetD8Async_ptsz = cuMemsetD8Async (dst: DevicePtr, value: u8, len: usize, stream: Stream);
        cuMemsetD16Async = cuMemsetD16Async (dst: DevicePtr, value: u16, len: usize, stream: Stream);
        cuMemsetD16Async_ptsz = cuMemsetD16Async (dst: DevicePtr, value: u16, len: usize, stream: Stream);
        cuMemsetD32Async = cuMemsetD32Async (dst: DevicePtr, value: c_uint, len: usize, stream: Stream);
        cuMemsetD32Async_ptsz = cuMemsetD32Async (dst: DevicePtr, value: c_uint, len: usize, stream: Stream);
        cuMemsetD2D8Async = cuMemsetD2D8Async (dst: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Stream);
        cuMemsetD2D8Async_ptsz = cuMemsetD2D8Async (dst: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Stream);
        cuMemsetD2D16Async = cuMemsetD2D16Async (dst: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Stream);
        cuMemsetD2D16Async_ptsz = cuMemsetD2D16Async (dst: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Stream);
        cuMemsetD2D32Async = cuMemsetD2D32Async (dst: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream);
        cuMemsetD2D32Async_ptsz = cuMemsetD2D32Async (dst: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream);
    } };
}
