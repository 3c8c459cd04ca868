//! Every program runs natively and preloaded, with the same result and the same exit code. The ledger has
//! the program's own counts.

use gpumem_tests::harness::{Program, Ran, client, program};
use gpumem_wire::kinds::EventKind;
use serde_json::Value;

/// Members of a summary that may differ from run to run.
const VARYING: &[&str] = &["preloaded", "bytes_peak", "decode_seconds", "steps_per_second"];

/// The summary without what may differ: that depends on how threads happen to meet.
fn comparable(ran: &Ran) -> Value {
    let mut said = ran.json();
    if let Some(members) = said.as_object_mut() {
        members.retain(|name, _| !VARYING.contains(&name.as_str()));
        if let Some(kinds) = members.get_mut("kinds").and_then(Value::as_object_mut) {
            kinds.values_mut().filter_map(Value::as_object_mut).for_each(|kind| drop(kind.remove("peak")));
        }
    }
    said
}

/// Runs a program in all ways. The ledger of the last run is complete and has the program's counts.
#[track_caller]
fn same_in_all_ways(program: &Program) -> Ran {
    let native = program.native().ok();
    let without_stacks = program.clone().env("GPUMEM_STACKS", "0").preloaded().ok();
    let preloaded = program.preloaded().ok();
    for ran in [&without_stacks, &preloaded] {
        assert_eq!(comparable(ran), comparable(&native));
        assert_eq!(ran.violations(), native.violations());
        assert_eq!(ran.ours(), [""; 0], "nothing of ours on stderr");
        ran.ledger().agrees_with(&ran.json()).complete();
    }
    assert!(without_stacks.ledger().snapshot.stacks.is_empty());
    preloaded
}

#[test]
fn basic_has_every_kind() {
    let ran = same_in_all_ways(&program("basic"));
    ran.ledger().balanced();
    assert_eq!(
        limits_told(&ran),
        ["buffer of printf: 3.0 MiB", "stack of a GPU thread: 2.0 KiB", "stack of a GPU thread: 1.0 KiB"]
    );
}

/// Returns the ledger's messages about limits for which the driver takes device memory.
fn limits_told(ran: &Ran) -> Vec<String> {
    let said = ran.ledger().gpumem("events", &["--kind", EventKind::Message.name()]);
    let texts = said["events"].as_array().expect("events").iter().filter_map(|event| event["text"].as_str());
    texts.filter_map(|text| Some(text.strip_prefix("cuCtxSetLimit: ")?.to_owned())).collect()
}

#[test]
fn driver_has_every_driver_kind() {
    same_in_all_ways(&program("driver")).ledger().balanced();
}

#[test]
fn driver_dlopen_is_reached_by_dlsym() {
    same_in_all_ways(&program("driver_dlopen")).ledger().balanced();
}

#[test]
fn graphs_are_made_updated_and_gone() {
    same_in_all_ways(&program("graphs")).ledger().balanced();
}

/// The shim's own work in and around captures of every mode disturbs no capture.
#[test]
fn no_capture_is_disturbed() {
    for stacks in ["0", "128"] {
        let ran = program("captures").env("GPUMEM_STACKS", stacks).preloaded().ok();
        ran.ledger().agrees_with(&ran.json()).complete();
    }
    same_in_all_ways(&program("captures")).ledger().balanced();
}

/// With work that runs late, so that a call of ours at the wrong time would show.
#[test]
fn no_capture_is_disturbed_when_work_lags() {
    same_in_all_ways(&program("captures").env("SIM_LAG_US", "300")).ledger().balanced();
}

/// Codes, last-error state, and wrong frees are as natively.
#[test]
fn errors_answer_as_native() {
    let ran = same_in_all_ways(&program("errors").arg("benign"));
    ran.ledger().balanced();
}

/// A sticky error stays sticky, and the memory that can no longer be freed stays listed.
#[test]
fn sticky_errors_stay() {
    let program = program("errors");
    let (native, preloaded) = (program.native(), program.preloaded());
    assert_eq!((preloaded.code, comparable(&preloaded)), (native.code, comparable(&native)), "{}", preloaded.err);
    assert_eq!(preloaded.violations(), native.violations());
    let ledger = preloaded.ledger();
    ledger.agrees_with(&preloaded.json());
    let live = ledger.snapshot.allocs.iter().filter(|alloc| alloc.takes_memory());
    assert_eq!(live.map(|alloc| alloc.bytes).collect::<Vec<_>>(), [4096]);
}

/// A fresh thread without a context, through the runtime and through the driver.
#[test]
fn threads_without_a_context() {
    same_in_all_ways(&program("noctx")).ledger().balanced();
}

/// The first call, by sixteen threads at once; again and again, since it is a race.
#[test]
fn concurrent_first_use() {
    same_in_all_ways(&program("firstuse")).ledger().balanced();
    for _ in 0..25 {
        let ran = program("firstuse").preloaded().ok();
        ran.ledger().agrees_with(&ran.json()).complete().balanced();
    }
}

/// Many threads, and all balances to zero.
#[test]
fn threads_balance_to_zero() {
    same_in_all_ways(&program("threads").args(["8", "60"])).ledger().balanced();
}

