//! Stranded growth: named by `report`, given back under `press`, and never at the cost of the program.
//!
//! `stranded_pool` allocates as ggml does without virtual memory; `stranded_abort` is the same without
//! a second try.

use gpumem_tests::harness::{Program, Ran, program};
use gpumem_wire::counters;
use gpumem_wire::kinds::EventKind;
use gpumem_wire::layout::EventSlot;
use serde_json::Value;

/// Steps of a prefill; the scratch of the last is 96 MiB.
const STEPS: &str = "48";

/// Without the pool, what the program frees is free: what is live is what it holds.
fn pool(mode: &str, stranded: &str) -> Program {
    program("stranded_pool").args([STEPS, mode]).env("GPUMEM_STRANDED", stranded).env("GPUMEM_POOL", "0")
}

fn number(said: &Value, name: &str) -> u64 {
    said[name].as_u64().unwrap_or_else(|| panic!("no {name} in {said}"))
}

fn events(ran: &Ran, kind: EventKind) -> Vec<EventSlot> {
    let ledger = ran.ledger();
    ledger.snapshot.events.iter().filter(|event| event.kind == kind as u8).copied().collect()
}

/// The program ran to its end with right results, did what it does natively, and broke no rule.
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
    let native = pool("plain", "report").native().ok();
    let (ran, said) = right(pool("plain", "report").preloaded(), &native);
    assert_eq!(number(&said, "pool_failures"), 0, "a report changes nothing");
    assert_eq!(said["kinds"], native.json()["kinds"]);
    let reported = events(&ran, EventKind::StrandedSite);
    // Once per doubling, of at least 16 MiB: not at each of the forty-odd allocations.
    assert!((4..=8).contains(&reported.len()), "{} reports", reported.len());
    assert!(reported.windows(2).all(|pair| pair[1].a >= 2 * pair[0].a), "{reported:?}");
    let last = reported.last().expect("a report");
    assert!(last.a * 2 >= number(&said, "pool_peak") - number(&said, "largest") && last.a < number(&said, "pool_peak"));
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

#[test]
fn off_looks_at_nothing() {
    let ran = pool("plain", "off").preloaded().ok();
    assert_eq!(ran.ledger().counter(counters::STRANDED_ADDED), 0);
    assert_eq!(events(&ran, EventKind::StrandedSite).len(), 0);
}

#[test]
fn press_bounds_the_peak_by_twice_what_is_needed() {
    let native = pool("plain", "press").native().ok();
    let (ran, said) = right(pool("plain", "press").preloaded(), &native);
    let (largest, peak) = (number(&said, "largest"), number(&said, "pool_peak"));
    assert!(number(&native.json(), "pool_peak") > 12 * largest, "the program strands: {}", native.out);
    assert!(peak <= largest * 21 / 10, "{peak} bytes for {largest}");
    let refused = number(&said, "pool_failures");
    assert!(refused >= 5, "{refused}");
    assert_eq!(refused, number(&said, "flushes"), "each refusal was one, and the second try succeeded");
    assert_eq!(ran.ledger().counter(counters::PRESS_REFUSALS), refused);
    assert_eq!(events(&ran, EventKind::Pressed).len() as u64, refused);
}

#[test]
fn press_serves_threads_with_pools_of_their_own() {
    let native = pool("threads", "press").native().ok();
    for _ in 0..3 {
        let (_, said) = right(pool("threads", "press").preloaded(), &native);
        let (largest, peak) = (number(&said, "largest"), number(&said, "pool_peak"));
        assert!(peak <= 2 * largest * 3, "{peak} bytes for two times {largest}");
        assert_eq!(number(&said, "pool_failures"), number(&said, "flushes"));
    }
}

/// Built without a second try, nothing says that it would try again: it is never refused.
#[test]
fn a_program_that_aborts_is_never_refused() {
    let abort = program("stranded_abort").args([STEPS, "plain"]).env("GPUMEM_POOL", "0");
    let native = abort.native().ok();
    let (ran, said) = right(abort.env("GPUMEM_STRANDED", "press").preloaded(), &native);
    assert_eq!((number(&said, "pool_failures"), said["kinds"].clone()), (0, native.json()["kinds"].clone()));
    assert_eq!(ran.ledger().counter(counters::PRESS_REFUSALS), 0);
    assert!(!events(&ran, EventKind::StrandedSite).is_empty(), "it is named all the same");
}

/// What the program itself says counts: then the refusal is not survived, and not repeated.
#[test]
fn the_users_word_is_taken() {
    let ran = program("stranded_abort")
        .args([STEPS, "plain"])
        .env("GPUMEM_POOL", "0")
        .env("GPUMEM_STRANDED", "press")
        .env("GPUMEM_STRANDED_RETRIES", "1")
        .preloaded();
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert_eq!(ran.ledger().counter(counters::PRESS_REFUSALS), 1);
}

/// A graph holds the addresses of scratch: while it lives, nothing makes the program free them.
#[test]
fn press_spares_what_a_live_graph_refers_to() {
    let native = pool("graph", "press").native().ok();
    let (_, said) = right(pool("graph", "press").preloaded(), &native);
    assert!(number(&said, "flushes") >= 3, "pressed before and after: {said}");
    let natively = number(&native.json(), "pool_peak");
    assert!(number(&said, "pool_peak") < natively * 3 / 4, "{said}");
    // As large as the growth of a third of the prefill, in which the graph lives.
    assert!(number(&said, "pool_peak") > 3 * number(&said, "largest"), "{said}");
}

/// Graphs that are the driver's own cannot be read: while one lives, nothing is pressed.
#[test]
fn press_spares_what_it_cannot_read() {
    let native = pool("graph", "press").native().ok();
    let (_, said) = right(pool("graph", "press").env("GPUMEM_GRAPH_CACHE", "0").preloaded(), &native);
    assert!(number(&said, "flushes") >= 3 && number(&said, "pool_peak") > 3 * number(&said, "largest"), "{said}");
}

#[test]
fn press_never_meets_a_capture() {
    let native = pool("capture", "press").native().ok();
    let (_, said) = right(pool("capture", "press").preloaded(), &native);
    assert!(number(&said, "flushes") >= 3, "pressed before and after: {said}");
}

/// Without stacks the pool's requests and those for buffers are one call site: none is refused.
#[test]
fn press_needs_stacks() {
    let native = pool("plain", "press").native().ok();
    let (ran, said) = right(pool("plain", "press").env("GPUMEM_STACKS", "0").preloaded(), &native);
    assert_eq!(number(&said, "pool_failures"), 0);
    assert!(!events(&ran, EventKind::StrandedSite).is_empty(), "it is seen all the same");
}

/// Record only means that.
#[test]
fn press_is_not_done_where_only_recording_is_allowed() {
    let native = pool("plain", "press").native().ok();
    let (_, said) = right(pool("plain", "press").env("GPUMEM_RECORD_ONLY", "1").preloaded(), &native);
    assert_eq!(number(&said, "pool_failures"), 0);
}
