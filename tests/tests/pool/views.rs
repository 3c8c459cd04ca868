//! The inspector's views of the pool of a real process, and its commands for the pool.

use gpumem_tests::harness::client;
use gpumem_tests::harness::run::{Running, wait_for};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Eight blocks of 4 MiB, used and freed three times. One is live at the end, the others stay idle.
fn idle(variables: &[(&str, &str)]) -> Running {
    let start = client("idle").env("GPUMEM_POOL_DECAY", "0").waits();
    let running = start.envs(variables).start(true);
    running.says("idle");
    running
}

fn pool(running: &Running) -> Value {
    running.gpumem(&["stats", &running.pid().to_string()])["pool"].clone()
}

/// The pool once so many blocks of 4 MiB are idle: the books are brought up to date once a second.
fn settled(running: &Running, blocks: u64) -> Value {
    wait_for(&format!("{blocks} blocks to be idle"), || {
        let pool = pool(running);
        pool["idle_blocks"] == blocks && pool["idle_bytes"] == blocks * 4 * MIB
    });
    pool(running)
}

#[test]
fn stats_say_what_is_idle_and_trim_gives_it_back() {
    let running = idle(&[]);
    let pool = settled(&running, 7);
    for (field, expected) in [
        ("state", json!("on")),
        ("hits", json!(16)),
        ("misses", json!(8)),
        ("passed", json!(0)),
        ("kept", json!(23)),
        ("released", json!(0)),
        ("spills", json!(0)),
    ] {
        assert_eq!(pool[field], expected, "{field}: {pool:#}");
    }
    let barriers = |pool: &Value| pool["barriers"].as_u64().unwrap() + pool["barriers_saved"].as_u64().unwrap();
    assert_eq!(barriers(&pool), 23, "{pool:#}");
    let context = &pool["in_contexts"][0];
    assert_eq!((&context["state"], &context["live_bytes"]), (&json!("on"), &json!(4 * MIB)));
    assert_eq!(context["idle_peak_bytes"], 28 * MIB);
    let pid = running.pid().to_string();
    let said = running.gpumem(&["trim", &pid])["said"].as_str().unwrap().to_owned();
    assert!(said.contains("28.0 MiB given back"), "{said}");
    let pool = settled(&running, 0);
    assert_eq!((&pool["released"], &pool["trims"]), (&json!(7), &json!(1)), "{pool:#}");
    assert_eq!(pool["released_bytes"], 28 * MIB);
    let ran = running.finish().ok();
    ran.ledger().sound().complete().balanced();
}

/// The shim asks the driver how much is used only at calls of the program. Idle blocks go back without any.
#[test]
fn what_goes_back_while_the_program_is_idle_is_no_longer_used() {
    let running = idle(&[]);
    let pid = running.pid().to_string();
    settled(&running, 7);
    let device = || running.gpumem(&["stats", &pid])["devices"][0].clone();
    let before = device();
    running.gpumem(&["trim", &pid]);
    settled(&running, 0);
    let after = device();
    let [before_used, after_used] = [&before, &after].map(|device| device["used_bytes"].as_u64().unwrap());
    assert_eq!(before_used - after_used, 28 * MIB, "{before:#}\n{after:#}");
    assert_eq!(after["unexplained_bytes"], before["unexplained_bytes"], "{before:#}\n{after:#}");
    wait_for("a sample", || {
        running.ledger().snapshot.samples.last().is_some_and(|sample| sample.device_used == after_used)
    });
    running.finish().ok();
}

#[test]
fn nothing_is_pressed_where_nothing_is_stranded() {
    let running = idle(&[]);
    let pid = running.pid().to_string();
    let refused = running.refused(&["trim", "--press", &pid]);
    assert!(refused.contains("given back, and nothing is pressed: no call site strands memory"), "{refused}");
    running.gpumem(&["set", &pid, "STRANDED=off"]);
    let refused = running.refused(&["trim", "--press", &pid]);
    assert!(refused.contains("GPUMEM_STRANDED is off"), "{refused}");
    running.finish().ok();
}

#[test]
fn a_bound_that_is_set_while_it_runs_holds_and_is_written_down() {
    let running = idle(&[]);
    settled(&running, 7);
    let pid = running.pid().to_string();
    let set = running.gpumem(&["set", &pid, "POOL_MAX=8MiB"]);
    assert_eq!(set["variable"], "GPUMEM_POOL_MAX");
    let pool = settled(&running, 2);
    assert_eq!((&pool["idle_max_bytes"], &pool["released"]), (&json!(8 * MIB), &json!(5)), "{pool:#}");
    let settings = running.gpumem(&["stats", &pid])["settings"].clone();
    assert!(settings.as_array().unwrap().contains(&json!("GPUMEM_POOL_MAX=8MiB")), "{settings}");
    running.finish().ok();
}

#[test]
fn a_pool_that_is_off_keeps_nothing_and_says_so() {
    let running = idle(&[("GPUMEM_POOL", "0")]);
    let pool = pool(&running);
    assert_eq!((&pool["state"], &pool["reason"]), (&json!("off"), &json!("GPUMEM_POOL=0")), "{pool:#}");
    assert_eq!((&pool["hits"], &pool["idle_bytes"]), (&json!(0), &json!(0)));
    running.finish().ok();
}

/// Sixteen of the 32 MiB that it wants at a time are over the limit.
#[test]
fn what_is_over_the_limit_is_spilled_where_that_is_allowed() {
    for (name, value) in [("GPUMEM_OOM_FALLBACK", "managed"), ("GGML_CUDA_ALLOC_FALLBACK_MANAGED", "1")] {
        let running = idle(&[("GPUMEM_LIMIT", "16MiB"), (name, value)]);
        let pid = running.pid().to_string();
        let pool = pool(&running);
        assert_eq!((&pool["spills"], &pool["spilled_bytes"]), (&json!(12), &json!(48 * MIB)), "{pool:#}");
        assert_eq!((&pool["limit_refusals"], &pool["spilled_live_bytes"]), (&json!(12), &json!(0)), "{pool:#}");
        assert_eq!(pool["in_contexts"][0]["limit_bytes"], 16 * MIB);
        let events = running.gpumem(&["events", "--kind", "spilled", &pid]);
        assert_eq!(events["events_total"], 12);
        assert!(events["events"][0]["site"].as_str().unwrap().contains("main idle.c"), "{events:#}");
        running.finish().ok();
    }
}

#[test]
fn without_a_fallback_the_limit_is_the_end_of_the_device() {
    let ran = client("idle").env("GPUMEM_LIMIT", "16MiB").preloaded();
    assert_ne!(ran.code, 0, "{}", ran.out);
    assert!(ran.err.contains("expected 0, got 2"), "{}", ran.err);
    let ledger = ran.ledger();
    let pool = ledger.gpumem("stats", &[])["pool"].clone();
    assert_eq!((&pool["limit_refusals"], &pool["spills"]), (&json!(1), &json!(0)), "{pool:#}");
    let events = ledger.gpumem("events", &["--kind", "out-of-memory"]);
    assert_eq!((&events["events_total"], &events["events"][0]["a"]), (&json!(1), &json!(4 * MIB)));
}
