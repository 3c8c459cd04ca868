//! Tools of the HIP checks: the runtime, streams, a kernel, and execs whose blocks show which graph ran.

use super::hip_api::*;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A block is two of these. A graph sets the first to a number and copies it to the second.
pub(super) const WORDS: usize = 64;
pub(super) const BYTES: usize = WORDS * 4;
pub(super) const BLOCK: usize = 2 * BYTES;

pub(super) type CheckOutcome = Result<(), Stop>;

/// The reason why a check stopped.
pub(super) enum Stop {
    Fail(String),
    Skip(String),
}

/// Calls a HIP function; any status but success ends the check.
macro_rules! hip {
    ($probe:expr, $name:ident($($arg:expr),*)) => {{
        // SAFETY: users of this macro pass handles that the probe made and has not destroyed, and
        // pointers to locals or to blocks that outlive the work.
        match unsafe { ($probe.hip.$name)($($arg),*) } {
            0 => {}
            status => return Err(Stop::Fail(format!("{} gives {status}", stringify!($name)))),
        }
    }};
}
pub(super) use hip;

/// The runtime, two streams, and a kernel or the reason why there is none.
pub(super) struct Probe {
    pub(super) hip: Hip,
    pub streams: [Handle; 2],
    pub kernel: Result<Handle, String>,
}

/// A graph, and the node that sets its block.
pub(super) struct MadeGraph {
    pub graph: Handle,
    pub set: Handle,
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
            match unsafe { (hip.hipStreamCreateWithFlags)(stream, NON_BLOCKING) } {
                0 => {}
                status => return Err(format!("hipStreamCreateWithFlags gives {status}")),
            }
        }
        let kernel = kernel(&hip);
        Ok(Self { hip, streams, kernel })
    }

    pub(super) fn one(&self, make: Make, number: u32) -> Result<One, Stop> {
        let mut block = null_mut::<c_void>();
        hip!(self, hipMalloc(&mut block, BLOCK));
        let block = block.cast::<u8>();
        let made = make(self, block, number)?;
        Ok(One { block, exec: self.instantiate(&made)?, number, made: Some(made) })
    }

    pub(super) fn instantiate(&self, made: &MadeGraph) -> Result<Handle, Stop> {
        let mut exec = null_mut();
        hip!(self, hipGraphInstantiate(&mut exec, made.graph, null_mut(), null_mut(), 0));
        Ok(exec)
    }

    pub(super) fn graph_gone(&self, one: &mut One) -> CheckOutcome {
        if let Some(made) = one.made.take() {
            hip!(self, hipGraphDestroy(made.graph));
        }
        Ok(())
    }

    pub(super) fn launch(&self, one: &One, stream: Handle) -> CheckOutcome {
        hip!(self, hipGraphLaunch(one.exec, stream));
        // SAFETY: hipGetLastError takes no arguments and looks at this thread's last error only.
        match unsafe { (self.hip.hipGetLastError)() } {
            0 => Ok(()),
            status => Err(Stop::Fail(format!("after a launch the last error is {status}"))),
        }
    }

    /// Overwrites the block, launches, and checks the block.
    pub(super) fn launch_and_look(&self, one: &One, stream: Handle) -> CheckOutcome {
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

    pub(super) fn holds(&self, one: &One, number: u32) -> CheckOutcome {
        let words = self.words(one.block)?;
        match words.iter().position(|&word| word != number) {
            None => Ok(()),
            Some(at) => Err(Stop::Fail(format!("word {at} is {:#x} and should be {number:#x}", words[at]))),
        }
    }

    pub(super) fn end(&self, mut one: One) -> CheckOutcome {
        hip!(self, hipGraphExecDestroy(one.exec));
        self.graph_gone(&mut one)?;
        hip!(self, hipFree(one.block.cast()));
        Ok(())
    }

    /// Returns an empty graph.
    pub(super) fn graph(&self) -> Result<Handle, Stop> {
        let mut graph = null_mut();
        hip!(self, hipGraphCreate(&mut graph, 0));
        Ok(graph)
    }

    pub(super) fn add_set(&self, graph: Handle, after: &[Handle], params: &MemsetParams) -> Result<Handle, Stop> {
        let mut node = null_mut();
        hip!(self, hipGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), params));
        Ok(node)
    }

    pub(super) fn add_copy(
        &self,
        graph: Handle,
        after: &[Handle],
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> Result<Handle, Stop> {
        let mut node = null_mut();
        let (to, from) = (to.cast(), from.cast());
        hip!(
            self,
            hipGraphAddMemcpyNode1D(&mut node, graph, after.as_ptr(), after.len(), to, from, bytes, DEVICE_TO_DEVICE)
        );
        Ok(node)
    }
}
