//! Real frees that may wait for the device's work are made by a thread of ours, which holds no lock. Whoever wants the
//! memory waits for that thread for a limited time and then goes on without it.

use super::Pool;
use super::context_pool::{ContextPool, Most};
use crate::process::cancel;
use crate::process::spawn::{Stack, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

const STACK: usize = 256 << 10;

/// What a thread that frees has done so far.
#[derive(Default)]
pub(super) struct FreeingProgress {
    bytes: AtomicU64,
    done: AtomicBool,
    /// Nobody waits for the freeing thread any more.
    pub left: AtomicBool,
}

impl Pool {
    /// Makes real frees on a thread of their own. The answer is the bytes that went back within `longest`. `may` is
    /// asked before each free. `None`: another thread frees memory of this context already. Frees of other contexts do
    /// not matter here.
    pub(super) fn release_aside(
        &'static self,
        context_pool: &'static ContextPool,
        most: Most,
        longest: Duration,
        may: impl Fn(&FreeingProgress) -> bool + Send + 'static,
    ) -> Option<u64> {
        let frees = context_pool.begin_freeing()?;
        let seen = Arc::new(FreeingProgress::default());
        let theirs = Arc::clone(&seen);
        let free = move || {
            let _frees = frees;
            if let Some(_hold) = context_pool.hold().filter(|_| !self.is_ending()) {
                let released = context_pool.within(|| self.release_one_by_one(context_pool, most, || may(&theirs)));
                theirs.bytes.store(released, Relaxed);
            }
            theirs.done.store(true, Release);
        };
        if !spawn(Stack::Bytes(STACK), free) {
            return Some(0);
        }
        let start = Instant::now();
        while !seen.done.load(Acquire) && start.elapsed() < longest {
            cancel::sleep(Duration::from_micros(50));
        }
        seen.left.store(true, Relaxed);
        Some(seen.bytes.load(Relaxed))
    }
}
