//! `gpumem leaks --suspect`: what nothing refers to any more comes first, and what something refers to does not.

use gpumem_tests::harness::run::Running;
use gpumem_tests::harness::{client, program};
use serde_json::Value;

const AT_ONCE: [&str; 4] = ["--older", "0", "--pause", "50ms"];

fn suspects(running: &Running, more: &[&str]) -> Value {
    let pid = running.pid().to_string();
    running.gpumem(&[&["leaks", "--suspect", &pid], &AT_ONCE[..], more].concat())
}

/// Returns the row about the block at an address.
fn standing<'a>(said: &'a Value, address: &str) -> &'a Value {
    let address = u64::from_str_radix(address, 16).expect("an address");
    let rows = said["allocations"].as_array().expect("rows");
    rows.iter().find(|row| row["address"] == address).unwrap_or_else(|| panic!("{address:x} is not in {said:#}"))
}

fn planted(seed: &str) -> (Running, Value) {
    let running = program("lost").args([seed, "60"]).waits().start(true);
    running.says("blocks");
    let planted = serde_json::from_str(running.stdout().trim()).expect("what is planted");
    (running, planted)
}

/// A word that is left over in some record may look like a reference, and then hides a lost block: in one of some
/// hundred programs here. What it never may do is the other way round, and twice in a row is no chance.
#[test]
fn what_nothing_refers_to_is_told_from_what_something_does() {
    for seed in ["1", "2", "3"] {
        let first = wrongly_judged(seed);
        if !first.is_empty() {
            let is_hidden = |(fate, standing, _): &(String, String, String)| fate == "lost" && standing == "referred";
            assert!(first.len() == 1 && is_hidden(&first[0]), "seed {seed}: {first:#?}");
            let second = wrongly_judged(seed);
            assert!(second.is_empty(), "seed {seed}: {first:#?}, then {second:#?}");
        }
    }
}

/// The blocks of a program that are judged wrongly: fate, standing, and all that is said.
fn wrongly_judged(seed: &str) -> Vec<(String, String, String)> {
    let mut wrong = Vec::new();
    let (running, planted) = planted(seed);
    let said = suspects(&running, &["--all"]);
    assert_eq!(said["scans"].as_array().map(Vec::len), Some(2), "{said:#}");
    assert_ne!(said["scans"][0]["driver_patterns"], "0", "{said:#}");
    // Small blocks are not worth a launch.
    assert_ne!(said["scans"][0]["device_by_kernel"], "0", "{said:#}");
    for block in planted["blocks"].as_array().unwrap() {
        let row = standing(&said, block["address"].as_str().unwrap());
        let (fate, standing) = (block["fate"].as_str().unwrap(), row["standing"].as_str().unwrap());
        let right = match fate {
            "lost" => standing == "none-seen",
            "chain" => standing == "only-from-such",
            _ => standing == "referred" || standing == "few",
        };
        if !right {
            wrong.push((fate.to_owned(), standing.to_owned(), format!("{block}: {row} {}", said["scans"][0])));
        }
    }
    let forgotten = standing(&said, planted["forgotten"].as_str().unwrap());
    assert_eq!(forgotten["standing"], "none-seen", "it refers to itself alone: {forgotten}");
    assert_eq!(forgotten["seen"]["itself"], 1, "{forgotten}");
    running.finish().ok();
    wrong
}

/// However many blocks a program loses: the simulated driver notes each block that a search reads, and that is no
/// reference.
#[test]
fn each_of_many_lost_blocks_is_found() {
    const LOST: usize = 4000;
    let running = client("many_lost").args([LOST.to_string()]).waits().start(true);
    running.says("lost");
    let said = suspects(&running, &["--timeout", "60s"]);
    let found = said["sites"].as_array().expect("sites").iter();
    let lost =
        found.filter(|site| site["standing"] == "none-seen").map(|site| site["live"].as_u64().expect("a number"));
    // Old addresses may lie in unused parts of the stack.
    assert!(lost.sum::<u64>() >= LOST as u64 - 8, "{:#} {}", said["sites"], said["scans"][1]);
    running.finish().ok();
}

/// A block that is freed during the search is not reported as unreadable.
#[test]
fn blocks_that_are_freed_during_the_search_are_not_said_to_be_unreadable() {
    let running = client("many_lost").args(["500", "8"]).waits().start(true);
    running.says("lost");
    for _ in 0..3 {
        let said = suspects(&running, &[]);
        assert_eq!((&said["all_was_read"], &said["not_known"]), (&Value::from(true), &Value::Null), "{said:#}");
        let remarks = said["remarks"].as_array().expect("remarks");
        assert!(!remarks.iter().any(|remark| remark.as_str().is_some_and(|text| text.contains("read"))), "{remarks:?}");
    }
    running.finish().ok();
}

