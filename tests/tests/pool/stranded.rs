//! Stranded growth: named by `report`, given back under `press`, and never at the cost of the program.
//!
//! `stranded_pool` allocates as ggml does without virtual memory; `stranded_abort` is the same without
//! a second try.

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, Ran, program};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind};
use gpumem_wire::layout::EventSlot;
use gpumem_wire::trace::{self, Action};
use serde_json::Value;

/// Steps of a prefill; the scratch of the last is 96 MiB.
const STEPS: &str = "48";

/// Without gpumem's own pool, memory that the program frees is free at once. With the pool, memory that is freed under
/// pressure has to go back to the driver as well.
const POOLS: [&str; 2] = ["0", "1"];

fn pool(mode: &str, stranded: &str, own: &str) -> Program {
    program("stranded_pool").args([STEPS, mode]).env("GPUMEM_STRANDED", stranded).env("GPUMEM_POOL", own)
}

fn native(mode: &str) -> Ran {
    program("stranded_pool").args([STEPS, mode]).native().ok()
}

fn number(said: &Value, name: &str) -> u64 {
    said[name].as_u64().unwrap_or_else(|| panic!("no {name} in {said}"))
}

fn events(ran: &Ran, kind: EventKind) -> Vec<EventSlot> {
    let ledger = ran.ledger();
    ledger.snapshot.events.iter().filter(|event| event.kind == kind as u8).copied().collect()
}

/// The program ran to its end with right results, did the same as natively, and broke no rule.
#[track_caller]
fn right(ran: Ran, native: &Ran) -> (Ran, Value) {
    let ran = ran.ok();
    let said = ran.json();
    assert_eq!(number(&said, "other_failures"), 0, "what cannot be had again was refused: {said}");
    assert_eq!(number(&said, "failures_in_capture"), 0, "{said}");
    assert_eq!(said["kinds"]["device"]["allocs"], said["kinds"]["device"]["frees"], "{said}");
    assert_eq!(said["kernel_launches"], native.json()["kernel_launches"]);
    assert_eq!(ran.violations(), native.violations());
    assert_eq!(ran.ledger().counter(counters::PANICS), 0, "{:?}", ran.ledger().messages());
    (ran, said)
}

#[test]
fn report_names_the_site_and_what_it_strands() {
    let native = native("plain");
    for own in POOLS {
        let (ran, said) = right(pool("plain", "report", own).preloaded(), &native);
        assert_eq!(number(&said, "pool_failures"), 0, "a report changes nothing");
        assert_eq!(said["kinds"], native.json()["kinds"]);
        let reported = events(&ran, EventKind::StrandedSite);
        // Once per doubling, of at least 16 MiB: not at each of the forty-odd allocations.
        assert!((4..=8).contains(&reported.len()), "{} reports", reported.len());
        assert!(reported.windows(2).all(|pair| pair[1].a >= 2 * pair[0].a), "{reported:?}");
        let last = reported.last().expect("a report");
        let peak = number(&said, "pool_peak");
        assert!(last.a * 2 >= peak - number(&said, "largest") && last.a < peak);
        let ledger = ran.ledger();
        let stats = ledger.gpumem("stats", &[]);
        let [site] = stats["pool"]["stranded"].as_array().expect("sites").as_slice() else {
            panic!("one site strands: {}", stats["pool"]);
        };
        let functions = site["stack"].as_array().expect("frames").iter().map(|frame| frame["function"].clone());
        let functions: Vec<Value> = functions.take(4).collect();
        assert_eq!(functions, ["device_malloc", "pool_alloc", "attention", "compute"]);
        assert_eq!((number(site, "bytes"), number(site, "times")), (last.a, reported.len() as u64));
        // All was freed in the end.
        assert_eq!(ledger.counter(counters::STRANDED_ADDED), ledger.counter(counters::STRANDED_REMOVED));
        assert!(ledger.counter(counters::STRANDED_ADDED) >= last.a);
    }
}

#[test]
fn off_looks_at_nothing() {
    let ran = pool("plain", "off", "1").preloaded().ok();
    assert_eq!(ran.ledger().counter(counters::STRANDED_ADDED), 0);
    assert_eq!(events(&ran, EventKind::StrandedSite).len(), 0);
}

#[test]
fn press_bounds_the_peak_by_twice_what_is_needed() {
    let native = native("plain");
    let largest = number(&native.json(), "largest");
    assert!(number(&native.json(), "pool_peak") > 12 * largest, "the program strands: {}", native.out);
    for own in POOLS {
        let (ran, said) = right(pool("plain", "press", own).preloaded(), &native);
        assert!(number(&said, "pool_peak") <= largest * 21 / 10, "{said}");
        let refused = number(&said, "pool_failures");
        assert!(refused >= 5, "{refused}");
        assert_eq!(refused, number(&said, "flushes"), "each refusal was one, and the second try succeeded");
        assert_eq!(ran.ledger().counter(counters::PRESS_REFUSALS), refused);
        assert_eq!(events(&ran, EventKind::Pressed).len() as u64, refused);
    }
}

