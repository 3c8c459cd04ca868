//! Contexts and threads that begin and end without end, in a process that runs for ever. The host memory stays close to
//! the native run's, and the last ones are recorded like the first.

use gpumem_tests::harness::{Ran, client};

const KIB: u64 = 1 << 10;

/// How many bytes of host memory came between a tenth of so many and the last of them, natively and preloaded.
fn growth(what: &str, count: u64) -> (u64, u64, Ran) {
    let program = client("turnover").args([what, &count.to_string()]);
    let grown = |ran: &Ran| {
        let told: Vec<u64> = ran.err.lines().filter_map(|line| line.strip_prefix("host ")?.parse().ok()).collect();
        let [first, last] = told[..] else { panic!("{}", ran.err) };
        last.saturating_sub(first)
    };
    let (native, ran) = (program.native().ok(), program.preloaded().ok());
    assert_eq!(ran.violations(), native.violations());
    (grown(&native), grown(&ran), ran)
}

/// A server that makes a thread for each request, all with names of their own.
#[test]
fn threads_without_end_leave_nothing() {
    const COUNT: u64 = 20_000;
    let (native, preloaded, ran) = growth("threads", COUNT);
    // 122 bytes for each of them were kept with their names.
    let most = native + COUNT * 60;
    assert!(preloaded <= most, "{} KiB, natively {} KiB", preloaded / KIB, native / KIB);
    let ledger = ran.ledger();
    ledger.sound().complete().balanced().agrees_with(&ran.json());
    let last = format!("turn {}", COUNT - 1);
    let threads = &ledger.snapshot.threads;
    assert!(threads.iter().any(|thread| ledger.snapshot.text(thread.name) == last), "the last has no name");
}

/// A program makes a context for each task. Half of the contexts end with memory, streams and graphs in them.
#[test]
fn contexts_without_end_leave_nothing() {
    const COUNT: u64 = 4000;
    let (native, preloaded, ran) = growth("contexts", COUNT);
    // 630 bytes of each were kept. The simulator's own memory goes up and down by as much as it grows natively.
    let most = native + COUNT * 300;
    assert!(preloaded <= most, "{} KiB, natively {} KiB", preloaded / KIB, native / KIB);
    ran.ledger().sound().complete().balanced();
}
