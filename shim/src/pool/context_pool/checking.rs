//! Lets one thread at a time have the whole context read for the guard. A second check would read the same memory, and
//! would miss the freed blocks that the first one is reading.

use super::ContextPool;
use crate::process::cancel;
use crate::process::raised::Raised;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

/// Pause between two checks for the end of another check.
const NAP: Duration = Duration::from_micros(50);

#[derive(Default)]
pub(crate) struct Checking {
    is_busy: AtomicBool,
    /// Number of checks that have begun.
    begun: AtomicU64,
    /// The number of the last complete check.
    whole: AtomicU64,
    /// Users who wait for their own check. They come before the checks at waits.
    users: AtomicU32,
}

/// The caller of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum For {
    /// A user, who is told what this check itself has read.
    User,
    /// A wait of the program: any check that begins after it will do.
    Wait,
}

pub(in crate::pool) enum Begun {
    /// The calling thread reads. No other check of the context begins meanwhile.
    Check(Check),
    /// Another thread has read everything since the call.
    Read,
    /// Another check was running for the whole time.
    NoTime,
}

/// A running check. It ends on drop.
pub(in crate::pool) struct Check {
    of: &'static Checking,
    number: u64,
    /// Everything was read.
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

impl ContextPool {
    /// Waits, as long as time is left, until no other check of this context is running, and begins one.
    pub(in crate::pool) fn begin_check(&'static self, wanted: For, left: &mut dyn FnMut() -> Duration) -> Begun {
        let all = &self.checking;
        let begun = all.begun.load(SeqCst);
        let _user = (wanted == For::User).then(|| Raised::new(&all.users));
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
        let context_pool = ContextPool::for_test(1, 0, 0);
        let mut none = || Duration::ZERO;
        let begin = |wanted, left: &mut dyn FnMut() -> Duration| context_pool.begin_check(wanted, left);
        let Begun::Check(mut first) = begin(For::Wait, &mut none) else { panic!("nothing goes on") };
        first.is_whole = true;
        for wanted in [For::Wait, For::User] {
            assert!(matches!(begin(wanted, &mut none), Begun::NoTime));
        }
        // The first check began before this wait. Another one reads everything meanwhile.
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
