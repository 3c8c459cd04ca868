//! `make proof`: measures every claim on the GPU, or on the simulator, and prints a JSON line for each.
//!
//!     proof [--simulator] [--list] [NAME...]
//!
//! NAME: only claims that begin so. Progress goes to stderr. The status is 1 if a claim does not hold.

#![deny(clippy::print_stdout)]

use gpumem_tests::proof::{CLAIMS, prove};
use gpumem_tests::say_line;
use gpumem_tests::stage::Stage;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (flags, names): (Vec<String>, Vec<String>) = args.into_iter().partition(|arg| arg.starts_with('-'));
    if let Some(flag) = flags.iter().find(|flag| !["--simulator", "--list"].contains(&flag.as_str())) {
        eprintln!("proof: there is no {flag}; proof [--simulator] [--list] [NAME...]");
        return ExitCode::from(2);
    }
    if let Some(name) = names.iter().find(|name| !CLAIMS.iter().any(|claim| claim.name.starts_with(name.as_str()))) {
        eprintln!("proof: no claim begins with {name}; --list shows them");
        return ExitCode::from(2);
    }
    if flags.iter().any(|flag| flag == "--list") {
        for claim in CLAIMS {
            say_line!("{:<30} {} ({}; {})", claim.name, claim.says, claim.limit, claim.unit);
        }
        return ExitCode::SUCCESS;
    }
    let staged =
        if flags.is_empty() { Stage::here() } else { Stage::simulator().map(|stage| (stage, "asked for".into())) };
    let proved = staged.and_then(|(stage, why)| {
        eprintln!("proof: on the {} ({why})", stage.device);
        prove(&stage, &names)
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
