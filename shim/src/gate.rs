//! Whether the shim acts: one page that a fork wipes, one pointer in it, and the guard around all
//! bookkeeping.
//!
//! The page is mapped with `MADV_WIPEONFORK`: in a child made by `fork` or by a bare `clone` it
//! reads as zeroes, so that the child starts as a process of its own, whatever locks its parent's
//! threads held. (`vfork` children share the parent's memory and do no GPU calls.)

use crate::graphs::{self, cache::Cache};
use crate::pool::Pool;
use crate::pool::device::Visits;
use crate::process::cancel::Uncancelled;
use crate::process::errno::KeepErrno;
use crate::process::heap;
use crate::process::stack;
use crate::process::threads;
use crate::shim::{self, Shim};
use crate::trace::Trace;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

#[repr(C, align(4096))]
struct Page {
    shim: AtomicPtr<Shim>,
    /// [`IDLE`], [`STARTING`], [`STARTED`], [`OFF`].
    stage: AtomicU32,
    doors: AtomicU32,
    /// 1 once the driver's initialisation came through a door.
    initialised: AtomicU32,
    /// Graph caches by vendor. They outlive a stop of the books: handles are in the program's hands.
    caches: [AtomicPtr<Cache>; 2],
    /// The allocation trace, if one is written.
    trace: AtomicPtr<Trace>,
    /// Pools by vendor. Their blocks are in the program's hands.
    pools: [AtomicPtr<Pool>; 2],
    /// Who looks at contexts. It outlives a stop of the books: so does the thread that looks.
    visits: AtomicPtr<Visits>,
}

/// Nothing happened yet.
const IDLE: u32 = 0;
/// A thread is making the shim; others wait for it.
const STARTING: u32 = 1;
/// The shim is there.
const STARTED: u32 = 2;
/// It could not start, or has stopped: every hook only calls the real function.
const OFF: u32 = 3;

/// What nearly every call reads, in one line of the processor's caches. It outlives a fork.
#[repr(C, align(64))]
struct Known {
    page: AtomicPtr<Page>,
    /// Where the ranges of exec and graph handles begin, by vendor: a child of a fork still has to know its
    /// parent's handles from the library's.
    execs: [AtomicUsize; 2],
    graphs: [AtomicUsize; 2],
    /// [`disabled`], once asked: 1 for no, 2 for yes.
    disabled: AtomicU32,
}

static KNOWN: Known = Known {
    page: AtomicPtr::new(std::ptr::null_mut()),
    execs: [const { AtomicUsize::new(0) }; 2],
    graphs: [const { AtomicUsize::new(0) }; 2],
    disabled: AtomicU32::new(0),
};

fn page() -> Option<&'static Page> {
    let page = KNOWN.page.load(Acquire);
    if page.is_null() {
        return map_page();
    }
    // SAFETY: once set, the pointer is that of a page that is never unmapped.
    Some(unsafe { &*page })
}

#[cold]
fn map_page() -> Option<&'static Page> {
    let _errno = KeepErrno::new();
    let bytes = size_of::<Page>();
    // SAFETY: an anonymous mapping; nothing else refers to it.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if map == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping just made. Before Linux 4.14 this fails, and the handler does the same
    // for children of `fork`.
    unsafe {
        if libc::madvise(map, bytes, libc::MADV_WIPEONFORK) != 0 {
            libc::pthread_atfork(None, None, Some(wipe));
        }
    }
    if let Err(first) = KNOWN.page.compare_exchange(std::ptr::null_mut(), map.cast(), AcqRel, Acquire) {
        // SAFETY: another thread was faster; ours was never seen. Its page is never unmapped.
        unsafe {
            libc::munmap(map, bytes);
            return Some(&*first);
        }
    }
    // SAFETY: as above; zeroes are a valid Page.
    Some(unsafe { &*map.cast::<Page>() })
}

unsafe extern "C" fn wipe() {
    if let Some(page) = page() {
        page.shim.store(std::ptr::null_mut(), Relaxed);
        page.stage.store(IDLE, Relaxed);
        page.doors.store(0, Relaxed);
        page.initialised.store(0, Relaxed);
        page.caches.iter().for_each(|cache| cache.store(std::ptr::null_mut(), Relaxed));
        page.trace.store(std::ptr::null_mut(), Relaxed);
        page.pools.iter().for_each(|pool| pool.store(std::ptr::null_mut(), Relaxed));
        page.visits.store(std::ptr::null_mut(), Relaxed);
    }
}

