//! What the pool asks of a library: memory, and whether work on it is over.
//!
//! Calls are made in the context of the memory ([`MemoryCalls::within`]) and with the thread's capture
//! mode relaxed, so that none is refused or disturbs a capture (measured on an H200, driver 580).

use super::driver::{self, Function};
use super::{Backend, hip_runtime};
use super::{cuda, hip as hip_backend};
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use std::ffi::c_int;
use std::ptr::null_mut;

/// An event of ours.
pub(crate) type Event = usize;
/// A stream of ours.
pub(crate) type ReleaseStream = usize;

const NO_TIMING: u32 = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`: what frees in the order of streams.
const CUDA_POOLS: c_int = 115;
/// `…_MEM_ATTACH_GLOBAL`.
const GLOBAL: u32 = 1;
/// `…_PORTABLE | …_DEVICEMAP`.
const MAPPED: u32 = 3;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const CUDA_CONCURRENT: c_int = 89;
/// `hipDeviceAttributeConcurrentManagedAccess`.
const HIP_CONCURRENT: c_int = 9;

/// The calls of one vendor's library.
pub(crate) trait MemoryCalls: Sync {
    /// Whether submissions of work and changes of a thread's context are seen, so that an idle device and the
    /// current context can be told without a call.
    fn sees_all(&self) -> bool;
    /// Enters a context; whether [`MemoryCalls::leave`] has to be called.
    fn enter(&self, context: u64) -> bool;
    fn leave(&self);
    /// Lets this thread call what a capture of it forbids; the mode before.
    fn relax(&self) -> i32;
    fn unrelax(&self, before: i32);
    fn free(&self, addr: u64) -> Status;
    /// Device memory of the current context that the program does not know of.
    ///
    /// # Errors
    /// The library's; 801 where it is not asked for any.
    fn device(&self, bytes: usize) -> Result<u64, Status>;
    /// Bytes of the current device that are free; `None` if that cannot be told.
    fn free_bytes(&self) -> Option<u64>;
    /// Whether a device frees memory in the order of streams, as far as is known: what [`MemoryCalls::release_stream`]
    /// says, without a stream that is made.
    fn has_release_streams(&self, device: Device) -> bool;
    /// A stream of ours in the current context, on which memory is given back; `None` where there is no such way.
    ///
    /// # Errors
    /// The library's.
    fn release_stream(&self, device: Device) -> Result<Option<ReleaseStream>, Status>;
    fn end_release_stream(&self, stream: ReleaseStream);
    /// Has a release stream free memory that no work uses. It waits for no work, and nobody else has the memory until
    /// [`MemoryCalls::pass`] has returned (both measured on an H200, driver 580).
    fn free_on(&self, addr: u64, stream: ReleaseStream) -> Status;
    /// Waits until a release stream has freed what it was to free.
    fn pass(&self, stream: ReleaseStream) -> Status;
    /// Managed memory of this size.
    ///
    /// # Errors
    /// The library's; 801 where the device cannot use managed memory while the host does.
    fn managed(&self, device: Device, bytes: usize) -> Result<u64, Status>;
    /// Pinned host memory that the device can use.
    ///
    /// # Errors
    /// The library's.
    fn host(&self, bytes: usize) -> Result<u64, Status>;
    fn free_host(&self, addr: u64) -> Status;
    /// Fills memory, in the order of the default stream.
    fn fill(&self, addr: u64, byte: u8, bytes: usize) -> Status;
    /// Waits for all work of the current context.
    fn synchronize(&self) -> Status;
    /// An event behind all work of a context, made if there is none; `None` where there is no such
    /// thing. Nothing may capture meanwhile.
    fn behind_all(&self, context: u64, event: Option<Event>) -> Option<Event>;
    /// Whether there are such events.
    fn tells_all(&self) -> bool;
    /// Whether an event is over.
    fn completed(&self, event: Event) -> bool;
    fn wait(&self, event: Event) -> Status;
    fn drop_event(&self, event: Event);
}

/// The calls of a vendor.
pub(crate) fn calls(vendor: Vendor) -> &'static dyn MemoryCalls {
    match vendor {
        Vendor::Cuda => &Cuda,
        Vendor::Hip => &Hip,
    }
}

impl dyn MemoryCalls {
    /// Runs `f` in a context, with calls allowed that a capture of this thread forbids.
    pub(crate) fn within<R>(&self, context: u64, f: impl FnOnce() -> R) -> R {
        let _inside = Inside { calls: self, mode: self.relax(), entered: self.enter(context) };
        f()
    }
}

/// What a thread was before it entered a context: it is that again when this goes, however that comes about.
struct Inside<'a> {
    calls: &'a dyn MemoryCalls,
    mode: i32,
    entered: bool,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.entered {
            self.calls.leave();
        }
        self.calls.unrelax(self.mode);
    }
}

/// `CUDA_ERROR_NOT_SUPPORTED`, `hipErrorNotSupported`.
const NOT_SUPPORTED: Status = 801;

/// The answer of a call that hands out an address.
fn made(status: Option<Status>, addr: u64) -> Result<u64, Status> {
    match status {
        Some(SUCCESS) => Ok(addr),
        status => Err(status.unwrap_or(SYMBOL_NOT_FOUND)),
    }
}

fn answer(status: Option<Status>) -> Status {
    status.unwrap_or(SYMBOL_NOT_FOUND)
}

/// Whether a device has what frees in the order of streams.
///
/// # Errors
/// The driver's.
fn has_pools(device: Device) -> Result<bool, Status> {
    let mut pools = 0;
    if driver::frees_in_order() {
        // SAFETY: rule of answers: the call writes a local of the type that its row declares. The driver checks the
        // device.
        made(unsafe { driver::cuDeviceGetAttribute(&mut pools, CUDA_POOLS, device) }, 0)?;
    }
    Ok(pools != 0)
}

struct Cuda;

impl MemoryCalls for Cuda {
    fn sees_all(&self) -> bool {
        true
    }

    fn enter(&self, context: u64) -> bool {
        cuda::enter(context)
    }

    fn leave(&self) {
        cuda::leave();
    }

    fn relax(&self) -> i32 {
        cuda::relax()
    }

    fn unrelax(&self, before: i32) {
        cuda::exchange(before);
    }

    fn free(&self, addr: u64) -> Status {
        // SAFETY: rule of the pool's memory: the block goes back once, and no one else has it.
        answer(unsafe { driver::cuMemFree_v2(addr) })
    }

    fn device(&self, bytes: usize) -> Result<u64, Status> {
        type MemAlloc = unsafe extern "C" fn(*mut u64, usize) -> Status;
        let real = driver::real(Function::cuMemAlloc_v2);
        if real == 0 {
            return Err(SYMBOL_NOT_FOUND);
        }
        let mut addr = 0;
        // SAFETY: the slot holds cuMemAlloc_v2, which has this type. Rule of answers: `addr` takes the address.
        let status = unsafe { std::mem::transmute::<usize, MemAlloc>(real)(&mut addr, bytes) };
        made(Some(status), addr)
    }

    fn free_bytes(&self) -> Option<u64> {
        cuda::Cuda.memory_info().map(|(free, _)| free)
    }

    fn has_release_streams(&self, device: Device) -> bool {
        has_pools(device).unwrap_or(true)
    }

    fn release_stream(&self, device: Device) -> Result<Option<ReleaseStream>, Status> {
        if !has_pools(device)? {
            return Ok(None);
        }
        let mut stream = null_mut();
        // SAFETY: rule of answers: the call writes a local of the type that its row declares.
        made(unsafe { driver::cuStreamCreate(&mut stream, NON_BLOCKING) }, 0)?;
        Ok(Some(stream as ReleaseStream))
    }

    fn end_release_stream(&self, stream: ReleaseStream) {
        // SAFETY: `release_stream` made this stream, and only its owner knows it. The owner ends it once.
        let _ = unsafe { driver::cuStreamDestroy_v2(stream as Stream) };
    }

    fn free_on(&self, addr: u64, stream: ReleaseStream) -> Status {
        // SAFETY: rule of the pool's memory: the block goes back once. `release_stream` made the stream, and
        // it is alive.
        answer(unsafe { driver::cuMemFreeAsync(addr, stream as Stream) })
    }

    fn pass(&self, stream: ReleaseStream) -> Status {
        // SAFETY: `release_stream` made this stream, and its owner ends it only later.
        answer(unsafe { driver::cuStreamSynchronize(stream as Stream) })
    }

    fn managed(&self, device: Device, bytes: usize) -> Result<u64, Status> {
        let (mut concurrent, mut addr) = (0, 0);
        // SAFETY: rule of answers: each call writes a local of the type that its row declares. The
        // driver checks the device.
        unsafe {
            let known = driver::cuDeviceGetAttribute(&mut concurrent, CUDA_CONCURRENT, device) == Some(SUCCESS);
            if !known || concurrent == 0 {
                return Err(NOT_SUPPORTED);
            }
            made(driver::cuMemAllocManaged(&mut addr, bytes, GLOBAL), addr)
        }
    }

    fn host(&self, bytes: usize) -> Result<u64, Status> {
        let (mut host, mut addr) = (0, 0);
        // SAFETY: rule of answers: each call writes a local of the type that its row declares.
        // `host` is what the first call gave, and goes back once if the second fails.
        unsafe {
            let host = made(driver::cuMemHostAlloc(&mut host, bytes, MAPPED), 0).map(|_| host)?;
            made(driver::cuMemHostGetDevicePointer_v2(&mut addr, host, 0), 0).inspect_err(|_| {
                let _ = driver::cuMemFreeHost(host);
            })?;
            // One address for both, as on every 64-bit system; else it could not be freed by it.
            if addr == host { Ok(addr) } else { Err(NOT_SUPPORTED) }
        }
    }

    fn free_host(&self, addr: u64) -> Status {
        // SAFETY: rule of the pool's memory: `host` gave this memory, and it goes back once.
        answer(unsafe { driver::cuMemFreeHost(addr) })
    }

    fn fill(&self, addr: u64, byte: u8, bytes: usize) -> Status {
        // SAFETY: rule of the pool's memory: the block has at least `bytes` bytes, and no one else
        // has it.
        answer(unsafe { driver::cuMemsetD8_v2(addr, byte, bytes) })
    }

    fn synchronize(&self) -> Status {
        // SAFETY: cuCtxSynchronize takes no arguments, so it needs nothing of its caller.
        answer(unsafe { driver::cuCtxSynchronize() })
    }

    fn behind_all(&self, context: u64, event: Option<Event>) -> Option<Event> {
        // SAFETY: rule of answers: a new event's handle goes to a local. An event that is passed
        // was made here, in this context, which our caller holds.
        unsafe {
            let event = match event {
                Some(event) => event as Opaque,
                None => {
                    let mut event = null_mut();
                    made(driver::cuEventCreate(&mut event, NO_TIMING), 0).ok()?;
                    event
                }
            };
            if driver::cuCtxRecordEvent(context as Context, event) != Some(SUCCESS) {
                let _ = driver::cuEventDestroy_v2(event);
                return None;
            }
            Some(event as Event)
        }
    }

    fn tells_all(&self) -> bool {
        driver::has_context_events()
    }

    fn completed(&self, event: Event) -> bool {
        // SAFETY: `behind_all` made this event, and `drop_event` has not ended it yet.
        unsafe { driver::cuEventQuery(event as Opaque) == Some(SUCCESS) }
    }

    fn wait(&self, event: Event) -> Status {
        // SAFETY: `behind_all` made this event, and `drop_event` has not ended it yet.
        answer(unsafe { driver::cuEventSynchronize(event as Opaque) })
    }

    fn drop_event(&self, event: Event) {
        // SAFETY: `behind_all` made this event. Nothing waits for it any more, and it is destroyed
        // once.
        let _ = unsafe { driver::cuEventDestroy_v2(event as Opaque) };
    }
}

struct Hip;

impl MemoryCalls for Hip {
    /// HIP has no boundary below its runtime where all work could be counted.
    fn sees_all(&self) -> bool {
        false
    }

    fn enter(&self, context: u64) -> bool {
        hip_backend::enter(context)
    }

    fn leave(&self) {
        hip_backend::leave();
    }

    fn relax(&self) -> i32 {
        hip_backend::relax()
    }

    fn unrelax(&self, before: i32) {
        hip_backend::exchange(before);
    }

    fn free(&self, addr: u64) -> Status {
        // SAFETY: rule of the pool's memory: the block goes back once, and no one else has it.
        answer(unsafe { hip_runtime::hipFree(addr) })
    }

    fn device(&self, _: usize) -> Result<u64, Status> {
        Err(NOT_SUPPORTED)
    }

    fn free_bytes(&self) -> Option<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: rule of answers: the call writes locals of the type that its row declares.
        let status = unsafe { hip_runtime::hipMemGetInfo(&mut free, &mut total) };
        (status == Some(SUCCESS)).then_some(free as u64)
    }

    /// What hipFreeAsync does with memory of hipMalloc is not known.
    fn has_release_streams(&self, _: Device) -> bool {
        false
    }

    fn release_stream(&self, _: Device) -> Result<Option<ReleaseStream>, Status> {
        Ok(None)
    }

    fn end_release_stream(&self, _: ReleaseStream) {}

    fn free_on(&self, _: u64, _: ReleaseStream) -> Status {
        NOT_SUPPORTED
    }

    fn pass(&self, _: ReleaseStream) -> Status {
        NOT_SUPPORTED
    }

    /// Without XNACK managed memory is not moved, and what does not fit fails on first touch.
    fn managed(&self, device: Device, bytes: usize) -> Result<u64, Status> {
        let (mut concurrent, mut addr) = (0, 0);
        // SAFETY: rule of answers: each call writes a local of the type that its row declares. HIP
        // checks the device.
        unsafe {
            let known = hip_runtime::hipDeviceGetAttribute(&mut concurrent, HIP_CONCURRENT, device) == Some(SUCCESS);
            if !known || concurrent == 0 || !xnack() {
                return Err(NOT_SUPPORTED);
            }
            made(hip_runtime::hipMallocManaged(&mut addr, bytes, GLOBAL), addr)
        }
    }

    fn host(&self, bytes: usize) -> Result<u64, Status> {
        let (mut host, mut addr) = (0, 0);
        // SAFETY: rule of answers: each call writes a local of the type that its row declares.
        // `host` is what the first call gave, and goes back once if the second fails.
        unsafe {
            let host = made(hip_runtime::hipHostMalloc(&mut host, bytes, MAPPED), 0).map(|_| host)?;
            made(hip_runtime::hipHostGetDevicePointer(&mut addr, host, 0), 0).inspect_err(|_| {
                let _ = hip_runtime::hipHostFree(host);
            })?;
            if addr == host { Ok(addr) } else { Err(NOT_SUPPORTED) }
        }
    }

    fn free_host(&self, addr: u64) -> Status {
        // SAFETY: rule of the pool's memory: `host` gave this memory, and it goes back once.
        answer(unsafe { hip_runtime::hipHostFree(addr) })
    }

    fn fill(&self, addr: u64, byte: u8, bytes: usize) -> Status {
        // SAFETY: rule of the pool's memory: the block has at least `bytes` bytes, and no one else
        // has it.
        answer(unsafe { hip_runtime::hipMemset(addr, byte.into(), bytes) })
    }

    fn synchronize(&self) -> Status {
        // SAFETY: hipDeviceSynchronize takes no arguments, so it needs nothing of its caller.
        answer(unsafe { hip_runtime::hipDeviceSynchronize() })
    }

    fn behind_all(&self, _: u64, _: Option<Event>) -> Option<Event> {
        None
    }

    fn tells_all(&self) -> bool {
        false
    }

    fn completed(&self, _: Event) -> bool {
        false
    }

    fn wait(&self, _: Event) -> Status {
        NOT_SUPPORTED
    }

    fn drop_event(&self, _: Event) {}
}

/// Whether page faults of the device are served, which managed memory that moves needs.
fn xnack() -> bool {
    std::env::var_os("HSA_XNACK").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Mutex;

    /// Says what it was asked to do with its thread.
    #[derive(Default)]
    struct CallLog(Mutex<Vec<String>>);

    impl CallLog {
        fn note(&self, what: String) {
            self.0.lock().unwrap().push(what);
        }
    }

    #[rustfmt::skip]
    impl MemoryCalls for CallLog {
        fn sees_all(&self) -> bool { false }
        fn enter(&self, context: u64) -> bool { self.note(format!("enter {context}")); context != 0 }
        fn leave(&self) { self.note("leave".into()); }
        fn relax(&self) -> i32 { self.note("relax".into()); 5 }
        fn unrelax(&self, before: i32) { self.note(format!("unrelax {before}")); }
        fn free(&self, _: u64) -> Status { SUCCESS }
        fn device(&self, _: usize) -> Result<u64, Status> { Err(NOT_SUPPORTED) }
        fn free_bytes(&self) -> Option<u64> { None }
        fn has_release_streams(&self, _: Device) -> bool { false }
        fn release_stream(&self, _: Device) -> Result<Option<ReleaseStream>, Status> { Ok(None) }
        fn end_release_stream(&self, _: ReleaseStream) {}
        fn free_on(&self, _: u64, _: ReleaseStream) -> Status { NOT_SUPPORTED }
        fn pass(&self, _: ReleaseStream) -> Status { NOT_SUPPORTED }
        fn managed(&self, _: Device, _: usize) -> Result<u64, Status> { Err(NOT_SUPPORTED) }
        fn host(&self, _: usize) -> Result<u64, Status> { Err(NOT_SUPPORTED) }
        fn free_host(&self, _: u64) -> Status { SUCCESS }
        fn fill(&self, _: u64, _: u8, _: usize) -> Status { SUCCESS }
        fn synchronize(&self) -> Status { SUCCESS }
        fn behind_all(&self, _: u64, _: Option<Event>) -> Option<Event> { None }
        fn tells_all(&self) -> bool { false }
        fn completed(&self, _: Event) -> bool { false }
        fn wait(&self, _: Event) -> Status { NOT_SUPPORTED }
        fn drop_event(&self, _: Event) {}
    }

    /// However a call within a context ends, its thread is in its own context again, with its own capture mode.
    #[test]
    fn a_call_within_a_context_that_unwinds_leaves_it() {
        let told = CallLog::default();
        for context in [9, 0] {
            let calls: &dyn MemoryCalls = &told;
            let thrown = catch_unwind(AssertUnwindSafe(|| calls.within(context, || resume_unwind(Box::new(7)))));
            assert!(thrown.is_err());
        }
        let told = told.0.into_inner().unwrap().join(", ");
        assert_eq!(told, "relax, enter 9, leave, unrelax 5, relax, enter 0, unrelax 5");
    }
}
