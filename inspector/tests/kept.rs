//! Memory that the driver keeps beyond live allocations counts as explained.

mod common;
use common::*;
use gpumem_wire::kinds::{AllocKind, Vendor};
use gpumem_wire::layout::{AllocSlot, ContextSlot};
use serde_json::json;

#[test]
fn what_the_driver_keeps_is_explained() {
    let dir = dir();
    let dead = gone();
    let mut ledger = demo(dead);
    let context = |pool_mib: u64, graph_mib: u64, used_ns| ContextSlot {
        device: 1,
        vendor: Vendor::Cuda as u8,
        total_bytes: 1024 * MIB,
        used_bytes: 500 * MIB,
        used_ns,
        pool_bytes: pool_mib * MIB,
        graph_bytes: graph_mib * MIB,
        ..Default::default()
    };
    // Three contexts on one device: the newest look counts, and one that was never asked does not.
    ledger.slots([context(256, 24, 20), context(160, 32, 30), context(0, 0, 40)]);
    let of_pool =
        |mib: u64, context| AllocSlot { bytes: mib * MIB, kind: AllocKind::Async as u8, context, ..Default::default() };
    let left = AllocSlot { kind: AllocKind::GraphLeft as u8, ..of_pool(8, 2) };
    ledger.slots([of_pool(40, 2), of_pool(20, 3), left]);
    dir.put(dead, ledger);
    let report = dir.json(&["stats"]);
    let (plain, device) = (&report["devices"][0], &report["devices"][1]);
    assert_eq!((&plain["pool_idle_bytes"], &plain["graph_memory_bytes"]), (&json!(0), &json!(0)));
    assert_eq!((&device["pool_idle_bytes"], &device["graph_memory_bytes"]), (&json!(100 * MIB), &json!(24 * MIB)));
    assert_eq!(device["tracked_bytes"], 68 * MIB);
    assert_eq!(device["unexplained_bytes"], (500 - 60 - 100 - 32) * MIB);
    let text = squeeze(&dir.ok(&["stats", "--all"]));
    for line in [
        "\n~100.0 MiB idle in the driver's stream-ordered pool ",
        "\n~24.0 MiB memory nodes of graphs beyond graph-left: ",
        "\n308.0 MiB not explained ",
    ] {
        assert_eq!(text.matches(line).count(), 1, "{line}: only where there is some\n{text}");
    }
    let pid = report["process"]["pid"].to_string();
    let metrics = dir.ok(&["export", "--format", "prometheus", &pid]);
    let of_device = format!("gpumem_device_unexplained_bytes{{pid=\"{pid}\",process=\"demo-server\",device=\"1\"");
    assert!(!metrics.contains(&of_device), "seen long ago: {metrics}");
    for (name, mib) in [("pool_idle", 100), ("graph_memory", 24)] {
        let start = format!("gpumem_device_{name}_bytes{{pid=\"{pid}\",process=\"demo-server\",device=\"1\",uuid=");
        let line = metrics.lines().find(|line| line.starts_with(&start));
        assert!(line.is_some_and(|line| line.ends_with(&format!(" {}", mib * MIB))), "{start}\n{metrics}");
    }
}

/// The device is asked only at calls of the program. What others used then is known, and what this process holds now.
#[test]
fn used_bytes_follow_what_the_process_gives_back() {
    let (dir, dead) = (dir(), gone());
    let device = |pool_mib: u64| {
        let mut ledger = begin(dead);
        let context = ContextSlot { used_bytes: 200 * MIB, used_ns: 5, vendor: 1, ..Default::default() };
        let (not_ours, live_bytes, idle_bytes) = (120 * MIB + 1, 32 * MIB, 8 * MIB);
        ledger.slots([ContextSlot { not_ours, live_bytes, idle_bytes, pool_bytes: pool_mib * MIB, ..context }]);
        ledger.slots([AllocSlot { bytes: 32 * MIB, kind: AllocKind::Device as u8, context: 1, ..Default::default() }]);
        dir.put(dead, ledger);
        let device = dir.json(&["stats"])["devices"][0].clone();
        (device["used_bytes"].clone(), device["unexplained_bytes"].clone())
    };
    assert_eq!(device(0), (json!(160 * MIB), json!(120 * MIB)));
    // The bytes of freed stream-ordered memory that the driver keeps are as old as the look.
    assert_eq!(device(60), (json!(200 * MIB), json!((200 - 60 - 32 - 8) * MIB)));
}

#[test]
fn more_alive_than_the_pool_had_is_no_idle_memory() {
    let dir = dir();
    let mut ledger = begin(gone());
    ledger.slots([ContextSlot {
        used_bytes: 200 * MIB,
        used_ns: 5,
        vendor: 1,
        pool_bytes: 32 * MIB,
        ..Default::default()
    }]);
    ledger.slots([AllocSlot { bytes: 64 * MIB, kind: AllocKind::Async as u8, context: 1, ..Default::default() }]);
    dir.put(gone(), ledger);
    let report = dir.json(&["stats"]);
    assert_eq!(report["devices"][0]["pool_idle_bytes"], 0);
    assert_eq!(report["devices"][0]["unexplained_bytes"], 136 * MIB);
}
