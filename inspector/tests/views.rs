//! The views of a ledger that is known to the last byte, as text and as JSON.

mod common;
use common::*;
use gpumem_wire::kinds::{AllocKind, EventKind};
use gpumem_wire::layout::{AllocSlot, EventSlot, TableKind};
use serde_json::json;

/// A directory with one running process, this test.
fn one() -> Dir {
    let dir = dir();
    dir.put(me(), demo(me()));
    dir
}

#[test]
fn ps_lists_the_running_and_the_dead() {
    let dir = dir();
    let (sleeper, dead) = (Sleeper::start(), gone());
    dir.put(sleeper.id(), demo(sleeper.id()));
    dir.put(dead, demo(dead));
    let report = dir.json(&["ps"]);
    let rows = report["processes"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["pid"], &rows[0]["status"]), (&json!(sleeper.id().pid), &json!("running")));
    assert_eq!((&rows[1]["pid"], &rows[1]["status"]), (&json!(dead.pid), &json!("killed")));
    assert_eq!(
        rows[0]["live"],
        json!({"device": 96 * MIB, "host": 16 * MIB, "managed": 0, "parked": 0, "unknown": 0, "count": 3})
    );
    assert_eq!((&rows[0]["graphs"], &rows[0]["execs"]), (&json!(1), &json!(2)));
    assert_eq!(rows[1]["rss_bytes"], 320 * MIB, "of the dead: the last sample");
    assert_eq!(dir.json(&["ps", "--live"])["processes"].as_array().unwrap().len(), 1);
    let text = squeeze(&dir.ok(&["ps"]));
    assert!(
        text.starts_with("pid name status intercepted mode device managed host allocs graphs execs rss\n"),
        "{text}"
    );
    assert!(text.contains("demo-server running complete active 96.0 MiB 0 B 16.0 MiB 3 1 2 "), "{text}");
    assert!(text.contains("demo-server killed/_exit "), "{text}");
}

#[test]
fn the_said_goodbye_are_told_from_the_killed() {
    let dir = dir();
    let dead = gone();
    let mut ledger = demo(dead);
    ledger.header.exited_ns = ledger.header.created_ns + 40_000_000_000;
    dir.put(dead, ledger);
    let report = dir.json(&["stats"]);
    assert_eq!(report["process"]["life"], "exited");
    // Times count to its end: the last thing it did was 100 s after the beginning.
    assert_eq!(report["process"]["recorded_ns"], 100_000_000_000_u64);
}

#[test]
fn a_pid_that_came_back_is_another_process() {
    let dir = dir();
    let mut id = me();
    id.start_ticks -= 1;
    dir.put(id, demo(id));
    assert_eq!(dir.json(&["allocs", &id.pid.to_string()])["process"]["life"], "killed");
}

#[test]
fn a_ledger_of_an_earlier_boot_is_dead_though_the_pid_runs() {
    let dir = dir();
    let mut ledger = demo(me());
    ledger.header.boot_id = [7; 16];
    dir.put(me(), ledger);
    let report = dir.json(&["allocs"]);
    assert_eq!(report["process"]["life"], "killed");
}

#[test]
fn a_process_in_a_pid_namespace_out_of_sight_runs_while_it_beats() {
    let dir = dir();
    let id = gone();
    let mut ledger = demo(id);
    ledger.header.pid_ns = 1;
    ledger.header.heartbeat_ns = monotonic_ns();
    dir.put(id, ledger);
    assert_eq!(dir.json(&["stats"])["process"]["life"], "elsewhere");
}

#[test]
fn allocs_by_site_leave_the_runtime_out_and_address_space_too() {
    let dir = one();
    let report = dir.json(&["allocs"]);
    assert_eq!((&report["bytes"], &report["live"], &report["rows_total"]), (&json!(112 * MIB), &json!(3), &json!(2)));
    let row = &report["rows"][0];
    assert_eq!(row["key"], "demo-server+0x101");
    assert_eq!((&row["bytes"], &row["live"]), (&json!(80 * MIB), &json!(2)));
    assert_eq!((&row["total_bytes"], &row["total_allocs"]), (&json!(128 * MIB), &json!(3)));
    let text = squeeze(&dir.ok(&["allocs"]));
    assert!(
        text.contains(
            "\n80.0 MiB 71 % 2 128.0 MiB 3 1 min 30 s 1 min 10 s demo-server+0x101\n32.0 MiB 29 % 1 32.0 MiB 1 "
        ),
        "{text}"
    );
    assert!(text.contains("3 allocations live: 96.0 MiB device, 16.0 MiB host"), "{text}");
}

