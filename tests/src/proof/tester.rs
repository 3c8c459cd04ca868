//! Random programs, natively and preloaded, by a tester beside this binary.

use super::{Bench, Measured};
use crate::stage::finish;
use std::process::Stdio;

/// Hunts for half a minute with `differ` or `pooler`, with these arguments besides.
///
/// # Errors
/// Why the tester could not run, or what it said instead of its tally.
pub fn hunted(bench: &Bench<'_>, name: &str, arguments: &[&str]) -> Result<Measured, String> {
    let tester = bench.stage.kit.join(name);
    if !tester.is_file() {
        return Err(format!("{} is not there: cargo build -p gpumem-tests", tester.display()));
    }
    let out = bench.ledgers();
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut hunt = bench.stage.command(&tester, None)?;
    hunt.arg("hunt").args(arguments).args(["--seconds", "30", "--lib"]).arg(bench.stage.shim());
    let child = hunt.arg("--out").arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let done = finish(child.map_err(|error| format!("{name}: {error}"))?, None)?;
    // "120 programs, 7000 operations: 0 differ, 0 differed once, 1 not judged"
    let last = done.stdout.lines().last().unwrap_or_default();
    let [programs, _operations, differ, fleeting, ill] = numbers(last)[..] else {
        return Err(format!("{name}: status {}: {last} {}", done.status, done.stderr.trim()));
    };
    Ok(Measured {
        native: programs - ill,
        preloaded: programs - ill - differ - fleeting,
        broken: done.status != 0 || programs - ill < 1.0,
        note: last.to_owned(),
        ..Measured::default()
    })
}

/// The whole numbers in a line.
pub fn numbers(line: &str) -> Vec<f64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}
