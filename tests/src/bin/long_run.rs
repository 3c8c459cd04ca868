//! The command of the long run. Exit status: 0 when memory stays flat and all is counted, 1 when not, 2 for wrong
//! arguments or when it could not run.

#![deny(clippy::print_stdout)]

use gpumem_tests::long_run::{KINDS, run};
use gpumem_tests::say_line;
use gpumem_tests::stage::Stage;
use std::process::ExitCode;

const USAGE: &str = "\
usage: long_run [--calls N] [KIND...]
Makes N calls (1000000) of each kind of traffic natively and under the preload, on the GPU or else on the simulator:
whether memory stays beside the native run's and flat in the later half, and whether the ledger counts each call.
";

fn main() -> ExitCode {
    match work(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("long_run: {why}");
            ExitCode::from(2)
        }
    }
}

fn work(mut args: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut calls, mut kinds) = (1_000_000, Vec::new());
    while let Some(arg) = args.next() {
        match (arg.as_str(), KINDS.iter().find(|kind| **kind == arg)) {
            ("--calls", _) => {
                let value = args.next().ok_or("--calls needs a number")?;
                calls = value.parse().ok().filter(|n| *n > 0).ok_or(format!("--calls {value}: a number from 1 on"))?;
            }
            (_, Some(kind)) => kinds.push(*kind),
            _ => return Err(format!("there is no {arg}; kinds are {}\n{USAGE}", KINDS.join(", "))),
        }
    }
    if kinds.is_empty() {
        kinds.extend(KINDS);
    }
    let (stage, why) = Stage::here()?;
    eprintln!("long_run: on the {} ({why})", stage.device);
    say_line!(
        "kind          calls    native s  preloaded s  native MiB half, end, most  preloaded MiB half, end, most"
    );
    let mut fine = true;
    for kind in kinds {
        eprintln!("long_run: {kind}");
        let done = run(&stage, kind, calls)?;
        let (native, ours) = (&done.native, &done.preloaded);
        say_line!(
            "{kind:<9} {:>10} {:>11.1} {:>12.1} {:>11.1} {:>7.1} {:>7.1} {:>14.1} {:>7.1} {:>7.1}",
            done.calls,
            native.took.as_secs_f64(),
            ours.took.as_secs_f64(),
            native.half,
            native.end,
            native.most,
            ours.half,
            ours.end,
            ours.most,
        );
        for what in &done.wrong {
            say_line!("          {what}");
        }
        fine &= done.wrong.is_empty();
    }
    Ok(fine)
}
