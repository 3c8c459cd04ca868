//! The checks of HIP: graphs through its runtime, and memory, verified by the contents of memory. There are more execs
//! than the caps under which `gpumem selftest` runs them. No AMD card was at hand to measure anything on.
//!
//! [`memory`]: the checks of memory; [`probe`]: graphs and common tools; [`api`]: the HIP runtime.

mod api;
mod memory;
mod probe;

use super::{Check, Done, Stop};
use api::*;
pub(super) use probe::Probe;
use probe::*;
use std::ffi::c_int;
use std::ptr::null_mut;

/// Handles that live at once.
const HANDLES: usize = 16;

/// Every check, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check::hip("memset.in_turn", |p| in_turn(p, sets_and_copies, false)),
    Check::hip("memset.updated", |p| in_turn(p, sets_and_copies, true)),
    Check::hip("memset.element_sizes", |p| in_turn(p, element_sizes, false)),
    Check::hip("fills.in_turn", |p| in_turn(p, fills, false)),
    Check::hip("fills.updated", |p| in_turn(p, fills, true)),
    Check::hip("forks.in_turn", |p| in_turn(p, forks, false)),
    Check::hip("forks.updated", |p| in_turn(p, forks, true)),
    Check::hip("shapes.in_turn", |p| in_turn(p, shapes, false)),
    Check::hip("children.in_turn", |p| in_turn(p, child, false)),
    Check::hip("captured.in_turn", |p| in_turn(p, captured, false)),
    Check::hip("captured.updated", |p| in_turn(p, captured, true)),
    Check::hip("kernels.in_turn", |p| in_turn(p, kernels, false)),
    Check::hip("kernels.updated", |p| in_turn(p, kernels, true)),
    Check::hip("launches.at_once", at_once),
    Check::hip("update.other_shape_is_refused", refused),
    Check::hip("set.stays_with_its_handle", set_node),
    Check::hip("graph.changed_later", changed_later),
    Check::hip("execs.come_and_go", come_and_go),
    Check::hip("copies.host", host_copies),
    Check::hip("memory.freed_beside_work", memory::freed_beside_work),
    Check::hip("memory.contents", memory::contents),
    Check::hip("memory.refused", memory::refused),
    Check::hip("memory.beside_capture", memory::beside_capture),
];

thread_local! {
    // Never dropped: the runtime stays open to the end of the process.
    static PROBE: Result<&'static Probe, String> = Probe::open().map(|probe| &*Box::leak(Box::new(probe)));
}

fn probe() -> Result<&'static Probe, String> {
    PROBE.with(Clone::clone)
}

/// The first device's name, and the runtime's version and file.
///
/// # Errors
/// Says why there is no runtime, or no device.
pub fn device_line() -> Result<String, String> {
    Ok(probe()?.hip.device_line())
}

/// Runs one check.
pub(super) fn run(check: fn(&Probe) -> Done) -> Done {
    check(probe().map_err(Stop::Fail)?)
}

/// Numbers of four equal bytes, so that every kind of graph can write them.
fn number(of: usize) -> u32 {
    (1 + of as u32 % 250) * 0x0101_0101
}

/// Makes handles of graphs with sets and copies, each with a number of its own.
fn handles(p: &Probe, count: usize) -> Result<Vec<One>, Stop> {
    (0..count).map(|i| p.one(sets_and_copies, number(i))).collect()
}

/// Launches each handle and checks its block, on two streams in turn.
fn look_at_all(p: &Probe, all: &[One], round: usize) -> Done {
    all.iter().enumerate().try_for_each(|(i, one)| p.launch_and_look(one, p.streams[(i + round) % 2]))
}

/// Calls hipGraphExecUpdate with a new graph; returns its status, which is no error of the check, and its result.
fn update(p: &Probe, one: &One, make: Make, number: u32) -> Result<(HipStatus, c_int), Stop> {
    let next = make(p, one.block, number)?;
    let (mut node, mut result) = (null_mut(), -1);
    // SAFETY: the probe made both handles: the exec does not run, and the graph lives until it is destroyed below.
    // `node` and `result` are locals that take the answers.
    let status = unsafe { (p.hip.hipGraphExecUpdate)(one.exec, next.graph, &mut node, &mut result) };
    hip!(p, hipGraphDestroy(next.graph));
    if status != 0 {
        // SAFETY: hipGetLastError takes no arguments and changes only this thread's last error.
        unsafe { (p.hip.hipGetLastError)() };
    }
    Ok((status, result))
}

/// Launches handles in turn on two streams; every other one's graph is destroyed at once. With `is_updated`,
/// hipGraphExecUpdate gives each another graph between the rounds.
fn in_turn(p: &Probe, make: Make, is_updated: bool) -> Done {
    let mut all = Vec::new();
    for i in 0..HANDLES {
        let mut one = p.one(make, number(i))?;
        if i % 2 == 1 {
            p.graph_gone(&mut one)?;
        }
        all.push(one);
    }
    for round in 0..3 {
        look_at_all(p, &all, round)?;
        for (i, one) in all.iter_mut().enumerate().filter(|_| is_updated) {
            let (status, result) = update(p, one, make, number(100 + 20 * round + i))?;
            if status != 0 {
                return Err(Stop::Fail(format!(
                    "hipGraphExecUpdate gives {status}, result {result}, for a like graph"
                )));
            }
            one.number = number(100 + 20 * round + i);
        }
    }
    all.into_iter().try_for_each(|one| p.end(one))
}

