//! Claims about gpumem's own kernels that only a GPU can show: how fast a search reads device memory, and what the guard costs.

use super::held::Held;
use super::suspects::suspects;
use super::{Bench, Measured, cost};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// A search reads at least this share of what a kernel does that only reads.
pub const BANDWIDTH: f64 = 0.95;
/// A step under the guard takes at most so many times the native one.
pub const SLOWER: f64 = 1.1;
const GIB: &str = "16";
const SEARCHES: usize = 3;
const ROUNDS: usize = 3;
const STEPS: &str = "steps 100";

fn middle(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list[list.len() / 2]
}

/// True if the python3 of the path has PyTorch.
pub(super) fn has_torch() -> bool {
    let mut python = Command::new("python3");
    let done = python.args(["-c", "import torch"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    done.status().is_ok_and(|status| status.success())
}

/// The rate at which a kernel that does nothing else reads, and the rate of a search, GB/s.
pub fn bandwidth_ratio(bench: &Bench<'_>) -> Result<Measured, String> {
    let program = cost::compiled(bench, "read.c", "read", &["-ldl"])?;
    let ledgers = bench.ledgers();
    let mut command = bench.stage.command(&program, Some(&ledgers))?;
    command.arg(GIB);
    let held = Held::start(command)?;
    let native = held.answer()?["read_gb_s"].as_f64().ok_or("read says no rate")?;
    let (mut rates, mut by_kernel) = (Vec::new(), f64::INFINITY);
    for _ in 0..SEARCHES {
        let said = suspects(bench, held.pid(), &ledgers)?;
        let look = &said["scans"][1];
        let fact = |name: &str| -> Result<f64, String> {
            let fact = look[name].as_str().and_then(|fact| fact.parse().ok());
            fact.ok_or_else(|| format!("the search does not say {name}: {look}"))
        };
        rates.push(fact("device_bytes")? / fact("device_ns")?);
        by_kernel = by_kernel.min(fact("device_by_kernel")? / fact("device_bytes")?);
    }
    Ok(Measured {
        native,
        preloaded: middle(rates),
        broken: by_kernel < 0.99,
        note: format!("{GIB} GiB, {:.0} % of it by the kernel", by_kernel * 100.0),
        ..Measured::default()
    })
}

/// Milliseconds for a training step, natively and under the guard, by processes that take turns.
pub fn guard_slowdown(bench: &Bench<'_>) -> Result<Measured, String> {
    let script = bench.stage.root.join("tests/gpu/programs/py/guard_steps.py");
    let start = |guard: Option<&str>| -> Result<Held, String> {
        let ledgers = guard.map(|_| bench.ledgers());
        let mut command = bench.stage.command(Path::new("python3"), ledgers.as_deref())?;
        command.arg(&script).envs(guard.map(|guard| ("GPUMEM_GUARD", guard)));
        Held::start(command)
    };
    let mut held = [start(None)?, start(Some("1"))?];
    let mut times = [Vec::new(), Vec::new()];
    let mut losses = [Value::Null, Value::Null];
    for round in 0..=ROUNDS {
        for which in [round % 2, (round + 1) % 2] {
            let said = held[which].ask(STEPS)?;
            losses[which] = said["loss"].clone();
            // The first steps warm up.
            if round > 0 {
                times[which].push(1e3 / said["per_s"].as_f64().unwrap_or(f64::NAN));
            }
        }
    }
    let ratios = times[0].iter().zip(&times[1]).map(|(native, guarded)| guarded / native).collect();
    let broken = losses[0] != losses[1];
    let note = if broken { format!("another loss than natively: {losses:?}") } else { String::new() };
    let [native, preloaded] = times.map(middle);
    Ok(Measured { native, preloaded, ratio: Some(middle(ratios)), broken, note, ..Measured::default() })
}
