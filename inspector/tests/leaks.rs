//! `gpumem leaks` on ledgers that are known to the last byte: who is suspected, and when nothing is said.

mod common;
use common::growth::{Row, dumped, leaking, leaking_at, mark, report_parts, sampled, torch};
use common::opens::Opens;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::kinds::{AllocKind, GrowthKind};
use gpumem_wire::layout::{AllocSlot, CodeSlot, ExecSlot, PythonFrame, StackSlot};
use gpumem_wire::place::ProcessId;
use serde_json::Value;

/// The file of a ledger of this test's process.
fn put(dir: &Dir, composer: Composer) -> String {
    dir.put(me(), composer).to_str().unwrap().to_owned()
}

fn suspect<'a>(said: &'a Value, kind: &str, key: &str) -> &'a Value {
    let suspects = said["suspects"].as_array().unwrap();
    let found = suspects.iter().find(|row| row["kind"] == kind && row["key"].as_str().unwrap().contains(key));
    found.unwrap_or_else(|| panic!("{kind} {key} is not in {said:#}"))
}

#[test]
fn the_leak_comes_first_with_its_growth_and_what_to_type() {
    let dir = dir();
    let file = put(&dir, dumped(leaking(me(), 400)));
    let said = dir.json(&["leaks", &file]);
    assert_eq!((&said["enough"], &said["growing"]), (&Value::Bool(true), &Value::from(1)));
    let first = &said["suspects"][0];
    assert_eq!((first["verdict"].as_str(), first["kind"].as_str()), (Some("grows-steadily"), Some("site")));
    assert!(first["key"].as_str().unwrap().contains("0x201"), "{first}");
    assert_eq!((first["live"].as_u64(), first["bytes"].as_u64()), (Some(400), Some(400 * MIB)));
    assert_eq!((first["total_allocs"].as_u64(), first["freed_share"].as_f64()), (Some(800), Some(0.5)));
    let rate = first["bytes_per_minute"].as_f64().unwrap() / MIB as f64;
    assert!((59.0..61.0).contains(&rate), "{rate}");
    let grown: Vec<(&str, i64)> = first["growth"]
        .as_array()
        .unwrap()
        .iter()
        .map(|grown| (grown["since"].as_str().unwrap(), grown["bytes_change"].as_i64().unwrap() >> 20))
        .collect();
    // What is coarse tells a moment to a few seconds.
    assert_eq!((grown[0].0, grown[1].0, grown[2].0), ("1 min", "5 min", "the first sample"));
    assert!((58..=64).contains(&grown[0].1) && (290..=310).contains(&grown[1].1) && grown[2].1 >= 390, "{grown:?}");
    let ages: Vec<u64> = first["ages"].as_array().unwrap().iter().map(|of| of["live"].as_u64().unwrap()).collect();
    assert_eq!((ages.len(), ages.iter().sum::<u64>()), (3, 400), "{ages:?}");
    assert_eq!(first["next"], format!("gpumem allocs {file} --by stack --sort growth"));
    assert_eq!(suspect(&said, "tag", "cache")["verdict"], "grows-steadily");
    assert_eq!(suspect(&said, "site", "0x101")["verdict"], "one-off");
    // The tag's bytes are the call site's: they are not summed up again.
    assert_eq!(said["growing_bytes"].as_i64().unwrap() >> 20, grown[2].1);
}

/// A call site that came while the last sample was taken has no row yet. If it is older than two samples, there was no
/// room for a row.
#[test]
fn a_call_site_is_missed_only_if_two_samples_did_not_see_it() {
    let remarks = |seconds: u64, age: u64| {
        let dir = dir();
        let mut ledger = leaking(me(), seconds);
        ledger.stack(2, StackSlot { allocs: 1, alloc_bytes: MIB, ..Default::default() }, &[APP + 0x701]);
        let time_ns = ledger.header.heartbeat_ns - age;
        let kind = AllocKind::Device as u8;
        ledger.slots([AllocSlot {
            stack: 3,
            addr: 0x1000,
            bytes: MIB,
            time_ns,
            serial: 5000,
            kind,
            ..Default::default()
        }]);
        let file = put(&dir, dumped(ledger));
        dir.json(&["leaks", &file])["remarks"].to_string()
    };
    let missed = "1 call stack with live memory have no history";
    // Samples were taken each second, the last one a second ago.
    assert!(!remarks(1, 2 * SECOND).contains(missed), "{}", remarks(1, 2 * SECOND));
    assert!(!remarks(60, SECOND + SECOND / 2).contains(missed), "{}", remarks(60, SECOND + SECOND / 2));
    assert!(remarks(60, 3 * SECOND).contains(missed), "{}", remarks(60, 3 * SECOND));
}

