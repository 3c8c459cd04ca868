//! Runs one case after another in a process that may crash. It writes to a pipe which case it is running and what it
//! found.

use super::corpus::{self, Kind, Seedling};
use super::image::Image;
use super::scene::{self, Scene};
use super::{MOST_MEMORY_OF_A_LOOK, MOST_TIME, MOST_TIME_WITH_SYMBOLS, heap, most_memory, mutate};
use crate::differ::random::Random;
use crate::harness::artifacts;
use crate::patience::patience;
use clap::Parser;
use gpumem_inspector::{Args, answer};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Views of a ledger or a dump. The file's name follows these words.
const VIEWS: &[&[&str]] = &[
    &["allocs"],
    &["allocs", "--all", "-n", "0"],
    &["allocs", "--all", "--stacks", "-n", "0"],
    &["allocs", "--by", "tag", "--all-kinds", "--freed"],
    &["allocs", "--by", "stack"],
    &["allocs", "--by", "device"],
    &["allocs", "--by", "thread"],
    &["allocs", "--by", "size", "--sort", "age"],
    &["allocs", "--by", "kind"],
    &["allocs", "--by", "tag", "--sort", "growth", "--since", "5m"],
    &["leaks"],
    &["leaks", "--all", "--stacks", "--since", "1m"],
    &["graphs"],
    &["graphs", "--all", "--stacks"],
    &["graphs", "--by", "class"],
    &["graphs", "--by", "state", "--pinned", "--all"],
    &["stats", "--samples", "--all"],
    &["events", "-n", "0"],
    &["events", "--problems"],
    &["export", "--format", "json"],
    &["export", "--format", "csv"],
    &["export", "--format", "prometheus"],
    &["export", "--to", "jsonl"],
    &["export", "--to", "folded"],
    &["export", "--to", "folded", "--stack", "native"],
    &["export", "--to", "speedscope"],
    &["export", "--to", "pprof"],
    &["export", "--to", "memory-viz"],
    &["export", "--to", "trace"],
    &["report", "-o", "-"],
    &["report", "-o", "-", "--stack", "python"],
];

/// One of this many cases runs the real program, under a memory limit.
const REAL: u64 = 50;
/// One of this many cases reads symbols from the program's files. The child process for that takes time to start.
const WITH_SYMBOLS: usize = 20;
/// Address space of a program that has done nothing yet, with its threads and libraries.
const PROGRAM_BYTES: u64 = 256 << 20;

/// Beginning of a finding about a late answer.
const LATE: &str = "it took longer than it may: ";

/// One of so many cases is of more than one file.
const SCENES: usize = 5;

/// A case: what lies there, and the command that reads it.
struct Case {
    seed: u64,
    seedling: String,
    words: Vec<String>,
    what: What,
}

enum What {
    File { path: PathBuf, image: Image },
    Scene { dir: PathBuf, scene: Scene },
}

/// Runs the cases of these seeds. Reports go to `said`.
///
/// # Errors
/// Says what kept it from running them.
pub fn run(corpus: &Path, dir: &Path, seeds: std::ops::Range<u64>, said: File) -> Result<(), String> {
    let corpus = corpus::gather(corpus)?;
    silence().map_err(|error| format!("the standard streams: {error}"))?;
    let mut said = io::LineWriter::new(said);
    for seed in seeds {
        let case = Case::of(seed, &corpus, dir);
        writeln!(said, "case {seed} {} {}", case.seedling, case.words.join(" ")).map_err(|error| error.to_string())?;
        let found = case.run().map_err(|error| format!("case {seed}: {error}"))?;
        if let Some(found) = found {
            // On one line.
            let found = found.trim_end().replace('\n', " | ");
            writeln!(said, "found {seed} {found}").map_err(|error| error.to_string())?;
        }
    }
    writeln!(said, "done").map_err(|error| error.to_string())
}

