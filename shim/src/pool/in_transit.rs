//! What is on its way on a device: blocks from the live ones to the idle ones, or from those to the driver, and
//! requests that the quota has admitted. Nobody finds them meanwhile, and no lock says so: whoever runs out waits until
//! nothing is on its way, for a time that ends.

use crate::process::cancel;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Times that idle blocks go back for one request at most.
pub(super) const FLUSHES: usize = 64;
/// A thread may have to wait for a processor so long.
pub(super) const DESCHEDULED: Duration = Duration::from_secs(2);
/// Between two looks.
const SLEEP: Duration = Duration::from_micros(50);

/// One device's.
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

    /// How many have ended. As long as it changes there may be more to give back.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    /// Whether nothing is on its way.
    fn is_quiet(&self) -> bool {
        let ended = self.ended();
        self.begun.load(SeqCst) == ended
    }
}

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

/// Tries of a request that threads share what there is with. They take what this one gave back, and are quicker than
/// [`FLUSHES`] tries while this one waits for a processor: then tries go on for a time, with pauses.
#[derive(Default)]
pub(crate) struct Tries {
    made: usize,
    until: Option<Instant>,
}

impl Tries {
    /// Whether there is one more.
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

/// Whether each count is what it was, once nothing is on its way there: a thread that moves something may have to wait
/// for a processor. Waits for so long at most.
pub(crate) fn are_still_at(counts: &[(&Counts, u64)], longest: Duration) -> bool {
    const YIELDS: usize = 100;
    let mut start = None;
    for look in 0.. {
        // Before the count: what ends between the two is seen by it.
        let are_quiet = counts.iter().all(|(counts, _)| counts.is_quiet());
        if counts.iter().any(|(counts, before)| counts.ended() != *before) {
            return false;
        }
        if are_quiet {
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

    /// However long its thread has to wait for a processor.
    #[test]
    fn what_is_on_its_way_is_waited_for() {
        let counts = Counts::default();
        assert!(are_still_at(&[(&counts, 0)], Duration::ZERO));
        std::thread::scope(|scope| {
            let transit = counts.begin();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                drop(transit);
            });
            assert!(!are_still_at(&[(&counts, 0)], Duration::from_secs(60)));
        });
        assert!(are_still_at(&[(&counts, 1)], Duration::ZERO));
        let _for_ever = counts.begin();
        assert!(are_still_at(&[(&counts, 1)], Duration::from_millis(1)), "not for ever");
    }
}