/// `GPUMEM_DISABLE`, read once per process image: no hook is handed out, all others are a jump.
///
/// So it is in a program with more rights than whoever started it (setuid, file capabilities), which the library
/// can come into by /etc/ld.so.preload: its environment is not to be believed, and what it allocates is not for
/// others to read.
pub fn disabled() -> bool {
    match KNOWN.disabled.load(Relaxed) {
        // SAFETY: a plain query.
        0 if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 => {
            KNOWN.disabled.store(2, Relaxed);
            true
        }
        0 => {
            // SAFETY: getenv of a constant name; the value is read at once.
            let value = unsafe {
                let value = libc::getenv(c"GPUMEM_DISABLE".as_ptr());
                if value.is_null() { &[] } else { std::ffi::CStr::from_ptr(value).to_bytes() }
            };
            let yes = std::str::from_utf8(value).ok().and_then(gpumem_wire::settings::parse_bool) == Some(true);
            KNOWN.disabled.store(if yes { 2 } else { 1 }, Relaxed);
            yes
        }
        answer => answer == 2,
    }
}

/// Where the range of a vendor's exec handles begins; 0 while there is none.
#[inline(always)]
pub fn exec_handles(vendor: Vendor) -> &'static AtomicUsize {
    &KNOWN.execs[vendor as usize - 1]
}

/// The same of graph handles.
#[inline(always)]
pub fn graph_handles(vendor: Vendor) -> &'static AtomicUsize {
    &KNOWN.graphs[vendor as usize - 1]
}

/// The shim, if it is there; for bookkeeping that is under way.
#[inline(always)]
pub fn shim() -> Option<&'static Shim> {
    let page = KNOWN.page.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: pages and shims are never freed once published.
    unsafe { (*page).shim.load(Acquire).as_ref() }
}

/// The graph cache of a vendor, if there is one.
#[inline(always)]
pub fn cache(vendor: Vendor) -> Option<&'static Cache> {
    let page = KNOWN.page.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: pages and caches are never freed once published.
    unsafe { (&(*page).caches)[vendor as usize - 1].load(Acquire).as_ref() }
}

/// The allocation trace of this process, if one is written.
#[inline(always)]
pub fn trace() -> Option<&'static Trace> {
    let page = KNOWN.page.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: pages and traces are never freed once published.
    unsafe { (*page).trace.load(Acquire).as_ref() }
}

/// Publishes the allocation trace.
pub fn set_trace(trace: &'static Trace) {
    if let Some(page) = page() {
        page.trace.store(std::ptr::from_ref(trace).cast_mut(), Release);
    }
}

/// The pool of a vendor, if there is one.
#[inline(always)]
pub fn pool(vendor: Vendor) -> Option<&'static Pool> {
    let page = KNOWN.page.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: pages and pools are never freed once published.
    unsafe { (&(*page).pools)[vendor as usize - 1].load(Acquire).as_ref() }
}

/// Publishes a pool, unless there is one.
pub fn set_pool(vendor: Vendor, made: Box<Pool>) {
    let Some(page) = page() else { return };
    let slot = &page.pools[vendor as usize - 1];
    let _ = slot.compare_exchange(std::ptr::null_mut(), Box::leak(made), AcqRel, Acquire);
}

/// Who looks at contexts in this process, made when that is first asked. `None` if there is no memory for it.
pub fn visits() -> Option<&'static Visits> {
    let place = &page()?.visits;
    // SAFETY: never freed once published.
    if let Some(known) = unsafe { place.load(Acquire).as_ref() } {
        return Some(known);
    }
    let made: &'static Visits = Box::leak(Box::default());
    match place.compare_exchange(std::ptr::null_mut(), std::ptr::from_ref(made).cast_mut(), AcqRel, Acquire) {
        Ok(_) => Some(made),
        // SAFETY: as above.
        Err(first) => Some(unsafe { &*first }),
    }
}

/// Publishes a graph cache; the one that another thread published first, if so.
pub fn set_cache(vendor: Vendor, made: Box<Cache>) -> &'static Cache {
    let made: &'static Cache = Box::leak(made);
    let Some(page) = page() else { return made };
    let slot = &page.caches[vendor as usize - 1];
    let ours = std::ptr::from_ref(made).cast_mut();
    match slot.compare_exchange(std::ptr::null_mut(), ours, AcqRel, Acquire) {
        Ok(_) => made,
        // SAFETY: caches are never freed once published.
        Err(first) => unsafe { &*first },
    }
}

/// Keeps books: runs `f` with the shim, starting it if this is the process's first GPU call.
///
/// `None` if there is no shim, or this thread is keeping books already. A panic in `f` stops the
/// shim; `errno` stays as it was.
#[inline]
pub fn record<R>(f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    let shim = match shim() {
        Some(shim) => shim,
        None => start()?,
    };
    guarded(shim, f)
}