/// A driver that keeps the address of some blocks with nothing else beside it: what lies before that memory tells that it is
/// the driver's. A word of the program's may stand just so, and then nobody can tell. Its block is not called lost.
#[test]
fn what_may_be_the_programs_word_as_well_as_the_drivers_is_not_called_lost() {
    let (mut like, mut surely) = (0, 0);
    for seed in ["1", "2", "3", "4"] {
        let running = program("lost").args([seed, "60"]).env("SIM_BARE_RECORDS", "1").waits().start(true);
        running.says("blocks");
        let planted: Value = serde_json::from_str(running.stdout().trim()).expect("what is planted");
        let said = suspects(&running, &["--all"]);
        for block in planted["blocks"].as_array().unwrap() {
            let row = standing(&said, block["address"].as_str().unwrap());
            let (fate, standing) = (block["fate"].as_str().unwrap(), row["standing"].as_str().unwrap());
            if fate == "lost" || fate == "chain" {
                like += usize::from(standing == "only-like-driver");
                surely += usize::from(standing == "none-seen" || standing == "only-from-such");
            } else {
                assert!(!matches!(standing, "none-seen" | "only-from-such"), "seed {seed}: {block}: {row}");
            }
        }
        running.finish().ok();
    }
    assert!(like > 0 && surely > like, "{surely} are lost, and of {like} it is not known");
}

/// As people read it, and as a test in a pipeline does.
#[test]
fn suspects_are_shown_by_call_site_and_one_by_one() {
    let (running, _) = planted("4");
    let pid = running.pid().to_string();
    let shown = |more: &[&str]| {
        let mut command = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
        let args = [&["leaks", "--suspect", &pid], more].concat();
        let done = command.args(args).env("GPUMEM_DIR", &running.dir).output().expect("gpumem runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let (code, out, _) = shown(&AT_ONCE);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("no reference seen in two scans") && out.contains("allocate lost.c:"), "{out}");
    assert!(!out.contains("x1b"), "colours are none where nobody sees them, and no text: {out}");
    let (code, _, err) = shown(&[&AT_ONCE[..], &["--fail-over", "0"]].concat());
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("are suspect, more than 0 B"), "{err}");
    // What is young may be on its way to where it will be kept.
    let (_, out, _) = shown(&["--pause", "0", "--older", "1h"]);
    assert!(out.contains("no allocation could be judged; "), "{out}");
    // Without time nothing is known, and it says so.
    let (code, out, err) = shown(&[&AT_ONCE[..], &["--timeout", "0"]].concat());
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("did not answer in 0 s"), "{err}");
    running.finish().ok();
}

/// A block is not lost if others may have its address, or if its address stands in memory that may not be read just
/// now.
#[test]
fn what_was_shown_to_others_and_what_stands_where_nobody_reads_is_not_lost() {
    let running = program("pool_kept").waits().start(true);
    running.says("write-only");
    let planted: Value = serde_json::from_str(&running.stdout().replace('\n', "")).expect("what is planted");
    let said = suspects(&running, &["--all"]);
    let standing = |block: &Value| standing(&said, block["address"].as_str().unwrap())["standing"].clone();
    let blocks = planted["blocks"].as_array().unwrap();
    let told: Vec<(&str, Value)> =
        blocks.iter().map(|block| (block["fate"].as_str().unwrap(), standing(block))).collect();
    let wanted = [
        ("lost", "none-seen"),
        ("shown", "outside"),
        ("shown-inside", "outside"),
        ("range", "outside"),
        ("in-order", "outside"),
        ("unreadable", "referred"),
        ("write-only", "referred"),
        ("vast", "referred"),
        ("shared-hidden", "referred"),
        ("shared-read-only", "referred"),
    ];
    assert_eq!(told, wanted.map(|(fate, standing)| (fate, Value::from(standing))), "{said:#}");
    // The device memory of what was allocated in stream order is never read.
    assert_eq!(said["all_was_read"], false, "{said:#}");
    assert!(said["scans"][0]["host_incomplete"].is_null(), "{said:#}");
    // Of a reservation in which nothing is it is told that it was passed over.
    let reserved: u64 = said["scans"][0]["host_reserved_bytes"].as_str().unwrap_or("0").parse().expect("a number");
    assert!(reserved >= 40 << 30, "{reserved}");
    let ran = running.finish().ok();
    ran.ledger().sound().complete();
}

