//! C types of the three APIs, as far as the hooks need them.
//!
//! Enums are plain integers here: a value that this version does not know must be passed on, and
//! would be undefined behaviour as a Rust enum. Sizes are checked against cudarc's `sys` in tests.

use std::ffi::c_void;

/// `CUresult`, `cudaError_t` and `hipError_t`: 0 is success in all three.
pub type Status = u32;
/// Success in all three APIs.
pub const SUCCESS: Status = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`, `cudaErrorMemoryAllocation`, `hipErrorOutOfMemory`.
pub const OUT_OF_MEMORY: Status = 2;
/// `CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// `CUDA_ERROR_NOT_READY`, `cudaErrorNotReady`, `hipErrorNotReady`.
pub const NOT_READY: Status = 600;
/// `…_SHARED_OBJECT_SYMBOL_NOT_FOUND`: a hook's answer if there is no real function behind it.
pub const SYMBOL_NOT_FOUND: Status = 302;

/// `CUdeviceptr`, `void *` of the runtimes: an address that device code uses.
pub type DevicePtr = u64;
/// Ordinal of a device: `CUdevice`, `hipDevice_t`.
pub type Device = i32;
/// Context handle.
pub type Context = *mut c_void;
/// Stream handle; NULL is the default stream.
pub type Stream = *mut c_void;
/// Graph handle.
pub type Graph = *mut c_void;
/// Executable graph handle.
pub type GraphExec = *mut c_void;
/// Graph node handle.
pub type GraphNode = *mut c_void;
/// Array or mipmapped array handle.
pub type Array = *mut c_void;
/// `CUmemGenericAllocationHandle`.
pub type VmmHandle = u64;
/// Memory pool handle.
pub type MemPool = *mut c_void;
/// External memory handle.
pub type ExternalMemory = *mut c_void;
/// A pointer to a struct that the hooks never read.
pub type Opaque = *mut c_void;

/// `CUipcMemHandle`, `hipIpcMemHandle_t`: passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcMemHandle {
    pub reserved: [u8; 64],
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayDescriptor {
    /// Elements.
    pub width: usize,
    /// Elements; 0 for one dimension.
    pub height: usize,
    pub format: u32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3dDescriptor {
    /// Elements.
    pub width: usize,
    /// Elements; 0 for one dimension.
    pub height: usize,
    /// Elements; 0 for fewer than three dimensions.
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// First fields of `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GraphInstantiateParams {
    pub flags: u64,
    pub upload_stream: Stream,
    pub error_node_out: GraphNode,
    pub result_out: u32,
}

/// `hipGraphInstantiateParams`: the same fields as CUDA's, in alphabetical order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HipGraphInstantiateParams {
    pub error_node_out: GraphNode,
    pub flags: u64,
    pub result_out: u32,
    pub upload_stream: Stream,
}

/// First fields of `CUDA_EXTERNAL_MEMORY_BUFFER_DESC` and `hipExternalMemoryBufferDesc`, which ends here before ROCm 6.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExternalBufferDesc {
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    pub flags: u32,
}

/// First fields of `CUDA_EXTERNAL_MEMORY_HANDLE_DESC` and `hipExternalMemoryHandleDesc`, which ends here before ROCm 6.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExternalMemoryDesc {
    pub kind: u32,
    pub handle: [u64; 2],
    /// Bytes.
    pub size: u64,
    pub flags: u32,
}

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MulticastProp {
    pub devices: u32,
    /// Bytes.
    pub size: usize,
    pub handle_types: u64,
    pub flags: u64,
}

/// `cudaExtent`, `hipExtent`: bytes × rows × slices for linear memory. Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `dim3`: a grid or a block. Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

/// `cudaPitchedPtr`, `hipPitchedPtr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PitchedPtr {
    pub ptr: DevicePtr,
    /// Bytes.
    pub pitch: usize,
    /// Bytes.
    pub xsize: usize,
    /// Rows.
    pub ysize: usize,
}

/// `cudaChannelFormatDesc`, `hipChannelFormatDesc`: bits of each channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ChannelDesc {
    pub x: i32,
    pub y: i32,
    pub z: i32,
    pub w: i32,
    pub kind: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GraphExecUpdateInfo {
    pub result: i32,
    pub error_node: GraphNode,
    pub error_from_node: GraphNode,
}

/// `CUmemLocation`, `hipMemLocation`: passed by value, in one register.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemLocation {
    pub kind: i32,
    pub id: i32,
}

/// `CUeglFrame`: passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EglFrame {
    pub planes: [usize; 3],
    /// Width, height, depth and pitch of the first plane; planes, channels; kind of frame, formats.
    pub words: [u32; 9],
}

/// `CUlaunchAttributeValue`, opaque.
pub type AttributeValue = [u64; 8];

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    pub id: u32,
    pub pad: u32,
    pub value: AttributeValue,
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: Stream,
    pub attributes: *const LaunchAttribute,
    pub len: u32,
}

/// Keys of the list at `extra`: `CU_LAUNCH_PARAM_END`, `…_BUFFER_POINTER`, `…_BUFFER_SIZE`.
pub const EXTRA_END: usize = 0;
pub const EXTRA_BUFFER: usize = 1;
pub const EXTRA_BYTES: usize = 2;
