//! `gpumem leaks` and `gpumem doctor` tell the truth about one call site.

mod common;
use common::growth::{Row, dumped, leaking, sampled};
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::kinds::{AllocKind, GrowthKind};
use gpumem_wire::layout::{AllocSlot, StackSlot, StreamSlot};
use serde_json::Value;

/// A ledger with a sample a second for so many seconds, and one call site: the MiB (one to a block) that it held at the
/// last samples, the ages in seconds of its live blocks, and the number that it ever made.
fn site(seconds: u64, held: &[u64], ages: &[u64], ever: u64) -> Composer {
    let mut ledger = begin(me());
    let now = monotonic_ns();
    (ledger.header.heartbeat_ns, ledger.header.created_ns) = (now, now - (seconds + 1) * SECOND);
    module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    let first_ns = now - seconds * SECOND;
    ledger.stack(0, StackSlot { first_ns, allocs: ever, ..Default::default() }, &[APP + 0x101]);
    let slot = |(serial, age): (u64, &u64)| AllocSlot {
        stack: 1,
        serial,
        addr: 0x7000_0000_0000 + serial * 0x1000_0000,
        bytes: MIB,
        time_ns: now - age * SECOND,
        kind: AllocKind::Device as u8,
        ..Default::default()
    };
    ledger.slots((0..).zip(ages).map(slot));
    let times: Vec<u64> = (0..seconds).map(|n| now - (seconds - n) * SECOND).collect();
    let held = held.iter().map(|&mib| (mib * MIB, mib)).collect();
    sampled(&mut ledger, &times, &[Row { kind: GrowthKind::Site, key: 1, held }]);
    dumped(ledger)
}

/// Answers of both commands about a ledger.
struct Said {
    /// The verdict on its call site.
    verdict: String,
    doctor: Value,
    text: String,
    dir: Dir,
    file: String,
}

impl Said {
    fn of(ledger: Composer) -> Self {
        let dir = dir();
        let file = dir.put(me(), ledger).to_str().unwrap().to_owned();
        let leaks = dir.json(&["leaks", &file]);
        let is_it = |row: &&Value| row["key"].as_str().unwrap().contains("0x101");
        let row = leaks["suspects"].as_array().unwrap().iter().find(is_it);
        let verdict = row.map_or("", |row| row["verdict"].as_str().unwrap()).to_owned();
        let report: Value = serde_json::from_str(&dir.gpumem(&["doctor", "--all", "--json", &file]).out).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let doctor = findings.iter().find(|finding| finding["id"] == "growth").unwrap().clone();
        Self { verdict, doctor, text: dir.ok(&["leaks", &file, "--all"]), dir, file }
    }

    fn gate(&self, args: &[&str]) -> Answer {
        self.dir.gpumem(&[&["leaks", &self.file], args].concat())
    }
}

/// A site that leaked for 88 s and has paused for 12 s.
fn paused() -> Composer {
    let held: Vec<u64> = (0..100).map(|n: u64| n.min(88)).collect();
    site(100, &held, &(12..100).rev().collect::<Vec<_>>(), 88)
}

/// A site that began to take memory 20 s ago.
fn young() -> Composer {
    site(100, &(1..=20).collect::<Vec<_>>(), &(0..20).rev().collect::<Vec<_>>(), 20)
}

/// A gate does not pass as long as a call site without a verdict may have grown by more than it allows.
#[test]
fn a_gate_does_not_pass_on_a_site_without_a_verdict() {
    for (ledger, most) in [(paused(), 88), (young(), 20)] {
        let said = Said::of(ledger);
        assert_eq!(said.verdict, "too-little");
        let [below, above] = [most - 5, most + 5].map(|mib| format!("{mib}MiB"));
        let refused = said.gate(&["--fail-over", &below]);
        assert_eq!(refused.code, 1, "{}{}", refused.out, refused.err);
        assert!(
            refused.err.contains("too little to judge") && refused.err.contains("demo-server+0x101"),
            "{}",
            refused.err
        );
        assert_eq!(said.gate(&["--fail-over", &above]).code, 0);
        let refused = said.gate(&["--fail-rate", "10MiB/min"]);
        assert_eq!(refused.code, 1, "{}{}", refused.out, refused.err);
        assert_eq!(said.gate(&["--fail-rate", "90MiB/min"]).code, 0);
        // With a moment no verdict is needed.
        assert_eq!(said.gate(&["--since", "1s", "--fail-over", "10MiB"]).code, 0);
    }
    // What grows steadily is more than allowed already.
    let dir = dir();
    let file = dir.put(me(), dumped(leaking(me(), 120)));
    assert_eq!(dir.gpumem(&["leaks", file.to_str().unwrap(), "--fail-over", "100MiB"]).code, 3);
}

/// A buffer that is replaced all the time has not been made at one time.
#[test]
fn what_is_replaced_all_the_time_is_not_one_off() {
    assert_eq!(Said::of(site(62, &[1; 62], &[0], 2000)).verdict, "levelled-off");
    assert_eq!(Said::of(site(62, &[2; 62], &[0, 1], 2000)).verdict, "levelled-off");
    // Of its blocks none is live at this moment.
    assert_eq!(Said::of(site(62, &[1; 62], &[], 1000)).verdict, "high-water");
    assert_eq!(Said::of(site(62, &[0; 62], &[], 1000)).verdict, "high-water");
    // One that was tried out before, and one that is there from the start.
    assert_eq!(Said::of(site(62, &[1; 62], &[62], 2)).verdict, "one-off");
    assert_eq!(Said::of(site(62, &[3; 62], &[62; 3], 9)).verdict, "one-off");
    assert_eq!(Said::of(site(62, &[3; 62], &[62; 3], 3)).verdict, "one-off");
}

