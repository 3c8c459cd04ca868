//! Work that the process gives the device: the number of submissions, submissions in progress, and whether the device
//! still takes any.
//!
//! A submission is counted from before the driver gets the call until the driver returns. Between two equal answers of
//! [`submissions_if_none_open`] nothing was submitted. So a barrier that was made before the first answer still holds
//! at the second.

mod counts;

use crate::process::threads;
use crate::process::wiped::{self, Flag};
use counts::{Counts, Shard};
use gpumem_abi::types::Status;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::*, fence};

mod atomic {
    pub(super) use std::sync::atomic::*;

    /// Raises a count. A thread that reads the count behind its own fence either sees the new count, or this thread's
    /// later writes come after that fence. `alone`: no other thread writes this count.
    #[inline(always)]
    pub(super) fn raise_before(count: &AtomicU64, alone: bool) {
        use Ordering::*;
        if cfg!(target_arch = "x86_64") {
            // One locked instruction is both store and fence, and cheaper than the two.
            count.fetch_add(1, SeqCst);
            compiler_fence(SeqCst);
            return;
        }
        if alone {
            count.store(count.load(Relaxed) + 1, Relaxed);
        } else {
            count.fetch_add(1, Relaxed);
        }
        fence(SeqCst);
    }
}

/// Number of threads with a line of their own. Other threads share lines.
const OWN: usize = 64;
// Only threads that share lines may have the same number.
const _: () = assert!(OWN <= threads::OWN);
const LINES: usize = OWN + 16;

/// In a child of a fork these are the parent's counts, perhaps with a submission open for ever. Then nothing ever
/// counts as idle. That is right there, because the driver does not work in the child.
static COUNTS: Counts<LINES, OWN> = Counts {
    shards: [const { Shard { begun: AtomicU64::new(0), done: AtomicU64::new(0) } }; LINES],
    used: AtomicUsize::new(0),
};

/// State of waits of a device for something outside it.
static OUTSIDE: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
/// Something was given since all devices were last seen idle.
const PENDING: u8 = 1;
/// As `PENDING`, and a thread is checking if all devices are idle.
const LOOKED_AT: u8 = 2;
/// A graph may give it at each launch by the program.
const FOR_GOOD: u8 = 3;

/// Notes that the device is given something that waits for the host or for another library. Called within [`submit`].
/// `in_graph`: it is part of a graph, which the program may launch at any time.
pub fn outside(in_graph: bool) {
    let now = if in_graph { FOR_GOOD } else { PENDING };
    // A look that has begun before does not see this.
    let _ = OUTSIDE.fetch_update(SeqCst, SeqCst, |known| (known != FOR_GOOD && known != now).then_some(now));
}

/// True if waiting for the device may mean waiting for the program itself.
pub fn is_outside() -> bool {
    OUTSIDE.load(Relaxed) != NOTHING
}

/// Runs a look that checks if all devices are idle. If they are, no device waits for anything outside any more.
pub fn no_outside_if(are_idle: impl FnOnce() -> bool) -> bool {
    /// Sets the state after the look, also if the look unwinds, unless something was given to the device meanwhile.
    struct After(u8);
    impl Drop for After {
        fn drop(&mut self) {
            let _ = OUTSIDE.compare_exchange(LOOKED_AT, self.0, SeqCst, SeqCst);
        }
    }
    let looks = OUTSIDE.compare_exchange(PENDING, LOOKED_AT, SeqCst, SeqCst).is_ok();
    // Made only by a thread that looks: the drop of another one would end that thread's look.
    let mut after = looks.then(|| After(PENDING));
    let are_idle = are_idle();
    if let Some(after) = &mut after
        && are_idle
    {
        after.0 = NOTHING;
    }
    are_idle
}

/// Runs a driver call that gives the device work, and counts it: as begun before the call and as done after it. It also
/// counts as done if the call is left by an exception or by the end of the thread. A call that is left by `longjmp`
/// stays open.
#[inline(always)]
pub fn submit<R>(f: impl FnOnce() -> R) -> R {
    let _open = begin();
    f()
}

