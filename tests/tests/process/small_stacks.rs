//! Threads with little stack: what suffices natively suffices under the preload.

use gpumem_tests::harness::client;

/// The least that the C library allows a thread, KiB.
const LEAST: u64 = 16;
/// Stack that hooks may take of a main thread beside what it takes natively, KiB. Frames of a debug build are larger.
const MORE: u64 = if cfg!(debug_assertions) { 24 } else { 16 };

/// Each is the first of its kind in its process: that is when most is done.
#[test]
fn threads_with_little_stack_allocate_and_launch_graphs() {
    let (memory, graphs): (&[u64], &[u64]) =
        if cfg!(debug_assertions) { (&[40, 64], &[32, 64]) } else { (&[LEAST, 20, 32, 64], &[LEAST, 20, 32, 64]) };
    for (what, sizes) in [("memory", memory), ("graphs", graphs)] {
        for kib in sizes {
            let small = client("small_stacks").args([&kib.to_string(), what]);
            let (native, ran) = (small.native().ok(), small.preloaded());
            assert_eq!((ran.code, &ran.out), (0, &native.out), "{what}, {kib} KiB: {}", ran.err);
            ran.ledger().agrees_with(&ran.json()).complete();
        }
    }
}

/// The stack of the main thread grows as far as a limit allows.
#[test]
fn a_main_thread_with_little_stack_allocates_and_launches_graphs() {
    for what in ["memory", "graphs"] {
        let small = |kib: u64| client("small_stacks").args([&kib.to_string(), what, "again"]);
        // The environment lies on this stack, too, and may be of any size.
        let least = (4..512).step_by(4).find(|&kib| small(kib).native().code == 0).expect("it runs on some stack");
        let (native, ran) = (small(least).native().ok(), small(least + MORE).preloaded());
        assert_eq!((ran.code, &ran.out), (0, &native.out), "{what}, {least} + {MORE} KiB: {}", ran.err);
        ran.ledger().agrees_with(&ran.json()).complete();
    }
}
