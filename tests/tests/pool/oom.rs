//! If memory runs out, on a device that is too small and under a quota, nothing changes unless it is asked for. Then it
//! changes as docs/pool-spill.md says.

use gpumem_tests::harness::{Program, Ran, client, program};
use gpumem_wire::counters;

const SMALL: (&str, &str) = ("SIM_DEVICE_MEM", "512M");

fn spill(setting: &[(&str, &str)]) -> Program {
    let start = program("pool_spill").arg("spill").env(SMALL.0, SMALL.1);
    start.envs(setting)
}

/// The memory that each buffer and each growth of the program's pool got.
fn got(ran: &Ran, what: &str) -> Vec<String> {
    let lines = ran.out.lines().filter_map(|line| line.strip_prefix(what));
    lines.map(|line| line.split_once(": ").map_or("", |(_, got)| got).to_owned()).collect()
}

/// Numbers of each kind of memory, one after another.
fn runs(list: &[String]) -> Vec<(usize, String)> {
    let mut runs: Vec<(usize, String)> = Vec::new();
    for got in list {
        match runs.last_mut() {
            Some((n, last)) if last == got => *n += 1,
            _ => runs.push((1, got.clone())),
        }
    }
    runs
}

const PLAIN: &str = "0 plain";
const MANAGED: &str = "0 managed";
const HOST: &str = "0 host";
const NOTHING: &str = "2 nothing";

fn as_runs(of: &[(usize, &str)]) -> Vec<(usize, String)> {
    of.iter().map(|(n, what)| (*n, (*what).to_owned())).collect()
}

#[track_caller]
fn gives(setting: &[(&str, &str)], buffers: &[(usize, &str)], growth: &[(usize, &str)]) -> Ran {
    let ran = spill(setting).preloaded().ok();
    assert_eq!(runs(&got(&ran, "buffer ")), as_runs(buffers), "buffers under {setting:?}\n{}", ran.err);
    assert_eq!(runs(&got(&ran, "growth ")), as_runs(growth), "growth under {setting:?}\n{}", ran.err);
    assert_eq!(ran.violations(), [""; 0], "{setting:?}");
    ran.ledger().sound().complete().balanced();
    ran
}

/// With none set, nothing of it is to be seen: the same codes, the same pointers' kinds, to the byte.
#[test]
fn nothing_spills_unless_asked_for() {
    let native = spill(&[]).native().ok();
    assert_eq!(runs(&got(&native, "buffer ")), as_runs(&[(4, PLAIN), (8, NOTHING)]));
    assert_eq!(runs(&got(&native, "growth ")), as_runs(&[(11, PLAIN), (1, NOTHING)]));
    for setting in [&[][..], &[("GPUMEM_FREE", "deferred")], &[("GGML_CUDA_POOL_USE_MANAGED", "0")]] {
        let ran = spill(setting).preloaded().ok();
        assert_eq!(ran.out, native.out, "{setting:?}");
        assert_eq!(ran.violations(), native.violations());
    }
}

/// The program's pool grows in managed memory from the first request on. Buffers are as natively, and more of them fit.
#[test]
fn growth_in_managed_memory() {
    for name in ["GPUMEM_POOL_MANAGED", "GGML_CUDA_POOL_USE_MANAGED"] {
        gives(&[(name, "1")], &[(7, PLAIN), (5, NOTHING)], &[(12, MANAGED)]);
    }
}

/// An allocation goes to managed memory once it does not fit.
#[test]
fn what_does_not_fit_in_managed_memory() {
    for pair in [("GPUMEM_OOM_FALLBACK", "managed"), ("GGML_CUDA_ALLOC_FALLBACK_MANAGED", "1")] {
        let ran = gives(&[pair], &[(4, PLAIN), (8, MANAGED)], &[(11, PLAIN), (1, MANAGED)]);
        assert_eq!(ran.ledger().counter(counters::SPILLS), 9, "{pair:?}");
    }
}

#[test]
fn both_together() {
    for [growth, fallback] in [
        [("GPUMEM_POOL_MANAGED", "1"), ("GPUMEM_OOM_FALLBACK", "managed")],
        [("GGML_CUDA_POOL_USE_MANAGED", "1"), ("GGML_CUDA_ALLOC_FALLBACK_MANAGED", "1")],
        [("GGML_CUDA_POOL_USE_MANAGED", "yes"), ("GPUMEM_OOM_FALLBACK", "managed")],
    ] {
        gives(&[growth, fallback], &[(7, PLAIN), (5, MANAGED)], &[(12, MANAGED)]);
    }
}

