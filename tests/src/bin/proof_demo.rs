//! `make run`: the demo under the preload, and what gpumem shows of it while it runs.
//!
//!     proof_demo [--simulator] [OPTIONS OF THE DEMO...]

#![deny(clippy::print_stdout)]

use gpumem_tests::proof::demo::show;
use gpumem_tests::stage::Stage;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let simulator = args.iter().position(|arg| arg == "--simulator").map(|at| args.remove(at)).is_some();
    let staged = if simulator { Stage::simulator().map(|stage| (stage, "asked for".into())) } else { Stage::here() };
    match staged.and_then(|(stage, why)| show(&stage, &why, &args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("demo: {why}");
            ExitCode::FAILURE
        }
    }
}
