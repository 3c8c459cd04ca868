//! The rules, each as it was measured on an H200 (driver 580, CUDA 13.0).
//!
//! The machine is one per process and a capture in global mode forbids calls
//! of other threads, so the tests take turns.

use crate::copy::{copy_async, copy_sync, set};
use crate::handle::H;
use crate::launch::{Shape, kernel};
use crate::machine::{lock, stat};
use crate::memory::{alloc, free};
use crate::node::{Attrs, Copy3D, Kernel, Kind, Memset, attr};
use crate::{Error, Result, capture, context, event, exec, graph, lifecycle, memory, module, pool};
use crate::{report, stream, update, vmm};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const PTX: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry gpumem_fill(.param .u64 p0, .param .u64 p1, .param .u32 p2) { ret; }
.visible .entry gpumem_scale(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3) { ret; }
.visible .entry gpumem_spin(.param .u64 p0, .param .u64 p1) { ret; }
.visible .entry unknown(.param .align 8 .b8 p0[24], .param .u32 p1) { ret; }
";

struct Rig {
    _turn: MutexGuard<'static, ()>,
    ctx: H,
    module: H,
    s: H,
}

fn rig() -> Rig {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    lifecycle::init().unwrap();
    // What an earlier test left behind goes.
    context::reset_primary(0).unwrap();
    let ctx = context::retain_primary(0).unwrap();
    context::set_current(ctx).unwrap();
    let module = module::load(ctx, PTX).unwrap();
    let s = stream::create(ctx, stream::NON_BLOCKING, 0).unwrap();
    Rig { _turn: turn, ctx, module, s }
}

impl Rig {
    fn stream(&self, flags: u32) -> H {
        stream::create(self.ctx, flags, 0).unwrap()
    }

    fn legacy(&self) -> H {
        stream::resolve(&mut lock(), self.ctx, 0).unwrap()
    }

    fn kernel(&self, name: &str, words: &[u64]) -> Kernel {
        let func = module::function(self.module, name).unwrap();
        let shape = Shape { func, grid: [1; 3], block: [1; 3], shared: 0, attrs: Attrs::new() };
        let bytes = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        kernel(shape, Some(bytes), None).unwrap()
    }

    fn spin(&self, s: H, ms: u64) {
        let k = self.kernel("gpumem_spin", &[ms * 1_000_000, 0]);
        stream::submit(&mut lock(), s, Kind::Kernel(k)).unwrap();
    }

    fn fill(&self, s: H, p: u64, n: u64, value: u64) -> Result {
        let k = self.kernel("gpumem_fill", &[p, n, value]);
        stream::submit(&mut lock(), s, Kind::Kernel(k)).map(drop)
    }

    /// A graph of one kernel per value, captured in a chain.
    fn chain(&self, p: u64, values: &[u64]) -> H {
        let s = self.stream(stream::NON_BLOCKING);
        capture::begin(s, capture::RELAXED, None).unwrap();
        for v in values {
            self.fill(s, p, 16, *v).unwrap();
        }
        capture::end(s).unwrap()
    }

    fn nodes(&self, g: H) -> Vec<H> {
        lock().graph(g).unwrap().nodes.clone()
    }

    fn words(&self, p: u64, n: usize) -> Vec<u32> {
        let mut out = vec![0u32; n];
        let c = Copy3D::linear(out.as_mut_ptr() as u64, p, 4 * n as u64);
        copy_sync(self.legacy(), c).unwrap();
        out
    }
}

fn used() -> u64 {
    lock().devices[0].used
}

fn violations_of(kind: impl FnOnce()) -> u64 {
    let before = report::violations();
    kind();
    report::violations() - before
}

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
    r.spin(r.s, 200);
    let start = Instant::now();
    r.spin(r.legacy(), 1);
    stream::synchronize(r.legacy()).unwrap();
    assert!(start.elapsed() < Duration::from_millis(150));
    stream::synchronize(r.s).unwrap();
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

/// What a call gives while a stream captures, and what the capture's end gives.
type Outcome = (u32, u32);

fn in_capture(r: &Rig, flags: u32, mode: u32, call: &dyn Fn(H) -> Result) -> Outcome {
    let s = r.stream(flags);
    capture::begin(s, mode, None).unwrap();
    let code = |r: Result| r.err().map_or(0, |e| e.0);
    let first = code(call(s));
    (first, code(capture::end(s).map(drop)))
}

/// An exec made while nothing forbids it.
fn spare(r: &Rig, g: H) -> H {
    let mode = capture::exchange_mode(capture::RELAXED).unwrap();
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    capture::exchange_mode(mode).unwrap();
    x
}

