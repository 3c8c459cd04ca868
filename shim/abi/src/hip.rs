//! Rows of the HIP runtime API. HIP has no lower boundary, so these names carry the meaning themselves; most of them
//! share the hooks of the driver rows they resemble.
//!
//! `symbol => module::hook(arguments);`. The data of headers and libraries of ROCm 5.2 to 7.2 is in `known_hip.txt`,
//! made by `hip_headers.py`; tests compare the rows with it. `hipGraphInstantiate` keeps its five arguments and
//! `hipGraphExecUpdate` its four in all of them.

/// Passes all rows to the named macro, as `emit! { row; row; … }`.
#[macro_export]
macro_rules! hip_functions {
    ($emit:path) => { $emit! {
        hipGetProcAddress => procaddr::hip(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
        hipGetDriverEntryPoint => procaddr::entry_point(symbol: *const c_char, pfn: *mut *mut c_void, flags: u64, status: *mut c_int);
        hipGetDriverEntryPoint_spt => procaddr::entry_point(symbol: *const c_char, pfn: *mut *mut c_void, flags: u64, status: *mut c_int);

        hipMalloc => memory::alloc(ptr: *mut DevicePtr, bytes: usize);
        hipExtMallocWithFlags => memory::alloc_with_flags(ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        hipMallocPitch => memory::alloc_pitch_4(ptr: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize);
        hipMemAllocPitch => memory::alloc_pitch(ptr: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint);
        hipMalloc3D => memory::alloc_3d(ptr: *mut PitchedPtr, extent: Extent);
        hipMallocManaged => memory::alloc_managed(ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        hipFree => memory::free(ptr: DevicePtr);
        hipMemGetInfo => memory::get_info(free: *mut usize, total: *mut usize);
        hipMallocAsync => memory::alloc_async(ptr: *mut DevicePtr, bytes: usize, stream: Stream);
        hipMallocFromPoolAsync => memory::alloc_from_pool(ptr: *mut DevicePtr, bytes: usize, pool: MemPool, stream: Stream);
        hipMemPoolCreate => driver_pool::create(pool: *mut MemPool, props: Opaque);
        hipMemPoolDestroy => driver_pool::destroy(pool: MemPool);
        hipDeviceGetDefaultMemPool => driver_pool::of_device(pool: *mut MemPool, device: Device);
        hipDeviceGetMemPool => driver_pool::current(pool: *mut MemPool, device: Device);
        hipDeviceSetMemPool => driver_pool::choose(device: Device, pool: MemPool);
        hipFreeAsync => memory::free_async(ptr: DevicePtr, stream: Stream);

        hipHostMalloc => host::alloc_flags(ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        hipHostAlloc => host::alloc_flags(ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        hipExtHostAlloc => host::alloc_flags(ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        hipMallocHost => host::alloc(ptr: *mut DevicePtr, bytes: usize);
        hipMemAllocHost => host::alloc(ptr: *mut DevicePtr, bytes: usize);
        hipHostFree => host::free(ptr: DevicePtr);
        hipFreeHost => host::free(ptr: DevicePtr);
        hipHostRegister => host::register(ptr: DevicePtr, bytes: usize, flags: c_uint);
        hipHostUnregister => host::unregister(ptr: DevicePtr);

        hipMemCreate => vmm::create(handle: *mut VmmHandle, bytes: usize, prop: Opaque, flags: u64);
        hipMemRelease => vmm::release(handle: VmmHandle);
        hipMemRetainAllocationHandle => vmm::retain(handle: *mut VmmHandle, addr: Opaque);
        hipMemImportFromShareableHandle => vmm::import(handle: *mut VmmHandle, os_handle: Opaque, kind: c_int);
        hipMemAddressReserve => vmm::reserve(ptr: *mut DevicePtr, bytes: usize, alignment: usize, addr: DevicePtr, flags: u64);
        hipMemAddressFree => vmm::unreserve(ptr: DevicePtr, bytes: usize);
        hipMemMap => vmm::map(ptr: DevicePtr, bytes: usize, offset: usize, handle: VmmHandle, flags: u64);
        hipMemUnmap => vmm::unmap(ptr: DevicePtr, bytes: usize);

        hipArrayCreate => array::create(array: *mut Array, desc: *const ArrayDescriptor);
        hipArray3DCreate => array::create_3d(array: *mut Array, desc: *const Array3dDescriptor);
        hipArrayDestroy => array::destroy(array: Array);
        hipMallocArray => array::create_channels(array: *mut Array, desc: *const ChannelDesc, width: usize, height: usize, flags: c_uint);
        hipMalloc3DArray => array::create_channels_3d(array: *mut Array, desc: *const ChannelDesc, extent: Extent, flags: c_uint);
        hipFreeArray => array::destroy(array: Array);
        hipMallocMipmappedArray => array::create_channels_mipmapped(array: *mut Array, desc: *const ChannelDesc, extent: Extent, levels: c_uint, flags: c_uint);
        hipMipmappedArrayCreate => array::create_mipmapped(array: *mut Array, desc: *const Array3dDescriptor, levels: c_uint);
        hipMipmappedArrayDestroy => array::destroy(array: Array);
        hipFreeMipmappedArray => array::destroy(array: Array);

        hipIpcGetMemHandle => ipc::export(handle: Opaque, ptr: DevicePtr);
        hipIpcOpenMemHandle => ipc::open(ptr: *mut DevicePtr, handle: IpcMemHandle, flags: c_uint);
        hipIpcCloseMemHandle => ipc::close(ptr: DevicePtr);
        hipMemPoolExportPointer => ipc::export_pool_pointer(data: Opaque, ptr: DevicePtr);
        hipMemPoolImportPointer => ipc::import_pool_pointer(ptr: *mut DevicePtr, pool: MemPool, data: Opaque);
        hipImportExternalMemory => ipc::import_external(memory: *mut ExternalMemory, desc: *const ExternalMemoryDesc);
        hipDestroyExternalMemory => ipc::destroy_external(memory: ExternalMemory);
        hipExternalMemoryGetMappedBuffer => ipc::map_external(ptr: *mut DevicePtr, memory: ExternalMemory, desc: *const ExternalBufferDesc);

        hipInit => process::init(flags: c_uint);
        hipDeviceReset => context::hip_reset();
        hipDevicePrimaryCtxReset => context::hip_reset_device(device: Device);
        hipExtStreamCreateWithCUMask => stream::create_masked(stream: *mut Stream, words: c_uint, mask: *const c_uint);
        hipEventCreate => event::create_plain(event: *mut Opaque);
        hipEventCreateWithFlags => event::create(event: *mut Opaque, flags: c_uint);
        hipEventDestroy => event::destroy(event: Opaque);
        hipStreamCreate => stream::create_plain(stream: *mut Stream);
        hipStreamCreateWithFlags => stream::create(stream: *mut Stream, flags: c_uint);
        hipStreamCreateWithPriority => stream::create_with_priority(stream: *mut Stream, flags: c_uint, priority: c_int);
        hipStreamDestroy => stream::destroy(stream: Stream);
        hipStreamBeginCapture => capture::begin(stream: Stream, mode: c_int);
        hipStreamBeginCapture_spt => capture::begin(stream: Stream, mode: c_int);
        hipStreamBeginCaptureToGraph => capture::begin_to_graph(stream: Stream, graph: Graph, deps: Opaque, data: Opaque, len: usize, mode: c_int);
        hipStreamEndCapture => capture::end(stream: Stream, graph: *mut Graph);
        hipStreamEndCapture_spt => capture::end(stream: Stream, graph: *mut Graph);
        hipStreamGetCaptureInfo => graph_use::capture_info(stream: Stream, status: *mut c_int, id: *mut u64);
        hipStreamGetCaptureInfo_spt => graph_use::capture_info(stream: Stream, status: *mut c_int, id: *mut u64);
        hipStreamGetCaptureInfo_v2 => graph_use::capture_info_v2(stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, len: *mut usize);
        hipStreamGetCaptureInfo_v2_spt => graph_use::capture_info_v2(stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, len: *mut usize);
        hipLaunchCooperativeKernel => hip_launch::with_more(function: Opaque, grid: Dim3, block: Dim3, params: Opaque, shared: c_uint, stream: Stream);
        hipLaunchCooperativeKernel_spt => hip_launch::with_more(function: Opaque, grid: Dim3, block: Dim3, params: Opaque, shared: c_uint, stream: Stream);
        hipModuleLaunchCooperativeKernel => hip_launch::with_more(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, params: Opaque);
        hipLaunchKernelExC => hip_launch::with_more(config: Opaque, function: Opaque, params: Opaque);
        hipDrvLaunchKernelEx => hip_launch::with_more(config: Opaque, function: Opaque, params: Opaque, extra: Opaque);
        hipExtLaunchKernel => hip_launch::with_events(function: Opaque, grid: Dim3, block: Dim3, params: Opaque, shared: usize, stream: Stream, start: Opaque, stop: Opaque, flags: c_int);
        hipExtModuleLaunchKernel => hip_launch::with_events_of_module(function: Opaque, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: usize, stream: Stream, params: Opaque, extra: Opaque, start: Opaque, stop: Opaque, flags: c_uint);
        hipHccModuleLaunchKernel => hip_launch::with_events_of_module_hcc(function: Opaque, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: usize, stream: Stream, params: Opaque, extra: Opaque, start: Opaque, stop: Opaque);
        hipModuleUnload => graph_use::module_unload(module: Opaque);
        hipLibraryUnload => graph_use::library_unload(library: Opaque);

        hipGraphCreate => graph::create(graph: *mut Graph, flags: c_uint);
        hipGraphClone => graph::clone(clone: *mut Graph, original: Graph);
        hipGraphDestroy => graph::destroy(graph: Graph);
        hipGraphGetNodes => graph_use::get_nodes(graph: Graph, nodes: *mut GraphNode, len: *mut usize);
        hipGraphRetainUserObject => graph_use::retain_user_object(graph: Graph, object: Opaque, count: c_uint, flags: c_uint);
        hipGraphAddChildGraphNode => graph_use::add_child(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, child: Graph);
        hipGraphAddMemAllocNode => graph_memory::add_alloc(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque);
        hipGraphAddNode => graph_use::add_node(node: *mut GraphNode, graph: Graph, deps: *const GraphNode, len: usize, params: Opaque);
        hipGraphInstantiate => graph::instantiate_log(exec: *mut GraphExec, graph: Graph, error_node: *mut GraphNode, log: *mut c_char, log_bytes: usize);
        hipGraphInstantiateWithFlags => graph::instantiate(exec: *mut GraphExec, graph: Graph, flags: u64);
        hipGraphInstantiateWithParams => graph::instantiate_hip_params(exec: *mut GraphExec, graph: Graph, params: *mut HipGraphInstantiateParams);

        hipGraphLaunch => exec::launch(exec: GraphExec, stream: Stream);
        hipGraphLaunch_spt => exec::launch_ptsz(exec: GraphExec, stream: Stream);
        hipGraphDestroyNode => graph_use::destroy_node(node: GraphNode);
        hipGraphUpload => exec::upload(exec: GraphExec, stream: Stream);
        hipGraphExecDestroy => exec::destroy(exec: GraphExec);
        hipGraphExecGetFlags => exec::get_flags(exec: GraphExec, flags: *mut u64);
        hipGraphExecUpdate => exec::update_v1(exec: GraphExec, graph: Graph, error_node: *mut GraphNode, result: *mut c_int);
        hipGraphNodeSetEnabled => exec_node::set_enabled(exec: GraphExec, node: GraphNode, enabled: c_uint);
        hipGraphNodeGetEnabled => exec_node::get_enabled(exec: GraphExec, node: GraphNode, enabled: *mut c_uint);
        hipGraphExecNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        hipGraphExecKernelNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        hipGraphExecMemcpyNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        hipGraphExecMemcpyNodeSetParams1D => exec_node::set_copy(exec: GraphExec, node: GraphNode, dst: Opaque, src: Opaque, bytes: usize, kind: c_int);
        hipGraphExecMemcpyNodeSetParamsFromSymbol => exec_node::set_symbol_copy(exec: GraphExec, node: GraphNode, dst: Opaque, symbol: Opaque, bytes: usize, offset: usize, kind: c_int);
        hipGraphExecMemcpyNodeSetParamsToSymbol => exec_node::set_symbol_copy(exec: GraphExec, node: GraphNode, symbol: Opaque, src: Opaque, bytes: usize, offset: usize, kind: c_int);
        hipDrvGraphExecMemcpyNodeSetParams => exec_node::set_params_ctx(exec: GraphExec, node: GraphNode, params: Opaque, ctx: Context);
        hipDrvGraphExecMemsetNodeSetParams => exec_node::set_params_ctx(exec: GraphExec, node: GraphNode, params: Opaque, ctx: Context);
        hipGraphExecMemsetNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        hipGraphExecHostNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        hipGraphExecChildGraphNodeSetParams => exec_node::set_child(exec: GraphExec, node: GraphNode, child: Graph);
        hipGraphExecEventRecordNodeSetEvent => exec_node::set_params(exec: GraphExec, node: GraphNode, event: Opaque);
        hipGraphExecEventWaitNodeSetEvent => exec_node::set_params(exec: GraphExec, node: GraphNode, event: Opaque);
        hipGraphExecExternalSemaphoresSignalNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        hipGraphExecExternalSemaphoresWaitNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
        hipGraphExecBatchMemOpNodeSetParams => exec_node::set_params(exec: GraphExec, node: GraphNode, params: Opaque);
    } };
}

/// Functions that take handles of graphs or of their nodes and have no meaning of their own: they are passed on, with
/// the real handles in place of ours. `symbol (arguments);`, arguments by their names; those called `graph` and `exec`
/// are the handles that may be ours.
#[macro_export]
macro_rules! hip_graph_thunks {
    ($emit:path) => {
        $emit! {
            hipDrvGraphAddMemFreeNode (node, graph, deps, len, ptr);
            hipDrvGraphAddMemcpyNode (node, graph, deps, len, params, ctx);
            hipDrvGraphAddMemsetNode (node, graph, deps, len, params, ctx);
            hipDrvGraphMemcpyNodeGetParams (node, params);
            hipDrvGraphMemcpyNodeSetParams (node, params);
            hipGraphAddBatchMemOpNode (node, graph, deps, len, params);
            hipGraphAddDependencies (graph, from, to, len);
            hipGraphAddEmptyNode (node, graph, deps, len);
            hipGraphAddEventRecordNode (node, graph, deps, len, event);
            hipGraphAddEventWaitNode (node, graph, deps, len, event);
            hipGraphAddExternalSemaphoresSignalNode (node, graph, deps, len, params);
            hipGraphAddExternalSemaphoresWaitNode (node, graph, deps, len, params);
            hipGraphAddHostNode (node, graph, deps, len, params);
            hipGraphAddKernelNode (node, graph, deps, len, params);
            hipGraphAddMemFreeNode (node, graph, deps, len, ptr);
            hipGraphAddMemcpyNode (node, graph, deps, len, params);
            hipGraphAddMemcpyNode1D (node, graph, deps, len, dst, src, bytes, kind);
            hipGraphAddMemcpyNodeFromSymbol (node, graph, deps, len, dst, symbol, bytes, offset, kind);
            hipGraphAddMemcpyNodeToSymbol (node, graph, deps, len, symbol, src, bytes, offset, kind);
            hipGraphAddMemsetNode (node, graph, deps, len, params);
            hipGraphBatchMemOpNodeGetParams (node, params);
            hipGraphBatchMemOpNodeSetParams (node, params);
            hipGraphChildGraphNodeGetGraph (node, out);
            hipGraphDebugDotPrint (graph, path, flags);
            hipGraphEventRecordNodeGetEvent (node, event);
            hipGraphEventRecordNodeSetEvent (node, event);
            hipGraphEventWaitNodeGetEvent (node, event);
            hipGraphEventWaitNodeSetEvent (node, event);
            hipGraphExternalSemaphoresSignalNodeGetParams (node, params);
            hipGraphExternalSemaphoresSignalNodeSetParams (node, params);
            hipGraphExternalSemaphoresWaitNodeGetParams (node, params);
            hipGraphExternalSemaphoresWaitNodeSetParams (node, params);
            hipGraphGetEdges (graph, from, to, len);
            hipGraphGetRootNodes (graph, nodes, len);
            hipGraphHostNodeGetParams (node, params);
            hipGraphHostNodeSetParams (node, params);
            hipGraphKernelNodeCopyAttributes (src, dst);
            hipGraphKernelNodeGetAttribute (node, attribute, value);
            hipGraphKernelNodeGetParams (node, params);
            hipGraphKernelNodeSetAttribute (node, attribute, value);
            hipGraphKernelNodeSetParams (node, params);
            hipGraphMemAllocNodeGetParams (node, params);
            hipGraphMemFreeNodeGetParams (node, ptr);
            hipGraphMemcpyNodeGetParams (node, params);
            hipGraphMemcpyNodeSetParams (node, params);
            hipGraphMemcpyNodeSetParams1D (node, dst, src, bytes, kind);
            hipGraphMemcpyNodeSetParamsFromSymbol (node, dst, symbol, bytes, offset, kind);
            hipGraphMemcpyNodeSetParamsToSymbol (node, symbol, src, bytes, offset, kind);
            hipGraphMemsetNodeGetParams (node, params);
            hipGraphMemsetNodeSetParams (node, params);
            hipGraphNodeFindInClone (out, node, graph);
            hipGraphNodeGetDependencies (node, deps, len);
            hipGraphNodeGetDependentNodes (node, nodes, len);
            hipGraphNodeGetType (node, kind);
            hipGraphNodeSetParams (node, params);
            hipGraphReleaseUserObject (graph, object, count);
            hipGraphRemoveDependencies (graph, from, to, len);
        }
    };
}

/// HIP functions that the shim calls itself: `symbol (arguments);`. They are HIP's own, or another interposer's behind
/// us, even if the symbol is a row above.
#[macro_export]
macro_rules! hip_calls {
    ($emit:path) => {
        $emit! {
            hipRuntimeGetVersion (version: *mut c_int);
            hipGetDevice (device: *mut Device);
            hipGetDeviceCount (count: *mut c_int);
            hipDeviceGetName (name: *mut c_char, len: c_int, device: Device);
            hipDeviceGetUuid (uuid: *mut [u8; 16], device: Device);
            hipDeviceTotalMem (bytes: *mut usize, device: Device);
            hipPeekAtLastError ();
            hipGetLastError ();
            hipMemGetInfo (free: *mut usize, total: *mut usize);
            hipMemGetAddressRange (base: *mut DevicePtr, bytes: *mut usize, ptr: DevicePtr);
            hipSetDevice (device: Device);
            hipDeviceSynchronize ();
            hipFree (ptr: DevicePtr);
            hipHostFree (ptr: DevicePtr);
            hipMallocManaged (ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
            hipHostMalloc (ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
            hipHostGetDevicePointer (device: *mut DevicePtr, host: DevicePtr, flags: c_uint);
            hipDeviceGetAttribute (value: *mut c_int, attribute: c_int, device: Device);
            hipMemset (dst: DevicePtr, value: c_int, len: usize);
            hipEventCreateWithFlags (event: *mut Opaque, flags: c_uint);
            hipEventRecord (event: Opaque, stream: Stream);
            hipEventQuery (event: Opaque);
            hipEventDestroy (event: Opaque);
            hipStreamWaitEvent (stream: Stream, event: Opaque, flags: c_uint);
            hipStreamQuery (stream: Stream);
            hipStreamGetDevice (stream: Stream, device: *mut Device);
            hipStreamGetFlags (stream: Stream, flags: *mut c_uint);
            hipStreamGetCaptureInfo_v2 (stream: Stream, status: *mut c_int, id: *mut u64, graph: *mut Graph, deps: *mut *const GraphNode, len: *mut usize);
            hipStreamIsCapturing (stream: Stream, status: *mut c_int);
            hipThreadExchangeStreamCaptureMode (mode: *mut c_int);
            hipGraphClone (clone: *mut Graph, original: Graph);
            hipGraphDestroy (graph: Graph);
            hipGraphGetNodes (graph: Graph, nodes: *mut GraphNode, len: *mut usize);
            hipGraphGetEdges (graph: Graph, from: *mut GraphNode, to: *mut GraphNode, len: *mut usize);
            hipGraphNodeGetType (node: GraphNode, kind: *mut c_int);
            hipGraphChildGraphNodeGetGraph (node: GraphNode, graph: *mut Graph);
            hipGraphInstantiate (exec: *mut GraphExec, graph: Graph, error_node: *mut GraphNode, log: *mut c_char, log_bytes: usize);
            hipGraphInstantiateWithFlags (exec: *mut GraphExec, graph: Graph, flags: u64);
            hipGraphExecDestroy (exec: GraphExec);
            hipGraphUpload (exec: GraphExec, stream: Stream);
            hipGraphExecUpdate (exec: GraphExec, graph: Graph, error_node: *mut GraphNode, result: *mut c_int);
        }
    };
}
