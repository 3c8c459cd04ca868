//! The driver's structs for nodes, and the parts of them in records. Sizes are checked against cudarc's `sys` in tests.

use gpumem_abi::types::Opaque;
pub(super) use gpumem_abi::types::{AttributeValue, LaunchConfig};
use std::ptr::from_mut;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Passes a struct in the form that the driver's functions take.
pub(super) fn opaque<T>(value: &mut T) -> Opaque {
    from_mut(value).cast()
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`; the v1 form ends before `kernel`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct KernelParams {
    pub function: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub pad: u32,
    /// Address of an array of addresses of the parameters' values.
    pub params: u64,
    /// Address of a list of `CU_LAUNCH_PARAM_*` keys and values.
    pub extra: u64,
    pub kernel: u64,
    pub context: u64,
}
/// Bytes of `CUDA_KERNEL_NODE_PARAMS_v1`.
pub(super) const KERNEL_PARAMS_V1: usize = 56;

/// Beginning of a kernel's record; the bytes of its parameters follow.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct KernelHead {
    pub function: u64,
    pub kernel: u64,
    pub context: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub generation: u32,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct CopyParams {
    pub src: CopySide,
    pub dst: CopySide,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

/// One side of a copy.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct CopySide {
    pub x: u64,
    pub y: u64,
    pub z: u64,
    pub lod: u64,
    pub kind: u32,
    pub pad: u32,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub reserved: u64,
    pub pitch: u64,
    pub height: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct SetParams {
    pub dst: u64,
    pub pitch: u64,
    pub value: u32,
    pub element_bytes: u32,
    pub width: u64,
    pub height: u64,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct HostParams {
    pub function: u64,
    pub data: u64,
}

/// A copy's record: the context for its setter, and its parameters.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct CopyRecord {
    pub context: u64,
    pub params: CopyParams,
}

/// A memset's record: the context for its setter, and its parameters.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(super) struct SetRecord {
    pub context: u64,
    pub params: SetParams,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys;
    use gpumem_abi::types::LaunchAttribute;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structs_are_those_of_sys() {
        assert_eq!(size_of::<KernelParams>(), size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v2>());
        assert_eq!(offset_of!(KernelParams, params), offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v2, kernelParams));
        assert_eq!(offset_of!(KernelParams, context), offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v2, ctx));
        assert_eq!(size_of::<CopyParams>(), size_of::<sys::CUDA_MEMCPY3D>());
        assert_eq!(offset_of!(CopyParams, dst), offset_of!(sys::CUDA_MEMCPY3D, dstXInBytes));
        assert_eq!(offset_of!(CopySide, device), offset_of!(sys::CUDA_MEMCPY3D, srcDevice));
        assert_eq!(offset_of!(CopyParams, width), offset_of!(sys::CUDA_MEMCPY3D, WidthInBytes));
        assert_eq!(size_of::<SetParams>(), size_of::<sys::CUDA_MEMSET_NODE_PARAMS>());
        assert_eq!(offset_of!(SetParams, width), offset_of!(sys::CUDA_MEMSET_NODE_PARAMS, width));
        assert_eq!(size_of::<HostParams>(), size_of::<sys::CUDA_HOST_NODE_PARAMS>());
        assert_eq!(size_of::<LaunchAttribute>(), size_of::<sys::CUlaunchAttribute>());
        assert_eq!(size_of::<LaunchConfig>(), size_of::<sys::CUlaunchConfig>());
        assert_eq!(offset_of!(LaunchConfig, attributes), offset_of!(sys::CUlaunchConfig, attrs));
    }
}
