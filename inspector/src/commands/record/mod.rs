//! `gpumem record`: writes the memory of a process, second by second, to a file for `gpumem report`. Or starts a command,
//! and records every process under it that uses the GPU.
//!
//! * [`session`]: the processes, looked at in turn. [`place`]: the file: of limited size, in parts. It overwrites no
//!   existing file.

mod place;
mod session;

use crate::args::{Target, candidates, interval, size, span};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::launch::start;
use crate::model::Ledger;
use crate::model::recording::line::StartedBy;
use crate::source::choose;
use crate::source::find::{self, FoundProcess, LedgerFile};
use crate::source::process::Process;
use crate::source::world::{World, clock};
use crate::text;
use gpumem_wire::place::ProcessId;
use rustix::time::ClockId;
use session::Sessions;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Record what a process holds, second by second, for gpumem report
///
/// The process may already run under the shim. Or gpumem starts a command, and records all processes of the command
/// that use the GPU. For each second the recording has live bytes by kind, call site, tag and graph class, with their
/// call stacks. It also has the work of the graph cache, marks, failures, and each large allocation by itself. The
/// recording ends with the process or with Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A pid or a process name; not needed if only one process fits
    #[arg(value_name = "PID|NAME", add = candidates::offer([candidates::running]))]
    target: Option<OsString>,
    /// The file to write; an existing recording is renamed to FILE~. If a command has further processes, the recording of
    /// each goes to the same name with its pid before .gz [default: gpumem-PID.rec.gz]
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
        if self.command.is_empty() { self.attach(context) } else { record(self, context) }
    }

    fn attach(&self, context: &Context) -> Result<()> {
        let target = Target { target: self.target.clone(), ..Target::default() };
        let ledger = context.live_ledger(&target).map_err(|failure| self.hint(failure))?;
        if !ledger.status.running() {
            return Err(Failure::nothing(format!("pid {} ({}) is not running", ledger.pid(), ledger.name()))
                .fix("gpumem report makes a page of what it left"));
        }
        watch_signals();
        let mut sessions = Sessions::new(self, context);
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

/// Interval of checks for a process that uses the GPU, while there is none.
const SOON: Duration = Duration::from_millis(50);

/// A started process, recognisable after its end.
struct Started {
    child: Child,
    start_ticks: u64,
    unix_ns: u64,
}

/// Records a command, and ends with its exit status.
///
/// # Errors
/// Those of starting it. Later failures of the recording are printed, and the command continues.
fn record(args: &Args, context: &Context) -> Result<()> {
    let failed = |failure: Failure| Failure { code: Code::RunFailed, ..failure };
    let environment =
        start::environment(args.lib.as_deref(), &args.command, context.global.dir.as_deref()).map_err(failed)?;
    start::look_up(&args.command)?;
    // Processes whose parents have ended stay below this one, and are found.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    watch_signals();
    let child = start::spawn(&args.command, environment)?;
    let start_ticks = Process::of(&context.world, child.id()).map_or(0, |process| process.start_ticks);
    let unix_ns = clock(ClockId::Realtime).as_nanos() as u64;
    let mut started = Started { child, start_ticks, unix_ns };
    let recorded = follow(args, context, &mut started);
    if let Err(failure) = recorded {
        say(format_args!("gpumem: {failure}; the command goes on without a recording\n"));
    }
    let ended = wait(&mut started, args)?;
    std::process::exit(code(ended))
}

/// Waits for the end of the command, and says so if it goes on. Signals still reach it.
fn wait(started: &mut Started, args: &Args) -> Result<ExitStatus> {
    if started.child.try_wait().map_err(lost)?.is_none() {
        let command = text::os_word(&args.command[0]);
        let pid = started.child.id();
        say(format_args!(
            "gpumem: {command} (pid {pid}) goes on, and gpumem record waits for its end; Ctrl-C or SIGTERM ends it\n"
        ));
    }
    loop {
        started.pass_on_signals();
        match started.child.try_wait().map_err(lost)? {
            Some(ended) => return Ok(ended),
            None => std::thread::sleep(SOON),
        }
    }
}

fn lost(error: std::io::Error) -> Failure {
    Failure::io("cannot wait for the command", &error)
}

/// Returns the exit code as a shell gives it.
fn code(ended: ExitStatus) -> i32 {
    ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0))
}

fn follow(args: &Args, context: &Context, started: &mut Started) -> Result<()> {
    let mut sessions = Sessions::new(args, context);
    let mut runs = true;
    while runs && sessions.in_time() {
        started.pass_on_signals();
        runs = started.child.try_wait().map_err(lost)?.is_none();
        for found in fresh(&context.world, started, &sessions) {
            let Ok(opened) = choose::read(&context.world, &found) else { continue };
            let ledger = Ledger::of(&context.world, opened);
            let started_by = started.started_by(args, context, &ledger);
            sessions.add(ledger, Some(started_by))?;
        }
        match sessions.has_none() {
            true => std::thread::sleep(SOON),
            false if runs => {
                sessions.wait();
                sessions.look()?;
            }
            false => {}
        }
    }
    if sessions.has_none() {
        say(format_args!("gpumem: no process of the command has used the GPU: nothing was recorded\n"));
    }
    sessions.end(if runs { "its time was over" } else { "the command ended" })
}

/// Returns the ledgers of processes below this one that are not recorded yet, including the ledger that the command
/// itself left.
fn fresh(world: &World, started: &Started, sessions: &Sessions<'_>) -> Vec<FoundProcess> {
    let is_ours = |found: &FoundProcess| match (&found.process, found.path()) {
        (Some(process), _) => descends(world, process.pid),
        (None, Some(path)) => {
            let id = path.file_name().and_then(|name| ProcessId::from_ledger_name(name.to_str()?));
            id.is_some_and(|id| (id.pid, id.start_ticks) == (started.child.id(), started.start_ticks))
        }
        (None, None) => false,
    };
    let wanted = |found: &FoundProcess| {
        let known = found.path().is_some_and(|path| sessions.has(path));
        matches!(found.what, LedgerFile::Ledger { .. }) && !known && is_ours(found)
    };
    find::survey(world).found.into_iter().filter(wanted).collect()
}

/// True if a process is below this one.
fn descends(world: &World, mut pid: u32) -> bool {
    // No tree is as deep. A pid that is reused meanwhile could make a circle.
    for _ in 0..1000 {
        match Process::parent(world, pid) {
            Some(parent) if parent == std::process::id() => return true,
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

impl Started {
    /// Returns who started a process of the command.
    fn started_by(&self, args: &Args, context: &Context, ledger: &Ledger) -> StartedBy {
        let process = ledger.process.as_ref();
        let parent = process.and_then(|process| Process::parent(&context.world, process.pid));
        let parent = parent.filter(|&pid| pid != std::process::id());
        let parent = parent.and_then(|pid| Process::of(&context.world, pid));
        StartedBy {
            recorder_unix_ns: self.unix_ns,
            command: args.command.iter().map(|word| text::os_word(word)).collect::<Vec<_>>().join(" "),
            parent_pid: parent.as_ref().map_or(0, |parent| parent.pid),
            parent_name: parent.map(|parent| parent.name).unwrap_or_default(),
        }
    }

    /// A terminal sends SIGINT to all of its processes. A signal sent to this process alone is passed on to the
    /// command.
    fn pass_on_signals(&self) {
        let signal = taken_signal();
        if signal != 0 && signal != libc::SIGINT {
            // SAFETY: kill takes two numbers. The child was not waited for yet, so its pid is no other's.
            unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        }
    }
}
