//! Parking: another process has the driver move this process's device memory to the host, and later back.
//!
//! From the moment it is asked until it has resumed, the shim is quiet: its control thread makes no driver call and
//! starts no search, since each would wait until the process resumes. A thread that a call of the program needs
//! (`aside.rs`, `frees.rs`) is part of that call, for which the driver waits before it locks the process.

use crate::backend::gates;
use crate::process::{clock, wiped};
use crate::shim::Shim;
use gpumem_wire::kinds::{EventKind, Parking};
use std::sync::atomic::Ordering::*;

/// True while the shim's own threads must make no driver call.
pub(crate) fn is_quiet() -> bool {
    !is(Parking::Running)
}

/// True if parking has come this far.
pub(crate) fn is(state: Parking) -> bool {
    now() == state as u32
}

/// Returns how far parking has come. The ledger's word is a copy: whoever may write to that file must not hold the
/// program up.
fn now() -> u32 {
    wiped::known_numbers().map_or(Parking::Running as u32, |numbers| numbers.parking.load(SeqCst))
}

/// Sets how far parking has come; returns what it was.
fn set(shim: &Shim, state: Parking) -> u32 {
    shim.ledger.header().parking().store(state as u64, SeqCst);
    wiped::numbers().map_or(Parking::Running as u32, |numbers| numbers.parking.swap(state as u32, SeqCst))
}

/// Makes the shim quiet. In a process that shares a card, new calls of the driver wait from now on.
pub(crate) fn begin(shim: &Shim) {
    let header = shim.ledger.header();
    header.parking_ns().store(clock::precise_ns(), Relaxed);
    set(shim, Parking::Quiet);
    gates::close();
}

/// Notes that so many bytes of device memory are on the host now.
pub(crate) fn parked(shim: &Shim, bytes: u64) {
    if !is_quiet() {
        begin(shim);
    }
    let header = shim.ledger.header();
    let took = clock::precise_ns().saturating_sub(header.parking_ns().load(Relaxed));
    header.parked_bytes().store(bytes, Relaxed);
    if set(shim, Parking::Parked) != Parking::Parked as u32 {
        shim.event_at(EventKind::Parked, (bytes, took), 0, 0);
    }
}

/// Ends the quiet.
pub(crate) fn resumed(shim: &Shim) {
    let header = shim.ledger.header();
    let now = clock::precise_ns();
    let lasted = now.saturating_sub(header.parking_ns().load(Relaxed));
    let bytes = header.parked_bytes().swap(0, Relaxed);
    if is(Parking::Parked) {
        header.parked_total_ns().fetch_add(lasted, Relaxed);
        shim.event_at(EventKind::Resumed, (bytes, lasted), 0, 0);
    }
    header.parking_ns().store(now, Relaxed);
    // What it was before it was parked: it came back because it has work.
    header.idle_since_ns().store(0, Relaxed);
    set(shim, Parking::Running);
    gates::open();
}
