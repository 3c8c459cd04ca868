//! The command of the campaign of random faults. Exit status: 0 when nothing was found, 1 when something was, 2 for
//! wrong arguments, or when nothing was found and the campaign itself failed for some seeds.

#![deny(clippy::print_stdout)]

use gpumem_tests::faults::campaign::{Campaign, Failed, Tally};
use gpumem_tests::faults::judge::Wrong;
use gpumem_tests::say_line;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: faulter [OPTIONS]
Runs programs natively and preloaded on the simulated driver, each with faults, limits, signals and settings that
a seed decides, and tells where the preloaded run dies, hangs, answers otherwise or leaves a ledger that gpumem
cannot read.
  --runs N      how many (100)
  --seed S      the first seed; each run has the next one (0)
  --jobs J      at a time (one for each processor)
  --seconds S   begins no run later than this
  --without I   leaves the trouble of this number out of every plan; any number of them
  --leave KIND  leaves troubles of this kind out, as --json counts them; any number of them
  --no-shrink   findings are not tried again with fewer troubles
  --json        what came of it as one JSON object; all else goes to stderr
";

struct Arguments {
    campaign: Campaign,
    json: bool,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (mut runs, mut seed, mut json) = (100, 0, false);
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut campaign =
        Campaign { seeds: 0..0, jobs, shrink: true, without: Vec::new(), leave: Vec::new(), time: Duration::MAX };
    while let Some(arg) = args.next() {
        if arg == "--leave" {
            campaign.leave.push(args.next().ok_or("--leave needs a value")?);
            continue;
        }
        let mut number = || -> Result<u64, String> {
            let text = args.next().ok_or(format!("{arg} needs a value"))?;
            text.parse().map_err(|_| format!("{arg} {text}: not a number"))
        };
        match arg.as_str() {
            "--runs" => runs = number()?,
            "--seed" => seed = number()?,
            "--seconds" => campaign.time = Duration::from_secs(number()?),
            "--jobs" => campaign.jobs = number()? as usize,
            "--without" => campaign.without.push(number()? as usize),
            "--no-shrink" => campaign.shrink = false,
            "--json" => json = true,
            _ => return Err(format!("unknown argument {arg}\n{USAGE}")),
        }
    }
    campaign.seeds = seed..seed + runs;
    Ok(Arguments { campaign, json })
}

fn found(failed: &Failed) -> String {
    let mut text = format!("\n{}", failed.plan);
    for finding in &failed.findings {
        text += &format!("  {finding}\n");
    }
    let kept = failed.plan.troubles.len() - failed.needless.len();
    text += &match failed.again {
        true => format!("  it came again, with {kept} of these\n"),
        false => "  it did not come again\n".into(),
    };
    text + &format!("  {}\n", failed.command())
}

fn numbers(tally: &Tally, took: Duration) -> String {
    format!(
        "{} runs in {:.0} s: {} deaths, {} hangs, {} other answers, {} broken rules, {} ledgers of {} not readable \
         ({} refused for a reason); {} not judged; the campaign itself failed for {} more",
        tally.runs,
        took.as_secs_f64(),
        tally.count(Wrong::Death),
        tally.count(Wrong::Hang),
        tally.count(Wrong::Answer),
        tally.count(Wrong::Rule),
        tally.count(Wrong::Ledger),
        tally.ledgers,
        tally.refused,
        tally.ill.values().sum::<u64>(),
        tally.broken.len(),
    )
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("faulter: {why}");
            return ExitCode::from(2);
        }
    };
    let (begin, total) = (Instant::now(), arguments.campaign.seeds.end - arguments.campaign.seeds.start);
    let mut shown = begin;
    let terminal = std::io::stderr().is_terminal();
    let tally = arguments.campaign.run(|tally, failed| {
        if let Some(failed) = failed {
            eprintln!("{}{}", if terminal { "\r\x1b[K" } else { "" }, found(failed));
        }
        if terminal && shown.elapsed() > Duration::from_millis(200) {
            shown = Instant::now();
            eprint!("\r\x1b[K{} of {total}, {} with findings", tally.runs, tally.failed.len());
            let _ = std::io::stderr().flush();
        }
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    if arguments.json {
        eprintln!("{}", numbers(&tally, begin.elapsed()));
        say_line!("{}", tally.json());
    } else {
        say_line!("{}", numbers(&tally, begin.elapsed()));
    }
    for (seed, why) in &tally.broken {
        eprintln!("faulter: seed {seed}: {why}");
    }
    match (tally.failed.is_empty(), tally.broken.is_empty()) {
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    }
}
