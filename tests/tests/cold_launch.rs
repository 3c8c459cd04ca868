//! What a launch touches of code. Between two launches the device works for a while, and whatever the program does then
//! pushes our code out of the processor's caches: each line is one that the next launch waits for.
#![cfg(target_arch = "x86_64")]

use gpumem_tests::harness::client;

/// Lines of 64 bytes, of an optimised build: it takes 11 or 12, by where it begins.
const LINES: i64 = 14;
/// Instructions likewise; 164 were counted.
const INSTRUCTIONS: i64 = 200;

#[test]
fn a_launch_of_a_resident_exec_touches_few_lines_and_calls_nothing() {
    let counted = client("graph_steps").preloaded().ok();
    let of = |what: &str| counted.json()[what].as_i64().expect("a count");
    let (instructions, lines, outside) = (of("instructions"), of("lines"), of("outside"));
    assert!(instructions > 50 && lines > 5, "it is our function that was counted: {instructions} on {lines} lines");
    if cfg!(debug_assertions) {
        return;
    }
    assert_eq!(outside, 0, "neither the C library nor the kernel is asked for anything");
    assert!(lines <= LINES && instructions <= INSTRUCTIONS, "{instructions} instructions on {lines} lines");
}