/// Hundreds of classes that say nothing do not bury the verdicts: one line sums them up. JSON has all.
#[test]
fn classes_that_do_not_grow_are_one_line() {
    let dir = dir();
    let mut ledger = leaking(me(), 120);
    let exec =
        |serial: u64| ExecSlot { stack: 1, serial, class: 0xabc_000 + serial, host_bytes: MIB, ..Default::default() };
    ledger.slots((1..=300).map(exec));
    let file = put(&dir, dumped(ledger));
    let text = dir.ok(&["leaks", &file]);
    assert!(text.contains("grows steadily, +60.0 MiB/min") && text.lines().count() < 30, "{text}");
    let line = "300 classes of graphs hold 300.0 MiB: 0 grow steadily, 300 too young to judge; --all shows each";
    assert!(text.lines().any(|said| said == line), "{text}");
    assert!(!text.contains("class 0"), "{text}");
    assert_eq!(dir.ok(&["leaks", &file, "--all", "-n", "0"]).matches("who    class 0000000000abc").count(), 300);
    let said = dir.json(&["leaks", &file]);
    let classes = said["suspects"].as_array().unwrap().iter().filter(|row| row["kind"] == "class").count();
    assert_eq!((classes, said["suspects_total"].as_u64() >= Some(300)), (300, true));
}

