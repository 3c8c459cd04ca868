//! Claims about memory over time: where a program's is flat it stays flat, and beside the native run's.
//!
//! Two runs of one program do the same between two samples, whatever time that takes them, so that each sample of the
//! preloaded run is held against the same one of the native run. The simulator takes no memory for graphs of its own;
//! it counts what a driver would, and that is added.

use super::{Bench, Measured};
use crate::stage::{Device, finish};
use serde_json::Value;
use std::process::Stdio;
use std::sync::OnceLock;

/// How much more memory than natively a process may take, MiB, besides a share of the native figure.
pub const SLACK_MIB: f64 = 4.0;
pub const SLACK_SHARE: f64 = 0.02;
/// How much more the later half of a preloaded run may rise than that of the native run. Two runs of the same program
/// differ by as much.
const RISE_MIB: f64 = 1.0;
/// The same for device memory, which comes in blocks of 2 MiB. The place of an allocation can decide over one block,
/// and two runs of one build differ by two blocks.
const DEVICE_RISE_MIB: f64 = 4.0;
/// Samples of a run.
const SAMPLES: usize = 20;

/// A program and what it is told.
type Line = (&'static str, &'static [&'static str]);

const DEMO: Line = (
    "demo",
    &["--slots", "4", "--iterations", "800", "--samples", "20", "--weights", "1", "--kv", "1", "--prefill", "4"],
);
const SHORT: Line = ("churn", &["--operations", "100000", "--threads", "4"]);
const LONG: Line = ("churn", &["--operations", "10000000", "--threads", "4"]);

/// Anonymous memory of the process and used memory of the device at each sample, MiB.
fn samples(bench: &Bench<'_>, (name, args): Line, preload: bool) -> Result<Vec<[f64; 2]>, String> {
    bench.step(&format!("{name} {}, {}", args.join(" "), if preload { "preloaded" } else { "natively" }));
    let ledgers = preload.then(|| bench.ledgers());
    let mut command = bench.stage.command(&bench.stage.program(name)?, ledgers.as_deref())?;
    let child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let done = finish(child.map_err(|error| format!("{name}: {error}"))?, None)?;
    if done.status != 0 {
        return Err(format!("{name}: status {}: {}", done.status, done.stderr.trim()));
    }
    let all = told(&done.stdout);
    if all.len() == SAMPLES { Ok(all) } else { Err(format!("{name}: {} samples", all.len())) }
}

/// Reads the lines of sample.h: anonymous memory of the process and used memory of the device, MiB.
pub(crate) fn told(stdout: &str) -> Vec<[f64; 2]> {
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of = |line: &Value, own: &str, counted: &str| {
        Some(line[own].as_f64()? + line[counted].as_f64().unwrap_or(0.0) / 1_048_576.0)
    };
    let pair = |line: Value| {
        Some([of(&line, "anonymous_mib", "graph_host_held")?, of(&line, "device_mib", "graph_device_held")?])
    };
    lines.filter_map(pair).collect()
}

/// Compares two runs. Returns the sample at which the preloaded run is furthest above its limit, with any other fault,
/// and how far above it is.
fn compared(what: &str, native: &[f64], preloaded: &[f64], most_rise: f64) -> (Measured, f64) {
    let above = |(native, preloaded): (&f64, &f64)| preloaded - native * (1.0 + SLACK_SHARE) - SLACK_MIB;
    let mut worst = (f64::NEG_INFINITY, 0);
    for (index, pair) in native.iter().zip(preloaded).enumerate() {
        if above(pair) > worst.0 {
            worst = (above(pair), index);
        }
    }
    let rise = |of: &[f64]| of[of.len() - 1] - of[of.len() / 2];
    let (natively, ours) = (rise(native), rise(preloaded));
    let measured = Measured {
        native: native[worst.1],
        preloaded: preloaded[worst.1],
        note: format!("{what}: the later half rises by {ours:.2} MiB, natively by {natively:.2}"),
        broken: ours > natively.max(0.0) + most_rise,
        ..Measured::default()
    };
    (measured, worst.0)
}

/// The median of each sample, the two before it and the two behind it. A single sample does not show growth.
fn settled(samples: &[f64]) -> Vec<f64> {
    let middle = |at: usize| {
        let mut near = samples[at.saturating_sub(2)..samples.len().min(at + 3)].to_vec();
        near.sort_by(f64::total_cmp);
        near[near.len() / 2]
    };
    (0..samples.len()).map(middle).collect()
}

/// A program's name, and its samples natively and preloaded.
type Runs = Vec<(&'static str, Vec<[f64; 2]>, Vec<[f64; 2]>)>;

/// Runs each program once for all claims.
fn runs(bench: &Bench<'_>) -> Result<&'static Runs, String> {
    static RUNS: OnceLock<Result<Runs, String>> = OnceLock::new();
    let run = |line: Line| Ok((line.0, samples(bench, line, false)?, samples(bench, line, true)?));
    RUNS.get_or_init(|| lines(bench).into_iter().map(run).collect()).as_ref().map_err(Clone::clone)
}

/// The run that is furthest above what it may be; `device`: in the device's memory, not the host's.
fn worst(runs: &Runs, device: bool) -> Result<Measured, String> {
    let mut worst: Option<(Measured, f64)> = None;
    let mut notes = Vec::new();
    for (name, native, preloaded) in runs {
        let of = |run: &[[f64; 2]]| run.iter().map(|sample| sample[usize::from(device)]).collect::<Vec<_>>();
        let (measured, above) = match device {
            false => compared(name, &of(native), &of(preloaded), RISE_MIB),
            true => compared(name, &settled(&of(native)), &settled(&of(preloaded)), DEVICE_RISE_MIB),
        };
        notes.push(measured.note.clone());
        let broken = measured.broken || worst.as_ref().is_some_and(|(worst, _)| worst.broken);
        if worst.as_ref().is_none_or(|(_, before)| above > *before) {
            worst = Some((measured, above));
        }
        if let Some((worst, _)) = &mut worst {
            worst.broken = broken;
        }
    }
    let (measured, _) = worst.ok_or("nothing was run")?;
    Ok(Measured { note: notes.join("; "), ..measured })
}

/// The programs whose memory is held: on a GPU allocations take 50 µs natively, and the long run would take minutes.
fn lines(bench: &Bench<'_>) -> Vec<Line> {
    match bench.stage.device {
        Device::Simulator if !cfg!(debug_assertions) => vec![DEMO, SHORT, LONG],
        _ => vec![DEMO, SHORT],
    }
}

/// Anonymous memory of the process.
pub fn host_growth(bench: &Bench<'_>) -> Result<Measured, String> {
    worst(runs(bench)?, false)
}

/// Used memory of the device, without what the pool keeps idle: the program is told that it is free.
pub fn device_growth(bench: &Bench<'_>) -> Result<Measured, String> {
    worst(runs(bench)?, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sample_of_the_device_is_no_growth_and_three_are() {
        let mut samples = vec![38.0; 20];
        samples[7] = 44.0;
        samples[19] = 44.0;
        assert_eq!(settled(&samples), vec![38.0; 20]);
        samples[8..10].fill(44.0);
        assert_eq!(settled(&samples).iter().filter(|sample| **sample == 44.0).count(), 3);
        assert_eq!(settled(&[1.0, 2.0, 9.0]).len(), 3);
    }

    #[test]
    fn each_sample_is_held_against_its_own() {
        let native: Vec<f64> = vec![100.0; 20];
        let (same, above) = compared("x", &native, &native, RISE_MIB);
        assert!(!same.broken && above == -6.0, "{above}");
        let mut one = native.clone();
        one[3] = 107.0;
        let (measured, above) = compared("x", &native, &one, RISE_MIB);
        assert_eq!((measured.preloaded, above, measured.broken), (107.0, 1.0, false));
        let rises: Vec<f64> = (0..20).map(|at| 100.0 + f64::from(at) / 5.0).collect();
        assert!(compared("x", &native, &rises, RISE_MIB).0.broken, "within what it may be, and it rises");
        assert!(!compared("x", &rises, &rises, RISE_MIB).0.broken, "as natively");
        let steep: Vec<f64> = (0..20).map(|at| 100.0 + f64::from(at)).collect();
        assert!(compared("x", &settled(&native), &settled(&steep), DEVICE_RISE_MIB).0.broken);
    }
}