/// As [`submit`], for code that is inlined whole: counted as begun now, and as done when the value is dropped.
#[inline(always)]
pub fn begin() -> impl Drop {
    threads::local(begin_here)
}

/// As [`begin`], for a caller that has looked up its thread.
#[inline(always)]
pub fn begin_here(local: &threads::Local) -> impl Drop + use<> {
    COUNTS.open(local.shard() - 1)
}

/// Returns the number of submissions so far; `None` while one is being made, and for good once something was submitted
/// that is not counted.
#[inline]
pub fn submissions_if_none_open() -> Option<u64> {
    COUNTS.if_none_open().filter(|_| countable())
}

/// As [`submissions_if_none_open`], for a thread that may itself be making a submission.
pub fn submissions_if_none_open_elsewhere() -> Option<u64> {
    COUNTS.if_none_open_but_of(threads::shard() - 1).filter(|_| countable())
}

/// True if, as far as the calling thread can know, nothing was submitted since [`submissions_if_none_open`] returned
/// `count`. Another thread that is not ordered with this one may be beginning a submission.
#[inline(always)]
pub fn unchanged_since(count: u64) -> bool {
    COUNTS.begun() == count && countable()
}

/// Called before something that may give the device work without being counted. From now on
/// [`submissions_if_none_open`] returns `None`.
#[cold]
pub fn uncountable() {
    wiped::flag(Flag::Uncountable).store(true, SeqCst);
    // A reader that does not see this does not see the caller's next step either.
    fence(SeqCst);
}

/// True if everything that submits work is counted.
#[inline]
pub fn countable() -> bool {
    !wiped::flag(Flag::Uncountable).load(Relaxed)
}

/// Checks if a call's answer reports work that failed.
#[inline(always)]
pub fn saw(status: Status) {
    if status != gpumem_abi::types::SUCCESS {
        failed(status);
    }
}

#[cold]
fn failed(status: Status) {
    if is_sticky(status) {
        wiped::flag(Flag::Broken).store(true, Release);
    }
}

/// True if every later call gives this error too. These are the errors of which cuda.h (13.0) says that the process
/// must be terminated and relaunched, or the context destroyed. Uncorrectable errors of memory and links, of which it
/// says nothing, are sticky too. The numbers are the same for `CUresult`, `cudaError_t` and `hipError_t`.
const fn is_sticky(status: Status) -> bool {
    matches!(
        status,
        214 // ECC_UNCORRECTABLE
        | 220 // NVLINK_UNCORRECTABLE
        | 226 // CONTAINED
        | 700 // ILLEGAL_ADDRESS
        | 702 // LAUNCH_TIMEOUT
        | 710 // ASSERT
        | 714 // HARDWARE_STACK_ERROR
        | 715 // ILLEGAL_INSTRUCTION
        | 716 // MISALIGNED_ADDRESS
        | 717 // INVALID_ADDRESS_SPACE
        | 718 // INVALID_PC
        | 719 // LAUNCH_FAILED
        | 721 // TENSOR_MEMORY_LEAK
        | 810 // MPS_CLIENT_TERMINATED
        | 911 // EXTERNAL_DEVICE
    )
}

/// The reason, for the user, why nothing can be asked while [`broken`] is true.
pub const WHY_BROKEN: &str = "a context is broken: every call of it answers an error";

/// True if a call reported that its context no longer works, and no context has ended since.
#[inline]
pub fn broken() -> bool {
    wiped::flag(Flag::Broken).load(Relaxed)
}

