//! The driver's calls by which one process parks another: `cuCheckpointProcess*`, since CUDA 12.8 (driver 570). They
//! need no context, neither one made here nor one that the caller has.
//!
//! Source: CUDA driver API, "CUDA Checkpointing". What each answer means was measured on an H100 and an H200 (driver 580).

use crate::source::library::functions;
use libloading::Library;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::raw::{c_int, c_uint};
use std::time::Duration;

/// State of a process for the driver, `CUprocessState`. Drivers after 580 have the two in which a call is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// Its calls wait in the driver. Its memory is on the card.
    Locked,
    /// Its memory is in host memory, and its calls wait in the driver.
    Checkpointed,
    /// The driver gave it up: it can only be killed.
    Failed,
    Checkpointing,
    Restoring,
    /// It was not asked: in a stopped process the driver's thread does not answer, and the question would never end.
    Stopped,
    /// A state of a later driver.
    Other(i32),
}

impl State {
    pub(super) fn of(number: c_int) -> Self {
        match number {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            3 => Self::Failed,
            4 => Self::Checkpointing,
            5 => Self::Restoring,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("running"),
            Self::Locked => f.write_str("locked"),
            Self::Checkpointed => f.write_str("parked"),
            Self::Failed => f.write_str("failed"),
            Self::Checkpointing => f.write_str("being parked"),
            Self::Restoring => f.write_str("being resumed"),
            Self::Stopped => f.write_str("stopped, so that the driver cannot ask it"),
            Self::Other(number) => write!(f, "in state {number}, which this gpumem does not know"),
        }
    }
}

/// An answer other than success, a `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub i32);

impl Refusal {
    /// `CUDA_ERROR_OUT_OF_MEMORY`: a restore found no room. The process can then only be killed.
    pub(crate) const NO_ROOM: Self = Self(2);
    /// `CUDA_ERROR_NOT_READY`: the work of the process did not end within the limit.
    pub(crate) const BUSY: Self = Self(600);
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            2 => "out of memory",
            101 => "the process uses no GPU of this machine",
            1 => "invalid value",
            304 => "the operating system does not let this user do it, or an earlier restore of the process failed",
            401 => "the process is in another state",
            600 => "its work on the GPU did not end in time",
            801 => "not supported: the process has memory or a device that the driver cannot park",
            _ => "see CUresult in CUDA's documentation",
        };
        write!(f, "CUDA error {} ({words})", self.0)
    }
}

/// The driver's answer to a call that has no result.
pub(crate) type Answer = Result<(), Refusal>;

/// A call about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// Its state is asked.
    Look,
    /// Its calls are held back. The driver waits, up to a limit, until its work is done.
    Lock,
    /// The device memory of the locked process is moved to its host memory.
    Checkpoint,
    /// The memory is moved back. The process stays locked.
    Restore,
    /// The process runs again.
    Unlock,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Look => "asking for its state",
            Self::Lock => "locking",
            Self::Checkpoint => "parking",
            Self::Restore => "resuming",
            Self::Unlock => "unlocking",
        })
    }
}

/// The calls. Each is about a process of this machine, by its pid as seen from here.
pub(crate) trait Checkpoints {
    /// Returns the state of a process.
    fn state(&self, pid: u32) -> Result<State, Refusal>;
    /// Makes a call other than [`Step::Look`]. `limit`: how long a lock may wait.
    fn make(&self, step: Step, pid: u32, limit: Duration) -> Answer;
}

/// Arguments of a call: reserved words, which are 0. Of a lock the first has `timeout_ms` of `CUcheckpointLockArgs`.
type Words = [u64; 8];

functions! {
    /// The driver's functions.
    struct Functions {
        cuInit(c_uint);
        cuCheckpointProcessGetState(c_int, *mut c_int);
        cuCheckpointProcessLock(c_int, *const Words);
        cuCheckpointProcessCheckpoint(c_int, *const Words);
        cuCheckpointProcessRestore(c_int, *const Words);
        cuCheckpointProcessUnlock(c_int, *const Words);
    }
}

/// The real driver, initialised.
pub(crate) struct Driver(Functions);

impl Driver {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// The reason why it cannot park anything, in words.
    pub(crate) fn open() -> Result<Self, String> {
        // A program linked statically to glibc can load only libraries linked to the same glibc release.
        if cfg!(target_feature = "crt-static") {
            return Err(
                "this gpumem is linked statically and cannot load the driver: use the one of the wheel, or one \
                        built on this machine"
                    .into(),
            );
        }
        // SAFETY: loading runs the initialisers of NVIDIA's library, which NVIDIA makes fit for any program.
        let library = unsafe { Library::new("libcuda.so.1") }
            .map_err(|_| "the driver (libcuda.so.1) is not here; HIP has no calls for this".to_owned())?;
        let functions = Functions::of(library).map_err(|name| {
            format!("this driver has no {name}: parking needs driver 570 or newer (CUDA 12.8), on Arm 595 or newer")
        })?;
        // SAFETY: cuInit takes flags, which must be 0, and may be called by any thread.
        match unsafe { (functions.cuInit)(0) } {
            0 => Ok(Self(functions)),
            answer => Err(format!("the driver does not start: {}", Refusal(answer))),
        }
    }
}

/// Returns the driver's answer as a result.
fn answer(code: c_int) -> Answer {
    if code == 0 { Ok(()) } else { Err(Refusal(code)) }
}

impl Checkpoints for Driver {
    fn state(&self, pid: u32) -> Result<State, Refusal> {
        let mut state = -1;
        // SAFETY: the type is cuda.h's, and `state` is a local that takes the answer.
        answer(unsafe { (self.0.cuCheckpointProcessGetState)(pid as c_int, &mut state) }).map(|()| State::of(state))
    }

    fn make(&self, step: Step, pid: u32, limit: Duration) -> Answer {
        let mut words: Words = [0; 8];
        let call = match step {
            Step::Look => return self.state(pid).map(drop),
            Step::Lock => {
                // With 0 the driver would wait without a limit.
                words[0] = limit.as_millis().clamp(1, c_uint::MAX.into()) as u64;
                self.0.cuCheckpointProcessLock
            }
            Step::Checkpoint => self.0.cuCheckpointProcessCheckpoint,
            // Zeroes name no pair of devices, so each goes back to where it was.
            Step::Restore => self.0.cuCheckpointProcessRestore,
            Step::Unlock => self.0.cuCheckpointProcessUnlock,
        };
        // SAFETY: the type is cuda.h's, and the words live until the call returns.
        answer(unsafe { call(pid as c_int, &words) })
    }
}
