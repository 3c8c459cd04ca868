//! Runs workers, each watched by a thread. A worker that dies or hangs is a finding, and another worker goes on behind
//! that case.

use super::corpus;
use crate::patience::patience;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A worker that is silent for this long hangs. This is much longer than an answer may take, because the machine may be
/// busy.
const HANGS: Duration = Duration::from_secs(60);

/// The cases that are run, and how.
pub struct Campaign {
    pub seeds: Range<u64>,
    pub jobs: u64,
    /// The program that becomes a worker when it gets `--worker`.
    pub program: PathBuf,
    /// Folder for written files: in memory, if possible.
    pub dir: PathBuf,
}

/// A case that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAnswer {
    pub seed: u64,
    /// The damaged file, and the command that read it.
    pub case: String,
    pub what: String,
}

impl Campaign {
    /// Runs every case. Returns the findings.
    ///
    /// # Errors
    /// Says what kept it from running.
    pub fn run(&self) -> Result<Vec<BadAnswer>, String> {
        let made = |path: PathBuf| std::fs::create_dir_all(&path).map(|()| path).map_err(|error| error.to_string());
        let files = made(self.dir.join("corpus"))?;
        corpus::plant(&files)?;
        let share = (self.seeds.end - self.seeds.start).div_ceil(self.jobs.max(1));
        let lot = |job: u64| {
            let from = self.seeds.start + job * share;
            from.min(self.seeds.end)..(from + share).min(self.seeds.end)
        };
        let found = std::thread::scope(|scope| {
            let works: Vec<_> = (0..self.jobs.max(1))
                .map(|job| {
                    let (files, seeds) = (&files, lot(job));
                    scope.spawn(move || self.work(files, &made(self.dir.join(format!("job-{job}")))?, seeds))
                })
                .collect();
            let each = works.into_iter().map(|work| work.join().unwrap_or(Err("a thread panicked".into())));
            each.collect::<Result<Vec<_>, String>>()
        })?;
        let mut found = found.concat();
        found.sort_by_key(|found| found.seed);
        Ok(found)
    }

    fn work(&self, files: &Path, dir: &Path, mut seeds: Range<u64>) -> Result<Vec<BadAnswer>, String> {
        let mut found = Vec::new();
        while !seeds.is_empty() {
            let mut worker = Worker::start(&self.program, files, dir, &seeds).map_err(|error| error.to_string())?;
            // The case that the worker is running, and its command.
            let mut at_hand: Option<(u64, String)> = None;
            let lost = loop {
                let line = match worker.lines.recv_timeout(patience(HANGS)) {
                    Ok(line) => line,
                    Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                        break format!("it hangs for {:?}", patience(HANGS));
                    }
                    Err(_) => break worker.end(),
                };
                let mut words = line.splitn(3, ' ');
                let (verb, seed) = (words.next().unwrap_or_default(), words.next().and_then(|seed| seed.parse().ok()));
                let rest = words.next().unwrap_or_default().to_owned();
                match (verb, seed) {
                    ("done", _) => return Ok(found),
                    ("case", Some(seed)) => at_hand = Some((seed, rest)),
                    ("found", Some(seed)) => {
                        let case = at_hand.as_ref().map(|(_, case)| case.clone()).unwrap_or_default();
                        found.push(BadAnswer { seed, case, what: rest });
                    }
                    _ => return Err(format!("a worker says {line:?}")),
                }
            };
            let (seed, case) = at_hand.ok_or(format!("a worker did not begin: {lost}"))?;
            found.push(BadAnswer { seed, case, what: lost });
            seeds.start = seed + 1;
        }
        Ok(found)
    }
}

struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn start(program: &Path, files: &Path, dir: &Path, seeds: &Range<u64>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg("--worker").arg(files).arg(dir).args([seeds.start.to_string(), seeds.end.to_string()]);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
            command.env_remove(name);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (send, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.map_while(|line| send.send(line).ok()).for_each(drop);
            });
        }
        Ok(Self { child, lines })
    }

    /// Says how the worker ended.
    fn end(&mut self) -> String {
        self.child.wait().map_or_else(|error| error.to_string(), |status| format!("it ended: {status}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
