//! Destroying an exec may wait for the device's work. Such an exec is destroyed by a thread of the shim, which holds no
//! lock. Checking the device first is not enough: work may begin after the check, and that work may wait for the very
//! thread that destroys.
//!
//! There is one such thread at a time, for one exec. The caller waits for half a second at most, and then goes on.
//! While the thread is stuck in the library, no other such exec is destroyed.

use crate::process::spawn::{Stack, spawn};
use crate::process::{cancel, clock, heap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;

const STACK: usize = 256 << 10;
/// A thread that takes this long counts as stuck in the library.
const LONGEST_NS: u64 = 500_000_000;
/// Pause between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// The shim's thread that destroys an exec, while there is one.
#[derive(Default)]
pub(super) struct Aside {
    taken: AtomicBool,
    since_ns: AtomicU64,
}

/// The right to use the thread. Dropping it frees the thread.
pub(super) struct Turn(Arc<Aside>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.taken.store(false, SeqCst);
    }
}

impl Aside {
    pub(super) fn is_at_work(&self) -> bool {
        self.taken.load(SeqCst)
    }

    /// Waits for the current turn to end, and takes the next one. `None`: the current turn is stuck in the library.
    pub(super) fn turn(self: &Arc<Self>) -> Option<Turn> {
        while self.taken.compare_exchange(false, true, SeqCst, Relaxed).is_err() {
            if is_long(self.since_ns.load(Relaxed)) {
                return None;
            }
            cancel::sleep(SLEEP);
        }
        self.since_ns.store(clock::precise_ns(), Relaxed);
        Some(Turn(Arc::clone(self)))
    }
}

fn is_long(since_ns: u64) -> bool {
    clock::precise_ns().saturating_sub(since_ns) > LONGEST_NS
}

impl Turn {
    /// Runs `f` on the thread, and waits half a second for its end. Returns true if `f` has ended. If no thread can be
    /// made, `f` never runs.
    pub(super) fn run(self, f: impl FnOnce() + Send + 'static) -> bool {
        let since = clock::precise_ns();
        self.0.since_ns.store(since, Relaxed);
        let over = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&over);
        let work = move || {
            let _turn = self;
            f();
            theirs.store(true, Release);
        };
        // The program may lack memory for a thread's stack.
        if heap::is_short() || !spawn(Stack::Bytes(STACK), work) {
            return false;
        }
        while !over.load(Acquire) && !is_long(since) {
            cancel::sleep(SLEEP);
        }
        over.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A thread that waits in the library is left behind, and nothing is queued after it.
    #[test]
    fn a_thread_that_waits_keeps_nobody() {
        let aside: Arc<Aside> = Arc::default();
        assert!(aside.turn().unwrap().run(|| ()));
        let (go_on, told) = channel::<()>();
        let waits = move || {
            let _ = told.recv();
        };
        assert!(!aside.turn().unwrap().run(waits));
        assert!(aside.is_at_work() && aside.turn().is_none());
        go_on.send(()).unwrap();
        while aside.is_at_work() {
            std::thread::yield_now();
        }
        assert!(aside.turn().unwrap().run(|| ()));
    }
}
