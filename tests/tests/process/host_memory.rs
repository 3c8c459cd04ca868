//! Host memory that a process takes under the preload beyond the native run, part by part.

use gpumem_tests::harness::{Ran, program};
use serde_json::Value;

/// Steps that the program `starts` has done at its samples, and the memory that each may take beyond the native run,
/// KiB.
const PARTS: [(&str, i64); 4] = [
    ("the library is loaded", 320),
    ("the ledger, the control thread and the pool, for one allocation", 448),
    ("three threads that have allocated and rest", 256),
    ("the graph cache, for one graph", 160),
];

/// Anonymous memory of the process at each sample, KiB.
fn samples(ran: &Ran) -> [i64; PARTS.len()] {
    let lines = ran.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let samples: Vec<i64> =
        lines.filter_map(|line| Some((line["anonymous_mib"].as_f64()? * 1024.0).round() as i64)).collect();
    samples.try_into().unwrap_or_else(|_| panic!("{}", ran.out))
}

/// No page is touched before it is needed: tables begin small, and reserved address space takes no memory.
#[test]
fn each_part_takes_little_host_memory() {
    let [native, ours] = [program("starts").native(), program("starts").preloaded()].map(|ran| samples(&ran.ok()));
    let mut before = 0;
    let parts: Vec<i64> = (0..PARTS.len())
        .map(|at| ours[at] - native[at] - std::mem::replace(&mut before, ours[at] - native[at]))
        .collect();
    println!("KiB more than natively: {parts:?}");
    for ((part, most), takes) in PARTS.iter().zip(parts) {
        assert!(takes <= *most, "{part}: {takes} KiB, more than {most}");
    }
}
