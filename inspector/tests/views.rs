//! What the views show of a ledger that is known to the last byte.

mod common;
use common::*;

#[test]
fn ps_lists_the_running_and_the_dead() {
    let dir = dir();
    let sleeper = Sleeper::start();
    dir.put(sleeper.id(), demo(sleeper.id()));
    dir.put(gone(), demo(gone()));
    let text = dir.ok(&["ps"]);
    println!("{text}");
    let report = dir.json(&["ps"]);
    println!("{report:#}");
    for args in [
        &["allocs"][..],
        &["allocs", "--all"],
        &["allocs", "--by", "stack"],
        &["allocs", "--by", "kind"],
        &["allocs", "--freed"],
        &["graphs"],
        &["graphs", "--all"],
        &["stats", "--samples", "--all"],
    ] {
        println!("--- {args:?}\n{}", dir.ok(args));
    }
}