#[test]
fn capture_rules_are_the_measured_ones() {
    let r = rig();
    let other = r.stream(stream::NON_BLOCKING);
    let ev = event::create(r.ctx, 0).unwrap();
    event::record(ev, other, 0).unwrap();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[1]);
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    context::synchronize(r.ctx).unwrap();
    const OK: Outcome = (0, 0);
    const BAD: Outcome = (900, 901);
    let malloc = |_| alloc(r.ctx, 64).map(|p| free(p)).map(drop);
    let legacy = r.legacy();
    let rows: &[(&str, &dyn Fn(H) -> Result, [Outcome; 3])] = &[
        ("malloc", &malloc, [BAD, BAD, OK]),
        ("host alloc", &|_| memory::alloc_host(r.ctx, 64, 0).map(drop), [BAD, BAD, OK]),
        ("other stream synchronize", &|_| stream::synchronize(other), [BAD, BAD, OK]),
        ("other stream query", &|_| stream::query(other), [BAD, BAD, OK]),
        ("event query", &|_| event::query(ev), [BAD, BAD, OK]),
        ("event synchronize", &|_| event::synchronize(ev), [BAD, BAD, OK]),
        ("instantiate", &|_| exec::instantiate(r.ctx, g, 0).map(drop), [BAD, BAD, OK]),
        ("exec destroy", &|_| exec::destroy(spare(&r, g)), [BAD, BAD, OK]),
        ("free of null", &|_| free(0), [BAD, BAD, OK]),
        ("alloc async elsewhere", &|_| pool::alloc(r.ctx, other, 64, 0).map(drop), [BAD, BAD, OK]),
        ("capturing stream query", &stream::query, [BAD; 3]),
        ("capturing stream synchronize", &stream::synchronize, [BAD; 3]),
        ("context synchronize", &|_| context::synchronize(r.ctx), [BAD; 3]),
        ("context record event", &|_| event::record_context(ev, r.ctx), [BAD; 3]),
        ("graph launch into it", &|s| exec::launch(x, s), [BAD; 3]),
        ("wait for an event from outside", &|s| event::wait(ev, s, 0), [(905, 901); 3]),
        ("begin again", &|s| capture::begin(s, 2, None), [(401, 0); 3]),
        ("graph launch elsewhere", &|_| exec::launch(x, other), [OK; 3]),
        ("launch elsewhere", &|_| r.fill(other, p, 4, 1), [OK; 3]),
        ("memory info", &|_| (memory::info(0).1 > 0).then_some(()).ok_or(Error::UNKNOWN), [OK; 3]),
        ("event record elsewhere", &|_| event::record(ev, other, 0), [OK; 3]),
        ("module load", &|_| module::load(r.ctx, PTX).map(drop), [OK; 3]),
        ("stream create", &|_| stream::create(r.ctx, 0, 0).map(drop), [OK; 3]),
        ("launch in the legacy stream", &|_| r.fill(legacy, p, 4, 1), [OK; 3]),
    ];
    for (name, call, expected) in rows {
        for (mode, want) in expected.iter().enumerate() {
            assert_eq!(in_capture(&r, stream::NON_BLOCKING, mode as u32, call), *want, "{name}, mode {mode}");
            context::synchronize(r.ctx).unwrap();
        }
    }
    for mode in 0..3 {
        let launch = |_| r.fill(legacy, p, 4, 1);
        assert_eq!(in_capture(&r, 0, mode, &launch), (906, 901), "blocking stream, mode {mode}");
    }
    free(p).unwrap();
}

#[test]
fn other_threads_meet_global_captures_only() {
    let r = rig();
    let ctx = r.ctx;
    for (mode, want) in [(capture::GLOBAL, 900), (capture::THREAD_LOCAL, 0), (capture::RELAXED, 0)] {
        let elsewhere = |_| std::thread::scope(|t| t.spawn(|| alloc(ctx, 64).map(drop)).join().unwrap());
        assert_eq!(in_capture(&r, 1, mode, &elsewhere).0, want, "mode {mode}");
        let exchanged = |_| {
            assert_eq!(capture::exchange_mode(capture::RELAXED), Ok(capture::GLOBAL));
            let made = alloc(ctx, 64).map(drop);
            assert_eq!(capture::exchange_mode(capture::GLOBAL), Ok(capture::RELAXED));
            made
        };
        assert_eq!(in_capture(&r, 1, mode, &exchanged), (0, 0), "exchanged, mode {mode}");
    }
}

