//! Mistakes that a cache of device memory can make. Each case runs natively, and under the preload in each setting:
//! answers and contents are the same, no rule of the driver is broken, and the ledger balances.

use gpumem_tests::harness::{Ledger, Program, Ran, artifacts, client, program};
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;

/// Settings of the pool under which everything has to hold.
const SETTINGS: &[&[(&str, &str)]] = &[
    &[],
    &[("GPUMEM_FREE", "deferred")],
    &[("GPUMEM_POOL_MAX", "0")],
    &[("GPUMEM_POOL_MAX", "4MiB"), ("GPUMEM_POOL_DECAY", "1ms")],
    &[("GPUMEM_FREE", "deferred"), ("GPUMEM_POOL_DECAY", "1ms"), ("GPUMEM_POOL_FILL", "poison")],
    &[("GPUMEM_QUARANTINE", "8MiB"), ("GPUMEM_POOL_FILL", "zero")],
    &[("GPUMEM_POOL", "0")],
];

fn with(program: &Program, setting: &[(&str, &str)]) -> Program {
    program.clone().envs(setting)
}

/// The output without the summary's line, whose peaks depend on the timing of threads.
fn answers(ran: &Ran) -> Vec<&str> {
    ran.out.lines().filter(|line| !line.starts_with('{')).collect()
}

/// The ledger counted the device memory that the program counted, lost nothing, and saw all.
#[track_caller]
fn counted(ran: &Ran) -> gpumem_tests::harness::Ledger {
    let (ledger, said) = (ran.ledger(), &ran.json()["kinds"]["device"]);
    let told = ["allocs", "frees", "bytes"].map(|name| said[name].as_u64().expect("a number"));
    let of = |of: fn(AllocKind) -> usize| ledger.counter(of(AllocKind::Device)) + ledger.counter(of(AllocKind::Pitch));
    assert_eq!([counters::allocs, counters::frees, counters::alloc_bytes].map(of), told, "allocations, frees, bytes");
    ledger.sound().complete();
    ledger
}

/// The results are the same in every setting, and all memory is given back.
#[track_caller]
fn as_native(program: &Program) {
    let native = program.native().ok();
    for setting in SETTINGS {
        println!("{program:?} {setting:?}");
        let ran = with(program, setting).preloaded().ok();
        assert_eq!(answers(&ran), answers(&native), "{setting:?}");
        assert_eq!(ran.violations(), native.violations(), "{setting:?}\n{}", ran.err);
        assert_eq!(ran.ours(), [""; 0], "{setting:?}");
        counted(&ran).balanced();
    }
}

/// Every right and wrong call, with and without a context, and queries about memory that
/// is live, freed, or freed and allocated again.
#[test]
fn wrong_frees_and_questions_answer_as_native() {
    as_native(&program("pool_answers"));
}

/// After a sticky error every call answers that error, also if a block is cached.
#[test]
fn a_sticky_error_is_sticky() {
    let sticky = program("pool_answers").arg("sticky");
    let native = sticky.native().ok();
    for setting in SETTINGS {
        let ran = with(&sticky, setting).preloaded().ok();
        assert_eq!(answers(&ran), answers(&native), "{setting:?}");
        assert_eq!(ran.violations(), native.violations(), "{setting:?}");
        counted(&ran);
    }
}

/// A free waits for all streams of its context, and for no other context. Memory that is given out again belongs to one
/// owner.
#[test]
fn a_free_keeps_its_barrier_whatever_runs() {
    as_native(&program("pool_order").arg("running").env("SIM_LAG_US", "300"));
}

/// The same with threads that hand blocks to one another.
#[test]
fn blocks_go_from_thread_to_thread() {
    for lag in ["0", "500"] {
        as_native(&program("pool_order").arg("streams").env("SIM_LAG_US", lag));
    }
}

/// A free with nothing to wait for is followed by one that has.
#[test]
fn idle_frees_are_followed_by_busy_ones() {
    as_native(&program("pool_order").arg("idle"));
}

/// Allocations and frees while something captures, in each mode and of each thread.
#[test]
fn captures_forbid_what_they_forbid_natively() {
    as_native(&program("pool_captures"));
}

/// One thread frees, another allocates at once. The record of an address is that of its present owner.
#[test]
fn an_address_is_anothers_at_once() {
    as_native(&program("pool_threads").arg("race"));
}

