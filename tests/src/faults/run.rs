//! One run of a plan, natively or preloaded, in a directory of its own.

use super::place::Place;
use super::plan::Plan;
use super::trouble::{CallTrouble, Trouble};
use crate::harness::artifacts;
use crate::patience::patience;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
    /// The run did not end. The text says what its threads were doing.
    Hang(String),
}

impl Manner {
    pub fn native(limit: Duration) -> Self {
        Self { preload: false, load_only: false, limit }
    }

    pub fn preloaded(limit: Duration) -> Self {
        Self { preload: true, ..Self::native(limit) }
    }
}

impl End {
    /// The part of an end that can be compared between runs.
    pub fn kind(&self) -> End {
        match self {
            End::Hang(_) => End::Hang(String::new()),
            other => other.clone(),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exit(code) => write!(f, "exit status {code}"),
            End::Signal(signal) => write!(f, "death by signal {signal}"),
            End::Hang(_) => f.write_str("no end"),
        }
    }
}

/// Result of one run.
pub struct Ran {
    pub end: End,
    pub out: String,
    pub err: String,
    /// Rules of the driver that were broken: their names, sorted.
    pub violations: Vec<String>,
    /// Calls of the driver that failed on purpose, in the notation of `SIM_FAULT`.
    pub struck: Vec<String>,
    pub took: Duration,
    /// The directory with the ledgers and everything else that the run left. It is removed when this is dropped.
    pub place: Place,
}

/// How a plan is run.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub preload: bool,
    /// The loader maps and links everything, and then ends: no code of the program or of gpumem runs.
    pub load_only: bool,
    /// Longest time of the run.
    pub limit: Duration,
}

/// Runs a plan to its end.
///
/// # Errors
/// When it cannot be started.
pub fn run(plan: &Plan, manner: Manner) -> Result<Ran, String> {
    let place = Place::new(plan)?;
    let mut child = command(plan, &place, manner).spawn();
    // A thread that has just forked for another run may hold this run's program open for writing for a moment. So "text
    // file busy" is tried again.
    for _ in 0..5 {
        match &child {
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => std::thread::sleep(Duration::from_millis(20)),
            _ => break,
        }
        child = command(plan, &place, manner).spawn();
    }
    let child = match child {
        Ok(child) => child,
        // With a limit this tight the system itself refuses to start the program.
        Err(error) => return Err(format!("{}: {error}", plan.program.file.display())),
    };
    Watched::new(child).watch(plan, manner, place)
}

