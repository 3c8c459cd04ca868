//! Replays allocations against the driver that is there, natively or, started under the preload, through the
//! pool. Exit status: 0, 1 when a call failed that must not, 2 for wrong arguments or when there is no driver.

#![deny(clippy::print_stdout)]

use gpumem_tests::poolbench::driver::{Driver, Way};
use gpumem_tests::poolbench::random::{self, Random};
use gpumem_tests::poolbench::{Plan, replay, trace};
use gpumem_tests::say_line;
use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;

const USAGE: &str = "\
usage: poolbench random [OPTIONS]       RMM's random-allocation benchmark
       poolbench trace FILE [OPTIONS]   a trace: Thread,Time,Action,Pointer,Size,Stream
  --count N       random: allocations (100000)
  --max-mib N     random: the largest (64)
  --usage-mib N   random: live at a time (16000)
  --seed N        random: (1)
  --async         cuMemAllocAsync and cuMemFreeAsync instead
  --json          one line of JSON
";

struct Wanted {
    plan: Plan,
    way: Way,
    json: bool,
}

fn arguments(mut args: impl Iterator<Item = String>) -> Result<Wanted, String> {
    let mib = |text: &str| text.parse::<u64>().map(|n| n << 20);
    let mut of = Random { count: 100_000, max_bytes: 64 << 20, usage_bytes: 16_000 << 20, seed: 1 };
    let (mut way, mut json) = (Way::Plain, false);
    let file = match args.next().as_deref() {
        Some("random") => None,
        Some("trace") => Some(args.next().ok_or("trace needs a file")?),
        _ => return Err(String::new()),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |error| format!("{arg}: {error}");
        match arg.as_str() {
            "--count" => of.count = value()?.parse().map_err(number)?,
            "--max-mib" => of.max_bytes = mib(&value()?).map_err(number)?,
            "--usage-mib" => of.usage_bytes = mib(&value()?).map_err(number)?,
            "--seed" => of.seed = value()?.parse().map_err(number)?,
            "--async" => way = Way::Async,
            "--json" => json = true,
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    let plan = match file {
        None => random::plan(of),
        Some(file) => {
            let rows = File::open(&file).map_err(|error| format!("{file}: {error}"))?;
            trace::parse(BufReader::new(rows)).map_err(|why| format!("{file}: {why}"))?
        }
    };
    Ok(Wanted { plan, way, json })
}

fn main() -> ExitCode {
    let wanted = match arguments(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprint!("{}{USAGE}", if why.is_empty() { why } else { format!("poolbench: {why}\n") });
            return ExitCode::from(2);
        }
    };
    let driver = match Driver::open(wanted.way) {
        Ok(driver) => driver,
        Err(why) => {
            eprintln!("poolbench: {why}");
            return ExitCode::from(2);
        }
    };
    match replay::replay(&driver, &wanted.plan) {
        Ok(found) if wanted.json => say_line!("{}", serde_json::json!(found)),
        Ok(found) => say_line!(
            "{}: {} allocations in {:.3} s, {:.0} ns a step; asked for at most {} MiB, reserved at most {} MiB ({:.3} ×), \
             fragmentation {:.1} %; {} failed, {} rows left out",
            found.mode,
            found.allocations,
            found.seconds,
            found.ns_per_step,
            found.peak_requested_bytes >> 20,
            found.peak_reserved_bytes >> 20,
            found.reserved_over_requested,
            found.fragmentation * 100.0,
            found.failed,
            found.skipped,
        ),
        Err(why) => {
            eprintln!("poolbench: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
