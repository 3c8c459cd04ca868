//! The loaded objects: a sorted snapshot of the list that dl_iterate_phdr shows ([`fill`] makes one).
//!
//! A snapshot lives in a mapping of its own, since the program's `malloc` may call the shim. It is replaced as a whole.
//! Readers are counted: the first refresh that finds no other reader unmaps the replaced snapshots ([`published`]). A
//! child of a fork has none of its parent's readers, so their number is wiped. A snapshot may be out of date at any
//! moment, so its addresses are followed only through [`read_memory`](crate::process::peek::read_memory). References to
//! the objects would keep them valid, but the program's dlclose could then not unload them.

mod fill;
mod published;

mod atomic {
    pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
}

use super::rules;
use crate::process::elf;
use crate::process::errno::KeepErrno;
use crate::process::wiped;
use published::Published;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// A loaded object.
#[derive(Clone, Copy)]
pub(crate) struct Module {
    /// Number of the object, unique in the process, so that numbers tell which objects are new or gone.
    pub serial: u32,
    /// First byte of its lowest segment.
    pub start: u64,
    /// End of its highest segment.
    pub end: u64,
    /// Address in the process minus address in the ELF file.
    pub bias: u64,
    build_id: [u8; 32],
    build_id_len: u8,
    path: *const u8,
    path_len: u32,
    /// Address of .eh_frame_hdr, 0 if there is none.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) eh_frame_hdr: u64,
    notes: (u64, u64),
}

impl Module {
    /// Returns the absolute path of the file; empty if the object has none (vDSO: its name).
    pub(crate) fn path(&self) -> &[u8] {
        // SAFETY: the path points into the snapshot's mapping, with this length. The mapping
        // outlives every reader of the module.
        unsafe { std::slice::from_raw_parts(self.path, self.path_len as usize) }
    }

    /// Returns the GNU build id, empty if there is none. Ids longer than 32 bytes are cut.
    pub(crate) fn build_id(&self) -> &[u8] {
        &self.build_id[..self.build_id_len as usize]
    }

    fn same_object(&self, other: &Module) -> bool {
        (self.start, self.end, self.bias, self.build_id(), self.path())
            == (other.start, other.end, other.bias, other.build_id(), other.path())
    }
}

/// Start of a snapshot's mapping; modules and paths follow.
struct Snapshot {
    bytes: usize,
    generation: u64,
    /// The loader's counts then: objects ever loaded, and ever unloaded.
    counts: (u64, u64),
    len: usize,
}

impl Snapshot {
    fn modules(&self) -> &[Module] {
        // SAFETY: `fill::snapshot` wrote `len` modules behind the header before anyone could see the
        // snapshot.
        unsafe { std::slice::from_raw_parts((self as *const Snapshot).add(1).cast(), self.len) }
    }
}

static SNAPSHOTS: Published<Snapshot> =
    Published { current: AtomicPtr::new(null_mut()), retired: [const { AtomicPtr::new(null_mut()) }; _] };
static SERIALS: AtomicU32 = AtomicU32::new(1);

/// The modules as of the last refresh. While this lives, no snapshot is unmapped, so keep it briefly.
pub(crate) struct Modules {
    /// The number that counts this reader. `None` if there is no memory for it: the shim does not start then.
    readers: Option<&'static AtomicU32>,
    snapshot: *const Snapshot,
}

impl Modules {
    /// Returns the present snapshot; empty before the first refresh.
    pub(crate) fn current() -> Modules {
        let readers = wiped::numbers().map(|numbers| &numbers.module_readers);
        readers.iter().for_each(|readers| published::enter(readers));
        Modules { readers, snapshot: SNAPSHOTS.get() }
    }

    fn snapshot(&self) -> Option<&Snapshot> {
        // SAFETY: null, or a snapshot that was complete when it was published. It stays mapped
        // while we are counted among the readers.
        unsafe { self.snapshot.as_ref() }
    }

    /// Returns a number that changes whenever the modules do; 0 before the first refresh.
    pub(crate) fn generation(&self) -> u64 {
        self.snapshot().map_or(0, |snapshot| snapshot.generation)
    }

    /// Returns the modules, sorted by address.
    pub(crate) fn all(&self) -> &[Module] {
        self.snapshot().map_or(&[], Snapshot::modules)
    }

    /// Returns the module that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Module> {
        let all = self.all();
        let after = all.partition_point(|module| module.start <= address);
        all[..after].last().filter(|module| address < module.end)
    }

    fn is_fresh(&self) -> bool {
        self.snapshot().is_some_and(|snapshot| elf::counts() == snapshot.counts)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        self.readers.iter().for_each(|readers| published::leave(readers));
    }
}

/// Returns the modules as they are now. Takes a new snapshot if objects were loaded or unloaded since the last one;
/// otherwise it takes 50 ns on a small VM.
///
/// Takes the loader's list lock for a moment, never while another lock of ours is held.
pub(crate) fn refresh() -> Modules {
    let mut known = Modules::current();
    for _ in 0..4 {
        if known.is_fresh() {
            break;
        }
        let _errno = KeepErrno::new();
        let Some(new) = fill::snapshot(&known) else { break };
        // SAFETY: `fill::snapshot` returned a complete snapshot that no other thread knows yet.
        let unloaded = known.snapshot().is_some_and(|old| old.counts.1 != unsafe { (*new).counts.1 });
        let old = known.snapshot.cast_mut();
        if SNAPSHOTS.replace(old, new) {
            if unloaded {
                rules::forget_all();
            } else {
                rules::forget_unknown();
            }
            SNAPSHOTS.retire(old, known.readers, unmap);
        } else {
            unmap(new);
        }
        known = Modules::current();
    }
    known
}

fn unmap(snapshot: *mut Snapshot) {
    // SAFETY: our caller has taken the pointer out of every place, and no reader is left. It is the
    // start of a mapping of `bytes` bytes.
    unsafe { libc::munmap(snapshot.cast(), (*snapshot).bytes) };
}

/// How many replaced snapshots are still mapped.
#[cfg(test)]
pub(super) fn retired() -> usize {
    SNAPSHOTS.retired.iter().filter(|slot| !slot.load(std::sync::atomic::Ordering::Relaxed).is_null()).count()
}
