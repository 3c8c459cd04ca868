//! The location of memory decides which sum it is in, and if a limit applies to it. Bytes count once.

use gpumem_tests::harness::run::Running;
use gpumem_tests::harness::{Ran, artifacts, client};
use gpumem_wire::counters;
use gpumem_wire::kinds::GrowthKind;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Runs a case natively and preloaded, which has to make no difference to the program.
#[track_caller]
fn ran(case: &str, variables: &[(&str, &str)]) -> Ran {
    let program = client("locations").arg(case).envs(variables);
    let native = program.native().ok();
    let ran = program.preloaded().ok();
    assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()), "{case} {variables:?}");
    ran.ledger().sound().complete();
    ran
}

/// MiB live on the device, on the host, managed, and in unknown places; and the number of allocations.
#[track_caller]
fn live(ran: &Ran) -> [u64; 5] {
    let ledger = ran.ledger();
    let of = |live: &Value| {
        let bytes = ["device", "host", "managed", "unknown"].map(|memory| live[memory].as_u64().expect("bytes"));
        let count = live["count"].as_u64().expect("a count");
        [bytes[0] / MIB, bytes[1] / MIB, bytes[2] / MIB, bytes[3] / MIB, count]
    };
    let stats = ledger.gpumem("stats", &[]);
    let now = of(&stats["live"]);
    assert_eq!(of(&ledger.gpumem("allocs", &[])["process_live"]), now);
    assert_eq!(stats["devices"][0]["tracked_bytes"], now[0] * MIB, "what lies on the device");
    let host = &stats["host"];
    let pinned = host["pinned_bytes"].as_u64().expect("bytes") + host["registered_bytes"].as_u64().expect("bytes");
    assert_eq!(pinned, now[1] * MIB);
    now
}