#[test]
fn the_text_fits_on_a_terminal_and_says_it_in_words() {
    let dir = dir();
    let file = put(&dir, leaking(me(), 120));
    let text = dir.ok(&["leaks", &file]);
    assert!(text.contains("grows steadily, +60.0 MiB/min"), "{text}");
    assert!(text.contains(&format!("gpumem allocs {} --by stack --sort growth", me().pid)), "{text}");
    assert!(text.lines().any(|line| line.contains("64.0 MiB") && line.contains("one-off")), "{text}");
    assert!(!text.contains("not GPU memory"), "{text}");
    let head = text.lines().next().unwrap();
    let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 80 && *line != head).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn growth_since_a_mark_is_counted_from_it() {
    let dir = dir();
    let mut ledger = leaking(me(), 120);
    mark(&mut ledger, 0, "warm", 50);
    mark(&mut ledger, 1, "warm", 30);
    mark(&mut ledger, 2, "later", 10);
    let file = put(&dir, dumped(ledger));
    let said = dir.json(&["leaks", &file, "--since", "warm"]);
    assert_eq!(said["since"], "mark warm");
    let growth = &said["suspects"][0]["growth"];
    let grown = growth[0]["bytes_change"].as_i64().unwrap() >> 20;
    assert!((29..=32).contains(&grown), "since the newest mark of the name: {growth}");
    let per_mark = said["suspects"][0]["bytes_per_mark"].as_f64().unwrap() / MIB as f64;
    assert!((19.0..=21.0).contains(&per_mark), "{per_mark}");
    let timed = dir.json(&["leaks", &file, "--since", "20s"]);
    let grown = timed["suspects"][0]["growth"][0]["bytes_change"].as_i64().unwrap() >> 20;
    assert!((19..=22).contains(&grown), "{timed:#}");
    let refused = dir.gpumem(&["leaks", &file, "--since", "worm"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("no mark is called \"worm\"; there are \"warm\", \"later\""), "{}", refused.err);
}

#[test]
fn a_mark_that_was_never_set_says_how_to_set_one() {
    let dir = dir();
    let file = put(&dir, leaking(me(), 60));
    let refused = dir.gpumem(&["leaks", &file, "--since", "warm"]);
    assert!(refused.err.contains("there is none: gpumem mark NAME"), "{}", refused.err);
}

#[test]
fn a_process_that_began_seconds_ago_is_not_judged() {
    let dir = dir();
    let file = put(&dir, leaking(me(), 12));
    let said = dir.json(&["leaks", &file]);
    assert_eq!((&said["enough"], &said["growing"]), (&Value::Bool(false), &Value::from(0)));
    let verdicts: Vec<_> = said["suspects"].as_array().unwrap().iter().map(|row| row["verdict"].clone()).collect();
    assert!(verdicts.iter().all(|verdict| verdict == "too-little"), "{verdicts:?}");
    let remark = said["remarks"][0].as_str().unwrap();
    assert!(remark.contains("12 samples in 11.0 s, 32 are needed; ask again in 20.0 s"), "{remark}");
    // Nobody is told to wait for a dump.
    let dump = put(&dir, dumped(leaking(me(), 12)));
    let said = dir.json(&["leaks", &dump])["remarks"].to_string();
    assert!(said.contains("12 samples in 11.0 s, 32 are needed") && !said.contains("ask again"), "{said}");
    let file = put(&dir, leaking(me(), 12));
    // A gate does not pass on too little.
    let gate = dir.gpumem(&["leaks", &file, "--fail-over", "1GiB"]);
    assert_eq!(gate.code, 1);
    assert!(gate.err.contains("too little to judge") && gate.err.contains("GPUMEM_GROWTH_INTERVAL"), "{}", gate.err);
}

#[test]
fn gates_end_with_three() {
    let dir = dir();
    let mut ledger = leaking(me(), 120);
    mark(&mut ledger, 0, "warm", 30);
    let file = put(&dir, ledger);
    let code = |args: &[&str]| dir.gpumem(&[&["leaks", &file], args].concat()).code;
    assert_eq!(code(&["--fail-over", "1GiB"]), 0);
    assert_eq!(code(&["--fail-over", "100MiB"]), 3);
    assert_eq!(code(&["--since", "warm", "--fail-over", "100MiB"]), 0);
    assert_eq!(code(&["--since", "warm", "--fail-over", "20MiB"]), 3);
    assert_eq!(code(&["--fail-rate", "61MiB/min"]), 0);
    assert_eq!(code(&["--fail-rate", "59MiB/min"]), 3);
    assert_eq!(code(&["--fail-rate", "900KiB/s"]), 3);
    assert_eq!(code(&["--fail-rate", "fast"]), 2);
    let said = dir.gpumem(&["leaks", &file, "--fail-rate", "59MiB/min"]);
    assert!(said.err.contains("grew by +60.0 MiB/min, more than +59.0 MiB/min"), "{}", said.err);
    assert!(said.out.contains("grows steadily"), "the report comes first");
}

/// One that shrinks hides none that grows.
#[test]
fn growth_since_a_moment_is_that_of_those_that_grew() {
    let dir = dir();
    let mut ledger = begin(me());
    let now = monotonic_ns();
    (ledger.header.heartbeat_ns, ledger.header.created_ns) = (now, now - 121 * SECOND);
    module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    ledger.stack(0, StackSlot { allocs: 40, ..Default::default() }, &[APP + 0x101]);
    ledger.stack(1, StackSlot { allocs: 100, ..Default::default() }, &[APP + 0x201]);
    let slot = |serial: u64| AllocSlot {
        stack: 1,
        serial,
        addr: 0x7000_0000_0000 + serial * 0x1000_0000,
        bytes: MIB,
        time_ns: now - SECOND,
        kind: AllocKind::Device as u8,
        ..Default::default()
    };
    ledger.slots((0..40).map(slot));
    let times: Vec<u64> = (0..120).map(|n| now - (120 - n) * SECOND).collect();
    // One has grown by 40 MiB in the last 40 s, another has freed its 100 MiB meanwhile.
    let grows = (0..120_u64).map(|n| (n.saturating_sub(80) * MIB, n.saturating_sub(80))).collect();
    let shrinks = (0..120_u64).map(|n| if n < 100 { (100 * MIB, 100) } else { (0, 0) }).collect();
    let row = |key, held| Row { kind: GrowthKind::Site, key, held };
    sampled(&mut ledger, &times, &[row(1, grows), row(2, shrinks)]);
    mark(&mut ledger, 0, "warm", 45);
    let file = put(&dir, dumped(ledger));
    let since = |size: &str| dir.gpumem(&["leaks", &file, "--since", "warm", "--fail-over", size]);
    let said = since("30MiB");
    assert_eq!(said.code, 3, "{}{}", said.out, said.err);
    assert!(said.err.contains("grew by +40.0 MiB, more than 30.0 MiB"), "{}", said.err);
    assert_eq!(since("50MiB").code, 0);
}

/// A mark that newer events have pushed out was set all the same.
#[test]
fn a_mark_that_was_pushed_out_is_not_said_never_to_have_been() {
    let dir = dir();
    let pushed = |seq: u64| {
        let mut ledger = leaking(me(), 60);
        mark(&mut ledger, seq, "later", 5);
        let file = put(&dir, ledger);
        dir.gpumem(&["leaks", &file, "--since", "warm"]).err
    };
    let said = pushed(5000);
    assert!(said.contains("no mark that is left is called \"warm\"; there are \"later\""), "{said}");
    assert!(said.contains("5,000 older events were pushed out, and it may have been among them"), "{said}");
    let said = pushed(0);
    assert!(said.contains("no mark is called \"warm\"; there are \"later\"") && !said.contains("pushed"), "{said}");
}

#[test]
fn a_call_site_was_first_and_last_seen_sometime() {
    let dir = dir();
    let mut ledger = leaking(me(), 120);
    let now = ledger.header.heartbeat_ns;
    // A site that holds nothing any more made something 30 s ago.
    ledger.stack(2, StackSlot { allocs: 9, first_ns: now - 90 * SECOND, ..Default::default() }, &[APP + 0x301]);
    let slot = gpumem_wire::layout::GrowthSlot {
        kind: GrowthKind::Site as u8,
        key: 3,
        since_ns: now - 90 * SECOND,
        made_ns: now - 30 * SECOND,
        ..Default::default()
    };
    ledger.slots([slot]);
    let file = put(&dir, dumped(ledger));
    let said = dir.json(&["leaks", &file, "--all"]);
    let ago = |key: &str, field: &str| suspect(&said, "site", key)[field].as_u64().map(|ns| ns / SECOND);
    assert_eq!((ago("0x301", "first_seen_age_ns"), ago("0x301", "last_seen_age_ns")), (Some(90), Some(30)));
    // The newest that is live counts where no sample has it yet.
    assert_eq!((ago("0x201", "first_seen_age_ns"), ago("0x201", "last_seen_age_ns")), (Some(120), Some(0)));
    assert!(suspect(&said, "tag", "cache")["first_seen_age_ns"].is_null(), "{said:#}");
    let text = dir.ok(&["leaks", &file]);
    assert!(
        text.lines().any(|line| line == "  seen   first 2 min 0 s before the dump, last 500.0 ms before the dump"),
        "{text}"
    );
}

/// Parts that the program's own allocator handed out are shown inside the memory that they lie in: by call site, by
/// tag, one by one, and from a dump.
#[test]
fn reported_parts_are_shown_inside_their_segment() {
    let dir = dir();
    let mut ledger = leaking(me(), 120);
    report_parts(&mut ledger);
    let file = put(&dir, dumped(ledger));
    let dump = dir.path().join("dump");
    dir.ok(&["dump", &file, "-o", dump.to_str().unwrap()]);
    let bytes = ((3 * 64) << 10) + 4096;
    for file in [file.as_str(), dump.to_str().unwrap()] {
        let is_it = |row: &Value| {
            let parts = row["parts"].as_array().unwrap_or_else(|| panic!("no parts in {row:#}"));
            let [part] = &parts[..] else { panic!("{parts:#?}") };
            let said = ["live", "bytes"].map(|field| part[field].as_u64());
            assert_eq!((part["pool"].as_str(), said), (Some("arena"), [Some(4), Some(bytes)]), "{part:#}");
            assert!(part["site"].as_str().unwrap().contains("0x301"), "{part:#}");
        };
        let leaks = dir.json(&["leaks", file]);
        is_it(suspect(&leaks, "site", "0x201"));
        is_it(suspect(&leaks, "tag", "cache"));
        assert!(suspect(&leaks, "site", "0x101")["parts"].is_null(), "{leaks:#}");
        for args in [["--by", "site"], ["--by", "tag"], ["--all", "--sort=bytes"]] {
            let said = dir.json(&[&["allocs", file][..], &args].concat());
            let rows = said["rows"].as_array().unwrap();
            let with: Vec<&Value> = rows.iter().filter(|row| !row["parts"].is_null()).collect();
            assert_eq!(with.len(), 1, "{args:?}: {said:#}");
            is_it(with[0]);
            assert_eq!(said["bytes"].as_u64(), Some((64 + 120) * MIB), "parts are in no sum");
        }
        let inside = "196.0 KiB in 4 parts of arena, by ";
        let leaks = dir.ok(&["leaks", file]);
        assert!(leaks.lines().any(|line| line.starts_with(&format!("  inside {inside}"))), "{leaks}");
        let allocs = dir.ok(&["allocs", file]);
        let lines: Vec<&str> = allocs.lines().collect();
        let at = lines.iter().position(|line| line.starts_with(&format!("    inside: {inside}")));
        assert!(lines[at.unwrap_or_else(|| panic!("{allocs}")) - 1].contains("0x201"), "{allocs}");
    }
}

/// A call site whose memory came and went between two samples is no suspect. What it made is counted all the same.
#[test]
fn what_came_and_went_unseen_is_counted() {
    let dir = dir();
    let ever = |said: &Value| -> u64 {
        let sites = said["suspects"].as_array().unwrap().iter().filter(|row| row["kind"] == "site");
        sites.map(|row| row["total_allocs"].as_u64().unwrap()).sum()
    };
    let before = dir.json(&["leaks", &put(&dir, dumped(leaking(me(), 120)))]);
    assert_eq!(before["unlisted_allocs"], 0);
    let mut ledger = leaking(me(), 120);
    ledger.stack(2, StackSlot { allocs: 9, ..Default::default() }, &[APP + 0x301]);
    let said = dir.json(&["leaks", &put(&dir, dumped(ledger))]);
    assert_eq!((ever(&said), said["unlisted_allocs"].as_u64()), (ever(&before), Some(9)));
}

#[test]
fn a_process_without_samples_says_why() {
    for (variable, said) in [
        ("GPUMEM_CONTROL=0", "nothing is sampled in this process: GPUMEM_CONTROL=0"),
        ("GPUMEM_GROWTH_INTERVAL=0", "samples are taken only at a gpumem mark"),
        ("GPUMEM_STACKS=0", "no call stacks are recorded (GPUMEM_STACKS=0)"),
        ("GPUMEM_TAG=x", "too little to judge: 0 samples"),
    ] {
        let dir = dir();
        let mut ledger = demo(me());
        ledger.header.settings = ledger.text(variable);
        let file = put(&dir, ledger);
        let report = dir.json(&["leaks", &file]);
        let remarks: Vec<_> = report["remarks"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(remarks.iter().any(|remark| remark.contains(said)), "{variable}: {remarks:?}");
        assert_eq!(report["suspects"][0]["verdict"], "too-little");
    }
}

/// A ledger of 100 samples at these times before now, in seconds, with one site that grows by 1 MiB each.
fn at_times(seconds_ago: &dyn Fn(u64) -> i64) -> Composer {
    let mut ledger = begin(me());
    let now = monotonic_ns();
    ledger.header.heartbeat_ns = now;
    ledger.header.created_ns = now - 1000 * SECOND;
    module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    ledger.stack(0, StackSlot { allocs: 1, ..Default::default() }, &[APP + 0x101]);
    let times: Vec<u64> = (0..100).map(|n| now.wrapping_add_signed(-seconds_ago(n) * SECOND as i64)).collect();
    let held = (0..100).map(|n| (n * MIB, n)).collect();
    sampled(&mut ledger, &times, &[Row { kind: GrowthKind::Site, key: 1, held }]);
    dumped(ledger)
}

#[test]
fn time_without_samples_is_told_and_left_out() {
    let dir = dir();
    let file = put(&dir, at_times(&|n| if n < 60 { 701 - n as i64 } else { 101 - n as i64 }));
    let said = dir.json(&["leaks", &file]);
    let remark = said["remarks"][0].as_str().unwrap();
    assert!(remark.contains("no samples for 10 min") && remark.contains("until 41.0 s before the dump"), "{remark}");
    assert_eq!(said["suspects"][0]["verdict"], "grows-steadily");
    let rate = said["suspects"][0]["bytes_per_minute"].as_f64().unwrap() / MIB as f64;
    assert!((55.0..65.0).contains(&rate), "MiB a minute that it ran: {rate}");
}

/// A program that exits in order frees everything after the last sample: a test that runs it does not fail.
#[test]
fn what_is_freed_at_the_exit_does_not_grow() {
    let dir = dir();
    let mut ledger = at_times(&|n| 101 - n as i64);
    let file = put(&dir, ledger);
    assert_eq!(dir.gpumem(&["leaks", "--fail-rate", "1MiB/min", &file]).code, 3);
    ledger = at_times(&|n| 101 - n as i64);
    (ledger.header.dumped_ns, ledger.header.exited_ns) = (0, ledger.header.heartbeat_ns);
    let file = put(&dir, ledger);
    let said = dir.json(&["leaks", &file, "--all"]);
    assert_eq!(
        (&said["growing"], &said["suspects"][0]["verdict"]),
        (&Value::from(0), &"high-water".into()),
        "{said:#}"
    );
    for gate in [["--fail-rate", "1MiB/min"], ["--fail-over", "1MiB"]] {
        assert_eq!(dir.gpumem(&["leaks", gate[0], gate[1], &file]).code, 0, "{gate:?}");
    }
}

/// The time after the last sample is no pause of the growth: the process was killed, or its control thread is late.
#[test]
fn time_after_the_last_sample_is_no_pause() {
    let dir = dir();
    let mut ledger = leaking(me(), 400);
    ledger.header.dumped_ns = ledger.header.heartbeat_ns + 5 * SECOND;
    let said = dir.json(&["leaks", &put(&dir, ledger)]);
    assert_eq!(said["suspects"][0]["verdict"], "grows-steadily", "{said:#}");
}

/// A control thread that is slow takes each sample late, while the program runs. Only the first ones look like a stop.
#[test]
fn samples_that_are_always_late_are_no_gaps() {
    let dir = dir();
    let file = put(&dir, at_times(&|n| if n < 60 { 541 - n as i64 } else { 12 * (100 - n as i64) + 1 }));
    let said = dir.json(&["leaks", &file]);
    let remarks = said["remarks"].as_array().unwrap();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].as_str().unwrap().starts_with("no samples in 2 gaps of 11.0 s to 11.0 s, the last until "));
    let rate = said["suspects"][0]["bytes_per_minute"].as_f64().unwrap() / MIB as f64;
    assert!((4.0..8.0).contains(&rate), "MiB a minute that it ran: {rate}");
}

