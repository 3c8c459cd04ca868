//! The CUDA driver.

use super::driver::{self, Function};
use super::{ACTIVE, Backend, DeviceInfo, PER_THREAD};
use crate::process::cancel::Uncancelled;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Parking};
use gpumem_wire::location::Location;
use std::ptr::{null, null_mut};

pub(super) struct Cuda;

/// Returns the answer if the driver has the function and it succeeded.
fn ok<T>(status: Option<Status>, answer: T) -> Option<T> {
    (status == Some(SUCCESS)).then_some(answer)
}

/// `CU_PROCESS_STATE_RUNNING` and `…_CHECKPOINTED`.
const RUNNING: i32 = 0;
const CHECKPOINTED: i32 = 2;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

/// Makes a context current; returns true if [`leave`] has to be called.
pub(super) fn enter(context: u64) -> bool {
    let mut current = null_mut();
    // SAFETY: rule of answers: `current` takes a handle. Our caller holds `context`, so it is
    // alive.
    unsafe {
        let same = driver::cuCtxGetCurrent(&mut current) == Some(SUCCESS) && current as u64 == context;
        !same && driver::cuCtxPushCurrent_v2(context as Context) == Some(SUCCESS)
    }
}

pub(super) fn leave() {
    let mut context = null_mut();
    // SAFETY: rule of answers: `context` takes the handle of the context that `enter` pushed on
    // this thread.
    let _ = unsafe { driver::cuCtxPopCurrent_v2(&mut context) };
}

/// Lets this thread make calls that a capture of it forbids. Returns the previous mode.
pub(super) fn relax() -> i32 {
    exchange(RELAXED)
}

