//! Ways in which blocks go back to the driver.
//!
//! A real free waits for all work of its context, including work that ends only when the program lets it. A free in
//! stream order on a stream of the shim (a release stream) waits for nothing, because no work uses an idle block and
//! nothing else is ever submitted to that stream. The memory is the device's again after a wait for that stream, and
//! captures are not disturbed (all measured on an H200, driver 580). Some libraries have no such frees. There, blocks
//! go back while the context is known to be idle, or inside a wait that the program itself makes.
//!
//! With the first free of this kind the driver takes 10 MiB of host memory and keeps it for good (measured there). So
//! blocks go back by real frees at first. Release streams are used once a request has run out, or once much memory is
//! to go back while the context works: see [`Releaser::release_unhurried`].
//!
//! Real frees that may wait for the device's work are made by a thread of the shim ([`crate::process::aside`]). Each
//! context has its own, so that a free that never returns does not hold up another context.

use super::Releaser;
use crate::backend::memory::ReleaseStream;
use crate::gate;
use crate::pool::block::Block;
use crate::pool::block_records;
use crate::pool::claims;
use crate::pool::context_pool::{ContextPool, Most};
use crate::process::device_calls::DeviceCall;
use crate::process::errno::KeepErrno;
use crate::progress::activity;
use gpumem_abi::types::{SUCCESS, Status};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

/// The most blocks that go back together. No thread finds these blocks meanwhile.
const TOGETHER: usize = 4096;

/// A free on a release stream was made. The driver has taken its host memory by then, so further frees of this kind
/// cost nothing.
static RELEASE_STREAM_USED: AtomicBool = AtomicBool::new(false);

/// Returns true if release streams are in use already.
pub(super) fn release_streams_are_used() -> bool {
    RELEASE_STREAM_USED.load(Relaxed)
}

impl Releaser {
    /// Gives back idle blocks of a context on its release stream, if it has one, also while it works. Returns the bytes
    /// that went back.
    pub(super) fn release(&self, context_pool: &'static ContextPool, most: Most) -> u64 {
        if context_pool.idle() == 0 {
            return 0;
        }
        let _errno = KeepErrno::new();
        let release = |stream| self.release_on(stream, context_pool, most);
        context_pool.within(|| context_pool.release_stream().map_or(0, release))
    }

    /// Gives back idle blocks of a context for whose work the program itself has just waited, so that a real free has
    /// nothing left to wait for. Calls `may` before each real free.
    pub(super) fn release_at_wait(&self, context_pool: &'static ContextPool, most: Most, may: impl Fn() -> bool) {
        if context_pool.idle() == 0 {
            return;
        }
        let _errno = KeepErrno::new();
        let stream = || release_streams_are_used().then(|| context_pool.release_stream()).flatten();
        context_pool.within(|| match stream() {
            Some(stream) => self.release_on(stream, context_pool, most),
            None => self.release_one_by_one(context_pool, most, may),
        });
    }

    fn release_on(&self, stream: ReleaseStream, context_pool: &'static ContextPool, mut most: Most) -> u64 {
        let mut released = 0;
        while !context_pool.is_gone() {
            let _transit = context_pool.in_transit.blocks.begin();
            let _call = DeviceCall::begin();
            let blocks = context_pool.oldest(&mut most, TOGETHER);
            let count = blocks.len();
            RELEASE_STREAM_USED.fetch_or(count > 0, Relaxed);
            let mut gone = Vec::with_capacity(count);
            for block in blocks {
                match self.free_by(block, context_pool, |addr| context_pool.calls.free_on(addr, stream)) {
                    true => gone.push(block),
                    false => context_pool.keep(block, block.idle_ns()),
                }
            }
            if gone.is_empty() {
                break;
            }
            activity::saw(context_pool.calls.pass(stream));
            let all_gone = gone.len() == count;
            released += gone.into_iter().map(|block| self.forget_released(block, context_pool)).sum::<u64>();
            if !all_gone {
                break;
            }
        }
        released
    }

    /// Makes real frees on a separate thread. Returns the bytes that went back within `longest`. Calls `may` before
    /// each free, and tells it if that time is over. `None`: another thread frees memory of this context already. Frees
    /// of other contexts do not matter here.
    pub(super) fn release_aside(
        &'static self,
        context_pool: &'static ContextPool,
        most: Most,
        longest: Duration,
        may: impl Fn(bool) -> bool + Send + 'static,
    ) -> Option<u64> {
        let free = move |left: &AtomicBool| {
            let Some(_hold) = context_pool.hold().filter(|_| !self.switch.is_ending()) else { return 0 };
            let may = || may(left.load(Relaxed));
            context_pool.within(|| self.release_one_by_one(context_pool, most, may))
        };
        Some(context_pool.freeing().turn()?.run(longest, free).unwrap_or(0))
    }

    fn release_one_by_one(&self, context_pool: &'static ContextPool, mut most: Most, may: impl Fn() -> bool) -> u64 {
        let mut released = 0;
        while !context_pool.is_gone() && may() {
            let _transit = context_pool.in_transit.blocks.begin();
            let _call = DeviceCall::begin();
            let Some(block) = context_pool.oldest(&mut most, 1).pop() else { break };
            if !self.free_by(block, context_pool, |addr| context_pool.calls.free(addr)) {
                context_pool.keep(block, block.idle_ns());
                break;
            }
            released += self.forget_released(block, context_pool);
        }
        released
    }

    /// Frees a block. Takes it out of the map first, because another thread may get its address at once. Returns false
    /// if the driver refuses, or if a late reader may still read the block.
    fn free_by(&self, block: &'static Block, context_pool: &ContextPool, free: impl FnOnce(u64) -> Status) -> bool {
        let addr = block.addr();
        self.blocks.remove(addr);
        let is_freed = claims::wait(addr, || context_pool.settle_readers(), Duration::ZERO) && {
            let status = free(block.driver_address(addr));
            activity::saw(status);
            status == SUCCESS
        };
        if !is_freed {
            self.blocks.insert(addr, block);
        }
        is_freed
    }

    /// Forgets a block that the driver has again. Returns its bytes.
    fn forget_released(&self, block: &'static Block, context_pool: &ContextPool) -> u64 {
        let bytes = block.bytes();
        context_pool.shrank(bytes);
        // Not through the gate: this may run while the program's own free is being recorded.
        if let Some(shim) = gate::shim() {
            block_records::released(shim, block, bytes);
        }
        self.forget(block);
        bytes
    }
}