#[test]
fn forks_join_and_must_join() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let (fork, ev, back) = (r.stream(1), event::create(r.ctx, 0).unwrap(), event::create(r.ctx, 0).unwrap());
    let start = |join: bool| {
        capture::begin(r.s, capture::RELAXED, None).unwrap();
        r.fill(r.s, p, 4, 1).unwrap();
        event::record(ev, r.s, 0).unwrap();
        event::wait(ev, fork, 0).unwrap();
        r.fill(fork, p, 4, 2).unwrap();
        if join {
            event::record(back, fork, 0).unwrap();
            event::wait(back, r.s, 0).unwrap();
            r.fill(r.s, p, 4, 3).unwrap();
        }
        capture::end(r.s)
    };
    let g = start(true).unwrap();
    assert_eq!(graph::edges(g).unwrap().len(), 3);
    assert_eq!(start(false), Err(Error::CAPTURE_UNJOINED));
    assert_eq!(event::query(ev), Err(Error::INVALID_VALUE), "its capture is over");
    assert_eq!(stream::query(fork), Ok(()));
    free(p).unwrap();
}

#[test]
fn launches_of_one_exec_are_serialised() {
    let r = rig();
    capture::begin(r.s, capture::RELAXED, None).unwrap();
    r.spin(r.s, 30);
    let g = capture::end(r.s).unwrap();
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    let start = Instant::now();
    let (a, b) = (r.stream(1), r.stream(1));
    exec::launch(x, a).unwrap();
    exec::launch(x, b).unwrap();
    exec::destroy(x).unwrap();
    assert!(start.elapsed() < Duration::from_millis(25), "destroy does not wait");
    stream::synchronize(b).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(55));
}

#[test]
fn graph_memory_is_kept_and_reused() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[1; 1000]);
    let make = || exec::instantiate(r.ctx, g, 0).unwrap();
    let (x, device, host) = (make(), stat("graph_device_held").unwrap(), stat("graph_host_held").unwrap());
    assert!(device >= 2_000_000 && host >= 5_800_000);
    let y = make();
    let grown = stat("graph_device_held").unwrap();
    assert!(grown > device && used() >= grown);
    exec::destroy(x).unwrap();
    exec::destroy(y).unwrap();
    assert_eq!(stat("graph_device_held").unwrap(), grown, "nothing comes back");
    let again = make();
    assert_eq!(stat("graph_device_held").unwrap(), grown, "but it is used again");
    exec::destroy(again).unwrap();
    free(p).unwrap();
}

#[test]
fn update_swaps_parameters_of_launches_to_come() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let (one, two) = (r.chain(p, &[1]), r.chain(p, &[2]));
    let x = exec::instantiate(r.ctx, one, 0).unwrap();
    r.spin(r.s, 40);
    exec::launch(x, r.s).unwrap();
    assert!(update::update(x, two).unwrap().refusal.is_none());
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 1), [1], "already launched: the old value");
    exec::launch(x, r.s).unwrap();
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 1), [2]);
    let longer = r.chain(p, &[1, 2]);
    let refused = update::update(x, longer).unwrap();
    assert_eq!(refused.error(), Err(Error::EXEC_UPDATE_FAILURE));
    exec::launch(x, r.s).unwrap();
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 1), [2], "a refused exec runs as before");
    free(p).unwrap();
}

#[test]
fn update_has_the_measured_quirks() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let with = |id: u32, value: u8| {
        let g = r.chain(p, &[1]);
        let mut m = lock();
        let node = m.graph(g).unwrap().nodes[0];
        let mut v = [0; 64];
        v[0] = value;
        exec::node_attrs(&mut m, node).unwrap().insert(id, v);
        g
    };
    let plain = r.chain(p, &[1]);
    let x = exec::instantiate(r.ctx, with(attr::CLUSTER, 2), 0).unwrap();
    assert!(update::update(x, plain).unwrap().refusal.is_none(), "says success");
    let kept = match &lock().exec(x).unwrap().nodes[0].step.kind {
        Kind::Kernel(k) => k.attrs.get(&attr::CLUSTER).map(|v| v[0]),
        _ => None,
    };
    assert_eq!(kept, Some(2), "but keeps the old cluster");
    let refusal = |x, g| update::update(x, g).unwrap().refusal.map(|r| r.0);
    let y = exec::instantiate(r.ctx, plain, 0).unwrap();
    assert_eq!(refusal(y, with(attr::COOPERATIVE, 1)), Some(update::Refusal::Attributes));
    assert_eq!(refusal(y, with(attr::PRIORITY, 1)), None);
    let z = exec::instantiate(r.ctx, plain, exec::USE_NODE_PRIORITY).unwrap();
    assert_eq!(refusal(z, with(attr::PRIORITY, 1)), Some(update::Refusal::Attributes));
    free(p).unwrap();
}

