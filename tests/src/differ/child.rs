//! A process that runs programs: natively or preloaded.

use super::program::Program;
use super::run::{DOT, END};
use super::stacks;
use super::world::STOOD_STILL;
use crate::patience::patience;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How programs are run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The differ itself.
    pub exe: PathBuf,
    /// The preloaded library. `None`: both runs are native.
    pub lib: Option<PathBuf>,
    /// LD_LIBRARY_PATH of the runs, if it is not this process's.
    pub libraries: Option<OsString>,
    /// Environment variables of both runs.
    pub both: Vec<(String, String)>,
    /// Environment variables of the preloaded run alone.
    pub preloaded: Vec<(String, String)>,
    /// Longest that a program may take.
    pub limit: Duration,
    /// Dumps show every word.
    pub words: bool,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Finished,
    /// The exit code, or 128 plus the signal, and the last lines of its output.
    Died(i32, String),
    Stuck,
}

/// Result of a program's run.
#[derive(Clone, Debug)]
pub struct Ran {
    pub trace: Vec<String>,
    /// Rules of the driver that were broken, without numbers, sorted.
    pub violations: Vec<String>,
    pub end: End,
    /// The stacks of its threads if it stood still.
    pub stacks: Vec<String>,
}

pub struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Arc<Mutex<String>>,
    stacks: Arc<Mutex<Vec<String>>>,
    dir: PathBuf,
    reported: u64,
    limit: Duration,
}

impl Child {
    /// Starts a process.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(setup: &Setup, preload: bool) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gm-differ-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut command = Command::new(&setup.exe);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if ["GPUMEM_", "SIM_", "LD_PRELOAD"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.arg("serve").args(setup.words.then_some("--words")).env("SIM_REPORT", dir.join("violations"));
        command.env("RUST_BACKTRACE", "0").envs(setup.both.iter().cloned());
        if let Some(libraries) = &setup.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        if let Some(lib) = setup.lib.as_ref().filter(|_| preload) {
            command.env("LD_PRELOAD", lib).env("GPUMEM_DIR", &dir).envs(setup.preloaded.iter().cloned());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{}: {error}", setup.exe.display()))?;
        let (send, lines) = channel();
        let out = process.stdout.take();
        std::thread::spawn(move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
            lines.map_while(Result::ok).take_while(|line| send.send(line.clone()).is_ok()).for_each(drop);
        });
        let said = Arc::<Mutex<String>>::default();
        let stacks = Arc::<Mutex<Vec<String>>>::default();
        let (into, err, places) = (said.clone(), process.stderr.take(), stacks.clone());
        std::thread::spawn(move || {
            let lines = err.into_iter().flat_map(|err| BufReader::new(err).lines());
            for line in lines.map_while(Result::ok).filter(|line| !line.starts_with("sim: violation")) {
                if let Some(line) = line.strip_prefix(stacks::MARK) {
                    places.lock().unwrap_or_else(|held| held.into_inner()).push(line.into());
                    continue;
                }
                let mut said = into.lock().unwrap_or_else(|held| held.into_inner());
                if said.len() < 10_000 {
                    said.push_str(&line);
                    said.push('\n');
                }
            }
        });
        let (input, limit) = (process.stdin.take(), patience(setup.limit));
        Ok(Self { process, input, lines, said, stacks, dir, reported: 0, limit })
    }

    /// Gives the process a program. [`Self::finish`] returns the outcome.
    pub fn give(&mut self, program: &Program) {
        if let Some(input) = &mut self.input {
            // If the process is dead, `finish` says so.
            let _ = input.write_all(format!("{program}{DOT}\n").as_bytes()).and_then(|()| input.flush());
        }
    }

    /// Waits for the program's end. If the program did not finish, the process can run no other.
    pub fn finish(&mut self) -> Ran {
        let begin = Instant::now();
        let mut trace = Vec::new();
        let end = loop {
            match self.lines.recv_timeout(self.limit.saturating_sub(begin.elapsed())) {
                Ok(line) if line == END => break End::Finished,
                Ok(line) => trace.push(line),
                Err(RecvTimeoutError::Timeout) => break End::Stuck,
                Err(RecvTimeoutError::Disconnected) => {
                    let status =
                        self.process.wait().map(|status| status.code().unwrap_or(128 + status.signal().unwrap_or(0)));
                    // Another thread is still reading the last output.
                    std::thread::sleep(Duration::from_millis(50));
                    let said = self.said.lock().unwrap_or_else(|held| held.into_inner()).clone();
                    break End::Died(status.unwrap_or(-1), said);
                }
            }
        };
        let gave_up = trace.iter().any(|line| line.ends_with(STOOD_STILL));
        if end == End::Stuck {
            stacks::ask(self.process.id());
        } else if gave_up {
            // The stacks are written by now, but another thread is still reading them.
            std::thread::sleep(Duration::from_millis(100));
        }
        if end == End::Stuck {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        let stacks = std::mem::take(&mut *self.stacks.lock().unwrap_or_else(|held| held.into_inner()));
        Ran { trace, violations: self.new_violations(), end, stacks }
    }

    /// Broken rules that the simulator reported since the last call.
    fn new_violations(&mut self) -> Vec<String> {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(self.dir.join("violations"))
            && file.seek(SeekFrom::Start(self.reported)).is_ok()
            && file.read_to_string(&mut text).is_ok()
        {
            self.reported += text.len() as u64;
        }
        let mut all: Vec<String> = text.lines().map(without_numbers).collect();
        all.sort_unstable();
        all
    }
}

/// Numbers and addresses differ from run to run.
fn without_numbers(line: &str) -> String {
    let text = line.split_once("\"violation\"").map_or(line, |(_, text)| text);
    let mut out = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let (body, end) = word.split_at(word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len());
        out += if body.starts_with(|c: char| c.is_ascii_digit()) { "#" } else { body };
        out += end;
    }
    out
}

impl Drop for Child {
    fn drop(&mut self) {
        self.input = None;
        let begin = Instant::now();
        // The process ends by itself when its input ends.
        while begin.elapsed() < Duration::from_secs(2) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Ok(None) = self.process.try_wait() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
