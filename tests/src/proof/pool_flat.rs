//! Claims about device memory over time: a preloaded program holds no more than it would natively.

use super::pool::run;
use super::tester::numbers;
use super::{Bench, Measured};

const MIB: f64 = 1024.0 * 1024.0;
/// The share of the native figure that is allowed, besides what the claim's limit adds.
const SHARE: f64 = 1.02;
/// How long freed memory may stay on an idle device, ms.
const PATIENCE: &str = "15000";
const OPERATIONS: [&str; 2] = ["2000", "40000"];

/// The most memory in use in each half of a run, and the memory in use once all is freed, MiB.
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

/// The worst excess of device memory over 1.02 times native, MiB. It is taken without idle blocks while the program
/// works, after few operations and after many, over the growth of the run's later half, and at the end with idle
/// blocks.
pub fn device_growth(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured { preloaded: f64::MIN, ..Measured::default() };
    let mut notes = Vec::new();
    for operations in OPERATIONS {
        let (native, ours) = (most(bench, operations, false)?, most(bench, operations, true)?);
        let above = native.iter().zip(&ours).map(|(native, ours)| ours - native * SHARE);
        // With few operations the later half means nothing.
        let growth = (ours[1] - ours[0]) - (native[1] - native[0]).max(0.0) * SHARE;
        let growth = (operations == OPERATIONS[1]).then_some(growth);
        measured.preloaded = above.chain(growth).fold(measured.preloaded, f64::max);
        notes.push(format!("{operations} operations: {native:.0?} natively, {ours:.0?} preloaded"));
    }
    measured.note = notes.join("; ");
    Ok(measured)
}
