//! Claims about `gpumem leaks`: compares its verdicts with growth that was planted.

use super::{Bench, Measured};
use crate::stage::finish;
use serde_json::Value;
use std::process::Stdio;

/// Programs, each with a hundred call sites, and the steps that each of them takes.
const PROGRAMS: u64 = 10;
const STEPS: [&str; 4] = ["64", "96", "150", "240"];

/// How many verdicts may be wrong: five of a hundred.
pub const WRONG: f64 = 50.0;

/// Verdicts on a thousand call sites in ten programs, and on the programs' own heaps.
pub fn verdicts(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let mut wrong = Vec::new();
    for number in 0..PROGRAMS {
        let steps = STEPS[number as usize % STEPS.len()];
        bench.step(&format!("program {} of {PROGRAMS}, {steps} steps", number + 1));
        let ledgers = bench.ledgers();
        let mut command = bench.stage.command(&bench.stage.program("leaks")?, Some(&ledgers))?;
        // The program asks for the samples, so that there is exactly one for each step, however loaded the machine is.
        command.env("GPUMEM_GROWTH_INTERVAL", "0").arg(number.to_string()).arg(steps);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let run = finish(child.map_err(|error| format!("leaks: {error}"))?, Some(&ledgers))?;
        if run.status != 0 {
            return Err(format!("leaks: status {}: {}", run.status, run.stderr.trim()));
        }
        let planted: Value = serde_json::from_str(run.stdout.trim()).map_err(|error| format!("leaks: {error}"))?;
        let ledger = run.ledger.ok_or("leaks left no ledger")?;
        let said = bench.stage.inspect("leaks", &ledger)?;
        for (site, truth) in planted["sites"].as_array().into_iter().flatten().enumerate() {
            let verdict = verdict_on(&said, &format!("site_{site:02} "));
            measured.native += 1.0;
            if verdict != *truth {
                measured.preloaded += 1.0;
                wrong.push(format!("site {site} of program {number}: {truth} is called {verdict}"));
            }
        }
        let grows = said["heap"]["verdict"] == "grows-steadily";
        if planted["heap"] != grows {
            measured.preloaded += 1.0;
            wrong.push(format!("the heap of program {number}: growth {} is called {grows}", planted["heap"]));
        }
    }
    measured.note = wrong.join("; ");
    Ok(measured)
}

/// The verdict on the call site whose name begins with `site`. Null if there is none.
fn verdict_on(said: &Value, site: &str) -> Value {
    let rows = said["suspects"].as_array().into_iter().flatten();
    let mut rows = rows.filter(|row| row["key"].as_str().is_some_and(|key| key.starts_with(site)));
    rows.next().map_or(Value::Null, |row| row["verdict"].clone())
}
