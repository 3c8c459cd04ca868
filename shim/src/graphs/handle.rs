//! Handles of ours, and what is behind each. A handle is an address in a reserved range, so two comparisons tell it
//! from the driver's handles.
//!
//! Nothing can be read or written at such an address. What is behind a handle is never freed, only used again. So a
//! program that uses a handle after its end finds what is there now, and nothing crashes.

use super::class::{Class, Template};
use super::needed::Need;
use super::nodes::KnownNodes;
use super::real::{Lease, RealExec, StreamKey};
use crate::ledger::table::NO_SLOT;
use crate::process::heap;
use crate::process::lock::lock;
use crate::vendor::graphs::Event;
use crate::vendor::source::Source;
use gpumem_abi::types::Status;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

/// Bytes between two handles.
const STRIDE: usize = 64;
/// The most handles that a process can have at a time.
const HANDLES: usize = 1 << 20;
/// How many slots are made at a time.
const CHUNK: usize = 32;
const CHUNKS: usize = HANDLES / CHUNK;
/// Chunks that a launch finds by one load. The first of them lie in a cache line that the launch reads anyway.
const NEAR: usize = 31;

/// `CUDA_ERROR_INVALID_VALUE`: what a call with a handle that is not in use answers (measured on an
/// H200, driver 580).
pub(crate) const INVALID: Status = 1;

/// Handles of one kind. `start` is a static: a child of `fork` still has to know its parent's.
#[repr(C)]
pub(crate) struct Handles<T: 'static> {
    near: [AtomicPtr<T>; NEAR],
    /// All other chunks. Most of them are never touched.
    far: Box<[AtomicPtr<T>]>,
    start: &'static AtomicUsize,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    made: usize,
    /// Ended handles. The one that ended first is used first.
    ended: std::collections::VecDeque<u32>,
}

/// Index of a handle if it lies in the range that begins at `start`.
#[inline(always)]
pub(crate) fn index_in(start: &AtomicUsize, handle: usize) -> Option<u32> {
    let start = start.load(Relaxed);
    let offset = handle.wrapping_sub(start);
    (offset < HANDLES * STRIDE && start != 0).then_some((offset / STRIDE) as u32)
}

impl<T: Default> Handles<T> {
    /// `None` if the range cannot be reserved.
    pub(crate) fn new(start: &'static AtomicUsize) -> Option<Self> {
        if start.load(Acquire) == 0 {
            // SAFETY: without MAP_FIXED the kernel picks addresses that are free. Nothing can
            // access the range, and it takes no memory.
            let at = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                libc::mmap(null_mut(), HANDLES * STRIDE, libc::PROT_NONE, flags, -1, 0)
            };
            if at == libc::MAP_FAILED {
                return None;
            }
            if start.compare_exchange(0, at as usize, AcqRel, Acquire).is_err() {
                // SAFETY: this range was mapped just above by this thread. Another thread published its own range
                // first, so no address of this one was ever given out.
                unsafe { libc::munmap(at, HANDLES * STRIDE) };
            }
        }
        let near = [const { AtomicPtr::new(null_mut()) }; NEAR];
        Some(Self { near, far: heap::zeroes(CHUNKS - NEAR), start, free: Mutex::default() })
    }

    fn chunk(&self, index: usize) -> Option<&AtomicPtr<T>> {
        let chunk = index / CHUNK;
        self.near.get(chunk).or_else(|| self.far.get(chunk - NEAR))
    }

    /// Where the range begins.
    pub(crate) fn start(&self) -> &AtomicUsize {
        self.start
    }

    /// A handle that is not in use; `None` if there is none left.
    pub(crate) fn take(&self) -> Option<(u32, &'static T)> {
        let mut free = lock(&self.free);
        if let Some(index) = free.ended.pop_front() {
            return Some((index, self.get(index)?));
        }
        let index = free.made;
        if index >= HANDLES {
            return None;
        }
        let chunk = self.chunk(index)?;
        if chunk.load(Acquire).is_null() {
            let slots: Box<[T]> = (0..CHUNK).map(|_| T::default()).collect();
            chunk.store(Box::leak(slots).as_mut_ptr(), Release);
        }
        free.made += 1;
        Some((index as u32, self.get(index as u32)?))
    }

    /// Gives a handle back.
    pub(crate) fn give(&self, index: u32) {
        lock(&self.free).ended.push_back(index);
    }

    /// What is behind a handle; `None` if it was never given out.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&'static T> {
        let chunk = match self.near.get(index as usize / CHUNK) {
            Some(chunk) => chunk.load(Acquire),
            None => self.far_chunk(index),
        };
        // SAFETY: not null, so it is a leaked array of CHUNK slots, which is never freed. The
        // remainder is below CHUNK.
        (!chunk.is_null()).then(|| unsafe { &*chunk.add(index as usize % CHUNK) })
    }

    #[cold]
    #[inline(never)]
    fn far_chunk(&self, index: u32) -> *mut T {
        self.chunk(index as usize).map_or(null_mut(), |chunk| chunk.load(Acquire))
    }

    /// The handle of an index, as the program has it.
    pub(crate) fn address(&self, index: u32) -> *mut c_void {
        (self.start.load(Relaxed) + index as usize * STRIDE) as *mut c_void
    }

    /// All that were ever given out.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &'static T)> {
        let made = lock(&self.free).made as u32;
        (0..made).filter_map(|index| Some((index, self.get(index)?)))
    }
}

