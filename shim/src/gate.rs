//! Decides if the shim acts, and guards all bookkeeping.
//!
//! State that a child of a fork must not inherit is on the page that a fork wipes ([`crate::process::wiped`]).

use crate::process::cancel::Uncancelled;
use crate::process::errno::KeepErrno;
use crate::process::heap;
use crate::process::load;
use crate::process::panics;
use crate::process::stack;
use crate::process::threads;
pub(crate) use crate::process::wiped::disabled;
use crate::process::wiped::{self, Numbers, Place, Word};
use crate::shim::{self, Above, Shim};
use gpumem_wire::layout::Door;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{Ordering::*, fence};

/// Nothing has happened yet.
const IDLE: u32 = 0;
/// A thread is making the shim; others wait for it.
const STARTING: u32 = 1;
/// The shim exists.
const STARTED: u32 = 2;
/// The shim could not start, or has stopped. Every hook only calls the real function.
const OFF: u32 = 3;

// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this
// word.
const SHIM: Place<Shim> = unsafe { Place::new(Word::Shim) };

/// Returns the shim if it exists. For bookkeeping that is in progress already.
#[inline(always)]
pub(crate) fn shim() -> Option<&'static Shim> {
    SHIM.get()
}

/// Records: runs `f` with the shim. The shim starts if this is the process's first GPU call. `above`: the rooms that
/// the shim may ask.
///
/// `None` if there is no shim, or if this thread is recording already. A panic in `f` stops the shim. `errno` stays
/// unchanged.
#[inline]
pub(crate) fn record<R>(above: &'static dyn Above, f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    let shim = match shim() {
        Some(shim) => shim,
        None => start(above)?,
    };
    guarded(shim, f)
}

/// As [`record`], but does nothing if the shim does not exist yet.
#[inline]
pub(crate) fn record_if_started<R>(f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    guarded(shim()?, f)
}

/// Records something that does not start the shim, unlike [`crate::start::record`]: failures, frees, attributes.
#[inline]
pub(crate) fn note<R>(f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    threads::local(|local| local.recorded());
    record_if_started(f)
}

#[inline]
fn guarded<R>(shim: &'static Shim, f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    if threads::local(|local| local.busy.replace(true)) {
        return None;
    }
    // SAFETY: the C library gives the address of this thread's errno, which is valid while the
    // thread lives. No other reference to it is alive.
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
            stop(shim, "bookkeeping");
            None
        }
    }
}

#[inline]
fn set_busy(busy: bool) {
    threads::local(|local| local.busy.set(busy));
}

#[cold]
fn start(above: &'static dyn Above) -> Option<&'static Shim> {
    if threads::local(|local| local.busy.get()) || disabled() {
        return None;
    }
    let process = wiped::numbers()?;
    match process.stage.compare_exchange(IDLE, STARTING, AcqRel, Acquire) {
        Ok(_) => {
            let _errno = KeepErrno::new();
            set_busy(true);
            threads::forget();
            heap::when_refused(out_of_memory);
            let (doors, initialised) = (process.doors.load(Relaxed), process.initialised.load(Relaxed) != 0);
            let made = {
                let _uncancelled = Uncancelled::new();
                stack::with_room(|| {
                    catch_unwind(AssertUnwindSafe(|| Shim::start(doors, initialised, above))).ok().flatten()
                })
            };
            set_busy(false);
            match made {
                // A shim that took the last of the memory could not continue.
                Some(Some(shim)) if heap::is_short() => shim.cannot_begin(),
                Some(Some(shim)) => {
                    SHIM.set(Box::leak(shim));
                    noted_meanwhile(process, initialised);
                }
                // The start has reported why it failed.
                Some(None) => {}
                None => shim::no_room_to_begin(),
            }
            process.stage.store(if shim().is_none() { OFF } else { STARTED }, Release);
        }
        Err(STARTING) => {
            while process.stage.load(Acquire) == STARTING {
                std::thread::yield_now();
            }
        }
        Err(_) => {}
    }
    shim()
}

/// Tells the shim what other threads noted while it was starting.
#[cold]
fn noted_meanwhile(process: &Numbers, initialised: bool) {
    // The other threads first note and then look for the shim. Here it is the other way round. So one of the two sees
    // the other.
    fence(SeqCst);
    record_if_started(|shim| {
        shim.ledger.header().doors().fetch_or(process.doors.load(Relaxed), Relaxed);
        if !initialised && process.initialised.load(Relaxed) != 0 {
            shim.initialised();
        }
    });
}

/// Ends recording for good after a panic of ours; writes what failed and where to the ledger.
#[cold]
pub(crate) fn stop(shim: &'static Shim, what: &str) {
    if let Some(process) = wiped::known_numbers() {
        process.stage.store(OFF, Release);
    }
    SHIM.take();
    set_busy(true);
    let stopped = || shim.stopped(&format!("{}; the program is not affected", panics::failed(what)));
    let _ = catch_unwind(AssertUnwindSafe(stopped));
    set_busy(false);
}

/// Ends recording for good, because our heap has only its reserve left. Pools and graph caches are told separately
/// ([`heap::when_refused`]).
///
/// This is called inside the allocator. So no lock is taken, and this thread continues what it is doing.
#[cold]
fn out_of_memory() {
    let Some(process) = wiped::known_numbers() else { return };
    process.stage.store(OFF, Release);
    if let Some(shim) = SHIM.take() {
        shim.out_of_memory();
    }
}

/// Has the kernel do, before the driver starts threads, what it would make the first context wait for. In a child of
/// `fork`, what was done at load is gone.
pub(crate) fn initialises() {
    if wiped::known_numbers().is_none_or(|process| process.initialised.load(Relaxed) == 0) {
        let _errno = KeepErrno::new();
        load::prepare_while_alone();
    }
}

/// Notes that the driver's initialisation came through a door. That alone makes no ledger: programs that only check for
/// a GPU leave nothing.
pub(crate) fn initialised() {
    if let Some(process) = wiped::numbers() {
        process.initialised.store(1, Relaxed);
        fence(SeqCst);
    }
    record_if_started(|shim| shim.initialised());
}

/// Notes that calls come in through this door.
#[inline]
pub(crate) fn door(door: Door) {
    let is_known = wiped::known_numbers().is_some_and(|process| process.doors.load(Relaxed) & door as u32 != 0);
    if !is_known {
        new_door(door);
    }
}

#[cold]
fn new_door(door: Door) {
    let Some(process) = wiped::numbers() else { return };
    process.doors.fetch_or(door as u32, Relaxed);
    fence(SeqCst);
    record_if_started(|shim| shim.ledger.header().doors().fetch_or(door as u32, Relaxed));
}
