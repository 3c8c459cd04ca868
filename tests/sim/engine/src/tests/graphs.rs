//! Graphs and their execs.

use super::*;

#[test]
fn launches_of_one_exec_are_serialised() {
    let r = rig();
    // Longer and longer work: a busy machine may keep this thread from asking while it runs.
    let was_running = [30, 300, 3000].into_iter().any(|ms| {
        capture::begin(r.s, capture::RELAXED, None).unwrap();
        r.spin(r.s, ms);
        let g = capture::end(r.s).unwrap();
        let x = exec::instantiate(r.ctx, g, 0).unwrap();
        let start = Instant::now();
        let (a, b) = (r.stream(1), r.stream(1));
        exec::launch(x, a).unwrap();
        exec::launch(x, b).unwrap();
        exec::destroy(x).unwrap();
        let was_running = stream::query(b) == Err(Error::NOT_READY);
        stream::synchronize(b).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(2 * ms - 5));
        was_running
    });
    assert!(was_running, "destroy does not wait");
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
    for (from, to) in [(2, 0), (2, 4), (0, 2)] {
        let sized = |n| if n == 0 { plain } else { with(attr::CLUSTER, n) };
        let x = exec::instantiate(r.ctx, sized(from), 0).unwrap();
        assert!(update::update(x, sized(to)).unwrap().refusal.is_none(), "says success");
        let kept = match &lock().exec(x).unwrap().body.nodes[0].step.kind {
            Kind::Kernel(k) => k.attrs.get(&attr::CLUSTER).map_or(0, |v| v[0]),
            _ => panic!("a kernel"),
        };
        assert_eq!(kept, from, "but keeps the old cluster");
    }
    let refusal = |x, g| update::update(x, g).unwrap().refusal.map(|r| r.why);
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
    assert_eq!(reused, 0, "an exec names an address, whatever lives there now");
    r.spin(r.s, 20);
    r.fill(r.s, q, 16, 1).unwrap();
    let reused = violations_of(|| {
        // As a pool does that does not wait: the work was for what was there.
        let mut m = lock();
        let old = m.allocs.remove(&q).unwrap();
        m.add_alloc(q, old.size, old.kind, old.ctx, old.device);
        drop(m);
        stream::synchronize(r.s).unwrap();
    });
    assert_eq!(reused, 1, "work of a stream was meant for what lived there then");
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
fn user_objects_die_with_the_last_reference() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    static DIED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn died(_: usize) {
        DIED.fetch_add(1, SeqCst);
    }
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[1]);
    let o = user_object::create(died as *const () as usize, 0, 1).unwrap();
    user_object::retain_in_graph(g, o, 1, true).unwrap();
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
