//! The CUDA driver.

use super::answer::{done, told};
use super::both::{answers, exchange};
use super::driver::{self, Function};
use super::{ACTIVE, Backend, DeviceInfo, PER_THREAD, buffer};
use crate::process::cancel::Uncancelled;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Parking};
use gpumem_wire::location::Location;
use std::ptr::{null, null_mut};

pub(super) struct Cuda;

/// `CU_PROCESS_STATE_RUNNING` and `…_CHECKPOINTED`.
const RUNNING: i32 = 0;
const CHECKPOINTED: i32 = 2;

exchange!(driver::cuThreadExchangeStreamCaptureMode);

/// Makes a context current; returns true if [`leave`] has to be called.
pub(super) fn enter(context: u64) -> bool {
    let context = context as Context;
    // SAFETY: rule of answers: `current` takes a handle. Our caller holds `context`, so it is
    // alive.
    unsafe {
        told(|current| driver::cuCtxGetCurrent(current)) != Ok(context)
            && driver::cuCtxPushCurrent_v2(context) == Some(SUCCESS)
    }
}

pub(super) fn leave() {
    let mut context = null_mut();
    // SAFETY: rule of answers: `context` takes the handle of the context that `enter` pushed on
    // this thread.
    let _ = unsafe { driver::cuCtxPopCurrent_v2(&mut context) };
}

/// Records one of gpumem's events with `record`; makes the event for `None`. Destroys an event that cannot be recorded.
pub(super) fn recorded(event: Option<usize>, record: impl FnOnce(Opaque) -> Option<Status>) -> Option<usize> {
    /// `CU_EVENT_DISABLE_TIMING`.
    const NO_TIMING: u32 = 2;
    let event = match event {
        Some(event) => event as Opaque,
        // SAFETY: rule of answers: `event` takes the handle.
        None => told(|event| unsafe { driver::cuEventCreate(event, NO_TIMING) }).ok()?,
    };
    if done(record(event)).is_err() {
        // SAFETY: our caller gave the event to be recorded here, and has no other use of it.
        let _ = unsafe { driver::cuEventDestroy_v2(event) };
        return None;
    }
    Some(event as usize)
}

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
const CAPABILITY: [i32; 2] = [75, 76];

/// Returns name and compute capability of each device that the process sees.
pub(crate) fn gpus() -> Vec<(Vec<u8>, (u32, u32))> {
    // SAFETY: rule of answers: `devices` takes the number.
    let devices = told(|devices| unsafe { driver::cuDeviceGetCount(devices) });
    let gpu = |device| {
        // SAFETY: rule of answers: `value` takes the number. The driver checks both other
        // arguments.
        let value = |attribute| told(|value| unsafe { driver::cuDeviceGetAttribute(value, attribute, device) });
        let number = |attribute| value(attribute).unwrap_or(0) as u32;
        (Cuda.device_info(device).name, (number(CAPABILITY[0]), number(CAPABILITY[1])))
    };
    devices.map_or(Vec::new(), |devices| (0..devices).map(gpu).collect())
}

/// Returns the kind of a `CUgraphNodeType`.
fn kind_of(number: i32) -> NodeKind {
    u8::try_from(number).ok().and_then(NodeKind::from_u8).unwrap_or(NodeKind::Other)
}

impl Backend for Cuda {
    // 18: `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
    answers!(
        driver: cuCtxGetDevice, cuDeviceGetName, cuDeviceGetUuid_v2, cuDeviceTotalMem_v2, cuDeviceGetAttribute(18),
        cuMemGetAddressRange_v2, cuStreamGetCaptureInfo_v2, cuDriverGetVersion, cuGraphGetNodes, cuGraphNodeGetType,
        cuGraphChildGraphNodeGetGraph; kind_of
    );

    #[inline]
    fn current_context(&self) -> Option<u64> {
        let _uncancelled = Uncancelled::new();
        let mut context: Context = null_mut();
        // SAFETY: rule of answers: `context` takes the handle.
        let status = unsafe { driver::cuCtxGetCurrent(&mut context) };
        (status == Some(SUCCESS)).then_some(context as u64).filter(|&context| context != 0)
    }

    fn primary_active(&self, device: Device) -> Option<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: rule of answers: `flags` and `active` take the numbers. The driver checks the
        // device.
        let status = unsafe { driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
        done(status).ok().map(|()| active != 0)
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
        done(Some(status)).ok().map(|()| (free as u64, total as u64))
    }

    fn kept_by_pool(&self, device: Device) -> Option<u64> {
        /// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
        const RESERVED: i32 = 5;
        // SAFETY: rule of answers: `pool` takes the handle, and `bytes` the attribute, which has 64
        // bits. The driver has just given `pool`.
        unsafe {
            let pool = told(|pool| driver::cuDeviceGetDefaultMemPool(pool, device)).ok()?;
            told(|bytes| driver::cuMemPoolGetAttribute(pool, RESERVED, bytes)).ok()
        }
    }

    fn kept_for_graphs(&self, device: Device) -> Option<u64> {
        /// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
        const RESERVED: i32 = 2;
        // SAFETY: rule of answers: `bytes` takes the attribute, which has 64 bits. The driver
        // checks the device.
        told(|bytes| unsafe { driver::cuDeviceGetGraphMemAttribute(device, RESERVED, bytes) }).ok()
    }

    fn location_of(&self, ptr: DevicePtr) -> Option<Location> {
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, …_DEVICE_ORDINAL, …_IS_MANAGED.
        let mut ids = [2, 9, 8];
        let (mut kind, mut device, mut managed) = (0_u32, 0_i32, 0_u32);
        let mut out = [(&raw mut kind).cast(), (&raw mut device).cast(), (&raw mut managed).cast()];
        // SAFETY: rule of answers: `ids` and `out` have three elements, and each of `out` leads to a local of its
        // attribute's type. The driver gives zeroes for addresses that it does not know.
        let status = unsafe { driver::cuPointerGetAttributes(3, ids.as_mut_ptr(), out.as_mut_ptr(), ptr) };
        done(status).ok()?;
        match kind {
            _ if managed != 0 => Some(Location::Managed),
            1 => Some(Location::Host),
            2 => u16::try_from(device).ok().map(Location::Device),
            _ => None,
        }
    }

    fn parking(&self) -> Option<Parking> {
        // SAFETY: rule of answers: `state` takes a number. The pid is this process's.
        let state = told(|state| unsafe { driver::cuCheckpointProcessGetState(std::process::id() as i32, state) });
        match state.ok()? {
            RUNNING => Some(Parking::Running),
            CHECKPOINTED => Some(Parking::Parked),
            // Locked, failed, or on the way to the host or back.
            _ => Some(Parking::Quiet),
        }
    }
}
