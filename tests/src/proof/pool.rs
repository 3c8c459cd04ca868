//! Claims about the pool: programs get the same results, no memory is given out while work uses it, and allocations
//! fail only where they would natively or where a limit says so.

use super::tester::{hunted, numbers};
use super::{Bench, Measured};
use crate::stage::{Device, Run, finish};
use std::path::Path;
use std::process::Stdio;

/// The limit in the claim `quota.enforced`, MiB.
pub const QUOTA_MIB: f64 = 256.0;

/// Runs a program of tests/programs with these variables. With ledgers it is preloaded. Returns the run and the broken
/// rules of the driver, as the simulator reports them.
pub(super) fn run(
    bench: &Bench<'_>,
    line: &str,
    variables: &[(&str, &str)],
    preload: bool,
) -> Result<(Run, Vec<String>), String> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let ledgers = bench.ledgers();
    let mut command = bench.stage.command(&bench.stage.program(name)?, preload.then_some(ledgers.as_path()))?;
    std::fs::create_dir_all(&ledgers).map_err(|error| format!("{}: {error}", ledgers.display()))?;
    let report = ledgers.join("violations");
    command.args(words).env("SIM_REPORT", &report).envs(variables.iter().copied());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let done = finish(child.map_err(|error| format!("{name}: {error}"))?, preload.then_some(ledgers.as_path()));
    Ok((done.map_err(|why| format!("{line}: {why}"))?, violations(&report)))
}

/// The names of the broken rules.
fn violations(report: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(report).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter_map(|line| line["violation"].as_str().map(str::to_owned)).collect()
}

/// Random programs of allocation, natively and preloaded, by the tester beside this binary.
pub fn results_equal(bench: &Bench<'_>) -> Result<Measured, String> {
    hunted(bench, "pooler", &[])
}

/// Programs that free memory while work uses it and allocate it again, with frees that wait and frees that do not. On a
/// GPU only wrong contents tell.
pub fn reuse_violations(bench: &Bench<'_>) -> Result<Measured, String> {
    const PROGRAMS: [&str; 4] = ["pool_order running", "pool_order streams", "pool_threads race", "pool_captures"];
    let mut measured = Measured::default();
    let mut notes = Vec::new();
    for program in PROGRAMS {
        for (preload, free) in [(false, "strict"), (true, "strict"), (true, "deferred")] {
            bench.step(&format!("{program}, {}", if preload { free } else { "natively" }));
            let variables = [("GPUMEM_FREE", free), ("SIM_LAG_US", "300")];
            let (done, broken) = run(bench, program, &variables, preload)?;
            // Captures are disturbed on purpose, natively too.
            let broken: Vec<String> = broken.into_iter().filter(|what| what != "capture_disturbed").collect();
            let wrong = broken.len() as f64 + f64::from(u8::from(done.status != 0));
            if wrong > 0.0 {
                notes.push(format!("{program}, {free}: status {}, {broken:?} {}", done.status, done.stderr.trim()));
            }
            *(if preload { &mut measured.preloaded } else { &mut measured.native }) += wrong;
        }
    }
    measured.broken = measured.native > 0.0;
    measured.note = notes.join("; ");
    Ok(measured)
}

/// The kinds of memory that the program's output names for its buffers and for the growth of its own pool: `plain`,
/// `managed`, `nothing`.
fn places<'a>(out: &'a str, what: &str) -> Vec<&'a str> {
    let lines = out.lines().filter(|line| line.starts_with(what));
    lines.filter_map(|line| line.rsplit(' ').next()).collect()
}

/// The table of docs/pool-spill.md, by both names of each variable.
pub fn matrix(bench: &Bench<'_>) -> Result<Measured, String> {
    const NAMES: [[&str; 2]; 2] = [
        ["GPUMEM_POOL_MANAGED", "GGML_CUDA_POOL_USE_MANAGED"],
        ["GPUMEM_OOM_FALLBACK", "GGML_CUDA_ALLOC_FALLBACK_MANAGED"],
    ];
    // On a real device a quota takes the place of a card that is too small.
    let small = match bench.stage.device {
        Device::Simulator => ("SIM_DEVICE_MEM", "512M"),
        Device::Gpu(_) => ("GPUMEM_LIMIT", "512MiB"),
    };
    let mut measured = Measured::default();
    let mut notes = Vec::new();
    for (managed, fallback) in [(false, false), (true, false), (false, true), (true, true)] {
        for names in 0..2 {
            let mut variables = vec![small];
            variables.extend(managed.then_some((NAMES[0][names], "1")));
            variables.extend(fallback.then_some((NAMES[1][names], ["managed", "1"][names])));
            bench.step(&format!("{:?}", &variables[1..]));
            let (done, broken) = run(bench, "pool_spill spill", &variables, true)?;
            let (buffers, growth) = (places(&done.stdout, "buffer "), places(&done.stdout, "growth "));
            let plain = buffers.iter().take_while(|place| **place == "plain").count();
            let rest = if fallback { "managed" } else { "nothing" };
            let of_buffers = plain >= 4 && plain < buffers.len() && buffers[plain..].iter().all(|place| *place == rest);
            let of_growth = growth.iter().all(|place| match (managed, *place) {
                (true, place) => place == "managed",
                (false, place) => place == "plain" || place == rest,
            });
            let right = done.status == 0 && broken.is_empty() && of_buffers && of_growth && growth.len() == 12;
            measured.native += 1.0;
            measured.preloaded += f64::from(u8::from(right));
            if !right {
                let what = format!("status {}, {broken:?}, buffers {buffers:?}, growth {growth:?}", done.status);
                notes.push(format!("{:?}: {what}", &variables[1..]));
            }
        }
    }
    measured.note = notes.join("; ");
    Ok(measured)
}

