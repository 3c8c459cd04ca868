//! A snapshot of a million live allocations is read, grouped by site and shown in 200 ms. Times mean something in
//! a release build only: `cargo test --release -p gpumem-inspector --test million -- --ignored --nocapture`.

mod common;
use common::*;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, StackSlot};
use std::time::{Duration, Instant};

/// As many stacks as a large program has, each 32 deep.
const STACKS: u32 = 5000;

fn large(allocs: u64) -> gpumem_inspector::compose::Composer {
    let mut composer = begin(gone());
    for library in 0..200 {
        let start = CUDA + library * 0x100_0000;
        module(&mut composer, &format!("/usr/lib/lib{library}.so"), start, 0x100_0000, start);
    }
    for stack in 0..STACKS {
        let frame = |depth: u64| CUDA + (u64::from(stack) * 7919 + depth * 104_729) % (200 * 0x100_0000);
        let frames: Vec<u64> = (0..32).map(frame).collect();
        composer.stack(
            stack as usize,
            StackSlot { allocs: 200, hash: u64::from(stack), ..Default::default() },
            &frames,
        );
    }
    composer.slots((0..allocs).map(|serial| AllocSlot {
        stack: (serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 % STACKS + 1,
        addr: 0x7000_0000_0000 + serial * 4096,
        bytes: 4096 + serial % 64 * 512,
        time_ns: serial,
        serial,
        kind: AllocKind::Device as u8,
        ..Default::default()
    }));
    composer
}

#[test]
fn ten_thousand_add_up() {
    let dir = dir();
    let path = dir.put(gone(), large(10_000));
    let sites = dir.json(&["allocs", path.to_str().unwrap()]);
    let sum =
        |field: &str| sites["rows"].as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("live"), sites["live"].as_u64().unwrap()), (10_000, 10_000));
    assert_eq!(sum("bytes"), (0..10_000_u64).map(|serial| 4096 + serial % 64 * 512).sum::<u64>());
}

#[test]
#[ignore = "measures time: for a release build on a quiet machine"]
fn a_million_take_at_most_200_ms() {
    let dir = dir();
    let path = dir.put(gone(), large(1_000_000));
    let path = path.to_str().unwrap();
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        dir.ok(&["allocs", path]);
        best = best.min(start.elapsed());
    }
    println!("gpumem allocs of 1000000 allocations: {best:?}");
    for args in [&["stats", path][..], &["graphs", path], &["allocs", path, "--all"], &["ps"]] {
        let start = Instant::now();
        dir.ok(args);
        println!("gpumem {}: {:?}", args[0], start.elapsed());
    }
    assert!(best <= Duration::from_millis(200), "{best:?}");
}