/// An exec as the program knows it. What a launch reads comes first and lies in one cache line. That line is mostly not
/// in the cache, because a program comes back to a handle only when the device is done.
#[repr(C, align(64))]
pub(crate) struct Handle {
    /// The real exec that holds what this handle means. Null: none does now.
    pub real: AtomicPtr<RealExec>,
    /// Slot in the ledger.
    pub slot: AtomicU32,
    /// The handle had an exec, and another handle took it.
    pub lost_its: AtomicBool,
    /// Locked during the real calls that launches and changes of this handle need.
    pub body: Mutex<Body>,
    /// The last launch on an exec that was taken from this handle since. The lock is never held during a real call.
    pub pending: Mutex<Option<Pending>>,
}

/// What a handle means.
#[derive(Default)]
pub(crate) struct Body {
    /// `None`: the handle is not in use, or has `ended`.
    pub class: Option<Arc<Class>>,
    /// What its nodes hold. A class that is `alone` has its template instead.
    pub source: Option<Arc<Source>>,
    pub template: Option<Arc<Template>>,
    /// Nodes that the program set since then, by index.
    pub changes: Vec<(u32, Box<[u8]>)>,
    /// Nodes that the program switched off.
    pub disabled: Vec<u32>,
    /// Its exec stays with it for good.
    pub owned: bool,
    /// The graph that it came from: the handle, and the serial if the records have one. Setters name the nodes of this
    /// graph.
    pub graph: (u64, Option<u64>),
    pub nodes: Option<KnownNodes>,
    /// What it needs of what the cache's bounds limit.
    pub need: Need,
    /// Its context has ended, and with it all that the handle meant. Calls with the handle answer this status.
    pub ended: Option<Status>,
}

/// A launch whose completion the next launch of the same handle has to wait for.
pub(crate) struct Pending {
    pub event: Event,
    pub stream_key: StreamKey,
}

impl Default for Handle {
    fn default() -> Self {
        Self {
            real: AtomicPtr::new(null_mut()),
            slot: AtomicU32::new(NO_SLOT),
            lost_its: AtomicBool::new(false),
            body: Mutex::default(),
            pending: Mutex::default(),
        }
    }
}

impl Handle {
    /// Its real exec, if it has one.
    #[inline(always)]
    pub(crate) fn resident(&self) -> Option<&'static RealExec> {
        // SAFETY: null, or a RealExec out of a leaked box: real execs are used again and never freed.
        unsafe { self.real.load(Acquire).as_ref() }
    }

    /// Its real exec, leased. `None` if it has none. Waits only for launches of this same handle, which would wait for
    /// one another in the library too.
    pub(crate) fn lease(&self) -> Option<Lease> {
        loop {
            let real = self.resident()?;
            if real.lost.load(Acquire) {
                self.real.store(null_mut(), Release);
                return None;
            }
            match real.lease() {
                Some(lease) if self.resident().is_some_and(|now| std::ptr::eq(now, real)) => return Some(lease),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Takes the exec that this lease is of from the handle.
    pub(crate) fn loses(&self, lease: &Lease) {
        lease.real().set_handle(None);
        self.lost_its.store(true, Relaxed);
        self.real.store(null_mut(), Release);
    }

    /// Gives the exec that this lease is of to this handle, which has this index.
    pub(crate) fn gets(&self, lease: &Lease, index: u32) {
        lease.real().set_handle(Some(index));
        self.real.store(std::ptr::from_ref(lease.real()).cast_mut(), Release);
    }
}

/// The context of what a handle means; 0 for none.
pub(crate) fn context_of(body: &Body) -> u64 {
    body.class.as_ref().map_or(0, |class| class.shape.context)
}

/// Bytes that a handle's source takes.
pub(crate) fn source_bytes(body: &Body) -> u64 {
    let changes: usize = body.changes.iter().map(|(_, record)| record.len()).sum();
    body.source.as_ref().map_or(0, |source| source.bytes())
        + body.nodes.as_ref().map_or(0, KnownNodes::bytes)
        + changes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_told_from_other_addresses_and_used_again() {
        static START: AtomicUsize = AtomicUsize::new(0);
        assert_eq!(index_in(&START, 0), None);
        let handles = Handles::<AtomicUsize>::new(&START).unwrap();
        assert!(handles.get(0).is_none());
        let (first, slot) = handles.take().unwrap();
        slot.store(7, Relaxed);
        let (second, _) = handles.take().unwrap();
        assert_ne!(first, second);
        let address = handles.address(second) as usize;
        assert_eq!(index_in(&START, address), Some(second));
        assert_eq!(index_in(&START, address + 1), Some(second), "addresses inside belong to the handle");
        let start = START.load(Relaxed);
        for other in [0, 1, start - 1, start + HANDLES * STRIDE, usize::MAX, &raw const slot as usize] {
            assert_eq!(index_in(&START, other), None, "{other:#x}");
        }
        handles.give(first);
        let (again, slot) = handles.take().unwrap();
        assert_eq!((again, slot.load(Relaxed)), (first, 7));
        assert_eq!(handles.all().count(), 2);
    }

    #[test]
    fn many_handles_are_behind_one_another() {
        static START: AtomicUsize = AtomicUsize::new(0);
        let handles = Handles::<AtomicUsize>::new(&START).unwrap();
        let many = CHUNK * (NEAR + 3);
        for wanted in 0..many {
            let (index, slot) = handles.take().unwrap();
            slot.store(wanted, Relaxed);
            assert_eq!(index as usize, wanted);
        }
        assert!((0..many).all(|index| handles.get(index as u32).unwrap().load(Relaxed) == index));
        assert!([many, HANDLES - 1, HANDLES].iter().all(|&index| handles.get(index as u32).is_none()));
    }
}
