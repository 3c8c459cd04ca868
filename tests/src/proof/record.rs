//! Claims about recording: nothing changes for the program, and the ledger agrees with what the program did.

use super::{Bench, Measured};
use crate::stage::{Device, Run, finish};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A program of tests/programs that does the same in each run.
struct Program {
    name: &'static str,
    args: &'static [&'static str],
    /// The program counts all of its own calls, makes them in one process, and frees everything.
    counts: bool,
    simulator_only: bool,
}

const fn program(name: &'static str) -> Program {
    Program { name, args: &[], counts: true, simulator_only: false }
}

const PROGRAMS: &[Program] = &[
    program("basic"),
    program("graphs"),
    program("threads"),
    program("noctx"),
    program("firstuse"),
    program("tags"),
    program("driver"),
    program("driver_dlopen"),
    program("plugin"),
    Program { args: &["--iterations", "200"], ..program("demo") },
    // An allocation inside a captured stream is a node of the graph to the program; to the ledger it
    // is stream-ordered memory until its free.
    Program { counts: false, ..program("captures") },
    // The ledgers of `fork`, `ipc` and `exits` lack their children's calls. `errors` ends in a sticky error.
    // `bystander` makes no call.
    Program { counts: false, ..program("fork") },
    Program { counts: false, ..program("ipc") },
    Program { counts: false, ..program("exits") },
    Program { counts: false, ..program("errors") },
    Program { counts: false, ..program("bystander") },
    // The program opens its runtime past every preload, so only the driver's calls are seen.
    Program { counts: false, ..program("deepbind") },
    Program { simulator_only: true, ..program("hip_basic") },
    Program { simulator_only: true, ..program("hip_graphs") },
];