#[test]
fn times_that_cannot_be_are_not_believed() {
    let dir = dir();
    let file = put(&dir, at_times(&|n| if n % 2 == 0 { 101 - n as i64 } else { -5000 + n as i64 }));
    let said = dir.json(&["leaks", &file]);
    let remarks = said["remarks"].to_string();
    assert!(remarks.contains("left out: their times cannot be"), "{remarks}");
    let file = put(&dir, at_times(&|n| 2000 + n as i64));
    assert_eq!(dir.json(&["leaks", &file])["suspects"][0]["verdict"], "too-little");
}

#[test]
fn call_stacks_without_room_for_their_history_are_counted() {
    let dir = dir();
    let mut ledger = leaking(me(), 60);
    ledger.stack(2, StackSlot { allocs: 1, ..Default::default() }, &[APP + 0x301]);
    let slot = AllocSlot { stack: 3, bytes: MIB, time_ns: 5, kind: 1, ..Default::default() };
    ledger.slots([slot]);
    let file = put(&dir, ledger);
    let said = dir.json(&["leaks", &file]);
    let remarks = said["remarks"].to_string();
    assert!(remarks.contains("1 call stack with live memory"), "{remarks}");
    assert_eq!(suspect(&said, "site", "0x301")["verdict"], "too-little");
}

