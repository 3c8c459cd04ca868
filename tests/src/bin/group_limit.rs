//! Kills members of a limit group at random. Exit status: 0 when the limit held and no byte was lost, 1 when not, 2 for
//! wrong arguments.

#![deny(clippy::print_stdout)]

use gpumem_tests::group::{Plan, kill_at_random};
use gpumem_tests::say_line;
use std::process::ExitCode;

const USAGE: &str = "\
usage: group_limit [--kills N] [--members N] [--seed N]
Members of one limit group (16) take and free device memory on the simulator, under the preload, and are killed at random
until N (10000) were: whether all together ever had more than the limit, and whether all of it can be had afterwards.
";

fn parse(mut args: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan { members: 16, kills: 10_000, seed: 1, every: 500 };
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().ok_or(format!("{arg} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{arg} {value}: not a number"))
        };
        match arg.as_str() {
            "--kills" => plan.kills = number()? as usize,
            "--members" => plan.members = number()?.clamp(1, 200) as usize,
            "--seed" => plan.seed = number()?,
            _ => return Err(format!("there is no {arg}\n{USAGE}")),
        }
    }
    Ok(plan)
}

fn main() -> ExitCode {
    let plan = match parse(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("group_limit: {why}");
            return ExitCode::from(2);
        }
    };
    let dir = std::env::temp_dir().join(format!("gpumem-group-limit-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory of its own");
    let said = kill_at_random(&dir, plan, |so_far| eprintln!("group_limit: {so_far:?}"));
    let _ = std::fs::remove_dir_all(&dir);
    match said {
        Ok(outcome) => {
            say_line!("group_limit: {plan:?}: never above the limit, no byte lost: {outcome:?}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("group_limit: {plan:?}: {why}");
            ExitCode::FAILURE
        }
    }
}
