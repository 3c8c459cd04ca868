//! Planted faults (`SIM_FAULT`): calls that answer an error and do nothing, or that take long.

use crate::config::{What, config};
use crate::error::{Error, Result};
use std::ffi::c_int;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The name in `SIM_FAULT` that means every function.
pub const ANY: &str = "*";

static CALLS: AtomicU64 = AtomicU64::new(0);

/// A call of this function begins, its `call`th.
///
/// # Errors
/// The planted code.
pub fn strike(name: &str, call: u64) -> Result {
    let config = config();
    if config.faults.is_empty() {
        return Ok(());
    }
    let of_all = CALLS.fetch_add(1, Relaxed) + 1;
    for fault in &config.faults {
        let hit = if fault.name == ANY { fault.call == of_all } else { fault.call == call && fault.name == name };
        if !hit {
            continue;
        }
        let _uncancelled = Uncancelled::new();
        log(name, call, fault.what);
        match fault.what {
            What::Answers(code) => return Err(Error(code)),
            What::Takes(us) => std::thread::sleep(Duration::from_micros(us)),
        }
    }
    Ok(())
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While this lives, a cancelled thread of the program goes on: a planted fault writes and sleeps where the driver's call
/// is no cancellation point.
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Self {
        /// `PTHREAD_CANCEL_DISABLE` of glibc's pthread.h.
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: the call changes the calling thread's state alone, and `before` has room for the state before.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as in `new`; this guard is a local, so it is dropped on its own thread.
        unsafe { pthread_setcancelstate(self.0, &mut ours) };
    }
}

/// With `SIM_FAULT_LOG`: writes a fault that happened, in the form of `SIM_FAULT`.
fn log(name: &str, call: u64, what: What) {
    let Some(path) = &config().fault_log else { return };
    let line = match what {
        What::Answers(code) => format!("{name}:{call}={code}\n"),
        What::Takes(us) => format!("{name}:{call}+{us}\n"),
    };
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}
