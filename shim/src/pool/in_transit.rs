//! What is on its way on a device: blocks that turn from live to idle or go back to the driver, and requests that the
//! quota has admitted. Nobody finds such a block in any list, and no lock is held meanwhile. A request that runs out
//! therefore waits until nothing is on its way, for a limited time.

use crate::process::cancel;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// How often idle blocks go back for one request at most.
pub(super) const FLUSHES: usize = 64;
/// How long a thread may have to wait for a processor.
pub(super) const DESCHEDULED: Duration = Duration::from_secs(2);
/// Between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// The counts of one device.
#[derive(Default)]
pub(crate) struct InTransit {
    pub blocks: Counts,
    pub requests: Counts,
}

/// How many moves began, and ended.
#[derive(Default)]
pub(crate) struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Something on its way, for as long as this lives.
pub(crate) struct Transit<'a>(&'a Counts);

impl Counts {
    #[cold]
    pub(crate) fn begin(&self) -> Transit<'_> {
        self.begun.fetch_add(1, SeqCst);
        Transit(self)
    }

    /// How many moves have ended. As long as this changes there may be more to give back.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    /// Whether nothing is on its way.
    fn is_empty(&self) -> bool {
        let ended = self.ended();
        self.begun.load(SeqCst) == ended
    }
}

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

/// The tries of a request that competes with other threads for memory. They take what this one gave back, and may do so
/// [`FLUSHES`] times while this one waits for a processor. After that many tries it goes on for a limited time, with
/// pauses.
#[derive(Default)]
pub(crate) struct Tries {
    made: usize,
    until: Option<Instant>,
}

impl Tries {
    /// Whether there is one more try.
    pub(crate) fn go_on(&mut self) -> bool {
        self.made += 1;
        if self.made <= FLUSHES {
            return true;
        }
        let until = *self.until.get_or_insert_with(|| Instant::now() + DESCHEDULED);
        cancel::sleep(SLEEP);
        Instant::now() < until
    }
}

/// Waits until nothing is on its way, but not longer than this. True if each count then is what it was before. The wait
/// is needed because a thread that moves something may have to wait for a processor.
pub(crate) fn are_unchanged(counts: &[(&Counts, u64)], longest: Duration) -> bool {
    const YIELDS: usize = 100;
    let mut start = None;
    for look in 0.. {
        // Before the counts are read: a move that ends between the two reads has changed its count by then.
        let are_empty = counts.iter().all(|(counts, _)| counts.is_empty());
        if counts.iter().any(|(counts, before)| counts.ended() != *before) {
            return false;
        }
        if are_empty {
            return true;
        }
        if look < YIELDS {
            std::thread::yield_now();
            continue;
        }
        if start.get_or_insert_with(Instant::now).elapsed() > longest {
            return true;
        }
        cancel::sleep(SLEEP);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long the moving thread has to wait for a processor.
    #[test]
    fn what_is_on_its_way_is_waited_for() {
        let counts = Counts::default();
        assert!(are_unchanged(&[(&counts, 0)], Duration::ZERO));
        std::thread::scope(|scope| {
            let transit = counts.begin();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                drop(transit);
            });
            assert!(!are_unchanged(&[(&counts, 0)], Duration::from_secs(60)));
        });
        assert!(are_unchanged(&[(&counts, 1)], Duration::ZERO));
        let _for_ever = counts.begin();
        assert!(are_unchanged(&[(&counts, 1)], Duration::from_millis(1)), "not for ever");
    }
}