/// Memory of a green context may be used by others, whose work no event of it covers.
#[test]
fn green_contexts_put_the_pool_aside() {
    let ran = program("pool_order").arg("green").preloaded().ok();
    let ledger = ran.ledger();
    assert_eq!(ledger.counter(counters::POOL_KEPT), 2, "{}", ran.err);
    assert_eq!(ran.violations(), [""; 0]);
}

/// Peer access that the driver refuses lets nobody into anything.
#[test]
fn refused_peer_access_leaves_the_pool_as_it_was() {
    let ran = program("pool_order").arg("refused").preloaded().ok();
    assert_eq!(ran.violations(), [""; 0]);
    let ledger = counted(&ran);
    let frees = ledger.counter(counters::frees(AllocKind::Device));
    assert_eq!((frees, ledger.balanced().counter(counters::POOL_KEPT)), (10, 10), "{}", ran.err);
}

/// A thread that ends leaves nothing behind that nobody can have.
#[test]
fn blocks_of_ended_threads_stay_usable() {
    as_native(&program("pool_threads").arg("ends"));
}

/// After a join the kernel still lists a thread for a while. In this test it does so for long.
#[test]
fn blocks_of_a_joined_thread_are_anyones_at_once() {
    for setting in [("GPUMEM_FREE", "strict"), ("GPUMEM_FREE", "deferred")] {
        let ran = with(&program("pool_threads").arg("joined"), &[setting]).preloaded().ok();
        let said = ran.err.lines().find(|line| line.starts_with("real allocations"));
        assert_eq!(said, Some("real allocations 2"), "{setting:?}");
        counted(&ran).balanced();
    }
}

/// Blocks of ended threads are looked for inside calls that succeed.
#[test]
fn calls_that_succeed_leave_errno_alone() {
    as_native(&client("errno"));
    as_native(&client("errno").arg("together"));
}

/// Children of a process that has blocks.
#[test]
fn children_have_no_pool() {
    let forks = program("pool_threads").arg("fork");
    let native = forks.native().ok();
    for setting in SETTINGS {
        let ran = with(&forks, setting).preloaded().ok();
        assert_eq!(ran.violations(), native.violations(), "{setting:?}");
        counted(&ran).balanced();
    }
}

/// Frees of thread-local and static destructors, the latter after the driver has shut down.
#[test]
fn destructors_free() {
    let tls = program("pool_threads").arg("tls");
    let native = tls.native().ok();
    for setting in SETTINGS {
        let ran = with(&tls, setting).preloaded().ok();
        assert_eq!(ran.err, native.err, "{setting:?}");
        assert_eq!(ran.violations(), native.violations(), "{setting:?}");
        ran.ledger().sound();
    }
}

/// Every way out of a process with memory held and freed.
#[test]
fn all_ways_out() {
    for setting in SETTINGS {
        let ran = with(&program("exits"), setting).preloaded().ok();
        assert_eq!(ran.violations(), [""; 0], "{setting:?}");
    }
}

/// A reset of the device ends what was live and what was kept.
#[test]
fn a_reset_ends_what_is_kept() {
    let reset = program("pool_threads").arg("reset");
    let native = reset.native().ok();
    for setting in SETTINGS {
        let ran = with(&reset, setting).preloaded().ok();
        assert_eq!(ran.violations(), native.violations(), "{setting:?}\n{}", ran.err);
        ran.ledger().sound().complete().balanced();
    }
}

/// The last holder of a primary context releases it, while another thread needs memory. Until the driver has ended the
/// context, the shim touches nothing that was in it.
#[test]
fn a_primary_context_ends_while_others_want_room() {
    for what in ["blocks", "execs"] {
        let release = client("release").arg(what).env("SIM_END_US", "600000").env("GPUMEM_GRAPH_CACHE", "1");
        let native = release.native().ok();
        assert_eq!(native.violations(), [""; 0], "natively");
        for setting in [("GPUMEM_FREE", "strict"), ("GPUMEM_FREE", "deferred")] {
            let ran = with(&release, &[setting]).preloaded().ok();
            assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{what}, {setting:?}");
            ran.ledger().sound().complete().balanced();
        }
    }
}

