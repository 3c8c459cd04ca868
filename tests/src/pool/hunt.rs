//! Runs many programs, each in two processes of its own, until one differs. That program is then made smaller.

use super::generate;
use super::program::{Op, Program};
use super::run::END;
use crate::differ::random::Random;
use crate::patience::patience;
use crate::tester;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Variables = Vec<(String, String)>;

/// How programs are run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The tester itself.
    pub exe: PathBuf,
    /// Library that is preloaded.
    pub lib: PathBuf,
    /// LD_LIBRARY_PATH of the runs, if it is not this process's.
    pub libraries: Option<OsString>,
    /// Environment variables of both runs.
    pub both: Variables,
    /// Environment variables of the preloaded run alone.
    pub preloaded: Variables,
    /// Longest that a program may take.
    pub limit: Duration,
}

/// Output and remains of a run.
struct Ran {
    trace: Vec<String>,
    /// Without numbers, sorted.
    violations: Vec<String>,
    /// Why it did not finish, if it did not.
    ended: Option<String>,
}

struct Running {
    process: Child,
    dir: PathBuf,
    out: std::thread::JoinHandle<String>,
    err: std::thread::JoinHandle<String>,
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Setup {
    fn start(&self, program: &Program, preload: bool) -> Result<Running, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::temp_dir().join(format!("pooler-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        fs::DirBuilder::new().mode(0o700).create(&dir).map_err(failed)?;
        let file = dir.join("program");
        fs::write(&file, program.to_string()).map_err(failed)?;
        let mut command = Command::new(&self.exe);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if ["GPUMEM_", "SIM_", "POOLER_", "LD_PRELOAD"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.arg("exec").arg(&file).env("SIM_REPORT", dir.join("violations")).env("SIM_DEVICES", "2");
        command.envs(self.both.iter().cloned());
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        // The guard fills blocks by work of its own, which it may submit in calls of other threads. No free waits for
        // that work.
        let free_to_pass = |(name, value): &(String, String)| {
            (name == "GPUMEM_FREE" && value == "deferred") || (name == "GPUMEM_POOL_FILL" && value != "none")
        };
        if !(preload && self.preloaded.iter().any(free_to_pass)) {
            command.env(super::driver::STRICT, "1");
        }
        if preload {
            command.env("LD_PRELOAD", &self.lib).env("GPUMEM_DIR", &dir).envs(self.preloaded.iter().cloned());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{}: {error}", self.exe.display()))?;
        let (out, err) = (collect(process.stdout.take()), collect(process.stderr.take()));
        Ok(Running { process, dir, out, err })
    }
}

impl Running {
    fn finish(mut self, limit: Duration) -> Ran {
        let (begin, limit) = (Instant::now(), patience(limit));
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(2)),
                _ => {
                    let _ = self.process.kill();
                    let _ = self.process.wait();
                    break None;
                }
            }
        };
        let (out, err) = (self.out.join().unwrap_or_default(), self.err.join().unwrap_or_default());
        let mut trace: Vec<String> = out.lines().map(str::to_owned).collect();
        let whole = trace.last().is_some_and(|line| line == END);
        let last: Vec<&str> = err.lines().filter(|line| !line.starts_with("sim: ")).collect();
        let said = last[last.len().saturating_sub(6)..].join(" | ");
        let ended = match status {
            None => Some("stood still".into()),
            Some(status) if whole && status.success() => None,
            Some(status) => {
                let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                Some(format!("ended with {code}: {said}"))
            }
        };
        if whole {
            trace.pop();
        }
        let text = fs::read_to_string(self.dir.join("violations")).unwrap_or_default();
        let mut violations: Vec<String> = text.lines().map(without_numbers).collect();
        violations.sort_unstable();
        let _ = fs::remove_dir_all(&self.dir);
        Ran { trace, violations, ended }
    }
}

/// Numbers and addresses differ from run to run.
fn without_numbers(line: &str) -> String {
    let text = line.split_once("\"violation\"").map_or(line, |(_, text)| text);
    let words = text.split(' ').map(|word| if word.starts_with(|c: char| c.is_ascii_digit()) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// The first difference, and both traces from a few lines before it.
#[derive(Clone, Debug)]
pub struct Difference {
    pub what: String,
    pub shown: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.what, self.shown)
    }
}

pub enum Verdict {
    Same,
    Differs(Difference),
    /// The native run did not work, so there is nothing to compare.
    Ill(String),
}

/// Runs a program in two processes.
///
/// # Errors
/// When one cannot be started.
pub fn pair(setup: &Setup, program: &Program) -> Result<Verdict, String> {
    let (native, preloaded) = (setup.start(program, false)?, setup.start(program, true)?);
    let (native, preloaded) = (native.finish(setup.limit), preloaded.finish(setup.limit));
    if let Some(why) = native.ended {
        return Ok(Verdict::Ill(format!("the native run {why}")));
    }
    let bad = |line: &&String| {
        ["wrong", "ledger"].iter().any(|word| line.contains(word))
            && !line.contains("(0) wrong")
            && !line.ends_with("stress: 0 wrong")
    };
    if let Some(line) = native.trace.iter().find(bad) {
        return Ok(Verdict::Ill(format!("natively: {line}")));
    }
    let same = native.trace.iter().zip(&preloaded.trace).take_while(|(a, b)| a == b).count();
    let differs = |what: String| {
        let before = native.trace[same.saturating_sub(4)..same].iter().map(|line| format!("            {line}\n"));
        let mut shown: String = before.collect();
        for (name, trace) in [("native   ", &native.trace), ("preloaded", &preloaded.trace)] {
            for line in trace.iter().skip(same).take(3) {
                shown += &format!("  {name} {line}\n");
            }
        }
        Ok(Verdict::Differs(Difference { what, shown }))
    };
    if let Some(why) = &preloaded.ended {
        return differs(format!("the preloaded run {why}"));
    }
    if same < native.trace.len().max(preloaded.trace.len()) {
        return differs("answers differ".into());
    }
    let mut left = native.violations.clone();
    for violation in &preloaded.violations {
        match left.iter().position(|other| other == violation) {
            Some(i) => drop(left.swap_remove(i)),
            None => return differs(format!("violation in the preloaded run alone: {violation}")),
        }
    }
    let own = |violation: &&String| !violation.contains("capture_disturbed") && !violation.contains("freed_memory");
    Ok(match native.violations.iter().find(own) {
        Some(violation) => Verdict::Ill(format!("violation in the native run: {violation}")),
        None => Verdict::Same,
    })
}

/// Environment variables that a seed picks: those of both runs, and those of the preloaded run.
pub fn setting(seed: u64) -> [Variables; 2] {
    let mut random = Random::new(seed ^ 0xca9);
    let (mut both, mut preloaded) = (Vec::new(), Vec::new());
    let mut set = |list: &mut Variables, name: &str, values: &[&str]| {
        let value = *random.pick(values);
        if !value.is_empty() {
            list.push((name.into(), value.into()));
        }
    };
    set(&mut both, "SIM_LAG_US", &["", "", "200", "1000"]);
    set(&mut both, "SIM_REUSE_HANDLES", &["", "1"]);
    set(&mut preloaded, "GPUMEM_POOL", &["", "", "", "", "", "", "", "0"]);
    set(&mut preloaded, "GPUMEM_FREE", &["", "strict", "deferred"]);
    set(&mut preloaded, "GPUMEM_POOL_MAX", &["", "", "0", "4MiB", "1GiB"]);
    set(&mut preloaded, "GPUMEM_POOL_DECAY", &["", "", "0", "1ms", "50ms"]);
    set(&mut preloaded, "GPUMEM_POOL_FILL", &["", "", "", "zero", "poison"]);
    set(&mut preloaded, "GPUMEM_QUARANTINE", &["", "", "", "8MiB"]);
    set(&mut preloaded, "GPUMEM_STACKS", &["0", "0", ""]);
    [both, preloaded]
}

pub struct Hunt {
    pub setup: Setup,
    pub seeds: Range<u64>,
    pub time: Duration,
    /// About how many operations a program has.
    pub length: usize,
    /// The hunt stops after this many differences.
    pub most: usize,
    /// Operations whose text contains one of these are left out. So a known difference does not hide others.
    pub without: Vec<String>,
}

pub type Finding = tester::Finding<Op, Difference>;
pub type Tally = tester::Tally<Op, Difference>;

/// True if a run ended because the driver had no memory for a context.
fn no_room(why: &str) -> bool {
    ["cuCtxCreate gives 2", "cuDevicePrimaryCtxRetain gives 2"].iter().any(|words| why.ends_with(words))
}

/// Time that may be spent on making a program smaller.
const SHRINKING: Duration = Duration::from_secs(60);

impl Hunt {
    /// Runs until the seeds or the time are at their end; `say` gets a line now and then.
    ///
    /// # Errors
    /// When a process cannot be started, or nothing runs natively.
    pub fn run(&self, say: &mut dyn FnMut(String)) -> Result<Tally, String> {
        let (begin, mut tally) = (Instant::now(), Tally::default());
        for seed in self.seeds.clone() {
            if begin.elapsed() > self.time || tally.found.len() >= self.most {
                break;
            }
            let mut setup = self.setup.clone();
            let [both, preloaded] = setting(seed);
            // Variables that the caller asked for come later in the list and win.
            setup.both.splice(0..0, both);
            setup.preloaded.splice(0..0, preloaded);
            let mut program = generate::program(seed, self.length);
            program.leave_out(&self.without);
            tally.programs += 1;
            tally.operations += program.0.len() as u64;
            match pair(&setup, &program)? {
                Verdict::Same => {}
                // The first program of all: nothing would run after it either.
                Verdict::Ill(why) if tally.programs == 1 && no_room(&why) => {
                    return Err(format!("the card has no memory left for a context, others have it: {why}"));
                }
                Verdict::Ill(why) => {
                    say(format!("seed {seed}: {why}"));
                    tally.count_ill(seed, why)?;
                }
                Verdict::Differs(difference) => {
                    let words: Vec<String> =
                        setup.both.iter().chain(&setup.preloaded).map(|(n, v)| format!("{n}={v}")).collect();
                    say(format!("seed {seed} ({}): {difference}", words.join(" ")));
                    let mut again = 0;
                    while again < 12 && !matches!(pair(&setup, &program)?, Verdict::Differs(_)) {
                        again += 1;
                    }
                    if again == 12 {
                        tally.fleeting.push((seed, difference.what));
                        continue;
                    }
                    let (program, difference) = shrink(&setup, program, difference, 2 * (again + 1));
                    tally.found.push(Finding { seed, program, difference, setting: words.join(" ") });
                }
            }
        }
        Ok(tally)
    }
}

/// The smallest program found that still differs; each is given so many tries to show it.
pub fn shrink(setup: &Setup, program: Program, seen: Difference, tries: usize) -> (Program, Difference) {
    let begin = Instant::now();
    let (mut best, mut told) = (program, seen);
    let differs = |candidate: &Program| {
        (0..tries).find_map(|_| match pair(setup, candidate) {
            Ok(Verdict::Differs(difference)) if begin.elapsed() < SHRINKING => Some(difference),
            _ => None,
        })
    };
    let mut chunk = best.0.len().div_ceil(2);
    while chunk > 0 && begin.elapsed() < SHRINKING {
        let (mut at, mut smaller) = (0, false);
        while at < best.0.len() && begin.elapsed() < SHRINKING {
            let mut candidate = best.clone();
            candidate.0.drain(at..(at + chunk).min(best.0.len()));
            match differs(&candidate) {
                Some(difference) => (best, told, smaller) = (candidate, difference, true),
                None => at += chunk,
            }
        }
        if !(smaller && chunk == 1) {
            chunk /= 2;
        }
    }
    // Moves each operation to the first thread if the difference still comes.
    for i in 0..best.0.len() {
        let mut candidate = best.clone();
        if std::mem::take(&mut candidate.0[i].t) > 0
            && let Some(difference) = differs(&candidate)
        {
            (best, told) = (candidate, difference);
        }
    }
    (best, told)
}

/// True if a program contains an operation that `of` picks. Tests of the generator use it.
pub fn holds(program: &Program, of: impl Fn(&Op) -> bool) -> bool {
    program.0.iter().any(|line| of(&line.op))
}

/// The path of this very binary, for processes that run programs.
///
/// # Errors
/// When the system does not say.
pub fn own_path() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("own path: {error}"))
}

/// A library's whole path.
///
/// # Errors
/// When it is not there.
pub fn library(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}
