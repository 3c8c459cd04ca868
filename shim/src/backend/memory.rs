//! Calls that the pool makes to a library: memory, and completion of work on it.
//!
//! Calls are made in the context of the memory ([`MemoryCalls::within`]) and with the thread's capture mode relaxed, so
//! that none is refused or disturbs a capture (measured on an H200, driver 580).

mod cuda;
mod hip;

use crate::process::cancel::Uncancelled;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;

/// An event of ours.
pub(crate) type Event = usize;
/// A stream of ours.
pub(crate) type ReleaseStream = usize;

/// The unit in which a driver takes memory for requests above it, bytes.
pub(crate) const UNIT: u64 = 2 << 20;
/// `…_MEM_ATTACH_GLOBAL`.
const GLOBAL: u32 = 1;
/// `…_PORTABLE | …_DEVICEMAP`.
const MAPPED: u32 = 3;

/// The calls of one vendor's library. A method with a default is one that not each library has.
pub(crate) trait MemoryCalls: Sync {
    /// True if submissions of work and changes of a thread's context are seen, so that an idle device and the current
    /// context are known without a call.
    fn sees_all(&self) -> bool;
    /// Enters a context; returns true if [`MemoryCalls::leave`] has to be called.
    fn enter(&self, context: u64) -> bool;
    fn leave(&self);
    /// Lets this thread make calls that a capture of it forbids; returns the previous mode.
    fn relax(&self) -> i32;
    fn unrelax(&self, before: i32);
    fn free(&self, addr: u64) -> Status;
    /// Returns device memory of the current context that the program does not know of.
    ///
    /// # Errors
    /// The library's; 801 if it is not asked for any.
    fn device(&self, _bytes: usize) -> Result<u64, Status> {
        Err(NOT_SUPPORTED)
    }
    /// Returns the current device's free bytes; `None` if unknown.
    fn free_bytes(&self) -> Option<u64>;
    /// True if a device is known to free memory in stream order: the answer of [`MemoryCalls::release_stream`], without
    /// making a stream.
    fn has_release_streams(&self, _device: Device) -> bool {
        false
    }
    /// Makes a stream in the current context, on which the shim frees and fills memory. `None` if there can be none.
    ///
    /// # Errors
    /// The library's.
    fn release_stream(&self, _device: Device) -> Result<Option<ReleaseStream>, Status> {
        Ok(None)
    }
    fn end_release_stream(&self, _stream: ReleaseStream) {}
    /// Frees unused memory in stream order on the release stream. It waits for no work, and no other request gets the
    /// memory until [`MemoryCalls::pass`] has returned (both measured on an H200, driver 580).
    fn free_on(&self, _addr: u64, _stream: ReleaseStream) -> Status {
        NOT_SUPPORTED
    }
    /// Waits until a release stream has done its frees.
    fn pass(&self, _stream: ReleaseStream) -> Status {
        NOT_SUPPORTED
    }
    /// Returns managed memory of this size.
    ///
    /// # Errors
    /// The library's; 801 if the device cannot use managed memory while the host does.
    fn managed(&self, device: Device, bytes: usize) -> Result<u64, Status>;
    /// Returns pinned host memory that the device can use.
    ///
    /// # Errors
    /// The library's.
    fn host(&self, bytes: usize) -> Result<u64, Status>;
    fn free_host(&self, addr: u64) -> Status;
    /// Fills memory, in the order of the default stream.
    fn fill(&self, addr: u64, byte: u8, bytes: usize) -> Status;
    /// Fills unused memory on a release stream, and waits only for that stream.
    fn fill_on(&self, _addr: u64, _byte: u8, _bytes: usize, _stream: ReleaseStream) -> Status {
        NOT_SUPPORTED
    }
    /// Waits for all work of the current context.
    fn synchronize(&self) -> Status;
    /// Records an event after all work of a context, and makes the event if there is none. `None` if there can be no
    /// such event. Nothing may capture meanwhile.
    fn record_event_after_all(&self, _context: u64, _event: Option<Event>) -> Option<Event> {
        None
    }
    /// True if the vendor has such events.
    fn has_context_events(&self) -> bool {
        false
    }
    /// True if the work before an event has completed.
    fn completed(&self, _event: Event) -> bool {
        false
    }
    fn wait(&self, _event: Event) -> Status {
        NOT_SUPPORTED
    }
    fn drop_event(&self, _event: Event) {}
}

/// Returns a vendor's calls.
pub(crate) fn calls(vendor: Vendor) -> &'static dyn MemoryCalls {
    match vendor {
        Vendor::Cuda => &cuda::Cuda,
        Vendor::Hip => &hip::Hip,
    }
}

impl dyn MemoryCalls {
    /// Runs `f` in a context, and allows calls that a capture of this thread forbids.
    pub(crate) fn within<R>(&self, context: u64, f: impl FnOnce() -> R) -> R {
        let _uncancelled = Uncancelled::new();
        let _inside = Inside { calls: self, mode: self.relax(), entered: self.enter(context), _uncancelled };
        f()
    }
}

/// Restores the thread's context and capture mode on drop, also when unwinding.
struct Inside<'a> {
    calls: &'a dyn MemoryCalls,
    mode: i32,
    entered: bool,
    /// Keeps a cancelled thread from ending in a call of ours: its unwinding would end the process.
    _uncancelled: Uncancelled,
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

fn answer(status: Option<Status>) -> Status {
    status.unwrap_or(SYMBOL_NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Mutex;

    /// Logs the calls on its thread.
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
        fn free_bytes(&self) -> Option<u64> { None }
        fn managed(&self, _: Device, _: usize) -> Result<u64, Status> { Err(NOT_SUPPORTED) }
        fn host(&self, _: usize) -> Result<u64, Status> { Err(NOT_SUPPORTED) }
        fn free_host(&self, _: u64) -> Status { SUCCESS }
        fn fill(&self, _: u64, _: u8, _: usize) -> Status { SUCCESS }
        fn synchronize(&self) -> Status { SUCCESS }
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
