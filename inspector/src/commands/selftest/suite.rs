//! Runs a suite of checks in a process of its own, with one JSON line for each check. If a check ends the process or
//! hangs, that check has failed, and another process continues with the next check.

use super::{Setup, SuitePart};
use crate::failure::plain;
use crate::source::open::{Owner, snapshot};
use gpumem_wire::kinds::{Interception, Mode};
use gpumem_wire::read::Snapshot;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// No check takes longer: those of the driver's rules take up to a second on an H200.
const PATIENCE: Duration = Duration::from_secs(90);
/// Checks that may end their process before the rest is given up.
const MOST_DEATHS: usize = 8;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Ok,
    Fail,
    Skip,
}

/// One check.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Check {
    #[serde(rename = "check")]
    pub name: String,
    pub result: Outcome,
    pub(super) detail: Vec<String>,
}

/// A process that ended or was killed.
pub(super) struct EndedProcess {
    /// `None`: it hung and was killed.
    pub status: Option<ExitStatus>,
    pub pid: u32,
    pub stderr: String,
}

impl EndedProcess {
    /// Returns the end of the process in words.
    pub(super) fn words(&self) -> String {
        match self.status {
            None => format!("it hung for {} s and was killed", PATIENCE.as_secs()),
            Some(status) => match status.signal() {
                Some(signal) => format!("it was ended by signal {signal}"),
                None => format!("it ended with code {}", status.code().unwrap_or(-1)),
            },
        }
    }

    /// Returns the last line of its output.
    pub(super) fn last_words(&self) -> &str {
        self.stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("")
    }
}

/// Environment of processes: the preload, the directory of ledgers, the variables.
#[derive(Clone)]
pub(super) struct Under<'a> {
    pub lib: &'a Path,
    pub ledgers: PathBuf,
    pub variables: Vec<(&'static str, &'static str)>,
}

/// Returns a command in the environment of a run: without gpumem's variables, except those of the run.
pub(super) fn command(program: &Path, under: Option<&Under>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    if let Some(under) = under {
        // One check expects that freed memory comes back zeroed, which the pool does on request.
        command.env("GPUMEM_POOL_FILL", "zero");
        command.env("LD_PRELOAD", under.lib).env("GPUMEM_DIR", &under.ledgers).envs(under.variables.iter().copied());
    }
    command
}

/// Runs a process; `line` gets each line of its stdout. With `patience` it is killed if no line came for that long,
/// else at the `deadline`.
pub(super) fn watch(
    mut command: Command,
    deadline: Option<Duration>,
    mut line: impl FnMut(String),
) -> Result<EndedProcess, String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start {shown}: {}", plain(&error)))?;
    let (send, lines) = channel();
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let forward = deadline.is_some();
    std::thread::spawn(move || {
        let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
        lines.map_while(Result::ok).take_while(|line| send.send(line.clone()).is_ok()).for_each(drop);
    });
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        for line in err.into_iter().flat_map(|err| BufReader::new(err).split(b'\n')).map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if forward {
                eprintln!("{line}");
            }
            // The end matters most, and the beginning names the device.
            if text.len() < 1 << 20 {
                text.extend([&*line, "\n"]);
            }
        }
        text
    });
    let begin = Instant::now();
    let ended = loop {
        let left = deadline.map_or(PATIENCE, |deadline| deadline.saturating_sub(begin.elapsed()));
        match lines.recv_timeout(left) {
            Ok(text) => line(text),
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    if !ended {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("{shown}: {}", plain(&error)))?;
    let pid = child.id();
    // A child that the process left behind may keep the pipe open, so stderr is read to its end only if the process
    // ended by itself.
    let stderr = if ended { said.join().unwrap_or_default() } else { String::new() };
    Ok(EndedProcess { status: ended.then_some(status), pid, stderr })
}

/// Report of a suite.
pub(super) struct SuiteReport {
    pub checks: Vec<Check>,
    /// The line in which it names the device.
    pub device: String,
    /// The process that ran it; the last one, if there were several.
    pub pid: u32,
}

/// Beginning of the line in which the program names the device, or says why there is none.
pub(super) const SAYS: &str = "conformance:";

/// A suite of the program `conformance`.
pub(super) struct Suite<'a> {
    /// Its part of the selftest.
    pub name: &'static str,
    pub program: &'a Path,
    /// Arguments before `--list`, `--json` and `--after`.
    pub args: &'a [&'a str],
}

