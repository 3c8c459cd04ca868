//! A thread calls the driver while this process is parked: it asks for the resumption, and waits for it.

use super::ask;
use crate::backend::gates;
use crate::process::cancel::Uncancelled;
use crate::process::clock;
use crate::process::errno::KeepErrno;
use crate::records::parking;
use crate::{backend, gate};
use gpumem_wire::kinds::{Parking, Vendor};
use gpumem_wire::share::Ask;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// Time between two requests.
const EVERY: Duration = Duration::from_secs(1);
/// Time after which a process that is to be parked, and is not locked, runs on: the process that parks it has died. ns.
const TOLD_NS: u64 = 60_000_000_000;

/// When a thread of this process asked last, or heard from the service, CLOCK_MONOTONIC.
static ASKED_NS: AtomicU64 = AtomicU64::new(0);

/// Waits until this process is resumed. The program's signals are handled meanwhile, as in a call of the driver.
pub(super) fn wait() {
    let _errno = KeepErrno::new();
    let _uncancelled = Uncancelled::new();
    // A panic must not reach the code of the gate.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        while gates::are_closed() && !runs() {
            if take_turn() {
                wake();
            }
            gates::wait_for_opening(EVERY);
        }
    }));
}

/// Returns true if this thread is to ask. One asks for all. If a signal's handler waits on top of it, another thread does, or the handler.
fn take_turn() -> bool {
    let (now, asked) = (clock::precise_ns(), ASKED_NS.load(Relaxed));
    now.saturating_sub(asked) >= EVERY.as_nanos() as u64
        && ASKED_NS.compare_exchange(asked, now, Relaxed, Relaxed).is_ok()
}

fn wake() {
    let Some(shim) = gate::shim() else { return };
    let ends = || {
        ASKED_NS.store(clock::precise_ns(), Relaxed);
        !gates::are_closed()
    };
    ask(shim, Ask::Wake { pid: std::process::id() }, &ends);
}

/// Returns true, and opens the gates, if the driver says that this process is not parked although nobody has told it.
fn runs() -> bool {
    let Some(shim) = gate::shim() else {
        let runs = backend::of(Vendor::Cuda).parking() == Some(Parking::Running);
        if runs {
            gates::open();
        }
        return runs;
    };
    let told = shim.ledger.header().parking_ns();
    let told_ns = told.load(Relaxed);
    // Between `park` and the driver's lock the process still runs.
    let may_run = parking::is(Parking::Parked) || clock::precise_ns().saturating_sub(told_ns) > TOLD_NS;
    let runs =
        may_run && backend::of(Vendor::Cuda).parking() == Some(Parking::Running) && told.load(Relaxed) == told_ns;
    if runs {
        parking::resumed(shim);
    }
    runs
}
