//! The program's handles: their state, the launches that their next launches wait for, and permission for new ones.

use super::class::Class;
use super::handle::{Body, Handle, HandleTable, INVALID, Pending};
use super::library::Library;
use super::real::{Lease, NOWHERE, StreamKey};
use crate::backend::graphs::StreamArg;
use crate::gate;
use crate::process::lock::lock;
use crate::process::panics;
use crate::progress::queries::capturing;
use crate::records;
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{Pinned, Severity, Vendor};
use rustc_hash::FxHashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};

/// `CUDA_ERROR_UNKNOWN`: the answer if bookkeeping failed and the library was not asked.
const UNKNOWN: Status = 999;

/// The handles of the program's execs. The fields that a launch reads come first.
#[repr(C)]
pub(crate) struct Handles {
    execs: HandleTable<Handle>,
    library: Library,
    /// The reason why new handles are the library's own: a [`Pinned`]. 0: new handles are the shim's.
    closed: AtomicU8,
    /// The last launches on execs that were since taken from the handles that made these launches, by the address of the
    /// handle's slot. The lock is never held during a real call.
    pendings: Mutex<FxHashMap<usize, Pending>>,
}

impl Handles {
    /// Returns `None` if no handles can be reserved.
    pub(super) fn new(library: Library, start: &'static AtomicUsize) -> Option<Self> {
        let (execs, closed) = (HandleTable::new(start)?, AtomicU8::new(0));
        Some(Self { execs, library, closed, pendings: Mutex::default() })
    }

    #[inline(always)]
    pub(super) fn execs(&self) -> &HandleTable<Handle> {
        &self.execs
    }

    /// Returns a handle in use, its locked body, and its class.
    pub(super) fn live(&self, index: u32) -> Result<(&'static Handle, MutexGuard<'static, Body>, Arc<Class>), Status> {
        let handle = self.execs.get(index).ok_or(INVALID)?;
        let body = lock(&handle.body);
        match (body.apart().ended, body.class.clone()) {
            (Some(status), _) => Err(status),
            (None, class) => Ok((handle, body, class.ok_or(INVALID)?)),
        }
    }

    /// Stores a handle's slot in the ledger.
    pub(crate) fn listed(&self, index: u32, slot: u32) {
        if let Some(handle) = self.execs.get(index) {
            handle.slot.store(slot, Relaxed);
        }
    }

    /// Checks that new handles may be the shim's.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn is_open(&self) -> Result<(), Pinned> {
        match self.closed.load(Relaxed) {
            0 => Ok(()),
            why => Err(Pinned::from_u8(why).unwrap_or(Pinned::UnknownCall)),
        }
    }

    /// Makes new handles the library's own from now on.
    pub(crate) fn close(&self, why: Pinned) {
        self.closed.store(why as u8, Relaxed);
    }

    /// Returns the vendor, from the line that a launch reads anyway.
    #[inline(always)]
    pub(super) fn vendor(&self) -> Vendor {
        self.library.vendor
    }

    /// Contains a panic of the shim: new handles are the library's own from then on.
    #[inline(always)]
    pub(super) fn contain<R>(&self, f: impl FnOnce() -> R) -> Result<R, Status> {
        catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
            // The payload is leaked on purpose: dropping it could panic once more.
            std::mem::forget(panic);
            self.close(Pinned::Off);
            gate::record_if_started(|shim| {
                shim.count(counters::PANICS, 1);
                shim.message(Severity::Error, &format!("{} and is off", panics::failed("the graph cache")));
            });
            UNKNOWN
        })
    }

    /// Gives an exec to a handle, and tells the records if the handle had none.
    pub(super) fn publish(&self, lease: Lease, index: u32, handle: &Handle) {
        if handle.resident().is_none() {
            let slot = handle.slot.load(Relaxed);
            gate::record_if_started(|shim| records::handles::resident(shim, slot));
        }
        handle.gets(&lease, index);
    }

    /// Takes an exec from its handle.
    pub(super) fn evict(&self, lease: &mut Lease, pending: bool, stream_key: StreamKey) {
        let real = lease.real();
        let handle = real.handle_index().and_then(|index| self.execs.get(index));
        if let Some(handle) = handle {
            let slot = handle.slot.load(Relaxed);
            gate::record_if_started(|shim| records::handles::left(shim, slot));
            if let Some(event) = lease.body().event.take_if(|_| pending) {
                self.set_pending(handle, Pending { event, stream_key });
            }
            // The handle's exec is cleared last: a next launch, or the handle's end, that sees it cleared also sees the
            // stores above.
            handle.loses(lease);
        }
        real.marked.store(false, Relaxed);
        real.stream_key.store(if pending { stream_key } else { NOWHERE }, Relaxed);
    }

    /// Takes an ending exec from its handle.
    pub(super) fn lose(&self, lease: &Lease) {
        let real = lease.real();
        if let Some(handle) = real.handle_index().and_then(|index| self.execs.get(index))
            && handle.real.is(real)
        {
            handle.loses(lease);
        }
        real.set_handle(None);
    }

    /// Takes out the launch that the handle's next one has to wait for.
    fn take_pending(&self, handle: &Handle) -> Option<Pending> {
        if !handle.waits.load(Acquire) {
            return None;
        }
        let mut all = lock(&self.pendings);
        handle.waits.store(false, Release);
        all.remove(&key(handle))
    }

    /// Makes the next launch of a handle wait for this one.
    pub(super) fn set_pending(&self, handle: &Handle, pending: Pending) {
        let mut all = lock(&self.pendings);
        handle.waits.store(true, Release);
        let old = all.insert(key(handle), pending);
        drop(all);
        self.forget(old);
    }

    fn forget(&self, pending: Option<Pending>) {
        pending.into_iter().for_each(|pending| self.library.calls.drop_event(pending.event));
    }

    /// Drops the launch that the handle's next launch would wait for. If the context of that launch is `gone`, so is
    /// the event.
    pub(super) fn drop_pending(&self, handle: &Handle, gone: bool) {
        self.forget(self.take_pending(handle).filter(|_| !gone));
    }

    /// Makes a stream wait for the handle's last launch, if that was made with another exec on another stream.
    pub(super) fn wait_for_pending(&self, handle: &Handle, to: StreamArg, stream_key: StreamKey) -> Option<Pending> {
        let pending = self.take_pending(handle)?;
        let calls = self.library.calls;
        // A stream that captures is not touched. Its launch is refused anyway.
        if pending.stream_key != stream_key && !calls.completed(pending.event) && !(capturing() && calls.captures(to)) {
            calls.wait(to, pending.event);
        }
        Some(pending)
    }

    /// Ends the wait for a pending launch. If the launch that waited was refused, the next one has to wait instead;
    /// returns true then.
    pub(super) fn waited(&self, handle: &Handle, pending: Option<Pending>, status: Status) -> bool {
        let mut over = pending;
        if status != SUCCESS && over.is_some() {
            let mut all = lock(&self.pendings);
            // If there is another launch already, that one stays.
            if !handle.waits.swap(true, AcqRel) {
                all.extend(over.take().map(|pending| (key(handle), pending)));
                return true;
            }
        }
        self.forget(over);
        false
    }

    /// Renames a stream in all launches on it.
    pub(super) fn rename_stream(&self, stream_key: StreamKey, to: StreamKey) {
        let mut all = lock(&self.pendings);
        all.values_mut().filter(|pending| pending.stream_key == stream_key).for_each(|its| its.stream_key = to);
    }
}

