//! One run of a plan, and what was wrong with it.

use super::plan::Plan;
use super::terminal::{Sent, Terminal};
use crate::faults::run::threads;
use crate::harness::artifacts;
use crate::harness::run::Scratch;
use crate::patience::patience;
use serde_json::Value;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The usual longest time of [`Place`].
pub const LONGEST: Duration = Duration::from_secs(60);
/// The exit status of a program whose simulated driver finds no memory.
const NO_HOST_MEMORY: i32 = 97;

/// Kinds of failure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    Death,
    Hang,
    /// A call answered an error, or memory ran out.
    Error,
    /// Memory did not have what was written to it.
    Byte,
    /// A rule of the driver was broken.
    Rule,
    /// The guard found something in a program that writes nowhere else, or gpumem says that it failed itself.
    Report,
    /// A command had no answer.
    Command,
}

#[derive(Clone, Debug)]
pub struct Finding {
    pub wrong: Wrong,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.wrong, self.what)
    }
}

/// Paths of the program and the shim, and the kind of driver: simulated or real.
#[derive(Clone, Debug)]
pub struct Place {
    pub program: PathBuf,
    pub shim: PathBuf,
    pub simulated: bool,
    /// How much longer than its plan says a run may take, and how long an answer to a command.
    pub longest: Duration,
}

impl Place {
    /// The programs of the tests, on the simulator.
    pub fn simulated() -> Self {
        let all = artifacts();
        Self { program: all.programs.join("storm"), shim: all.shim.clone(), simulated: true, longest: LONGEST }
    }
}

/// Result of a run.
#[derive(Default)]
pub struct Ran {
    pub findings: Vec<Finding>,
    pub operations: u64,
    pub commands: u64,
}

enum End {
    Status(ExitStatus),
    Hang(String),
}

/// Runs a plan, natively or under the shim.
///
/// # Errors
/// If it cannot be started, or the simulator has no memory.
pub fn run(plan: &Plan, place: &Place, preload: bool) -> Result<Ran, String> {
    let own = Scratch::new();
    let at = |name: &str| own.path().join(name);
    let made = |path: PathBuf| File::create(&path).map_err(|error| format!("{}: {error}", path.display()));
    let mut command = Command::new(&place.program);
    command.args(plan.arguments()).env("SIM_REPORT", at("violations"));
    if place.simulated {
        command.env("LD_LIBRARY_PATH", &artifacts().stage).envs(plan.simulator.iter().copied());
    }
    if preload {
        fs::create_dir(at("ledgers")).map_err(|error| error.to_string())?;
        command.env("LD_PRELOAD", &place.shim).env("GPUMEM_DIR", at("ledgers")).envs(plan.settings.iter().copied());
    }
    command.stdin(Stdio::null()).stdout(made(at("out"))?).stderr(made(at("err"))?).process_group(0);
    let mut child = command.spawn();
    // A thread that has just forked for another run may hold a new program open for writing for a moment.
    while matches!(&child, Err(error) if error.raw_os_error() == Some(libc::ETXTBSY)) {
        std::thread::sleep(Duration::from_millis(20));
        child = command.spawn();
    }
    let mut child = child.map_err(|error| format!("{}: {error}", place.program.display()))?;
    let (stop, begin, longest) = (AtomicBool::new(false), Instant::now(), patience(place.longest));
    let folder = at("ledgers");
    let terminals: Vec<Terminal<'_>> = (0_u64..)
        .zip(&plan.terminals)
        .map(|(n, &gap)| {
            let seed = plan.seed.wrapping_mul(16).wrapping_add(n);
            Terminal { folder: &folder, seed, gap, commands: plan.commands, patience: longest, stop: &stop }
        })
        .collect();
    let (end, sent) = std::thread::scope(|scope| {
        let each = |terminal| scope.spawn(move || Terminal::run(terminal));
        let sending: Vec<_> = terminals.iter().filter(|_| preload).map(each).collect();
        let end = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(End::Status(status)),
                Ok(None) if begin.elapsed() > plan.length + longest => break Ok(End::Hang(threads(child.id()))),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => break Err(error.to_string()),
            }
        };
        stop.store(true, Relaxed);
        (end, sending.into_iter().filter_map(|terminal| terminal.join().ok()).collect::<Vec<Sent>>())
    });
    // SAFETY: kill takes two numbers. This run made the group for its child.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let _ = child.wait();
    let text =
        |name: &str| fs::read(at(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    judge(end?, &text("out"), &text("err"), &text("violations"), &sent)
}

fn judge(end: End, out: &str, err: &str, violations: &str, sent: &[Sent]) -> Result<Ran, String> {
    let mut ran = Ran { commands: sent.iter().map(|sent| sent.answered).sum(), ..Ran::default() };
    let said: Value = serde_json::from_str(out.lines().last().unwrap_or_default()).unwrap_or_default();
    let count = |name: &str| said[name].as_u64().unwrap_or_default();
    ran.operations = count("operations");
    let lines = |text: &str| text.lines().take(12).map(|line| format!("\n    {line}")).collect::<String>();
    let mut found = |wrong, what: String| ran.findings.push(Finding { wrong, what });
    match end {
        End::Hang(stacks) => found(Wrong::Hang, format!("its threads:\n{stacks}{}", lines(err))),
        End::Status(status) => match status.code() {
            Some(NO_HOST_MEMORY) => return Err("the simulator has no host memory".into()),
            None => found(Wrong::Death, format!("by signal {}{}", status.signal().unwrap_or_default(), lines(err))),
            Some(0) => {}
            Some(_) if count("wrong") > 0 => found(Wrong::Byte, format!("{said}{}", lines(err))),
            Some(_) if said.is_object() => found(Wrong::Error, format!("{said}{}", lines(err))),
            Some(code) => found(Wrong::Death, format!("exit status {code}{}", lines(err))),
        },
    }
    if !violations.is_empty() {
        found(Wrong::Rule, lines(violations));
    }
    let reports =
        [" written behind a block", " written in front of a block", " written to a block", "bug in gpumem", "panicked"];
    if let Some(line) = err.lines().find(|line| reports.iter().any(|report| line.contains(report))) {
        found(Wrong::Report, line.into());
    }
    sent.iter().filter_map(|sent| sent.unanswered.clone()).for_each(|line| found(Wrong::Command, line));
    Ok(ran)
}