#[test]
fn what_does_not_fit_in_host_memory() {
    gives(&[("GPUMEM_OOM_FALLBACK", "host")], &[(4, PLAIN), (8, HOST)], &[(11, PLAIN), (1, HOST)]);
}

/// Ours decides where both are set.
#[test]
fn our_name_comes_first() {
    let setting = [("GGML_CUDA_ALLOC_FALLBACK_MANAGED", "1"), ("GPUMEM_OOM_FALLBACK", "none")];
    gives(&setting, &[(4, PLAIN), (8, NOTHING)], &[(11, PLAIN), (1, NOTHING)]);
}

/// Devices where host and device cannot use managed memory at the same time, or that have none: pinned host
/// memory, or the error with a line that says why.
#[test]
fn devices_without_concurrent_managed_access() {
    for managed in ["exclusive", "none"] {
        // The lines of this program do not matter here.
        let report = ("GPUMEM_OOM_REPORT", "0");
        let setting =
            [("SIM_MANAGED", managed), ("GPUMEM_OOM_FALLBACK", "managed"), ("GPUMEM_POOL_MANAGED", "1"), report];
        let ran = spill(&setting).preloaded().ok();
        assert_eq!(ran.violations(), [""; 0]);
        let all = [got(&ran, "buffer "), got(&ran, "growth ")].concat();
        assert!(all.iter().all(|got| got != MANAGED), "{managed}: {all:?}");
        let refused = all.iter().any(|got| got == NOTHING);
        assert!(!refused || !ran.ours().is_empty(), "{managed}: a refusal says why: {all:?}\n{}", ran.err);
        ran.ledger().sound().complete().balanced();
    }
}

