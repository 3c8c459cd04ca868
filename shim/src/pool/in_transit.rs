//! Memory in transit on a device: blocks that turn from live to idle or go back to the driver, and requests that the
//! quota has admitted. Such a block is in no list, and no lock is held meanwhile. A request that runs out therefore
//! waits, for a limited time, until nothing is in transit.

use crate::process::cancel;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// The most times that idle blocks go back for one request.
pub(super) const FLUSHES: usize = 64;
/// Longest time that a thread may have to wait for a processor.
pub(super) const DESCHEDULED: Duration = Duration::from_secs(2);
/// Pause between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// The counts of one device.
#[derive(Default)]
pub(crate) struct InTransit {
    pub blocks: TransitCounts,
    pub requests: TransitCounts,
}

/// Numbers of moves that began and that ended.
#[derive(Default)]
pub(crate) struct TransitCounts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A move in transit. It ends on drop.
pub(crate) struct Transit<'a>(&'a TransitCounts);

impl TransitCounts {
    #[cold]
    pub(crate) fn begin(&self) -> Transit<'_> {
        self.begun.fetch_add(1, SeqCst);
        Transit(self)
    }

    /// Returns the number of moves that have ended. While it changes, there may be more to give back.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    /// Returns true if nothing is in transit.
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

/// The tries of a request that competes with other threads for memory. Other threads may take what this one gave back,
/// up to [`FLUSHES`] times while this one waits for a processor. After that many tries it goes on for a limited time,
/// with pauses.
#[derive(Default)]
pub(crate) struct Tries {
    made: usize,
    until: Option<Instant>,
}

impl Tries {
    /// Returns true if there is one more try.
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

/// Waits until nothing is in transit, at most for `longest`. Returns true if each count is then the same as before. The
/// wait is needed because a thread that moves something may have to wait for a processor.
pub(crate) fn are_unchanged(counts: &[(&TransitCounts, u64)], longest: Duration) -> bool {
    const YIELDS: usize = 100;
    let mut start = None;
    for look in 0.. {
        // Read before the counts: a move that ends between the two reads has changed its count by then.
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

    /// The wait covers a move even if the moving thread waits long for a processor.
    #[test]
    fn what_is_on_its_way_is_waited_for() {
        let counts = TransitCounts::default();
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
