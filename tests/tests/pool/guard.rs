//! GPUMEM_GUARD: each kind of planted bug is found and named, and clean programs have no findings.

use gpumem_tests::harness::{Program, Ran, program};
use gpumem_wire::counters;
use serde_json::Value;

const ON: (&str, &str) = ("GPUMEM_GUARD", "1");
const FRONT: (&str, &str) = ("GPUMEM_GUARD", "front");
const SYNC: (&str, &str) = ("GPUMEM_GUARD", "sync");

fn with(bugs: &[&str], setting: &[(&str, &str)]) -> Ran {
    let ran = program("pool_guard").args(bugs).envs(setting).preloaded().ok();
    ran.ledger().sound().complete().balanced();
    ran
}

/// Events of a kind.
fn events(ran: &Ran, kind: &str) -> Vec<Value> {
    ran.ledger().gpumem("events", &["--kind", kind])["events"].as_array().expect("events").clone()
}

/// That there is one finding of this kind, with these words, from the function that planted it.
#[track_caller]
fn found(ran: &Ran, kind: &str, words: &[&str], planted_by: &str) {
    let found = events(ran, kind);
    assert_eq!(found.len(), 1, "{found:?}\n{}", ran.err);
    let (text, site) = (found[0]["text"].as_str().unwrap(), found[0]["site"].as_str().unwrap());
    for word in words {
        assert!(text.contains(word), "{word:?} in {text:?}");
        assert!(kind == "freed-graph-launched" || ran.err.contains(word), "{word:?} in {}", ran.err);
    }
    assert!(site.contains(planted_by), "{site}");
}

#[test]
fn writes_behind_a_block_are_found_at_its_free() {
    for (bug, words) in [
        ("over1", ["1 byte written behind a block of 1023 B", "byte 1 behind its end"]),
        ("over4", ["4 bytes written behind a block of 1.0 MiB", "bytes 1 to 4 behind its end"]),
        ("over512", ["512 bytes written behind a block of 1.0 MiB", "bytes 1 to 512 behind its end"]),
        ("overunit", ["512 bytes written behind a block of 2.0 MiB", "bytes 1 to 512 behind its end"]),
    ] {
        let ran = with(&[bug], &[ON]);
        found(&ran, "written-outside", &words, "behind pool_guard.c");
        assert_eq!(ran.ledger().counter(counters::GUARD_OUTSIDE), 1);
        let writers = events(&ran, "possible-writer");
        assert!(writers[0]["text"].as_str().unwrap().ends_with("gpumem_fill"), "{writers:?}");
        assert_eq!(writers[0]["b"], 1, "it was given the address: {writers:?}");
        assert!(writers[0]["site"].as_str().unwrap().contains("k_fill pool.h"), "{writers:?}");
    }
}

/// The last launches are kept. Work that no block is an argument of cannot have made a write, and takes no place of theirs.
#[test]
fn the_writer_is_named_after_much_work_that_writes_nothing() {
    let ran = with(&["events"], &[ON]);
    found(&ran, "written-outside", &["16 bytes written behind a block of 1.0 MiB"], "before_events pool_guard.c");
    let named = |ran: &Ran, words: &str| {
        let writers = events(ran, "possible-writer");
        let first = writers.first().unwrap_or_else(|| panic!("nobody: {}", ran.err));
        assert!(first["text"].as_str().unwrap().ends_with(words) && first["b"] == 1, "{writers:?}");
    };
    named(&ran, "gpumem_fill");
    for (bug, setting) in [("copy", ON), ("fill", ON)] {
        named(&with(&[bug], &[setting]), "a copy, fill or other work");
    }
}

