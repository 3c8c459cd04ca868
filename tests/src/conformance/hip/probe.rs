//! Tools of the HIP checks: the runtime, streams, a kernel, and execs whose blocks show which graph ran. Also the kinds of
//! graphs: each sets the first half of a block to a number and copies it to the second half.

use super::super::{Done, Stop};
use super::api::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// A block is two of these. A graph sets the first to a number and copies it to the second.
pub(super) const WORDS: usize = 64;
pub(super) const BYTES: usize = WORDS * 4;
pub(super) const BLOCK: usize = 2 * BYTES;

/// Calls a HIP function; any status but success ends the check.
macro_rules! hip {
    ($probe:expr, $name:ident($($arg:expr),*)) => {
        // SAFETY: users of this macro pass handles that the probe made and has not destroyed, and
        // pointers to locals or to blocks that outlive the work.
        done(stringify!($name), unsafe { ($probe.hip.$name)($($arg),*) }).map_err(Stop::Fail)?
    };
}
pub(super) use hip;

/// The runtime, two streams, and a kernel or the reason why there is none.
pub struct Probe {
    pub(super) hip: Hip,
    pub streams: [Handle; 2],
    pub kernel: Result<Handle, String>,
}

/// A graph, and the node that sets its block.
#[derive(Clone, Copy)]
pub(super) struct MadeGraph {
    pub graph: Handle,
    pub set: Handle,
}

/// A node of a graph.
pub(super) enum Node {
    Set(MemsetParams),
    /// To, from, bytes and the direction.
    Copy(*mut u8, *const u8, usize, c_int),
    Child(Handle),
    /// Does nothing.
    Join,
}

/// Makes a graph of one kind, for a block and a number.
pub(super) type Make = fn(&Probe, *mut u8, u32) -> Result<MadeGraph, Stop>;

/// An exec and its block.
pub(super) struct One {
    pub(super) block: *mut u8,
    pub(super) exec: Handle,
    pub(super) number: u32,
    pub(super) made: Option<MadeGraph>,
}

impl Probe {
    pub(super) fn open() -> Result<Self, String> {
        let hip = Hip::open()?;
        let mut streams = [null_mut(); 2];
        for stream in &mut streams {
            // SAFETY: `stream` points into the array above, which takes the handle.
            done("hipStreamCreateWithFlags", unsafe { (hip.hipStreamCreateWithFlags)(stream, NON_BLOCKING) })?;
        }
        let kernel = kernel(&hip);
        Ok(Self { hip, streams, kernel })
    }

    pub(super) fn block(&self, bytes: usize) -> Result<*mut c_void, Stop> {
        let mut block = null_mut();
        hip!(self, hipMalloc(&mut block, bytes));
        Ok(block)
    }

    pub(super) fn one(&self, make: Make, number: u32) -> Result<One, Stop> {
        let block = self.block(BLOCK)?.cast::<u8>();
        let made = make(self, block, number)?;
        Ok(One { block, exec: self.instantiate(&made)?, number, made: Some(made) })
    }

    pub(super) fn instantiate(&self, made: &MadeGraph) -> Result<Handle, Stop> {
        let mut exec = null_mut();
        hip!(self, hipGraphInstantiate(&mut exec, made.graph, null_mut(), null_mut(), 0));
        Ok(exec)
    }

    pub(super) fn graph_gone(&self, one: &mut One) -> Done {
        if let Some(made) = one.made.take() {
            hip!(self, hipGraphDestroy(made.graph));
        }
        Ok(())
    }

    pub(super) fn launch(&self, one: &One, stream: Handle) -> Done {
        hip!(self, hipGraphLaunch(one.exec, stream));
        // SAFETY: hipGetLastError takes no arguments and looks at this thread's last error only.
        match unsafe { (self.hip.hipGetLastError)() } {
            0 => Ok(()),
            status => Err(Stop::Fail(format!("after a launch the last error is {status}"))),
        }
    }

    /// Overwrites the block, launches, and checks the block.
    pub(super) fn launch_and_look(&self, one: &One, stream: Handle) -> Done {
        hip!(self, hipMemset(one.block.cast(), 0xee, BLOCK));
        hip!(self, hipDeviceSynchronize());
        self.launch(one, stream)?;
        hip!(self, hipStreamSynchronize(stream));
        self.holds(one, one.number)
    }

    fn words(&self, block: *const u8) -> Result<[u32; 2 * WORDS], Stop> {
        let mut words = [0_u32; 2 * WORDS];
        hip!(self, hipMemcpy(words.as_mut_ptr().cast(), block.cast(), BLOCK, DEVICE_TO_HOST));
        Ok(words)
    }

