//! Execs: whose nodes they know, what they hold, what they cost.

use super::*;

/// An image that no other test loads, so that its addresses are its own.
fn image(tag: &str) -> String {
    format!("{PTX}\n// {tag}\n.visible .global .u32 {tag};\n")
}

fn fill_of(func: H, p: u64, value: u64) -> Kind {
    let shape = Shape { func, grid: [1; 3], block: [1; 3], shared: 0, attrs: Attrs::new() };
    Kind::Kernel(kernel(shape, Some(block(func, &[p, 16, value])), None).unwrap())
}

#[test]
fn a_function_that_came_back_is_another() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let load = || {
        let m = module::load(r.ctx, &image("came_back")).unwrap();
        (m, module::function(m, "gpumem_fill").unwrap())
    };
    let (m, f) = load();
    let g = graph::create(&mut lock());
    let fill = fill_of(f, p, 7);
    let node = graph::add_node(&mut lock(), g, &[], fill).unwrap();
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    module::unload(m).unwrap();
    assert_eq!(violations_of(|| assert!(lock().function(f).is_err())), 1, "named while unloaded");
    let (_, again) = load();
    assert_eq!(again, f, "the address comes back");
    let refused = Err(Error::INVALID_HANDLE);
    assert_eq!(violations_of(|| assert_eq!(exec::instantiate(r.ctx, g, 0), refused)), 1);
    let other = r.chain(p, &[1]);
    let y = exec::instantiate(r.ctx, other, 0).unwrap();
    let by_update = violations_of(|| {
        let refusal = update::update(y, g).unwrap().refusal.unwrap();
        assert_eq!((refusal.why, refusal.node), (update::Refusal::Error, node));
    });
    assert_eq!(by_update, 1);
    // Given the function of the new load, the exec is as good as new.
    exec::set_node(x, node, fill_of(again, p, 8)).unwrap();
    let fine = violations_of(|| {
        exec::launch(x, r.s).unwrap();
        stream::synchronize(r.s).unwrap();
    });
    assert_eq!((fine, r.words(p, 1)), (0, vec![8]));
    free(p).unwrap();
}

#[test]
fn running_an_unloaded_function_is_found() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    // In a context of its own: the fault stays with it.
    let ctx = context::create(0, 0).unwrap();
    let m = module::load(ctx, &image("run_unloaded")).unwrap();
    let f = module::function(m, "gpumem_fill").unwrap();
    let g = graph::create(&mut lock());
    let fill = fill_of(f, p, 7);
    graph::add_node(&mut lock(), g, &[], fill).unwrap();
    let x = exec::instantiate(ctx, g, 0).unwrap();
    let s = stream::create(ctx, 1, 0).unwrap();
    module::unload(m).unwrap();
    module::load(ctx, &image("run_unloaded")).unwrap();
    let found = violations_of(|| {
        exec::launch(x, s).unwrap();
        assert!(stream::synchronize(s).is_err());
    });
    assert_eq!((found, r.words(p, 1)), (1, vec![0]));
    context::destroy(ctx).unwrap();
    free(p).unwrap();
}

#[test]
fn instantiate_runs_out_of_device_memory() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[1; 1000]);
    let first = exec::instantiate(r.ctx, g, 0).unwrap();
    let (free_now, _) = memory::info(0);
    let rest = alloc(r.ctx, free_now).unwrap();
    let mut made = Vec::new();
    let error = loop {
        match exec::instantiate_or_why(r.ctx, g, 0) {
            Ok(x) => made.push(x),
            Err(why) => break why,
        }
        assert!(made.len() < 4, "only what was held before is left");
    };
    assert_eq!((error.error, error.result, error.node), (Error::OUT_OF_MEMORY, 1, 0));
    let held = stat("graph_device_held").unwrap();
    exec::destroy(first).unwrap();
    assert_eq!(memory::info(0).0, 0, "destroying gives nothing back");
    made.push(exec::instantiate(r.ctx, g, 0).unwrap());
    assert_eq!(stat("graph_device_held"), Some(held), "but its place can be had");
    made.into_iter().for_each(|x| exec::destroy(x).unwrap());
    free(rest).unwrap();
    free(p).unwrap();
}

