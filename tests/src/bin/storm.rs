//! The command of the storm. Exit status: 0 when nothing was found, 1 when something was, 2 for wrong arguments, or when
//! nothing was found and some seeds could not be run.

#![deny(clippy::print_stdout)]

use gpumem_tests::say_line;
use gpumem_tests::storm::campaign::{Campaign, Tally};
use gpumem_tests::storm::plan::GUARDS;
use gpumem_tests::storm::run::{LONGEST, Place, Wrong};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: storm [OPTIONS]
Runs a program that verifies its data under gpumem while up to four terminals change variables, turn gpumem off and on,
give memory back, and have it look, all by a seed. Tells where the program dies, hangs, gets an error or reads a wrong
byte that it does not natively.
  --runs N       how many (100)
  --seed S       the first seed; each run has the next one (1)
  --jobs J       at a time (one for each processor)
  --seconds S    begins no run later than this
  --length MS    how long each run is (300 to 600 ms)
  --guard G      0, 1, front or sync (a random one)
  --gpu          on the machine's driver, one run at a time: with --program, --shim
  --program FILE the program of tests/programs/storm.c
  --shim FILE    libgpumem.so
";

fn parse(mut args: impl Iterator<Item = String>) -> Result<Campaign, String> {
    let (mut runs, mut seed, mut gpu) = (100, 1, false);
    let (mut program, mut shim) = (None, None);
    let (mut jobs, mut length, mut guard, mut time) = (None, None, None, Duration::MAX);
    while let Some(arg) = args.next() {
        if arg == "--gpu" {
            gpu = true;
            continue;
        }
        let value = args.next().ok_or(format!("unknown argument {arg}, or one without a value\n{USAGE}"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{arg} {value}: not a number"));
        match arg.as_str() {
            "--runs" => runs = number()?,
            "--seed" => seed = number()?,
            "--jobs" => jobs = Some(number()? as usize),
            "--seconds" => time = Duration::from_secs(number()?),
            "--length" => length = Some(Duration::from_millis(number()?)),
            "--guard" if GUARDS.contains(&value.as_str()) => guard = Some(value),
            "--program" => program = Some(PathBuf::from(value)),
            "--shim" => shim = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown argument {arg} {value}\n{USAGE}")),
        }
    }
    let place = match (gpu, program, shim) {
        (true, Some(program), Some(shim)) => Place { program, shim, simulated: false, longest: LONGEST },
        (true, ..) => return Err("--gpu needs --program and --shim".into()),
        (false, None, None) => Place::simulated(),
        (false, program, shim) => {
            let usual = Place::simulated();
            let (program, shim) = (program.unwrap_or(usual.program.clone()), shim.unwrap_or(usual.shim.clone()));
            Place { program, shim, ..usual }
        }
    };
    let processors = if gpu { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    Ok(Campaign { place, seeds: seed..seed + runs, jobs: jobs.unwrap_or(processors), length, guard, time })
}

fn numbers(tally: &Tally, took: Duration) -> String {
    let guards: Vec<String> = tally.guards.iter().map(|(guard, runs)| format!("{runs} under GUARD={guard}")).collect();
    format!(
        "{} runs in {:.0} s ({}), {} operations, {} commands: {} deaths, {} hangs, {} errors, {} wrong bytes, {} broken \
         rules, {} false reports, {} commands without an answer; {} more were so natively, {} could not be run",
        tally.runs,
        took.as_secs_f64(),
        guards.join(", "),
        tally.operations,
        tally.commands,
        tally.count(Wrong::Death),
        tally.count(Wrong::Hang),
        tally.count(Wrong::Error),
        tally.count(Wrong::Byte),
        tally.count(Wrong::Rule),
        tally.count(Wrong::Report),
        tally.count(Wrong::Command),
        tally.excused,
        tally.broken.len(),
    )
}

fn main() -> ExitCode {
    let campaign = match parse(std::env::args().skip(1)) {
        Ok(campaign) => campaign,
        Err(why) => {
            eprintln!("storm: {why}");
            return ExitCode::from(2);
        }
    };
    let begin = Instant::now();
    let tally = campaign.run(|_, failed| {
        if let Some(failed) = failed {
            eprint!("\n{}", failed.plan);
            failed.findings.iter().for_each(|finding| eprintln!("  {finding}"));
        }
    });
    say_line!("{}", numbers(&tally, begin.elapsed()));
    tally.broken.iter().for_each(|(seed, why)| eprintln!("storm: seed {seed}: {why}"));
    match (tally.failed.is_empty(), tally.broken.is_empty()) {
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    }
}
