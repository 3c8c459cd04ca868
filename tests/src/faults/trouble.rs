//! One thing that goes wrong while a program runs.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

/// A limit of the system on what the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Address space.
    Space,
    /// Private memory.
    Data,
    /// The length of any file that it writes.
    File,
    /// Descriptors.
    Descriptors,
    /// The stack of the first thread, and of each thread that is started without a stack size.
    Stack,
}

impl Limit {
    pub fn resource(self) -> libc::__rlimit_resource_t {
        match self {
            Limit::Space => libc::RLIMIT_AS,
            Limit::Data => libc::RLIMIT_DATA,
            Limit::File => libc::RLIMIT_FSIZE,
            Limit::Descriptors => libc::RLIMIT_NOFILE,
            Limit::Stack => libc::RLIMIT_STACK,
        }
    }

    /// Smaller limits for native runs. They tell how the program ends when it has only as little as the shim would
    /// leave it.
    pub fn smaller(self, value: u64) -> Vec<u64> {
        const MIB: u64 = 1 << 20;
        // A program that lacks memory ends in a different way every few hundred KiB, so several smaller limits are
        // tried.
        let by_quarters = |from: u64, to: u64| {
            std::iter::successors(Some(from), |less| Some(less + less / 4)).take_while(|less| *less <= to).collect()
        };
        let less: Vec<u64> = match self {
            Limit::Space => by_quarters(MIB, 200 * MIB),
            Limit::Data => by_quarters(128 << 10, 40 * MIB),
            Limit::File => Vec::new(),
            Limit::Descriptors => vec![1, 2, 3, 4, 6],
            // How much of a caller's stack the frames of a hook may take.
            Limit::Stack => (1..=6).map(|pages| pages << 12).collect(),
        };
        less.into_iter().filter(|less| *less < value).map(|less| value - less).collect()
    }
}

/// The kind of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    Tmpfs,
    Ext4,
}

/// The name under which a full disk is counted.
pub const DISK: &str = "a full disk";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A call of the driver: an item of `SIM_FAULT`.
    Call {
        name: &'static str,
        call: u64,
        what: CallTrouble,
    },
    /// A variable of the simulator.
    Driver(&'static str, String),
    /// A variable of the shim; `@` in it is the directory of the run.
    Setting(String, OsString),
    Limit(Limit, u64),
    /// A limit that is this much above what the program needs natively: see [`super::need`].
    Tight(Limit, u64),
    /// The `nth` call of a system function fails for the shim alone, or every call from the `nth` on.
    Denied {
        function: &'static str,
        nth: u64,
        on: bool,
    },
    /// The ledger's directory has this much room when the run begins, and none from `full` on.
    Disk {
        files: Files,
        kib: u64,
        full: Option<Duration>,
    },
    /// A signal that has a handler is sent again and again.
    Storm {
        signal: i32,
        first: Duration,
        every: Duration,
        restart: bool,
    },
    /// The whole run is stopped for a while.
    Stop {
        at: Duration,
        length: Duration,
    },
    /// `gpumem` is started with these arguments while the preloaded run runs. `@` stands for its pid.
    Command {
        at: Duration,
        args: &'static [&'static str],
    },
    Kill {
        signal: i32,
        at: Duration,
    },
    /// A fault that the campaign has to find, for its own test: `death`, `hang`, `answer`, `ledger`.
    Planted(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTrouble {
    Answers(u32),
    Takes(Duration),
}

impl Trouble {
    /// Returns the kind that it is counted under.
    pub fn kind(&self) -> &'static str {
        match self {
            Trouble::Call { what: CallTrouble::Answers(_), .. } => "a call that fails",
            Trouble::Call { what: CallTrouble::Takes(_), .. } => "a call that takes long",
            Trouble::Driver(..) => "another driver",
            Trouble::Setting(..) => "settings",
            Trouble::Tight(limit, _) => Trouble::Limit(*limit, 0).kind(),
            Trouble::Denied { .. } => "denied by the system",
            Trouble::Limit(Limit::Space, _) => "little address space",
            Trouble::Limit(Limit::Data, _) => "little memory",
            Trouble::Limit(Limit::File, _) => "short files",
            Trouble::Limit(Limit::Descriptors, _) => "few descriptors",
            Trouble::Limit(Limit::Stack, _) => "small stacks",
            Trouble::Disk { .. } => DISK,
            Trouble::Storm { .. } => "a storm of signals",
            Trouble::Stop { .. } => "stopped for a while",
            Trouble::Command { .. } => "commands",
            Trouble::Kill { .. } => "killed",
            Trouble::Planted(_) => "planted",
        }
    }

    /// True if the preloaded run need not print what the native run prints.
    pub fn changes_answers(&self) -> bool {
        match self {
            // The shim asks the driver less often, and more often: the call that fails is another one.
            Trouble::Call { what, .. } => matches!(what, CallTrouble::Answers(_)),
            // These ask for other answers.
            Trouble::Setting(name, _) => [
                "GPUMEM_LIMIT",
                "GPUMEM_LIMIT_GROUP",
                "GPUMEM_OOM_FALLBACK",
                "GPUMEM_STRANDED",
                "GPUMEM_POOL_MANAGED",
                "GPUMEM_QUARANTINE",
                "GPUMEM_FREE",
                "GPUMEM_POOL_FILL",
                "GPUMEM_GUARD",
            ]
            .contains(&name.as_str()),
            Trouble::Kill { .. } => true,
            // Memory that the shim takes is not there for the program.
            Trouble::Limit(limit, _) | Trouble::Tight(limit, _) => *limit != Limit::File,
            _ => false,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Call { name, call, what: CallTrouble::Answers(code) } => {
                write!(f, "SIM_FAULT={name}:{call}={code}")
            }
            Trouble::Call { name, call, what: CallTrouble::Takes(time) } => {
                write!(f, "SIM_FAULT={name}:{call}+{}", time.as_micros())
            }
            Trouble::Driver(name, value) => write!(f, "{name}={value}"),
            Trouble::Setting(name, value) => write!(f, "{name}={value:?}"),
            Trouble::Limit(limit, value) => write!(f, "{limit:?} limit {value}"),
            Trouble::Tight(limit, more) => write!(f, "{limit:?} limit {more} above the least"),
            Trouble::Denied { function, nth, on } => write!(f, "denied {function}:{nth}{}", if *on { "-" } else { "" }),
            Trouble::Disk { files, kib, full: None } => write!(f, "{kib} KiB of {files:?}"),
            Trouble::Disk { files, kib, full: Some(at) } => write!(f, "{kib} KiB of {files:?}, full after {at:?}"),
            Trouble::Storm { signal, first, every, restart } => {
                write!(f, "signal {signal} after {first:?} every {every:?}, SA_RESTART {restart}")
            }
            Trouble::Stop { at, length } => write!(f, "stopped after {at:?} for {length:?}"),
            Trouble::Command { at, args } => write!(f, "gpumem {} after {at:?}", args.join(" ")),
            Trouble::Kill { signal, at } => write!(f, "killed by {signal} after {at:?}"),
            Trouble::Planted(what) => write!(f, "planted: {what}"),
        }
    }
}