/// Idle blocks come first: what was freed is there for another size, where natively it is.
#[test]
fn idle_blocks_make_room() {
    for setting in [&[][..], &[("GPUMEM_POOL_MAX", "1GiB")], &[("GPUMEM_FREE", "deferred")]] {
        let start = program("pool_answers").env("SIM_DEVICE_MEM", "160M").env("SIM_CONTEXT_MEM", "0");
        let native = start.native().ok();
        let ran = start.envs(setting).preloaded().ok();
        let without = |ran: &Ran| ran.out.lines().filter(|line| !line.starts_with('{')).collect::<Vec<_>>().join("\n");
        assert_eq!(without(&ran), without(&native), "{setting:?}");
    }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// GPUMEM_LIMIT holds for every way to take device memory, and cudaMemGetInfo tells of it.
#[test]
fn a_quota_is_kept() {
    let quota = program("pool_spill").arg("quota");
    let native = quota.native().ok();
    let ran = quota.env("GPUMEM_LIMIT", "256MiB").preloaded().ok();
    assert_eq!(ran.violations(), native.violations());
    for way in ["plain", "async", "created", "pitched", "arrays", "runtime"] {
        let line = ran.err.lines().find(|line| line.starts_with(way)).unwrap_or_else(|| panic!("{way}: {}", ran.err));
        let (blocks, code) = (numbers(line)[0], numbers(line)[1]);
        // One block less than 256 MiB would hold, since a little more is live.
        assert!((12..16).contains(&blocks) && code == 2, "{line}");
    }
    let info = |when: &str| {
        let line = ran.err.lines().find(|line| line.starts_with(when)).expect("a line");
        (numbers(line)[0], numbers(line)[1])
    };
    for when in ["at first", "full", "empty", "at last"] {
        let (free, total) = info(when);
        assert!(free <= total && free <= 256, "{when}: {free} of {total}");
    }
    assert!(info("full").0 < 32 && info("at first").0 > 200, "{}", ran.err);
    assert_eq!(info("empty").0, info("at first").0, "what was freed is free: {}", ran.err);
    let ledger = ran.ledger();
    ledger.sound().complete().balanced();
    assert!(ledger.counter(counters::LIMIT_REFUSALS) > 0);
    let native: Vec<&str> = native.err.lines().filter(|line| line.contains("then 2")).collect();
    assert_eq!(native, [""; 0], "natively all of it fits");
}

/// The limit holds from the first call on, whichever that is, and without the pool as well. It takes no memory away.
#[test]
fn a_quota_is_kept_from_the_first_call_on() {
    for way in ["plain", "async", "pitch", "create", "array"] {
        let limits = client("limits").arg(way).env("SIM_DEVICE_MEM", "2G");
        assert_eq!(limits.native().ok().out, "64 then 0\n", "natively, {way}");
        for pool in ["1", "0"] {
            let ran = limits.clone().env("GPUMEM_LIMIT", "256MiB").env("GPUMEM_POOL", pool).preloaded().ok();
            assert_eq!(ran.out, "16 then 2\n", "{way}, GPUMEM_POOL={pool}: {}", ran.err);
            assert_eq!(ran.violations(), [""; 0], "{way}, GPUMEM_POOL={pool}");
            let ledger = ran.ledger();
            assert_eq!(ledger.sound().complete().counter(counters::LIMIT_REFUSALS), 1, "{way}, GPUMEM_POOL={pool}");
        }
    }
    for way in ["info", "runtime"] {
        for pool in ["1", "0"] {
            let limits = client("limits").arg(way).env("GPUMEM_LIMIT", "256MiB").env("GPUMEM_POOL", pool);
            assert_eq!(limits.preloaded().ok().out, "total 256\n", "{way}, GPUMEM_POOL={pool}");
        }
    }
}

/// Requests that one thread alone would be granted are not granted to all at once.
#[test]
fn threads_share_a_quota() {
    let limits = client("limits").arg("threads").env("SIM_DEVICE_MEM", "2G");
    assert_eq!(limits.native().ok().out, "16 of 16\n", "natively");
    for pool in ["1", "0"] {
        for _ in 0..5 {
            let ran = limits.clone().env("GPUMEM_LIMIT", "128MiB").env("GPUMEM_POOL", pool).preloaded().ok();
            assert_eq!(ran.out, "8 of 16\n", "GPUMEM_POOL={pool}");
        }
    }
}

/// Blocks of a few bytes are spilled like any other.
#[test]
fn a_few_bytes_are_spilled() {
    for to in ["managed", "host"] {
        let few = client("limits").arg("few").env("SIM_DEVICE_MEM", "2G").env("GPUMEM_LIMIT", "256MiB");
        let ran = few.env("GPUMEM_OOM_FALLBACK", to).preloaded().ok();
        assert_eq!(ran.out, "64 then 0\n", "{to}");
        assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{to}");
        assert!(ran.ledger().sound().complete().counter(counters::SPILLS) >= 48 + 8, "{to}");
    }
}

/// Under a quota a pool of the program's own that retries goes on; pressed earlier, it holds less.
#[test]
fn a_pool_that_retries_lives_within_a_quota() {
    let retry = program("pool_press").arg("retry").env("GPUMEM_STRANDED_RETRIES", "1");
    let peak = |ran: &Ran| {
        numbers(ran.err.lines().find(|line| line.starts_with("peak")).unwrap_or_else(|| panic!("{}", ran.err)))[0]
    };
    let native = retry.native().ok();
    let quota = retry.clone().env("GPUMEM_LIMIT", "256MiB").preloaded().ok();
    assert!(peak(&quota) <= 256 && peak(&native) > 256, "{}", quota.err);
    let pressed = retry.env("GPUMEM_STRANDED", "press").preloaded().ok();
    assert!(peak(&pressed) < peak(&native), "pressed {}, natively {}", pressed.err, native.err);
    for ran in [quota, pressed] {
        assert_eq!(ran.violations(), native.violations());
        ran.ledger().sound().complete().balanced();
    }
}

/// A program that ends when an allocation fails, under a limit of a quarter of what it takes. With spilling it ends well.
#[test]
fn a_pool_that_does_not_retry_spills() {
    let abort = program("pool_press").arg("abort").env("GPUMEM_LIMIT", "170MiB");
    assert_eq!(abort.preloaded().code, 3, "it does not fit");
    let ran = abort.env("GPUMEM_STRANDED", "spill").preloaded().ok();
    assert_eq!(ran.violations(), [""; 0]);
    let ledger = ran.ledger();
    ledger.sound().complete().balanced();
    assert!(ledger.counter(counters::SPILLS) > 0);
}

/// For a moment, blocks that a thread gives back belong to nobody. A request that fails meanwhile is tried again.
#[test]
fn threads_that_share_a_full_device_are_not_refused() {
    let full = program("pool_full").arg("shared").env("SIM_DEVICE_MEM", "260M");
    let kept = [("GPUMEM_POOL_MAX", "8GiB")];
    let limited = [("GPUMEM_POOL_MAX", "8GiB"), ("GPUMEM_LIMIT", "240MiB")];
    for settings in [&kept[..], &limited[..]] {
        for free in ["strict", "deferred"] {
            let program = full.clone().env("GPUMEM_FREE", free).envs(settings);
            let ran = program.preloaded().ok();
            assert!(ran.err.contains("refused 0"), "{free}, {settings:?}: {}", ran.err);
            assert_eq!(ran.violations(), [""; 0], "{free}, {settings:?}");
        }
    }
}

/// When memory runs out all idle blocks go back, also those of contexts that other threads end meanwhile.
#[test]
fn idle_blocks_of_contexts_that_end_are_left_alone() {
    let ends = program("pool_full").arg("contexts").env("GPUMEM_POOL_DECAY", "0");
    for free in ["strict", "deferred"] {
        let ran = ends.clone().env("GPUMEM_FREE", free).preloaded().ok();
        assert_eq!(ran.violations(), [""; 0], "{free}");
    }
}

/// A call on a device that is full except for the memory that gpumem keeps there.
fn short(way: &str, kept: &str) -> Program {
    let settings =
        [("SIM_DEVICE_MEM", "128M"), ("SIM_CONTEXT_MEM", "0"), ("SIM_CODE_MEM", "8M"), ("SIM_MANAGED", "exclusive")];
    let keeps = [("GPUMEM_POOL_MAX", "1GiB"), ("GPUMEM_POOL_DECAY", "0")];
    client("ran_out").args([way, kept]).envs(&settings).envs(&keeps)
}

/// Calls that take memory of a full device in the simulator. A call that takes none there, or little, gets a planted "out
/// of memory" (the first call of this name). `true`: memory that is kept for graphs is enough for it as well.
const RUN_OUT: &[(&str, Option<&str>, bool)] = &[
    ("plain", None, true),
    ("pitch", None, true),
    ("async", None, true),
    ("create", None, true),
    ("array", None, true),
    ("managed", None, true),
    ("module", None, true),
    ("module_ex", None, true),
    ("launch", None, true),
    ("instantiate", None, false),
    ("instantiate_ours", None, false),
    ("library", Some("cuLibraryLoadData"), true),
    ("stream", Some("cuStreamCreateWithPriority"), true),
    ("context", Some("cuCtxCreate_v2"), true),
    ("opened", Some("cuIpcOpenMemHandle_v2"), true),
];

fn with_fault(program: Program, fault: Option<&str>) -> Program {
    match fault {
        Some(name) => program.env("SIM_FAULT", format!("{name}:1=2")),
        None => program,
    }
}

/// Whichever call runs out gets the memory that the program has freed, as natively, and the memory that is kept for graphs.
#[test]
fn whatever_runs_out_has_what_is_kept() {
    let mut wrong = Vec::new();
    for &(way, fault, of_graphs) in RUN_OUT {
        let native = short(way, "blocks").native().ok();
        assert_ne!(native.out, "2\n", "natively, {way}: there is memory");
        let kept = [("blocks", "strict"), ("blocks", "deferred"), ("graphs", "strict")];
        for (kept, free) in kept.into_iter().filter(|(kept, _)| of_graphs || *kept == "blocks") {
            let ran = with_fault(short(way, kept), fault).env("GPUMEM_FREE", free).preloaded().ok();
            if (&ran.out, ran.violations()) != (&native.out, native.violations()) {
                wrong.push(format!("{way} beside {kept}, {free}: {} {:?}", ran.out.trim(), ran.violations()));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// Memory that goes back while something captures disturbs no capture, whatever its mode.
#[test]
fn what_runs_out_beside_a_capture_leaves_it_alone() {
    for mode in ["0", "1", "2"] {
        for way in ["module", "create"] {
            let beside = short(way, "captured").arg(mode);
            let native = beside.native().ok();
            let ran = beside.preloaded().ok();
            assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()), "{way}, {mode}: {}", ran.err);
        }
    }
}

/// If nothing is kept, the program gets the driver's answer, and the driver was asked once.
#[test]
fn where_nothing_is_kept_the_driver_is_asked_once() {
    let ways = [
        ("module", "cuModuleLoadData"),
        ("launch", "cuLaunchKernel"),
        ("managed", "cuMemAllocManaged"),
        ("instantiate", "cuGraphInstantiateWithFlags"),
        ("create", "cuMemCreate"),
    ];
    for (way, function) in ways {
        let full = short(way, "nothing").arg(function);
        let native = full.native().ok();
        assert_eq!(native.out, "2 after 1\n", "natively, {way}");
        let ran = full.preloaded().ok();
        assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()), "{way}: {}", ran.err);
    }
}
