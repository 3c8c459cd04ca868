//! The guard reads all of a context for one thread at a time. A second check would read the same memory, and would miss the
//! freed blocks that the first one has in hand.

use super::ContextPool;
use crate::process::cancel;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

/// Between two looks whether the other check is over.
const NAP: Duration = Duration::from_micros(50);

#[derive(Default)]
pub(crate) struct Checking {
    is_busy: AtomicBool,
    /// How many checks have begun.
    begun: AtomicU64,
    /// The number of the last check that read all.
    whole: AtomicU64,
    /// Users who wait for a check of their own. They come before the checks at waits.
    users: AtomicUsize,
}

/// Who wants a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum For {
    /// A user, who is told what this check itself has read.
    User,
    /// A wait of the program: any check will do that begins after it.
    Wait,
}

pub(in crate::pool) enum Begun {
    /// The calling thread reads. No other check of the context begins meanwhile.
    Check(Check),
    /// Another thread has read all since the call.
    Read,
    /// Another check went on for the whole time.
    NoTime,
}

/// A check goes on for as long as this lives.
pub(in crate::pool) struct Check {
    of: &'static Checking,
    number: u64,
    /// All was read.
    pub is_whole: bool,
}

impl Drop for Check {
    fn drop(&mut self) {
        if self.is_whole {
            self.of.whole.store(self.number, Release);
        }
        self.of.is_busy.store(false, Release);
    }
}

/// Counts a user for as long as it lives.
struct Waiting(&'static Checking);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Relaxed);
    }
}

impl ContextPool {
    /// Waits until no other check of this context goes on, as long as time is left, and begins one.
    pub(in crate::pool) fn begin_check(&'static self, wanted: For, left: &mut dyn FnMut() -> Duration) -> Begun {
        let all = &self.checking;
        let begun = all.begun.load(SeqCst);
        let _user = (wanted == For::User).then(|| {
            all.users.fetch_add(1, Relaxed);
            Waiting(all)
        });
        loop {
            if wanted == For::Wait && all.whole.load(Acquire) > begun {
                return Begun::Read;
            }
            let may = wanted == For::User || all.users.load(Relaxed) == 0;
            if may && all.is_busy.compare_exchange(false, true, AcqRel, Relaxed).is_ok() {
                // Counted before anything is read.
                let number = all.begun.fetch_add(1, SeqCst) + 1;
                return Begun::Check(Check { of: all, number, is_whole: false });
            }
            if left().is_zero() {
                return Begun::NoTime;
            }
            cancel::sleep(NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_takes_a_check_that_began_after_it_and_a_user_none_but_its_own() {
        let context_pool = ContextPool::made_up(1, 0, 0);
        let mut none = || Duration::ZERO;
        let begin = |wanted, left: &mut dyn FnMut() -> Duration| context_pool.begin_check(wanted, left);
        let Begun::Check(mut first) = begin(For::Wait, &mut none) else { panic!("nothing goes on") };
        first.is_whole = true;
        for wanted in [For::Wait, For::User] {
            assert!(matches!(begin(wanted, &mut none), Begun::NoTime));
        }
        // The first check has begun before this wait. Another one reads all while it waits.
        let (mut first, mut looks) = (Some(first), 0);
        let mut left = || {
            looks += 1;
            drop(first.take());
            let Begun::Check(mut second) = begin(For::User, &mut none) else { panic!("nothing goes on") };
            second.is_whole = true;
            Duration::from_secs(600)
        };
        assert!(matches!(begin(For::Wait, &mut left), Begun::Read) && looks == 1);
        assert!(matches!(begin(For::User, &mut || Duration::ZERO), Begun::Check(_)));
    }
}
