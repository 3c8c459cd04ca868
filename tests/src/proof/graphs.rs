//! Claims about the graph cache: programs get the same results, and what graphs hold is bounded.

use super::tester::hunted;
use super::{Bench, Measured, cost};
use crate::stage::{Run, finish, ledger_of};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

/// Bound of `graphs.execs_bounded`.
pub const CAP: f64 = 8.0;
/// Longest until the first launch of a known class of 1000 nodes has returned, against native.
const READY_RATIO: f64 = 0.21;

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or(f64::NAN)
}

fn json_lines(text: &str) -> impl DoubleEndedIterator<Item = Value> + '_ {
    text.lines().filter(|line| line.starts_with('{')).filter_map(|line| serde_json::from_str(line).ok())
}

/// Random graph programs, natively and preloaded, by the differential tester beside this binary.
pub fn results_equal(bench: &Bench<'_>) -> Result<Measured, String> {
    hunted(bench, "differ", &["--caps", "1,2,8"])
}

/// The demo with three slots and every graph kept: execs that are live at the end, by its own count,
/// and the most real ones that there were at any time under the cache.
pub fn execs_bounded(bench: &Bench<'_>) -> Result<Measured, String> {
    const ARGUMENTS: &str =
        "--slots 3 --never-evict --shapes 40 --nodes 6 --iterations 320 --samples 16 --prefill 1 --hold 0.2";
    let ledgers = bench.ledgers();
    let mut command = bench.stage.command(&bench.stage.program("demo")?, Some(&ledgers))?;
    command.env("GPUMEM_GRAPH_CACHE", CAP.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.args(ARGUMENTS.split(' ')).spawn().map_err(|error| format!("demo: {error}"))?;
    let (mut most, mut made) = (0.0_f64, 0.0_f64);
    let mut look = |ledger: &Path| {
        // While it is being made it cannot be read.
        let Ok(stats) = bench.stage.inspect("stats", ledger) else { return };
        let counter = |name: &str| number(&stats["counters"][name]);
        made = counter("real_execs_made");
        most = most.max(made - counter("real_execs_ended"));
    };
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if let Some(ledger) = ledger_of(&ledgers, child.id()) {
            look(&ledger);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = finish(child, Some(&ledgers))?;
    look(done.ledger.as_deref().ok_or("the demo left no ledger")?);
    if done.status != 0 {
        return Err(format!("the demo ended with status {}: {}", done.status, done.stderr.trim()));
    }
    // The simulator tells by itself.
    let seen = json_lines(&done.stdout).filter_map(|line| line["live_execs"].as_f64()).fold(0.0, f64::max);
    let held =
        json_lines(&done.stdout).find(|line| line["holding"] == true).ok_or("the demo did not say what it holds")?;
    if made.is_nan() || made < 1.0 {
        return Err("no exec was under the graph cache: nothing was measured".into());
    }
    Ok(Measured {
        native: number(&held["execs_created"]) - number(&held["execs_destroyed"]),
        preloaded: most.max(seen),
        note: format!("the ledger says {most}, {made} made in all"),
        ..Measured::default()
    })
}

/// Measurements of graphmem, in pairs.
struct Pairs {
    native: Vec<Value>,
    folded: Vec<Value>,
    kept: Vec<Value>,
}

/// 200 graphs × 1000 nodes at a cap of 16: measured once for the claims that rest on it.
fn pairs(bench: &Bench<'_>) -> Result<&'static Pairs, String> {
    static PAIRS: OnceLock<Result<Pairs, String>> = OnceLock::new();
    let measure = || {
        let mut pairs = Pairs { native: vec![], folded: vec![], kept: vec![] };
        for pair in 0..8 {
            bench.step(&format!("graphmem, pair {} of 8", pair + 1));
            for preloaded in [pair % 2 == 1, pair % 2 == 0] {
                let (fold, into) = if preloaded { (Some("1"), &mut pairs.folded) } else { (None, &mut pairs.native) };
                into.push(graphmem(bench, fold)?);
            }
        }
        for _ in 0..2 {
            pairs.kept.push(graphmem(bench, Some("0"))?);
        }
        Ok(pairs)
    };
    PAIRS.get_or_init(measure).as_ref().map_err(Clone::clone)
}

/// One run, preloaded with this GPUMEM_GRAPH_FOLD, or native.
fn graphmem(bench: &Bench<'_>, fold: Option<&str>) -> Result<Value, String> {
    let ledgers = fold.map(|_| bench.ledgers());
    let mut command = bench.stage.command(&bench.stage.program("graphmem")?, ledgers.as_deref())?;
    if let Some(fold) = fold {
        command.env("GPUMEM_GRAPH_CACHE", "16").env("GPUMEM_GRAPH_FOLD", fold);
    }
    command.args(["--graphs", "200", "--nodes", "1000", "--rounds", "2", "--launches", "200", "--keep"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Run { status, stdout, stderr, .. } = finish(child.map_err(|error| format!("graphmem: {error}"))?, None)?;
    let said = json_lines(&stdout).next_back().filter(|said| status == 0 && said["wrong"] == 0);
    said.ok_or_else(|| format!("graphmem: status {status}: {} {}", stdout.trim(), stderr.trim()))
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn middle(of: &[Value], name: &str) -> f64 {
    median(of.iter().map(|figures| number(&figures[name])))
}

fn ratio(pairs: &Pairs, name: &str) -> f64 {
    median(pairs.native.iter().zip(&pairs.folded).map(|(native, ours)| number(&ours[name]) / number(&native[name])))
}

/// How the process grew, MB.
pub fn host_growth(bench: &Bench<'_>) -> Result<Measured, String> {
    let pairs = pairs(bench)?;
    let [native, folded, kept] =
        [&pairs.native, &pairs.folded, &pairs.kept].map(|of| middle(of, "host_mib") * 1.048_576);
    // The program's own graphs are 400 MB of that.
    let note = format!("with GPUMEM_GRAPH_FOLD=0 {kept:.0} MB");
    Ok(Measured { native, preloaded: folded, note, ..Measured::default() })
}

/// How the used memory of the device grew, MiB.
pub fn device_growth(bench: &Bench<'_>) -> Result<Measured, String> {
    let pairs = pairs(bench)?;
    let [native, folded, kept] = [&pairs.native, &pairs.folded, &pairs.kept].map(|of| middle(of, "device_mib"));
    Ok(Measured { native, preloaded: folded.max(kept), ..Measured::default() })
}

/// Instantiates of a class that was seen before, µs.
pub fn instantiate_ratio(bench: &Bench<'_>) -> Result<Measured, String> {
    let pairs = pairs(bench)?;
    let name = "instantiate_us";
    let [native, folded] = [&pairs.native, &pairs.folded].map(|of| middle(of, name));
    let ready = ratio(pairs, "ready_us");
    let [from, to] = [&pairs.native, &pairs.folded].map(|of| middle(of, "ready_us"));
    Ok(Measured {
        native,
        preloaded: folded,
        ratio: Some(ratio(pairs, name)),
        broken: ready > READY_RATIO,
        note: format!("until the first launch returns {to:.0} µs of {from:.0}, {ready:.3} x, at most {READY_RATIO}"),
        ..Measured::default()
    })
}

/// Launches of one exec of 1000 nodes, ns of the calling thread. Of a real driver each is behind a wait for the
/// one before, and varies by 200 ns.
pub fn launch_ratio(bench: &Bench<'_>) -> Result<Measured, String> {
    let figure = |driver| -> Result<Value, String> {
        let all = cost::figures(bench, driver, &["graphs", "1000"], &[])?;
        let found = all.into_iter().find(|figure| figure["cost"] == "cuGraphLaunch, resident");
        found
            .filter(|figure| figure["hooked"] == true)
            .ok_or("cuGraphLaunch is not hooked: nothing was measured".into())
    };
    let (null, real) = (figure(cost::Driver::Null)?, figure(cost::Driver::Real)?);
    let native = number(&real["native_ns"]);
    Ok(Measured {
        ratio: Some((native + number(&real["added_ns"])) / native),
        note: cost::beside(&real),
        ..cost::measured(&null)
    })
}
