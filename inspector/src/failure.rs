//! Failure of a command: the problem, the remedy, and the exit code.

use std::fmt;

/// Exit codes of `gpumem`; `gpumem run` passes on those of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    /// A problem with a file, a permission or the system.
    Error = 1,
    /// The command line is wrong; `selftest`: it could not run.
    Usage = 2,
    /// There is nothing to show; `leaks`: something grows by more than it may.
    Nothing = 3,
    /// Several processes match; one has to be named.
    Several = 4,
    /// `run`: gpumem itself failed before the command was started.
    RunFailed = 125,
    /// `run`: the command was found and cannot be executed.
    NotExecutable = 126,
    /// `run`: the command was not found.
    NotFound = 127,
}

impl Code {
    /// Every code with its meaning, as in the documentation.
    pub const ALL: &'static [(Code, &'static str)] = &[
        (Code::Ok, "all went well"),
        (
            Code::Error,
            "an error: a damaged file, no permission, a command that the process refused or did not answer, a check of doctor with severity error, a failure in selftest; leaks --fail-over, --fail-rate: too little is known to tell",
        ),
        (Code::Usage, "wrong usage; selftest: it could not run"),
        (
            Code::Nothing,
            "nothing found: no such process, no ledger, a process without the shim; leaks --fail-over, --fail-rate: more growth than allowed",
        ),
        (Code::Several, "several processes fit; name one"),
        (Code::RunFailed, "run: gpumem failed before the command was started"),
        (Code::NotExecutable, "run: the command cannot be executed"),
        (Code::NotFound, "run: the command was not found"),
    ];
}

/// The reason why a command ends early.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub code: Code,
    pub what: String,
    /// The remedy for the user.
    pub fix: Option<String>,
}

/// Result of a command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Returns a failure with this code; `what` without a final period.
    pub(crate) fn new(code: Code, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), fix: None }
    }

    /// [`Code::Error`].
    pub(crate) fn error(what: impl Into<String>) -> Self {
        Self::new(Code::Error, what)
    }

    /// [`Code::Usage`].
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Code::Usage, what)
    }

    /// [`Code::Nothing`].
    pub(crate) fn nothing(what: impl Into<String>) -> Self {
        Self::new(Code::Nothing, what)
    }

    /// Adds the remedy.
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Returns an I/O error about `what`.
    pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let failure = Self::error(format!("{what}: {}", plain(error)));
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => failure.fix(as_root()),
            _ => failure,
        }
    }
}

/// Returns the system's text without Rust's "(os error N)".
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.clone(), |(text, _)| text.to_owned())
}

/// Returns the current command with sudo before it, for a user who lacks a permission.
pub(crate) fn as_root() -> String {
    if rustix::process::geteuid().is_root() {
        return "even root is not allowed to: CAP_SYS_PTRACE is missing, or the kernel protects that process".into();
    }
    let mut words = vec!["sudo".to_owned()];
    words.extend(std::env::args_os().map(|arg| crate::text::os_word(&arg)));
    format!("run as the user of that process or: {}", words.join(" "))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::text::clean_lines(&self.what))?;
        match &self.fix {
            Some(fix) => write!(f, "; {}", crate::text::clean_lines(fix)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
