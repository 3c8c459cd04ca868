//! Claims about frames of Python.

use super::{Bench, Measured};
use crate::python::{compare, interpreters};
use crate::stage::{Device, finish};
use gpumem_wire::read::Snapshot;
use serde_json::Value;
use std::fs::File;
use std::process::Stdio;

/// Random programs, and in how many threads each runs.
const PROGRAMS: [(u64, u64); 3] = [(1, 1), (2, 1), (3, 4)];
/// Allocations of each.
const EACH: u64 = 350;

/// Compares the frames of allocations in random call shapes: as the interpreter reports them, and as the ledger has
/// them.
pub fn frames_equal(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    for interpreter in interpreters() {
        for (seed, threads) in PROGRAMS {
            bench.step(&format!("{}, seed {seed}, {threads} threads", interpreter.display()));
            let ledgers = bench.ledgers();
            let mut command = bench.stage.command(&interpreter, Some(&ledgers))?;
            if let Device::Gpu(gpu) = &bench.stage.device {
                command.env("CUDART", &gpu.cudart);
            }
            command.arg(bench.stage.root.join("tests/python/frames.py")).env("GPUMEM_STACKS", "128");
            command.args([seed, EACH, threads].map(|number| number.to_string()));
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let run = finish(child.map_err(|error| format!("python: {error}"))?, Some(&ledgers))?;
            if run.status != 0 {
                return Err(format!("frames.py: status {}: {}", run.status, run.stderr.trim()));
            }
            let told: Value = serde_json::from_str(run.stdout.trim()).map_err(|error| format!("frames.py: {error}"))?;
            let file = File::open(run.ledger.ok_or("frames.py left no ledger")?).map_err(|error| error.to_string())?;
            let read = Snapshot::read(&file).map_err(|error| error.to_string())?;
            let (all, wrong) = compare(&told, &read.map_err(|error| error.to_string())?);
            measured.native += all as f64;
            measured.preloaded += (all - wrong.len()) as f64;
            measured.note.extend(wrong.first().into_iter().flat_map(|wrong| [wrong.as_str(), "; "]));
        }
    }
    Ok(measured)
}
