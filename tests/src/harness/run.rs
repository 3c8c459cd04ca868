//! One program, once: native or preloaded, with a directory of its own and a time limit.

use super::artifacts;
use super::ledger::Ledger;
use crate::patience::patience;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use super::scratch::Scratch;

/// Longest that any program may run. Only one that stands still runs for so long, on whatever machine, beside whatever
/// else.
const LIMIT: Duration = Duration::from_secs(300);

/// A program that is to be run, any number of times.
#[derive(Clone, Debug)]
pub struct Program {
    file: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    without: Vec<OsString>,
    input: Vec<u8>,
    waits: bool,
    dir: Option<PathBuf>,
    user: Option<u32>,
}

/// A program of tests/programs.
pub fn program(name: &str) -> Program {
    command(artifacts().programs.join(name))
}

/// A program of tests/programs/clients.
pub fn client(name: &str) -> Program {
    command(artifacts().clients.join(name))
}

/// Any program: a path, or a name on PATH.
pub fn command(file: impl Into<PathBuf>) -> Program {
    Program {
        file: file.into(),
        args: Vec::new(),
        env: Vec::new(),
        without: Vec::new(),
        input: Vec::new(),
        waits: false,
        dir: None,
        user: None,
    }
}

impl Program {
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// In a preloaded run the Nth call of a system function fails, for the shim alone (`NAME:N`, `*` for any function),
    /// or every call from the Nth on (`NAME:N-`).
    pub fn denied(self, what: impl Into<OsString>) -> Self {
        let libraries =
            [artifacts().shim.as_os_str(), artifacts().clients.join("libdenied.so").as_os_str()].join(OsStr::new(":"));
        self.env("LD_PRELOAD", libraries).env("DENIED", what)
    }

    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn envs(self, variables: &[(&str, &str)]) -> Self {
        variables.iter().fold(self, |program, (name, value)| program.env(name, value))
    }

    /// Removes an environment variable that runs have by default.
    pub fn without(mut self, name: impl Into<OsString>) -> Self {
        self.without.push(name.into());
        self
    }

    /// Sets the input that it reads on stdin.
    pub fn input(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.input = text.into();
        self
    }

    /// Keeps its stdin open until [`Running::finish`]: it waits for that.
    pub fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    /// The directory for ledgers, instead of a new one for each run.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Runs as another user; only root may.
    pub fn user(mut self, uid: u32) -> Self {
        self.user = Some(uid);
        self
    }

    /// Runs the program through `sh -c SCRIPT`. In the script "$@" is the program with its arguments.
    pub fn shell(mut self, script: &str) -> Self {
        let program = std::mem::replace(&mut self.file, "sh".into());
        let head = ["-c".into(), script.into(), "sh".into(), program.into_os_string()];
        self.args.splice(0..0, head);
        self
    }

    /// Runs as if gpumem did not exist.
    pub fn native(&self) -> Ran {
        self.start(false).finish()
    }

    /// Runs under the preload.
    pub fn preloaded(&self) -> Ran {
        self.start(true).finish()
    }

    /// Starts the program and returns at once.
    pub fn start(&self, preload: bool) -> Running {
        let own = Scratch::new();
        let mut command = Command::new(&self.file);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if ["GPUMEM_", "SIM_", "LD_", "XDG_RUNTIME_DIR"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        let report = own.path().join("violations");
        let dir = self.dir.clone().unwrap_or_else(|| own.path().join("ledgers"));
        command.args(&self.args).env("LD_LIBRARY_PATH", &artifacts().stage).env("SIM_REPORT", &report);
        if preload {
            command.env("LD_PRELOAD", &artifacts().shim).env("GPUMEM_DIR", &dir);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        for name in &self.without {
            command.env_remove(name);
        }
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let mut input = child.stdin.take().expect("piped");
        let text = self.input.clone();
        let kept = if self.waits {
            Some(input)
        } else {
            std::thread::spawn(move || input.write_all(&text));
            None
        };
        Running {
            input: kept,
            child,
            out: collect(out),
            err: collect(err),
            own,
            dir,
            report,
            what: format!("{command:?}"),
        }
    }
}

type Text = std::sync::Arc<std::sync::Mutex<Vec<u8>>>;

/// Reads a pipe to its end in a thread. The text can be read meanwhile.
fn collect(mut pipe: impl Read + Send + 'static) -> (Text, JoinHandle<()>) {
    let text = Text::default();
    let into = text.clone();
    let thread = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut piece) {
            into.lock().expect("no panic while held").extend_from_slice(&piece[..n]);
        }
    });
    (text, thread)
}

