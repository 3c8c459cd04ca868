//! A program may hold very many execs of graphs that have no real exec: what gpumem keeps for each of them is bounded.

use gpumem_tests::harness::client;
use gpumem_tests::harness::run::Running;
use gpumem_wire::counters;
use std::time::{Duration, Instant};

/// Handles that are made in a second.
const EACH: u64 = 4000;

/// gpumem's own bytes once a sample has seen what is there now.
fn own(ran: &Running) -> u64 {
    let samples = || ran.ledger().snapshot.samples;
    let last = |samples: &[_]| samples.last().map(|sample: &gpumem_wire::layout::SampleSlot| (sample.seq, sample.own));
    let (before, start) = (last(&samples()).map_or(0, |(seq, _)| seq), Instant::now());
    loop {
        // The first one after now may have been begun before.
        if let Some((seq, own)) = last(&samples()).filter(|&(seq, _)| seq > before + 1) {
            assert!(seq > 0 && own > 0, "it is counted");
            return own;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "samples come once a second");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Bytes of gpumem's own memory for each handle that the program made by this way and holds.
fn a_handle(how: &[&str]) -> u64 {
    let mut ran = client("own_bytes").arg(EACH.to_string()).args(how).waits().start(true);
    let mut makes = |seconds: u64| {
        ran.tell(&format!("go {seconds}"));
        ran.says(&format!("did {seconds}"));
        own(&ran)
    };
    // The first ones make what is made once.
    let (before, after) = (makes(1), makes(3));
    let (made, ended) = (counters::HANDLES_MADE, counters::HANDLES_ENDED);
    let ledger = ran.ledger();
    assert_eq!((ledger.counter(made), ledger.counter(ended)), (4 * EACH, 0), "all handles are there");
    (after - before) / (3 * EACH)
}

/// docs/decisions/graphs.md says what must be kept, and where.
#[test]
fn a_handle_at_rest_takes_few_bytes() {
    let (captured, built) = (a_handle(&[]), a_handle(&["built"]));
    println!("{captured} bytes a handle of a captured graph, {built} of one whose nodes the program has");
    assert!((64..=160).contains(&captured), "{captured} bytes a handle of a captured graph");
    assert!((64..=256).contains(&built), "{built} bytes a handle of a graph whose nodes the program has");
}
