//! The same traffic for as long as one has time: whether memory of ours stays flat and beside the native run's, and
//! whether every call is counted.

use crate::proof::flat::{SLACK_MIB, SLACK_SHARE, told};
use crate::proof::record::{differences, last_count};
use crate::stage::{Device, Stage, ledger_of};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Kinds of traffic that `tests/programs/long_run.c` can make.
pub const KINDS: [&str; 5] = ["graphs", "pool", "threads", "contexts", "models"];

/// The outcome of one kind of traffic.
#[derive(Debug)]
pub struct Outcome {
    /// Calls that the program counted.
    pub calls: u64,
    pub native: Run,
    pub preloaded: Run,
    /// Faults that were found.
    pub wrong: Vec<String>,
}

/// One run: how long it took, and anonymous memory of the process after half of the calls, at the end, and at most, MiB.
#[derive(Debug)]
pub struct Run {
    pub took: Duration,
    pub half: f64,
    pub end: f64,
    pub most: f64,
}

/// Makes `calls` calls of one kind natively and under the preload, which records to a directory of this process. Both run
/// at once on the simulator, which is each process's own. They run by turns on a GPU, whose memory they share.
///
/// # Errors
/// Says which run did not end well.
pub fn run(stage: &Stage, kind: &str, calls: u64) -> Result<Outcome, String> {
    let ledgers = std::env::temp_dir().join(format!("gpumem-long-run-{}-{kind}", std::process::id()));
    let _removed = Removed(&ledgers);
    let [natively, ours] = [None, Some(ledgers.as_path())].map(|place| move || once(stage, kind, calls, place));
    let (natively, ours) = match stage.device {
        Device::Simulator => std::thread::scope(|scope| {
            let native = scope.spawn(natively);
            let ours = ours();
            (native.join().expect("a run does not panic"), ours)
        }),
        Device::Gpu(_) => (natively(), ours()),
    };
    let ((native, natively, _), (preloaded, ours, (own, ledger))) = (natively?, ours?);
    let mut wrong = Vec::new();
    // Idle blocks may reach what the program itself had at most: models of other sizes come later.
    let lived = own["kinds"]["device"]["peak"].as_f64().unwrap_or_default() / f64::from(1 << 20);
    for (which, memory, kept) in [(0, "host", 0.0), (1, "device", lived)] {
        let of = |run: &[[f64; 2]]| run.iter().map(|sample| sample[which]).collect::<Vec<_>>();
        wrong.extend(rises(memory, &of(&natively), &of(&ours), kept));
    }
    let host = |run: &[[f64; 2]]| run.iter().map(|sample| sample[0]).collect::<Vec<_>>();
    wrong.extend(above(&host(&natively), &host(&ours), drivers_own(kind)));
    let stats = stage.inspect("stats", &ledger)?;
    wrong.extend(differences(&own, &stats));
    let interception = &stats["process"]["interception"];
    wrong.extend((interception != "complete").then(|| format!("interception is {interception}")));
    let counted =
        ["allocs", "frees", "graphs_created", "execs_created", "graph_launches", "kernel_launches", "captures"];
    let calls = counted.iter().filter_map(|name| own[*name].as_u64()).sum();
    Ok(Outcome { calls, native, preloaded, wrong })
}

/// How much more memory the later half of a run may need than the half before it, beyond the rise of the native run:
/// MiB, and a share of the half before.
const RISE_MIB: f64 = 1.0;
const RISE_SHARE: f64 = 0.02;

/// Says so if the most that the later half of the preloaded run needs is more than the half before it needed, and not
/// natively. `kept`: what may be kept idle beside what the native run needs, MiB.
fn rises(memory: &str, natively: &[f64], ours: &[f64], kept: f64) -> Option<String> {
    let most = |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max);
    let halves = |run: &[f64]| (most(&run[..run.len() / 2]), most(&run[run.len() / 2..]));
    let ((native_before, native_later), (before, later)) = (halves(natively), halves(ours));
    let may = before * (1.0 + RISE_SHARE) + RISE_MIB + (native_later - native_before).max(0.0);
    (later > may.max(native_later + kept)).then(|| {
        format!(
            "{memory} memory rises: {before:.1} MiB at most in the half before, then {later:.1}; \
             natively {native_before:.1}, then {native_later:.1}"
        )
    })
}

