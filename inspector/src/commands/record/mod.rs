//! `gpumem record`: writes the memory of a process, second by second, to a file for `gpumem report`.
//!
//! * [`session`]: the processes, looked at in turn. [`started`]: a command, and all processes that it starts.
//! * [`place`]: the file: of limited size, in parts. It overwrites no existing file.

mod place;
mod session;
mod started;

use crate::args::{Target, candidates, interval, size, span};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Record what a process holds, second by second, for gpumem report
///
/// The process may already run under the shim. Or gpumem starts a command, and records all of its processes that use the
/// GPU. For each second the recording has live bytes by kind, call site, tag and graph class with their call stacks, what
/// the graph cache did, marks and failures, and each large allocation by itself. It ends with the process or with Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A pid or a process name; not needed if only one process fits
    #[arg(value_name = "PID|NAME", add = candidates::offer([candidates::running]))]
    target: Option<OsString>,
    /// The file to write; an existing recording is renamed to FILE~. Further processes of a command get the same name with
    /// their pid before .gz [default: gpumem-PID.rec.gz]
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Time between two samples: seconds, or a time such as 500ms or 2m. Samples that take long are taken less often
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1", value_parser = interval(Duration::from_secs(3600)))]
    interval: Duration,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    time: Option<Duration>,
    /// Record allocations of this size and above one by one
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    events_from: u64,
    /// Maximum size of the recording. When the file has half of that, it is renamed to FILE.1, which replaces an earlier
    /// FILE.1, and a new file begins
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = most)]
    max_size: u64,
    /// libgpumem.so to preload, instead of the one found beside gpumem
    #[arg(long, value_name = "FILE", env = "GPUMEM_LIB", hide_env_values = true)]
    lib: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target", add = candidates::offer([candidates::command]))]
    command: Vec<OsString>,
}

/// A file must at least hold the beginning of a recording.
fn most(text: &str) -> std::result::Result<u64, String> {
    match size(text)? {
        bytes if bytes >= 1 << 20 => Ok(bytes),
        _ => Err("allowed: 1MiB or more".into()),
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of writing the file; those of `gpumem run`. If a command was started, its exit
    /// code is that of `gpumem`.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        if self.output.as_deref() == Some(Path::new("-")) {
            return Err(Failure::usage("a recording cannot be written to stdout").fix("name a file with -o"));
        }
        match self.command.is_empty() {
            true => self.attach(context),
            false => started::record(self, context),
        }
    }

    fn attach(&self, context: &Context) -> Result<()> {
        let target = Target { target: self.target.clone(), ..Target::default() };
        let ledger = context.live_ledger(&target).map_err(|failure| self.hint(failure))?;
        if !ledger.status.running() {
            return Err(Failure::nothing(format!("pid {} ({}) is not running", ledger.pid(), ledger.name()))
                .fix("gpumem report makes a page of what it left"));
        }
        watch_signals();
        let mut sessions = session::Sessions::new(self, context);
        sessions.add(ledger, None)?;
        while !stopped() && sessions.go_on() {
            sessions.wait();
            sessions.look()?;
        }
        sessions.end(if stopped() { "it was stopped" } else { "its time was over" })
    }

    /// Adds a hint to a failure: a command without `--` before it looks like a process name.
    fn hint(&self, failure: Failure) -> Failure {
        match &self.target {
            Some(name) if failure.code == Code::Nothing && failure.fix.is_some() => {
                let command = crate::text::os_word(name);
                let fix = failure.fix.clone().unwrap_or_default();
                failure.fix(format!("{fix}; to start a command, type: gpumem record -- {command}"))
            }
            _ => failure,
        }
    }
}

/// The signal that requested the end; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

fn stopped() -> bool {
    SIGNAL.load(Ordering::Relaxed) != 0
}

/// Returns the signal since the last call; 0: none.
fn taken_signal() -> i32 {
    SIGNAL.swap(0, Ordering::Relaxed)
}

extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// Writes to stderr. A recording must survive a stderr without a reader, such as a closed terminal.
fn say(text: std::fmt::Arguments<'_>) {
    let mut stderr = anstream::stderr();
    let _ = stderr.write_fmt(text).and_then(|()| stderr.flush());
}

/// Makes SIGINT, SIGTERM and SIGHUP end the recording instead of the program, so that the recorded data is written.
/// SIGPIPE ends nothing: see [`say`].
fn watch_signals() {
    // SAFETY: SIG_IGN is a valid disposition. Commands that are started get the default back from the standard library.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `note` is a handler of the type that signal takes, and stores to an atomic alone, which a handler may
        // do at any time.
        unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
    }
}
