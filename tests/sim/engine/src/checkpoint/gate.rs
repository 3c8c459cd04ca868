//! A gate at which calls of the driver wait while their process is locked.

use crate::error::{Error, Result};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Calls that may pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passes {
    All,
    /// Questions alone: the process is locked.
    Questions,
    /// Nothing that concerns memory: it is gone.
    Nothing,
}

struct Gate {
    passes: Passes,
    /// Calls that are past it and not over.
    inside: u64,
}

static GATE: Mutex<Gate> = Mutex::new(Gate { passes: Passes::All, inside: 0 });
static CHANGED: Condvar = Condvar::new();

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

/// Behaviour of a function that a locked process answers, once the memory is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parked {
    Answers,
    /// It answers 304.
    Fails,
    /// The process ends by SIGSEGV.
    Dies,
}

/// The functions that a locked process answers. All others wait, also cuInit (H200, driver 580).
const QUESTIONS: &[(&str, Parked)] = &[
    ("cuDriverGetVersion", Parked::Answers),
    ("cuGetProcAddress", Parked::Answers),
    ("cuDeviceGetCount", Parked::Answers),
    ("cuDeviceGetUuid", Parked::Answers),
    ("cuDeviceGetName", Parked::Fails),
    ("cuCtxGetCurrent", Parked::Answers),
    ("cuCtxSetCurrent", Parked::Answers),
    ("cuPointerGetAttribute", Parked::Answers),
    ("cuMemGetInfo", Parked::Fails),
    ("cuDeviceGetAttribute", Parked::Answers),
    ("cuStreamIsCapturing", Parked::Answers),
    ("cuStreamQuery", Parked::Dies),
    ("cuEventQuery", Parked::Dies),
    ("cuEventSynchronize", Parked::Dies),
    ("cuStreamSynchronize", Parked::Dies),
    ("cuCtxSynchronize", Parked::Dies),
    // Not measured, but taken to be like those above.
    ("cuGetErrorName", Parked::Answers),
    ("cuGetErrorString", Parked::Answers),
    ("cuDeviceGet", Parked::Answers),
    ("cuPointerGetAttributes", Parked::Answers),
];

/// Lets a call of this function in, as soon as it may. `None` for calls that no lock concerns.
///
/// # Errors
/// The answer of a process whose memory is gone.
pub fn enter(name: &str) -> Result<Option<Inside>> {
    if !super::is_on() || name.starts_with("cuCheckpoint") {
        return Ok(None);
    }
    match QUESTIONS.iter().find(|(question, _)| *question == name) {
        None => Ok(Some(pass())),
        Some((_, parked)) if gate().passes == Passes::Nothing => match parked {
            Parked::Answers => Ok(None),
            Parked::Fails => Err(Error::OPERATING_SYSTEM),
            Parked::Dies => {
                // SAFETY: both calls take numbers. The process ends here, so nothing runs with the handler that is gone.
                unsafe {
                    libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                    libc::raise(libc::SIGSEGV);
                }
                Ok(None)
            }
        },
        Some(_) => Ok(None),
    }
}

/// Waits until a call may pass that is no question, and passes it.
pub(crate) fn pass() -> Inside {
    let mut gate = gate();
    while gate.passes != Passes::All {
        gate = CHANGED.wait(gate).unwrap_or_else(|e| e.into_inner());
    }
    gate.inside += 1;
    Inside(())
}

/// Sets what may pass from now on.
pub(crate) fn set(passes: Passes) {
    gate().passes = passes;
    CHANGED.notify_all();
}

/// True if no call is past the gate.
pub(super) fn is_empty() -> bool {
    gate().inside == 0
}