#[test]
fn what_grows_outside_of_the_gpu_is_not_ours() {
    let dir = dir();
    let file = put(&dir, heap_grows(me()));
    let text = dir.ok(&["leaks", &file]);
    assert!(text.contains("not GPU memory: the process's own heap grows by +60.0 MiB/min, +99.0 MiB in all"), "{text}");
    assert!(text.contains(&format!("heaptrack -p {}", me().pid)), "{text}");
}

/// Returns a ledger of a process whose own heap grows by 60 MiB a minute.
fn heap_grows(id: ProcessId) -> Composer {
    let mut ledger = begin(id);
    let now = monotonic_ns();
    ledger.header.created_ns = now - 101 * SECOND;
    let times: Vec<u64> = (0..100).map(|n| now - (100 - n) * SECOND).collect();
    let held = (0..100).map(|n| ((8 + n) * MIB, 1)).collect();
    sampled(&mut ledger, &times, &[Row { kind: GrowthKind::Heap, key: 0, held }]);
    ledger
}

/// Of several processes, too, the growth of a heap is shown.
#[test]
fn a_growing_heap_is_told_of_several_processes() {
    let (dir, other) = (dir(), Sleeper::start());
    dir.put(other.id(), heap_grows(other.id()));
    dir.put(me(), leaking(me(), 60));
    let text = dir.ok(&["leaks"]);
    let said = format!("not GPU memory: pid {} (demo-server): its own heap grows by +60.0 MiB/min", other.id().pid);
    assert!(text.contains(&said), "{text}");
    let rows = dir.json(&["leaks"])["processes"].as_array().unwrap().clone();
    let growing: Vec<_> = rows.iter().filter(|row| !row["heap_bytes_per_minute"].is_null()).collect();
    assert_eq!(growing.iter().map(|row| row["pid"].as_u64()).collect::<Vec<_>>(), [Some(other.id().pid.into())]);
}

