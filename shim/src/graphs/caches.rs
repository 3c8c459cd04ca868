//! The caches of the process, one for each vendor: made, turned off and on, maintained, ended.

use super::library::Library;
use super::sources::folded;
use super::store::bounds::OVER;
use super::{ExecStore, OFF, cache, caches, is_off, place};
use crate::process::errno::KeepErrno;
use crate::process::{cancel, heap, own, stack, wiped};
use crate::records::parking;
use crate::shim::Shim;
use crate::{backend, gate, records};
use gpumem_wire::kinds::{Pinned, Vendor};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Time between two looks of a thread that waits until the process is resumed.
const PARKED_LOOKS: Duration = Duration::from_millis(5);

/// Makes new handles the library's own from now on. The shim's handles stay as they are. Returns a sentence for users.
pub(crate) fn step_aside() -> &'static str {
    OFF.store(true, Relaxed);
    "new graphs are the driver's own"
}

/// Lets new handles be the shim's again after [`step_aside`].
pub(crate) fn step_back_in() {
    OFF.store(false, Relaxed);
}

/// Comes just before the program waits for the device, or asks if work is done: destroys the folded graphs that wait
/// for that, and waits first while the process is parked. A parked process that asks or waits is ended by the driver
/// (`cuEventQuery`, `cuStreamQuery`, `cuStreamSynchronize`, `cuCtxSynchronize`; H200, driver 580).
#[inline(always)]
pub(crate) fn spare_time() {
    if folded::any_waiting() {
        before_wait();
    }
}

/// Makes [`spare_time`] look if the process is parked, or look no more.
pub(crate) fn watch_parking(watched: bool) {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(watched, Relaxed) != watched {
        folded::count_waiting(watched);
    }
}

#[cold]
fn before_wait() {
    let is_parked = parking::is_quiet;
    let _errno = KeepErrno::new();
    while is_parked() && !own::is_this_thread() {
        cancel::sleep(PARKED_LOOKS);
    }
    destroy_waiting();
}

fn destroy_waiting() {
    caches().for_each(|cache| cache.sources().destroy_folded(None, false));
}

/// Destroys execs that had to wait for work, after the program has waited for work.
#[inline(always)]
pub(crate) fn waited() {
    if OVER.load(Relaxed) {
        back_under_bounds();
    }
}

#[cold]
fn back_under_bounds() {
    OVER.store(false, Relaxed);
    for cache in caches() {
        let _relaxed = cache.library().relax();
        let _ = cache.handles().contain(|| cache.back_under_bounds());
        OVER.fetch_or(cache.has_to_destroy(), Relaxed);
    }
}

/// Runs once a second on the control thread.
pub(crate) fn housekeeping() {
    for cache in caches() {
        cache.housekeeping(false, is_off());
    }
}

/// Destroys all parked execs, for `gpumem trim`. Returns a sentence for users, or `None` if none was parked.
pub(crate) fn trim() -> Option<String> {
    let all = caches().map(|cache| cache.housekeeping(true, is_off()));
    let (gone, stay) = all.fold((0, 0), |(gone, stay), (more, left)| (gone + more, stay + left));
    match (gone, stay) {
        (0, 0) => None,
        (_, 0) => Some(format!("{gone} idle graph execs destroyed")),
        _ => Some(format!("{gone} idle graph execs destroyed; {stay} stay while they may run")),
    }
}

/// The process is ending: the shim's threads destroy nothing from now on.
extern "C" fn at_exit() {
    for cache in caches() {
        cache.end_housekeeping();
    }
}

/// Returns the cache of a vendor. Makes it if the shim may do more than record.
///
/// # Errors
/// The reason why handles are the library's own.
pub(crate) fn open(vendor: Vendor) -> Result<&'static ExecStore, Pinned> {
    if is_off() {
        return Err(Pinned::Off);
    }
    let known = match cache(vendor) {
        Some(cache) => cache,
        // The tables of handles are part of the cache, which is built on the stack. Some threads have stacks of 32 KiB.
        None => stack::with_room(|| make(vendor)).unwrap_or(Err(Pinned::Room))?,
    };
    gate::record_if_started(records::handles::may_be_virtual).unwrap_or(Err(Pinned::Off))?;
    known.handles().is_open().map(|()| known)
}

#[cold]
#[inline(never)]
fn make(vendor: Vendor) -> Result<&'static ExecStore, Pinned> {
    let made = gate::record_if_started(|shim| new_cache(shim, vendor));
    let made = place(vendor).set_if_empty(made.unwrap_or(Err(Pinned::Off))?);
    // The cache missed the changes that came before it was published.
    gate::record_if_started(|shim| made.apply_settings(&shim.in_force.all()));
    heap::when_refused(|| OFF.store(true, Relaxed));
    // It runs before the library's own handlers, since handlers run in the reverse order of their registration.
    // SAFETY: `at_exit` has the type that `atexit` asks for. It is code of this library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
    Ok(made)
}

/// # Errors
/// [`Pinned::Off`], [`Pinned::Verdict`] or [`Pinned::Room`].
fn new_cache(shim: &Shim, vendor: Vendor) -> Result<Box<ExecStore>, Pinned> {
    let settings = &shim.in_force.all();
    // There were no preparations for a cache that was off from the start.
    if shim.settings.graph_cache == 0 || settings.graph_cache == 0 {
        return Err(Pinned::Off);
    }
    if vendor == Vendor::Hip {
        shim.ask_hip();
    }
    if !shim.trust.graph_cache(vendor) {
        return Err(Pinned::Verdict);
    }
    let starts = (wiped::exec_handles(vendor), wiped::graph_handles(vendor));
    let library = Library { vendor, calls: backend::graph_calls(vendor, settings) };
    ExecStore::new(library, settings, starts).map(Box::new).ok_or(Pinned::Room)
}

/// Returns the cache of a vendor. Makes it if handles may be the shim's.
pub(crate) fn cache_to_be(vendor: Vendor) -> Option<&'static ExecStore> {
    cache(vendor).or_else(|| open(vendor).ok())
}
