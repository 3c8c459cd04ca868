//! The lines of code that a launch touches are counted in builds of each kind. `cost.cold_launch` of `make proof` holds an
//! optimised build to a bound.
#![cfg(target_arch = "x86_64")]

use gpumem_tests::harness::client;

#[test]
fn the_steps_of_a_launch_are_counted() {
    let counted = client("graph_steps").preloaded().ok();
    let of = |what: &str| counted.json()[what].as_i64().expect("a count");
    let (instructions, lines) = (of("instructions"), of("lines"));
    assert!(instructions > 50 && lines > 5, "it is our function that was counted: {instructions} on {lines} lines");
}