#[test]
fn a_dump_tells_the_same() {
    let dir = dir();
    let file = put(&dir, leaking(me(), 300));
    let dump = dir.path().join("dump");
    dir.ok(&["dump", &file, "-o", dump.to_str().unwrap()]);
    let (ledger, dump) = (dir.json(&["leaks", &file]), dir.json(&["leaks", dump.to_str().unwrap()]));
    for field in ["key", "verdict", "live", "bytes", "samples", "total_allocs", "bytes_per_minute"] {
        assert_eq!(ledger["suspects"][0][field], dump["suspects"][0][field], "{field}");
    }
}

#[test]
fn a_segment_of_pytorch_is_called_that() {
    let dir = dir();
    let mut ledger = leaking_at(me(), 60, &torch());
    module(&mut ledger, "/opt/torch/lib/libc10_cuda.so", CUDA, 0x10_0000, CUDA);
    let file = put(&dir, ledger);
    let said = dir.json(&["leaks", &file, "--stacks"]);
    assert!(said["suspects"][0]["caveat"].as_str().unwrap().contains("PyTorch's own allocator"), "{said:#}");
    assert_eq!(said["suspects"][0]["stack"].as_array().unwrap().len(), 2);
    assert!(dir.ok(&["leaks", &file]).contains("  but    a segment of PyTorch's own allocator"));
}

