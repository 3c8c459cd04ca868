//! Shows the demo workload under the preload: what the demo did, what the shim saw, and what gpumem shows while it
//! runs.

use crate::stage::{Device, Stage, finish, ledger_of};
use crate::{say, say_line};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Long enough to look at. In the last seconds the demo only holds its memory.
const ARGUMENTS: &[&str] = &["--seconds", "4", "--hold", "2"];
const VIEWS: &[&[&str]] = &[&["ps"], &["allocs"], &["graphs"], &["stats"]];

/// Runs the demo with these options (or [`ARGUMENTS`]) and prints all of it.
///
/// # Errors
/// When the demo fails, its results are wrong, or gpumem cannot show it.
pub fn show(stage: &Stage, why: &str, options: &[String]) -> Result<(), String> {
    let given: Vec<&str> = options.iter().map(String::as_str).collect();
    let options = if given.is_empty() { ARGUMENTS } else { &given[..] };
    match &stage.device {
        Device::Gpu(gpu) => say_line!("On the GPU: {} ({why}).", gpu.name),
        Device::Simulator => say_line!("On the simulated driver ({why})."),
    }
    let demo = stage.program("demo")?;
    let ledgers = stage.kit.join("demo-ledgers");
    let _ = std::fs::remove_dir_all(&ledgers);
    let mut command = stage.command(&demo, Some(&ledgers))?;
    command.args(options).env("GPUMEM_SUMMARY", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    say_line!("\n$ LD_PRELOAD={} GPUMEM_SUMMARY=1 {} {}", short(&stage.shim()), short(&demo), options.join(" "));
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", demo.display()))?;

    say_line!("\n## While it runs");
    let pid = child.id();
    let begin = Instant::now();
    let launching = || {
        let stats = stage.inspect("stats", &ledger_of(&ledgers, pid)?).ok()?;
        (stats["counters"]["launches"].as_u64()? > 0).then_some(())
    };
    while launching().is_none() && begin.elapsed() < Duration::from_secs(60) {
        if child.try_wait().map_err(|error| error.to_string())?.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut unseen = Vec::new();
    for view in VIEWS {
        if child.try_wait().map_err(|error| error.to_string())?.is_some() {
            unseen.push(view[0]);
            continue;
        }
        say_line!("\n$ gpumem {}", view.join(" "));
        let mut gpumem = stage.command(&stage.kit.join("gpumem"), None)?;
        let shown = gpumem.args(*view).env("GPUMEM_DIR", &ledgers).status();
        let shown = shown.map_err(|error| format!("gpumem: {error}"))?;
        if !shown.success() {
            let _ = child.kill();
            let _ = finish(child, None);
            return Err(format!("gpumem {}: {shown}", view[0]));
        }
    }
    let done = finish(child, Some(&ledgers))?;

    say_line!("\n## What the program did, by its own count");
    let last = done.stdout.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    let said: Value = serde_json::from_str(last).unwrap_or_default();
    for (text, name) in [
        ("steps of decoding", "steps"),
        ("steps a second", "steps_per_second"),
        ("allocations", "allocs"),
        ("frees", "frees"),
        ("bytes allocated", "bytes_allocated"),
        ("graphs captured", "captures"),
        ("graphs instantiated", "execs_created"),
        ("graph launches", "graph_launches"),
        ("updates of execs", "exec_updates"),
        ("updates that were refused", "exec_updates_failed"),
        ("wrong results", "failures"),
    ] {
        say_line!("{:>14}  {text}", said[name].to_string());
    }
    say_line!("\n## What the shim saw");
    say!("{}", done.stderr);
    if done.status != 0 || said["failures"] != 0 {
        return Err(format!("the demo ended with status {}", done.status));
    }
    if !unseen.is_empty() {
        say_line!("\nThe demo was over before gpumem could show: {}. Try ARGS=\"--seconds 10\".", unseen.join(", "));
    }
    let saw = done.stderr.lines().any(|line| line.starts_with("gpumem: ") && line.contains("allocations"));
    if saw { Ok(()) } else { Err("the shim reported nothing".into()) }
}

/// A path as people would type it here.
fn short(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