impl Suite<'_> {
    /// Returns the names of its checks.
    fn names(&self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        let mut listing = command(self.program, None);
        listing.args(self.args).arg("--list");
        let ended = watch(listing, None, |line| names.extend(line.split(' ').next().map(str::to_owned)))?;
        if names.is_empty() { Err(format!("{}: {}", self.program.display(), ended.words())) } else { Ok(names) }
    }

    /// Runs the whole suite. `log` gets its lines.
    ///
    /// # Errors
    /// Says why it cannot run here.
    fn run(&self, under: Option<&Under>, log: Option<&Path>) -> Result<SuiteReport, String> {
        let mut log = log.and_then(|log| File::create(log).ok());
        let mut told = SuiteReport { checks: Vec::new(), device: String::new(), pid: 0 };
        let mut after: Option<String> = None;
        for _ in 0..MOST_DEATHS {
            let mut running = command(self.program, under);
            running.args(self.args).arg("--json");
            running.args(after.iter().flat_map(|name| ["--after", name]));
            let ended = watch(running, None, |line| {
                if let Some(log) = &mut log {
                    let _ = writeln!(log, "{line}");
                }
                told.checks.extend(serde_json::from_str::<Check>(&line));
            })?;
            told.pid = ended.pid;
            if told.device.is_empty() {
                let named = ended.stderr.lines().find_map(|line| line.strip_prefix(SAYS));
                told.device = named.unwrap_or_default().trim().to_owned();
            }
            match ended.status.and_then(|status| status.code()) {
                Some(0 | 1) => return Ok(told),
                Some(2) if told.checks.is_empty() => {
                    return Err(ended.last_words().trim_start_matches(SAYS).trim().to_owned());
                }
                _ => {}
            }
            let names = self.names()?;
            let last = told.checks.last().map(|check| &check.name);
            let next =
                last.map_or(0, |last| names.iter().position(|name| name == last).map_or(names.len(), |at| at + 1));
            let Some(name) = names.get(next) else { return Ok(told) };
            let why = [ended.words(), ended.last_words().to_owned()].join(": ");
            told.checks.push(Check { name: name.clone(), result: Outcome::Fail, detail: vec![why] });
            after = Some(name.clone());
        }
        let why = format!("the checks behind it did not run: {MOST_DEATHS} processes ended");
        told.checks.extend(after.map(|name| Check { name, result: Outcome::Fail, detail: vec![why] }));
        Ok(told)
    }

    /// Runs it without the preload.
    ///
    /// # Errors
    /// Says why it cannot run here.
    pub(super) fn natively(&self, setup: &Setup) -> Result<SuiteReport, String> {
        self.run(None, Some(&setup.log(&format!("{}-native", self.name))))
    }

    /// Runs it under the preload. One more check verifies that the preload worked and that the part's subject was
    /// `exercised` (a counter, and what it counts of execs).
    ///
    /// # Errors
    /// If no directory can be made for it.
    pub(super) fn preloaded(
        &self,
        setup: &Setup,
        native: &[Check],
        run: &'static str,
        variables: &[(&'static str, &'static str)],
        exercised: Option<(usize, &str)>,
    ) -> Result<SuitePart, String> {
        let name = format!("{}-{run}", self.name);
        let under = setup.under(&name, variables)?;
        let told = match self.run(Some(&under), Some(&setup.log(&name))) {
            Ok(told) => told,
            Err(why) => return Ok(SuitePart::broken(self.name, run, why)),
        };
        let mut part = SuitePart::of(self.name, run, &told.checks, Some(native));
        match did_its_work(&under, told.pid, exercised) {
            Ok(()) => part.ok += 1,
            Err(why) => part.fail("preload.is_active", why),
        }
        Ok(part)
    }
}

/// Checks that the shim worked in a process, on every call.
fn did_its_work(under: &Under, pid: u32, exercised: Option<(usize, &str)>) -> Result<(), String> {
    let snapshot = ledger(under, pid).ok_or("the preloaded process left no ledger")?;
    let header = &snapshot.header;
    if header.interception != Interception::Complete as u32 {
        return Err(format!("interception is not complete: {}", snapshot.text(header.interception_reason)));
    }
    if header.mode == Mode::RecordOnly as u32 {
        return Err(format!("record-only: {}", snapshot.text(header.mode_reason)));
    }
    match exercised {
        Some((counter, what)) if snapshot.counter(counter) == 0 => {
            Err(format!("no exec was {what}: this part tried nothing"))
        }
        _ => Ok(()),
    }
}

/// Returns the shim's records of a process.
pub(super) fn ledger(under: &Under, pid: u32) -> Option<Snapshot> {
    let entries = std::fs::read_dir(&under.ledgers).ok()?;
    let mut files = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.ends_with(".ledger") && name.split('-').next() == Some(pid.to_string().as_str())
    });
    snapshot(&files.next()?.path(), Owner::Anyone, |_| true).ok()
}
