//! Claims about costs, measured by tests/gpu/cost.c inside one preloaded process: blocks of calls go
//! by turns through the shim's door and to the driver's own entry.

use super::{Bench, Measured};
use crate::stage::checked;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// What is recorded on its way: these have limits of their own.
const RECORDED: &[&str] = &["cuGraphLaunch", "cuMemAlloc+cuMemFree"];

fn compiled(bench: &Bench<'_>) -> Result<PathBuf, String> {
    let out = bench.stage.kit.join("cost");
    let source = bench.stage.root.join("tests/gpu/cost.c");
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(cc);
    checked(command.args(["-std=gnu11", "-O2", "-fno-omit-frame-pointer", "-o"]).arg(&out).arg(source).arg("-ldl"))?;
    Ok(out)
}

/// The figures of one run of the program.
fn figures(bench: &Bench<'_>, args: &[&str], settings: &[(&str, &str)]) -> Result<Vec<Value>, String> {
    let mut command = bench.stage.command(&compiled(bench)?, Some(&bench.ledgers()))?;
    let text = checked(command.args(args).envs(settings.iter().copied()))?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).map_err(|error| format!("cost: {error}: {line}"))).collect()
}

fn measured(figure: &Value) -> Measured {
    let number = |name: &str| figure[name].as_f64().unwrap_or(f64::NAN);
    Measured {
        native: number("native_ns"),
        preloaded: number("preloaded_ns"),
        added: Some(number("added_ns")),
        note: format!(
            "{}, added: quartiles {}, {} calls",
            figure["cost"], figure["added_quartiles"], figure["samples"]
        ),
        ..Measured::default()
    }
}

/// The call that gets slowest of those that the shim sees and lets pass.
pub fn call(bench: &Bench<'_>) -> Result<Measured, String> {
    let figures = figures(bench, &["calls"], &[])?;
    let passing = figures.iter().filter(|figure| figure["cost"].as_str().is_some_and(|name| !RECORDED.contains(&name)));
    let worst = passing.map(measured).max_by(|a, b| a.added.partial_cmp(&b.added).unwrap_or(std::cmp::Ordering::Equal));
    worst.ok_or_else(|| "cost calls printed no figure".into())
}

fn pair(bench: &Bench<'_>, depth: &str, stacks: &str) -> Result<Measured, String> {
    // A pair takes 60 us on an H200 and varies by 1 us: enough blocks for a median to 20 ns.
    let figures = figures(bench, &["pairs", depth], &[("GPUMEM_STACKS", stacks), ("COST_BLOCKS", "8001")])?;
    let figure = figures.first().ok_or("cost pairs printed no figure")?;
    if figure["hooked"] != true {
        return Err("cuMemAlloc is not hooked: nothing was measured".into());
    }
    Ok(measured(figure))
}

/// An allocation and its free, without stacks.
pub fn record(bench: &Bench<'_>) -> Result<Measured, String> {
    pair(bench, "0", "0")
}

/// The same from 40 frames down, of which 32 are kept.
pub fn record_stacks(bench: &Bench<'_>) -> Result<Measured, String> {
    pair(bench, "40", "32")
}
