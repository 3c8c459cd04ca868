//! The shim's handles, and their state. A handle is an address in a reserved range, so two comparisons tell it from the
//! driver's handles.
//!
//! Nothing can be read or written at such an address. A handle's state is never freed, only reused. So a program that
//! uses a handle after its end finds the present state, and nothing crashes.

use super::class::{Class, Template};
use super::nodes::KnownNodes;
use super::real::{Lease, RealExec, StreamKey};
use super::resident::Resident;
use crate::backend::graphs::Event;
use crate::backend::source::Source;
use crate::ledger::table::NO_SLOT;
use crate::process::handle_range::{HANDLES, STRIDE};
use crate::process::heap;
use crate::process::lock::lock;
use gpumem_abi::types::Status;
use std::ffi::c_void;
use std::num::NonZeroU64;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

/// Number of slots that are made at a time.
const CHUNK: usize = 32;
const CHUNKS: usize = HANDLES / CHUNK;
/// Chunks that a launch finds by one load. The first of them are in a cache line that the launch reads anyway.
const NEAR: usize = 31;

/// `CUDA_ERROR_INVALID_VALUE`: the status of a call with a handle that is not in use (measured on an H200, driver 580).
pub(crate) const INVALID: Status = 1;

/// Handles of one kind. `start` is a static: a child of `fork` still has to know its parent's range.
#[repr(C)]
pub(crate) struct HandleTable<T: 'static> {
    near: [AtomicPtr<T>; NEAR],
    /// All other chunks. Most of them are never touched.
    far: Box<[AtomicPtr<T>]>,
    start: &'static AtomicUsize,
    free: Mutex<FreeHandles>,
}

#[derive(Default)]
struct FreeHandles {
    made: usize,
    /// Ended handles. The one that ended first is reused first.
    ended: std::collections::VecDeque<u32>,
}

impl<T: Default> HandleTable<T> {
    /// Returns `None` if the range cannot be reserved.
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

    /// Returns the start of the range.
    pub(crate) fn start(&self) -> &AtomicUsize {
        self.start
    }

    /// Takes a handle that is not in use; `None` if none is left.
    #[inline(always)]
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
    #[inline(always)]
    pub(crate) fn give(&self, index: u32) {
        lock(&self.free).ended.push_back(index);
    }

    /// Returns the state of a handle; `None` if it was never given out.
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

    /// Returns the handle of an index, as the program has it.
    pub(crate) fn address(&self, index: u32) -> *mut c_void {
        (self.start.load(Relaxed) + index as usize * STRIDE) as *mut c_void
    }

    /// Returns all handles that were ever given out.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &'static T)> {
        let made = lock(&self.free).made as u32;
        (0..made).filter_map(|index| Some((index, self.get(index)?)))
    }
}

/// An exec as the program knows it. It fits in one cache line. That line is mostly not in the cache, because a program
/// comes back to a handle only when the device is done. A program may hold very many handles without an exec, so rarely
/// needed fields are separate (docs/decisions/graphs.md).
#[repr(C, align(64))]
pub(crate) struct Handle {
    /// The real exec that holds this handle's content, if one does.
    pub real: Resident,
    /// Slot in the ledger.
    pub slot: AtomicU32,
    /// The handle had an exec, and another handle took it.
    pub lost_its: AtomicBool,
    /// The next launch has to wait for one that is pending ([`Pending`]).
    pub waits: AtomicBool,
    /// Locked during the real calls that launches and changes of this handle need.
    pub body: Mutex<Body>,
}

/// Content of a handle.
#[derive(Default)]
pub(crate) struct Body {
    /// `None`: the handle is not in use, or has `ended`.
    pub class: Option<Arc<Class>>,
    /// The content of its nodes. A class that is `alone` has its template instead.
    pub source: Option<Arc<Source>>,
    /// The graph that it came from, and the graph's serial if the records have one. Setters name the nodes of this
    /// graph.
    pub graph: u64,
    pub graph_serial: Option<NonZeroU64>,
    pub apart: Option<Box<Apart>>,
}