/// If the record of a context finds no room, the allocations in the context still end with it.
#[test]
fn a_context_without_a_record_ends_with_what_is_in_it() {
    let native = client("runtime").native().ok();
    let mut without = 0;
    for nth in 6..14 {
        let ran = client("runtime").denied(format!("fallocate:{nth}-")).preloaded();
        assert_eq!((ran.code, &ran.out), (0, &native.out), "fallocate:{nth}-: {}", ran.err);
        let dropped =
            |ledger: &Ledger| ledger.counter(counters::DROPPED_RECORDS) > 0 && ledger.snapshot.contexts.is_empty();
        without += u32::from(ran.ledgers().iter().any(dropped));
    }
    assert!(without > 0, "none of these left a context without a record");
}

/// One thread releases the last reference to a primary context while another retains it. The records of the old context
/// are removed before the new one exists.
#[test]
fn a_primary_context_ends_and_begins() {
    let turns = client("release").arg("turns");
    assert_eq!(turns.native().ok().violations(), [""; 0], "natively");
    for setting in [("GPUMEM_FREE", "strict"), ("GPUMEM_FREE", "deferred"), ("SIM_END_US", "300")] {
        let ran = with(&turns, &[setting]).preloaded().ok();
        assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{setting:?}");
        ran.ledger().sound().complete().balanced();
    }
}

/// A context ends by its last detach. Its idle blocks are not given out in the next context, which may have the same handle.
#[test]
fn a_context_ends_by_its_last_detach() {
    for reuse in ["0", "1"] {
        let detach = client("release").arg("detach").env("SIM_REUSE_HANDLES", reuse);
        assert_eq!(detach.native().ok().violations(), [""; 0], "natively");
        let ran = detach.preloaded().ok();
        assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "SIM_REUSE_HANDLES={reuse}");
        ran.ledger().sound().complete().balanced();
    }
}

/// The driver refuses to end a context. Its live memory stays live, and its idle blocks are used again and given back.
#[test]
fn a_context_does_not_end() {
    let faults = "cuCtxDestroy_v2:1=1,cuCtxDestroy_v2:2=1";
    let refused = client("release").arg("refused").env("SIM_FAULT", faults).env("SIM_DEVICE_MEM", "1G");
    let real = |ran: &Ran| ran.err.matches("real allocations 0\n").count();
    let native = refused.native().ok();
    assert_eq!((native.violations(), real(&native)), (vec![], 0), "natively");
    for setting in [("GPUMEM_FREE", "strict"), ("GPUMEM_FREE", "deferred"), ("GPUMEM_QUARANTINE", "64MiB")] {
        let ran = with(&refused, &[setting]).preloaded().ok();
        assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{setting:?}");
        assert_eq!(real(&ran), 2, "{setting:?}: {}", ran.err);
        ran.ledger().sound().complete().balanced();
    }
}

/// Two processes, with the shim on either side, on both and on none.
#[test]
fn memory_of_two_processes() {
    let native = program("pool_ipc").native().ok();
    let shim = artifacts().shim.to_str().expect("UTF-8");
    let ran = program("pool_ipc").env("CHILD_PRELOAD", shim).native().ok();
    assert_eq!((answers(&ran), ran.violations()), (answers(&native), native.violations()), "the child alone");
    for setting in SETTINGS {
        for child in [None, Some("")] {
            let ipc = with(&program("pool_ipc"), setting);
            let ran = child.map_or(ipc.clone(), |child| ipc.env("CHILD_PRELOAD", child)).preloaded().ok();
            assert_eq!(answers(&ran), answers(&native), "{setting:?}, child {child:?}");
            assert_eq!(ran.violations(), native.violations(), "{setting:?}, child {child:?}");
            counted(&ran).balanced();
        }
    }
}

/// Two devices: work of one on memory of the other, freed while it runs.
#[test]
fn memory_that_peers_use() {
    as_native(&program("pool_peers").env("SIM_DEVICES", "2").env("SIM_LAG_US", "300"));
}

/// A pool of the program's own that frees and asks again, one that does not, one that captures: none of them
/// sees a refusal that native does not give, unless it is known to retry.
#[test]
fn programs_that_do_not_retry_are_not_pressed() {
    for mode in ["abort", "capture", "graph", "buffers", "retry"] {
        let native = program("pool_press").arg(mode).native().ok();
        for stranded in ["report", "press"] {
            let ran = program("pool_press").arg(mode).env("GPUMEM_STRANDED", stranded).preloaded().ok();
            assert_eq!(ran.violations(), native.violations(), "{mode}, {stranded}");
            counted(&ran).balanced();
        }
    }
}