#[test]
fn a_line_of_python_is_judged_without_opening_libraries() {
    let (dir, libraries) = (dir(), tempfile::tempdir().unwrap());
    let library = libraries.path().join("libc10_cuda.so");
    std::fs::copy(std::env::current_exe().unwrap(), &library).unwrap();
    let line = PythonFrame { code: 0, line: 7, entry: true }.word();
    let mut ledger = leaking_at(me(), 60, &[CUDA + 0x10, line]);
    module(&mut ledger, library.to_str().unwrap(), CUDA, 0x10_0000, CUDA);
    let (name, file) = (ledger.text("train"), ledger.text("/home/me/train.py"));
    ledger.slots([CodeSlot { name, file, first_line: 1, ..Default::default() }]);
    let file = put(&dir, ledger);
    let opens = Opens::of(libraries.path());
    let said = dir.ok(&["leaks", &file]);
    assert!(said.contains("train.py:7") && said.contains("  but    a segment of PyTorch's own allocator"), "{said}");
    assert!(opens.names().is_empty());
    dir.ok(&["leaks", &file, "--stacks"]);
    assert_eq!(opens.names().len(), 1, "a stack has names of functions");
}

#[test]
fn without_pytorchs_cache_a_line_is_not_called_a_segment() {
    let dir = dir();
    let mut ledger = leaking_at(me(), 60, &torch());
    module(&mut ledger, "/opt/torch/lib/libc10_cuda.so", CUDA, 0x10_0000, CUDA);
    ledger.header.settings = ledger.text("PYTORCH_NO_CUDA_MEMORY_CACHING=1");
    let file = put(&dir, ledger);
    let said = dir.json(&["leaks", &file]);
    assert!(said["suspects"][0]["stack"].is_array() || said["suspects"][0]["bytes"].is_number(), "{said:#}");
    assert!(said["suspects"][0]["caveat"].is_null(), "{said:#}");
}

