//! What graphs hold: memory of their own, and the program's objects.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

pub(super) const CHECKS: &[Check] = &[
    Check::documented("graph.memory_nodes", memory_nodes),
    Check::documented("graph.memory_nodes_one_exec", memory_nodes_one_exec),
    Check::documented("graph.user_object", user_object),
];

const N: u64 = 2048;

fn expect(t: &mut Checker, what: &str, stream: &Strm, mem: &Mem, value: u32) -> Done {
    let wrong = t.gpu.wrong_words(stream, mem.words(), value)?;
    t.eq(&format!("{what}: words that are not {value}"), wrong, 0);
    Ok(())
}

fn captured_memory(t: &Checker, stream: &Strm, out: &Mem) -> Result<Graph, Stop> {
    Graph::capture(stream, || {
        let mut p = 0;
        ok("cuMemAllocAsync", cu!(cuMemAllocAsync(&mut p, N as usize * 4, stream.s)))?;
        // SAFETY: allocated for the kernels captured after it and before its free.
        let scratch = unsafe { gpumem_kernels::Words::from_raw(p, N) }?;
        t.gpu.kernels.fill(stream.k(), scratch, 17)?;
        t.gpu.kernels.scale(stream.k(), out.words(), scratch, 2)?;
        ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))
    })
}

fn memory_nodes(t: &mut Checker) -> Done {
    let (stream, out) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = captured_memory(t, &stream, &out)?;
    t.eq("nodes: alloc, two kernels, free", graph.nodes()?.len(), 4);
    let exec = graph.instantiate()?;
    for _ in 0..2 {
        ok("cuMemsetD32Async", cu!(cuMemsetD32Async(out.p, 0, N as usize, stream.s)))?;
        exec.launch(&stream)?;
        expect(t, "a launch that allocates", &stream, &out, 34)?;
    }
    Ok(())
}

fn memory_nodes_one_exec(t: &mut Checker) -> Done {
    let (stream, out) = (Strm::non_blocking()?, t.gpu.words(N)?);
    let graph = captured_memory(t, &stream, &out)?;
    let exec = graph.instantiate()?;
    let mut e = null_mut();
    let second = cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, 0));
    t.yes("a second exec of a graph with memory nodes is refused", second != 0);
    drop(exec);
    t.eq("one after the first was destroyed", graph.instantiate().is_ok(), true);
    Ok(())
}

static RELEASED: AtomicU32 = AtomicU32::new(0);

extern "C" fn release(_object: *mut c_void) {
    RELEASED.fetch_add(1, SeqCst);
}

/// An object that a graph holds lives as long as the graph or any exec of it; its
/// destructor comes soon after, on a thread of the driver's.
fn user_object(t: &mut Checker) -> Done {
    use cudarc::driver::sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as NO_SYNC;
    use cudarc::driver::sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as MOVE;
    let before = RELEASED.load(SeqCst);
    let mut object = null_mut();
    let made = cu!(cuUserObjectCreate(&mut object, null_mut(), Some(release), 1, NO_SYNC as u32));
    ok("cuUserObjectCreate", made)?;
    let (graph, stream) = (Graph::new()?, Strm::non_blocking()?);
    let kept = cu!(cuGraphRetainUserObject(graph.g, object, 1, MOVE as u32));
    ok("cuGraphRetainUserObject", kept)?;
    let exec = graph.instantiate()?;
    drop(graph);
    exec.launch(&stream)?;
    stream.sync()?;
    t.eq("destructor calls while an exec lives", RELEASED.load(SeqCst) - before, 0);
    drop(exec);
    ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
    let asked = std::time::Instant::now();
    while RELEASED.load(SeqCst) == before && asked.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    t.eq("destructor calls once the exec is gone", RELEASED.load(SeqCst) - before, 1);
    Ok(())
}
