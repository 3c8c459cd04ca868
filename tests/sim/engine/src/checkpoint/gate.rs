//! Where calls of the driver wait while their process is locked.

use std::sync::{Condvar, Mutex, MutexGuard};

struct Gate {
    shut: bool,
    /// Calls that are past it and not over.
    inside: u64,
}

static GATE: Mutex<Gate> = Mutex::new(Gate { shut: false, inside: 0 });
static OPENED: Condvar = Condvar::new();

/// A call that is past the gate, until this is dropped.
pub struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        gate().inside -= 1;
    }
}

fn gate() -> MutexGuard<'static, Gate> {
    GATE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Waits until the gate is open, and passes it.
pub fn enter() -> Inside {
    let mut gate = gate();
    while gate.shut {
        gate = OPENED.wait(gate).unwrap_or_else(|e| e.into_inner());
    }
    gate.inside += 1;
    Inside(())
}

/// Stops every call that begins from now on.
pub(super) fn shut() {
    gate().shut = true;
}

pub(crate) fn open() {
    gate().shut = false;
    OPENED.notify_all();
}

/// True if no call is past the gate.
pub(super) fn is_empty() -> bool {
    gate().inside == 0
}
