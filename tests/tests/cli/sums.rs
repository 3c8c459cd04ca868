//! The amounts of a process on a device that `stats` shows add up to the driver's count for that process, beside
//! neighbours.

use gpumem_tests::group::Watch;
use gpumem_tests::harness::artifacts::{artifacts, repository};
use gpumem_tests::harness::program;
use gpumem_tests::harness::run::{Running, Scratch, wait_for};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Programs beside each other, and how often all are stopped.
const PROGRAMS: usize = 4;
/// Of each program; `SUMS_HOLDS` is another number.
const HOLDS: usize = 12;
/// Memory of the simulated device that a context and the code of a module take.
const CONTEXT: &str = "64M";
const CODE: &str = "20M";

/// The library that counts for all, in a directory of its own.
fn nvml(dir: &Path) {
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let source = repository().join("tests/sim/nvml.c");
    let made =
        Command::new(cc).args(["-shared", "-fPIC", "-o"]).arg(dir.join("libnvidia-ml.so.1")).arg(source).status();
    assert!(made.expect("a C compiler").success());
}

/// Returns the answer of `stats` about a process's device, beside that library.
fn device(dir: &Path, pids: &str, running: &Running) -> Value {
    let mut command = Command::new(&artifacts().gpumem);
    command.args(["stats", "--json", "--dir"]).arg(&running.dir).arg(running.pid().to_string());
    command.env("LD_LIBRARY_PATH", dir).env("NVML_WORDS", dir.join("shared")).env("NVML_PIDS", pids);
    let output = command.output().expect("gpumem runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    said["devices"][0].clone()
}

/// In random states of several programs: no part is more than the count, all parts and the rest are the count, and what is
/// recorded is never more.
#[test]
fn the_parts_of_each_process_add_up_to_the_drivers_count() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    nvml(dir);
    let watch = Watch::new(dir, PROGRAMS);
    let start = |number: usize| {
        let program = program("totals").arg(number.to_string()).env("SIM_SHARED", watch.variable(number)).waits();
        let costs = [("SIM_CONTEXT_MEM", CONTEXT), ("SIM_CODE_MEM", CODE), ("GPUMEM_POOL_DECAY", "0")];
        let pool = if number % 4 == 3 { "0" } else { "1" };
        program.envs(&costs).env("GPUMEM_POOL", pool).dir(dir.join(format!("ledgers{number}"))).start(true)
    };
    let mut programs: Vec<Running> = (0..PROGRAMS).map(start).collect();
    let pids: Vec<String> = programs.iter().map(|running| running.pid().to_string()).collect();
    let pids = pids.join(" ");
    let holds = std::env::var("SUMS_HOLDS").ok().and_then(|holds| holds.parse().ok()).unwrap_or(HOLDS);
    let mut rests = Vec::new();
    for hold in 1..=holds {
        programs.iter_mut().for_each(|running| running.tell("go 40"));
        for running in &programs {
            wait_for("the program stands", || running.stdout().lines().count() >= hold);
        }
        for (number, running) in programs.iter().enumerate() {
            let counted = watch.sum(|member| member == number).expect("nobody moves");
            let device = device(dir, &pids, running);
            let account = &device["of_process"];
            let said = format!("program {number}, hold {hold}: {device:#}");
            assert_eq!(account["counted_bytes"], counted, "{said}");
            let parts = account["parts"].as_array().expect("parts").iter();
            let parts: u64 = parts.map(|part| part["bytes"].as_u64().expect("bytes")).sum();
            let rest = account["rest_bytes"].as_u64().unwrap_or_else(|| panic!("{said}"));
            assert_eq!(parts + rest, counted, "{said}");
            assert_eq!(device["used_bytes"].as_u64(), watch.sum(|_| true), "{said}");
            rests.push(rest);
        }
    }
    rests.sort_unstable();
    // Beside neighbours the first context is known for real cards alone. Pools of the program's own, and what the driver's
    // pools took since they were looked at, are in no part.
    let most = rests.last().copied().unwrap_or(u64::MAX);
    println!("{} states: rest {} to {} MiB", rests.len(), rests[0] / MIB, most / MIB);
    assert!(most <= 256 * MIB, "{rests:?}");
}
