//! Lets one thread at a time read a whole context. A second check would read the same memory, and would miss the freed
//! blocks that the first one is reading.

use crate::pool::context_pool::ContextPool;
use crate::process::cancel;
use crate::process::lock::lock;
use crate::process::raised::Raised;
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

/// Pause between two checks for the end of another check.
const NAP: Duration = Duration::from_micros(50);

/// The checks of each context, by its pool, which is never freed.
#[derive(Default)]
pub(super) struct Turns(Mutex<FxHashMap<usize, &'static Checking>>);

/// The checks of one context.
#[derive(Default)]
pub(super) struct Checking {
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
pub(super) enum For {
    /// A user, who is told what this check itself has read.
    User,
    /// A wait of the program: any check that begins after it will do.
    Wait,
}

pub(super) enum Begun {
    /// The calling thread reads. No other check of the context begins meanwhile.
    Check(Check),
    /// Another thread has read everything since the call.
    Read,
    /// Another check was running for the whole time.
    NoTime,
}

/// A running check. It ends on drop.
pub(super) struct Check {
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

impl Turns {
    /// Returns the checks of a context.
    pub(super) fn of(&self, context_pool: &'static ContextPool) -> &'static Checking {
        lock(&self.0).entry(std::ptr::from_ref(context_pool) as usize).or_insert_with(|| Box::leak(Box::default()))
    }
}

impl Checking {
    /// Waits, as long as time is left, until no other check of the context is running, and begins one.
    pub(super) fn begin(&'static self, wanted: For, left: &mut dyn FnMut() -> Duration) -> Begun {
        let begun = self.begun.load(SeqCst);
        let _user = (wanted == For::User).then(|| Raised::new(&self.users));
        loop {
            if wanted == For::Wait && self.whole.load(Acquire) > begun {
                return Begun::Read;
            }
            let may = wanted == For::User || self.users.load(Relaxed) == 0;
            if may && self.is_busy.compare_exchange(false, true, AcqRel, Relaxed).is_ok() {
                // Counted before anything is read.
                let number = self.begun.fetch_add(1, SeqCst) + 1;
                return Begun::Check(Check { of: self, number, is_whole: false });
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
        let turns = Turns::default();
        let checking = turns.of(ContextPool::for_test(1, 0, 0));
        let mut none = || Duration::ZERO;
        let begin = |wanted, left: &mut dyn FnMut() -> Duration| checking.begin(wanted, left);
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