fn command(plan: &Plan, place: &Place, Manner { preload, load_only, .. }: Manner) -> Command {
    let mut command = Command::new(&plan.program.file);
    command.args(&plan.program.args).env_clear().current_dir(place.path());
    if plan.program.generated.is_some() {
        command.arg(place.path().join("program"));
    }
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.env("LD_LIBRARY_PATH", &artifacts().stage).env("RUST_BACKTRACE", "0");
    command.env("XDG_RUNTIME_DIR", place.path().join("xdg")).env("TMPDIR", place.path());
    command.env("SIM_REPORT", place.path().join("violations")).env("SIM_FAULT_LOG", place.path().join("struck"));
    if load_only {
        command.env("LD_TRACE_LOADED_OBJECTS", "1");
    }
    let mut libraries: Vec<OsString> = Vec::new();
    if preload {
        libraries.push(artifacts().shim.clone().into());
        command.env("GPUMEM_DIR", place.ledgers());
    }
    let mut faults: Vec<String> = Vec::new();
    let mut limits = Vec::new();
    for trouble in &plan.troubles {
        match trouble {
            Trouble::Call { name, call, what: CallTrouble::Answers(code) } => {
                faults.push(format!("{name}:{call}={code}"))
            }
            Trouble::Call { name, call, what: CallTrouble::Takes(time) } => {
                faults.push(format!("{name}:{call}+{}", time.as_micros()));
            }
            Trouble::Driver(name, value) => {
                command.env(name, value);
            }
            Trouble::Setting(name, value) if preload => {
                command.env(name, placed(value, place));
            }
            Trouble::Limit(limit, value) => limits.push((limit.resource(), *value)),
            Trouble::Storm { signal, first, every, restart } => {
                libraries.push(artifacts().clients.join("libstorm.so").into());
                let us = |time: &Duration| time.as_micros();
                command.env("STORM", format!("{signal} {} {} {}", us(first), us(every), i32::from(*restart)));
            }
            Trouble::Denied { function, nth, on } if preload => {
                libraries.push(artifacts().clients.join("libdenied.so").into());
                command.env("DENIED", format!("{function}:{nth}{}", if *on { "-" } else { "" }));
            }
            Trouble::Planted(what) if preload => {
                libraries.push(artifacts().clients.join("libplanted.so").into());
                command.env("PLANTED", what);
            }
            _ => {}
        }
    }
    if !faults.is_empty() {
        command.env("SIM_FAULT", faults.join(","));
    }
    if !libraries.is_empty() {
        command.env("LD_PRELOAD", libraries.join(OsStr::new(":")));
    }
    // SAFETY: between fork and exec only async-signal-safe functions may run. The closure makes
    // system calls only, on values that were read before the fork.
    unsafe {
        command.pre_exec(move || {
            let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const core);
            for (resource, value) in &limits {
                let limit = libc::rlimit { rlim_cur: *value, rlim_max: libc::RLIM_INFINITY };
                libc::setrlimit(*resource, &raw const limit);
            }
            Ok(())
        });
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

/// Replaces `@` in a value by the directory of the run.
fn placed(value: &OsStr, place: &Place) -> OsString {
    let mut bytes = Vec::new();
    for byte in value.as_bytes() {
        match byte {
            b'@' => bytes.extend_from_slice(place.path().as_os_str().as_bytes()),
            byte => bytes.push(*byte),
        }
    }
    OsString::from_vec(bytes)
}

/// A process whose output is read. When this is dropped, its whole process group is killed.
struct Watched {
    child: Child,
    out: Vec<u8>,
    err: Vec<u8>,
    begin: Instant,
    commands: Vec<Child>,
}

impl Watched {
    fn new(child: Child) -> Self {
        let pipes = [child.stdout.as_ref().map(AsRawFd::as_raw_fd), child.stderr.as_ref().map(AsRawFd::as_raw_fd)];
        for pipe in pipes.into_iter().flatten() {
            // SAFETY: fcntl takes numbers, and the child's handle keeps both descriptors open.
            unsafe { libc::fcntl(pipe, libc::F_SETFL, libc::fcntl(pipe, libc::F_GETFL) | libc::O_NONBLOCK) };
        }
        Self { child, out: Vec::new(), err: Vec::new(), begin: Instant::now(), commands: Vec::new() }
    }

    fn signal_all(&self, signal: i32) {
        // SAFETY: kill takes two numbers. This runner made the group for this child and has not
        // waited for the child yet.
        unsafe { libc::kill(-(self.child.id() as i32), signal) };
    }

    /// Starts `gpumem` beside the run, without waiting for its answer.
    fn command(&mut self, args: &[&str], place: &Place) {
        let mut command = Command::new(&artifacts().gpumem);
        let pid = self.child.id().to_string();
        command
            .args(args.iter().map(|arg| if *arg == "@" { &pid } else { *arg }))
            .env_clear()
            .env("GPUMEM_DIR", place.ledgers());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.commands.extend(command.spawn());
    }

    fn watch(mut self, plan: &Plan, manner: Manner, place: Place) -> Result<Ran, String> {
        let mut events = events(plan, manner.preload);
        let mut ended = None;
        let end = loop {
            let now = self.begin.elapsed();
            while events.first().is_some_and(|(at, _)| *at <= now) {
                match events.remove(0).1 {
                    Event::Signal(signal) => self.signal_all(signal),
                    Event::Fill => place.fill(),
                    Event::Command(args) => self.command(args, &place),
                }
            }
            let closed = self.read();
            if ended.is_none() {
                ended = self.child.try_wait().map_err(|error| error.to_string())?;
            }
            match ended {
                // The program's children may keep the pipes open a little longer.
                Some(status) if closed => {
                    break status.code().map_or(End::Signal(status.signal().unwrap_or(0)), End::Exit);
                }
                // A kill ends the program alone, and its children may wait for it. So the open pipes are not waited
                // for.
                Some(status) if killed(plan) && status.signal().is_some() => {
                    break End::Signal(status.signal().unwrap_or(0));
                }
                _ if now > patience(manner.limit) => break End::Hang(threads(self.child.id())),
                _ => wait_for_output(&self.child, Duration::from_millis(2)),
            }
        };
        let took = self.begin.elapsed();
        self.signal_all(libc::SIGKILL);
        self.read();
        let lines = |name: &str| fs::read_to_string(place.path().join(name)).unwrap_or_default();
        let mut violations: Vec<String> = lines("violations").lines().map(name_of).collect();
        violations.sort_unstable();
        violations.dedup();
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ran {
            end,
            out: text(&self.out),
            err: text(&self.err),
            violations,
            struck: lines("struck").lines().map(str::to_owned).collect(),
            took,
            place,
        })
    }

    /// Reads what the pipes hold. Returns whether both are closed.
    fn read(&mut self) -> bool {
        fn all(pipe: Option<impl Read>, into: &mut Vec<u8>) -> bool {
            let Some(mut pipe) = pipe else { return true };
            let mut piece = [0; 16384];
            loop {
                match pipe.read(&mut piece) {
                    Ok(0) => return true,
                    Ok(n) => into.extend_from_slice(&piece[..n]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                    Err(_) => return true,
                }
            }
        }
        let out = all(self.child.stdout.as_mut(), &mut self.out);
        all(self.child.stderr.as_mut(), &mut self.err) && out
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.signal_all(libc::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
        for command in &mut self.commands {
            let _ = command.kill();
            let _ = command.wait();
        }
    }
}

fn killed(plan: &Plan) -> bool {
    plan.troubles.iter().any(|trouble| matches!(trouble, Trouble::Kill { .. }))
}

enum Event {
    Signal(i32),
    Fill,
    Command(&'static [&'static str]),
}

/// Returns the events that reach the run from outside, in order of time.
fn events(plan: &Plan, preload: bool) -> Vec<(Duration, Event)> {
    let mut events = Vec::new();
    for trouble in &plan.troubles {
        match trouble {
            Trouble::Stop { at, length } => {
                events.push((*at, Event::Signal(libc::SIGSTOP)));
                events.push((*at + *length, Event::Signal(libc::SIGCONT)));
            }
            Trouble::Command { at, args } if preload => events.push((*at, Event::Command(args))),
            Trouble::Kill { signal, at } => events.push((*at, Event::Signal(*signal))),
            Trouble::Disk { full: Some(at), .. } => events.push((*at, Event::Fill)),
            _ => {}
        }
    }
    events.sort_by_key(|event| event.0);
    events
}

fn wait_for_output(child: &Child, most: Duration) {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let fds = [child.stdout.as_ref().map(AsRawFd::as_raw_fd), child.stderr.as_ref().map(AsRawFd::as_raw_fd)];
    let mut fds = fds.map(|fd| poll(fd.unwrap_or(-1)));
    // SAFETY: `fds` is a local array and its own length is passed. The child's handle keeps the
    // descriptors open, and poll passes over -1.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, most.as_millis() as i32) };
    if ready > 0 {
        // poll reports a closed pipe as ready each time, so a short sleep keeps this from spinning.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The name of a rule in a line of `SIM_REPORT`.
fn name_of(line: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    value["violation"].as_str().unwrap_or(line).to_owned()
}

/// Describes the threads of a process group: their names, and the kernel function that each waits in. With gdb also
/// their stacks.
pub(crate) fn threads(group: u32) -> String {
    let mut text = String::new();
    let pids = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // SAFETY: getpgid takes a number, and answers with an error for a process that is gone.
    for pid in pids.filter(|pid| unsafe { libc::getpgid(*pid as i32) } == group as i32) {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok) {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let state = read("stat").rsplit(')').next().unwrap_or_default().trim().chars().next().unwrap_or('?');
            text += &format!("{pid} {} {state} {} {}\n", read("comm").trim(), read("wchan"), read("syscall").trim());
        }
        let gdb = Command::new("timeout")
            .args(["20", "gdb", "-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 16"])
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null())
            .output();
        let said = gdb.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.extend(said.lines().filter(|l| l.starts_with('#') || l.starts_with("Thread")).map(|l| format!("{l}\n")));
    }
    text
}
