//! The list of checks, and what one finds.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands) enum Severity {
    Ok,
    Info,
    Warning,
    Error,
}

impl Severity {
    /// As JSON has it.
    pub(in crate::commands) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::commands) struct Finding {
    /// Name of the check: stays the same between releases.
    pub id: &'static str,
    pub severity: Severity,
    /// The process, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub finding: String,
    /// Bytes that it is about: findings of most bytes come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The command to paste.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub paste: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// Every check, with what it looks at: what docs/cli.md lists.
pub const CHECKS: &[(&str, &str)] = &[
    ("library", "libgpumem.so is found and loads into a program"),
    ("preload", "each libgpumem.so that LD_PRELOAD of this shell names can be loaded"),
    (
        "variables",
        "every GPUMEM_ variable of this shell is known and has an allowed value, and no variable of another project stands for one",
    ),
    (
        "directory",
        "the directory of the ledgers can be written, has space, and is closed to other users (one that GPUMEM_DIR or --dir names may be shared on purpose)",
    ),
    ("driver", "a GPU driver is installed; the finding names it"),
    ("runtimes", "a CUDA or HIP runtime is found; the finding names those that programs here would load"),
    ("devices", "the device files can be opened"),
    ("nvml", "NVML can be asked for the driver's own figures on memory"),
    ("proc", "processes of this user can be inspected"),
    ("stale-ledgers", "no ledgers of ended processes lie around"),
    ("reach", "a preload reaches the program"),
    ("state", "a process without the shim is neither stopped nor traced (doctor PID only)"),
    ("ledger", "the process has written a readable ledger"),
    ("interception", "every call of the process is recorded"),
    ("mode", "gpumem is active in the process: it does more than record; the finding names what decided that"),
    ("verdict", "every verdict of gpumem selftest --rules that was found is believed"),
    ("rocm", "the ROCm of the process is no newer than the newest that gpumem's tables were compared with"),
    (
        "unknown",
        "the process has met no function, node kind, attribute or flag of the driver that this release does not know",
    ),
    ("pool", "freed memory is kept for the next allocation, in every context"),
    ("memory", "no allocation ran out of memory"),
    ("limit", "live memory leaves room under GPUMEM_LIMIT"),
    ("idle", "if much memory is idle, it goes back to the driver with time"),
    ("local-memory", "no kernel has so many arrays and spilled registers that the driver takes much memory for them"),
    ("shared", "nothing that was freed is still open in another process"),
    ("code", "no call site holds much code in many modules"),
    ("growth", "no call site grows steadily, and no memory without a known call site does"),
    ("stranded", "no call site asks for larger and larger buffers while its older ones lie unused"),
    ("graph-cache", "graph execs are under the graph cache, and its bounds are wide enough"),
    ("freed-graph", "no graph was launched after memory that it refers to was freed"),
    ("parked", "at most half of the real execs' memory belongs to destroyed graphs"),
    ("recording", "the process still records"),
    ("left", "a process that has ended had freed its memory before (doctor PID only)"),
    ("dropped", "every record fits into the ledger"),
    ("stacks", "every recorded call has a call stack"),
    ("python", "if the process runs Python, call stacks have its frames"),
    ("complaints", "the process was started with settings that are known and allowed"),
    ("aliases", "no variable of another project decides what gpumem does"),
    ("heartbeat", "the control thread of the process is alive"),
    ("control", "the process answers on its control socket"),
    ("tools", "no other tool watches the GPU in the process"),
    ("version", "shim and gpumem are of the same release"),
];

impl Finding {
    /// A finding about this machine.
    pub(super) fn new(id: &'static str, severity: Severity, finding: impl Into<String>) -> Self {
        debug_assert!(CHECKS.iter().any(|(known, _)| *known == id), "{id} is not in the list of checks");
        Self { id, severity, pid: None, finding: finding.into(), bytes: None, paste: String::new(), fix: String::new() }
    }

    /// As bad as that.
    pub(super) fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// With what to do.
    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// The finding is about so many bytes.
    pub(super) fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// With the command that answers it.
    pub(super) fn paste(mut self, command: impl Into<String>) -> Self {
        self.paste = command.into();
        self
    }

    /// About a process.
    pub(super) fn of(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }
}
