//! The driver's structures where cudarc's hold Rust enums: a program may pass
//! any number there, so these hold plain integers. Sizes are checked.

use crate::abi::H;

use cudarc::driver::sys;
pub use gpumem_sim_engine::abi::{AccessDesc, AllocationProp, Array3DDesc, ArrayDesc, Location, PoolProps};
pub use gpumem_sim_engine::params::{HostNode, LaunchAttribute, MemAllocNode, MemOpNode, MemOpParams, NodeParams};

macro_rules! same_size {
    ($($ours:ty = $theirs:ty;)*) => {
        const _: () = { $(assert!(size_of::<$ours>() == size_of::<$theirs>());)* };
    };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side2D {
    pub x: usize,
    pub y: usize,
    pub space: u32,
    pub host: u64,
    pub device: u64,
    pub array: H,
    pub pitch: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memcpy2D {
    pub src: Side2D,
    pub dst: Side2D,
    pub width: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Side3D {
    pub x: usize,
    pub y: usize,
    pub z: usize,
    pub lod: usize,
    pub space: u32,
    pub host: u64,
    pub device: u64,
    pub array: H,
    /// Reserved, or the context of a peer copy.
    pub ctx: H,
    pub pitch: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Memcpy3D {
    pub src: Side3D,
    pub dst: Side3D,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KernelNodeV1 {
    pub func: H,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: usize,
    pub extra: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KernelNode {
    pub v1: KernelNodeV1,
    pub kern: H,
    pub ctx: H,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: H,
    pub attrs: usize,
    pub count: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MemsetNode {
    pub dst: u64,
    pub pitch: usize,
    pub value: u32,
    pub elem: u32,
    pub width: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct InstantiateParams {
    pub flags: u64,
    pub stream: H,
    pub error_node: H,
    pub result: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct UpdateResult {
    pub result: u32,
    pub error_node: H,
    pub error_from: H,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemcpyNode {
    pub flags: u32,
    pub reserved: u32,
    pub ctx: H,
    pub copy: Memcpy3D,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConditionalNode {
    pub handle: u64,
    pub form: u32,
    pub size: u32,
    /// Written: where the list of body graphs is.
    pub graphs: usize,
    pub ctx: H,
}

same_size! {
    ConditionalNode = sys::CUDA_CONDITIONAL_NODE_PARAMS;
    MemcpyNode = sys::CUDA_MEMCPY_NODE_PARAMS_st;
    MemOpNode = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS_v2_st;
    Memcpy2D = sys::CUDA_MEMCPY2D_st;
    Memcpy3D = sys::CUDA_MEMCPY3D_st;
    Memcpy3D = sys::CUDA_MEMCPY3D_PEER_st;
    KernelNodeV1 = sys::CUDA_KERNEL_NODE_PARAMS_st;
    KernelNode = sys::CUDA_KERNEL_NODE_PARAMS_v2_st;
    LaunchAttribute = sys::CUlaunchAttribute_st;
    LaunchConfig = sys::CUlaunchConfig_st;
    MemsetNode = sys::CUDA_MEMSET_NODE_PARAMS_st;
    HostNode = sys::CUDA_HOST_NODE_PARAMS_st;
    Location = sys::CUmemLocation_st;
    AccessDesc = sys::CUmemAccessDesc_st;
    PoolProps = sys::CUmemPoolProps_st;
    MemAllocNode = sys::CUDA_MEM_ALLOC_NODE_PARAMS_v1_st;
    AllocationProp = sys::CUmemAllocationProp_st;
    InstantiateParams = sys::CUDA_GRAPH_INSTANTIATE_PARAMS_st;
    UpdateResult = sys::CUgraphExecUpdateResultInfo_st;
    NodeParams = sys::CUgraphNodeParams_st;
    ArrayDesc = sys::CUDA_ARRAY_DESCRIPTOR_st;
    Array3DDesc = sys::CUDA_ARRAY3D_DESCRIPTOR_st;
    MemOpParams = sys::CUstreamBatchMemOpParams_union;
}
