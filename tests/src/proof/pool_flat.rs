//! Claims about device memory over time: what a program holds is what it would hold.

use super::pool::run;
use super::tester::numbers;
use super::{Bench, Measured};

const MIB: f64 = 1024.0 * 1024.0;
/// Above native, besides what the claim's limit adds.
const SHARE: f64 = 1.02;
/// How long what was freed may stay on an idle device, ms.
const PATIENCE: &str = "15000";
const OPERATIONS: [&str; 2] = ["2000", "40000"];

/// The most that is in use in either half of a run, and what is once all is freed; MiB.
fn most(bench: &Bench<'_>, operations: &str, preload: bool) -> Result<Vec<f64>, String> {
    bench.step(&format!("{operations} operations, {}", if preload { "preloaded" } else { "natively" }));
    let (done, broken) = run(bench, &format!("pool_flat {operations} {PATIENCE}"), &[], preload)?;
    let line = done.stderr.lines().find(|line| line.starts_with("first half"));
    let said: Vec<f64> = line.map(numbers).unwrap_or_default().into_iter().map(|bytes| bytes / MIB).collect();
    match (done.status, broken.is_empty(), said.len()) {
        (0, true, 3) => Ok(said),
        _ => Err(format!("status {}, {broken:?}: {}", done.status, done.stderr.trim())),
    }
}

/// By how much device memory is above 1.02 of native, MiB, at the worst: without idle blocks while the program works,
/// after few operations as after many, in how the later half of the run grows, and with them in the end.
pub fn device_growth(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured { preloaded: f64::MIN, ..Measured::default() };
    let mut notes = Vec::new();
    for operations in OPERATIONS {
        let (native, ours) = (most(bench, operations, false)?, most(bench, operations, true)?);
        let above = native.iter().zip(&ours).map(|(native, ours)| ours - native * SHARE);
        // Few operations have no later half to speak of.
        let growth = (ours[1] - ours[0]) - (native[1] - native[0]).max(0.0) * SHARE;
        let growth = (operations == OPERATIONS[1]).then_some(growth);
        measured.preloaded = above.chain(growth).fold(measured.preloaded, f64::max);
        notes.push(format!("{operations} operations: {native:.0?} natively, {ours:.0?} preloaded"));
    }
    measured.note = notes.join("; ");
    Ok(measured)
}
