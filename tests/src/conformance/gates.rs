//! Calls that hang beside work that ends only when the program says so. None of this was seen on a device yet: the graph
//! cache makes execs at launches, where natively nothing is made, and takes for granted that it may do so beside such
//! work. Once, on a GPU, it stood still in the driver's instantiate, and natively the program did not.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, graph::add_fill, ok};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("gates.instantiate_goes_on_after_destroying_what_is_over", after_destroying_what_is_over),
    Check::measured(
        "gates.instantiate_goes_on_after_destroying_what_ended_beside_it",
        after_destroying_what_ended_beside,
    ),
];

const N: u64 = 2048;
/// How many execs are made, or destroyed and made again. The driver had memory of its own for nine of 400 nodes.
const ROUNDS: usize = 24;
const NODES: usize = 400;

struct State {
    open: bool,
    gave_up: bool,
}

static GATE: (Mutex<State>, Condvar) = (Mutex::new(State { open: false, gave_up: false }), Condvar::new());

fn gate() -> MutexGuard<'static, State> {
    GATE.0.lock().unwrap_or_else(|held| held.into_inner())
}

/// Waits until the gate is opened. The wait has a limit, so a call that waits for this one returns in the end.
extern "C" fn wait(_: *mut c_void) {
    const PATIENCE: Duration = Duration::from_secs(8);
    let (begin, mut state) = (Instant::now(), gate());
    while !state.open {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        if left.is_zero() {
            state.gave_up = true;
            return;
        }
        state = GATE.1.wait_timeout(state, left).unwrap_or_else(|held| held.into_inner()).0;
    }
}

/// Makes `calls` while the program holds up a stream. Returns true if they came back meanwhile.
fn beside_a_gate(calls: impl FnOnce() -> Done) -> Result<bool, Stop> {
    let held_up = Strm::non_blocking()?;
    *gate() = State { open: false, gave_up: false };
    ok("cuLaunchHostFunc", cu!(cuLaunchHostFunc(held_up.s, Some(wait), null_mut())))?;
    let done = calls();
    let went_on = {
        let mut state = gate();
        state.open = true;
        !state.gave_up
    };
    GATE.1.notify_all();
    held_up.sync()?;
    done.map(|()| went_on)
}

/// A chain of fills. Destroying an exec of such a graph was never seen to wait.
fn chain(t: &Checker, mem: &Mem) -> Result<Graph, Stop> {
    let (graph, mut last) = (Graph::new()?, Vec::new());
    for value in 0..NODES as u32 {
        last = vec![add_fill(t, &graph, &last, mem, value)?];
    }
    Ok(graph)
}

/// The exec was launched and waited for before the gate closed.
fn after_destroying_what_is_over(t: &mut Checker) -> Done {
    let (mem, stream) = (t.gpu.words(N)?, Strm::non_blocking()?);
    let (graph, mut over, mut made) = (chain(t, &mem)?, Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let exec = graph.instantiate()?;
        exec.launch(&stream)?;
        over.push(exec);
    }
    stream.sync()?;
    let went_on = beside_a_gate(|| {
        for exec in over {
            drop(exec);
            made.push(graph.instantiate()?);
        }
        Ok(())
    })?;
    t.yes("it went on", went_on);
    Ok(())
}

/// The exec was launched and waited for by its stream while the gate was closed. The cache does the same at a small
/// bound.
fn after_destroying_what_ended_beside(t: &mut Checker) -> Done {
    let (mem, stream) = (t.gpu.words(N)?, Strm::non_blocking()?);
    let graph = chain(t, &mem)?;
    let went_on = beside_a_gate(|| {
        for _ in 0..ROUNDS {
            let exec = graph.instantiate()?;
            exec.launch(&stream)?;
            stream.sync()?;
        }
        Ok(())
    })?;
    t.yes("it went on", went_on);
    Ok(())
}