/// More threads than the counters have shards.
#[test]
fn more_threads_than_shards_balance_to_zero() {
    let ran = program("threads").args(["48", "12"]).preloaded().ok();
    ran.ledger().agrees_with(&ran.json()).complete().balanced();
}

/// A workload as llama-server's.
#[test]
fn demo_balances_to_zero() {
    let args = ["--iterations", "60", "--weights", "8", "--kv", "1", "--prefill", "12", "--slots", "3"];
    same_in_all_ways(&program("demo").args(args)).ledger().balanced();
}

/// The functions for per-thread default streams are counted as their twins are.
#[test]
fn per_thread_twins_are_counted() {
    same_in_all_ways(&client("twins")).ledger().balanced();
}

/// Likewise the runtime's, as compilers call them for per-thread default streams.
#[test]
fn runtime_per_thread_twins_are_counted() {
    same_in_all_ways(&client("perthread")).ledger().balanced();
}

/// NULL for an out-parameter gets the native answer, whether it is allowed or not.
#[test]
fn null_out_parameters() {
    let program = client("nulls");
    let (native, preloaded) = (program.native(), program.preloaded());
    assert_eq!(native.code, 0, "{}", native.err);
    assert_eq!((preloaded.code, &preloaded.out, &preloaded.err), (0, &native.out, &native.err));
    preloaded.ledger().sound().balanced();
}

/// The shim reads and writes an out-parameter only after the call has succeeded. An invalid pointer does no harm to a
/// call that fails.
#[test]
fn wild_out_parameters_of_calls_that_fail() {
    let program = client("wild");
    let (native, preloaded) = (program.native(), program.preloaded());
    assert_eq!(native.code, 0, "{}{}", native.out, native.err);
    assert_eq!((preloaded.code, &preloaded.out, &preloaded.err), (0, &native.out, &native.err));
    preloaded.ledger().sound().balanced();
}

/// An invalid pointer to a description does no harm to a call that fails for another reason, also if its size would be
/// checked against a limit.
#[test]
fn wild_descriptions_of_calls_that_fail() {
    let program = client("wild_in");
    let native = program.native();
    assert_eq!(native.code, 0, "{}{}", native.out, native.err);
    for program in [client("wild_in"), client("wild_in").env("GPUMEM_LIMIT", "64MiB")] {
        let preloaded = program.preloaded();
        assert_eq!((preloaded.code, &preloaded.out, &preloaded.err), (0, &native.out, &native.err));
        preloaded.ledger().sound().balanced();
    }
}

/// Memory of cudaMalloc can be exported. The importer's ledger lists it as an import.
#[test]
fn ipc_between_two_processes() {
    use gpumem_wire::counters;
    use gpumem_wire::kinds::AllocKind;
    let ran = same_in_all_ways(&program("ipc"));
    ran.ledger().balanced();
    let ledgers = ran.ledgers();
    assert_eq!(ledgers.len(), 2, "one of the parent, one of the child");
    let child = ledgers.iter().find(|ledger| ledger.id.pid != ran.pid).expect("the child's");
    child.sound().complete().balanced();
    assert_eq!(child.counter(counters::allocs(AllocKind::IpcImport)), 3);
}

/// Two runtimes in one process, by turns: each call reaches the runtime of its caller.
#[test]
fn two_runtimes_in_one_process() {
    let programs = &gpumem_tests::harness::artifacts().programs;
    for [older, newer] in [["plugin_a.so", "plugin_b.so"], ["plugin_c.so", "plugin_a.so"]] {
        let both = program("plugin").args([programs.join(older), programs.join(newer)]);
        let ran = same_in_all_ways(&both);
        ran.ledger().balanced();
        let versions = ran.json()["runtime_versions"].clone();
        assert!(versions[0].as_u64() < versions[1].as_u64(), "two versions, each its own: {versions}");
    }
}

/// Runtimes before 12 delay the change of cudaSetDevice until the next call. That call has the device that its
/// thread has chosen as well, whatever device another runtime's allocations used last.
#[test]
fn each_runtime_allocates_on_the_device_that_was_chosen() {
    let programs = &gpumem_tests::harness::artifacts().programs;
    for plugins in [&["c"][..], &["a"], &["a", "c"], &["c", "a"], &["a", "b", "c"]] {
        let plugins: Vec<_> = plugins.iter().map(|name| programs.join(format!("plugin_{name}.so"))).collect();
        let all = client("runtimes").args(&plugins).env("SIM_DEVICES", "2");
        let (native, preloaded) = (all.native().ok(), all.preloaded().ok());
        assert_eq!(native.out, "0 0 0 1 0\n".repeat(plugins.len()));
        assert_eq!(preloaded.out, native.out, "{plugins:?}");
        preloaded.ledger().sound().balanced();
    }
}

/// A plugin loaded RTLD_LOCAL, as ggml loads its backends.
#[test]
fn plugin_loaded_locally() {
    same_in_all_ways(&program("plugin")).ledger().balanced();
}