/// Returns the address of a handle's slot, which never changes.
fn key(handle: &Handle) -> usize {
    std::ptr::from_ref(handle) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::graphs::Reading;
    use crate::backend::source::{Packed, Source};
    use crate::graphs::class::{Class, Shape};
    use crate::graphs::real::LOST;
    use crate::graphs::tests::{CONTEXT, EVENT, FakeLibrary, library, start};

    fn handles() -> (Handles, &'static FakeLibrary) {
        let (library, fake) = library(FakeLibrary::default());
        (Handles::new(library, start()).unwrap(), fake)
    }

    #[test]
    fn after_a_panic_of_ours_new_handles_are_the_librarys_own() {
        let (handles, _) = handles();
        assert_eq!((handles.contain(|| 7), handles.is_open()), (Ok(7), Ok(())));
        assert_eq!(handles.contain(|| panic!("for a test")), Err::<(), _>(UNKNOWN));
        assert_eq!(handles.is_open(), Err(Pinned::Off));
    }

    #[test]
    fn only_a_handle_in_use_is_live() {
        let (handles, _) = handles();
        let told = |index| handles.live(index).err();
        assert_eq!(told(0), Some(INVALID), "never given out");
        let (index, handle) = handles.execs().take().unwrap();
        assert_eq!(told(index), Some(INVALID), "not in use");
        let shape = Shape::new(Packed::default(), 1, &Reading::default(), CONTEXT, Source::default());
        lock(&handle.body).class = Some(Arc::new(Class::new(Arc::new(shape), 0, false)));
        assert_eq!(told(index), None);
        lock(&handle.body).apart_mut().ended = Some(709);
        assert_eq!(told(index), Some(709));
    }

    #[test]
    fn a_launch_that_is_waited_for_is_left_until_the_next_one_succeeds() {
        let (handles, fake) = handles();
        let (_, handle) = handles.execs().take().unwrap();
        let to = StreamArg::new(std::ptr::null_mut(), false);
        let pending = || Pending { event: EVENT, stream_key: LOST };
        handles.set_pending(handle, pending());
        handles.set_pending(handle, pending());
        assert_eq!(fake.dropped_events.load(SeqCst), 1, "the one before");
        let taken = handles.wait_for_pending(handle, to, LOST);
        assert!(taken.is_some() && handles.wait_for_pending(handle, to, LOST).is_none());
        assert!(handles.waited(handle, taken, INVALID), "refused: the next launch waits");
        let taken = handles.wait_for_pending(handle, to, LOST);
        assert!(!handles.waited(handle, taken, SUCCESS));
        assert!(handles.wait_for_pending(handle, to, LOST).is_none());
        assert_eq!(fake.dropped_events.load(SeqCst), 2);
        handles.set_pending(handle, pending());
        handles.drop_pending(handle, true);
        assert_eq!(fake.dropped_events.load(SeqCst), 2, "it went with its context");
    }
}
