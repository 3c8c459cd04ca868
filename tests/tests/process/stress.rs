//! Load on the bookkeeping itself: readers meanwhile, forks in the midst of it, code that comes and
//! goes, deep and small stacks, tables that are too small.

use gpumem_tests::harness::run::wait_for;
use gpumem_tests::harness::{Ledger, Program, artifacts, client, command, program};
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;

/// Readers that read while threads write get an answer each time, and disturb no thread.
#[test]
fn readers_meet_writers() {
    let running = program("threads").args(["8", "100000"]).start(true);
    wait_for("its ledger", || Ledger::of_pid(&running.dir, running.pid()).is_some());
    for round in 0..6 {
        for command in ["ps", "stats", "allocs", "graphs", "events"] {
            running.gpumem(&[command]);
        }
        let dump = running.dir.join(format!("{round}.dump"));
        running.gpumem(&["dump", "-o", dump.to_str().expect("UTF-8")]);
        let dumped = Ledger::open(&dump);
        assert!(dumped.snapshot.allocs.iter().all(|alloc| AllocKind::from_u8(alloc.kind).is_some() && alloc.addr != 0));
        assert!(dumped.snapshot.allocs.len() <= 8 * 7 + 8, "six blocks and a counter of each thread at most");
    }
    assert_eq!(running.gpumem(&["ps"])["processes"][0]["status"], "running");
}

/// Forks while other threads record: no child hangs, no record is lost.
#[test]
fn forks_in_the_midst_of_threads() {
    let ran = client("forks").arg("60").preloaded().ok();
    assert_eq!(ran.ledgers().len(), 1, "children that make no GPU call leave nothing");
    ran.ledger().agrees_with(&ran.json()).complete().balanced();
}

/// A plugin that is loaded and unloaded: its functions are found anew each time.
#[test]
fn plugins_that_come_and_go() {
    for plugin in ["plugin_a.so", "plugin_b.so"] {
        let reload = client("reload").arg(artifacts().programs.join(plugin)).arg("25");
        let (native, preloaded) = (reload.native().ok(), reload.preloaded().ok());
        assert_eq!(preloaded.json(), native.json());
        preloaded.ledger().agrees_with(&preloaded.json()).complete().balanced();
    }
}

/// Stacks deeper than what is kept are cut, and counted as cut.
#[test]
fn deep_stacks_are_cut() {
    for (kept, deep) in [(1, 50), (32, 5), (32, 400), (128, 2000)] {
        let ran = client("deep")
            .args([deep.to_string(), "2048".into()])
            .env("GPUMEM_STACKS", kept.to_string())
            .preloaded()
            .ok();
        let ledger = ran.ledger();
        ledger.agrees_with(&ran.json()).balanced();
        let deepest =
            ledger.snapshot.stacks.values().map(|stack| ledger.snapshot.frames(stack).len()).max().expect("stacks");
        let cut = ledger.counter(counters::STACKS_CUT);
        if deep > kept {
            assert_eq!((deepest, cut > 0), (kept, true), "{deep} deep");
        } else {
            assert!(deepest > deep && deepest < kept, "{deepest} frames of a recursion {deep} deep");
        }
    }
}

/// A thread whose stack is hardly enough for the call itself: ours needs 8 KiB more, and several
/// times that where nothing is optimised (measured on x86-64).
#[test]
fn small_stacks_suffice() {
    let more = if cfg!(debug_assertions) { 48 } else { 12 };
    let deep = |kib: u64| client("deep").args(["1".to_owned(), kib.to_string()]);
    let least = (16..512).step_by(8).find(|&kib| deep(kib).native().code == 0).expect("it runs on some stack");
    for stacks in ["0", "32", "128"] {
        let ran = deep(least + more).env("GPUMEM_STACKS", stacks).preloaded();
        assert_eq!(ran.code, 0, "{stacks} frames on {least} + {more} KiB: {}", ran.err);
        ran.ledger().agrees_with(&ran.json()).balanced();
    }
}

/// The room that there is ends at the guard page, whatever lies below it: without enough of it a call has no
/// call site, on a stack of any size.
#[test]
fn small_stacks_beside_others_suffice() {
    let more = if cfg!(debug_assertions) { 24 } else { 12 };
    let deep = |kib: u64| client("deep").args(["1".to_owned(), kib.to_string(), "beside".to_owned()]);
    let least = (16..512).step_by(4).find(|&kib| deep(kib).native().code == 0).expect("it runs on some stack");
    for kib in (least + more..least + more + 48).step_by(4) {
        let ran = deep(kib).preloaded();
        assert_eq!(ran.code, 0, "{kib} KiB, natively {least}: {}", ran.err);
        ran.ledger().agrees_with(&ran.json()).balanced();
    }
}

