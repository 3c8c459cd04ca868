//! Calls in progress during which the driver takes device memory for this process, or gets some back.
//!
//! `records::driver_memory` measures by how much free memory falls during a call of one thread. What other threads
//! change meanwhile would be counted, too. So each such call is noted here, and so is each measurement.

use super::threads;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// One more call that has begun, and that is in progress: the upper and the lower half of a count.
const BEGUN: u64 = 1 << 32 | 1;
/// The half that tells how many are in progress.
const IN_PROGRESS: u64 = (1 << 32) - 1;

/// The calls of all threads.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// A call in progress. It ends on drop.
pub(crate) struct DeviceCall(());

impl DeviceCall {
    /// Begins.
    #[inline]
    pub(crate) fn begin() -> Self {
        threads::local(|local| local.device_calls.set(local.device_calls.get().wrapping_add(BEGUN)));
        CALLS.fetch_add(BEGUN, SeqCst);
        Self(())
    }
}

impl Drop for DeviceCall {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, SeqCst);
        threads::local(|local| local.device_calls.set(local.device_calls.get().wrapping_sub(1)));
    }
}

/// Returns a number that changes with each call that another thread begins. `None` if another thread is in such a call.
pub(crate) fn of_others() -> Option<u64> {
    let own = threads::local(|local| local.device_calls.get());
    let others = CALLS.load(SeqCst).wrapping_sub(own);
    (others & IN_PROGRESS == 0).then_some(others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Other tests of this process make such calls, so that a quiet moment is waited for.
    fn quiet() -> u64 {
        loop {
            match of_others() {
                Some(others) => return others,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn calls_of_other_threads_are_seen_and_own_ones_are_not() {
        let own = DeviceCall::begin();
        let nested = DeviceCall::begin();
        quiet();
        drop(nested);
        let (go, waits) = mpsc::channel::<()>();
        let (says, said) = mpsc::channel();
        let before = quiet();
        let other = std::thread::spawn(move || {
            let call = DeviceCall::begin();
            says.send(()).expect("the test receives");
            waits.recv().expect("the test sends");
            drop(call);
        });
        said.recv().expect("it has begun");
        assert_eq!(of_others(), None, "another thread is in a call");
        go.send(()).expect("it waits");
        other.join().expect("it ends");
        assert_ne!(quiet(), before, "a call has begun and ended");
        drop(own);
    }
}
