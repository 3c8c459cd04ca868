//! Numbers for contexts. A default stream's handle is the same in all contexts, but each context has its own stream of
//! that handle.

use crate::backend::answer::told;
use crate::backend::driver;
use crate::backend::graphs::StreamArg;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// `CU_STREAM_PER_THREAD`, the last of the special handles.
const LAST_SPECIAL: usize = 2;
/// Number of contexts with a number of their own. Further ones share numbers.
const CONTEXTS: usize = 256;
/// Bits available for a number that is made into a lane.
const BITS: u32 = 23;

/// A context's number is its place plus one. A context at the address of an ended one has the same number, but none of
/// its execs.
static KNOWN: [AtomicU64; CONTEXTS] = [const { AtomicU64::new(0) }; CONTEXTS];

/// Returns a context's number, from 1.
fn number_of(context: u64) -> u32 {
    for (at, slot) in KNOWN.iter().enumerate() {
        match slot.compare_exchange(0, context, Relaxed, Relaxed) {
            Ok(_) => return at as u32 + 1,
            Err(known) if known == context => return at as u32 + 1,
            Err(_) => {}
        }
    }
    // Above all places, by the address.
    1 << BITS | (context >> 4) as u32 & ((1 << BITS) - 1)
}

/// Returns the number of the current context; 0 for none.
fn current() -> u32 {
    // SAFETY: rule of answers: `context` takes the handle.
    match told(|context| unsafe { driver::cuCtxGetCurrent(context) }) {
        Ok(context) if !context.is_null() => number_of(context as u64),
        _ => 0,
    }
}

/// Returns a stream of the program's call, with its context if its handle alone is not enough.
#[inline]
pub(crate) fn named(to: StreamArg) -> StreamArg {
    if to.stream as usize > LAST_SPECIAL { to } else { StreamArg { home: current(), ..to } }
}

/// True if a stream can be named here. A default stream of another context cannot.
pub(super) fn is_here(to: StreamArg) -> bool {
    to.home == 0 || to.home == current()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_have_numbers_of_their_own() {
        let numbers: Vec<u32> = (1..=CONTEXTS as u64 + 2).map(|context| number_of(context << 12)).collect();
        let mut all = numbers.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), numbers.len());
        assert!(all.iter().all(|&number| number != 0 && number >> (BITS + 1) == 0));
        assert_eq!(number_of(1 << 12), numbers[0]);
    }
}