/// By whom it was written, how it was freed, and among how many blocks, is all the same.
#[test]
fn whoever_writes_behind_a_block_is_found() {
    for (bug, words, planted_by) in [
        ("many", "32 bytes written behind a block of 64.0 KiB", "one_of_many pool_guard.c"),
        ("thread", "128 bytes written behind a block of 1.0 MiB", "another_thread pool_guard.c"),
        ("graphover", "64 bytes written behind a block of 1.0 MiB", "graph_behind pool_guard.c"),
        ("copy", "4 bytes written behind a block of 1.0 MiB", "copies_behind pool_guard.c"),
        ("fill", "4 bytes written behind a block of 1.0 MiB", "fills_behind pool_guard.c"),
    ] {
        found(&with(&[bug], &[ON]), "written-outside", &[words], planted_by);
    }
    // Where an address outlives its block the second block is another one, and is not written to.
    let ran = with(&["stale", "clean"], &[ON, ("GPUMEM_GUARD_MAX", "4MiB")]);
    found(
        &ran,
        "written-after-free",
        &["64 bytes written to a block of 1.0 MiB", "bytes 65536 to 65599"],
        "stale pool_guard.c",
    );
}

/// Memory that is used again was filled and read when it was freed. So an allocation asks the driver for nothing, and a
/// free that follows another one without work between them does not wait.
#[test]
fn memory_that_is_used_again_costs_its_free_alone() {
    let ran = with(&["again"], &[ON, ("GPUMEM_GUARD_MAX", "6MiB")]);
    let asked = |name: &str| {
        let line = ran.out.lines().find_map(|line| line.strip_prefix(&format!("40 rounds: {name} ")));
        line.and_then(|number| number.parse::<u64>().ok()).expect(name)
    };
    assert_eq!(asked("cuMemAlloc_v2"), 0);
    assert_eq!(asked("cuMemsetD8Async"), 80, "each freed block is filled once");
    assert_eq!(asked("cuLaunchKernel"), 40 + 80 + 80, "and its zone is read, and a block that leaves the quarantine");
    assert_eq!(asked("cuEventSynchronize"), 40);
}

/// The time since which the write may have been made begins before the allocation.
#[test]
fn a_write_to_a_zone_before_it_is_used_again_is_found() {
    let ran = with(&["behindidle"], &[ON, ("GPUMEM_GUARD_MAX", "4500KiB")]);
    assert!(ran.out.contains("the same: 1"), "{}", ran.out);
    found(&ran, "written-outside", &["64 bytes written behind a block of 1.0 MiB"], "behind_idle pool_guard.c");
    let writers = events(&ran, "possible-writer");
    assert!(writers[0]["text"].as_str().unwrap().ends_with("gpumem_fill"), "{writers:?}");
}

/// Bugs that docs/guard.md says the guard cannot find are not reported as other findings either.
#[test]
fn what_it_cannot_find_is_no_finding() {
    for bug in ["twice", "far", "async", "managed", "pinned", "pitched", "reads", "readsfreed", "unwritten"] {
        let ran = program("pool_guard").args([bug, "sync"]).envs(&[SYNC]).preloaded();
        let found = ["written-outside", "written-after-free"].map(|kind| events(&ran, kind).len());
        assert_eq!(found, [0, 0], "{bug}: {}", ran.err);
    }
}

#[test]
fn writes_in_front_of_a_block_are_found_with_front() {
    for (bug, words) in [
        ("under4", ["4 bytes written in front of a block of 1.0 MiB", "bytes 1 to 4 before its start"]),
        ("under512", ["512 bytes written in front of a block of 4.0 MiB", "bytes 1 to 512 before its start"]),
    ] {
        found(&with(&[bug], &[FRONT]), "written-outside", &words, "in_front pool_guard.c");
    }
    found(&with(&["over1"], &[FRONT]), "written-outside", &["byte 1 behind its end"], "behind pool_guard.c");
}