/// Tags and reported parts are listed under their names.
#[test]
fn tags_appear() {
    let ran = program("tags").arg("600").start(true);
    ran.says("\"tags\"");
    let said: Value = serde_json::from_str(ran.stdout().trim()).expect("the summary");
    let ledger = ran.ledger();
    ledger.complete();
    let bytes = |tag: &str| -> u64 {
        let listed = ledger.snapshot.allocs.iter().filter(|alloc| alloc.kind == 1);
        listed.filter(|alloc| ledger.snapshot.text(alloc.tag) == tag).map(|alloc| alloc.bytes).sum()
    };
    let answer = ran.gpumem(&["allocs", "--by", "tag"]);
    for tag in ["weights", "model", "scratch"] {
        assert_eq!(bytes(tag), said["tags"][tag].as_u64().expect("a number"), "{tag}");
        let row = answer["rows"].as_array().expect("rows").iter().find(|row| row["key"] == tag);
        assert_eq!(row.map(|row| &row["bytes"]), Some(&said["tags"][tag]), "{tag} in {answer}");
    }
    assert_eq!(bytes(""), 1000, "untagged");
    let reported = ran.gpumem(&["allocs", "--all", "--kind", "reported"]);
    assert_eq!(reported["address_bytes"], said["reported"]["kv-pages"], "{reported}");
    assert_eq!((&reported["addresses"], &reported["bytes"]), (&15.into(), &0.into()));
    // They lie in the memory with the tag `model`, and are shown there.
    let rows = answer["rows"].as_array().expect("rows").iter();
    let inside: Vec<_> = rows.filter(|row| !row["parts"].is_null()).map(|row| (&row["key"], &row["parts"])).collect();
    let [(key, parts)] = &inside[..] else { panic!("{inside:#?}") };
    let part = &parts[0];
    assert_eq!((*key, &part["pool"], &part["live"]), (&"model".into(), &"kv-pages".into(), &15.into()), "{parts}");
    assert!(part["bytes"] == reported["address_bytes"] && part["site"].to_string().contains("main tags.c"), "{parts}");
}

/// GPUMEM_TAG names what the program does not; regions of the program's own win.
#[test]
fn a_default_tag_is_for_what_has_none() {
    let ran = program("tags").arg("600").env("GPUMEM_TAG", "job 7").start(true);
    ran.says("\"tags\"");
    let ledger = ran.ledger();
    let mut tags: Vec<_> = ledger.snapshot.allocs.iter().filter(|alloc| alloc.kind == 1).collect();
    tags.sort_by_key(|alloc| alloc.serial);
    let names: Vec<_> = tags.iter().map(|alloc| ledger.snapshot.text(alloc.tag).into_owned()).collect();
    assert_eq!(names[..3], ["weights", "model", "job 7"]);
}

/// Memory on several devices is counted for each device. A reset ends the memory of its device.
#[test]
fn several_devices_and_resets() {
    let devices = client("devices").env("SIM_DEVICES", "3");
    let running = devices.clone().waits().start(true);
    running.says("devices");
    let stats = running.gpumem(&["stats"]);
    let rows = stats["devices"].as_array().expect("devices");
    let tracked: Vec<_> = rows.iter().map(|row| (row["device"].as_u64(), row["tracked_bytes"].as_u64())).collect();
    assert_eq!(tracked, (0..3).map(|n| (Some(n), Some((n + 1) << 20))).collect::<Vec<_>>());
    let ran = running.finish().ok();
    ran.ledger().agrees_with(&ran.json()).complete().balanced();
    assert_eq!(ran.ledger().counter(gpumem_wire::counters::ENDED_WITH_CONTEXT), 2);
    same_in_all_ways(&devices).ledger().balanced();
}

/// The figures of stats for a process's memory are plausible if graphs really take some of it: both if the program
/// keeps its graphs, and if they are folded.
#[test]
fn host_memory_of_graphs_is_explained() {
    let args = "--iterations 60 --weights 8 --kv 1 --prefill 4 --never-evict --nodes 200 --hold 600".split(' ');
    let demo = program("demo").args(args).env("SIM_HOST_HEAP", "real");
    let mut of_graphs = Vec::new();
    for fold in ["0", "1"] {
        let running = demo.clone().env("GPUMEM_GRAPH_FOLD", fold).start(true);
        running.says("\"demo\"");
        let stats = running.gpumem(&["stats"]);
        let host = |member: &str| stats["host"][member].as_u64().unwrap_or_else(|| panic!("no {member} in {stats}"));
        let (rss, explained) = (host("rss_bytes"), host("explained_bytes"));
        let (graphs, execs) = (host("graph_bytes"), host("exec_bytes"));
        assert!(execs > 1 << 20 && execs > graphs, "{stats}");
        assert!(explained >= graphs + execs && explained <= rss, "{explained} of {rss} explained, fold {fold}");
        assert_eq!(host("unexplained_bytes"), rss - explained);
        of_graphs.push(graphs);
    }
    assert!(of_graphs[0] > 1 << 20 && of_graphs[1] * 20 < of_graphs[0], "bytes of graphs: {of_graphs:?}");
}