/// gpumem's pool does not keep memory that the program frees under pressure. The device has room for three of the
/// largest buffers, and natively for a third of the prefill.
#[test]
fn press_really_gives_back() {
    let small = |program: Program| program.env("SIM_DEVICE_MEM", "360M").env("SIM_CONTEXT_MEM", "8M");
    let abort = small(program("stranded_abort").args([STEPS, "plain"])).native();
    assert_eq!(abort.code, 3, "it does not fit natively: {}{}", abort.out, abort.err);
    let native = native("plain");
    right(small(pool("plain", "press", "1")).preloaded(), &native);
}

#[test]
fn press_serves_threads_with_pools_of_their_own() {
    let native = native("threads");
    for own in POOLS {
        let (_, said) = right(pool("threads", "press", own).preloaded(), &native);
        let (largest, peak) = (number(&said, "largest"), number(&said, "pool_peak"));
        assert!(peak <= 2 * largest * 3, "{peak} bytes for two times {largest}");
        assert_eq!(number(&said, "pool_failures"), number(&said, "flushes"));
    }
}

/// Built without a second try, nothing says that it would try again: it is never refused.
#[test]
fn a_program_that_aborts_is_never_refused() {
    let abort = program("stranded_abort").args([STEPS, "plain"]);
    let native = abort.native().ok();
    for own in POOLS {
        let abort = abort.clone().env("GPUMEM_STRANDED", "press").env("GPUMEM_POOL", own);
        let (ran, said) = right(abort.preloaded(), &native);
        assert_eq!((number(&said, "pool_failures"), said["kinds"].clone()), (0, native.json()["kinds"].clone()));
        assert_eq!(ran.ledger().counter(counters::PRESS_REFUSALS), 0);
        assert!(!events(&ran, EventKind::StrandedSite).is_empty(), "it is named all the same");
    }
}

/// The user's setting counts: then the program does not survive the refusal.
#[test]
fn the_users_word_is_taken() {
    let abort = program("stranded_abort").args([STEPS, "plain"]).env("GPUMEM_STRANDED", "press");
    let ran = abort.env("GPUMEM_STRANDED_RETRIES", "1").preloaded();
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert_eq!(ran.ledger().counter(counters::PRESS_REFUSALS), 1);
}

/// A graph holds the addresses of scratch: while it lives, nothing makes the program free them.
#[test]
fn press_spares_what_a_live_graph_refers_to() {
    let native = native("graph");
    for own in POOLS {
        let (_, said) = right(pool("graph", "press", own).preloaded(), &native);
        assert!(number(&said, "flushes") >= 3, "pressed before and after: {said}");
        assert!(number(&said, "pool_peak") < number(&native.json(), "pool_peak") * 3 / 4, "{said}");
        // As large as the growth of a third of the prefill, in which the graph lives.
        assert!(number(&said, "pool_peak") > 3 * number(&said, "largest"), "{said}");
    }
}

/// Graphs that are the driver's own cannot be read: while one lives, nothing is pressed.
#[test]
fn press_spares_what_it_cannot_read() {
    let (_, said) = right(pool("graph", "press", "1").env("GPUMEM_GRAPH_CACHE", "0").preloaded(), &native("graph"));
    assert!(number(&said, "flushes") >= 3 && number(&said, "pool_peak") > 3 * number(&said, "largest"), "{said}");
}

#[test]
fn press_never_meets_a_capture() {
    let native = native("capture");
    for own in POOLS {
        let (_, said) = right(pool("capture", "press", own).preloaded(), &native);
        assert!(number(&said, "flushes") >= 3, "pressed before and after: {said}");
    }
}

/// Without stacks the pool's requests and those for buffers are one call site: none is refused.
#[test]
fn press_needs_stacks() {
    let (ran, said) = right(pool("plain", "press", "1").env("GPUMEM_STACKS", "0").preloaded(), &native("plain"));
    assert_eq!(number(&said, "pool_failures"), 0);
    assert!(!events(&ran, EventKind::StrandedSite).is_empty(), "it is seen all the same");
}

/// Record only means that.
#[test]
fn press_is_not_done_where_only_recording_is_allowed() {
    let recorded = pool("plain", "press", "1").env("GPUMEM_RECORD_ONLY", "1");
    let (_, said) = right(recorded.preloaded(), &native("plain"));
    assert_eq!(number(&said, "pool_failures"), 0);
}

/// `gpumem trim --press` refuses one request of the site that strands most, whatever GPUMEM_STRANDED says.
#[test]
fn trim_press_is_an_empty_cache_from_outside() {
    let running = pool("wait", "report", "1").waits().start(true);
    running.says("half");
    let pid = running.pid().to_string();
    let said = running.gpumem(&["trim", "--press", &pid])["said"].to_string();
    assert!(said.contains("its next request is refused once") && said.contains(" MiB in "), "{said}");
    let ran = running.finish().ok();
    let said = ran.json();
    assert_eq!((number(&said, "pool_failures"), number(&said, "flushes")), (1, 1));
    assert!(number(&said, "flushed") >= 10 && number(&said, "other_failures") == 0, "{said}");
    assert!(number(&said, "pool_peak") < 10 * number(&said, "largest"), "{said}");
}