#[test]
fn allocs_group_by_everything() {
    let dir = one();
    let keys = |by: &str| -> Vec<String> {
        let report = dir.json(&["allocs", "--by", by]);
        report["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys("stack"), ["demo-server+0x101", "demo-server+0x201"]);
    assert_eq!(keys("kind"), ["device", "host-pinned", "vmm-reservation"]);
    assert_eq!(keys("size"), ["64.0 MiB", "32.0 MiB", "16.0 MiB"]);
    assert_eq!(keys("thread"), [format!("{} main-thread", me().pid)]);
    assert_eq!(keys("tag"), ["weights", "(no tag)"]);
    assert_eq!(keys("context"), ["context 1 on device 0: NVIDIA Test"]);
    assert_eq!(keys("device"), ["0: NVIDIA Test"]);
    let context = dir.json(&["allocs", "--by", "context"]);
    assert_eq!(context["rows"][0]["peak_bytes"], 128 * MIB);
}

#[test]
fn allocs_sort_and_filter() {
    let dir = one();
    let bytes = |args: &[&str]| -> Vec<u64> {
        let report = dir.json(&[&["allocs", "--all"], args].concat());
        report["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap() / MIB).collect()
    };
    assert_eq!(bytes(&[]), [64, 32, 16]);
    assert_eq!(bytes(&["--sort", "age"]), [64, 32, 16]);
    assert_eq!(bytes(&["--all-kinds"]), [512, 64, 32, 16]);
    assert_eq!(bytes(&["--kind", "host-pinned", "--kind", "vmm-reservation"]), [512, 16]);
    assert_eq!(bytes(&["--min-size", "32MiB"]), [64, 32]);
    assert_eq!(bytes(&["--min-size", "33mb"]), [64, 32]);
    assert_eq!(bytes(&["--older", "75"]), [64, 32]);
    assert_eq!(bytes(&["--older", "75s"]), [64, 32]);
    assert_eq!(bytes(&["--tag", "weights"]), [64]);
    assert_eq!(bytes(&["--thread", "1"]), [0; 0]);
    assert_eq!(bytes(&["-n", "1"]), [64]);
    let count = dir.json(&["allocs", "--sort", "count"]);
    assert_eq!(count["rows"][0]["live"], 2);
    let freed = dir.json(&["allocs", "--freed"]);
    assert_eq!((&freed["rows"][2]["live"], &freed["rows"][2]["total_bytes"]), (&json!(0), &json!(5 * MIB)));
    let all = dir.json(&["allocs", "--all"]);
    assert_eq!(all["rows"][2]["flags"], json!(["exported"]));
    assert_eq!(all["rows"][0]["tag"], "weights");
    assert_eq!(all["rows"][0]["address"], 0x7000_1000_0000_u64);
}

#[test]
fn graphs_and_execs_add_up() {
    let dir = one();
    let report = dir.json(&["graphs", "--all"]);
    let total = &report["total"];
    assert_eq!((&total["graphs"], &total["execs"], &total["exec_nodes"]), (&json!(1), &json!(2), &json!(14)));
    assert_eq!(total["nodes"], json!({"kernel": 12, "memcpy": 2}));
    assert_eq!((&total["launches"], &total["updates"], &total["failed_updates"]), (&json!(22), &json!(6), &json!(2)));
    assert_eq!(total["host_bytes_estimated"], 87 * 1024);
    assert_eq!(total["device_bytes_estimated"], 2 * MIB);
    let group = &report["groups"][0];
    assert_eq!((&group["key"], &group["execs_ever"]), (&json!("demo-server+0x301"), &json!(2)));
    assert_eq!(report["graphs"][0]["execs_live"], 1);
    let live: Vec<_> = report["execs"].as_array().unwrap().iter().map(|exec| exec["graph_live"].clone()).collect();
    assert_eq!(live, [json!(true), json!(false)]);
    let age = total["last_launch_age_ns"].as_u64().unwrap();
    assert!((10_000_000_000..20_000_000_000).contains(&age), "{age}");
    let text = squeeze(&dir.ok(&["graphs", "--all"]));
    assert!(text.contains("1 graph and 2 execs live, about 87.0 KiB of host and 2.0 MiB of device memory"), "{text}");
    assert!(text.contains("#99 (gone)"), "{text}");
    for by in ["stack", "thread", "tag", "context"] {
        assert_eq!(dir.json(&["graphs", "--by", by])["groups_total"], 1, "{by}");
    }
}

#[test]
fn stats_explain_the_device_and_the_host() {
    let dir = dir();
    let dead = gone();
    dir.put(dead, demo(dead));
    let report = dir.json(&["stats", "--samples"]);
    let device = &report["devices"][0];
    assert_eq!(device["used_bytes"], 300 * MIB);
    assert_eq!((&device["tracked_bytes"], &device["graph_bytes"]), (&json!(96 * MIB), &json!(2 * MIB)));
    assert_eq!(device["unexplained_bytes"], 202 * MIB);
    assert_eq!(device["uuid"], "30313233-3435-3637-3839-616263646566");
    let host = &report["host"];
    assert_eq!((&host["rss_bytes"], &host["rss_source"]), (&json!(320 * MIB), &json!("last-sample")));
    assert_eq!(host["explained_bytes"], 16 * MIB + 87 * 1024);
    assert_eq!(host["unexplained_bytes"], 320 * MIB - 16 * MIB - 87 * 1024);
    let kinds: Vec<_> = report["kinds"].as_array().unwrap().iter().map(|kind| kind["kind"].clone()).collect();
    assert_eq!(kinds, ["device", "host-pinned", "vmm-reservation"]);
    assert_eq!((&report["kinds"][0]["live"], &report["kinds"][0]["failures"]), (&json!(2), &json!(1)));
    let rss = report["growth"]["rows"].as_array().unwrap().iter().find(|row| row["what"] == "rss_bytes").unwrap();
    assert_eq!(rss["per_minute"].as_f64().unwrap().round() as u64, 72 * MIB);
    assert_eq!(rss["last_minute"], 120 * MIB, "the sample before the last minute is the first");
    assert_eq!(report["samples"].as_array().unwrap().len(), 3);
    assert_eq!(report["counters"]["update_failures"], 2);
    assert_eq!(report["settings"], json!(["GPUMEM_STACKS=32", "GPUMEM_EVENTS=4096"]));
}

#[test]
fn a_running_process_shows_its_own_resident_memory() {
    let report = one().json(&["stats"]);
    assert_eq!(report["host"]["rss_source"], "now");
    assert!(report["host"]["resident"]["rss"].as_u64().unwrap() > 0);
}

/// The time of day is that of this machine; other days have their date.
#[test]
fn events_say_when_by_the_clock() {
    let dir = dir();
    let mut ledger = begin(me());
    ledger.header.created_real_ns = 1_700_000_000 * SECOND;
    let time_ns = ledger.header.created_ns + 5 * SECOND;
    ledger.slots([EventSlot { kind: EventKind::PeakGrew as u8, time_ns, ..Default::default() }]);
    dir.put(me(), ledger);
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).env("TZ", "UTC0").arg("events");
    let text = answer(command).out;
    assert!(text.contains("2023-11-14 22:13:25"), "{text}");
}

#[test]
fn events_are_sentences() {
    let dir = one();
    let text = squeeze(&dir.ok(&["events"]));
    for line in [
        "context 1 on device 0: NVIDIA Test",
        "the driver is newer than any tested",
        "999.0 MiB of device memory refused with error 2 demo-server+0x101",
        "the capture on stream 0x6 gave no graph, error 901",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let problems = dir.json(&["events", "--problems"]);
    let kinds: Vec<_> = problems["events"].as_array().unwrap().iter().map(|event| event["severity"].clone()).collect();
    assert_eq!(kinds, ["warning", "error", "warning"]);
    assert_eq!(dir.json(&["events", "--kind", "alloc-failed"])["events_total"], 1);
    assert_eq!(dir.json(&["events", "-n", "1"])["events"][0]["seq"], 3);
}

#[test]
fn a_dump_shows_what_the_ledger_did() {
    let dir = dir();
    let dead = gone();
    dir.put(dead, demo(dead));
    let dump = dir.path().join("a b.gpumem");
    let file = dump.to_str().unwrap();
    let report = dir.json(&["dump", "-o", file]);
    assert_eq!((&report["allocs"], &report["execs"]), (&json!(4), &json!(2)));
    assert_eq!(report["bytes"], std::fs::metadata(&dump).unwrap().len());
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&dump).unwrap().permissions().mode() & 0o777, 0o600);
    for view in [
        &["allocs", "--all", "--all-kinds", "--stacks"][..],
        &["graphs", "--all"],
        &["stats", "--samples"],
        &["events"],
    ] {
        let mut before = dir.json(view);
        let mut after = dir.json(&[view, &[file]].concat());
        // Whose file it is and where the resident size comes from differ.
        before["process"] = json!(null);
        after["process"] = json!(null);
        before["host"]["rss_source"] = json!(null);
        after["host"]["rss_source"] = json!(null);
        assert_eq!(before, after, "{view:?}");
    }
    // A dump of a dump is the same again.
    let again = dir.path().join("again");
    dir.ok(&["dump", file, "-o", again.to_str().unwrap()]);
    assert_eq!(std::fs::read(&dump).unwrap().len(), std::fs::read(&again).unwrap().len());
    assert_eq!(dir.json(&["allocs", again.to_str().unwrap()])["process"]["life"], "dump");
}

#[test]
fn diff_names_what_grew() {
    let dir = dir();
    let dead = gone();
    let before = dir.put(dead, demo(dead));
    let after = dir.path().join("after.gpumem");
    let mut grown = demo(dead);
    let more = |serial| AllocSlot {
        stack: 2,
        bytes: 8 * MIB,
        serial,
        kind: AllocKind::Device as u8,
        context: 1,
        ..Default::default()
    };
    grown.slots([more(50), more(51)]);
    std::fs::write(&after, grown.finish()).unwrap();
    let (before, after) = (before.to_str().unwrap(), after.to_str().unwrap());
    let report = dir.json(&["diff", before, after]);
    let rows = report["allocs"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(
        (&rows[0]["site"], &rows[0]["bytes_change"], &rows[0]["count_change"]),
        (&json!("demo-server+0x201"), &json!(16 * MIB), &json!(2))
    );
    assert_eq!(report["graphs_total"], 0);
    let back = dir.json(&["diff", after, before, "--match-by", "function"]);
    assert_eq!(back["allocs"][0]["bytes_change"], -(16 * MIB as i64));
    let text = squeeze(&dir.ok(&["diff", before, after]));
    assert!(text.contains("+16.0 MiB 32.0 MiB 48.0 MiB +2 demo-server+0x201"), "{text}");
    assert!(text.contains("graphs and execs are the same at every site"), "{text}");
}

#[test]
fn top_without_a_terminal_says_what_prints_text() {
    let dir = one();
    for args in [&["top"][..], &["top", "--json"]] {
        let answer = dir.gpumem(args);
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{args:?}");
    }
    assert!(dir.gpumem(&["top"]).err.contains("gpumem stats and gpumem allocs print text"));
}

#[test]
fn a_process_that_holds_nothing_is_no_empty_table() {
    let dir = dir();
    dir.put(me(), begin(me()));
    assert!(dir.ok(&["allocs"]).ends_with("nothing is live; --freed shows the sites of what was freed\n"));
    assert!(dir.ok(&["graphs"]).ends_with("no graph was made so far\n"));
    assert!(dir.ok(&["events"]).ends_with("no events\n"));
    let one = one();
    assert!(one.ok(&["allocs", "--min-size", "1TiB"]).ends_with("none of them matches the filters\n"));
}

#[test]
fn a_damaged_ledger_does_not_widen_the_list() {
    let dir = dir();
    dir.put(me(), demo(me()));
    std::fs::write(dir.path().join("77-88.ledger"), [7; 5000]).unwrap();
    let text = squeeze(&dir.ok(&["ps"]));
    assert!(text.contains("\n77 ? unreadable\n"), "{text}");
    assert!(text.ends_with("it is not a ledger or dump of gpumem"), "{text}");
    assert_eq!(text.matches("77-88.ledger").count(), 1, "{text}");
    let clean = dir.ok(&["clean", "--dry-run"]);
    assert_eq!(clean.matches("77-88.ledger").count(), 1, "{clean}");
}

#[test]
fn what_was_not_seen_yet_is_nothing_to_grow_from() {
    use gpumem_wire::layout::SampleSlot;
    let dir = dir();
    let mut ledger = begin(me());
    let begun = ledger.header.created_ns;
    let used = [0, 100, 100, 130];
    ledger.slots(used.iter().enumerate().map(|(seq, mib)| SampleSlot {
        seq: seq as u64,
        time_ns: begun + 30_000_000_000 * seq as u64,
        device_used: mib * MIB,
        ..Default::default()
    }));
    dir.put(me(), ledger);
    let report = dir.json(&["stats"]);
    let rows = report["growth"]["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["what"] == "device_used_bytes").unwrap();
    assert_eq!(
        (&row["first"], &row["last"], &row["last_minute"]),
        (&json!(100 * MIB), &json!(130 * MIB), &json!(30 * MIB))
    );
    assert_eq!(
        row["per_minute"].as_f64().unwrap().round() as u64,
        60 * MIB,
        "over the later half since it was first seen"
    );
}

#[test]
fn prometheus_text_holds_all_processes() {
    let dir = dir();
    let sleeper = Sleeper::start();
    dir.put(me(), demo(me()));
    dir.put(sleeper.id(), demo(sleeper.id()));
    let text = dir.ok(&["export", "--format", "prometheus"]);
    for pid in [me().pid, sleeper.id().pid] {
        let line = format!(
            "gpumem_live_bytes{{pid=\"{pid}\",process=\"demo-server\",kind=\"device\",memory=\"device\"}} {}\n",
            96 * MIB
        );
        assert!(text.contains(&line), "{text}");
    }
    assert_eq!(text.matches("# TYPE gpumem_live_bytes gauge\n").count(), 1);
    let mut series = std::collections::BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(series.insert(name) && value.parse::<f64>().is_ok(), "{line}");
    }
    let none = common::dir().ok(&["export", "--format", "prometheus"]);
    assert!(
        none.contains("gpumem_processes{status=\"running\"} 0\n"),
        "no process is no error for a collector: {none}"
    );
    assert!(!none.contains("pid="), "{none}");
}

#[test]
fn csv_and_json_hold_every_allocation() {
    let dir = one();
    let csv = dir.ok(&["export", "--format", "csv"]);
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 4);
    assert!(lines.iter().all(|line| line.split(',').count() == lines[0].split(',').count()), "{csv}");
    let all = dir.json(&["export", "--format", "json"]);
    assert_eq!(all["allocations"].as_array().unwrap().len(), 4);
    assert_eq!(all["stacks"].as_array().unwrap().len(), 4);
    assert_eq!(all["stacks"][0]["frames"][1]["module"], "/opt/demo/demo-server");
}

#[test]
fn warnings_come_before_numbers() {
    let dir = dir();
    let mut ledger = demo(me());
    ledger.header.interception = gpumem_wire::kinds::Interception::Partial as u32;
    ledger.header.interception_reason = ledger.text("libcuda was used before the shim");
    let mut shard = vec![0; gpumem_wire::counters::PER_SHARD];
    shard[gpumem_wire::counters::DROPPED_RECORDS] = 12;
    ledger.words(TableKind::Counters, &shard);
    dir.put(me(), ledger);
    let text = dir.ok(&["allocs"]);
    assert!(text.contains("warning: interception is partial: libcuda was used before the shim"), "{text}");
    assert!(text.contains("warning: 12 records did not fit and are missing: raise GPUMEM_LEDGER_MAX"), "{text}");
}

#[test]
fn peaks_that_follow_one_another_are_one_line() {
    let dir = dir();
    let mut ledger = begin(me());
    let event = |seq, kind: EventKind, mib| EventSlot { seq, kind: kind as u8, a: mib * MIB, ..Default::default() };
    ledger.slots([
        event(0, EventKind::PeakGrew, 1),
        event(1, EventKind::PeakGrew, 2),
        event(2, EventKind::PeakGrew, 3),
        event(3, EventKind::PoolReleased, 4),
        event(4, EventKind::PeakGrew, 5),
    ]);
    dir.put(me(), ledger);
    let text = squeeze(&dir.ok(&["events"]));
    assert_eq!(text.matches("peak-grew").count(), 2, "{text}");
    assert!(text.contains("3.0 MiB of device memory live; not listed: 2 lower peaks before this one"), "{text}");
    assert!(text.ends_with("5.0 MiB of device memory live") && !text.contains("earlier"), "{text}");
    assert_eq!(dir.json(&["events"])["events"].as_array().unwrap().len(), 5);
}
