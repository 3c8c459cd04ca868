//! Claims about numbers: every total that gpumem prints is the sum of its parts, is the same in every view, and agrees
//! with the program's and the driver's count.

mod growth;
mod text;

use super::{Bench, Measured};
use gpumem_wire::kinds::Space;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// The number of random programs, and how often each is stopped to compare.
const SEEDS: u64 = 3;
const HOLDS: u64 = 2;
/// Operations between two comparisons.
const STEPS: u64 = 150;
/// Longer than the time between two samples of the control thread, by a tenth.
const SAMPLE: Duration = Duration::from_millis(1100);
/// How often an unchanged state is compared again while numbers differ, because some numbers are updated once a second.
const LOOKS: u32 = 3;

/// Pairs of totals that must be equal, with their names. The second total was printed elsewhere or added up.
#[derive(Default)]
struct Pairs {
    all: u64,
    differ: Vec<String>,
}

impl Pairs {
    fn equal(&mut self, what: impl AsRef<str>, one: u64, other: u64) {
        self.all += 1;
        if one != other {
            self.differ.push(format!("{}: {one} and {other}", what.as_ref()));
        }
    }

    fn shown(&mut self, text: &str, what: &str, wanted: &str) {
        self.all += 1;
        if !text.contains(wanted) {
            self.differ.push(format!("{what} does not say {wanted:?}"));
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(u64::MAX)
}

/// The sum of a field over rows.
fn sum(rows: &Value, field: &str) -> u64 {
    rows.as_array().map_or(u64::MAX, |rows| rows.iter().map(|row| number(&row[field])).sum())
}

/// The running program `totals`.
struct Client {
    child: Child,
    told: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Client {
    fn start(bench: &Bench<'_>, seed: u64, ledgers: &Path) -> Result<Self, String> {
        let mut command = bench.stage.command(&bench.stage.program("totals")?, Some(ledgers))?;
        // Memory that went back by itself between two views would change the totals.
        command.arg(seed.to_string()).env("GPUMEM_POOL_DECAY", "0").env("GPUMEM_GRAPH_IDLE", "1h");
        command.env("GPUMEM_GRAPH_CACHE", ["512", "4", "0"][seed as usize % 3]).env("SIM_DEVICES", "2");
        command.env("GPUMEM_FREE", ["strict", "deferred"][seed as usize / 3 % 2]);
        command.env("GPUMEM_POOL", if without_pool(seed) { "0" } else { "1" });
        command.env("GPUMEM_GROWTH_INTERVAL", "200ms");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("totals: {error}"))?;
        let (told, says) = (child.stdin.take().ok_or("no stdin")?, child.stdout.take().ok_or("no stdout")?);
        Ok(Self { child, told, says: BufReader::new(says) })
    }

    /// Sends the program a command and returns its answer.
    fn tell(&mut self, line: &str) -> Result<Value, String> {
        writeln!(self.told, "{line}").map_err(|error| format!("totals: {error}"))?;
        let mut said = String::new();
        self.says.read_line(&mut said).map_err(|error| format!("totals: {error}"))?;
        serde_json::from_str(&said).map_err(|error| format!("totals said {said:?}: {error}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// True if the pool is off, so that the driver's own blocks are what the program asked for.
fn without_pool(seed: u64) -> bool {
    seed % 4 == 3
}

/// Asks gpumem about the one process of a directory.
struct Views<'a> {
    bench: &'a Bench<'a>,
    ledgers: &'a Path,
}

impl Views<'_> {
    fn text(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.bench.stage.command(&self.bench.stage.kit.join("gpumem"), None)?;
        crate::stage::checked(command.arg("--dir").arg(self.ledgers).args(args))
    }

    fn json(&self, args: &[&str]) -> Result<Value, String> {
        let text = self.text(&[args, &["--json"]].concat())?;
        serde_json::from_str(&text).map_err(|error| format!("gpumem {args:?}: {error}"))
    }
}

/// In random states, compares each printed total with the sum of its parts and with the totals of other views.
///
/// # Errors
/// Says what could not be run.
pub fn equal(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let (first, states) = (bench.chance.seed, bench.chance.programs.unwrap_or(SEEDS));
    let mut notes = Vec::new();
    for state in 0..states {
        let seed = first.wrapping_add(state);
        bench.step(&format!("state {} of {states}, seed {seed}", state + 1));
        let ledgers = bench.ledgers();
        let mut client = Client::start(bench, seed, &ledgers)?;
        let views = Views { bench, ledgers: &ledgers };
        for hold in 1..=HOLDS {
            let said = client.tell(&format!("go {STEPS}"))?;
            let pairs = compared(&views, &said)?;
            measured.native += pairs.all as f64;
            measured.preloaded += (pairs.all - pairs.differ.len() as u64) as f64;
            let differ = pairs.differ.iter().map(|what| format!("seed {seed}, hold {hold}: {what}"));
            notes.extend(differ.inspect(|what| bench.step(what)));
        }
        drop(client.tell("end"));
    }
    notes.truncate(8);
    notes.insert(0, format!("seed {first}, {states} states"));
    measured.note = notes.join("; ");
    Ok(measured)
}

/// Compares an unchanged state, after the control thread has updated the ledger.
fn compared(views: &Views<'_>, said: &Value) -> Result<Pairs, String> {
    let held = Instant::now();
    for look in 1.. {
        let stats = views.json(&["stats", "--samples"])?;
        let newest = stats["samples"].as_array().and_then(|samples| samples.last()).map(|last| number(&last["age_ns"]));
        let begun_since = newest.is_some_and(|age| Duration::from_nanos(age) + SAMPLE < held.elapsed());
        if begun_since || held.elapsed() > 3 * SAMPLE {
            let mut pairs = Pairs::default();
            all(&mut pairs, views, &stats, said)?;
            if pairs.differ.is_empty() || look >= LOOKS {
                return Ok(pairs);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Err("it never rests".into())
}

fn all(pairs: &mut Pairs, views: &Views<'_>, stats: &Value, said: &Value) -> Result<(), String> {
    of_the_program(pairs, stats, said);
    live(pairs, views, stats)?;
    allocations(pairs, views, stats)?;
    graphs(pairs, views, stats)?;
    devices(pairs, stats);
    growth::samples(pairs, stats);
    growth::suspects(pairs, views, stats)?;
    text::equal(pairs, views, stats)?;
    page(pairs, views, stats)
}

/// Totals that the program and the driver count.
fn of_the_program(pairs: &mut Pairs, stats: &Value, said: &Value) {
    let live = &stats["live"];
    let count = |kinds: &[&str], at: usize| kinds.iter().map(|kind| number(&said[*kind][at])).sum::<u64>();
    let device = &["device", "async", "vmm", "array"][..];
    pairs.equal("device bytes and the program's", number(&live["device"]), count(device, 0));
    pairs.equal("managed bytes and the program's", number(&live["managed"]), count(&["managed"], 0));
    let host = &["host", "registered"][..];
    pairs.equal("host bytes and the program's", number(&live["host"]), count(host, 0));
    let kinds = [device, host, &["managed"]].concat();
    pairs.equal("allocations and the program's", number(&live["count"]), count(&kinds, 1));
    let of_nodes = stats["kinds"].as_array().into_iter().flatten().find(|row| row["kind"] == "graph-node");
    for (at, [counted, listed]) in [["live_bytes", "listed_bytes"], ["live", "listed"]].into_iter().enumerate() {
        let programs = number(&said["allocating_nodes"][at]);
        for field in [counted, listed] {
            let known = of_nodes.map_or(0, |row| number(&row[field]));
            pairs.equal(format!("{field} of nodes that allocate and the program's"), known, programs);
        }
    }
    let cache = &stats["cache"];
    let execs = number(&cache["handles"]) + number(&cache["pinned"]);
    if number(&cache["max_execs"]) != 0 {
        pairs.equal("handles and the program's execs", execs, number(&said["execs"]));
    }
    // A real driver says nothing of these.
    if let Some(driver) = said["memory_count"].as_u64() {
        let blocks = number(&live["count"]) + number(&stats["pool"]["idle_blocks"]);
        pairs.equal("allocations, idle blocks, and the driver's allocations", blocks, driver);
        pairs.equal("host bytes and the driver's", number(&live["host"]), number(&said["memory_on_host"]));
        pairs.equal("managed bytes and the driver's", number(&live["managed"]), number(&said["memory_managed"]));
    }
    let served = number(&stats["pool"]["hits"]) + number(&stats["pool"]["misses"]);
    if let Some(driver) = said["memory_on_devices"].as_u64().filter(|_| served == 0) {
        pairs.equal("device bytes and the driver's", number(&live["device"]), driver);
    }
    if let Some(driver) = said["live_execs"].as_u64() {
        let real = match number(&cache["max_execs"]) {
            0 => number(&said["execs"]),
            _ => number(&cache["real_execs"]) + number(&cache["pinned"]),
        };
        pairs.equal("real execs and the driver's", real, driver);
    }
}

/// Live bytes by kind of memory, in all views.
fn live(pairs: &mut Pairs, views: &Views<'_>, stats: &Value) -> Result<(), String> {
    let ps = views.json(&["ps"])?;
    let process = &ps["processes"][0];
    for memory in ["device", "host", "managed", "unknown", "count"] {
        let total = number(&stats["live"][memory]);
        pairs.equal(format!("ps, live {memory}"), total, number(&process["live"][memory]));
    }
    let mut sums: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for kind in stats["kinds"].as_array().into_iter().flatten() {
        let space = kind["space"].as_str().and_then(Space::from_name).unwrap_or(Space::None);
        let fields = ["live_bytes", "live", "listed_bytes", "listed"].map(|field| number(&kind[field]));
        let sum = sums.entry(space.name()).or_default();
        sum.iter_mut().zip(fields).for_each(|(sum, more)| *sum += more);
    }
    let mut count = 0;
    for space in [Space::Device, Space::Host, Space::Managed, Space::Unknown] {
        let [bytes, live, listed_bytes, listed] = sums.get(space.name()).copied().unwrap_or_default();
        pairs.equal(format!("kinds of {} memory", space.name()), number(&stats["live"][space.name()]), bytes);
        pairs.equal(format!("listed bytes of {} memory", space.name()), bytes, listed_bytes);
        pairs.equal(format!("listed allocations of {} memory", space.name()), live, listed);
        count += live;
    }
    pairs.equal("allocations of all kinds", number(&stats["live"]["count"]), count);
    let total = &views.json(&["graphs"])?["total"];
    pairs.equal("ps, graphs", number(&total["graphs"]), number(&process["graphs"]));
    pairs.equal("ps, execs", number(&total["execs"]), number(&process["execs"]));
    Ok(())
}

fn live_bytes(stats: &Value) -> u64 {
    ["device", "host", "managed", "unknown"].iter().map(|memory| number(&stats["live"][*memory])).sum()
}

/// Allocations in each grouping.
fn allocations(pairs: &mut Pairs, views: &Views<'_>, stats: &Value) -> Result<(), String> {
    for by in ["site", "stack", "kind", "size", "thread", "tag", "context", "device"] {
        let report = views.json(&["allocs", "--by", by])?;
        pairs.equal(format!("allocs --by {by}, bytes"), sum(&report["rows"], "bytes"), live_bytes(stats));
        let count = number(&stats["live"]["count"]);
        pairs.equal(format!("allocs --by {by}, live"), sum(&report["rows"], "live"), count);
        pairs.equal(format!("allocs --by {by}, its total"), number(&report["bytes"]), live_bytes(stats));
    }
    let report = views.json(&["allocs", "--all"])?;
    pairs.equal("allocs --all, bytes", sum(&report["rows"], "bytes"), live_bytes(stats));
    Ok(())
}

/// Graphs and execs: one by one, in groups, in total, and in the account of host memory.
fn graphs(pairs: &mut Pairs, views: &Views<'_>, stats: &Value) -> Result<(), String> {
    let host = &stats["host"];
    let in_stats = ["graph_bytes", "exec_bytes", "source_bytes"].iter().map(|part| number(&host[*part])).sum::<u64>();
    let parts = ["pinned_bytes", "registered_bytes"].iter().map(|part| number(&host[*part])).sum::<u64>();
    let own = number(&host["own_bytes"]);
    pairs.equal("explained host memory", number(&host["explained_bytes"]), in_stats + parts + own);
    pairs.equal("pinned and registered memory", number(&stats["live"]["host"]), parts);
    for by in ["site", "stack", "thread", "tag", "context", "class", "state"] {
        let report = views.json(&["graphs", "--by", by])?;
        let (cache, total) = (&report["cache"], &report["total"]);
        let parked = |memory: &str| number(&cache[format!("parked_{memory}_bytes_estimated")]);
        for memory in ["host", "device"] {
            let field = format!("{memory}_bytes_estimated");
            let groups = sum(&report["groups"], &field) + parked(memory);
            pairs.equal(format!("graphs --by {by}, {memory} bytes"), number(&total[&field]), groups);
        }
        for field in ["graphs", "execs", "resident", "folded", "gone", "source_bytes"] {
            let groups = sum(&report["groups"], field);
            pairs.equal(format!("graphs --by {by}, {field}"), number(&total[field]), groups);
        }
        pairs.equal("host bytes of graphs in stats", in_stats, number(&total["host_bytes_estimated"]));
        pairs.equal("sources in the cache's books", number(&cache["source_bytes"]), number(&total["source_bytes"]));
    }
    let report = views.json(&["graphs", "--all"])?;
    let (cache, total) = (&report["cache"], &report["total"]);
    let each = sum(&report["graphs"], "host_bytes_estimated") + sum(&report["execs"], "host_bytes_estimated");
    let parked = number(&cache["parked_host_bytes_estimated"]);
    pairs.equal("host bytes of each graph and exec", number(&total["host_bytes_estimated"]), each + parked);
    let handles = ["resident", "folded", "gone"].iter().map(|state| number(&cache[*state])).sum::<u64>();
    pairs.equal("handles of the graph cache", number(&cache["handles"]), handles);
    let pinned = cache["pinned_by"].as_object().map_or(0, |by| by.values().map(number).sum());
    if number(&cache["max_execs"]) != 0 {
        pairs.equal("pinned handles", number(&cache["pinned"]), pinned);
    }
    let real = number(&cache["resident"]) + number(&cache["parked_execs"]);
    pairs.equal("real execs of the graph cache", number(&cache["real_execs"]), real);
    let device: u64 = sum(&stats["devices"], "graph_bytes");
    pairs.equal("device bytes of graphs", number(&total["device_bytes_estimated"]), device);
    Ok(())
}

/// Devices and the pool.
fn devices(pairs: &mut Pairs, stats: &Value) {
    let (devices, pool) = (&stats["devices"], &stats["pool"]);
    let spilled = sum(devices, "spilled_bytes");
    pairs.equal("device memory of all devices", number(&stats["live"]["device"]), sum(devices, "tracked_bytes"));
    pairs.equal("spilled memory", number(&pool["spilled_live_bytes"]), spilled);
    let contexts = &pool["in_contexts"];
    pairs.equal("live bytes of contexts", number(&stats["live"]["device"]), sum(contexts, "live_bytes"));
    for field in ["idle_bytes", "idle_blocks"] {
        pairs.equal(format!("{field} of contexts"), number(&pool[field]), sum(contexts, field));
    }
    pairs.equal("idle bytes of devices", number(&pool["idle_bytes"]), sum(devices, "idle_bytes"));
    for context in contexts.as_array().into_iter().flatten() {
        let (bytes, blocks) = (number(&context["idle_bytes"]), number(&context["idle_blocks"]));
        pairs.equal("idle bytes are in blocks", u64::from(bytes > 0), u64::from(blocks > 0));
    }
}

/// The page for Prometheus.
fn page(pairs: &mut Pairs, views: &Views<'_>, stats: &Value) -> Result<(), String> {
    let text = views.text(&["export", "--format", "prometheus"])?;
    let sum = |name: &str| -> u64 {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} "));
        lines.map(|(_, value)| value.parse::<f64>().unwrap_or(f64::MAX) as u64).sum()
    };
    let host = ["graph_bytes", "exec_bytes", "source_bytes"].iter().map(|part| number(&stats["host"][*part])).sum();
    let kinds = stats["kinds"].as_array().into_iter().flatten().filter(|kind| kind["space"] != "none");
    for (name, total) in [
        ("gpumem_live_bytes", kinds.map(|kind| number(&kind["live_bytes"])).sum()),
        ("gpumem_device_tracked_bytes", number(&stats["live"]["device"])),
        ("gpumem_device_live_bytes", ["device", "managed"].map(|memory| number(&stats["live"][memory])).iter().sum()),
        ("gpumem_pool_live_bytes", number(&stats["live"]["device"])),
        ("gpumem_pool_idle_bytes", number(&stats["pool"]["idle_bytes"])),
        ("gpumem_device_idle_bytes", number(&stats["pool"]["idle_bytes"])),
        ("gpumem_site_live_bytes", live_bytes(stats)),
        ("gpumem_live_allocations", number(&stats["live"]["count"])),
        ("gpumem_pool_idle_blocks", number(&stats["pool"]["idle_blocks"])),
        ("gpumem_graph_host_bytes", host),
        ("gpumem_graph_handles", number(&stats["cache"]["handles"])),
        ("gpumem_graph_real_execs", number(&stats["cache"]["real_execs"])),
    ] {
        pairs.equal(name, sum(name), total);
    }
    Ok(())
}
