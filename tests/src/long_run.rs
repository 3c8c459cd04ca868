//! Runs the same traffic for a long time. Checks that memory of gpumem stays flat and that every call is counted.

use crate::proof::flat::told;
use crate::proof::record::{differences, last_count};
use crate::stage::{Stage, ledger_of};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What `tests/programs/long_run.c` can do.
pub const KINDS: [&str; 5] = ["graphs", "pool", "threads", "contexts", "models"];

/// The outcome of one kind of traffic.
#[derive(Debug)]
pub struct Outcome {
    /// Calls that the program counted.
    pub calls: u64,
    pub native: Run,
    pub preloaded: Run,
    /// What is wrong.
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

/// Makes `calls` calls of one kind natively, then under the preload, which records to a directory of this process.
///
/// # Errors
/// Says which run did not end well.
pub fn run(stage: &Stage, kind: &str, calls: u64) -> Result<Outcome, String> {
    let ledgers = std::env::temp_dir().join(format!("gpumem-long-run-{}-{kind}", std::process::id()));
    let _removed = Removed(&ledgers);
    let (native, natively, _) = once(stage, kind, calls, None)?;
    let (preloaded, ours, (own, ledger)) = once(stage, kind, calls, Some(&ledgers))?;
    let mut wrong = Vec::new();
    for (which, memory) in [(0, "host"), (1, "device")] {
        let of = |run: &[[f64; 2]]| run.iter().map(|sample| sample[which]).collect::<Vec<_>>();
        wrong.extend(rises(memory, &of(&natively), &of(&ours)));
    }
    let stats = stage.inspect("stats", &ledger)?;
    wrong.extend(differences(&own, &stats));
    let interception = &stats["process"]["interception"];
    wrong.extend((interception != "complete").then(|| format!("interception is {interception}")));
    let counted =
        ["allocs", "frees", "graphs_created", "execs_created", "graph_launches", "kernel_launches", "captures"];
    let calls = counted.iter().filter_map(|name| own[*name].as_u64()).sum();
    Ok(Outcome { calls, native, preloaded, wrong })
}

/// What the later half of a run may need more than the half before it, beside what it needs more natively: MiB, and a
/// share of it.
const RISE_MIB: f64 = 1.0;
const RISE_SHARE: f64 = 0.02;

/// Says so if the most that the later half of the preloaded run needs is more than the half before it needed, and not
/// natively.
fn rises(memory: &str, natively: &[f64], ours: &[f64]) -> Option<String> {
    let most = |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max);
    let halves = |run: &[f64]| (most(&run[..run.len() / 2]), most(&run[run.len() / 2..]));
    let ((native_before, native_later), (before, later)) = (halves(natively), halves(ours));
    let may = before * (1.0 + RISE_SHARE) + RISE_MIB + (native_later - native_before).max(0.0);
    (later > may).then(|| {
        format!(
            "{memory} memory rises: {before:.1} MiB at most in the half before, then {later:.1}; \
             natively {native_before:.1}, then {native_later:.1}"
        )
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
        assert_eq!(rises("host", &flat, &flat), None);
        assert_eq!(rises("host", &rising, &rising), None, "as natively");
        let why = rises("host", &flat, &rising).expect("it rises");
        assert!(why.contains("12.0 MiB at most in the half before, then 14.0"), "{why}");
    }
}
