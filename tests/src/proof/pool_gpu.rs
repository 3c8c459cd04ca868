//! Claims about the pool that only a GPU can show: the cost of pairs of allocation and free, and how soon memory is
//! back on the card.

use super::held::Held;
use super::{Bench, Measured, cost};
use crate::stage::{checked, ledger_of};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Threads of `pool.threads_ratio`.
const THREADS: &str = "16";
/// How much is allocated and freed, GiB.
const BURST_GIB: &str = "32";
/// The longest time until all memory is back on the card.
const PATIENCE: Duration = Duration::from_secs(15);

/// The output of tests/gpu/programs/pool.c about pairs.
fn pairs(bench: &Bench<'_>, preload: bool) -> Result<Value, String> {
    let program = cost::compiled(bench, "pool.c", "pool", &["-fno-omit-frame-pointer", "-pthread", "-lm", "-ldl"])?;
    bench.step(if preload { "pairs, preloaded" } else { "pairs, natively" });
    let ledgers = bench.ledgers();
    let mut command = bench.stage.command(&program, preload.then_some(ledgers.as_path()))?;
    let text = checked(command.args(["pairs", THREADS]).env("GPUMEM_STACKS", "0"))?;
    let line = text.lines().find(|line| line.starts_with('{')).ok_or("pool printed no figure")?;
    serde_json::from_str(line).map_err(|error| format!("pool: {error}: {line}"))
}

/// The figure natively and preloaded, by runs that take turns.
fn by_turns(bench: &Bench<'_>, of: fn(&Value) -> f64) -> Result<Measured, String> {
    let (mut native, mut ours) = (Vec::new(), Vec::new());
    for turn in 0..3 {
        for preload in [turn % 2 == 1, turn % 2 == 0] {
            let figure = of(&pairs(bench, preload)?);
            if preload { &mut ours } else { &mut native }.push(figure);
        }
    }
    let middle = |list: &mut Vec<f64>| {
        list.sort_by(f64::total_cmp);
        list[list.len() / 2]
    };
    let mut ratios: Vec<f64> = native.iter().zip(&ours).map(|(native, ours)| ours / native).collect();
    Ok(Measured {
        ratio: Some(middle(&mut ratios)),
        native: middle(&mut native),
        preloaded: middle(&mut ours),
        ..Measured::default()
    })
}

/// Allocation and free of 64 KiB to 4 MiB, one thread, ns a pair.
pub fn pair_ratio(bench: &Bench<'_>) -> Result<Measured, String> {
    by_turns(bench, |figure| figure["pair_ns"].as_f64().unwrap_or(f64::NAN))
}

/// The same by 16 threads at once, ns a pair of all.
pub fn threads_ratio(bench: &Bench<'_>) -> Result<Measured, String> {
    by_turns(bench, |figure| 1e9 / figure["pairs_per_s"].as_f64().unwrap_or(f64::NAN))
}

/// A process that allocates and frees memory when it is told to.
fn holder(bench: &Bench<'_>, program: &Path, ledgers: Option<&Path>) -> Result<Held, String> {
    let mut command = bench.stage.command(program, ledgers)?;
    command.arg("hold");
    Held::start(command)
}

/// How much of a freed burst the ledger says is still kept after 15 idle seconds, MiB. Another process must also be
/// able to take that much.
pub fn given_back(bench: &Bench<'_>) -> Result<Measured, String> {
    let program = cost::compiled(bench, "pool.c", "pool", &["-fno-omit-frame-pointer", "-pthread", "-lm", "-ldl"])?;
    let ledgers = bench.ledgers();
    let mut holder = holder(bench, &program, Some(&ledgers))?;
    let taken = holder.ask(&format!("take {BURST_GIB} 2 1024"))?;
    if taken["code"] != 0 {
        return Err(format!("the burst of {BURST_GIB} GiB was not to be had: {taken}"));
    }
    let burst = taken["gib"].as_f64().unwrap_or(f64::NAN) * 1024.0;
    holder.ask("free")?;
    let begin = Instant::now();
    let ledger = ledger_of(&ledgers, holder.pid()).ok_or("it left no ledger")?;
    let idle = || -> Result<f64, String> {
        let stats = bench.stage.inspect("stats", &ledger)?;
        let bytes = stats["pool"]["idle_bytes"].as_f64();
        Ok(bytes.ok_or("gpumem stats does not say what is idle")? / 1_048_576.0)
    };
    // The ledger is updated once a second.
    let (mut most, mut left) = (0.0_f64, 0.0);
    while begin.elapsed() < PATIENCE && (most == 0.0 || left > 0.0) {
        std::thread::sleep(Duration::from_millis(250));
        left = idle()?;
        most = most.max(left);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let mut other = self::holder(bench, &program, None)?;
    let got = other.ask(&format!("take {BURST_GIB} 64 512"))?;
    Ok(Measured {
        native: 0.0,
        preloaded: left,
        broken: got["code"] != 0 || most == 0.0,
        note: format!("of {burst:.0} MiB, {most:.0} of them kept, after {seconds:.1} s; another process then: {got}"),
        ..Measured::default()
    })
}
