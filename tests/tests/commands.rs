//! What `gpumem` changes in a process that runs.

use gpumem_tests::harness::client;
use serde_json::json;

const MIB: u64 = 1 << 20;

#[test]
fn the_bounds_of_the_graph_cache_change_too() {
    let running = client("held").waits().start(true);
    running.says("held");
    let pid = running.pid().to_string();
    for (name, value) in [("GRAPH_CACHE", "4"), ("graph_cache_bytes", "64MiB"), ("GPUMEM_GRAPH_IDLE", "250ms")] {
        running.gpumem(&["set", &pid, name, value]);
    }
    let cache = running.gpumem(&["stats", &pid])["cache"].clone();
    let bounds = ["max_execs", "max_bytes", "idle_ns"].map(|field| cache[field].as_u64().unwrap());
    assert_eq!(bounds, [4, 64 * MIB, 250_000_000]);
    running.gpumem(&["set", &pid, "GRAPH_CACHE", "default"]);
    assert_eq!(running.gpumem(&["stats", &pid])["cache"]["max_execs"], json!(512));
    let said = running.gpumem(&["events", &pid]).to_string();
    assert!(said.contains("gpumem set GPUMEM_GRAPH_CACHE_BYTES=64MiB"), "{said}");
    running.finish().ok();
}
