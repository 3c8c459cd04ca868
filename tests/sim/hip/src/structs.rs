//! HIP's structures. Many have CUDA's names and another order of fields.

use crate::abi::H;

pub use gpumem_sim_engine::abi::{AccessDesc, AllocationProp, Array3DDesc, ArrayDesc, Location, PoolProps};
pub use gpumem_sim_engine::params::{HostNode, LaunchAttribute, MemAllocNode, MemOpNode, MemOpParams, NodeParams};

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

/// hipLaunchConfig_t (ROCm 7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: usize,
    pub stream: H,
    pub attributes: usize,
    pub len: u32,
}

/// HIP_LAUNCH_CONFIG, which has shared bytes as a smaller number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DrvLaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: H,
    pub attributes: usize,
    pub len: u32,
}

impl DrvLaunchConfig {
    pub fn plain(self) -> LaunchConfig {
        let Self { grid, block, shared, stream, attributes, len } = self;
        LaunchConfig { grid, block, shared: shared as usize, stream, attributes, len }
    }
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

/// hipMemcpyNodeParams: flags, reserved words, the copy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemcpyNode {
    pub flags: i32,
    pub reserved: [i32; 3],
    pub copy: Memcpy3D,
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

/// Sizes and offsets by the headers of ROCm's releases, for structures that have had one layout since ROCm 6.
#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[track_caller]
    fn holds(line: &str, releases: &str) {
        let mut said = gpumem_abi::KNOWN_HIP.lines().filter_map(|known| known.strip_prefix(line)?.strip_prefix(" : "));
        let said = said.next().unwrap_or_default();
        assert!(said.ends_with(releases), "{line}: in {said:?}, not in {releases}");
    }

    macro_rules! layouts {
        ($($ty:ident = $hip:literal { $($field:ident = $of:literal),* })*) => { $(
            holds(&format!("size {} {}", $hip, size_of::<$ty>()), "6.4 7.2");
            $({
                fn bytes<T>(_: fn(&$ty) -> &T) -> usize { size_of::<T>() }
                let (at, len) = (offset_of!($ty, $field), bytes(|all| &all.$field));
                holds(&format!("field {}.{} {at} {len}", $hip, $of), "6.4 7.2");
            })*
        )* };
    }

    #[test]
    fn layouts_are_those_of_the_headers() {
        layouts! {
            Extent = "hipExtent" { width = "width", height = "height", depth = "depth" }
            PitchedPtr = "hipPitchedPtr" { ptr = "ptr", pitch = "pitch", xsize = "xsize", ysize = "ysize" }
            PointerAttributes = "hipPointerAttribute_t" {
                kind = "type", device = "device", device_ptr = "devicePointer", host = "hostPointer",
                managed = "isManaged", flags = "allocationFlags"
            }
            Location = "hipMemLocation" { kind = "type", id = "id" }
            AccessDesc = "hipMemAccessDesc" { location = "location", flags = "flags" }
            PoolProps = "hipMemPoolProps" {
                alloc_type = "allocType", handle_types = "handleTypes", location = "location",
                security = "win32SecurityAttributes", max_size = "maxSize", rest = "reserved"
            }
            AllocationProp = "hipMemAllocationProp" {}
            ArrayDesc = "HIP_ARRAY_DESCRIPTOR" {
                width = "Width", height = "Height", format = "Format", channels = "NumChannels"
            }
            Array3DDesc = "HIP_ARRAY3D_DESCRIPTOR" {
                width = "Width", height = "Height", depth = "Depth", format = "Format", channels = "NumChannels",
                flags = "Flags"
            }
            ChannelDesc = "hipChannelFormatDesc" { x = "x", y = "y", z = "z", w = "w", kind = "f" }
            Memcpy3D = "hipMemcpy3DParms" {
                src_array = "srcArray", src_pos = "srcPos", src = "srcPtr", dst_array = "dstArray", dst_pos = "dstPos",
                dst = "dstPtr", extent = "extent", kind = "kind"
            }
            DrvMemcpy3D = "HIP_MEMCPY3D" {}
            KernelNode = "hipKernelNodeParams" {
                block = "blockDim", extra = "extra", func = "func", grid = "gridDim", params = "kernelParams",
                shared = "sharedMemBytes"
            }
            MemsetNode = "hipMemsetParams" {
                dst = "dst", elem = "elementSize", height = "height", pitch = "pitch", value = "value", width = "width"
            }
            HostNode = "hipHostNodeParams" { f = "fn", data = "userData" }
            MemAllocNode = "hipMemAllocNodeParams" {
                props = "poolProps", access = "accessDescs", access_count = "accessDescCount", size = "bytesize",
                ptr = "dptr"
            }
            MemcpyNode = "hipMemcpyNodeParams" { flags = "flags", reserved = "reserved", copy = "copyParams" }
            MemOpParams = "hipStreamBatchMemOpParams" {}
            MemOpNode = "hipBatchMemOpNodeParams" { ctx = "ctx", count = "count", list = "paramArray", flags = "flags" }
            NodeParams = "hipGraphNodeParams" {}
            InstantiateParams = "hipGraphInstantiateParams" {
                error_node = "errNode_out", flags = "flags", result = "result_out", stream = "uploadStream"
            }
        }
        // Each side of a copy has its fields in one order; the second side follows the first.
        for (side, at) in [("src", offset_of!(DrvMemcpy3D, src)), ("dst", offset_of!(DrvMemcpy3D, dst))] {
            for (field, of) in [
                ("XInBytes", offset_of!(DrvSide, pos)),
                ("LOD", offset_of!(DrvSide, lod)),
                ("Host", offset_of!(DrvSide, host)),
                ("Device", offset_of!(DrvSide, device)),
                ("Array", offset_of!(DrvSide, array)),
                ("Pitch", offset_of!(DrvSide, pitch)),
                ("Height", offset_of!(DrvSide, height)),
            ] {
                holds(&format!("field HIP_MEMCPY3D.{side}{field} {} 8", at + of), "6.4 7.2");
            }
        }
    }
}
