//! A thread of the shim for calls that may wait for the device's work. That work may wait for the very thread that
//! makes the call, and a check of the device beforehand is not enough: work may begin after the check.
//!
//! The thread holds no lock. There is one at a time for each [`Aside`]. Another thread waits for it for a limited time,
//! and then goes on without it.

use super::lock::lock;
use super::spawn::{Stack, spawn};
use super::{cancel, clock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const STACK: usize = 256 << 10;
/// Pause between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// The time since which the thread is at work, ns. 0: there is none.
#[derive(Default)]
pub(crate) struct Aside(AtomicU64);

/// The right to use the thread. Dropping it frees the thread.
pub(crate) struct Turn(&'static Aside);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.store(0, SeqCst);
    }
}

impl Aside {
    /// Takes the next turn. `None` if the thread is at work.
    pub(crate) fn turn(&'static self) -> Option<Turn> {
        self.0.compare_exchange(0, clock::precise_ns().max(1), SeqCst, Relaxed).ok().map(|_| Turn(self))
    }

    /// As [`Self::turn`], but waits for the current turn to end, unless that takes longer than `longest` in all.
    pub(crate) fn turn_within(&'static self, longest: Duration) -> Option<Turn> {
        let mut turn = None;
        cancel::poll(Duration::MAX, SLEEP, || {
            turn = self.turn();
            turn.is_some() || self.at_work_for() > longest
        });
        turn
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    /// Returns for how long the thread has been at work.
    pub(crate) fn at_work_for(&self) -> Duration {
        match self.0.load(SeqCst) {
            0 => Duration::ZERO,
            since => Duration::from_nanos(clock::precise_ns().saturating_sub(since)),
        }
    }
}

impl Turn {
    /// Runs `f` on the thread, and waits for its end, at most for `longest`. Returns the result if there is one by
    /// then. `f` is given a flag that is set once the caller no longer waits. If no thread can be made, `f` never runs.
    pub(crate) fn run<R: Send + 'static>(
        self,
        longest: Duration,
        f: impl FnOnce(&AtomicBool) -> R + Send + 'static,
    ) -> Option<R> {
        self.0.0.store(clock::precise_ns().max(1), SeqCst);
        let shared: Arc<(Mutex<Option<R>>, AtomicBool)> = Arc::new((Mutex::new(None), AtomicBool::new(false)));
        let theirs = Arc::clone(&shared);
        let work = move || {
            let _turn = self;
            let result = f(&theirs.1);
            *lock(&theirs.0) = Some(result);
        };
        let (result, left) = &*shared;
        if spawn(Stack::Bytes(STACK), work) {
            cancel::poll(longest, SLEEP, || lock(result).is_some());
        }
        left.store(true, Relaxed);
        lock(result).take()
    }
}

#[cfg(test)]
impl Turn {
    /// Pretends that the thread began that long ago.
    pub(crate) fn since(self, ago: Duration) -> Self {
        self.0.0.store(clock::precise_ns().saturating_sub(ago.as_nanos() as u64), SeqCst);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A thread that waits in the library is left behind, and nothing is queued after it.
    #[test]
    fn a_thread_that_waits_keeps_nobody() {
        const LONGEST: Duration = Duration::from_millis(300);
        let aside: &'static Aside = Box::leak(Box::default());
        let turn = || aside.turn_within(LONGEST);
        assert_eq!(turn().unwrap().run(LONGEST, |_| 7), Some(7));
        let (go_on, told) = channel::<()>();
        let waits = move |left: &AtomicBool| {
            let _ = told.recv();
            assert!(left.load(SeqCst));
        };
        assert_eq!(turn().unwrap().run(LONGEST, waits), None);
        assert!(aside.is_at_work() && turn().is_none() && aside.turn().is_none());
        go_on.send(()).unwrap();
        while aside.is_at_work() {
            std::thread::yield_now();
        }
        assert_eq!(turn().unwrap().run(LONGEST, |_| 8), Some(8));
    }
}
