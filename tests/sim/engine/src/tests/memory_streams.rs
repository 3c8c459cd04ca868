//! Memory, streams, events.

use super::*;

/// The first device.
const ON_DEVICE: crate::abi::Location = crate::abi::Location { kind: 1, id: 0 };

#[test]
fn ptx_parameters_have_offsets() {
    let image = crate::ptx::parse(PTX).unwrap();
    let unknown = image.entries.iter().find(|e| e.name == "unknown").unwrap();
    assert_eq!(unknown.params, [(0, 24), (24, 4)]);
    assert!(crate::ptx::parse("hello").is_none());
    let text = ".version 7.0\n.visible .global .align 4 .b8 table[64];\n.global .u32 one = 1;\n";
    let v = crate::ptx::parse(text).unwrap().variables;
    assert_eq!(v.iter().map(|v| (v.name.as_str(), v.size)).collect::<Vec<_>>(), [("table", 64), ("one", 4)]);
}

#[test]
fn sizes_are_charged_in_blocks() {
    let r = rig();
    let before = used();
    let big = alloc(r.ctx, (2 << 20) + 1).unwrap();
    assert_eq!(used() - before, 4 << 20);
    let small: Vec<u64> = (0..64).map(|_| alloc(r.ctx, 4096).unwrap()).collect();
    assert_eq!(used() - before, 6 << 20, "64 small ones share a block");
    assert_eq!(memory::address_range(big).unwrap(), (big, (2 << 20) + 1));
    for p in small.into_iter().chain([big]) {
        free(p).unwrap();
    }
    assert_eq!(used(), before);
    assert_eq!(alloc(r.ctx, 0), Err(Error::INVALID_VALUE));
    assert_eq!(alloc(r.ctx, 1 << 50), Err(Error::OUT_OF_MEMORY));
}

#[test]
fn memory_comes_back_zeroed_at_the_same_address() {
    let r = rig();
    let p = alloc(r.ctx, 4 << 20).unwrap();
    let id = lock().find(p).unwrap().1.id;
    set(r.legacy(), Memset { dst: p, pitch: 0, value: 7, elem: 4, width: 64, height: 1 }, true).unwrap();
    assert_eq!(r.words(p, 4), [7; 4]);
    free(p).unwrap();
    let q = alloc(r.ctx, 4 << 20).unwrap();
    assert_eq!(q, p);
    assert_ne!(lock().find(q).unwrap().1.id, id, "the buffer id is new");
    assert_eq!(r.words(q, 4), [0; 4]);
    free(q).unwrap();
}

#[test]
fn wrong_frees_give_invalid_value() {
    let r = rig();
    let p = alloc(r.ctx, 1 << 20).unwrap();
    assert_eq!(free(0), Ok(()));
    assert_eq!(free(p + 512), Err(Error::INVALID_VALUE));
    assert_eq!(free(0x1000), Err(Error::INVALID_VALUE));
    assert_eq!(free(p), Ok(()));
    assert_eq!(free(p), Err(Error::INVALID_VALUE));
    assert_eq!(memory::free_host(0x1000), Err(Error::INVALID_VALUE));
}

#[test]
fn free_is_a_barrier_for_non_blocking_streams_too() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let barriers = report::counted("barriers");
    r.spin(r.s, 60);
    let start = Instant::now();
    free(p).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert_eq!(stream::query(r.s), Ok(()));
    assert_eq!(report::counted("barriers"), barriers + 1);
}

#[test]
fn work_runs_later_and_in_order() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    r.spin(r.s, 30);
    r.fill(r.s, p, 16, 1).unwrap();
    r.fill(r.s, p, 16, 2).unwrap();
    assert_eq!(stream::query(r.s), Err(Error::NOT_READY));
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 16), [2; 16]);
    free(p).unwrap();
}

