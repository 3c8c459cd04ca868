//! `make proof`: measures every claim on the GPU, or on the simulator, and prints a JSON line for each.
//!
//!     proof [--simulator] [--list] [--seed SEED] [--programs PROGRAMS] [NAME...]
//!
//! NAME: only claims that begin so. SEED: what random programs are made from (leaks.verdicts, stats.totals_equal); another
//! one each time, unless it is given. PROGRAMS: how many of them. Progress goes to stderr, with the seed. The status is 1 if
//! a claim does not hold.

#![deny(clippy::print_stdout)]

use gpumem_tests::proof::{CLAIMS, Chance, prove};
use gpumem_tests::say_line;
use gpumem_tests::stage::Stage;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

const USAGE: &str = "proof [--simulator] [--list] [--seed SEED] [--programs PROGRAMS] [NAME...]";

/// Settings from the command line.
struct Asked {
    simulator: bool,
    list: bool,
    chance: Chance,
    names: Vec<String>,
}

impl Asked {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        // Nobody has to be able to guess it.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64 % 1_000_000_007);
        let chance = Chance { seed: now, programs: None };
        let mut asked = Self { simulator: false, list: false, chance, names: Vec::new() };
        while let Some(arg) = args.next() {
            let mut number = || {
                let value = args.next().ok_or_else(|| format!("{arg} wants a number"))?;
                value.parse::<u64>().map_err(|_| format!("{arg} wants a number, not {value}"))
            };
            match arg.as_str() {
                "--simulator" => asked.simulator = true,
                "--list" => asked.list = true,
                "--seed" => asked.chance.seed = number()?,
                "--programs" => asked.chance.programs = Some(number()?).filter(|&programs| programs > 0),
                flag if flag.starts_with('-') => return Err(format!("there is no {flag}")),
                name => asked.names.push(name.to_owned()),
            }
        }
        Ok(asked)
    }
}

fn main() -> ExitCode {
    let asked = match Asked::parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("proof: {why}; {USAGE}");
            return ExitCode::from(2);
        }
    };
    let Asked { simulator, list, chance, names } = asked;
    if let Some(name) = names.iter().find(|name| !CLAIMS.iter().any(|claim| claim.name.starts_with(name.as_str()))) {
        eprintln!("proof: no claim begins with {name}; --list shows them");
        return ExitCode::from(2);
    }
    if list {
        for claim in CLAIMS {
            say_line!("{:<30} {} ({}; {})", claim.name, claim.says, claim.limit, claim.unit);
        }
        return ExitCode::SUCCESS;
    }
    let staged = match simulator {
        true => Stage::simulator().map(|stage| (stage, "asked for".into())),
        false => Stage::here(),
    };
    let proved = staged.and_then(|(stage, why)| {
        eprintln!("proof: on the {} ({why}), seed {}", stage.device, chance.seed);
        prove(&stage, chance, &names)
    });
    match proved {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("proof: {why}");
            ExitCode::FAILURE
        }
    }
}