    pub(super) fn holds(&self, one: &One, number: u32) -> Done {
        let words = self.words(one.block)?;
        match words.iter().position(|&word| word != number) {
            None => Ok(()),
            Some(at) => Err(Stop::Fail(format!("word {at} is {:#x} and should be {number:#x}", words[at]))),
        }
    }

    pub(super) fn end(&self, mut one: One) -> Done {
        hip!(self, hipGraphExecDestroy(one.exec));
        self.graph_gone(&mut one)?;
        hip!(self, hipFree(one.block.cast()));
        Ok(())
    }

    /// Makes a graph of these nodes, each behind those with the given numbers. The first sets the block.
    pub(super) fn graph(&self, nodes: &[(Node, &[usize])]) -> Result<MadeGraph, Stop> {
        let mut graph = null_mut();
        hip!(self, hipGraphCreate(&mut graph, 0));
        let mut made: Vec<Handle> = Vec::new();
        for (node, after) in nodes {
            let after: Vec<Handle> = after.iter().map(|&number| made[number]).collect();
            let (mut new, after, count) = (null_mut(), after.as_ptr(), after.len());
            match *node {
                Node::Set(params) => hip!(self, hipGraphAddMemsetNode(&mut new, graph, after, count, &params)),
                Node::Copy(to, from, bytes, kind) => {
                    let (to, from) = (to.cast(), from.cast());
                    hip!(self, hipGraphAddMemcpyNode1D(&mut new, graph, after, count, to, from, bytes, kind));
                }
                Node::Child(inner) => hip!(self, hipGraphAddChildGraphNode(&mut new, graph, after, count, inner)),
                Node::Join => hip!(self, hipGraphAddEmptyNode(&mut new, graph, after, count)),
            }
            made.push(new);
        }
        Ok(MadeGraph { graph, set: made[0] })
    }
}

/// Sets words of a block.
pub(super) fn fill(to: *mut u8, number: u32, words: usize) -> MemsetParams {
    MemsetParams { dst: to.cast(), element_size: 4, height: 1, pitch: words * 4, value: number, width: words }
}

pub(super) fn half(block: *mut u8) -> *mut u8 {
    block.wrapping_add(BYTES)
}

fn set(to: *mut u8, number: u32) -> Node {
    Node::Set(fill(to, number, WORDS))
}

/// Copies from the first half of a block to an offset in the second.
fn copy(block: *mut u8, to: usize, bytes: usize) -> Node {
    Node::Copy(half(block).wrapping_add(to), block, bytes, DEVICE_TO_DEVICE)
}

pub(super) fn sets_and_copies(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    p.graph(&[(set(block, number), &[]), (copy(block, 0, BYTES), &[0])])
}

/// Makes only memset nodes: execs of graphs with copies are not given to other handles.
pub(super) fn fills(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    p.graph(&[(set(block, number), &[]), (set(half(block), number), &[0])])
}

/// Elements of one, two and four bytes, in one row and in several. Code that looks only at kinds and edges cannot
/// distinguish them. Numbers have four equal bytes.
pub(super) fn element_sizes(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let size = [1, 2, 4][number as usize % 3];
    let value = (u64::from(number) & ((1 << (8 * size)) - 1)) as u32;
    let (height, row) = if number.is_multiple_of(2) { (1, BYTES) } else { (4, BYTES / 4) };
    let params =
        MemsetParams { dst: block.cast(), element_size: size, height, pitch: row, value, width: row / size as usize };
    p.graph(&[(Node::Set(params), &[]), (copy(block, 0, BYTES), &[0])])
}

/// Makes one set node, four parallel copies, all joined.
pub(super) fn forks(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let quarter = |at: usize| (copy(block, at * BYTES / 4, BYTES / 4), &[0][..]);
    let first = (set(block, number), &[][..]);
    p.graph(&[first, quarter(0), quarter(1), quarter(2), quarter(3), (Node::Join, &[1, 2, 3, 4])])
}

/// Makes the same nodes with edges that differ from one number to the next: a chain or a fork.
pub(super) fn shapes(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let (after, from) = if number.is_multiple_of(2) { (1, half(block)) } else { (0, block) };
    let last = Node::Copy(half(block).wrapping_add(BYTES / 2), from, BYTES / 2, DEVICE_TO_DEVICE);
    p.graph(&[(set(block, number), &[]), (copy(block, 0, BYTES / 2), &[0]), (last, &[after])])
}

pub(super) fn child(p: &Probe, block: *mut u8, number: u32) -> Result<MadeGraph, Stop> {
    let inner = p.graph(&[(set(block, number), &[])])?.graph;
    let first = set(half(block), number + 1);
    let made = p.graph(&[(first, &[]), (Node::Child(inner), &[0]), (copy(block, 0, BYTES), &[1])])?;
    hip!(p, hipGraphDestroy(inner));
    Ok(made)
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