/// Host memory that the driver's own memory pool takes, MiB (10 on the simulator, 13 on an H200). The pool is made when
/// blocks first go back in the order of a stream, as they do if a program's sizes keep changing.
const DRIVERS_POOL_MIB: f64 = 13.0;

fn drivers_own(kind: &str) -> f64 {
    if matches!(kind, "pool" | "models") { DRIVERS_POOL_MIB } else { 0.0 }
}

/// Says so if a sample of the preloaded run is above what it may be beside the most of the native run so far. (Which
/// sample of two that belong together sees a peak depends on how threads meet.)
fn above(natively: &[f64], ours: &[f64], drivers: f64) -> Option<String> {
    let mut most = 0.0_f64;
    let pairs = natively.iter().zip(ours).enumerate();
    let over = pairs.map(|(at, (native, own))| {
        most = most.max(*native);
        (own - most * (1.0 + SLACK_SHARE) - SLACK_MIB - drivers, at, most, *own)
    });
    let (by, at, most, own) = over.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (by > 0.0).then(|| {
        let (at, samples) = (at + 1, ours.len());
        format!("host memory is {by:.1} MiB above what it may be at sample {at} of {samples}: {own:.1} MiB, natively {most:.1} at most until then")
    })
}

type Once = (Run, Vec<[f64; 2]>, (serde_json::Value, std::path::PathBuf));

fn once(stage: &Stage, kind: &str, calls: u64, ledgers: Option<&std::path::Path>) -> Result<Once, String> {
    let mut command = stage.command(&stage.program("long_run")?, ledgers)?;
    command.args([kind, "--calls", &calls.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let child = command.spawn().map_err(|error| format!("long_run: {error}"))?;
    let pid = child.id();
    let done = child.wait_with_output().map_err(|error| format!("long_run: {error}"))?;
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let samples = told(&out);
    if !done.status.success() || samples.len() < 2 {
        return Err(format!("long_run {kind}: {}, {} samples: {}", done.status, samples.len(), err.trim()));
    }
    let host = |at: usize| samples[at][0];
    let run = Run {
        took: begin.elapsed(),
        half: host(samples.len() / 2),
        end: host(samples.len() - 1),
        most: samples.iter().map(|sample| sample[0]).fold(0.0, f64::max),
    };
    let ledger = match ledgers {
        Some(ledgers) => ledger_of(ledgers, pid).ok_or("it left no ledger")?,
        None => std::path::PathBuf::new(),
    };
    Ok((run, samples, (last_count(&out)?, ledger)))
}

/// A directory that goes.
struct Removed<'a>(&'a std::path::Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rises_in_the_later_half_is_told() {
        let (flat, rising) = ([10.0, 12.0, 11.0, 12.0], [10.0, 12.0, 12.5, 14.0]);
        assert_eq!(rises("host", &flat, &flat, 0.0), None);
        assert_eq!(rises("host", &rising, &rising, 0.0), None, "as natively");
        assert_eq!(rises("device", &flat, &rising, 2.0), None, "as much is kept");
        let why = rises("host", &flat, &rising, 0.0).expect("it rises");
        assert!(why.contains("12.0 MiB at most in the half before, then 14.0"), "{why}");
    }

    #[test]
    fn what_is_above_native_is_told() {
        let native = [10.0, 20.0, 10.0];
        assert_eq!(above(&native, &[14.1, 24.3, 24.3], 0.0), None, "beside the most so far");
        let why = above(&native, &[14.1, 24.3, 24.6], 0.0).expect("it is above");
        assert!(why.contains("0.2 MiB above what it may be at sample 3 of 3: 24.6 MiB, natively 20.0"), "{why}");
        assert_eq!(above(&native, &[14.1, 24.3, 24.6], 13.0), None);
    }
}
