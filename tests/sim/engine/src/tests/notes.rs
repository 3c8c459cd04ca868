//! Notes of a program about its own allocations and frees, and the violations that they show.

use super::*;
use crate::note;

/// The program's free as an allocator in between does it: nothing is freed.
fn kept(p: u64, strict: bool) {
    note::free(p);
    note::freed(p, 0, strict);
}

#[test]
fn memory_given_out_before_work_on_it_is_over_is_told() {
    let r = rig();
    let p = alloc(r.ctx, 1 << 20).unwrap();
    note::alloc(p, 1 << 20);
    assert_eq!(violations_of(|| kept(p, true)), 0, "idle: nothing to wait for");
    note::alloc(p, 1 << 20);
    r.spin(r.s, 40);
    r.fill(r.s, p, 16, 1).unwrap();
    assert_eq!(violations_of(|| kept(p, true)), 1, "freed without a barrier");
    assert_eq!(violations_of(|| note::alloc(p, 1 << 20)), 1, "and given out while work waits");
    stream::synchronize(r.s).unwrap();
    assert_eq!(violations_of(|| kept(p, true)), 0);
    assert_eq!(violations_of(|| note::alloc(p, 64)), 0, "after the work it may be");
    kept(p, false);
    free(p).unwrap();
}

#[test]
fn graphs_are_work_too() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    note::alloc(p, 4096);
    let g = r.chain(p, &[1, 2]);
    let e = exec::instantiate(r.ctx, g, 0).unwrap();
    r.spin(r.s, 40);
    exec::launch(e, r.s).unwrap();
    assert_eq!(violations_of(|| kept(p, false)), 0, "deferred frees do not wait");
    assert_eq!(violations_of(|| note::alloc(p, 4096)), 1);
    stream::synchronize(r.s).unwrap();
    exec::destroy(e).unwrap();
    kept(p, false);
    free(p).unwrap();
}

#[test]
fn memory_is_live_once_and_the_drivers() {
    let r = rig();
    let p = alloc(r.ctx, 1 << 20).unwrap();
    note::alloc(p, 1 << 20);
    assert_eq!((stat("noted_live"), stat("noted_bytes")), (Some(1), Some(1 << 20)));
    assert_eq!(violations_of(|| note::alloc(p + 4096, 64)), 1, "inside what is live");
    assert_eq!(violations_of(|| kept(p + 4096, true)), 0);
    kept(p, true);
    free(p).unwrap();
    assert_eq!(violations_of(|| note::alloc(p, 64)), 1, "not the driver's");
    kept(p, true);
    // A free that fails changes nothing.
    let p = alloc(r.ctx, 4096).unwrap();
    note::alloc(p, 4096);
    note::free(p);
    note::freed(p, 1, true);
    assert_eq!(stat("noted_live"), Some(1));
    kept(p, true);
    assert_eq!(stat("noted_live"), Some(0));
    free(p).unwrap();
}

#[test]
fn a_real_free_keeps_its_barrier() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    note::alloc(p, 4096);
    let waits = report::counted("waits");
    r.spin(r.s, 30);
    let kept = violations_of(|| {
        note::free(p);
        free(p).unwrap();
        note::freed(p, 0, true);
    });
    assert_eq!((kept, report::counted("waits")), (0, waits + 1));
}

#[test]
fn managed_memory_takes_nothing_of_the_device() {
    let r = rig();
    let before = used();
    let p = memory::alloc_managed(r.ctx, 32 << 30, 1).unwrap();
    assert_eq!(used(), before, "twice the device's size, and nothing of it is there");
    r.fill(r.s, p, 16, 3).unwrap();
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 16), [3; 16]);
    free(p).unwrap();
    assert_eq!(used(), before);
}