/// Fields that few handles need.
#[derive(Default)]
pub(crate) struct Apart {
    pub template: Option<Arc<Template>>,
    /// The nodes of its graph, which the program may have.
    pub nodes: Option<KnownNodes>,
    pub edits: Option<Box<Edits>>,
    /// Its exec stays with it for good.
    pub owned: bool,
    /// Its context has ended, and with it the handle's content. Calls with the handle return this status.
    pub ended: Option<Status>,
}

/// Changes by the program to single nodes of an exec.
#[derive(Clone, Default)]
pub(crate) struct Edits {
    /// Nodes that the program set since the source was read, by index.
    pub changes: Vec<(u32, Box<[u8]>)>,
    /// Nodes that the program switched off.
    pub disabled: Vec<u32>,
}

static NOTHING_APART: Apart = Apart { template: None, nodes: None, edits: None, owned: false, ended: None };
static NO_EDITS: Edits = Edits { changes: Vec::new(), disabled: Vec::new() };

impl Body {
    pub(crate) fn apart(&self) -> &Apart {
        self.apart.as_deref().unwrap_or(&NOTHING_APART)
    }

    pub(crate) fn apart_mut(&mut self) -> &mut Apart {
        self.apart.get_or_insert_default()
    }

    pub(crate) fn edits(&self) -> &Edits {
        self.apart().edits.as_deref().unwrap_or(&NO_EDITS)
    }

    pub(crate) fn edits_mut(&mut self) -> &mut Edits {
        self.apart_mut().edits.get_or_insert_default()
    }

    /// Takes out all changes.
    pub(crate) fn take_changes(&mut self) -> Vec<(u32, Box<[u8]>)> {
        let edits = self.apart.as_mut().and_then(|apart| apart.edits.as_mut());
        edits.map_or_else(Vec::new, |edits| std::mem::take(&mut edits.changes))
    }
}

/// A launch that the next launch of the same handle has to wait for.
pub(crate) struct Pending {
    pub event: Event,
    pub stream_key: StreamKey,
}

const _: () = assert!(size_of::<Handle>() == 64, "one cache line");

impl Default for Handle {
    fn default() -> Self {
        Self {
            real: Resident::default(),
            slot: AtomicU32::new(NO_SLOT),
            lost_its: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            body: Mutex::default(),
        }
    }
}

impl Handle {
    /// Returns its real exec, if it has one.
    #[inline(always)]
    pub(crate) fn resident(&self) -> Option<&'static RealExec> {
        self.real.get()
    }

    /// Leases its real exec. `None` if it has none. Waits only for launches of this same handle, which would wait for
    /// one another in the library too.
    pub(crate) fn lease(&self) -> Option<Lease> {
        self.real.lease()
    }

    /// Takes the leased exec from the handle.
    pub(crate) fn loses(&self, lease: &Lease) {
        lease.real().set_handle(None);
        self.lost_its.store(true, Relaxed);
        self.real.clear();
    }

    /// Gives the leased exec to this handle, which has this index.
    pub(crate) fn gets(&self, lease: &Lease, index: u32) {
        lease.real().set_handle(Some(index));
        self.real.set(lease);
    }
}

/// Returns the context of a handle's content; 0 for none.
pub(crate) fn context_of(body: &Body) -> u64 {
    body.class.as_ref().map_or(0, |class| class.shape.context)
}

/// Returns the bytes that a handle's source takes.
pub(crate) fn source_bytes(body: &Body) -> u64 {
    let changes: usize = body.edits().changes.iter().map(|(_, record)| record.len()).sum();
    body.source.as_ref().map_or(0, |source| source.bytes())
        + body.apart().nodes.as_ref().map_or(0, KnownNodes::bytes)
        + changes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::handle_range::index_in;

    #[test]
    fn handles_are_told_from_other_addresses_and_used_again() {
        static START: AtomicUsize = AtomicUsize::new(0);
        assert_eq!(index_in(&START, 0), None);
        let handles = HandleTable::<AtomicUsize>::new(&START).unwrap();
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
        let handles = HandleTable::<AtomicUsize>::new(&START).unwrap();
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
