//! Blocks go back to the driver.
//!
//! A real free waits for all work of its context, which may be work that ends only when the program says so. A free in
//! the order of a stream of ours, on which nothing else ever is, waits for nothing: no work uses what is idle. The
//! memory is the device's again once that stream was waited for, and captures are not disturbed (all measured on an
//! H200, driver 580). Where a library has no such frees, blocks go back while the context is known to do nothing, or
//! inside a wait of the program's own.
//!
//! The first free of this kind has the driver keep 10 MiB of host memory for good (measured there). Until a request
//! runs out, or much is to go while the context works, blocks go back by real frees: see [`super::unhurried`].

use super::Pool;
use super::block::Block;
use super::block_records;
use super::context_pool::{ContextPool, Most};
use super::reading;
use crate::gate;
use crate::process::errno::KeepErrno;
use crate::progress::activity;
use crate::records;
use crate::vendor::memory::ReleaseStream;
use gpumem_abi::types::{SUCCESS, Status};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Blocks that go back together at most: they are found by nobody meanwhile.
const TOGETHER: usize = 4096;

/// A free on a release stream was made: the driver has taken the host memory that the first one takes, and the next cost
/// nothing.
static RELEASE_STREAM_USED: AtomicBool = AtomicBool::new(false);

/// Whether blocks go back on release streams anyway.
pub(super) fn release_streams_are_used() -> bool {
    RELEASE_STREAM_USED.load(Relaxed)
}

impl Pool {
    /// Gives back idle blocks of a context, whatever it works on; bytes given back. `if_it_waits`: asked before each
    /// block where a free waits for the context's work.
    pub(super) fn release(&self, owner: &'static ContextPool, most: Most, if_it_waits: impl Fn() -> bool) -> u64 {
        if owner.idle() == 0 || !owner.readers_rest() {
            return 0;
        }
        let _errno = KeepErrno::new();
        owner.within(|| match owner.release_stream() {
            Some(stream) => self.release_on(stream, owner, most),
            None => self.release_one_by_one(owner, most, if_it_waits),
        })
    }

    fn release_on(&self, stream: ReleaseStream, owner: &'static ContextPool, mut most: Most) -> u64 {
        let mut released = 0;
        while !owner.gone.load(Relaxed) {
            let _transit = owner.in_transit.blocks.begin();
            let blocks = owner.oldest(&mut most, TOGETHER);
            let count = blocks.len();
            RELEASE_STREAM_USED.fetch_or(count > 0, Relaxed);
            let mut gone = Vec::with_capacity(count);
            for block in blocks {
                match self.free_by(block, |addr| owner.calls.free_on(addr, stream)) {
                    SUCCESS => gone.push(block),
                    _ => owner.keep(block, block.idle_ns.load(Relaxed)),
                }
            }
            if gone.is_empty() {
                break;
            }
            activity::saw(owner.calls.pass(stream));
            let all_gone = gone.len() == count;
            released += gone.into_iter().map(|block| self.forget_released(block, owner)).sum::<u64>();
            if !all_gone {
                break;
            }
        }
        released
    }

    /// The same inside a wait of the program's own, where a real free waits for nothing more; `may`: asked before each.
    pub(super) fn release_where_waited(&self, owner: &'static ContextPool, most: Most, may: impl Fn() -> bool) -> u64 {
        if release_streams_are_used() || owner.idle() == 0 {
            return self.release(owner, most, may);
        }
        let _errno = KeepErrno::new();
        owner.within(|| self.release_one_by_one(owner, most, may))
    }

    pub(super) fn release_one_by_one(
        &self,
        owner: &'static ContextPool,
        mut most: Most,
        may: impl Fn() -> bool,
    ) -> u64 {
        let mut released = 0;
        while !owner.gone.load(Relaxed) && may() {
            let _transit = owner.in_transit.blocks.begin();
            let Some(block) = owner.oldest(&mut most, 1).pop() else { break };
            if self.free_by(block, |addr| owner.calls.free(addr)) != SUCCESS {
                owner.keep(block, block.idle_ns.load(Relaxed));
                break;
            }
            released += self.forget_released(block, owner);
        }
        released
    }

    /// Frees a block. It is taken out before: another thread may get the address at once.
    fn free_by(&self, block: &'static Block, free: impl FnOnce(u64) -> Status) -> Status {
        let addr = block.addr.load(Relaxed);
        self.map.remove(addr);
        reading::wait(addr);
        let status = free(block.driver_address(addr));
        activity::saw(status);
        if status != SUCCESS {
            self.map.insert(addr, block);
        }
        status
    }

    /// Forgets a block that is the driver's again; its bytes.
    fn forget_released(&self, block: &'static Block, owner: &ContextPool) -> u64 {
        let bytes = block.bytes.load(Relaxed);
        let gone = owner.shrank(bytes);
        // Also inside a note of the program's own free.
        if let Some(shim) = gate::shim() {
            records::grouped::gave(shim, owner.record(), gone);
            block_records::released(shim, block, bytes);
        }
        self.forget(block);
        bytes
    }
}