#[test]
fn kinds_cost_what_they_were_measured_to() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let live = || (stat("graph_host_live").unwrap(), stat("graph_device_live").unwrap());
    let before = live();
    let g = graph::create(&mut lock());
    let set = Memset { dst: p, pitch: 0, value: 1, elem: 4, width: 4, height: 1 };
    let kinds = [
        Kind::Kernel(r.kernel("gpumem_fill", &[p, 16, 1])),
        Kind::Memcpy(Copy3D::linear(p, p + 1024, 64)),
        Kind::Memset(set),
        Kind::Empty,
    ];
    for k in kinds {
        graph::add_node(&mut lock(), g, &[], k).unwrap();
    }
    let graphs = live();
    assert_eq!((graphs.0 - before.0, graphs.1 - before.1), (4 * graph::HOST_PER_NODE, 0));
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    let execs = live();
    assert_eq!((execs.0 - graphs.0, execs.1 - graphs.1), (5877 + 6613 + 4044 + 2033, 2 * 2621));
    exec::destroy(x).unwrap();
    graph::destroy(g).unwrap();
    assert_eq!(live(), before);
    free(p).unwrap();
}

#[test]
fn nodes_are_known_by_more_than_their_address() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let (g, h) = (r.chain(p, &[1]), r.chain(p, &[2]));
    let (node, other) = (r.nodes(g)[0], r.nodes(h)[0]);
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    // The other graph's node gets this one's address, as it can on a heap.
    let moved = {
        let mut m = lock();
        let n = m.nodes.remove(&other).unwrap();
        m.nodes.insert(node, n)
    };
    assert_eq!(exec::set_enabled(x, node, false), Err(Error::INVALID_VALUE));
    lock().nodes.insert(node, moved.unwrap());
    assert_eq!(exec::set_enabled(x, node, false), Ok(()));
    lock().graph(h).unwrap().nodes.clear();
    free(p).unwrap();
}

#[test]
fn an_update_exchanges_what_the_exec_holds() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    static DIED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn died(_: usize) {
        DIED.fetch_add(1, SeqCst);
    }
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let died_now = || {
        let tail = lock().callbacks.tail();
        tail.wait();
        DIED.load(SeqCst)
    };
    let holding = |value| {
        let g = r.chain(p, &[value]);
        let o = user_object::create(died as *const () as usize, 0, 1).unwrap();
        user_object::retain_in_graph(g, o, 1, true).unwrap();
        g
    };
    let (one, two) = (holding(1), holding(2));
    let x = exec::instantiate(r.ctx, one, 0).unwrap();
    graph::destroy(one).unwrap();
    assert_eq!(died_now(), 0);
    update::update(x, two).unwrap();
    assert_eq!(died_now(), 1, "what only the exec held");
    graph::destroy(two).unwrap();
    assert_eq!(died_now(), 1, "the exec holds what the update's graph held");
    exec::destroy(x).unwrap();
    assert_eq!(died_now(), 2);
    free(p).unwrap();
}

#[test]
fn packed_parameters_are_shown_packed() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[9]);
    let m = lock();
    let n = &m.nodes[&m.graphs[&g].nodes[0]];
    assert_eq!(n.views.params(), 0, "the rig launches with one block");
    let list = n.views.extra() as *const usize;
    // SAFETY: `extra` gives five words that the node owns, and the node is alive. Words 1 and 3 are
    // addresses of a length and of the packed parameters, which the node owns too.
    unsafe {
        let words = std::slice::from_raw_parts(list, 5);
        assert_eq!((words[0], words[2], words[4]), (2, 1, 0));
        assert_eq!(*(words[1] as *const usize), 20);
        assert_eq!(*(words[3] as *const u64), p);
    }
    drop(m);
    free(p).unwrap();
}
