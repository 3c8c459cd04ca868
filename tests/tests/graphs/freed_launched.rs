//! A graph that is launched after memory that it refers to was freed: that is seen by default, and nothing else is.

use gpumem_tests::harness::{Ran, program};
use gpumem_wire::counters;
use serde_json::Value;

/// Runs each of these side by side.
#[track_caller]
fn run<const N: usize>(cases: [&[&str]; N], setting: &[(&str, &str)]) -> [Ran; N] {
    let start = |args: &[&str]| program("pool_freed").args(args.iter().copied()).envs(setting).start(true);
    let running = cases.map(start);
    running.map(|running| {
        let ran = running.finish().ok();
        ran.ledger().sound().complete().balanced();
        ran
    })
}

fn events(ran: &Ran, args: &[&str]) -> Vec<Value> {
    ran.ledger().gpumem("events", args)["events"].as_array().expect("events").clone()
}

fn found(ran: &Ran) -> u64 {
    ran.ledger().counter(counters::LAUNCHED_AFTER_FREE)
}

/// Returns the kinds of the events, one by one.
fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().expect("a kind")).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

#[test]
fn a_launch_after_the_free_is_told_with_all_sites() {
    let cases: [&[&str]; 3] = [&["other_size"], &["other_site"], &["nobodys"]];
    for (ran, case) in run(cases, &[]).iter().zip(["other_size", "other_site", "nobodys"]) {
        let problems = events(ran, &["--problems"]);
        let whole = ["freed-graph-launched", "launched-graph", "next-owner"];
        let expected = if case == "nobodys" { &whole[..2] } else { &whole };
        assert_eq!((found(ran), kinds(&problems).as_slice()), (1, expected), "{case}: {problems:?}");
        assert!(text(&problems[0], "text").contains("4.0 MiB at 0x"), "{problems:?}");
        for (event, function) in problems.iter().zip([case, "instantiated", case]) {
            assert!(text(event, "site").contains(&format!("{function} pool_freed.c")), "{case}: {event}");
        }
    }
}

#[test]
fn doctor_says_what_to_do() {
    let [ran] = run([&["other_site"]], &[]);
    let doctor = ran.ledger().gpumem("doctor", &[]);
    let findings = doctor["findings"].as_array().expect("findings");
    let its: Vec<&Value> = findings.iter().filter(|finding| finding["id"] == "freed-graph").collect();
    assert_eq!(its.len(), 1, "{doctor}");
    assert_eq!(its[0]["severity"], "warning");
    for (field, words) in [
        (
            "finding",
            ["instantiated pool_freed.c", "other_site pool_freed.c", "at least 1 launch", "4.0 MiB"].as_slice(),
        ),
        ("fix", &["keep the memory until the graph's last launch", "gpumem events --problems"]),
    ] {
        words.iter().for_each(|word| assert!(text(its[0], field).contains(word), "{word:?} in {}", its[0]));
    }
}

/// The finding is certain, although gpumem has not read the graph before the free, if the next owner is younger than
/// the graph and its call site never asked for memory before.
#[test]
fn a_next_owner_that_is_younger_than_the_graph_is_told() {
    let [other, at_once, late, same] = run(
        [
            &["early", "other_site"],
            &["early", "at_once", "other_site"],
            &["early", "late_launch"],
            &["early", "same_again"],
        ],
        &[],
    );
    for (ran, case) in [(other, "other_site"), (at_once, "other_site"), (late, "late_launch")] {
        let problems = events(&ran, &["--problems"]);
        let expected = ["freed-graph-launched", "launched-graph", "next-owner"];
        assert_eq!((found(&ran), kinds(&problems).as_slice()), (1, expected.as_slice()), "{case}: {problems:?}");
        assert!(text(&problems[2], "site").contains(&format!("{case} pool_freed.c")), "{problems:?}");
    }
    assert_eq!(found(&same), 0);
}

#[test]
fn nothing_else_is_told() {
    let fine: [&[&str]; 9] = [
        &["same_again"],
        &["each_step"],
        &["updated"],
        &["node_set"],
        &["node_off"],
        &["destroyed"],
        &["not_launched"],
        &["launched_before"],
        &["churn"],
    ];
    for (ran, case) in run(fine, &[]).iter().zip(fine) {
        assert_eq!((found(ran), events(ran, &["--kind", "freed-graph-launched"])), (0, vec![]), "{case:?}");
        let doctor = ran.ledger().gpumem("doctor", &[]);
        let findings = doctor["findings"].as_array().expect("findings");
        let of = findings.iter().find(|finding| finding["id"] == "freed-graph").expect("each check tells");
        assert_eq!(of["severity"], "ok", "{case:?}: {doctor}");
    }
}

/// Without call stacks any allocation of the same size at the same address may be the same buffer, made again.
#[test]
fn without_call_stacks_only_another_size_is_told() {
    let [site, size, gone] = run([&["other_site"], &["other_size"], &["nobodys"]], &[("GPUMEM_STACKS", "0")]);
    assert_eq!([site, size, gone].map(|ran| found(&ran)), [0, 1, 0]);
}

/// A graph that is the driver's own cannot be read, so nothing is said of it.
#[test]
fn what_cannot_be_read_is_not_judged() {
    let [ran] = run([&["other_site"]], &[("GPUMEM_GRAPH_CACHE", "0")]);
    assert_eq!(found(&ran), 0);
}