/// Showing an allocation that the pool does not have, by an address inside of it: beside many live ones it takes no longer.
#[test]
fn what_showing_an_allocation_takes_does_not_grow_with_what_is_live() {
    let takes = |preload: bool| {
        let program = program("pool_shown").arg("20000").env("GPUMEM_POOL", "0").env("SIM_DEVICE_MEM", "4G");
        let ran = if preload { program.preloaded() } else { program.native() }.ok();
        let said = ran.json();
        let ns = |what: &str| said[what].as_u64().expect("a time");
        (ns("few_ns"), ns("many_ns"))
    };
    let ((few, many), native) = (takes(true), takes(false));
    assert!(many < 20 * few, "{few} ns beside a hundred, {many} beside 20,000; natively {native:?}");
}

#[test]
fn a_process_that_is_gone_cannot_be_asked() {
    let ran = program("basic").preloaded().ok();
    let refused = gpumem_tests::harness::ledger::refused(&ran.scratch().join("ledgers"), &["leaks", "--suspect"]);
    assert!(refused.contains("running"), "{refused}");
}

/// Searches one after another, beside threads that allocate, free and launch.
#[test]
fn a_program_that_is_searched_ends_as_ever() {
    let churns = program("threads").start(true);
    let pid = churns.pid().to_string();
    while churns.stdout().is_empty() {
        let mut command = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
        let args = ["leaks", "--suspect", "--json", "--pause", "0", "--older", "0", &pid];
        let done = command.args(args).env("GPUMEM_DIR", &churns.dir).output().expect("gpumem runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        // It may not have begun yet, or have just ended.
        assert!(matches!(done.status.code(), Some(0 | 1 | 3)), "{said}");
    }
    let ran = churns.finish().ok();
    ran.ledger().sound().complete().agrees_with(&ran.json());
}

/// A process in a state that makes it hard to look into, asked for so many seconds a search at most; what is said, and how it
/// ended.
fn hard(mode: &str, timeout: &str, more: &[&str]) -> (Value, gpumem_tests::harness::run::Ran) {
    let running = program("pool_searched").arg(mode).env("SIM_DEVICE_MEM", "1G").waits().start(true);
    running.says("ready");
    let said = suspects(&running, &[&["--all", "--timeout", timeout], more].concat());
    (said, running.finish().ok())
}

/// For a search that comes to its end on a machine that has much else to do.
const ENOUGH: &str = "60";

fn remarks(said: &Value) -> String {
    said["remarks"].as_array().expect("remarks").iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_context_that_captures_is_not_read_and_it_is_said() {
    let (said, ran) = hard("capture", "2", &[]);
    let remarks = remarks(&said);
    assert!(remarks.contains("not all device memory was read: a stream was being captured all the time"), "{remarks}");
    assert!(remarks.contains("the driver's own references are counted, too: a stream is being captured"), "{remarks}");
    assert_eq!(said["scans"][1]["device_bytes"], "0", "{said:#}");
    ran.ledger().sound().complete().agrees_with(&ran.json());
}

#[test]
fn a_context_with_an_error_that_stays_is_not_read_and_it_is_said() {
    let (said, _) = hard("error", "2", &[]);
    let remarks = remarks(&said);
    assert!(remarks.contains("not all device memory was read: a context is broken"), "{remarks}");
    assert!(remarks.contains("the driver's own references are counted, too: a context is broken"), "{remarks}");
}

/// Work that ends only when the program says so holds up nothing of the search.
#[test]
fn a_context_at_work_is_read() {
    let (said, ran) = hard("busy", ENOUGH, &[]);
    assert_ne!(said["scans"][1]["device_bytes"], "0", "{said:#}");
    assert_eq!(said["scans"][1]["device_by_kernel"], "0", "{said:#}");
    assert_ne!(said["scans"][1]["driver_patterns"], "0", "{said:#}");
    assert!(!remarks(&said).contains("not all"), "{said:#}");
    ran.ledger().sound().complete().agrees_with(&ran.json());
}

/// Addresses that move meanwhile may be missed, by both looks too: that is why it says "seen". The program is not
/// disturbed.
#[test]
fn a_process_that_moves_its_addresses_goes_on() {
    let (said, ran) = hard("moves", ENOUGH, &[]);
    assert!(!remarks(&said).contains("not all"), "{said:#}");
    ran.ledger().sound().complete().agrees_with(&ran.json());
}

/// Many blocks are one launch of the kernel, and it finds each word of theirs, wherever that stands.
#[test]
fn many_blocks_are_read_at_once_and_each_word_of_theirs_is_seen() {
    let running = program("pool_searched").arg("many").waits().start(true);
    running.says("planted");
    let said = suspects(&running, &["--all", "--timeout", ENOUGH]);
    let out = running.stdout();
    let planted = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let planted: Vec<Value> = planted.filter(|line| line["address"].is_string()).collect();
    assert!(planted.len() > 2000, "{out}");
    for block in &planted {
        let row = standing(&said, block["address"].as_str().unwrap());
        let seen = row["seen"]["device"].as_u64().unwrap_or(0);
        assert_eq!(seen, block["words"], "{block}: {row}");
    }
    let looked = &said["scans"][1];
    let number = |name: &str| looked[name].as_str().and_then(|fact| fact.parse::<u64>().ok()).expect(name);
    assert_eq!(number("device_by_kernel"), number("device_bytes"), "{looked}");
    assert!((1..=4).contains(&number("device_launches")), "{looked}");
    running.finish().ok().ledger().sound().complete();
}

/// A driver whose free waits for nothing, work that begins 10 ms after its launch, and nothing that is kept: a block would be
/// gone while the kernel of a search is about to read it, if whoever gives it back did not wait for that.
#[test]
fn memory_that_goes_back_waits_for_the_search_that_reads_it() {
    let settings = [("SIM_FREE_WAITS", "0"), ("SIM_LAG_US", "10000"), ("GPUMEM_POOL_MAX", "0")];
    let running = program("pool_searched").arg("gives").envs(&settings).waits().start(true);
    running.says("ready");
    let mut launches = 0;
    for _ in 0..6 {
        let said = suspects(&running, &["--all", "--timeout", ENOUGH]);
        for look in said["scans"].as_array().expect("looks") {
            launches += look["device_launches"].as_str().and_then(|fact| fact.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    assert!(launches > 0, "the kernel read nothing");
    // The program has checked each of its answers: a kernel that reads what is gone is an error that stays.
    let ran = running.finish().ok();
    ran.ledger().sound().complete();
    assert_eq!(ran.violations(), Vec::<String>::new());
}

/// While gpumem learns from memory of the device that it takes, the program asks for all that there is, and gets it.
#[test]
fn a_program_that_needs_all_memory_has_what_gpumem_learns_from() {
    let (said, ran) = hard("brim", "10", &[]);
    let held: Vec<Value> = ran.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let filled = held.iter().find(|line| line["again"] != Value::Null).unwrap_or_else(|| panic!("{}", ran.out));
    assert_eq!(filled["seen"], 1, "{said:#}");
    assert_eq!(filled["first"], filled["again"], "{said:#}");
}

/// A context ends while gpumem learns in it: the search ends for that.
#[test]
fn a_context_that_ends_does_not_wait_for_a_search() {
    let running = program("pool_searched").arg("end").env("SIM_DEVICE_MEM", "1G").waits().start(true);
    running.says("ready");
    let mut command = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
    let args = ["leaks", "--suspect", "--json", "--pause", "0", "--timeout", "120", &running.pid().to_string()];
    let mut search = command
        .args(args)
        .env("GPUMEM_DIR", &running.dir)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("gpumem runs");
    let ran = running.finish().ok();
    search.wait().expect("it ends");
    assert!(ran.out.contains("\"seen\": 1"), "{}", ran.out);
}

/// The server of docs/guides/is-it-a-leak.md does what the guide says of it.
#[test]
fn the_server_of_the_guide_is_as_the_guide_says() {
    let running = program("server").waits().start(true);
    running.says("holding");
    let said = suspects(&running, &[]);
    let sites = said["sites"].as_array().expect("sites");
    let of = |standing: &str| sites.iter().filter(|site| site["standing"] == standing).collect::<Vec<_>>();
    let (lost, all) = (of("none-seen"), format!("{sites:#?}"));
    assert!(lost.len() == 1 && lost[0]["site"].as_str().unwrap().contains("answer_request server.c"), "{all}");
    running.finish().ok();
    // What writes behind its block is told with the line that has allocated it.
    let ran = program("server").arg("8").env("GPUMEM_GUARD", "1").preloaded().ok();
    assert!(ran.err.contains("400 bytes written behind a block of 3.6 KiB"), "{}", ran.err);
}

/// Most of what is live was lost, so that what most blocks have is not what is typical.
#[test]
fn what_a_loop_loses_stands_out_each_time_it_is_asked() {
    let running = client("forgets_beside").waits().start(true);
    running.says("begun");
    for look in 0..10 {
        let said = suspects(&running, &["--timeout", "20s"]);
        let sites = said["sites"].as_array().expect("sites");
        let of =
            |site: &Value| site["site"].as_str().expect("a site").split(' ').next().expect("a function").to_owned();
        // The last of them may still be in a register or on the stack, and stand apart.
        assert!(sites.iter().all(|site| of(site) == "forget"), "look {look}: {sites:#?}");
        assert!(sites.first().and_then(|site| site["live"].as_u64()) >= Some(30), "look {look}: {sites:#?}");
    }
    running.finish().ok();
}
