//! A command, and every process under it that uses the GPU.

use super::Args;
use super::session::Sessions;
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
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

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
pub(super) fn record(args: &Args, context: &Context) -> Result<()> {
    let failed = |failure: Failure| Failure { code: Code::RunFailed, ..failure };
    let environment =
        start::environment(args.lib.as_deref(), &args.command, context.global.dir.as_deref()).map_err(failed)?;
    start::look_up(&args.command)?;
    // Processes whose parents have ended stay below this one, and are found.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    super::watch_signals();
    let child = start::spawn(&args.command, environment)?;
    let start_ticks = Process::of(&context.world, child.id()).map_or(0, |process| process.start_ticks);
    let unix_ns = clock(ClockId::Realtime).as_nanos() as u64;
    let mut started = Started { child, start_ticks, unix_ns };
    let recorded = follow(args, context, &mut started);
    if let Err(failure) = recorded {
        super::say(format_args!("gpumem: {failure}; the command goes on without a recording\n"));
    }
    let ended = wait(&mut started, args)?;
    std::process::exit(code(ended))
}

/// Waits for the end of the command, and says so if it goes on. Signals still reach it.
fn wait(started: &mut Started, args: &Args) -> Result<ExitStatus> {
    if started.child.try_wait().map_err(lost)?.is_none() {
        let command = text::os_word(&args.command[0]);
        let pid = started.child.id();
        super::say(format_args!(
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
        super::say(format_args!("gpumem: no process of the command has used the GPU: nothing was recorded\n"));
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
        let signal = super::taken_signal();
        if signal != 0 && signal != libc::SIGINT {
            // SAFETY: kill takes two numbers. The child was not waited for yet, so its pid is no other's.
            unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        }
    }
}
