//! Files that a run left behind. Each ledger must be readable, or `gpumem` must refuse it and say why.

use crate::harness::artifacts;
use crate::harness::ledger::messages;
use crate::patience::patience;
use gpumem_wire::counters;
use gpumem_wire::read::Snapshot;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Views that are asked for each ledger.
const VIEWS: &[&str] = &["allocs", "stats", "graphs"];
/// Longest time for one view.
const LIMIT: Duration = Duration::from_secs(30);
/// Refusals that name the cause. They are allowed: a process may die, or its disk may be full, before the header is
/// written.
const HONEST: &[&str] = &["too few for a ledger", "is not a ledger or dump of gpumem"];

/// Result of the search.
#[derive(Debug, Default)]
pub struct LeftFiles {
    pub ledgers: usize,
    /// Ledgers that gpumem refuses with a reason from `HONEST`.
    pub refused: usize,
    pub wrong: Vec<String>,
}

/// Asks `gpumem` about every ledger below a directory.
pub fn look(place: &Path) -> LeftFiles {
    let mut left = LeftFiles::default();
    let mut ledgers = Vec::new();
    collect(place, &mut ledgers);
    left.ledgers = ledgers.len();
    let mut dirs: Vec<&Path> = ledgers.iter().filter_map(|path| path.parent()).collect();
    dirs.dedup();
    for dir in dirs {
        match ask(dir, &["ps"]) {
            Answer::Told => {}
            Answer::Refused(why) | Answer::Wrong(why) => left.wrong.push(format!("gpumem ps: {why}")),
        }
    }
    for path in &ledgers {
        let text = path.to_string_lossy();
        let mut refusals = 0;
        for view in VIEWS {
            match ask(path.parent().unwrap_or(place), &[view, "--file", &text]) {
                Answer::Told => {}
                Answer::Refused(_) => refusals += 1,
                Answer::Wrong(why) => left.wrong.push(format!("gpumem {view}: {why}")),
            }
        }
        left.refused += usize::from(refusals > 0);
        if refusals > 0 && refusals < VIEWS.len() {
            left.wrong.push(format!("{text}: refused by {refusals} of {} views", VIEWS.len()));
        }
        if let Ok(file) = fs::File::open(path)
            && let Ok(Ok(snapshot)) = Snapshot::read(&file)
            && snapshot.counter(counters::PANICS) > 0
        {
            // One of the messages names the place.
            let (panics, said) = (snapshot.counter(counters::PANICS), messages(&snapshot).join("; "));
            left.wrong.push(format!("{panics} panics were contained: {said}"));
        }
    }
    left
}

fn collect(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect(&path, into),
            Ok(kind) if kind.is_file() && path.extension().is_some_and(|end| end == "ledger") => into.push(path),
            _ => {}
        }
    }
}

enum Answer {
    Told,
    /// Refused with a reason from `HONEST`.
    Refused(String),
    Wrong(String),
}

fn ask(dir: &Path, args: &[&str]) -> Answer {
    let mut command = Command::new(&artifacts().gpumem);
    command.env_clear().env("GPUMEM_DIR", dir).args(args).arg("--json");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Answer::Wrong(error.to_string()),
    };
    let pid = child.id();
    let (done, over) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output();
        let _ = done.send(());
        output
    });
    if over.recv_timeout(patience(LIMIT)).is_err() {
        // SAFETY: kill takes two numbers. The child has not been reported as ended, so `pid` is
        // still the child's number.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
    let output = match waiter.join() {
        Ok(Ok(output)) => output,
        _ => return Answer::Wrong("it could not be waited for".into()),
    };
    if begin.elapsed() >= patience(LIMIT) {
        return Answer::Wrong(format!("no answer after {:?}", patience(LIMIT)));
    }
    let err = String::from_utf8_lossy(&output.stderr);
    let (code, what) = (output.status.code(), err.trim());
    match code {
        Some(0) => match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
            Ok(_) => Answer::Told,
            Err(error) => Answer::Wrong(format!("it prints no JSON: {error}")),
        },
        Some(1 | 3) if HONEST.iter().any(|reason| what.contains(reason)) => Answer::Refused(what.into()),
        _ => Answer::Wrong(format!("{}: {what}", output.status)),
    }
}
