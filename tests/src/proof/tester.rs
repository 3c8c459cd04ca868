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
    let last = done.stdout.lines().last().unwrap_or_default();
    let measured =
        tally(last).ok_or_else(|| format!("{name}: status {}: {last} {}", done.status, done.stderr.trim()))?;
    Ok(Measured { broken: done.status != 0 || measured.native < 1.0, ..measured })
}

/// Reads the last line of a hunt: "120 programs, 7000 operations: 0 differ, 0 differed once, 1 not judged". `differ`
/// adds more.
fn tally(line: &str) -> Option<Measured> {
    let [programs, _operations, differ, fleeting, ill, ..] = numbers(line)[..] else { return None };
    let native = programs - ill;
    Some(Measured { native, preloaded: native - differ - fleeting, note: line.to_owned(), ..Measured::default() })
}

/// The whole numbers in a line.
pub fn numbers(line: &str) -> Vec<f64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_testers_print_last_is_understood() {
        for more in ["", ", 3 stood still natively, 1 once under the preload alone"] {
            let line = format!("120 programs, 7000 operations: 2 differ, 1 differed once, 5 not judged{more}");
            let measured = tally(&line).unwrap();
            assert_eq!((measured.native, measured.preloaded), (115.0, 112.0), "{line}");
        }
        assert!(tally("differ: nothing ran").is_none());
    }
}