/// Notes that a context was destroyed or reset, which ends its error. No remaining context has the error.
pub fn context_ended() {
    wiped::flag(Flag::Broken).store(false, Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// One test, because a process has one such state.
    #[test]
    fn what_waits_outside_is_forgotten_when_idle_unless_a_graph_holds_it() {
        assert!(no_outside_if(|| true) && !is_outside());
        outside(false);
        assert!(!no_outside_if(|| !is_outside()) && is_outside(), "while it is looked at, too");
        assert!(no_outside_if(is_outside) && !is_outside());
        outside(false);
        let meanwhile = || {
            outside(false);
            true
        };
        assert!(no_outside_if(meanwhile) && is_outside(), "of what came meanwhile the look knows nothing");
        let left = catch_unwind(|| no_outside_if(|| resume_unwind(Box::new(7))));
        assert!(left.is_err() && is_outside());
        assert!(no_outside_if(|| true) && !is_outside(), "the next look is one");
        outside(false);
        outside(true);
        assert!(no_outside_if(|| true) && is_outside(), "graphs stay");
        outside(false);
        assert!(no_outside_if(|| true) && is_outside());
        OUTSIDE.store(NOTHING, SeqCst);
        outside(false);
        let beside_another = || {
            // A second look leaves the first one as it is, also when more comes meanwhile.
            assert!(!no_outside_if(|| false) && OUTSIDE.load(SeqCst) == LOOKED_AT);
            true
        };
        assert!(no_outside_if(beside_another) && !is_outside());
    }

    #[test]
    fn a_thread_within_a_submission_knows_whether_it_is_alone() {
        let counts = counts();
        assert_eq!((counts.if_none_open_but_of(0), counts.if_none_open_but_of(OWN + 3)), (Some(0), Some(0)));
        let own = counts.open(0);
        assert_eq!(
            (counts.if_none_open(), counts.if_none_open_but_of(0), counts.if_none_open_but_of(1)),
            (None, Some(0), None)
        );
        let other = counts.open(1);
        assert_eq!(counts.if_none_open_but_of(0), None);
        drop((own, other));
        assert_eq!(counts.if_none_open_but_of(0), Some(2));
    }

    fn counts() -> Counts<LINES, OWN> {
        Counts {
            shards: std::array::from_fn(|_| Shard { begun: AtomicU64::new(0), done: AtomicU64::new(0) }),
            used: AtomicUsize::new(0),
        }
    }

    #[test]
    fn there_is_no_count_while_something_is_open() {
        let counts = counts();
        assert_eq!(counts.if_none_open(), Some(0));
        for thread in [0, OWN - 1, OWN, LINES - 1, LINES, LINES + 7] {
            let before = counts.if_none_open().expect("nothing is open");
            let open = counts.open(thread);
            assert_eq!(counts.if_none_open(), None);
            let inner = counts.open(thread);
            drop(inner);
            assert_eq!(counts.if_none_open(), None);
            drop(open);
            assert_eq!(counts.if_none_open(), Some(before + 2));
        }
    }

    #[test]
    fn only_lines_that_were_used_are_read() {
        let counts = counts();
        drop(counts.open(2));
        assert_eq!(counts.used.load(Relaxed), 3);
        drop(counts.open(1));
        assert_eq!(counts.used.load(Relaxed), 3);
    }

    #[test]
    fn what_ends_by_unwinding_is_done() {
        let counts = counts();
        let thrown = catch_unwind(AssertUnwindSafe(|| {
            let _open = counts.open(0);
            resume_unwind(Box::new(7));
        }));
        assert_eq!(thrown.expect_err("it throws").downcast_ref(), Some(&7));
        assert_eq!(counts.if_none_open(), Some(1));
    }

    /// Tests more threads than lines, and a reader that knows how many had begun when it asked.
    #[test]
    fn threads_are_counted_each_time() {
        const THREADS: usize = LINES + 20;
        const EACH: u64 = 2000;
        let (counts, inside) = (counts(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (counts, inside) = (&counts, &inside);
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let _open = counts.open(thread);
                        inside.fetch_add(1, SeqCst);
                    }
                });
            }
            let mut last = 0;
            while last < THREADS as u64 * EACH {
                let before = inside.load(SeqCst);
                if let Some(total) = counts.if_none_open() {
                    assert!(total >= before.max(last), "{total} of {before} that had begun, after {last}");
                    last = total;
                }
            }
        });
        assert_eq!(counts.if_none_open(), Some(THREADS as u64 * EACH));
    }

    #[test]
    fn errors_of_one_call_are_not_sticky() {
        for status in [0, 1, 2, 201, 304, 400, 600, 701, 703, 704, 709, 720, 900, 901, 910, 999] {
            assert!(!is_sticky(status), "{status}");
        }
        for status in [700, 702, 710, 714, 715, 716, 717, 718, 719] {
            assert!(is_sticky(status), "{status}");
        }
    }
}