#[test]
fn writes_to_freed_memory_are_found() {
    // Without room for a quarantine a block is read at once; what comes later cannot be found.
    let ran = with(&["freed"], &[ON, ("GPUMEM_GUARD_MAX", "0")]);
    assert_eq!(ran.ledger().counter(counters::GUARD_FREED), 0);
    // It leaves the quarantine when the next comes.
    let ran = with(&["freed", "clean"], &[ON, ("GPUMEM_GUARD_MAX", "4MiB")]);
    let words = ["64 bytes written to a block of 1.0 MiB", "after its free: bytes 4096 to 4159 of it"];
    found(&ran, "written-after-free", &words, "after_free pool_guard.c");
    let freed = events(&ran, "freed-here");
    assert!(freed[0]["site"].as_str().unwrap().contains("free_any pool.h"), "{freed:?}");
    let writers = events(&ran, "possible-writer");
    assert!(writers[0]["text"].as_str().unwrap().ends_with("gpumem_fill"), "{writers:?}");
    let ran = with(&["freedwhole", "clean"], &[FRONT, ("GPUMEM_GUARD_MAX", "6MiB")]);
    found(&ran, "written-after-free", &["bytes 0 to 3145727 of it"], "after_free pool_guard.c");
}

/// The first launch after the free is named whatever else is: with those that were given the address, and beside them.
#[test]
fn the_first_launch_after_the_free_is_named() {
    let writers = |ran: &Ran| -> Vec<(Value, Value)> {
        let writers = events(ran, "possible-writer");
        writers.into_iter().map(|mut event| (event["text"].take(), event["b"].take())).collect()
    };
    let fill = ("launched with its address meanwhile, on stream 0x0: gpumem_fill".into(), 1.into());
    let spin = ("launched first after the free, on stream 0x0: gpumem_spin".into(), 2.into());
    let ran = with(&["freedlater", "clean"], &[ON, ("GPUMEM_GUARD_MAX", "4MiB")]);
    assert!(ran.err.contains("launched first after the free: gpumem_spin, stream 0x0"), "{}", ran.err);
    assert!(ran.err.contains("launched with its address: gpumem_fill"), "{}", ran.err);
    assert_eq!(writers(&ran), [fill.clone(), fill.clone(), fill, spin], "{}", ran.err);
    let ran = with(&["freed", "clean"], &[ON, ("GPUMEM_GUARD_MAX", "4MiB")]);
    assert!(ran.err.contains("launched first after the free, with its address: gpumem_fill"), "{}", ran.err);
    assert_eq!(writers(&ran).into_iter().map(|(_, b)| b).collect::<Vec<_>>(), [3], "{}", ran.err);
}

#[test]
fn a_graph_of_freed_memory_is_told_of_before_it_runs() {
    let ran = with(&["graph"], &[ON]);
    found(&ran, "freed-graph-launched", &["1.0 MiB"], "freed_graph pool_guard.c");
    assert!(ran.err.contains("a graph is about to run that refers to freed memory: a block of 1.0 MiB"), "{}", ran.err);
    assert_eq!(ran.ledger().counter(counters::GUARD_GRAPHS), 1);
}

/// Asks a process, while it waits, to look.
fn checked(bugs: &[&str], setting: &[(&str, &str)]) -> (String, Ran) {
    let mut running = program("pool_guard").args(bugs).envs(setting).waits().start(true);
    running.says("ready");
    let said = running.gpumem(&["check", &running.pid().to_string()])["said"].as_str().unwrap().to_owned();
    running.tell("go");
    (said, running.finish().ok())
}

#[test]
fn a_check_finds_what_no_free_has_found_yet() {
    let (said, ran) = checked(&["clean", "live", "freed", "wait", "drop"], &[ON]);
    assert!(said.contains("2 findings"), "{said}");
    found(&ran, "written-outside", &["16 bytes written behind a block of 1.0 MiB"], "main pool_guard.c");
    found(&ran, "written-after-free", &["64 bytes"], "after_free pool_guard.c");
    let (said, ran) = checked(&["clean", "wait"], &[FRONT]);
    assert!(said.contains("nothing written where it should not be"), "{said}");
    assert!(events(&ran, "written-outside").is_empty());
}

