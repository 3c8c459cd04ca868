//! The claim about `GPUMEM_GUARD`: each bug that was planted is found, and nothing in programs without one.

use super::{Bench, Measured};
use crate::stage::finish;
use std::process::Stdio;

/// Bugs that `pool_guard` plants, the guard's setting, and the kind of event that has to name the bug; none for a clean
/// program.
const PLANTED: [(&[&str], &str, Option<&str>); 14] = [
    (&["over1"], "1", Some("written-outside")),
    (&["over4"], "1", Some("written-outside")),
    (&["over512"], "1", Some("written-outside")),
    (&["overunit"], "1", Some("written-outside")),
    (&["over1"], "front", Some("written-outside")),
    (&["under4"], "front", Some("written-outside")),
    (&["under512"], "front", Some("written-outside")),
    (&["live", "sync", "drop"], "sync", Some("written-outside")),
    (&["order"], "1", Some("written-outside")),
    (&["freed", "sync"], "sync", Some("written-after-free")),
    (&["freedwhole", "sync"], "sync", Some("written-after-free")),
    (&["graph"], "1", Some("freed-graph-launched")),
    (&["clean", "answers"], "front", None),
    (&["clean", "answers"], "sync", None),
];

const FINDINGS: [&str; 3] = ["written-outside", "written-after-free", "freed-graph-launched"];

/// Programs, and those that the guard judges rightly.
pub fn finds(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let mut wrong = Vec::new();
    for (bugs, guard, kind) in PLANTED {
        let what = format!("{} with GPUMEM_GUARD={guard}", bugs.join(" "));
        bench.step(&what);
        let ledgers = bench.ledgers();
        let mut command = bench.stage.command(&bench.stage.program("pool_guard")?, Some(&ledgers))?;
        command.env("GPUMEM_GUARD", guard).env("GPUMEM_LOG", "quiet").args(bugs);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let run = finish(child.map_err(|error| format!("pool_guard: {error}"))?, Some(&ledgers))?;
        if run.status != 0 {
            return Err(format!("{what}: status {}: {}", run.status, run.stderr.trim()));
        }
        let events = bench.stage.inspect("events", &run.ledger.ok_or("pool_guard left no ledger")?)?;
        let kinds = events["events"].as_array().into_iter().flatten().filter_map(|event| event["kind"].as_str());
        let found: Vec<&str> = kinds.filter(|kind| FINDINGS.contains(kind)).collect();
        measured.native += 1.0;
        // A graph that writes into freed memory is found twice: before it runs, and by its write.
        if kind.map_or(found.is_empty(), |kind| found.iter().filter(|other| **other == kind).count() == 1) {
            measured.preloaded += 1.0;
        } else {
            wrong.push(format!("{what}: {found:?}"));
        }
    }
    measured.note = wrong.join("; ");
    Ok(measured)
}
