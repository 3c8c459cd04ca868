//! The driver's calls by which one process parks another: `cuCheckpointProcess*`, since CUDA 12.8 (driver 570). They
//! need no context, neither here nor of the caller's own.
//!
//! Source: CUDA driver API, "CUDA Checkpointing". What each answer means was measured on an H100 and an H200 (driver 580).

use libloading::Library;
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

/// The calls. Each is about a process of this machine, by its pid as seen from here.
pub(crate) trait Checkpoints {
    /// Returns the state of a process.
    fn state(&self, pid: u32) -> Result<State, Refusal>;
    /// Holds the process's calls back and waits, at most this long, until its work is done.
    fn lock(&self, pid: u32, limit: Duration) -> Answer;
    /// Moves the device memory of a locked process to its host memory.
    fn checkpoint(&self, pid: u32) -> Answer;
    /// Moves it back. The process stays locked.
    fn restore(&self, pid: u32) -> Answer;
    /// Lets the process run again.
    fn unlock(&self, pid: u32) -> Answer;
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArgs {
    timeout_ms: c_uint,
    reserved: c_uint,
    reserved1: [u64; 7],
}

/// Each of the other calls takes 64 reserved bytes, which are 0.
type Reserved = [u64; 8];

type GetState = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type Lock = unsafe extern "C" fn(c_int, *const LockArgs) -> c_int;
type Other = unsafe extern "C" fn(c_int, *const Reserved) -> c_int;

/// The real driver, initialised.
pub(crate) struct Driver {
    get_state: GetState,
    lock: Lock,
    checkpoint: Other,
    restore: Other,
    unlock: Other,
    /// The functions above are its.
    _library: Library,
}

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
        let missing = |name: &str| {
            format!("this driver has no {name}: parking needs driver 570 or newer (CUDA 12.8), on Arm 595 or newer")
        };
        // SAFETY: cuda.h declares the functions with these types, and `library` stays open as long as they are kept.
        let (init, get_state, lock, [checkpoint, restore, unlock]) = unsafe {
            (
                *library.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit\0").map_err(|_| missing("cuInit"))?,
                *library
                    .get::<GetState>(b"cuCheckpointProcessGetState\0")
                    .map_err(|_| missing("cuCheckpointProcessGetState"))?,
                *library.get::<Lock>(b"cuCheckpointProcessLock\0").map_err(|_| missing("cuCheckpointProcessLock"))?,
                {
                    let other = |name: &str| {
                        let symbol = library.get::<Other>(format!("{name}\0").as_bytes());
                        symbol.map(|symbol| *symbol).map_err(|_| missing(name))
                    };
                    [
                        other("cuCheckpointProcessCheckpoint")?,
                        other("cuCheckpointProcessRestore")?,
                        other("cuCheckpointProcessUnlock")?,
                    ]
                },
            )
        };
        // SAFETY: cuInit takes flags, which must be 0, and may be called by any thread.
        match unsafe { init(0) } {
            0 => Ok(Self { get_state, lock, checkpoint, restore, unlock, _library: library }),
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
        answer(unsafe { (self.get_state)(pid as c_int, &mut state) }).map(|()| State::of(state))
    }

    fn lock(&self, pid: u32, limit: Duration) -> Answer {
        // With 0 the driver would wait without a limit.
        let timeout_ms = c_uint::try_from(limit.as_millis()).unwrap_or(c_uint::MAX).max(1);
        let args = LockArgs { timeout_ms, reserved: 0, reserved1: [0; 7] };
        // SAFETY: the type is cuda.h's, and `args` lives until the call returns.
        answer(unsafe { (self.lock)(pid as c_int, &args) })
    }

    fn checkpoint(&self, pid: u32) -> Answer {
        // SAFETY: the type is cuda.h's, and the reserved words live until the call returns.
        answer(unsafe { (self.checkpoint)(pid as c_int, &[0; 8]) })
    }

    fn restore(&self, pid: u32) -> Answer {
        // SAFETY: the type is cuda.h's, and the reserved words live until the call returns. Zeroes name no pair of
        // devices, so each goes back to where it was.
        answer(unsafe { (self.restore)(pid as c_int, &[0; 8]) })
    }

    fn unlock(&self, pid: u32) -> Answer {
        // SAFETY: the type is cuda.h's, and the reserved words live until the call returns.
        answer(unsafe { (self.unlock)(pid as c_int, &[0; 8]) })
    }
}