#[test]
fn setters_take_nodes_of_the_source_graph_only() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let (one, two) = (r.chain(p, &[1]), r.chain(p, &[2]));
    let node = |g| r.nodes(g)[0];
    let (own, foreign) = (node(one), node(two));
    let x = exec::instantiate(r.ctx, one, 0).unwrap();
    exec::set_enabled(x, own, false).unwrap();
    update::update(x, two).unwrap();
    assert_eq!(exec::enabled(x, own), Ok(false), "stays disabled through an update");
    assert_eq!(exec::set_enabled(x, foreign, true), Err(Error::INVALID_VALUE));
    exec::launch(x, r.s).unwrap();
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 1), [0]);
    let k = Kind::Kernel(r.kernel("gpumem_fill", &[p, 16, 9]));
    exec::set_enabled(x, own, true).unwrap();
    exec::set_node(x, own, k.clone()).unwrap();
    exec::launch(x, r.s).unwrap();
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 1), [9]);
    graph::destroy(one).unwrap();
    assert_eq!(exec::set_node(x, own, k), Err(Error::INVALID_VALUE));
    free(p).unwrap();
}

#[test]
fn clones_know_their_originals() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[1, 2, 3]);
    let c = graph::copy(&mut lock(), g).unwrap();
    let (a, b) = (r.nodes(g), r.nodes(c));
    assert_eq!(graph::find_in_clone(a[1], c), Ok(b[1]));
    assert_eq!(graph::find_in_clone(a[1], g), Err(Error::INVALID_VALUE));
    assert_eq!(graph::edges(c).unwrap().len(), 2);
    assert_eq!(graph::add_edges(g, &[(a[0], a[1], [0; 8])]), Err(Error::INVALID_VALUE));
    graph::add_edges(g, &[(a[2], a[0], [0; 8])]).unwrap();
    assert_eq!(exec::instantiate(r.ctx, g, 0), Err(Error::INVALID_VALUE), "a cycle");
    free(p).unwrap();
}

#[test]
fn touching_freed_memory_is_found() {
    let r = rig();
    let p = alloc(r.ctx, 4 << 20).unwrap();
    let g = r.chain(p, &[1]);
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    free(p).unwrap();
    let q = alloc(r.ctx, 4 << 20).unwrap();
    assert_eq!(p, q);
    let reused = violations_of(|| {
        exec::launch(x, r.s).unwrap();
        stream::synchronize(r.s).unwrap();
    });
    assert_eq!(reused, 1, "another allocation now lives there");
    free(q).unwrap();
    // In a context of its own: the fault stays with it.
    let ctx = context::create(0, 0).unwrap();
    let s = stream::create(ctx, 1, 0).unwrap();
    let found = violations_of(|| {
        exec::launch(x, s).unwrap();
        assert_eq!(stream::synchronize(s), Err(Error::ILLEGAL_ADDRESS));
    });
    assert_eq!(found, 1);
    assert_eq!(context::require(&mut lock()), Err(Error::ILLEGAL_ADDRESS), "and every later call");
    context::destroy(ctx).unwrap();
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
fn graphs_with_memory_have_one_exec() {
    let r = rig();
    capture::begin(r.s, capture::RELAXED, None).unwrap();
    let p = pool::alloc(r.ctx, r.s, 1 << 20, 0).unwrap();
    r.fill(r.s, p, 16, 5).unwrap();
    let g = capture::end(r.s).unwrap();
    assert_eq!(graph::copy(&mut lock(), g), Err(Error::NOT_SUPPORTED));
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    assert_eq!(exec::instantiate(r.ctx, g, 0), Err(Error::NOT_SUPPORTED));
    exec::launch(x, r.s).unwrap();
    assert_eq!(exec::launch(x, r.s), Err(Error::INVALID_VALUE), "not freed yet");
    pool::free(p, r.s).unwrap();
    exec::launch(x, r.s).unwrap();
    stream::synchronize(r.s).unwrap();
    assert_eq!(r.words(p, 2), [5, 5]);
    free(p).unwrap();
    exec::destroy(x).unwrap();
    pool::graph_trim(0);
    assert_eq!(lock().devices[0].graph_mem.live, 0);
}

#[test]
fn mappings_need_access() {
    let r = rig();
    let size = vmm::GRANULARITY;
    let before = used();
    let va = vmm::reserve(2 * size, 0, 0).unwrap();
    assert_eq!(vmm::create(0, 4096, 0), Err(Error::INVALID_VALUE));
    let h = vmm::create(0, size, 0).unwrap();
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

#[test]
fn user_objects_die_with_the_last_reference() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    static DIED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn died(_: usize) {
        DIED.fetch_add(1, SeqCst);
    }
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[1]);
    let o = graph::create_object(died as *const () as usize, 0, 1).unwrap();
    graph::retain_in_graph(g, o, 1, true).unwrap();
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    graph::destroy(g).unwrap();
    let tail = lock().callbacks.tail();
    tail.wait();
    assert_eq!(DIED.load(SeqCst), 0);
    exec::destroy(x).unwrap();
    let tail = lock().callbacks.tail();
    tail.wait();
    assert_eq!(DIED.load(SeqCst), 1);
    free(p).unwrap();
}