/// As [`record`], but does nothing if the shim is not there yet.
#[inline]
pub fn record_if_started<R>(f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    guarded(shim()?, f)
}

#[inline]
fn guarded<R>(shim: &'static Shim, f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    if threads::local(|local| local.busy.replace(true)) {
        return None;
    }
    // SAFETY: a valid address for as long as the thread lives.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let result = catch_unwind(AssertUnwindSafe(|| f(shim)));
    *errno = before;
    set_busy(false);
    match result {
        Ok(value) => Some(value),
        Err(panic) => {
            // The payload is leaked on purpose: dropping it could panic once more.
            std::mem::forget(panic);
            stop(shim, "bookkeeping failed (a bug in gpumem: please report it); the program is not affected");
            None
        }
    }
}

#[inline]
fn set_busy(busy: bool) {
    threads::local(|local| local.busy.set(busy));
}

#[cold]
fn start() -> Option<&'static Shim> {
    if threads::local(|local| local.busy.get()) || disabled() {
        return None;
    }
    let page = page()?;
    match page.stage.compare_exchange(IDLE, STARTING, AcqRel, Acquire) {
        Ok(_) => {
            let _errno = KeepErrno::new();
            set_busy(true);
            threads::forget();
            heap::when_refused(out_of_memory);
            let (doors, initialised) = (page.doors.load(Relaxed), page.initialised.load(Relaxed) != 0);
            let made = {
                let _uncancelled = Uncancelled::new();
                stack::with_room(|| catch_unwind(|| Shim::start(doors, initialised)).ok().flatten())
            };
            set_busy(false);
            match made {
                // What could only be made out of the last memory could not be kept up.
                Some(Some(shim)) if heap::is_short() => shim.cannot_begin(),
                Some(Some(shim)) => page.shim.store(std::ptr::from_ref(Box::leak(shim)).cast_mut(), Release),
                // It has said why.
                Some(None) => {}
                None => shim::no_room_to_begin(),
            }
            page.stage.store(if page.shim.load(Relaxed).is_null() { OFF } else { STARTED }, Release);
        }
        Err(STARTING) => {
            while page.stage.load(Acquire) == STARTING {
                std::thread::yield_now();
            }
        }
        Err(_) => {}
    }
    shim()
}

/// Ends recording for good, with a reason in the ledger.
#[cold]
pub fn stop(shim: &'static Shim, why: &str) {
    if let Some(page) = page() {
        page.stage.store(OFF, Release);
        page.shim.store(std::ptr::null_mut(), Release);
    }
    set_busy(true);
    let _ = catch_unwind(AssertUnwindSafe(|| shim.stopped(why)));
    set_busy(false);
}

/// The heap has no more memory but what it kept: books are closed for good, and new handles and blocks are the
/// driver's own.
///
/// It is called inside of the allocator: no lock is taken, and whatever is under way on this thread goes on.
#[cold]
pub fn out_of_memory() {
    graphs::step_aside();
    let page = KNOWN.page.load(Acquire);
    if page.is_null() {
        return;
    }
    // SAFETY: pages, shims and pools are never freed once published.
    let (page, shim) = unsafe {
        (*page).stage.store(OFF, Release);
        (&*page, (*page).shim.swap(std::ptr::null_mut(), AcqRel).as_ref())
    };
    for pool in &page.pools {
        // SAFETY: as above.
        if let Some(pool) = unsafe { pool.load(Acquire).as_ref() } {
            pool.shut();
        }
    }
    if let Some(shim) = shim {
        shim.out_of_memory();
    }
}

/// The driver's initialisation came through a door. That alone makes no ledger: programs that only
/// ask whether there is a GPU leave nothing.
pub fn initialised() {
    if let Some(page) = page() {
        page.initialised.store(1, Relaxed);
    }
    record_if_started(|shim| shim.initialised());
}

/// Notes that calls come in through this door.
#[inline]
pub fn door(door: Door) {
    let page = KNOWN.page.load(Relaxed);
    // SAFETY: pages are never unmapped.
    let known = !page.is_null() && unsafe { (*page).doors.load(Relaxed) } & door as u32 != 0;
    if !known {
        new_door(door);
    }
}

#[cold]
fn new_door(door: Door) {
    let Some(page) = page() else { return };
    let doors = page.doors.fetch_or(door as u32, Relaxed) | door as u32;
    record_if_started(|shim| shim.ledger.header().doors().store(doors, Relaxed));
}