/// Launches all at once, on two streams, several times each, without a wait.
fn at_once(p: &Probe) -> Done {
    let all = handles(p, HANDLES)?;
    for round in 0..3 {
        for (i, one) in all.iter().enumerate() {
            hip!(p, hipMemsetAsync(one.block.cast(), 0xee, BLOCK, p.streams[i % 2]));
            p.launch(one, p.streams[i % 2])?;
        }
        if round == 2 {
            hip!(p, hipDeviceSynchronize());
        }
    }
    all.iter().try_for_each(|one| p.holds(one, one.number))?;
    all.into_iter().try_for_each(|one| p.end(one))
}

/// A graph of another shape is refused, and the exec is unchanged.
fn refused(p: &Probe) -> Done {
    let all = handles(p, HANDLES)?;
    for one in &all {
        if update(p, one, forks, number(200))?.0 == 0 {
            return Err(Stop::Fail("hipGraphExecUpdate takes a graph of another shape".into()));
        }
    }
    look_at_all(p, &all, 0)?;
    all.into_iter().try_for_each(|one| p.end(one))
}

/// A node that was set through one handle is set in no other.
fn set_node(p: &Probe) -> Done {
    let mut all = handles(p, HANDLES)?;
    for (i, one) in all.iter_mut().enumerate().filter(|(i, _)| i % 4 == 0) {
        let params = fill(one.block, number(150 + i), WORDS);
        let set = one.made.as_ref().map_or(null_mut(), |made| made.set);
        hip!(p, hipGraphExecMemsetNodeSetParams(one.exec, set, &params));
        one.number = number(150 + i);
    }
    (0..3).try_for_each(|round| look_at_all(p, &all, round))?;
    all.into_iter().try_for_each(|one| p.end(one))
}

/// Changes to a graph after its instantiate take effect at the next instantiate.
fn changed_later(p: &Probe) -> Done {
    let all = handles(p, HANDLES)?;
    for (i, one) in all.iter().enumerate() {
        let made = one.made.as_ref().expect("kept");
        hip!(p, hipGraphMemsetNodeSetParams(made.set, &fill(one.block, number(170 + i), WORDS)));
    }
    (0..2).try_for_each(|round| look_at_all(p, &all, round))?;
    for (i, one) in all.into_iter().enumerate() {
        let exec = p.instantiate(one.made.as_ref().expect("kept"))?;
        hip!(p, hipGraphExecDestroy(one.exec));
        let one = One { exec, number: number(170 + i), ..one };
        p.launch_and_look(&one, p.streams[i % 2])?;
        p.end(one)?;
    }
    Ok(())
}

/// Many short lives beside a few long ones.
fn come_and_go(p: &Probe) -> Done {
    let kept = handles(p, 4)?;
    for i in 0..100 {
        let one = p.one(if i % 3 == 0 { forks } else { sets_and_copies }, number(10 + i))?;
        p.launch_and_look(&one, p.streams[i % 2])?;
        p.end(one)?;
        p.launch_and_look(&kept[i % 4], p.streams[0])?;
    }
    kept.into_iter().try_for_each(|one| p.end(one))
}

/// Copies from the host and back: host memory is read when the graph runs.
fn host_copies(p: &Probe) -> Done {
    let mut blocks = Vec::new();
    // The graphs hold these addresses: the memory stays where it is, and is touched by pointer only.
    let host = vec![0_u32; HANDLES * 2 * WORDS].leak().as_mut_ptr();
    let part = |i: usize, half: usize| host.wrapping_add((2 * i + half) * WORDS);
    for i in 0..HANDLES {
        let block = p.block(BLOCK)?;
        let up = Node::Copy(block.cast(), part(i, 0).cast(), BYTES, HOST_TO_DEVICE);
        let down = Node::Copy(part(i, 1).cast(), block.cast(), BYTES, DEVICE_TO_HOST);
        let made = p.graph(&[(up, &[]), (down, &[0])])?;
        let exec = p.instantiate(&made)?;
        hip!(p, hipGraphDestroy(made.graph));
        blocks.push((exec, block));
    }
    for round in 0..3 {
        for (i, &(exec, _)) in blocks.iter().enumerate() {
            let number = number(30 * round + i);
            // SAFETY: `part(i, 0)` has WORDS words of memory that is leaked above, so it lives on.
            // The synchronise below ends each round, so no graph uses the memory now.
            (0..WORDS).for_each(|at| unsafe { part(i, 0).add(at).write(number) });
            hip!(p, hipGraphLaunch(exec, p.streams[i % 2]));
            hip!(p, hipStreamSynchronize(p.streams[i % 2]));
            // SAFETY: `part(i, 1)` has WORDS words of the same leaked memory, and the graph that
            // writes them has completed.
            if let Some(at) = (0..WORDS).find(|&at| unsafe { part(i, 1).add(at).read_volatile() } != number) {
                return Err(Stop::Fail(format!("word {at} did not come back from the device in round {round}")));
            }
        }
    }
    for (exec, block) in blocks {
        hip!(p, hipGraphExecDestroy(exec));
        hip!(p, hipFree(block));
    }
    Ok(())
}