/// The most that a program gets in each way that takes device memory.
pub fn quota(bench: &Bench<'_>) -> Result<Measured, String> {
    const WAYS: [&str; 5] = ["plain", "async", "created", "pitched", "runtime"];
    const BLOCK_MIB: f64 = 16.0;
    let most = |preload| -> Result<(f64, bool, String), String> {
        let (done, broken) = run(bench, "pool_spill quota", &[("GPUMEM_LIMIT", "256MiB")], preload)?;
        let lines = done.stderr.lines().filter(|line| WAYS.iter().any(|way| line.starts_with(way)));
        let of_lines: Vec<Vec<f64>> = lines.map(numbers).collect();
        let most = of_lines.iter().map(|line| line[0] * BLOCK_MIB).fold(0.0, f64::max);
        // Each way of allocating must run out, with the right status.
        let refused = of_lines.len() == WAYS.len() && of_lines.iter().all(|line| line[0] >= 8.0 && line[1] == 2.0);
        Ok((most, done.status == 0 && broken.is_empty() && (refused || !preload), done.stderr))
    };
    let (native, native_well, _) = most(false)?;
    let (preloaded, well, said) = most(true)?;
    let broken = !(well && native_well);
    let note = if broken { said.trim().replace('\n', "; ") } else { String::new() };
    Ok(Measured { native, preloaded, broken, note, ..Measured::default() })
}

/// Programs whose pools strand memory and that do not retry, capture, or use the kept memory in graphs. Under `press`
/// all of them must end as natively.
pub fn press_safe(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let mut notes = Vec::new();
    for mode in ["abort", "capture", "graph", "buffers", "retry"] {
        for retries in ["0", "1"] {
            // A program that says it retries and does not gets no help.
            if retries == "1" && mode == "abort" {
                continue;
            }
            let line = format!("pool_press {mode}");
            bench.step(&format!("{line}, GPUMEM_STRANDED_RETRIES={retries}"));
            let variables = [("GPUMEM_STRANDED", "press"), ("GPUMEM_STRANDED_RETRIES", retries)];
            let (native, _) = run(bench, &line, &variables, false)?;
            let (done, broken) = run(bench, &line, &variables, true)?;
            measured.native += f64::from(u8::from(native.status == 0));
            if done.status == 0 && broken.is_empty() {
                measured.preloaded += 1.0;
            } else {
                notes.push(format!("{line}: status {}, {broken:?} {}", done.status, done.stderr.trim()));
            }
        }
    }
    measured.note = notes.join("; ");
    Ok(measured)
}

/// The program's own maximum, MiB.
fn peak_of(done: &Run) -> Result<f64, String> {
    let line = done.stderr.lines().find(|line| line.starts_with("peak"));
    line.and_then(|line| numbers(line).first().copied()).ok_or_else(|| format!("no peak in {}", done.stderr.trim()))
}

/// A program whose pool strands memory, and runs long enough that old blocks are most of it.
const LONG: &str = "pool_press retry 80";

/// The most that a program holds under press, if its pool strands memory and it retries.
pub fn press_peak(bench: &Bench<'_>) -> Result<Measured, String> {
    let variables = [("GPUMEM_STRANDED", "press"), ("GPUMEM_STRANDED_RETRIES", "1")];
    let (native, _) = run(bench, LONG, &variables, false)?;
    let (ours, broken) = run(bench, LONG, &variables, true)?;
    Ok(Measured {
        native: peak_of(&native)?,
        preloaded: peak_of(&ours)?,
        broken: native.status != 0 || ours.status != 0 || !broken.is_empty(),
        ..Measured::default()
    })
}

/// A program that ends when an allocation fails, under a limit that it does not fit in.
pub fn spill_finishes(bench: &Bench<'_>) -> Result<Measured, String> {
    let line = "pool_press abort";
    let (native, _) = run(bench, line, &[], false)?;
    let quota = format!("{:.0}MiB", peak_of(&native)? / 4.0);
    let (ours, broken) = run(bench, line, &[("GPUMEM_STRANDED", "spill"), ("GPUMEM_LIMIT", &quota)], true)?;
    Ok(Measured {
        native: f64::from(u8::from(native.status == 0)),
        preloaded: f64::from(u8::from(ours.status == 0)),
        broken: !broken.is_empty(),
        note: format!("a quota of {quota}: {}", ours.stderr.trim().replace('\n', "; ")),
        ..Measured::default()
    })
}