#[test]
fn allocs_sorts_by_growth_and_shows_what_is_new() {
    let dir = dir();
    let mut ledger = leaking(me(), 120);
    mark(&mut ledger, 0, "warm", 30);
    let file = put(&dir, dumped(ledger));
    let bytes = dir.json(&["allocs", &file]);
    assert!(bytes["rows"][0]["key"].as_str().unwrap().contains("0x201"), "{bytes:#}");
    assert!(bytes["rows"][0].get("growth_bytes").is_none(), "nobody asked");
    for by in ["site", "stack", "tag"] {
        let said = dir.json(&["allocs", &file, "--by", by, "--sort", "growth"]);
        // Of the later half.
        let grown = said["rows"][0]["growth_bytes"].as_u64().unwrap() / MIB;
        assert!((59..=62).contains(&grown), "{by}: {said:#}");
        if by != "tag" {
            assert_eq!(said["rows"][1]["growth_bytes"], 0, "{by}: {said:#}");
        }
        assert_eq!(said["rows"][0]["live"], 120);
    }
    let count = |args: &[&str]| dir.json(&[&["allocs", &file], args].concat())["live"].as_u64().unwrap();
    assert!((29..=30).contains(&count(&["--since", "warm"])), "{}", count(&["--since", "warm"]));
    assert!((9..=10).contains(&count(&["--since", "10s"])), "{}", count(&["--since", "10s"]));
    let newest = dir.json(&["allocs", &file, "--all", "--sort", "growth", "-n", "1"]);
    assert_eq!(newest["rows"][0]["serial"], 120);
    assert!(squeeze(&dir.ok(&["allocs", &file])).contains("oldest newest site"));
    let refused = dir.gpumem(&["allocs", &file, "--by", "thread", "--sort", "growth"]);
    assert!(refused.code == 2 && refused.err.contains("--sort growth needs --by"), "{}", refused.err);
    assert_eq!(dir.gpumem(&["allocs", &file, "--since", "never"]).code, 2);
}

#[test]
fn a_snapshot_alone_is_compared_with_its_process() {
    let dir = dir();
    // What was dumped 60 s ago had no leak yet.
    let mut before = leaking(me(), 120);
    before.header.dumped_ns = monotonic_ns() - 60 * SECOND;
    let dump = dir.path().join("before.gpumem");
    std::fs::write(&dump, before.finish()).unwrap();
    let mut after = leaking(me(), 120);
    after.slots((200..260).map(|serial| AllocSlot { stack: 2, bytes: MIB, kind: 1, serial, ..Default::default() }));
    put(&dir, after);
    let said = dir.json(&["diff", dump.to_str().unwrap()]);
    let elapsed = said["elapsed_ns"].as_u64().unwrap() / SECOND;
    assert!((60..600).contains(&elapsed), "{elapsed}");
    let rate = said["allocs"][0]["bytes_per_minute"].as_f64().unwrap() / MIB as f64;
    let wanted = 60.0 * 60.0 / elapsed as f64;
    assert!((wanted - 2.0..wanted + 1.0).contains(&rate), "{rate}, not {wanted}");
    let text = dir.ok(&["diff", dump.to_str().unwrap()]);
    assert!(text.contains(" later\n") && text.contains("per minute"), "{text}");
    // Of a process that is gone nothing is there.
    let lost = dir.path().join("lost.gpumem");
    let mut gone = leaking(gone(), 60);
    gone.header.dumped_ns = monotonic_ns();
    std::fs::write(&lost, gone.finish()).unwrap();
    let refused = dir.gpumem(&["diff", lost.to_str().unwrap()]);
    assert!(refused.code == 3 && refused.err.contains("is gone and has left no ledger"), "{}", refused.err);
    // Two processes have no time between them.
    let other = dir.json(&["diff", lost.to_str().unwrap(), dump.to_str().unwrap()]);
    assert!(other.get("elapsed_ns").is_none(), "{other:#}");
}
