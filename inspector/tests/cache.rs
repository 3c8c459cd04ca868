//! The graph cache in every view: handles, their states, real execs against their bounds, sources,
//! what is parked.

mod common;
use common::cache::*;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{ExecState, Pinned};
use gpumem_wire::layout::{ExecSlot, exec_state};
use serde_json::{Value, json};

/// A directory with one running process, this test.
fn one() -> Dir {
    let dir = dir();
    dir.put(me(), cached(me()));
    dir
}

fn column(rows: &Value, field: &str) -> Vec<Value> {
    rows.as_array().unwrap().iter().map(|row| row[field].clone()).collect()
}

#[test]
fn totals_say_what_is_held_against_the_bounds() {
    let cache = one().json(&["stats"])["cache"].clone();
    for (field, expected) in [
        ("state", json!("on")),
        ("max_execs", json!(4)),
        ("max_bytes", json!(64 * MIB)),
        ("idle_ns", json!(1_000_000_000)),
        ("handles", json!(5)),
        ("resident", json!(2)),
        ("folded", json!(2)),
        ("gone", json!(1)),
        ("pinned", json!(1)),
        ("pinned_by", json!({"event-nodes": 1})),
        ("classes", json!(2)),
        ("real_execs", json!(3)),
        ("real_bytes_estimated", json!(21 * MIB)),
        ("parked_execs", json!(1)),
        ("parked_host_bytes_estimated", json!(5 * MIB)),
        ("parked_device_bytes_estimated", json!(2 * MIB)),
        ("source_bytes", json!(241 * 1024)),
        ("hits", json!(170 - 13 - 4)),
        ("retarget_mean_ns", json!(300_000)),
        ("instantiations", json!(4)),
        ("evictions", json!(7)),
        ("folded_graphs", json!(1)),
        ("folded_graph_bytes", json!(4096)),
        ("saved_ns", json!(60_000_000)),
    ] {
        assert_eq!(cache[field], expected, "{field}");
    }
    assert!(cache.get("thrash").is_none() && cache.get("reason").is_none());
    let text = squeeze(&one().ok(&["stats", "--all"]));
    for line in [
        "graph cache",
        "on the program's exec handles are gpumem's own",
        "1 pinned handles 1 event-nodes",
        "5 virtual handles 2 resident, 2 folded, 1 gone, in 2 classes",
        "3 real execs at most 4 (GPUMEM_GRAPH_CACHE)",
        "1 of them parked ~7.0 MiB, used by no handle now; the next handle of their class takes one",
        "21.0 MiB real execs, host and device estimated; at most 64.0 MiB (GPUMEM_GRAPH_CACHE_BYTES)",
        "241.0 KiB sources copies of the graphs behind the handles, to build execs again",
        "1 folded graphs they take 4.0 KiB; folded so far: 3, built again: 2",
        "90 % hits launches whose graph was ready to run",
        "13 retargets 300.0 µs each, 13,000 nodes set",
        "4 instantiates 1 above a bound, 2 for execs that retargets had slowed",
        "7 evictions 2 execs reused after a destroy",
        "60.0 ms saved estimated: the time of instantiates that were not needed, minus 5.0 ms that launches spent on getting their execs",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    // Without bounds of bytes that is said too.
    let unbound = |ledger: &mut Composer| ledger.header.settings = ledger.text("GPUMEM_GRAPH_CACHE_BYTES=0");
    let mut ledger = cached(me());
    unbound(&mut ledger);
    let dir = dir();
    dir.put(me(), ledger);
    let text = squeeze(&dir.ok(&["stats", "--all"]));
    assert!(text.contains("at most 512 (GPUMEM_GRAPH_CACHE)\n"), "{text}");
    assert!(text.contains("estimated; no bound (GPUMEM_GRAPH_CACHE_BYTES)"), "{text}");
}

#[test]
fn the_folded_hold_their_sources_alone() {
    let dir = one();
    let report = dir.json(&["graphs", "--all"]);
    let execs = &report["execs"];
    let of = |serial: u64| execs.as_array().unwrap().iter().find(|exec| exec["serial"] == serial).unwrap().clone();
    let bytes =
        |exec: &Value| [&exec["host_bytes_estimated"], &exec["device_bytes_estimated"]].map(|n| n.as_u64().unwrap());
    assert_eq!(bytes(&of(11)), [5 * MIB + 60 * 1024, 2 * MIB]);
    assert_eq!(bytes(&of(13)), [60 * 1024, 0]);
    assert_eq!(of(13)["real_bytes_estimated"], 7 * MIB);
    assert_eq!(bytes(&of(15)), [1024, 0]);
    assert_eq!(bytes(&of(16)), [3 * MIB, MIB]);
    assert_eq!(column(&report["graphs"], "host_bytes_estimated"), [json!(MIB), json!(4096)]);
    assert_eq!(column(&report["graphs"], "folded_bytes"), [json!(0), json!(4096)]);
    // All of it, with the exec that is parked: three real ones and the pinned one.
    let sources = (4 * 60 + 1) * 1024;
    let total = bytes(&report["total"]);
    assert_eq!(total, [MIB + 4096 + 3 * 5 * MIB + 3 * MIB + sources, 3 * 2 * MIB + MIB]);
    assert_eq!(bytes(&report["groups"][0]), [total[0] - 5 * MIB, total[1] - 2 * MIB], "parked ones are of no group");
    let stats = dir.json(&["stats"]);
    let host = &stats["host"];
    assert_eq!((&host["graph_bytes"], &host["exec_bytes"]), (&json!(MIB + 4096), &json!(18 * MIB)));
    assert_eq!((&host["source_bytes"], &host["explained_bytes"]), (&json!(sources), &json!(total[0])));
    assert_eq!(stats["devices"][0]["graph_bytes"], total[1]);
    assert_eq!(stats["devices"][0]["unexplained_bytes"], 300 * MIB - total[1]);
    assert_eq!(stats["cache"]["parked_execs"], 1);
}

#[test]
fn a_handle_shows_what_the_cache_did_for_it() {
    let dir = one();
    let report = dir.json(&["graphs", "--all"]);
    let of = |serial: u64| {
        let exec = report["execs"].as_array().unwrap().iter().find(|exec| exec["serial"] == serial).unwrap();
        ["state", "class", "hits", "retargets", "instantiations", "evictions", "failed_updates", "saved_ns"]
            .map(|field| exec[field].clone())
    };
    let class = json!("aaaa000011112222");
    assert_eq!(
        of(11),
        [json!("resident"), class.clone(), json!(97), json!(2), json!(1), json!(1), json!(0), json!(10_000_000)]
    );
    assert_eq!(of(13), [json!("folded"), class, json!(2), json!(8), json!(0), json!(6), json!(1), json!(40_000_000)]);
    assert_eq!(of(14)[2], 0, "the first launch may be instantiated and retargeted: not below 0");
    assert_eq!((&of(16)[0], &of(16)[1], &of(16)[2]), (&json!("native"), &json!(""), &Value::Null));
    let pinned = report["execs"].as_array().unwrap().iter().find(|exec| exec["serial"] == 16).unwrap();
    assert_eq!((&pinned["pinned"], &pinned["pinned_why"]), (&json!("event-nodes"), &json!(Pinned::EventNodes.why())));
    let group = &report["groups"][0];
    assert_eq!((&group["resident"], &group["folded"], &group["gone"]), (&json!(2), &json!(2), &json!(1)));
    assert_eq!((&group["hits"], &group["retargets"], &group["evictions"]), (&json!(148), &json!(11), &json!(7)));
    assert_eq!((&group["saved_ns"], &group["pinned_by"]), (&json!(50_000_000), &json!({"event-nodes": 1})));
    let text = squeeze(&dir.ok(&["graphs", "--all"]));
    for line in [
        "graph cache on: 3 real execs (at most 4), ~21.0 MiB (at most 64.0 MiB), 1 of them parked\n",
        "\n5 handles: 2 resident, 2 folded, 1 gone; sources 241.0 KiB; 1 pinned (1 event-nodes)\n",
        "\n90 % of launches were ready to run, 13 retargets of 300.0 µs, 4 instantiates, 7 evictions; about 60.0 ms of time saved\n",
        "\n0x10d folded aaaa0000 #1 60.0 KiB 0 B 60.0 KiB ",
        "\n0x110 native: event-nodes #1 3.0 MiB 1.0 MiB 0 ns 5 ",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn classes_and_states_are_groups() {
    let dir = one();
    let report = dir.json(&["graphs", "--by", "class"]);
    let rows: Vec<_> = report["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["key"].as_str().unwrap(), row["execs"].as_u64().unwrap(), row["resident"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        rows,
        [("aaaa000011112222", 3, 2), ("(no class)", 1, 0), ("(graphs)", 0, 0), ("bbbb000033334444", 2, 0)]
    );
    let keys = |by: &[&str]| column(&dir.json(&[&["graphs", "--by", "state"], by].concat())["groups"], "key");
    assert_eq!(keys(&[]), ["resident", "native: event-nodes", "(graphs)", "folded", "gone"]);
    assert_eq!(keys(&["--pinned"]), ["native: event-nodes"]);
    assert_eq!(keys(&["--state", "folded", "--state", "gone"]), ["folded", "gone"]);
    assert_eq!(keys(&["--state", "resident", "--pinned"]), [""; 0]);
    let chosen = dir.json(&["graphs", "--all", "--state", "folded"]);
    assert_eq!(column(&chosen["execs"], "serial"), [13, 14]);
    assert!(chosen.get("graphs").is_none(), "a graph has no such state");
    assert_eq!(chosen["total"]["execs"], 6, "the total stays that of the process");
    let answer = dir.gpumem(&["graphs", "--state", "lost"]);
    assert_eq!(answer.code, 2);
    assert!(answer.err.contains("resident"), "{}", answer.err);
}

#[test]
fn a_ledger_without_the_cache_has_no_word_of_it() {
    let dir = dir();
    dir.put(me(), demo(me()));
    for view in [&["graphs", "--all"][..], &["stats"]] {
        let text = dir.ok(view);
        for word in ["graph cache", "resident  folded", "retarget", "native"] {
            assert!(!text.contains(word), "{view:?}: {word}\n{text}");
        }
    }
    let cache = &dir.json(&["stats"])["cache"];
    assert_eq!((&cache["state"], &cache["reason"]), (&json!("unused"), &json!("no exec came under it")));
    assert_eq!((&cache["hits"], &cache["max_execs"]), (&json!(0), &json!(512)));
}

#[test]
fn diff_and_exports_hold_the_cache() {
    let dir = dir();
    let file = |name: &str, ledger: Composer| {
        let path = dir.path().join(name);
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let before = file("before", cached(me()));
    let mut grown = cached(me());
    for (index, value) in [
        (counters::HANDLES_MADE, 3),
        (counters::REAL_EXECS_MADE, 1),
        (counters::REAL_BYTES_ADDED, 7 * MIB),
        (counters::SOURCE_BYTES_ADDED, 2048),
        (counters::RETARGETS, 20),
        (counters::EVICTIONS, 19),
        (counters::LAUNCHES, 100),
    ] {
        count(&mut grown, index, value);
    }
    let folded = exec_state(ExecState::Folded, Pinned::None);
    grown.slots([ExecSlot {
        stack: 1,
        serial: 90,
        state: folded,
        host_bytes: 5 * MIB,
        source_bytes: 2048,
        ..Default::default()
    }]);
    let after = file("after", grown);
    let text = dir.ok(&["diff", &before, &after]);
    let line = "graph cache: real execs +1 (~+7.0 MiB, parked +1), handles +3, sources +2.0 KiB; retargets +20, instantiates +1, evictions +19, launches +100\n";
    assert!(text.contains(line), "{text}");
    let report = dir.json(&["diff", &before, &after]);
    assert_eq!(
        (&report["before"]["cache"]["real_execs"], &report["after"]["cache"]["real_execs"]),
        (&json!(3), &json!(4))
    );
    assert_eq!(report["graphs"][0]["bytes_change"], 2048, "a handle that is folded adds its source");

    let metrics = dir.ok(&["export", "--format", "prometheus", &before]);
    let pid = me().pid;
    for (name, label, value) in [
        ("gpumem_graph_cache_on", "", 1),
        ("gpumem_graph_handles", ",state=\"folded\"", 2),
        ("gpumem_graph_pinned", ",reason=\"event-nodes\"", 1),
        ("gpumem_graph_real_execs", "", 3),
        ("gpumem_graph_real_execs_max", "", 4),
        ("gpumem_graph_real_bytes", "", 21 * MIB),
        ("gpumem_graph_source_bytes", "", 241 * 1024),
        ("gpumem_graph_device_bytes", "", 7 * MIB),
        ("gpumem_retargets_total", "", 13),
    ] {
        let line = format!("{name}{{pid=\"{pid}\",process=\"demo-server\"{label}}} {value}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let all = dir.json(&["export", "--format", "json", &before]);
    assert_eq!(all["cache"]["parked_execs"], 1);
    let folded = all["execs"].as_array().unwrap().iter().find(|exec| exec["serial"] == 13).unwrap();
    assert_eq!((&folded["state"], &folded["host_bytes_estimated"]), (&json!("folded"), &json!(60 * 1024)));
}

#[test]
fn a_dump_keeps_what_the_cache_had() {
    let dir = dir();
    let dead = gone();
    let mut ledger = cached(dead);
    thrashing(&mut ledger, "GPUMEM_GRAPH_CACHE");
    dir.put(dead, ledger);
    let dump = dir.path().join("dump");
    dir.ok(&["dump", "-o", dump.to_str().unwrap()]);
    let cache = |args: &[&str]| dir.json(args)["cache"].clone();
    let (before, after) = (cache(&["graphs"]), cache(&["graphs", dump.to_str().unwrap()]));
    assert_eq!(before, after);
    assert_eq!(after["parked_device_bytes_estimated"], 2 * MIB);
}

#[test]
fn graphs_says_what_it_leaves_out() {
    let dir = dir();
    dir.put(me(), cached(me()));
    let execs = dir.json(&["graphs", "--all"])["execs_total"].as_u64().unwrap();
    let text = dir.ok(&["graphs", "--all", "-n", "1"]);
    assert!(text.contains(&format!("\n… {} more: -n 0 shows all\n", execs - 1)), "of execs: {text}");
    assert!(text.ends_with("\n… 1 more: -n 0 shows all\n"), "of two graphs: {text}");
    let report = dir.json(&["graphs", "--all", "-n", "1"]);
    assert_eq!((&report["graphs_total"], &report["execs_total"]), (&2.into(), &execs.into()));
    assert!(!dir.ok(&["graphs", "--all", "-n", "0"]).contains(" more: "));
}

#[test]
fn graphs_without_a_pinned_one_says_so() {
    let dir = dir();
    dir.put(me(), demo(me()));
    for args in [&["graphs", "--pinned"][..], &["graphs", "--pinned", "--all"], &["graphs", "--state", "gone", "--all"]]
    {
        let text = dir.ok(args);
        assert!(text.ends_with("none of them matches the filters\n") && !text.contains("\n\n"), "{args:?}: {text:?}");
    }
}