#[test]
fn a_wait_finds_it_with_sync() {
    let ran = with(&["live", "sync", "drop"], &[SYNC]);
    found(&ran, "written-outside", &["16 bytes written behind a block of 1.0 MiB"], "main pool_guard.c");
}

#[test]
fn a_free_in_stream_order_looks_too() {
    found(&with(&["order"], &[ON]), "written-outside", &["8 bytes written behind"], "freed_in_order pool_guard.c");
}

/// In another process, a block with a zone in front would begin elsewhere than at its address.
#[test]
fn a_block_with_a_zone_in_front_is_not_exported() {
    let exported = |setting| {
        let ran = with(&["export"], &[setting]);
        assert_eq!(events(&ran, "written-outside").len(), 0, "{}", ran.err);
        let said = ran.out.lines().find(|line| line.starts_with("export")).expect("what it was answered").to_owned();
        (said, ran.err)
    };
    let (said, err) = exported(FRONT);
    assert_eq!(said, "export: 801", "{err}");
    assert!(err.contains("GPUMEM_GUARD=front"), "{err}");
    for setting in [ON, SYNC] {
        assert_eq!(exported(setting).0, "export: 0");
    }
}

/// A process in a state that makes it hard to look into is asked to look; what is said, and how it ended.
fn hard(mode: &str) -> (Value, Ran) {
    let running = program("pool_searched").arg(mode).envs(&[ON]).waits().start(true);
    running.says("ready");
    let pid = running.pid().to_string();
    let mut command = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
    let done = command.args(["check", "--json", &pid]).env("GPUMEM_DIR", &running.dir).output().expect("gpumem runs");
    let said = match done.status.success() {
        true => serde_json::from_slice::<Value>(&done.stdout).expect("JSON")["said"].clone(),
        false => String::from_utf8_lossy(&done.stderr).into_owned().into(),
    };
    (said, running.finish().ok())
}

#[test]
fn a_check_says_why_it_does_not_look_and_disturbs_nothing() {
    for (mode, words) in [("capture", "a stream is being captured: ask again"), ("error", "a context is broken")] {
        let (said, ran) = hard(mode);
        assert!(said.as_str().unwrap().contains(words), "{mode}: {said}");
        // The program checks each answer that it gets. What it did itself is not ours.
        let ours = ran.violations().into_iter().filter(|broken| !broken.contains("gpumem_fill")).count();
        assert_eq!(ours, 0, "{mode}: {:?}", ran.violations());
    }
}

/// Work that ends only when the program says so does not hold up a check: what is watched is read by copies.
#[test]
fn a_check_looks_beside_work_that_does_not_end() {
    let (said, ran) = hard("busy");
    let said = said.as_str().unwrap();
    assert!(said.contains("2 live and 0 freed blocks read: nothing written where it should not be"), "{said}");
    assert!(!said.contains("could not be read"), "{said}");
    ran.ledger().sound().complete().agrees_with(&ran.json());
}

/// Memory that the guard keeps from use goes back when the user wants memory back, and is read before that.
#[test]
fn what_the_guard_keeps_goes_back_when_the_user_asks() {
    for command in [&["trim"][..], &["set", "POOL=0"]] {
        let mut running = program("pool_guard").args(["clean", "freed", "wait"]).envs(&[ON]).waits().start(true);
        running.says("ready");
        let pid = running.pid().to_string();
        let args: Vec<&str> = command[..1].iter().copied().chain([&*pid]).chain(command[1..].iter().copied()).collect();
        let said = running.gpumem(&args)["said"].as_str().expect("what it says").to_owned();
        assert!(said.contains("MiB given back") && !said.contains("stay"), "{said}");
        running.tell("go");
        let ran = running.finish().ok();
        found(&ran, "written-after-free", &["64 bytes"], "after_free pool_guard.c");
    }
}

