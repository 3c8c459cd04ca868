//! The lines of code that a launch touches are counted in builds of each kind. `cost.cold_launch` of `make proof` holds an
//! optimised build to a bound.
#![cfg(target_arch = "x86_64")]

use gpumem_tests::harness::{Ran, client};

/// Instructions of a launch of a resident exec at most, in a build without optimisation: 2598 were counted, on 215 lines.
const INSTRUCTIONS: i64 = 3500;

#[test]
fn the_steps_of_a_launch_are_counted() {
    let of = |ran: &Ran| ["instructions", "lines"].map(|what| ran.json()[what].as_i64().expect("a count"));
    let steps = client("graph_steps");
    assert_eq!(of(&steps.native().ok()), [0, 0], "without the preload nothing of it is run");
    let [instructions, lines] = of(&steps.preloaded().ok());
    assert!(instructions <= INSTRUCTIONS && lines < instructions / 4, "{instructions} on {lines} lines");
    // More is done, and counted, for a launch whose writes have to be checked.
    let [guarded, more_lines] = of(&steps.env("GPUMEM_GUARD", "1").preloaded().ok());
    assert!(guarded > 2 * instructions && more_lines > lines, "{guarded} on {more_lines}, {instructions} on {lines}");
}