fn programs(bench: &Bench<'_>, counts: bool) -> Vec<&'static Program> {
    let simulator = matches!(bench.stage.device, Device::Simulator);
    PROGRAMS.iter().filter(|program| (simulator || !program.simulator_only) && (program.counts || !counts)).collect()
}

/// Compares each program's status, stdout and stderr natively and preloaded.
pub fn results_equal(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let mut differ = Vec::new();
    let list = programs(bench, false);
    for (index, program) in list.iter().enumerate() {
        bench.step(&format!("{} ({} of {})", program.name, index + 1, list.len()));
        let native = bench.stage.run(program.name, program.args, None)?;
        let preloaded = bench.stage.run(program.name, program.args, Some(&bench.ledgers()))?;
        measured.native += 1.0;
        if native.status != 0 {
            measured.broken = true;
            differ.push(format!("{} fails natively: status {}: {}", program.name, native.status, native.stderr.trim()));
        }
        match difference(&native, &preloaded) {
            None => measured.preloaded += 1.0,
            Some(what) => differ.push(format!("{}: {what}", program.name)),
        }
    }
    measured.note = differ.join("; ");
    Ok(measured)
}

fn difference(native: &Run, preloaded: &Run) -> Option<String> {
    if native.status != preloaded.status {
        return Some(format!("status {} became {}: {}", native.status, preloaded.status, preloaded.stderr.trim()));
    }
    for (what, native, preloaded) in
        [("stdout", &native.stdout, &preloaded.stdout), ("stderr", &native.stderr, &preloaded.stderr)]
    {
        let (native, preloaded) = (stable(native), stable(preloaded));
        if native != preloaded {
            return Some(format!("{what} {native:?} became {preloaded:?}"));
        }
    }
    None
}

/// A program's output without what differs between runs: times, how threads met, the one answer that the preload
/// changes on purpose, and numbers in the simulator's reports.
fn stable(text: &str) -> Vec<String> {
    let line = |line: &str| match serde_json::from_str(line) {
        Ok(Value::Object(mut said)) => {
            said.retain(|name, _| !name.contains("second") && name != "bytes_peak" && name != "preloaded");
            for kind in said.get_mut("kinds").and_then(Value::as_object_mut).into_iter().flatten() {
                kind.1.as_object_mut().map(|kind| kind.remove("peak"));
            }
            Value::Object(said).to_string()
        }
        _ if line.starts_with("sim: violation:") => line.replace(|c: char| c.is_ascii_digit(), ""),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect()
}

/// The last line of JSON that a program printed, which is its own count.
fn own_count(run: &Run) -> Result<Value, String> {
    last_count(&run.stdout).map_err(|why| format!("status {}, {why}: {}", run.status, run.stderr.trim()))
}

/// The count that a program printed last.
pub(crate) fn last_count(stdout: &str) -> Result<Value, String> {
    let line = stdout.lines().rev().find(|line| line.starts_with('{')).ok_or("no count was printed")?;
    serde_json::from_str(line).map_err(|error| format!("its count is no JSON: {error}"))
}

/// The differences between a program's own count and `gpumem stats` of its run.
pub(crate) fn differences(own: &Value, stats: &Value) -> Vec<String> {
    let differ = |(name, of): &Count| {
        let (native, preloaded) = (number(&own[*name]), of(stats));
        (native != preloaded).then(|| format!("{name} {native} but {preloaded} in the ledger"))
    };
    COUNTS.iter().filter_map(differ).collect()
}

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or(f64::NAN)
}

/// The program's name of a count, and how to get that count from `gpumem stats`.
type Count = (&'static str, fn(&Value) -> f64);

/// The sum over the kinds that programs count. Address ranges and mappings belong to a physical allocation that is
/// counted, imports belong to another process, and reported parts lie in an allocation.
fn kinds(stats: &Value, field: &str) -> f64 {
    let counted = [
        "device",
        "pitch",
        "managed",
        "host-pinned",
        "host-registered",
        "async",
        "vmm-physical",
        "array",
        "mipmapped-array",
    ];
    let rows = stats["kinds"].as_array().into_iter().flatten();
    rows.filter(|row| counted.iter().any(|kind| row["kind"] == *kind)).map(|row| number(&row[field])).sum()
}

const COUNTS: &[Count] = &[
    ("allocs", |stats| kinds(stats, "allocs")),
    ("frees", |stats| kinds(stats, "frees")),
    ("bytes_allocated", |stats| kinds(stats, "alloc_bytes")),
    ("graphs_created", |stats| number(&stats["counters"]["graphs_created"])),
    ("graphs_destroyed", |stats| number(&stats["counters"]["graphs_destroyed"])),
    ("execs_created", |stats| number(&stats["counters"]["execs_created"])),
    ("execs_destroyed", |stats| number(&stats["counters"]["execs_destroyed"])),
    ("graph_launches", |stats| number(&stats["counters"]["launches"])),
    ("exec_updates", |stats| number(&stats["counters"]["updates"])),
    ("exec_updates_failed", |stats| number(&stats["counters"]["update_failures"])),
    ("captures", |stats| number(&stats["counters"]["captures_ended"]) + number(&stats["counters"]["captures_failed"])),
];

/// Runs a counting program under the preload. Returns its own count, and what `gpumem stats` says.
fn counted(bench: &Bench<'_>, program: &Program) -> Result<(Value, Value), String> {
    let run = bench.stage.run(program.name, program.args, Some(&bench.ledgers()))?;
    let own = own_count(&run).map_err(|why| format!("{}: {why}", program.name))?;
    let ledger = run.ledger.ok_or_else(|| format!("{} left no ledger", program.name))?;
    let stats = bench.stage.inspect("stats", &ledger)?;
    match stats["process"]["interception"].as_str() {
        Some("complete") => Ok((own, stats)),
        other => {
            Err(format!("{}: interception is {other:?}: {}", program.name, stats["process"]["interception_reason"]))
        }
    }
}

/// Compares each program's own count with the ledger of the same run.
pub fn counts_equal(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let mut differ = Vec::new();
    let list = programs(bench, true);
    for (index, program) in list.iter().enumerate() {
        bench.step(&format!("{} ({} of {})", program.name, index + 1, list.len()));
        let (own, stats) = counted(bench, program)?;
        measured.native += COUNTS.iter().map(|(name, _)| number(&own[*name])).sum::<f64>();
        measured.preloaded += COUNTS.iter().map(|(_, of)| of(&stats)).sum::<f64>();
        differ.extend(differences(&own, &stats).into_iter().map(|what| format!("{}: {what}", program.name)));
    }
    // Differences that cancel out in the sum still count.
    measured.broken = !differ.is_empty();
    measured.note = differ.join("; ");
    Ok(measured)
}

/// Measures what is live, by the ledger, at the end of a program that freed everything.
pub fn balance_zero(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let mut left = Vec::new();
    let list = programs(bench, true);
    for (index, program) in list.iter().enumerate() {
        bench.step(&format!("{} ({} of {})", program.name, index + 1, list.len()));
        let (own, stats) = counted(bench, program)?;
        measured.native += number(&own["bytes_live"]);
        let kinds = stats["kinds"].as_array().into_iter().flatten();
        let mut over: Vec<(String, f64)> = kinds
            .flat_map(|row| {
                let name = row["kind"].as_str().unwrap_or("?").to_owned();
                ["live", "live_bytes", "listed"].map(|field| (format!("{field} {name}"), number(&row[field])))
            })
            .collect();
        for what in ["graphs", "execs"] {
            let counter = |end: &str| number(&stats["counters"][format!("{what}_{end}")]);
            over.push((format!("live {what}"), counter("created") - counter("destroyed")));
        }
        measured.preloaded += over.iter().map(|(_, n)| n.abs()).sum::<f64>();
        left.extend(over.iter().filter(|(_, n)| *n != 0.0).map(|(what, n)| format!("{}: {n} {what}", program.name)));
    }
    measured.note = left.join("; ");
    Ok(measured)
}

/// Kills the demo twice: while it decodes, and while it holds memory that it has counted.
pub fn dead_process_readable(bench: &Bench<'_>) -> Result<Measured, String> {
    bench.step("the demo, killed in mid-work");
    let ledgers = bench.ledgers();
    let mut child = demo(bench, &["--seconds", "120"], &ledgers)?;
    let pid = child.id();
    let working = wait_until(&mut child, || {
        let ledger = crate::stage::ledger_of(&ledgers, pid)?;
        let stats = bench.stage.inspect("stats", &ledger).ok()?;
        (number(&stats["counters"]["launches"]) > 100.0).then_some(ledger)
    });
    let _ = child.kill();
    let _ = child.wait();
    let ledger = working?;
    let (allocs, graphs) = (bench.stage.inspect("allocs", &ledger)?, bench.stage.inspect("graphs", &ledger)?);
    let mut problems = Vec::new();
    for view in [&allocs, &graphs] {
        if view["process"]["life"] != "killed" {
            problems.push(format!("in mid-work: gpumem {} says {}", view["command"], view["process"]["life"]));
        }
    }
    // The weights, four KV caches, and at least one of the execs that it was launching.
    let live = &allocs["process_live"];
    if number(&live["count"]) < 5.0 || number(&live["device"]) < f64::from(96 << 20) {
        problems.push(format!("in mid-work: live {live}"));
    }
    if graphs["total"]["execs"].as_u64().is_none_or(|execs| execs == 0) {
        problems.push(format!("in mid-work: live execs {}", graphs["total"]["execs"]));
    }

    bench.step("the demo, killed while it holds what it counted");
    let ledgers = bench.ledgers();
    let mut child = demo(bench, &["--iterations", "100", "--hold", "120"], &ledgers)?;
    let own = first_line(&mut child);
    let _ = child.kill();
    let done = finish(child, Some(&ledgers))?;
    let own: Value = serde_json::from_str(&own?).map_err(|error| format!("demo: {error}: {}", done.stderr.trim()))?;
    let ledger = done.ledger.ok_or("the demo left no ledger")?;
    let (allocs, stats) = (bench.stage.inspect("allocs", &ledger)?, bench.stage.inspect("stats", &ledger)?);
    problems.extend(differences(&own, &stats));
    let live = &allocs["process_live"];
    Ok(Measured {
        native: number(&own["bytes_live"]),
        preloaded: number(&live["device"]) + number(&live["host"]) + number(&live["managed"]),
        broken: !problems.is_empty(),
        note: problems.join("; "),
        ..Measured::default()
    })
}

fn demo(bench: &Bench<'_>, args: &[&str], ledgers: &Path) -> Result<Child, String> {
    let mut command = bench.stage.command(&bench.stage.program("demo")?, Some(ledgers))?;
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| format!("demo: {error}"))
}

/// The first line that a running process prints.
fn first_line(child: &mut Child) -> Result<String, String> {
    use std::io::{BufRead, BufReader};
    let pipe = child.stdout.take().ok_or("its output is not piped")?;
    let mut line = String::new();
    BufReader::new(pipe).read_line(&mut line).map_err(|error| format!("its output: {error}"))?;
    Ok(line)
}

fn wait_until<T>(child: &mut Child, mut ready: impl FnMut() -> Option<T>) -> Result<T, String> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Err(format!("demo: ended by itself with {status}"));
        }
        if let Some(found) = ready() {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err("demo: launched no graphs in 60 s".into())
}
