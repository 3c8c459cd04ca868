//! Claims about costs, measured by tests/gpu/programs/cost.c inside one preloaded process: blocks of calls go
//! by turns through the shim's door and to the driver's own entry.
//!
//! Two drivers: one that does nothing (tests/gpu/programs/nullcuda.c), where single nanoseconds can be told
//! apart and the limits are held against; and the GPU's own, where a pair takes 50 µs and varies by one,
//! whose figures stand in the note.

use super::{Bench, Measured};
use crate::stage::checked;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Calls for which the shim does more than let them pass: it records them, or it adds the pool's part to the answer.
const NOT_PASSED: &[&str] = &["cuGraphLaunch", "cuMemAlloc+cuMemFree", "cuMemGetInfo"];

/// Compiles a source of tests/gpu/programs.
pub(super) fn compiled(bench: &Bench<'_>, source: &str, out: &str, args: &[&str]) -> Result<PathBuf, String> {
    let out = bench.stage.kit.join(out);
    if let Some(dir) = out.parent() {
        std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let source = bench.stage.root.join("tests/gpu/programs").join(source);
    checked(Command::new(cc).args(["-std=gnu11", "-O2", "-o"]).arg(&out).arg(source).args(args))?;
    Ok(out)
}

/// The directory of the driver that does nothing.
fn null_driver(bench: &Bench<'_>) -> Result<PathBuf, String> {
    let library = ["-fPIC", "-shared", "-Wl,-soname,libcuda.so.1"];
    let file = compiled(bench, "nullcuda.c", "null/libcuda.so.1", &library)?;
    Ok(file.parent().unwrap_or(&file).to_owned())
}

/// The driver that a figure is taken against.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Driver {
    Null,
    Real,
}

/// The figures of one run of the program.
pub(super) fn figures(
    bench: &Bench<'_>,
    driver: Driver,
    args: &[&str],
    settings: &[(&str, &str)],
) -> Result<Vec<Value>, String> {
    let program = compiled(bench, "cost.c", "cost", &["-fno-omit-frame-pointer", "-ldl"])?;
    let mut command = bench.stage.command(&program, Some(&bench.ledgers()))?;
    if driver == Driver::Null {
        command.env("LD_LIBRARY_PATH", null_driver(bench)?);
    }
    let text = checked(command.args(args).envs(settings.iter().copied()))?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).map_err(|error| format!("cost: {error}: {line}"))).collect()
}

pub(super) fn measured(figure: &Value) -> Measured {
    let number = |name: &str| figure[name].as_f64().unwrap_or(f64::NAN);
    Measured {
        native: number("native_ns"),
        preloaded: number("preloaded_ns"),
        added: Some(number("added_ns")),
        ..Measured::default()
    }
}

/// A figure of the real driver in words, for the note.
pub(super) fn beside(figure: &Value) -> String {
    let (added, quartiles, native) = (&figure["added_ns"], &figure["added_quartiles"], &figure["native_ns"]);
    format!("against a driver that does nothing; against the GPU's own +{added} ns, quartiles {quartiles}, of {native}")
}

/// Of the calls that the shim only lets pass, the call that gets slower by most.
pub fn call(bench: &Bench<'_>) -> Result<Measured, String> {
    let passing = |driver| -> Result<Vec<Value>, String> {
        let mut all = figures(bench, driver, &["calls"], &[])?;
        all.retain(|figure| figure["cost"].as_str().is_some_and(|name| !NOT_PASSED.contains(&name)));
        Ok(all)
    };
    let (null, real) = (passing(Driver::Null)?, passing(Driver::Real)?);
    let added = |figure: &Value| figure["added_ns"].as_f64().unwrap_or(f64::INFINITY);
    let worst = null.iter().max_by(|a, b| added(a).total_cmp(&added(b))).ok_or("cost calls printed no figure")?;
    let same = real.iter().find(|figure| figure["cost"] == worst["cost"]).ok_or("cost calls differ between drivers")?;
    Ok(Measured { note: format!("{} {}", worst["cost"], beside(same)), ..measured(worst) })
}

fn pair(bench: &Bench<'_>, depth: &str, stacks: &str) -> Result<Measured, String> {
    let figure = |driver| -> Result<Value, String> {
        let settings = [("GPUMEM_STACKS", stacks)];
        let figure = figures(bench, driver, &["pairs", depth], &settings)?.into_iter().next();
        let figure = figure.ok_or("cost pairs printed no figure")?;
        if figure["hooked"] != true {
            return Err("cuMemAlloc is not hooked: nothing was measured".into());
        }
        Ok(figure)
    };
    let (null, real) = (figure(Driver::Null)?, figure(Driver::Real)?);
    Ok(Measured { note: beside(&real), ..measured(&null) })
}

/// Instructions of a launch of a resident exec at most; 157 were counted, on 13 lines: 11 to 13, by where they begin.
const INSTRUCTIONS: u64 = 200;

/// How much code a launch of a resident exec touches. Between two launches the program's own work pushes the shim's
/// code out of the processor's caches. So the next launch waits for each line of that code.
pub fn cold_launch(bench: &Bench<'_>) -> Result<Measured, String> {
    let null = null_driver(bench)?;
    let link = [format!("-I{}", bench.stage.root.join("tests/programs").display()), format!("-L{}", null.display())];
    let rest = ["-l:libcuda.so.1", "-pthread", "-ldl"];
    let args: Vec<&str> = link.iter().map(String::as_str).chain(rest).collect();
    let program = compiled(bench, "../../programs/clients/graph_steps.c", "graph_steps", &args)?;
    let mut command = bench.stage.command(&program, Some(&bench.ledgers()))?;
    let text = checked(command.env("LD_LIBRARY_PATH", &null))?;
    let counted: Value = serde_json::from_str(text.trim()).map_err(|error| format!("graph_steps: {error}: {text}"))?;
    let of = |what: &str| counted[what].as_u64().ok_or(format!("graph_steps counted no {what}"));
    let (instructions, lines, outside) = (of("instructions")?, of("lines")?, of("outside")?);
    Ok(Measured {
        preloaded: lines as f64,
        note: format!(
            "{instructions} instructions, {INSTRUCTIONS} at most; {outside} of the C library's, none at most"
        ),
        // Each launch has at least a few of both. Fewer means that another function was counted.
        broken: instructions > INSTRUCTIONS || outside > 0 || instructions < 50 || lines < 5,
        ..Measured::default()
    })
}

/// An allocation and its free, without stacks.
pub fn record(bench: &Bench<'_>) -> Result<Measured, String> {
    pair(bench, "0", "0")
}

/// The same from a call stack of 40 frames, of which 32 are recorded.
pub fn record_stacks(bench: &Bench<'_>) -> Result<Measured, String> {
    pair(bench, "40", "32")
}
