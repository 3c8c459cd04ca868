//! Memory that nobody has had yet, handed out from its beginning. What lies behind is not touched before.

use super::ADDRESS;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Pieces of one length in a row: the address of the first, and how many there are above it.
///
/// Memory that was in a run never comes back into one, so no value of a run comes back.
pub(super) struct Run(AtomicU64);

const COUNT: u32 = ADDRESS.count_ones();

/// What a run was when it was looked at.
#[derive(Clone, Copy)]
pub(super) struct Seen(u64);

impl Run {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// So many pieces of this length in a row.
    ///
    /// # Errors
    /// There are fewer.
    pub(super) fn take(&self, bytes: usize, pieces: usize) -> Result<*mut u8, Seen> {
        let mut seen = self.0.load(Acquire);
        loop {
            let Some(left) = (seen >> COUNT).checked_sub(pieces as u64) else { return Err(Seen(seen)) };
            let start = seen & ADDRESS;
            let rest = (start + (pieces * bytes) as u64) | left << COUNT;
            match self.0.compare_exchange_weak(seen, rest, AcqRel, Acquire) {
                Ok(_) => return Ok(start as *mut u8),
                Err(now) => seen = now,
            }
        }
    }

    /// Puts pieces in place of too few; `false` if another thread has changed the run since.
    pub(super) fn refill(&self, seen: Seen, start: *mut u8, pieces: usize) -> bool {
        let new = start as u64 | (pieces as u64) << COUNT;
        self.0.compare_exchange(seen.0, new, AcqRel, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_handed_out_once_and_in_order() {
        let run = Run::new();
        let empty = run.take(64, 1).expect_err("it is empty");
        assert!(run.refill(empty, 4096 as *mut u8, 5));
        assert!(!run.refill(empty, 8192 as *mut u8, 5), "it is not empty any more");
        let starts = [(); 2].map(|()| run.take(64, 2).ok().map(|at| at as usize));
        assert_eq!(starts, [Some(4096), Some(4096 + 128)]);
        let few = run.take(64, 2).expect_err("one is left");
        assert_eq!(run.take(64, 1).ok().map(|at| at as usize), Some(4096 + 256));
        assert!(!run.refill(few, 8192 as *mut u8, 5), "another thread took the last one");
    }

    #[test]
    fn threads_never_get_the_same_piece() {
        let run = Run::new();
        let Err(empty) = run.take(16, 1) else { panic!("it is empty") };
        run.refill(empty, 65536 as *mut u8, 60_000);
        let took: Vec<usize> = std::thread::scope(|scope| {
            let all = || std::iter::from_fn(|| run.take(16, 1).ok().map(|at| at as usize)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(all)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let distinct: std::collections::BTreeSet<usize> = took.iter().copied().collect();
        assert_eq!((took.len(), distinct.len()), (60_000, 60_000));
    }
}