/// Live MiB, MiB ever allocated, and how often, of the call site with this function.
#[track_caller]
fn of_site(ran: &Ran, function: &str) -> (u64, u64, u64) {
    let said = ran.ledger().gpumem("allocs", &["--by", "site"]);
    let rows = said["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["key"].as_str().expect("a name").starts_with(function));
    let row = row.unwrap_or_else(|| panic!("{function} in {said:#}"));
    let number = |field: &str| row[field].as_u64().unwrap_or_else(|| panic!("{field} of {row:#}"));
    (number("bytes") / MIB, number("total_bytes") / MIB, number("total_allocs"))
}

/// Programs that a limit of the device must not touch, and the memory that they hold then.
#[test]
fn memory_of_the_host_and_managed_memory_are_told_apart_and_never_refused() {
    for limit in [&[][..], &[("GPUMEM_LIMIT", "256MiB")], &[("GPUMEM_POOL", "0"), ("GPUMEM_LIMIT", "16MiB")]] {
        assert_eq!(live(&ran("hostnuma", limit)), [0, 258, 0, 0, 2], "{limit:?}");
        assert_eq!(live(&ran("pools", limit)), [0, 512, 512, 0, 2], "{limit:?}");
    }
    let ran = ran("hostnuma", &[]);
    let said = ran.ledger().gpumem("allocs", &["--all", "--sort", "bytes"]);
    let of = |row: &Value| (row["location"].as_str().expect("words").to_owned(), row["kind"].clone());
    let rows: Vec<_> = said["rows"].as_array().expect("rows").iter().map(of).collect();
    let physical = Value::from("vmm-physical");
    let places = ["host node 0", "host"].map(|place| (place.to_owned(), physical.clone()));
    assert_eq!(rows, places, "{said:#}");
}

#[test]
fn memory_of_the_devices_pools_is_the_devices() {
    let ran = ran("device_pools", &[]);
    assert_eq!(live(&ran), [56, 0, 0, 0, 3]);
}

#[test]
fn a_limit_holds_for_what_lies_on_the_device() {
    let ran = client("locations").arg("beyond").env("GPUMEM_LIMIT", "256MiB").preloaded().ok();
    assert!(ran.out.starts_with("2 2 2\n"), "{}", ran.out);
    assert_eq!(live(&ran), [0; 5]);
}

/// Addresses and mappings are in no sum of bytes, times or totals. They are shown apart.
#[test]
fn bytes_count_once() {
    let ran = ran("segments", &[]);
    assert_eq!(live(&ran), [128, 0, 0, 0, 64]);
    // The parts are made by `physical`, which `one_segment` calls; what it reserves and maps is its own.
    let ledger = ran.ledger();
    let said = ledger.gpumem("allocs", &["--by", "stack"]);
    let total: u64 = said["rows"].as_array().expect("rows").iter().filter_map(|row| row["total_bytes"].as_u64()).sum();
    assert_eq!(total, 128 * MIB, "{said:#}");
    let all = ledger.gpumem("allocs", &["--by", "kind"]);
    let kind = |name: &str| all["rows"].as_array().expect("rows").iter().find(|row| row["key"] == name).cloned();
    let reserved = kind("vmm-reservation").expect("a row of addresses");
    assert_eq!((&reserved["bytes"], &reserved["address_bytes"]), (&0.into(), &(2048 * MIB).into()));
    let mapped = kind("vmm-mapping").expect("a row of mappings");
    assert_eq!(
        (&mapped["live"], &mapped["addresses"], &mapped["address_bytes"]),
        (&0.into(), &64.into(), &(128 * MIB).into())
    );
    assert_eq!((&all["bytes"], &all["live"]), (&(128 * MIB).into(), &64.into()));
}

/// Memory that nodes of graphs allocate is listed by node, with its graph, until graph and exec are gone. Its bytes are in
/// no sum: the driver counts what launches take. A free of it is no unknown one.
#[test]
fn memory_of_nodes_is_listed_with_its_graph() {
    for limit in [&[][..], &[("GPUMEM_LIMIT", "16MiB")], &[("GPUMEM_GRAPH_CACHE", "0")]] {
        let ran = ran("nodes", limit);
        assert_eq!(live(&ran), [0; 5], "{limit:?}");
        let ledger = ran.ledger();
        assert_eq!(ledger.counter(counters::UNKNOWN_FREES), 0);
        let said = ledger.gpumem("allocs", &["--all", "--kind", "graph-node", "--sort", "bytes"]);
        let of = |row: &Value| {
            let (location, bytes) = (row["location"].as_str().expect("words"), row["bytes"].as_u64().expect("bytes"));
            (location.starts_with("graph 0x"), bytes / MIB, row["device"].clone(), row["kind"].clone())
        };
        let rows: Vec<_> = said["rows"].as_array().expect("rows").iter().map(of).collect();
        let node = |mib| (true, mib, Value::from("0: Simulated GPU"), Value::from("graph-node"));
        assert_eq!(rows, [node(64), node(32)], "{said:#}");
        let kinds = ledger.gpumem("allocs", &["--by", "kind"]);
        assert_eq!((&kinds["address_bytes"], &kinds["addresses"]), (&(96 * MIB).into(), &2.into()), "{kinds:#}");
        let sites = ledger.gpumem("allocs", &["--by", "site", "--kind", "graph-node"]);
        let keys: Vec<_> = sites["rows"].as_array().expect("rows").iter().map(|row| row["key"].to_string()).collect();
        assert!(keys.iter().any(|key| key.contains("node_of")), "{keys:?}");
        // A graph that lives is named as in the other list.
        let graphs: Vec<_> = ledger.snapshot.graphs.iter().map(|graph| format!("graph {:#x}", graph.handle)).collect();
        assert_eq!(graphs, [said["rows"][0]["location"].as_str().expect("words")]);
    }
}

/// Memory that is no longer mapped is held by its handles.
#[test]
fn handles_that_nobody_releases_hold_memory() {
    let ran = ran("exported", &[]);
    assert_eq!(live(&ran), [240, 0, 0, 0, 30]);
    assert_eq!(of_site(&ran, "physical"), (240, 240, 30));
    let nowhere = |ran: &Ran| {
        let said = ran.ledger().gpumem("leaks", &[]);
        let row = said["suspects"].as_array().expect("rows").iter().find(|row| row["kind"] == "site");
        row.expect("a site")["mapped_nowhere"].clone()
    };
    assert_eq!((nowhere(&ran), nowhere(&self::ran("segments", &[]))), (30.into(), Value::Null));
}

/// A location that the tables do not know has a sum of its own, is told in one line, and no limit applies to it.
#[test]
fn an_unknown_location_is_told_once_and_guessed_nowhere() {
    let ran = ran("unknown", &[("SIM_LATER_PLACE", "9"), ("GPUMEM_LIMIT", "8MiB")]);
    assert_eq!(live(&ran), [0, 0, 0, 64, 3]);
    let messages = ran.ledger().messages();
    let told: Vec<_> = messages.iter().filter(|line| line.contains("at a location of type 9")).collect();
    assert_eq!(told.len(), 1, "{messages:?}");
    let text =
        std::process::Command::new(&artifacts().gpumem).args(["allocs", "--file"]).arg(&ran.ledger().path).output();
    let text = String::from_utf8(text.expect("gpumem runs").stdout).expect("text");
    assert!(text.contains("0 B device, 64.0 MiB in unknown places"), "{text}");
}

/// A pool that the program has by no call that was seen is unknown until it gave memory. The driver is asked then, unless
/// something captures, and the answer is the pool's.
#[test]
fn where_memory_of_an_unseen_pool_lies_is_asked_once_it_is_there() {
    assert_eq!(live(&ran("unseen", &[])), [18, 160, 64, 4, 6]);
    // What is not known yet is not limited. Afterwards it is.
    let ran = client("locations").arg("unseen_beyond").env("GPUMEM_LIMIT", "256MiB").preloaded().ok();
    assert!(ran.out.starts_with("0 2 \n"), "{}", ran.out);
    assert_eq!(live(&ran), [512, 0, 0, 0, 1]);
}

/// Samples have the sum of what lies in unknown places, so that its growth is seen.
#[test]
fn samples_tell_what_lies_in_unknown_places() {
    // Samples come once a second.
    let ran = client("locations").args(["unknown", "3"]).env("SIM_LATER_PLACE", "9").preloaded().ok();
    let last = ran.ledger().snapshot.samples.last().copied().expect("a sample");
    assert_eq!((last.unknown_live, last.device_live, last.host_live, last.managed_live), (64 * MIB, 0, 0, 0));
}

/// Bytes of the program's heap, and of gpumem's own memory, once a sample has seen what is there now.
fn own_and_heap(ran: &Running) -> (u64, u64) {
    std::thread::sleep(std::time::Duration::from_millis(1300));
    let ledger = ran.ledger();
    let mut rows = ledger.snapshot.growth.rows();
    let (_, heap) = rows.find(|(_, row)| row.kind == GrowthKind::Heap as u8).expect("a row of the heap");
    (heap.bytes, ledger.snapshot.samples.last().expect("a sample").own)
}

/// Memory that gpumem takes, for handles and for a search, is counted exactly and never called the program's heap.
#[test]
fn gpumems_own_bytes_are_not_the_programs_heap() {
    let mut ran = client("own_bytes").arg("1000").env("GPUMEM_GROWTH_INTERVAL", "200ms").waits().start(true);
    ran.tell("go 1");
    ran.says("did 1");
    let before = own_and_heap(&ran);
    ran.tell("go 4");
    ran.says("did 4");
    let after = own_and_heap(&ran);
    let own = after.1 - before.1;
    assert!(own > MIB / 4, "4000 handles take memory: {before:?}, {after:?}");
    assert!(after.0 < before.0 + MIB, "the heap of the program stands still: {before:?}, {after:?}");
    // A search takes memory of its own, and keeps some of it.
    let path = ran.ledger().path;
    let dir = path.parent().expect("the ledgers' folder");
    let mut why = String::new();
    let mut search = || {
        let mut gpumem = std::process::Command::new(&artifacts().gpumem);
        let said = gpumem.arg("--dir").arg(dir).args(["leaks", "--suspect"]).output().expect("gpumem runs");
        why = String::from_utf8_lossy(&said.stderr).into_owned();
        said.status.success()
    };
    // A busy machine may not answer in time. The search that it has begun then goes on, and no other begins.
    let has_answered = (0..10).any(|_| {
        let has_answered = search();
        if !has_answered {
            std::thread::sleep(std::time::Duration::from_secs(3));
        }
        has_answered
    });
    assert!(has_answered, "it never answers: {why}");
    let searched = own_and_heap(&ran);
    assert!(searched.0 < after.0 + MIB, "a search is no growth of the program: {after:?}, {searched:?}");
}