/// A running program. When this is dropped, its whole process group is killed.
pub struct Running {
    input: Option<ChildStdin>,
    child: Child,
    out: (Text, JoinHandle<()>),
    err: (Text, JoinHandle<()>),
    own: Scratch,
    /// Directory of its ledger.
    pub dir: PathBuf,
    report: PathBuf,
    what: String,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.out.0.lock().expect("no panic while held")).into_owned()
    }

    /// Waits for a whole line on stdout that holds this.
    pub fn says(&self, what: &str) -> &Self {
        let lines = || self.stdout().split_inclusive('\n').any(|line| line.ends_with('\n') && line.contains(what));
        wait_for(&format!("{} to say {what:?}", self.what), lines);
        self
    }

    /// Writes a line to its stdin, where it waits for more.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("one that waits");
        input.write_all(format!("{line}\n").as_bytes()).expect("it reads");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes two numbers. The child is ours and is not waited for yet, so no other
        // process has its number.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0, "kill {signal}");
    }

    /// Looks whether it has ended, and reaps it if so.
    pub fn reap(&mut self) -> bool {
        self.child.try_wait().expect("a child to wait for").is_some()
    }

    /// Sends it a signal, and waits until the kernel says it is in this state (`T`, `Z`).
    pub fn signal_until(&self, signal: i32, state: char) {
        self.signal(signal);
        let stat = format!("/proc/{}/stat", self.pid());
        let now = || {
            std::fs::read_to_string(&stat)
                .expect("not waited for")
                .rsplit(')')
                .next()
                .and_then(|rest| rest.chars().nth(1))
        };
        wait_for(&format!("state {state}"), || now() == Some(state));
    }

    /// Its ledger.
    pub fn ledger(&self) -> Ledger {
        Ledger::of_pid(&self.dir, self.pid()).unwrap_or_else(|| panic!("{}: no ledger in {:?}", self.what, self.dir))
    }

    /// Runs `gpumem` on the directory of its ledger.
    pub fn gpumem(&self, args: &[&str]) -> Value {
        super::ledger::gpumem(&self.dir, args)
    }

    /// Returns the words of a failing `gpumem` command on stderr.
    pub fn refused(&self, args: &[&str]) -> String {
        super::ledger::refused(&self.dir, args)
    }

    /// Waits until it has ended, at most as long as a program may run.
    pub fn finish(mut self) -> Ran {
        self.input = None;
        let (pid, start, limit) = (self.pid(), Instant::now(), patience(LIMIT));
        let status = loop {
            match self.child.try_wait().expect("a child to wait for") {
                Some(status) => break status,
                None if start.elapsed() > limit => {
                    self.kill_group();
                    panic!("{}: killed after {limit:?}; so far: {}", self.what, self.stdout());
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        // Its children may keep the pipes open a little longer.
        wait_for(&format!("{}: its children", self.what), || self.out.1.is_finished() && self.err.1.is_finished());
        let text = |of: &Text| String::from_utf8_lossy(&of.lock().expect("no panic while held")).into_owned();
        let own = std::mem::replace(&mut self.own, Scratch(PathBuf::new()));
        Ran {
            pid,
            code: code_of(status),
            out: text(&self.out.0),
            err: text(&self.err.0),
            violations: std::fs::read_to_string(&self.report).unwrap_or_default(),
            dir: self.dir.clone(),
            own,
            what: self.what.clone(),
        }
    }

    fn kill_group(&mut self) {
        // SAFETY: kill takes two numbers. This runner made the group for this child and waits for
        // the child only below.
        unsafe { libc::kill(-(self.pid() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill_group();
        }
    }
}

/// The exit code, or 128 plus the signal.
fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Waits until a condition holds.
///
/// # Panics
/// When it does not hold after the longest time that a program may run.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let (start, limit) = (Instant::now(), patience(LIMIT));
    while !done() {
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Result of a program's run.
pub struct Ran {
    pub pid: u32,
    /// The exit code, or 128 plus the signal.
    pub code: i32,
    pub out: String,
    pub err: String,
    /// The broken rules that the simulator reported, a JSON object a line.
    violations: String,
    /// Directory of its ledger.
    pub dir: PathBuf,
    own: Scratch,
    what: String,
}

impl Ran {
    /// Asserts that it ended with status 0, which means that its results were right.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{}{}", self.what, self.out, self.err);
        self
    }

    /// The rules of the driver that it broke, without numbers, which differ between runs.
    pub fn violations(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.violations.lines().map(|line| line.replace(|c: char| c.is_ascii_digit(), "")).collect();
        all.sort_unstable();
        all
    }

    /// The last line of stdout, which programs print as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        let line = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("{}: {error} in {:?}\n{}", self.what, self.out, self.err))
    }

    /// Lines on stderr that are the shim's.
    pub fn ours(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.starts_with("gpumem")).collect()
    }

    /// Its ledger.
    #[track_caller]
    pub fn ledger(&self) -> Ledger {
        Ledger::of_pid(&self.dir, self.pid)
            .unwrap_or_else(|| panic!("{}: no ledger in {:?}\n{}", self.what, self.dir, self.err))
    }

    /// Every ledger that was left, that of children included.
    pub fn ledgers(&self) -> Vec<Ledger> {
        Ledger::all(&self.dir)
    }

    /// A folder that lives as long as this.
    pub fn scratch(&self) -> &Path {
        self.own.path()
    }
}
