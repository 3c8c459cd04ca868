//! Memory runs out: who holds it, in the ledger and on stderr, and never a word too many.
//!
//! `holders` keeps 256 MiB from `big`, 100 MiB from `small` and 96 MiB from `middle`, and then asks.

use gpumem_tests::harness::{Program, Ran, client, program};
use gpumem_tests::skipped::installed;
use gpumem_wire::counters;
use gpumem_wire::kinds::EventKind;
use serde_json::Value;

fn holders(args: &[&str]) -> Program {
    client("holders").args(args).env("SIM_DEVICE_MEM", "512M").env("SIM_CONTEXT_MEM", "0")
}

fn refused(ran: &Ran) -> u64 {
    ran.json()["refused"].as_u64().expect("a number")
}

/// It ran as it does natively, and broke no rule.
#[track_caller]
fn right(program: &Program) -> Ran {
    let (native, ran) = (program.native().ok(), program.preloaded().ok());
    assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()));
    ran.ledger().sound().complete().balanced();
    ran
}

/// Returns the sites that held most, as the ledger has them, by their functions: bytes and blocks.
fn in_the_ledger(ran: &Ran) -> Vec<(String, u64, u64)> {
    let said = ran.ledger().gpumem("events", &["--kind", "top-holder"]);
    let row = |row: &Value| {
        let site = row["site"].as_str().expect("a site").to_owned();
        (site, row["a"].as_u64().expect("bytes"), row["b"].as_u64().expect("blocks"))
    };
    said["events"].as_array().expect("events").iter().map(row).collect()
}

#[test]
fn the_error_comes_with_who_holds_the_most() {
    let ran = right(&holders(&[]));
    assert_eq!(refused(&ran), 1);
    let [head, first, second, third, where_more] = ran.ours()[..] else { panic!("five lines: {}", ran.err) };
    for part in
        ["out of memory: ", "128.0 MiB ", "device 0", "452.0 MiB live", "0 B idle", "60.0 MiB of 512.0 MiB free"]
    {
        assert!(head.contains(part), "{part:?} in {head}");
    }
    assert!(!head.contains("GPUMEM_LIMIT"), "{head}");
    for (line, held) in [
        (first, "256.0 MiB in 4 allocations"),
        (second, "100.0 MiB in 50 allocations"),
        (third, "96.0 MiB in 3 allocations"),
    ] {
        assert!(line.contains(held) && line.contains(" holders+0x"), "{held:?} in {line}");
    }
    let ledger = ran.ledger();
    assert!(where_more.contains(ledger.path.to_str().expect("UTF-8")), "{where_more}");
    for command in ["leaks", "events --problems"] {
        assert!(where_more.contains(&format!("gpumem {command} {}", ran.pid)), "{where_more}");
    }
    let out = |kind: EventKind| ledger.snapshot.events.iter().filter(|event| event.kind == kind as u8).count();
    assert_eq!((out(EventKind::OutOfMemory), out(EventKind::TopHolder)), (1, 3));
    let top = in_the_ledger(&ran);
    for ((site, bytes, blocks), (function, mib, count)) in
        top.iter().zip([("big", 256, 4), ("small", 100, 50), ("middle", 96, 3)])
    {
        assert!(site.contains(function), "{function} in {site}");
        assert_eq!((*bytes, *blocks), (mib << 20, count));
    }
}

/// The addresses are those of the file, as addr2line wants them.
#[test]
fn a_line_names_the_place_in_the_file() {
    let ran = right(&holders(&[]));
    let line = ran.ours()[1];
    let at = line.split_once(" holders+0x").expect("a place").1;
    let at: String = at.chars().take_while(char::is_ascii_hexdigit).collect();
    let exe = gpumem_tests::harness::artifacts().clients.join("holders");
    let Some(addr2line) = installed("addr2line") else { return };
    let said = std::process::Command::new(addr2line).arg("-fe").arg(exe).arg(format!("0x{at}")).output();
    let said = said.expect("addr2line runs");
    let name = String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or_default().to_owned();
    assert!(["take", "big"].contains(&name.as_str()), "{name} at {line}");
}

/// A program that asks again and again is told once.
#[test]
fn a_loop_of_refusals_is_one_report() {
    let ran = right(&holders(&["2000"]));
    assert_eq!((refused(&ran), ran.ours().len()), (2000, 5), "{}", ran.err);
    assert_eq!(in_the_ledger(&ran).len(), 3);
}

#[test]
fn it_can_be_switched_off() {
    for setting in [("GPUMEM_OOM_REPORT", "0"), ("GPUMEM_LOG", "quiet")] {
        let ran = right(&holders(&[]).env(setting.0, setting.1));
        assert_eq!(ran.ours(), [""; 0], "{setting:?}");
        assert_eq!(in_the_ledger(&ran).len(), 3, "the ledger has it all the same");
    }
}

/// Nothing is said if idle blocks make room for a request: memory has not run out then. Nor is anything said if no
/// device has so much: no holder is to blame then.
#[test]
fn nothing_is_said_where_nobody_is_to_blame() {
    let made_room = right(&holders(&["1", "50", "150"]).env("GPUMEM_POOL_MAX", "1GiB"));
    assert_eq!((refused(&made_room), made_room.ours()), (0, vec![]));
    let too_large = right(&holders(&["1", "1024"]));
    assert_eq!((refused(&too_large), too_large.ours()), (1, vec![]));
    assert_eq!(in_the_ledger(&too_large).len(), 0);
}

/// At the quota the report says so: the device has room.
#[test]
fn the_limit_is_named() {
    let ran = holders(&[]).env("GPUMEM_LIMIT", "470MiB").env("SIM_DEVICE_MEM", "2G").preloaded().ok();
    assert_eq!(refused(&ran), 1);
    assert!(ran.ours()[0].contains("GPUMEM_LIMIT is 470.0 MiB"), "{}", ran.err);
}

/// Also where the pool has nothing to do with it.
#[test]
fn without_the_pool_it_is_said_too() {
    let ran = right(&holders(&[]).env("GPUMEM_POOL", "0"));
    assert_eq!(ran.ours().len(), 5, "{}", ran.err);
}

/// A program that frees its cache and asks again has not run out: neither where it was pressed to, nor where
/// the device was full.
#[test]
fn a_program_that_gets_it_at_its_second_try_is_not_told() {
    for (stranded, own, device) in [("press", "0", "16G"), ("press", "1", "16G"), ("report", "1", "360M")] {
        let pool = program("stranded_pool").args(["48", "plain"]).env("GPUMEM_STRANDED", stranded);
        let ran = pool.env("GPUMEM_POOL", own).env("SIM_DEVICE_MEM", device).env("SIM_CONTEXT_MEM", "8M").preloaded();
        let ran = ran.ok();
        assert!(ran.json()["pool_failures"].as_u64() > Some(0));
        assert_eq!(ran.ours(), [""; 0], "{stranded}, pool {own}");
    }
    // The same without a second try, which is what retrying is told from.
    let abort = program("stranded_abort").args(["48", "plain"]).env("SIM_DEVICE_MEM", "360M");
    let ran = abort.preloaded();
    assert_eq!((ran.code, ran.ledger().counter(counters::PRESS_REFUSALS)), (3, 0));
    assert!(ran.ours()[0].contains("out of memory"), "{}", ran.err);
}
