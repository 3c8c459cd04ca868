//! Rows of the CUDA runtime API: names whose call site is worth keeping, and `cudaFree`. `cudaMalloc` and `cudaFree`
//! need not go through the runtime if the pool serves them.
//!
//! `symbol = sys (arguments);`. All of them do the same: find the real function through the caller, remember who
//! called, call. The recording is done below, at the driver.
//!
//! Only names whose arguments travel in the same registers in every cudart from 11 to 13 are here.
//! `cudaGraphInstantiate` had five arguments before 12.0 and has three since: the row passes five, and a callee that
//! takes three ignores the rest.

/// Passes all rows to the named macro, as `emit! { row; row; … }`.
#[macro_export]
macro_rules! runtime_functions {
    ($emit:path) => { $emit! {
        cudaMalloc = cudaMalloc (ptr: *mut DevicePtr, bytes: usize);
        cudaFree = cudaFree (ptr: DevicePtr);
        cudaMallocPitch = cudaMallocPitch (ptr: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize);
        cudaMalloc3D = cudaMalloc3D (ptr: *mut PitchedPtr, extent: Extent);
        cudaMallocManaged = cudaMallocManaged (ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        cudaMallocHost = cudaMallocHost (ptr: *mut DevicePtr, bytes: usize);
        cudaHostAlloc = cudaHostAlloc (ptr: *mut DevicePtr, bytes: usize, flags: c_uint);
        cudaHostRegister = cudaHostRegister (ptr: DevicePtr, bytes: usize, flags: c_uint);
        cudaMallocAsync = cudaMallocAsync (ptr: *mut DevicePtr, bytes: usize, stream: Stream);
        cudaMallocAsync_ptsz = cudaMallocAsync (ptr: *mut DevicePtr, bytes: usize, stream: Stream);
        cudaMallocFromPoolAsync = cudaMallocFromPoolAsync (ptr: *mut DevicePtr, bytes: usize, pool: MemPool, stream: Stream);
        cudaMallocFromPoolAsync_ptsz = cudaMallocFromPoolAsync (ptr: *mut DevicePtr, bytes: usize, pool: MemPool, stream: Stream);
        cudaMallocArray = cudaMallocArray (array: *mut Array, desc: *const ChannelDesc, width: usize, height: usize, flags: c_uint);
        cudaMalloc3DArray = cudaMalloc3DArray (array: *mut Array, desc: *const ChannelDesc, extent: Extent, flags: c_uint);
        cudaMallocMipmappedArray = cudaMallocMipmappedArray (array: *mut Array, desc: *const ChannelDesc, extent: Extent, levels: c_uint, flags: c_uint);
        cudaIpcOpenMemHandle = cudaIpcOpenMemHandle (ptr: *mut DevicePtr, handle: IpcMemHandle, flags: c_uint);
        cudaStreamCreate = cudaStreamCreate (stream: *mut Stream);
        cudaStreamCreateWithFlags = cudaStreamCreateWithFlags (stream: *mut Stream, flags: c_uint);
        cudaStreamCreateWithPriority = cudaStreamCreateWithPriority (stream: *mut Stream, flags: c_uint, priority: c_int);
        cudaStreamEndCapture = cudaStreamEndCapture (stream: Stream, graph: *mut Graph);
        cudaStreamEndCapture_ptsz = cudaStreamEndCapture (stream: Stream, graph: *mut Graph);
        cudaGraphCreate = cudaGraphCreate (graph: *mut Graph, flags: c_uint);
        cudaGraphClone = cudaGraphClone (clone: *mut Graph, original: Graph);
        cudaGraphInstantiate = none (exec: *mut GraphExec, graph: Graph, third: usize, fourth: usize, fifth: usize);
        cudaGraphInstantiateWithFlags = cudaGraphInstantiateWithFlags (exec: *mut GraphExec, graph: Graph, flags: u64);
        cudaGraphInstantiateWithParams = cudaGraphInstantiateWithParams (exec: *mut GraphExec, graph: Graph, params: Opaque);
        cudaGraphInstantiateWithParams_ptsz = cudaGraphInstantiateWithParams (exec: *mut GraphExec, graph: Graph, params: Opaque);
    } };
}