/// A cache that fills ever more slowly has levelled off only once it hardly rises.
#[test]
fn a_cache_that_still_rises_has_not_levelled_off() {
    let entry = |n: u64| (300.0 * (1.0 - (-(n as f64) / 25.0).exp())) as u64;
    let filled = |seconds: u64| {
        let held: Vec<u64> = (0..seconds).map(entry).collect();
        let live = *held.last().unwrap();
        let ages: Vec<u64> =
            (0..live).map(|block| seconds - held.iter().position(|&had| had > block).unwrap() as u64).collect();
        Said::of(site(seconds, &held, &ages, 10 * live)).verdict
    };
    for seconds in [76, 84, 90, 110] {
        assert_eq!(filled(seconds), "too-little", "{seconds}");
    }
    assert_eq!(filled(240), "levelled-off");
}

/// Both commands judge by the same rule: if each call site has a verdict, so has doctor.
#[test]
fn doctor_and_leaks_judge_alike() {
    let said = Said::of(site(40, &[3; 40], &[40; 3], 3));
    assert_eq!((said.verdict.as_str(), &said.doctor["severity"]), ("one-off", &Value::from("ok")), "{}", said.doctor);
    for (ledger, why) in [(paused(), "it grew steadily, and has paused"), (young(), "it has samples of 19.0 s only")] {
        let said = Said::of(ledger);
        let finding = said.doctor["finding"].as_str().unwrap();
        assert_eq!((said.verdict.as_str(), &said.doctor["severity"]), ("too-little", &Value::from("info")));
        assert!(finding.contains("demo-server+0x101") && finding.contains(why), "{finding}");
        assert!(!finding.contains("recorded"), "{finding}");
    }
    let said = Said::of(dumped(leaking(me(), 12)));
    let finding = said.doctor["finding"].as_str().unwrap();
    assert!(finding.contains("12 samples in 11.0 s, 32 are needed"), "{finding}");
}

/// Nothing is said to be freed as a whole that is still there.
#[test]
fn a_share_that_is_not_all_is_not_called_all() {
    let said = Said::of(site(62, &[1; 62], &[0], 2000));
    assert!(said.text.contains(">99 % freed"), "{}", said.text);
    let said = Said::of(site(62, &[1; 62], &[], 2000));
    assert!(said.text.contains("100 % freed"), "{}", said.text);
}

/// The numbers of the first line count the same call sites: those that hold memory, and those that hold streams.
#[test]
fn the_first_line_counts_all_that_may_grow() {
    let mut ledger = begin(me());
    let now = monotonic_ns();
    (ledger.header.heartbeat_ns, ledger.header.created_ns) = (now, now - 121 * SECOND);
    module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    ledger.stack(0, StackSlot { allocs: 1, ..Default::default() }, &[APP + 0x101]);
    ledger.stack(1, StackSlot::default(), &[APP + 0x201]);
    let at = |n: u64| now - (120 - n) * SECOND;
    let kind = AllocKind::Device as u8;
    ledger.slots([AllocSlot { stack: 1, addr: 1 << 32, bytes: MIB, time_ns: at(0), kind, ..Default::default() }]);
    let stream = |n: u64| StreamSlot { handle: n + 1, time_ns: at(n), context: 1, stack: 2, ..Default::default() };
    ledger.slots((0..120).map(stream));
    let times: Vec<u64> = (0..120).map(at).collect();
    let row = |kind, key, held: &dyn Fn(u64) -> (u64, u64)| Row { kind, key, held: (0..120).map(held).collect() };
    let rows = [row(GrowthKind::Site, 1, &|_| (MIB, 1)), row(GrowthKind::Streams, 2, &|n| (0, n + 1))];
    sampled(&mut ledger, &times, &rows);
    let said = Said::of(dumped(ledger));
    let first = "1 call site holds memory, 1 holds streams, 1 grows steadily";
    assert!(said.text.lines().any(|line| line.ends_with(first)), "{}", said.text);
}

/// A leak that stops because the whole process has nothing to do has not levelled off.
#[test]
fn a_stop_of_the_whole_process_shows_nothing() {
    let stopped = |seconds: u64| {
        let held: Vec<u64> = (0..seconds).map(|n| n.min(100)).collect();
        site(seconds, &held, &(seconds - 100..seconds).rev().collect::<Vec<_>>(), 100)
    };
    for seconds in [140, 150, 170, 190] {
        let said = Said::of(stopped(seconds));
        assert_eq!(said.verdict, "too-little", "{seconds}");
        assert_eq!(said.gate(&["--fail-over", "50MiB"]).code, 1, "{seconds}");
        assert!(said.doctor["finding"].as_str().unwrap().contains("it grew steadily, and has paused") || seconds < 150);
    }
    // It has been idle for longer than it grew.
    assert_eq!(Said::of(stopped(230)).verdict, "levelled-off");
    // Another call site was active meanwhile.
    let mut busy = stopped(170);
    let time_ns = busy.header.heartbeat_ns - SECOND;
    let kind = AllocKind::Device as u8;
    busy.slots([AllocSlot { serial: 9999, addr: 1 << 32, bytes: 4096, time_ns, kind, ..Default::default() }]);
    let said = Said::of(busy);
    assert_eq!(said.verdict, "levelled-off");
    assert_eq!(said.gate(&["--fail-over", "50MiB"]).code, 0);
}
