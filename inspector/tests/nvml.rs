//! The driver's books are shown beside the records. NVML is made up: it answers as nvml.h has it (measured on an H200,
//! driver 580: the same numbers as nvidia-smi).

mod common;
use common::*;
use serde_json::json;
use std::process::Command;

const SOURCE: &str = r#"
#include <string.h>
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) {
    if (strcmp(u, "KIND-30313233-3435-3637-3839-616263646566")) return 6;
    *d = (void *)1;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) { m->total = 1 << 30; m->used = 400 << 20; return 0; }
/* One more process than the caller has room for at first. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process_t *p) {
    unsigned have = *n, need = 257;
    *n = need;
    if (have < need) return 7;
    for (unsigned i = 0; i < need; i++) {
        p[i].pid = i + 1 == need ? PID : 1000000 + i;
        p[i].used = i + 1 == need ? 150 << 20 : ~0ull;
    }
    return 0;
}
"#;

/// That NVML, where devices have names of this kind, and a ledger of this process.
fn books(kind: &str) -> Dir {
    let dir = dir();
    let source = dir.path().join("nvml.c");
    std::fs::write(&source, SOURCE.replace("PID", &me().pid.to_string()).replace("KIND", kind)).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let library = dir.path().join("libnvidia-ml.so.1");
    let status = Command::new(cc).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success());
    dir.put(me(), demo(me()));
    dir
}

/// Returns the answer of a command beside that NVML.
fn ask(dir: &Dir, args: &[&str]) -> serde_json::Value {
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).env("LD_LIBRARY_PATH", dir.path()).args(args).arg("--json");
    let answer = answer(command);
    serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {}", answer.err))
}

/// On a card that is split (MIG) CUDA gives an instance's UUID, and NVML knows it by another name than a card.
#[test]
fn an_instance_of_a_card_is_found_by_its_own_name() {
    let report = ask(&books("MIG"), &["stats"]);
    assert_eq!(report["devices"][0]["used_bytes"], json!(400 * MIB), "{report}");
}

#[test]
fn the_drivers_books_are_read() {
    let dir = books("GPU");
    let check = |report: &serde_json::Value| {
        let device = &report["devices"][0];
        assert_eq!((&device["used_bytes"], &device["unexplained_bytes"]), (&json!(400 * MIB), &json!(52 * MIB)));
        let account = &device["of_process"];
        assert_eq!(account["counted_bytes"], 150 * MIB, "on the one device that it uses");
        let parts = account["parts"].as_array().unwrap().iter();
        let parts: Vec<_> =
            parts.map(|part| (part["name"].as_str().unwrap(), part["bytes"].as_u64().unwrap())).collect();
        assert_eq!(parts, [("device", 96 * MIB), ("graph execs", 2 * MIB)]);
        assert_eq!(account["rest_bytes"], 52 * MIB);
    };
    let report = ask(&dir, &["stats"]);
    assert_eq!(report["devices"][0]["used_source"], "driver");
    check(&report);
    // A dump takes the answers along.
    let dump = dir.path().join("dump");
    ask(&dir, &["dump", "-o", dump.to_str().unwrap()]);
    check(&dir.json(&["stats", dump.to_str().unwrap()]));
}

#[test]
fn a_look_that_is_older_than_the_records_explains_nothing() {
    let dir = dir();
    let mut ledger = begin(gone());
    use gpumem_wire::layout::{AllocSlot, ContextSlot};
    ledger.slots([ContextSlot { used_bytes: 10 * MIB, used_ns: 5, vendor: 1, ..Default::default() }]);
    ledger.slots([AllocSlot { bytes: 64 * MIB, kind: 1, context: 1, time_ns: 6, ..Default::default() }]);
    dir.put(gone(), ledger);
    let report = dir.json(&["stats"]);
    assert_eq!(report["devices"][0]["unexplained_bytes"], json!(null));
    assert!(dir.ok(&["stats"]).contains("more was allocated since it was measured"));
}

/// Nothing was allocated since the device was asked, so what all processes use is the most that this one can have.
#[test]
fn no_measured_part_is_shown_if_the_parts_are_more_than_all_processes_use() {
    use gpumem_wire::kinds::Taken;
    use gpumem_wire::layout::{AllocSlot, ContextSlot};
    let of = |streams: u64, recorded: u64| {
        let dir = dir();
        let mut ledger = begin(gone());
        let mut context = ContextSlot { used_bytes: 64 * MIB, used_ns: 5, vendor: 1, ..Default::default() };
        context.taken[Taken::Stream.place()] = streams;
        ledger.slots([context]);
        ledger.slots([AllocSlot { bytes: recorded, kind: 1, context: 1, time_ns: 4, ..Default::default() }]);
        dir.put(gone(), ledger);
        (dir.json(&["stats"])["devices"][0].clone(), dir.ok(&["stats"]))
    };
    let (device, text) = of(256 * MIB, 16 * MIB);
    assert_eq!(device["of_process"]["left_out_bytes"], json!(256 * MIB), "{device:#}");
    assert_eq!(device["unexplained_bytes"], json!(48 * MIB), "{device:#}");
    assert!(!text.contains("their queues") && text.contains("256.0 MiB of code and stacks"), "{text}");
    let (device, text) = of(32 * MIB, 16 * MIB);
    assert_eq!(device["unexplained_bytes"], json!(16 * MIB), "{device:#}");
    assert!(text.contains("~32.0 MiB  streams"), "{text}");
    // Records say more than the device, and the device was asked later.
    let (device, text) = of(0, 80 * MIB);
    assert_eq!(device["unexplained_bytes"], json!(null), "{device:#}");
    assert!(!text.contains("more was allocated since") && text.contains("add up to more than is used"), "{text}");
}
