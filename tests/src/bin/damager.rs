//! The command of the campaign of damaged files. Exit status: 0 when nothing was found, 1 when something was, 2 for
//! wrong arguments or when it could not run.

#![deny(clippy::print_stdout)]

use gpumem_tests::damage::campaign::Campaign;
use gpumem_tests::damage::{MOST_TIME, heap, most_memory, worker};
use gpumem_tests::say_line;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const USAGE: &str = "\
usage: damager [OPTIONS]
Changes ledgers, dumps, traces and recordings of programs on the simulated driver at random, and programs and their debug
information, puts many ledgers into one directory and maps files, and runs gpumem on them. Tells which answers crash, take
too long, or take more memory than a file of so many bytes, or a look at many, may cost.
  --cases N     how many (1000)
  --seed S      the first seed; each case has the next one (0)
  --jobs J      at a time (one for each processor)
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ran = match words.first().map(String::as_str) {
        Some("--worker") => work(&words[1..]).map(|()| true),
        _ => parse(&words).and_then(campaign),
    };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("damager: {why}");
            ExitCode::from(2)
        }
    }
}

/// Runs the part that the campaign starts. It reports on its stdout, which the answers do not reach.
fn work(words: &[String]) -> Result<(), String> {
    let [corpus, dir, from, to] = words else { return Err(USAGE.into()) };
    let number = |text: &String| text.parse::<u64>().map_err(|_| format!("{text}: not a number"));
    // SAFETY: F_DUPFD_CLOEXEC takes numbers and makes a new descriptor. stdout is open.
    let fd = unsafe { libc::fcntl(std::io::stdout().as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: fcntl made `fd` just above and no one else has its number, so the File is its only
    // owner.
    let said = unsafe { worker::pipe(fd) };
    worker::run(Path::new(corpus), Path::new(dir), number(from)?..number(to)?, said)
}

fn parse(words: &[String]) -> Result<(u64, u64, u64), String> {
    let (mut cases, mut seed) = (1000, 0);
    let mut jobs = std::thread::available_parallelism().map_or(1, |jobs| jobs.get() as u64);
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(USAGE.into()) };
        let value = value.parse().map_err(|_| format!("{name} {value}: not a number"))?;
        match name.as_str() {
            "--cases" => cases = value,
            "--seed" => seed = value,
            "--jobs" => jobs = value,
            _ => return Err(format!("unknown argument {name}\n{USAGE}")),
        }
    }
    Ok((cases, seed, jobs))
}

fn campaign((cases, seed, jobs): (u64, u64, u64)) -> Result<bool, String> {
    let place = ["/dev/shm", "/tmp"].map(PathBuf::from).into_iter().find(|place| place.is_dir()).unwrap_or_default();
    let dir = place.join(format!("gm-damage-{}", std::process::id()));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let found = Campaign { seeds: seed..seed + cases, jobs, program, dir: dir.clone() }.run();
    let _ = std::fs::remove_dir_all(&dir);
    let found = found?;
    for found in &found {
        say_line!("seed {}: {}\n  {}", found.seed, found.case, found.what);
    }
    let base = most_memory(0) >> 20;
    let factor = most_memory(1) - most_memory(0);
    say_line!(
        "{cases} cases in {:.0} s: {} with a wrong answer; right is one in {MOST_TIME:?} with at most {base} MiB and {factor} bytes for each that the file stores",
        begin.elapsed().as_secs_f64(),
        found.len()
    );
    Ok(found.is_empty())
}
