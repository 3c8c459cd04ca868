//! The kinds of graphs that the probe makes. Each sets the first half of a block to a number and copies it to the
//! second half.

use super::hip_api::*;
use super::probe::{BYTES, MadeGraph, Probe, Stop, WORDS, hip};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Sets words of a block.
pub(super) fn fill(to: *mut u8, number: u32, words: usize) -> MemsetParams {
    MemsetParams { dst: to.cast(), element_size: 4, height: 1, pitch: words * 4, value: number, width: words }
}

pub(super) fn half(block: *mut u8) -> *mut u8 {
    block.wrapping_add(BYTES)
}

pub(super) fn sets_and_copies(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let graph = p.graph()?;
    let set = p.add_set(graph, &[], &fill(block, number, WORDS))?;
    p.add_copy(graph, &[set], half(block), block, BYTES)?;
    Ok(MadeGraph { graph, set })
}

/// Makes only memset nodes: execs of graphs with copies are not given to other handles.
pub(super) fn fills(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let graph = p.graph()?;
    let set = p.add_set(graph, &[], &fill(block, number, WORDS))?;
    p.add_set(graph, &[set], &fill(half(block), number, WORDS))?;
    Ok(MadeGraph { graph, set })
}

/// Elements of one, two and four bytes, in one row and in several. Code that looks only at kinds and edges cannot
/// distinguish them. Numbers have four equal bytes.
pub(super) fn element_sizes(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let graph = p.graph()?;
    let size = [1, 2, 4][number as usize % 3];
    let value = (u64::from(number) & ((1 << (8 * size)) - 1)) as u32;
    let (height, row) = if number.is_multiple_of(2) { (1, BYTES) } else { (4, BYTES / 4) };
    let params =
        MemsetParams { dst: block.cast(), element_size: size, height, pitch: row, value, width: row / size as usize };
    let set = p.add_set(graph, &[], &params)?;
    p.add_copy(graph, &[set], half(block), block, BYTES)?;
    Ok(MadeGraph { graph, set })
}

/// Makes one set node, three parallel copies, all joined.
pub(super) fn forks(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let graph = p.graph()?;
    let set = p.add_set(graph, &[], &fill(block, number, WORDS))?;
    let mut copies = Vec::new();
    for quarter in 0..4 {
        copies.push(p.add_copy(graph, &[set], half(block).wrapping_add(quarter * BYTES / 4), block, BYTES / 4)?);
    }
    let mut join = null_mut();
    hip!(p, hipGraphAddEmptyNode(&mut join, graph, copies.as_ptr(), copies.len()));
    Ok(MadeGraph { graph, set })
}

/// Makes the same nodes with edges that differ from one number to the next: a chain or a fork.
pub(super) fn shapes(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let graph = p.graph()?;
    let set = p.add_set(graph, &[], &fill(block, number, WORDS))?;
    let first = p.add_copy(graph, &[set], half(block), block, BYTES / 2)?;
    let (after, from) = if number.is_multiple_of(2) { (first, half(block)) } else { (set, block) };
    p.add_copy(graph, &[after], half(block).wrapping_add(BYTES / 2), from, BYTES / 2)?;
    Ok(MadeGraph { graph, set })
}

pub(super) fn child(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let inner = p.graph()?;
    p.add_set(inner, &[], &fill(block, number, WORDS))?;
    let graph = p.graph()?;
    let first = p.add_set(graph, &[], &fill(half(block), number + 1, WORDS))?;
    let mut node = null_mut();
    hip!(p, hipGraphAddChildGraphNode(&mut node, graph, &first, 1, inner));
    hip!(p, hipGraphDestroy(inner));
    p.add_copy(graph, &[node], half(block), block, BYTES)?;
    Ok(MadeGraph { graph, set: first })
}

/// Captures from two streams; events join the second.
pub(super) fn captured(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let [a, b] = p.streams;
    let (mut graph, mut forked, mut joined) = (null_mut(), null_mut(), null_mut());
    let byte = (number & 0xff) as i32;
    hip!(p, hipEventCreateWithFlags(&mut forked, NO_TIMING));
    hip!(p, hipEventCreateWithFlags(&mut joined, NO_TIMING));
    hip!(p, hipStreamBeginCapture(a, RELAXED));
    hip!(p, hipMemsetAsync(block.cast(), byte, BYTES, a));
    hip!(p, hipEventRecord(forked, a));
    hip!(p, hipStreamWaitEvent(b, forked, 0));
    hip!(p, hipMemcpyAsync(half(block).cast(), block.cast(), BYTES / 2, DEVICE_TO_DEVICE, a));
    let rest = half(block).wrapping_add(BYTES / 2);
    hip!(p, hipMemcpyAsync(rest.cast(), block.cast(), BYTES / 2, DEVICE_TO_DEVICE, b));
    hip!(p, hipEventRecord(joined, b));
    hip!(p, hipStreamWaitEvent(a, joined, 0));
    hip!(p, hipStreamEndCapture(a, &mut graph));
    hip!(p, hipEventDestroy(forked));
    hip!(p, hipEventDestroy(joined));
    Ok(MadeGraph { graph, set: null_mut() })
}

/// Kernels of several grids, captured, because programs usually get kernel nodes that way.
pub(super) fn kernels(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let kernel = *p.kernel.as_ref().map_err(|why| Stop::Skip(why.clone()))?;
    let (s, mut graph) = (p.streams[0], null_mut());
    let (mut words, mut value, grid) = (WORDS as u64, number, 1 + number % 4);
    hip!(p, hipStreamBeginCapture(s, RELAXED));
    for (mut to, threads) in [(block, 64), (half(block), 32)] {
        let mut params: [*mut c_void; 3] = [(&raw mut to).cast(), (&raw mut words).cast(), (&raw mut value).cast()];
        hip!(p, hipModuleLaunchKernel(kernel, grid, 1, 1, threads, 1, 1, 0, s, params.as_mut_ptr(), null_mut()));
    }
    hip!(p, hipStreamEndCapture(s, &mut graph));
    Ok(MadeGraph { graph, set: null_mut() })
}