/// Sends stdin, stdout and stderr to /dev/null.
fn silence() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for fd in 0..=2 {
        // SAFETY: dup2 takes two numbers. `null` is open, and what 0 to 2 stood for is closed on
        // purpose.
        if unsafe { libc::dup2(null.as_raw_fd(), fd) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl Case {
    fn of(seed: u64, corpus: &[Seedling], dir: &Path) -> Self {
        let mut random = Random::new(seed);
        if random.below(SCENES) == 0
            && let Some(scene) = match random.below(3) {
                0 => Some(scene::ledgers(corpus, &mut random)),
                1 => scene::program(corpus, dir, &mut random),
                _ => Some(scene::mappings(&mut random)),
            }
        {
            let words = scene.words(dir, &mut random);
            let what = What::Scene { dir: dir.to_owned(), scene };
            let seedling = if let What::Scene { scene, .. } = &what { scene.name().to_owned() } else { String::new() };
            return Self { seed, seedling, words, what };
        }
        let (kind, seedling, image) = mutate::mutated(corpus, &mut random);
        let path = dir.join("4194304-5.ledger");
        let file = path.to_str().expect("a scratch directory is text").to_owned();
        let in_dir = ["--dir".to_owned(), dir.to_str().expect("as above").to_owned()];
        let mut words: Vec<String> = match (kind, random.below(16)) {
            (Kind::Trace, 1..) => vec!["export".into(), "--to".into(), "csv".into(), file],
            (Kind::Recording, _) => vec!["report".into(), "-o".into(), "-".into(), file],
            (_, 0) => [&["ps".to_owned()][..], &in_dir].concat(),
            (_, 1) => [&["clean".to_owned(), "--all".into(), "--dry-run".into()][..], &in_dir].concat(),
            (_, 14) => vec!["doctor".into(), file],
            (_, 15) => [&["doctor".to_owned(), "--all".into()][..], &in_dir].concat(),
            (_, 2) => vec!["diff".into(), file.clone(), file, "--no-symbols".into()],
            (_, 3) => vec!["dump".into(), "-o".into(), "/dev/null".into(), "--no-symbols".into(), file],
            _ => {
                let view = random.pick(VIEWS).iter().map(|&word| word.to_owned());
                let mut words: Vec<_> = view.chain(["--file".into(), file]).collect();
                if random.below(WITH_SYMBOLS) > 0 {
                    words.push("--no-symbols".into());
                }
                words
            }
        };
        // A format that is named and another one are too much.
        if words[0] != "record" && !words.contains(&"--to".to_owned()) && random.chance(50) {
            words.push("--json".into());
        }
        Self { seed, seedling, words, what: What::File { path, image } }
    }

    /// Runs the case. Returns the fault of the answer, if it has one.
    fn run(&self) -> io::Result<Option<String>> {
        let (most, time, placed) = match &self.what {
            What::File { path, image } => {
                let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
                image.write(&file)?;
                (most_memory(gpumem_wire::read::Source::stored(&file)?), MOST_TIME, None)
            }
            What::Scene { dir, scene } => {
                let symbols = matches!(scene, Scene::Program { .. });
                let time = if symbols { MOST_TIME_WITH_SYMBOLS } else { MOST_TIME };
                (MOST_MEMORY_OF_A_LOOK, time, Some(scene.place(dir)?))
            }
        };
        let ask = || -> io::Result<Option<String>> {
            let begin = Instant::now();
            let found = match self.seed.is_multiple_of(REAL) {
                true => self.by_program(most)?,
                false => self.here(most),
            };
            let took = begin.elapsed();
            Ok(found.or_else(|| (took > patience(time)).then(|| format!("{LATE}{took:?}"))))
        };
        let mut found = ask()?;
        // Other work of the machine may hold up one answer.
        if found.as_ref().is_some_and(|found| found.starts_with(LATE)) {
            found = ask()?;
        }
        drop(placed);
        Ok(found)
    }

    /// Runs the case in this process. A crash ends the process, which is a finding.
    fn here(&self, most: u64) -> Option<String> {
        let before = heap::begin();
        let words = std::iter::once("gpumem").chain(self.words.iter().map(String::as_str));
        match Args::try_parse_from(words) {
            Ok(args) => drop(answer(args)),
            Err(error) => return Some(format!("it cannot be asked: {error}")),
        }
        let took = heap::most(before);
        (took > most).then(|| format!("it took {took} bytes of memory, {most} are allowed"))
    }

    /// Runs the case by the real program.
    fn by_program(&self, most: u64) -> io::Result<Option<String>> {
        let mut command = Command::new(&artifacts().gpumem);
        command.args(&self.words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let limit = libc::rlimit { rlim_cur: PROGRAM_BYTES + most, rlim_max: PROGRAM_BYTES + most };
        // SAFETY: between fork and exec only async-signal-safe functions may run. setrlimit is a
        // bare system call, and the closure owns the rlimit that is read.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(match (output.status.code(), output.status.signal()) {
            (_, Some(signal)) => Some(format!("it ended by signal {signal}: {said}")),
            (Some(0..=4), _) if !said.contains("panicked") => None,
            (code, _) => Some(format!("it ended with {code:?}: {said}")),
        })
    }
}

/// The pipe of a worker, by the number of its descriptor.
///
/// # Safety
/// No other code owns the descriptor.
pub unsafe fn pipe(fd: i32) -> File {
    // SAFETY: the File becomes the only owner of `fd`: our caller vouches that it has no other.
    unsafe { File::from_raw_fd(fd) }
}