/// A check that is given no time says so, and the next one is not kept from its answer for long.
#[test]
fn a_check_ends_with_who_asked_for_it() {
    let running = program("pool_guard").args(["clean", "live", "wait", "drop"]).envs(&[ON]).waits().start(true);
    running.says("ready");
    let pid = running.pid().to_string();
    let check = |timeout: &str| {
        let mut command = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
        let command = command.args(["check", "--timeout", timeout, &pid]).env("GPUMEM_DIR", &running.dir);
        let done = command.output().expect("gpumem runs");
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
    };
    let said = check("0");
    assert!(said.contains("did not answer in 0 s"), "{said}");
    let found = std::iter::repeat_with(|| check("60")).find(|said| !said.contains("is under way")).expect("an answer");
    assert!(found.contains("1 findings"), "{found}");
    let ran = running.finish().ok();
    ran.ledger().sound().complete();
}

/// gpumem's own kernels and buffers are in the list of what takes memory, as the fall of free memory when they were made.
#[test]
fn the_memory_of_its_own_kernels_and_buffers_is_listed() {
    const CODE: u64 = 3 << 20;
    let running = program("pool_guard")
        .args(["clean", "live", "wait", "drop"])
        .envs(&[ON])
        .env("SIM_CODE_MEM", "3M")
        .waits()
        .start(true);
    running.says("ready");
    let pid = running.pid().to_string();
    let own = || {
        let pool = running.gpumem(&["stats", &pid])["pool"].clone();
        ["own_device_bytes", "own_pinned_bytes"].map(|name| pool[name].as_u64().expect(name))
    };
    let [device, pinned] = own();
    // One module is that of the guard; one reader has room for answers, what it fills memory with, and a word.
    assert_eq!((device, pinned / (1 << 20)), (CODE, 1), "{pinned}");
    let took = running.gpumem(&["events", "--kind", "driver-took", &pid]);
    let took = took["events"].as_array().expect("events").iter().filter(|event| event["b"] == 5);
    assert_eq!(took.map(|event| event["a"].as_u64().unwrap_or(0)).sum::<u64>(), CODE);
    // A search has a module of its own, and lists in it.
    let said = running.gpumem(&["leaks", "--suspect", "--older", "0", "--pause", "0", "--timeout", "60", &pid]);
    assert!(own()[0] >= 2 * CODE, "{:?} {}", own(), said["scans"]);
    let ran = running.finish().ok();
    ran.ledger().sound().complete();
}

/// The program gets the same answers to its queries as without a guard.
#[test]
fn answers_are_those_of_the_program() {
    let start = program("pool_guard").args(["clean", "answers", "twice"]);
    let native = start.native().ok();
    for setting in [ON, FRONT, SYNC] {
        let ran = start.clone().envs(&[setting]).preloaded().ok();
        assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()), "{setting:?}");
        let ledger = ran.ledger();
        ledger.sound().complete().balanced();
        for counter in
            [counters::GUARD_OUTSIDE, counters::GUARD_FREED, counters::GUARD_GRAPHS, counters::GUARD_UNCHECKED]
        {
            assert_eq!(ledger.counter(counter), 0, "{setting:?}");
        }
        assert!(ledger.counter(counters::GUARD_CHECKS) > 20, "{setting:?}");
    }
}

/// Programs about allocation do what they do without a guard, and have no findings.
#[test]
fn clean_programs_are_clean() {
    for name in ["pool_contexts", "pool_graphs", "pool_order", "pool_refused"] {
        for setting in [ON, FRONT, SYNC] {
            clean_program(program(name), setting);
        }
    }
    clean_program(program("pool_ipc"), ON);
}

#[track_caller]
fn clean_program(start: Program, setting: (&str, &str)) {
    let native = start.native().ok();
    let ran = start.envs(&[setting]).preloaded().ok();
    assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()), "{setting:?}");
    let ledger = ran.ledger();
    ledger.sound().complete().balanced();
    assert_eq!(ledger.counter(counters::GUARD_OUTSIDE) + ledger.counter(counters::GUARD_FREED), 0, "{}", ran.err);
}
