//! HIP's structures. Many have CUDA's names and another order of fields.

use crate::abi::H;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PitchedPtr {
    pub ptr: u64,
    pub pitch: usize,
    pub xsize: usize,
    pub ysize: usize,
}

/// hipPointerAttribute_t of ROCm 6.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PointerAttributes {
    /// 0 unregistered, 1 host, 2 device, 3 managed.
    pub kind: u32,
    pub device: i32,
    pub device_ptr: u64,
    pub host: u64,
    pub managed: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProps {
    pub alloc_type: u32,
    pub handle_types: u32,
    pub location: Location,
    pub security: usize,
    pub max_size: usize,
    pub rest: [u8; 56],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProp {
    pub alloc_type: u32,
    pub handle_types: u32,
    pub location: Location,
    pub security: usize,
    pub flags: [u8; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayDesc {
    pub width: usize,
    pub height: usize,
    pub format: u32,
    pub channels: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3DDesc {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ChannelDesc {
    pub x: i32,
    pub y: i32,
    pub z: i32,
    pub w: i32,
    pub kind: u32,
}

/// hipMemcpy3DParms.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Memcpy3D {
    pub src_array: H,
    pub src_pos: [usize; 3],
    pub src: PitchedPtr,
    pub dst_array: H,
    pub dst_pos: [usize; 3],
    pub dst: PitchedPtr,
    pub extent: Extent,
    pub kind: u32,
}

/// One side of a HIP_MEMCPY3D (ROCm 6): bytes along x, a memory type, and the
/// address or array that the type calls for.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DrvSide {
    pub pos: [usize; 3],
    pub lod: usize,
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub array: H,
    pub pitch: usize,
    pub height: usize,
}

/// HIP_MEMCPY3D.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DrvMemcpy3D {
    pub src: DrvSide,
    pub dst: DrvSide,
    pub extent: Extent,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KernelNode {
    pub block: [u32; 3],
    pub extra: usize,
    pub func: H,
    pub grid: [u32; 3],
    pub params: usize,
    pub shared: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MemsetNode {
    pub dst: u64,
    pub elem: u32,
    pub height: usize,
    pub pitch: usize,
    pub value: u32,
    pub width: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct HostNode {
    pub f: usize,
    pub data: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemAllocNode {
    pub props: PoolProps,
    pub access: usize,
    pub access_count: usize,
    pub size: usize,
    pub ptr: u64,
}

/// hipMemcpyNodeParams: flags, reserved words, the copy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemcpyNode {
    pub flags: i32,
    pub reserved: [i32; 3],
    pub copy: Memcpy3D,
}

/// Six words: operation, address, value, flags, ...
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemOpParams {
    pub op: u32,
    pub address: u64,
    pub value: u64,
    pub flags: u32,
    pub alias: u64,
    pub rest: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemOpNode {
    pub ctx: H,
    pub count: u32,
    pub list: usize,
    pub flags: u32,
}

/// Parameters of hipGraphAddNode and its kin, by node type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NodeParams {
    pub kind: u32,
    pub reserved: [i32; 3],
    pub body: [u64; 29],
    pub reserved2: i64,
}

/// hipGraphInstantiateParams: the fields of CUDA's, in alphabetical order.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct InstantiateParams {
    pub error_node: H,
    pub flags: u64,
    pub result: u32,
    pub stream: H,
}

const _: () = {
    assert!(size_of::<KernelNode>() == 64);
    assert!(size_of::<MemsetNode>() == 48);
    assert!(size_of::<Memcpy3D>() == 160);
    assert!(size_of::<DrvMemcpy3D>() == 184);
    assert!(size_of::<InstantiateParams>() == 32);
    assert!(size_of::<PointerAttributes>() == 32);
    assert!(size_of::<NodeParams>() == 256);
};
