//! Host functions that run in a stream's order: those that write logs, and those that hold a stream up.

use super::work::Buf;
use std::ffi::c_void;
use std::sync::{Condvar, LazyLock, Mutex};
use std::time::Duration;

/// Numbers that host functions wrote.
static LOGS: [Mutex<Vec<u32>>; Buf::LOGS as usize] = [const { Mutex::new(Vec::new()) }; Buf::LOGS as usize];

pub fn log(i: usize) -> std::sync::MutexGuard<'static, Vec<u32>> {
    LOGS[i].lock().unwrap_or_else(|held| held.into_inner())
}

/// Writes a number to a log. `data` holds both the log and the number.
pub extern "C" fn write_log(data: *mut c_void) {
    log((data as usize >> 32) % usize::from(Buf::LOGS)).push(data as usize as u32);
}

/// Gates are numbered. These are the numbers of the last gate that was closed, of the last that was opened, and of the
/// last that nobody opened in time.
#[derive(Clone, Copy)]
pub struct Gates {
    pub closed: usize,
    pub open: usize,
    pub gave_up: usize,
}

pub static GATES: (Mutex<Gates>, Condvar) = (Mutex::new(Gates { closed: 0, open: 0, gave_up: 0 }), Condvar::new());
/// How long a gate waits to be opened: long enough for a loaded machine, and shorter than the time that a program may
/// take. `DIFFER_PATIENCE_MS` sets another time.
static GATE_PATIENCE: LazyLock<Duration> = LazyLock::new(|| {
    let said = std::env::var("DIFFER_PATIENCE_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(said.unwrap_or(8000))
});

pub fn gates() -> std::sync::MutexGuard<'static, Gates> {
    GATES.0.lock().unwrap_or_else(|held| held.into_inner())
}

pub extern "C" fn wait_at_gate(number: *mut c_void) {
    let (number, begin) = (number as usize, std::time::Instant::now());
    let mut gates = gates();
    while gates.open < number {
        let left = GATE_PATIENCE.saturating_sub(begin.elapsed());
        if left.is_zero() {
            // Writes all stacks. Once the gate is open the threads go on.
            drop(gates);
            super::stacks::write_others();
            self::gates().gave_up = number;
            return;
        }
        gates = GATES.1.wait_timeout(gates, left).unwrap_or_else(|held| held.into_inner()).0;
    }
}