/// The same where that would end the program: it is told, and nothing happens.
#[test]
fn trim_press_leaves_programs_that_abort_alone() {
    let running = program("stranded_abort").args([STEPS, "wait"]).waits().start(true);
    running.says("half");
    let mut gpumem = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
    gpumem.env("GPUMEM_DIR", &running.dir).args(["trim", "--press", &running.pid().to_string()]);
    let answer = gpumem.output().expect("gpumem runs");
    let err = String::from_utf8_lossy(&answer.stderr);
    assert!(!answer.status.success() && err.contains("GPUMEM_STRANDED_RETRIES=1"), "{err}");
    let said = running.finish().ok().json();
    assert_eq!(number(&said, "pool_failures"), 0);
}

/// Further growth goes to managed memory: the prefill ends under a limit that its pool alone breaks thrice.
#[test]
fn spill_finishes_under_a_limit() {
    let abort = program("stranded_abort").args([STEPS, "plain"]);
    let native = abort.native().ok();
    let limited = abort.env("GPUMEM_LIMIT", "400MiB");
    assert_eq!(limited.preloaded().code, 3, "the limit holds");
    let (ran, said) = right(limited.env("GPUMEM_STRANDED", "spill").preloaded(), &native);
    assert!(number(&native.json(), "pool_peak") > 3 * (400 << 20));
    assert_eq!((number(&said, "pool_failures"), said["kinds"].clone()), (0, native.json()["kinds"].clone()));
    let ledger = ran.ledger();
    assert!(ledger.counter(counters::SPILLS) >= 10);
    let plain = number(&said, "pool_bytes") - ledger.counter(counters::SPILLED_BYTES);
    assert!(plain < 400 << 20, "{plain} bytes of the pool lay on the device");
}

/// GPUMEM_POOL_MANAGED: every buffer by which the program's pool grows is managed, and none that it works
/// with, though they are about as large.
#[test]
fn growth_of_a_pool_is_told_from_buffers() {
    let unit = 2 << 20;
    let of_pool = |n: u64| ((1.05 * (n * unit) as f64) as u64).next_multiple_of(256);
    let pool_sizes: Vec<u64> = (1..=48).map(of_pool).chain([42240]).collect();
    for mode in ["plain", "threads"] {
        let native = native(mode);
        let scratch = Scratch::new();
        let path = scratch.path().join("trace");
        let managed = pool(mode, "report", "1").env("GPUMEM_POOL_MANAGED", "1").env("GPUMEM_ALLOC_TRACE", &path);
        let (ran, said) = right(managed.preloaded(), &native);
        assert_eq!(said["kinds"]["device"]["bytes"], native.json()["kinds"]["device"]["bytes"]);
        let trace = trace::read(&std::fs::File::open(&path).expect("a trace")).expect("a trace");
        let made = trace.records.iter().filter(|record| record.action == Action::Alloc);
        let (managed, plain): (Vec<&trace::Record>, Vec<_>) =
            made.partition(|record| record.kind == AllocKind::Managed);
        assert!(managed.iter().all(|record| pool_sizes.contains(&record.bytes)), "a buffer was taken for growth");
        // What an idle block of the device serves is no growth.
        let hits = ran.ledger().counter(counters::POOL_HITS);
        let of_pool = plain.iter().filter(|record| pool_sizes.contains(&record.bytes)).count() as u64;
        assert_eq!(managed.len() as u64 + of_pool, number(&said, "pool_allocs"), "{mode}");
        assert!(of_pool <= hits && of_pool * 3 < number(&said, "pool_allocs"), "{mode}: {of_pool} of {hits}");
    }
}

/// Buffers that work still uses are not stranded, however they creep: seen in what the program gives the
/// device.
#[test]
fn what_is_still_used_is_not_stranded() {
    let creep = |how: &str, mode: &str, own: &str| {
        let start = program("pool_creep").arg(how).env("GPUMEM_STRANDED", mode).env("GPUMEM_STRANDED_RETRIES", "1");
        let ran = start.env("GPUMEM_POOL", own).preloaded().ok();
        assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{how}, {mode}, pool {own}");
        ran.ledger().sound().complete().balanced();
        (events(&ran, EventKind::StrandedSite).len(), number(&ran.json(), "pool_failures"))
    };
    for own in POOLS {
        let (reported, refused) = creep("none", "report", own);
        assert!(reported >= 1 && refused == 0, "{reported} reports");
        assert!(creep("none", "press", own).1 >= 2);
        for how in ["kernel", "packed", "attributes", "cooperative", "runtime", "fill", "copy", "rows", "volume"] {
            for mode in ["report", "press"] {
                assert_eq!(creep(how, mode, own), (0, 0), "{how}, {mode}, pool {own}");
            }
        }
    }
}