/// Sets the thread's mode. Returns the previous mode.
pub(super) fn exchange(mut mode: i32) -> i32 {
    // SAFETY: rule of answers: `mode` is read and written. The call changes this thread's mode
    // alone.
    let _ = unsafe { driver::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
const CAPABILITY: [i32; 2] = [75, 76];

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
const INTEGRATED: i32 = 18;

/// Returns name and compute capability of each device that the process sees.
pub(crate) fn gpus() -> Vec<(Vec<u8>, (u32, u32))> {
    let mut devices = 0;
    // SAFETY: rule of answers: `devices` takes the number.
    let asked = ok(unsafe { driver::cuDeviceGetCount(&mut devices) }, ());
    let gpu = |device| {
        let number = |attribute| {
            let mut value = 0;
            // SAFETY: rule of answers: `value` takes the number. The driver checks both other
            // arguments.
            let status = unsafe { driver::cuDeviceGetAttribute(&mut value, attribute, device) };
            ok(status, value as u32).unwrap_or(0)
        };
        (Cuda.device_info(device).name, (number(CAPABILITY[0]), number(CAPABILITY[1])))
    };
    asked.map_or(Vec::new(), |()| (0..devices).map(gpu).collect())
}

impl Backend for Cuda {
    #[inline]
    fn current_context(&self) -> Option<u64> {
        let _uncancelled = Uncancelled::new();
        let mut context: Context = null_mut();
        // SAFETY: rule of answers: `context` takes the handle.
        let status = unsafe { driver::cuCtxGetCurrent(&mut context) };
        ok(status, context as u64).filter(|&context| context != 0)
    }

    fn current_device(&self) -> Option<Device> {
        let _uncancelled = Uncancelled::new();
        let mut device = 0;
        // SAFETY: rule of answers: `device` takes the ordinal.
        let status = unsafe { driver::cuCtxGetDevice(&mut device) };
        ok(status, device)
    }

    fn primary_active(&self, device: Device) -> Option<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: rule of answers: `flags` and `active` take the numbers. The driver checks the
        // device.
        let status = unsafe { driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
        ok(status, active != 0)
    }

    fn device_info(&self, device: Device) -> DeviceInfo {
        let _uncancelled = Uncancelled::new();
        let mut info = DeviceInfo::default();
        let mut name = [0_u8; 256];
        let (mut total, mut integrated) = (0, 0);
        // SAFETY: rule of answers: the name's length is passed with it, and the other locals have
        // the types of their answers. The driver checks the device.
        unsafe {
            if driver::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device) == Some(SUCCESS) {
                info.name = name.iter().copied().take_while(|&byte| byte != 0).collect();
            }
            let _ = driver::cuDeviceGetUuid_v2(&mut info.uuid, device);
            let _ = driver::cuDeviceTotalMem_v2(&mut total, device);
            let _ = driver::cuDeviceGetAttribute(&mut integrated, INTEGRATED, device);
        }
        info.total_bytes = total as u64;
        info.integrated = integrated != 0;
        info
    }

    fn memory_info(&self) -> Option<(u64, u64)> {
        type MemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> Status;
        let _uncancelled = Uncancelled::new();
        let real = driver::real(Function::cuMemGetInfo_v2);
        if real == 0 {
            return None;
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: the slot holds cuMemGetInfo_v2, which has this type. Rule of answers: `free` and
        // `total` take the numbers.
        let status = unsafe { std::mem::transmute::<usize, MemGetInfo>(real)(&mut free, &mut total) };
        ok(Some(status), (free as u64, total as u64))
    }

    fn kept_by_pool(&self, device: Device) -> Option<u64> {
        /// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
        const RESERVED: i32 = 5;
        let (mut pool, mut bytes) = (null_mut(), 0);
        // SAFETY: rule of answers: `pool` takes the handle, and `bytes` the attribute, which has 64
        // bits. The driver has just given `pool`.
        unsafe {
            ok(driver::cuDeviceGetDefaultMemPool(&mut pool, device), ())?;
            let status = driver::cuMemPoolGetAttribute(pool, RESERVED, &mut bytes);
            ok(status, bytes)
        }
    }

    fn kept_for_graphs(&self, device: Device) -> Option<u64> {
        /// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
        const RESERVED: i32 = 2;
        let mut bytes = 0;
        // SAFETY: rule of answers: `bytes` takes the attribute, which has 64 bits. The driver
        // checks the device.
        let status = unsafe { driver::cuDeviceGetGraphMemAttribute(device, RESERVED, &mut bytes) };
        ok(status, bytes)
    }

    fn allocation_around(&self, ptr: DevicePtr) -> Option<(u64, u64)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: rule of answers: `base` and `bytes` take the numbers. The driver answers for
        // addresses that it does not know.
        let status = unsafe { driver::cuMemGetAddressRange_v2(&mut base, &mut bytes, ptr) };
        ok(status, (base, bytes as u64))
    }

    fn location_of(&self, ptr: DevicePtr) -> Option<Location> {
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, …_DEVICE_ORDINAL, …_IS_MANAGED.
        let mut ids = [2, 9, 8];
        let (mut kind, mut device, mut managed) = (0_u32, 0_i32, 0_u32);
        let mut out = [(&raw mut kind).cast(), (&raw mut device).cast(), (&raw mut managed).cast()];
        // SAFETY: rule of answers: `ids` and `out` have three elements, and each of `out` leads to a local of its
        // attribute's type. The driver gives zeroes for addresses that it does not know.
        let status = unsafe { driver::cuPointerGetAttributes(3, ids.as_mut_ptr(), out.as_mut_ptr(), ptr) };
        ok(status, ())?;
        match kind {
            _ if managed != 0 => Some(Location::Managed),
            1 => Some(Location::Host),
            2 => u16::try_from(device).ok().map(Location::Device),
            _ => None,
        }
    }

    fn captures_into(&self, stream: Stream) -> Option<Graph> {
        let stream = if stream.is_null() { PER_THREAD as Stream } else { stream };
        let (mut status, mut id, mut graph, mut deps, mut len) = (0, 0, null_mut(), null(), 0);
        // SAFETY: rule of answers: each local has the type of its answer. Rule of the program's handles: the stream is
        // alive.
        let asked =
            unsafe { driver::cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut deps, &mut len) };
        ok(asked, graph).filter(|graph| status == ACTIVE && !graph.is_null())
    }

    fn version(&self) -> Option<u32> {
        let mut version = 0;
        // SAFETY: rule of answers: `version` takes the number.
        let status = unsafe { driver::cuDriverGetVersion(&mut version) };
        ok(status, version as u32)
    }

    fn parking(&self) -> Option<Parking> {
        let mut state = 0;
        // SAFETY: rule of answers: `state` takes a number. The pid is this process's.
        let status = unsafe { driver::cuCheckpointProcessGetState(std::process::id() as i32, &mut state) };
        let parking = match state {
            RUNNING => Parking::Running,
            CHECKPOINTED => Parking::Parked,
            // Locked, failed, or on the way to the host or back.
            _ => Parking::Quiet,
        };
        ok(status, parking)
    }

    fn node_count(&self, graph: Graph) -> Option<usize> {
        let mut len = 0;
        // SAFETY: rule of answers: with a null array only `len` is written. Rule of the program's
        // handles: the graph is alive.
        let status = unsafe { driver::cuGraphGetNodes(graph, null_mut(), &mut len) };
        ok(status, len)
    }

    fn nodes(&self, graph: Graph, nodes: &mut [GraphNode]) -> Option<usize> {
        let mut len = nodes.len();
        // SAFETY: rule of answers: `len` is the length of `nodes`, and no more handles than that
        // are written. Rule of the program's handles: the graph is alive.
        let status = unsafe { driver::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut len) };
        ok(status, len.min(nodes.len()))
    }

    fn node_kind(&self, node: GraphNode) -> Option<(NodeKind, Option<Graph>)> {
        let mut kind = 0;
        // SAFETY: rule of answers: `kind` takes the number. The node is one of a graph that is
        // alive, as the caller has just listed it.
        ok(unsafe { driver::cuGraphNodeGetType(node, &mut kind) }, ())?;
        let kind = u8::try_from(kind).ok().and_then(NodeKind::from_u8).unwrap_or(NodeKind::Other);
        let mut child: Graph = null_mut();
        let inside = match kind {
            NodeKind::Child => {
                // SAFETY: rule of answers: `child` takes the handle. The driver has just said that
                // the node is a child graph node.
                ok(unsafe { driver::cuGraphChildGraphNodeGetGraph(node, &mut child) }, ()).map(|()| child)
            }
            _ => None,
        };
        Some((kind, inside))
    }
}