#[test]
fn legacy_stream_waits_for_blocking_streams_only() {
    let r = rig();
    let blocking = r.stream(0);
    r.spin(blocking, 50);
    let start = Instant::now();
    r.spin(r.legacy(), 1);
    stream::synchronize(r.legacy()).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(45));
    // Longer and longer work: a busy machine may keep this thread from asking while it runs.
    let was_running = [50, 300, 3000].into_iter().any(|ms| {
        r.spin(r.s, ms);
        r.spin(r.legacy(), 1);
        stream::synchronize(r.legacy()).unwrap();
        let was_running = stream::query(r.s) == Err(Error::NOT_READY);
        stream::synchronize(r.s).unwrap();
        was_running
    });
    assert!(was_running, "a non-blocking stream is not waited for");
}

#[test]
fn events_order_streams_and_tell_time() {
    let r = rig();
    let other = r.stream(stream::NON_BLOCKING);
    let (a, b) = (event::create(r.ctx, 0).unwrap(), event::create(r.ctx, 0).unwrap());
    assert_eq!(event::query(a), Ok(()), "never recorded counts as done");
    event::record(a, r.s, 0).unwrap();
    r.spin(r.s, 40);
    event::record(b, r.s, 0).unwrap();
    event::wait(b, other, 0).unwrap();
    r.spin(other, 1);
    assert_eq!(event::query(b), Err(Error::NOT_READY));
    stream::synchronize(other).unwrap();
    assert_eq!(event::query(b), Ok(()));
    assert!(event::elapsed(a, b).unwrap() >= 35.0);
    event::destroy(a).unwrap();
    assert_eq!(violations_of(|| assert_eq!(event::query(a), Err(Error::INVALID_HANDLE))), 1);
}

#[test]
fn stream_ordered_memory_is_freed_in_order() {
    let r = rig();
    let before = used();
    let p = pool::alloc(r.ctx, r.s, 1000, 0).unwrap();
    assert_eq!(used() - before, 32 << 20, "pools grow in steps of 32 MiB");
    r.fill(r.s, p, 16, 3).unwrap();
    pool::free(p, r.s).unwrap();
    assert_eq!(pool::free(p, r.s), Err(Error::INVALID_VALUE));
    stream::synchronize(r.s).unwrap();
    assert_eq!(used(), before, "synchronising gives idle memory back");
    let plain = alloc(r.ctx, 4096).unwrap();
    assert_eq!(pool::free(plain, r.s), Ok(()), "memory of cuMemAlloc is taken too");
    stream::synchronize(r.s).unwrap();
    assert_eq!(free(plain), Err(Error::INVALID_VALUE));
    assert_eq!(pool::alloc(r.ctx, r.s, 0, 0), Ok(0));
}

#[test]
fn mappings_need_access() {
    let r = rig();
    let size = vmm::GRANULARITY;
    let before = used();
    let va = vmm::reserve(2 * size, 0, 0).unwrap();
    assert_eq!(vmm::create(ON_DEVICE, 4096, 0), Err(Error::INVALID_VALUE));
    let h = vmm::create(ON_DEVICE, size, 0).unwrap();
    assert_eq!(used() - before, size);
    assert_eq!(vmm::map(va, size, 4096, h), Err(Error::NOT_SUPPORTED));
    vmm::map(va, size, 0, h).unwrap();
    vmm::map(va + size, size, 0, h).unwrap();
    let zero = Memset { dst: va, pitch: 0, value: 0, elem: 4, width: 16, height: 1 };
    assert_eq!(set(r.s, zero, false), Err(Error::INVALID_VALUE));
    vmm::set_access(va, 2 * size, true).unwrap();
    r.fill(r.s, va, 16, 8).unwrap();
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(va + size, 4), [8; 4], "both addresses are the same memory");
    assert_eq!(vmm::address_free(va, 2 * size), Err(Error::INVALID_VALUE));
    vmm::release(h).unwrap();
    assert_eq!(used() - before, size, "mapped memory stays");
    vmm::unmap(va, 2 * size).unwrap();
    assert_eq!(used(), before);
    vmm::address_free(va, 2 * size).unwrap();
}

#[test]
fn pageable_sources_are_taken_at_once() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    r.spin(r.s, 30);
    let mut source = [1u32; 16];
    copy_async(r.s, Copy3D::linear(p, source.as_ptr() as u64, 64)).unwrap();
    source = [2; 16];
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 16), [1; 16]);
    assert_eq!(source[0], 2);
    free(p).unwrap();
}
