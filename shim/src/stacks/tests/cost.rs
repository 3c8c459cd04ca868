//! `cargo test --release -p gpumem-shim -- --ignored --nocapture stack_costs`

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::time::Instant;

use super::*;
use crate::stacks::intern::Interner;

struct Bench {
    interner: Interner,
    frames: usize,
    frame_pointers: bool,
    sites: (
        unsafe extern "C" fn(c_int, c_int, c_int, c_int, Callback, *mut c_void) -> c_int,
        unsafe extern "C" fn(c_int, Callback, *mut c_void),
    ),
    results: Vec<(&'static str, f64)>,
}

const ROUNDS: u32 = 200_000;

/// Median of a few batches, in nanoseconds.
fn time(mut run: impl FnMut()) -> f64 {
    let mut batches: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            (0..ROUNDS / 9).for_each(|_| run());
            start.elapsed().as_nanos() as f64 / f64::from(ROUNDS / 9)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    batches[batches.len() / 2]
}

/// # Safety
/// `with` leads to a [`Bench`] that no one else uses.
unsafe extern "C" fn measure(with: *mut c_void) {
    // SAFETY: `stack_costs` passes its Bench with this function, and waits for it.
    let bench = unsafe { &mut *with.cast::<Bench>() };
    let regs = Regs::of_caller();
    let mut frames = [0u64; 32];
    bench.frames = walk(regs, &mut frames).len;
    let results = &mut bench.results;
    if bench.frame_pointers {
        results.push(("frame pointers", time(|| _ = black_box(by_frame_pointer(black_box(regs), &mut frames)))));
    }
    results.push(("walk", time(|| _ = black_box(walk(black_box(regs), &mut frames)))));
    let interner = &bench.interner;
    results.push((
        "without memo",
        time(|| {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: no walk is in progress on this thread, so no other reference to its memo is
            // alive.
            unsafe {
                (*crate::stacks::state().expect("memory").memo.get()).clear();
            }
            black_box(walk(black_box(regs), &mut frames));
        }),
    ));
    results.push((
        "by two sites",
        time(|| {
            // SAFETY: the function has the type that shapes.c gives it, and its library is open.
            // `walk_only` takes `frames`.
            unsafe { (bench.sites.0)(1, 2, 3, 4, walk_only, frames.as_mut_ptr().cast()) };
            // SAFETY: the function has the type that shapes.c gives it, and its library is open.
            // `walk_only` takes `frames`.
            unsafe { (bench.sites.1)(100, walk_only, frames.as_mut_ptr().cast()) };
        }) / 2.0,
    ));
    results.push((
        "walk + intern",
        time(|| {
            let walk = walk(black_box(regs), &mut frames);
            black_box(interner.intern(walk.hash, |_| true));
        }),
    ));
    let hash = walk(regs, &mut frames).hash;
    results.push(("intern", time(|| _ = black_box(interner.intern(black_box(hash), |_| true)))));
    results.push((
        "backtrace",
        time(|| {
            let mut left = 32;
            // SAFETY: `_unsynchronized` asks that no other thread uses the unwinder's shared state
            // at the same time. This test has one thread.
            unsafe {
                backtrace::trace_unsynchronized(|frame| {
                    black_box(frame.ip());
                    left -= 1;
                    left > 0
                })
            };
        }),
    ));
}

/// # Safety
/// `with` leads to 32 frames that no one else uses.
unsafe extern "C" fn walk_only(with: *mut c_void) {
    // SAFETY: `measure` passes its array of 32 frames with this function, and waits for it.
    let frames = unsafe { &mut *with.cast::<[u64; 32]>() };
    black_box(walk(Regs::of_caller(), frames));
}

fn by_frame_pointer(regs: Regs, frames: &mut [u64]) -> usize {
    let (mut pc, mut fp, mut len) = (regs.pc, regs.fp, 0);
    while len < frames.len() && pc != 0 {
        frames[len] = pc;
        len += 1;
        // SAFETY: the shape keeps frame pointers, so `fp` leads to two words on this stack. It has
        // more frames than are asked for.
        unsafe { (pc, fp) = (*((fp + 8) as *const u64), *(fp as *const u64)) };
    }
    len
}

#[test]
#[ignore = "measures, asserts little"]
fn stack_costs() {
    for frame_pointers in [true, false] {
        let flag = if frame_pointers { "-fno-omit-frame-pointer" } else { "-fomit-frame-pointer" };
        let library = Library::new("shapes.c", &["-O2", flag]);
        // SAFETY: shapes.c gives `recurse` this type, and the library is open until the end of the
        // loop.
        let recurse: unsafe extern "C" fn(c_int, Callback, *mut c_void) = unsafe { library.function("recurse") };
        // SAFETY: shapes.c gives both functions the types of `Bench::sites`, and the library is
        // open until the end of the loop.
        let sites = unsafe { (library.function("registers"), library.function("alloca_frame")) };
        let interner = Interner::new(65536).unwrap();
        let mut bench = Bench { interner, frames: 0, frame_pointers, sites, results: Vec::new() };
        println!("{flag}, 32 frames:");
        // SAFETY: the library is open. `measure` takes the Bench that is passed with it, which
        // outlives the call.
        unsafe { recurse(40, measure, (&raw mut bench).cast()) };
        assert_eq!(bench.frames, 32);
        for (what, nanoseconds) in bench.results {
            println!("{what:>16}: {nanoseconds:8.1} ns");
        }
    }
}
