//! Claims on blocks that a reader may read. A claimed block goes back to the driver only after its claims have ended.
//!
//! The guard claims the blocks that it fills and reads. The search for references claims the blocks that it scans. Each
//! reader has its own claim, so the end of one claim leaves the others. A claim ends once none of the reader's work is
//! pending: a late reader takes a clone of its claim along ([`super::context_pool::ContextPool::settle_readers`]).
//!
//! A thread that gives a block away first changes the block's state, or takes the block out of the map, and then looks
//! for claims. A thread that reads first claims the block, and then looks at its state. So at least one of the two
//! threads sees the other.

use crate::process::cancel;
use crate::process::wiped::{Place, Word};
use std::sync::atomic::{AtomicU64, Ordering::*, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const CLAIMS: Place<Mutex<Vec<ClaimEntry>>> = unsafe { Place::new(Word::Claims) };
/// The number of the last claim. 0: no block was ever claimed.
static MADE: AtomicU64 = AtomicU64::new(0);
/// Pause between two checks for the end of a claim.
const NAP: Duration = Duration::from_micros(20);

struct ClaimEntry {
    number: u64,
    /// Addresses of blocks, sorted.
    blocks: Vec<u64>,
    /// True if a thread waits for one of them.
    waited_for: bool,
    /// The reader did not complete in time. It begins nothing more, and ends when the device has done the work it was
    /// given.
    late: bool,
}

/// Blocks that a reader may read. The claim ends with its last clone.
#[derive(Clone)]
pub(crate) struct Claim(Arc<Number>);

struct Number(u64);

impl Drop for Number {
    fn drop(&mut self) {
        CLAIMS.locked().retain(|entry| entry.number != self.0);
    }
}

impl Claim {
    /// Claims the blocks at these addresses.
    pub(crate) fn of(mut blocks: Vec<u64>) -> Self {
        blocks.sort_unstable();
        let number = MADE.fetch_add(1, SeqCst) + 1;
        CLAIMS.locked().push(ClaimEntry { number, blocks, waited_for: false, late: false });
        // Pairs with the fence in `wait`.
        fence(SeqCst);
        Self(Arc::new(Number(number)))
    }

    fn with<R>(&self, look: impl FnOnce(&mut ClaimEntry) -> R) -> Option<R> {
        CLAIMS.locked().iter_mut().find(|entry| entry.number == self.0.0).map(look)
    }

    /// Gives up the blocks for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl FnMut(&u64) -> bool) {
        self.with(|entry| {
            entry.blocks.retain(keep);
            // A thread that waits for a block that is still claimed sets this again.
            entry.waited_for = false;
        });
    }

    /// Returns true if a thread waits for one of the blocks.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.with(|entry| entry.waited_for) == Some(true)
    }

    /// Clones the claim for a late reader.
    pub(super) fn of_late_reader(&self) -> Self {
        self.with(|entry| entry.late = true);
        self.clone()
    }
}

/// Waits until no reader may read a block that is about to be given away. Readers at work end by themselves. Late
/// readers are waited for at most `longest`; `settle` takes back those that have completed. Returns false if the block
/// is still claimed.
pub(crate) fn wait(addr: u64, settle: impl Fn() -> bool, longest: Duration) -> bool {
    // A reader that this load does not see will see that the block is gone.
    fence(SeqCst);
    if MADE.load(SeqCst) == 0 {
        return true;
    }
    let mut start = None;
    loop {
        let (mut is_claimed, mut all_late) = (false, true);
        for entry in CLAIMS.locked().iter_mut().filter(|entry| entry.blocks.binary_search(&addr).is_ok()) {
            (entry.waited_for, is_claimed) = (true, true);
            all_late &= entry.late;
        }
        if !is_claimed {
            return true;
        }
        if all_late {
            // The first round only takes readers back.
            if start.is_some_and(|start: Instant| start.elapsed() >= longest) {
                return false;
            }
            start.get_or_insert_with(Instant::now);
            settle();
        }
        cancel::sleep(NAP);
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock;
    use super::*;
    use std::sync::atomic::AtomicBool;

    const FOR_EVER: Duration = Duration::from_secs(600);

    #[test]
    fn who_gives_a_block_back_waits_for_its_reader_and_nobody_else_does() {
        let claim = Claim::of(vec![0x7f20_0000, 0x7f00_0000]);
        assert!(wait(0x7f10_0000, || true, FOR_EVER));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                assert!(wait(0x7f00_0000, || true, FOR_EVER) && is_over.load(SeqCst));
            });
            while !claim.is_waited_for() {
                std::thread::yield_now();
            }
            is_over.store(true, SeqCst);
            drop(claim);
            waits.join().expect("it waited");
        });
        assert!(wait(0x7f00_0000, || true, FOR_EVER));
        // No thread waits for a block that is no longer to be read.
        let claim = Claim::of(vec![0x7f00_0000, 0x7f20_0000]);
        claim.retain(|&block| block == 0x7f20_0000);
        assert!(wait(0x7f00_0000, || true, FOR_EVER) && !claim.is_waited_for());
    }

    /// The end of one claim leaves the claims of other readers of the same block.
    #[test]
    fn each_reader_is_waited_for() {
        let claims = [1, 2, 3].map(|other| Claim::of(vec![0x7e00_0000, other << 12]));
        let left = AtomicU64::new(claims.len() as u64);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait(0x7e00_0000, || true, FOR_EVER) && left.load(SeqCst) == 0);
            for claim in claims {
                while !claim.is_waited_for() {
                    std::thread::yield_now();
                }
                left.fetch_sub(1, SeqCst);
                drop(claim);
            }
            assert!(waits.join().expect("it waited"));
        });
    }

    /// The blocks of a late reader stay claimed until the reader is taken back. The wait for it is bounded.
    #[test]
    fn a_late_reader_is_waited_for_as_long_as_was_said() {
        let claim = Claim::of(vec![0x7d00_0000]);
        let of_reader = Mutex::new(Some(claim.of_late_reader()));
        drop(claim);
        assert!(!wait(0x7d00_0000, || true, Duration::ZERO) && !wait(0x7d00_0000, || true, Duration::from_millis(2)));
        assert!(wait(0x7d00_0000, || lock(&of_reader).take().is_some(), Duration::ZERO), "it has completed");
    }
}