/// Only what is large enough has a stack taken.
#[test]
fn stacks_of_large_allocations_only() {
    let running = client("held").env("GPUMEM_STACK_EVERY", "640K").waits().start(true);
    running.says("held");
    let ledger = running.ledger();
    for alloc in &ledger.snapshot.allocs {
        assert_eq!(alloc.stack != 0, alloc.bytes >= 640 << 10, "{} bytes", alloc.bytes);
    }
}

/// Call sites are the program's: function, file and line.
#[test]
fn call_sites_are_the_programs() {
    let ran = client("reexec").arg("0").preloaded().ok();
    let allocs = ran.ledger().gpumem("allocs", &["--all", "--stacks"]);
    let row = &allocs["rows"][0];
    let site = row["site"].as_str().expect("a site");
    assert!(site.contains("main") && site.contains("reexec.c:"), "{row}");
    let frames = row["stack"].as_array().expect("a stack");
    assert!(frames.len() >= 2 && frames[0].to_string().contains("main"), "{row}");
}

/// More threads and streams than a small ledger lists: what does not fit is dropped, counts are exact.
#[test]
fn tables_too_small_for_threads() {
    let ran = program("threads").args(["200", "3"]).env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
    let ledger = ran.ledger();
    let said = ran.json();
    let device = |of: fn(AllocKind) -> usize| ledger.counter(of(AllocKind::Device));
    assert_eq!(device(counters::allocs), said["allocs"].as_u64().expect("a number"));
    assert_eq!(device(counters::frees), said["frees"].as_u64().expect("a number"));
    assert_eq!(ledger.counter(counters::EXECS_CREATED), said["execs_created"].as_u64().expect("a number"));
    assert_eq!(ledger.counter(counters::EXECS_DESTROYED), said["execs_destroyed"].as_u64().expect("a number"));
    ledger.balanced();
}

/// A process that has the shim and makes no GPU call is listed as such.
#[test]
fn no_gpu_call_is_told() {
    let dir = gpumem_tests::harness::run::Scratch::new();
    let running = command("sleep").arg("600").dir(dir.path()).start(true);
    wait_for("the loader", || {
        std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).is_ok_and(|maps| maps.contains("libgpumem.so"))
    });
    let ps = running.gpumem(&["ps"]);
    let rows = ps["processes"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["pid"] == running.pid()).unwrap_or_else(|| panic!("{ps}"));
    assert_eq!((&row["status"], &row["ledger"]), (&"no-gpu-call".into(), &serde_json::Value::Null), "{ps}");
}

/// Programs that reach the driver in different ways.
fn of_all_doors() -> [Program; 4] {
    [program("graphs"), program("driver_dlopen"), program("plugin"), program("firstuse")]
}

/// Lookups before any constructor of ours, and from inside malloc; before us and behind us.
#[test]
fn lookups_before_anything_is_ready() {
    let (early, shim) = (artifacts().clients.join("libearly.so"), artifacts().shim.display());
    for program in of_all_doors() {
        let alone = program.clone().env("LD_PRELOAD", &early).native().ok();
        for order in [format!("{}:{shim}", early.display()), format!("{shim}:{}", early.display())] {
            let both = program.clone().env("LD_PRELOAD", &order).preloaded().ok();
            assert_eq!((&both.json()["allocs"], both.ours()), (&alone.json()["allocs"], vec![]), "{order}");
            both.ledger().agrees_with(&both.json()).complete().balanced();
        }
    }
}

/// Another library that replaces dlsym by an ordinary wrapper, behind us: all is seen.
#[test]
fn another_library_replaces_dlsym() {
    let order = format!("{}:{}", artifacts().shim.display(), artifacts().clients.join("libwrap.so").display());
    for program in of_all_doors() {
        let both = program.env("LD_PRELOAD", &order).preloaded().ok();
        assert_eq!(both.ours(), [""; 0]);
        both.ledger().agrees_with(&both.json()).complete().balanced();
    }
}

/// The whole way that a user takes: gpumem run, then gpumem on what it left.
#[test]
fn gpumem_run_sets_the_preload() {
    let gpumem = command(&artifacts().gpumem).env("GPUMEM_LIB", &artifacts().shim);
    let scratch = gpumem_tests::harness::run::Scratch::new();
    let ran = gpumem
        .env("GPUMEM_DIR", scratch.path())
        .args(["run", "--"])
        .arg(artifacts().programs.join("graphs"))
        .native()
        .ok();
    let [ledger] = &Ledger::all(scratch.path())[..] else { panic!("one ledger") };
    ledger.agrees_with(&ran.json()).complete().balanced();
    let gpumem = command(&artifacts().gpumem).env("GPUMEM_LIB", &artifacts().shim);
    let failing = gpumem.args(["run", "--", "sh", "-c", "exit 37"]).native();
    assert_eq!((failing.code, failing.out.as_str()), (37, ""));
}
