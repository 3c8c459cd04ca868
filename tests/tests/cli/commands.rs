//! Commands of `gpumem` that change a running process.

use gpumem_tests::harness::run::Running;
use gpumem_tests::harness::{client, program};
use gpumem_wire::settings;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn held() -> Running {
    let running = client("held").waits().start(true);
    running.says("held");
    running
}

/// The value of a variable in force, and where it came from.
fn get(running: &Running, name: &str) -> Value {
    let row = running.gpumem(&["get", &running.pid().to_string(), name])["variables"][0].clone();
    json!([row["value"], row["source"]])
}

#[test]
fn the_bounds_of_the_graph_cache_change_too() {
    let running = held();
    let pid = running.pid().to_string();
    for change in ["GRAPH_CACHE=4", "graph_cache_bytes=64MiB", "GPUMEM_GRAPH_IDLE=250ms"] {
        running.gpumem(&["set", &pid, change]);
    }
    let cache = running.gpumem(&["stats", &pid])["cache"].clone();
    let bounds = ["max_execs", "max_bytes", "idle_ns"].map(|field| cache[field].as_u64().unwrap());
    assert_eq!(bounds, [4, 64 * MIB, 250_000_000]);
    running.gpumem(&["set", &pid, "GRAPH_CACHE=default"]);
    assert_eq!(running.gpumem(&["stats", &pid])["cache"]["max_execs"], json!(512));
    let said = running.gpumem(&["events", &pid]).to_string();
    assert!(said.contains("gpumem set GPUMEM_GRAPH_CACHE_BYTES=64MiB"), "{said}");
    running.finish().ok();
}

/// Each variable that can change takes a value, says so, and can be reset. If only one process runs, it need not be named.
#[test]
fn every_variable_that_can_change_does() {
    let running = held();
    for setting in settings::live() {
        let value = match setting.kind {
            settings::Kind::Bool => if setting.default == "1" { "0" } else { "1" }.to_owned(),
            settings::Kind::Choice(words) => words[words.len() - 1].to_owned(),
            settings::Kind::Time => "7s".to_owned(),
            settings::Kind::Count { .. } => "7".to_owned(),
            settings::Kind::Size { .. } => "777MiB".to_owned(),
            settings::Kind::Group => "seven:7MiB".to_owned(),
            settings::Kind::Text | settings::Kind::Name | settings::Kind::Path => "seven".to_owned(),
        };
        let set = running.gpumem(&["set", &format!("{}={value}", setting.name)]);
        assert_eq!((&set["old"], &set["value"]), (&json!(setting.default), &json!(value)), "{}", setting.name);
        assert_eq!(get(&running, setting.name), json!([value, "set"]), "{}", setting.name);
        let set = running.gpumem(&["set", &format!("{}=default", setting.name)]);
        assert_eq!((&set["old"], &set["value"]), (&json!(value), &json!(setting.default)), "{}", setting.name);
    }
    for setting in settings::ALL.iter().filter(|setting| setting.when == settings::When::Start) {
        let refused = running.refused(&["set", &format!("{}=1", setting.name)]);
        assert!(refused.contains("read once, when the process starts"), "{refused}");
    }
    let ran = running.finish().ok();
    ran.ledger().sound().complete().balanced();
}

/// A limit that everything live is over already would fail every request: it takes a word more.
#[test]
fn a_limit_below_what_is_live_is_refused() {
    let running = held();
    let pid = running.pid().to_string();
    // 210 blocks of 64 KiB are live.
    let refused = running.refused(&["set", &pid, "LIMIT=8MiB"]);
    assert!(refused.contains("13.1 MiB are live on device 0, more than a limit of 8.0 MiB"), "{refused}");
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(get(&running, "LIMIT"), json!(["", "default"]), "nothing was written down");
    running.gpumem(&["set", &pid, "LIMIT=16MiB"]);
    running.gpumem(&["set", "--force", &pid, "LIMIT=8MiB"]);
    assert_eq!(get(&running, "LIMIT"), json!(["8MiB", "set"]));
    let pool = running.gpumem(&["stats", &pid])["pool"].clone();
    assert_eq!(pool["in_contexts"][0]["limit_bytes"], 8 * MIB);
    running.finish().ok();
}

/// A limit holds if it is set before the pool is needed, and if there is no pool at all.
#[test]
fn a_limit_that_is_set_while_it_runs_holds() {
    for pool in ["1", "0"] {
        let mut running = program("pool_aside").env("GPUMEM_POOL", pool).waits().start(true);
        running.says("ready");
        let pid = running.pid().to_string();
        let live = running.gpumem(&["stats", &pid])["live"]["device"].as_u64().unwrap();
        running.gpumem(&["set", &pid, &format!("LIMIT={}", (live + 1).max(MIB))]);
        running.tell("keep");
        let ran = running.finish();
        let refusals = ran.ledger().counter(gpumem_wire::counters::LIMIT_REFUSALS);
        assert_eq!(refusals, 1, "GPUMEM_POOL={pool}: {} {}", ran.out, ran.err);
    }
}

/// A peak that grows by small parts is told as one that grows by large ones.
#[test]
fn a_peak_that_creeps_is_told() {
    let running = held();
    let pid = running.pid().to_string();
    let peak = running.gpumem(&["stats", &pid])["pool"]["in_contexts"][0]["peak_bytes"].as_u64().unwrap();
    let events = running.gpumem(&["events", "--kind", "peak-grew", &pid])["events"].as_array().unwrap().clone();
    let told = events.last().expect("an event")["a"].as_u64().unwrap();
    assert!(told <= peak && peak <= told / 8 * 9, "a peak of {peak}, and the last one told is {told}");
    assert!(events.len() < 64, "{} events", events.len());
    running.finish().ok();
}

/// Ages in the ledger of a dead process count to its end, and do not change.
#[test]
fn the_dead_do_not_age() {
    let running = held();
    let pid = running.pid().to_string();
    let dir = running.ledger().path.parent().expect("a directory").to_owned();
    running.signal(libc::SIGKILL);
    let ran = running.finish();
    let ages = |view: &[&str]| {
        let args = [view, &[&pid]].concat();
        let report = gpumem_tests::harness::ledger::gpumem(&dir, &args);
        let mut found = Vec::new();
        collect(&report, &mut found);
        assert!(!found.is_empty(), "{args:?}");
        found
    };
    let views = [&["allocs", "--all"][..], &["graphs", "--all"], &["events"], &["stats", "--samples"]];
    let before = views.map(ages);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(views.map(ages), before);
    drop(ran);
}

/// Every field that is an age.
fn collect(value: &Value, into: &mut Vec<u64>) {
    match value {
        Value::Object(fields) => {
            let ages = fields.iter().filter(|(name, _)| name.ends_with("age_ns"));
            into.extend(ages.filter_map(|(_, age)| age.as_u64()));
            fields.values().for_each(|value| collect(value, into));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
        _ => {}
    }
}
