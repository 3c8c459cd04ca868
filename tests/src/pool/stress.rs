//! Threads that allocate, write, hand over, check and free at once, each on a stream of its own.

use super::driver::{Context, Notes};
use crate::conformance::cu;
use crate::differ::random::Random;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Mutex;

/// A block with a known value, left for another thread to take.
struct LeftBlock {
    ptr: u64,
    bytes: u64,
    value: u32,
}

/// Words that are written and checked.
const WORDS: u64 = 256;
/// The most blocks that wait to be taken.
const MOST: usize = 24;

/// Runs the threads. Returns how many words were wrong and which calls failed.
pub fn run(context: &Context, notes: Option<Notes>, threads: usize, rounds: usize, seed: u64) -> (u64, String) {
    let left = Mutex::new(VecDeque::new());
    let results: Vec<Result<u64, String>> = std::thread::scope(|scope| {
        let start = |i: usize| {
            let left = &left;
            scope.spawn(move || one(context, notes, rounds, seed.wrapping_add(i as u64 * 7919), left))
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let mut wrong = 0;
    let mut text = String::new();
    for result in results {
        match result {
            Ok(n) => wrong += n,
            Err(why) => text = format!(", {why}"),
        }
    }
    context.within(|| {
        for memory in left.into_inner().unwrap_or_else(|held| held.into_inner()) {
            if free(notes, memory.ptr) != 0 {
                text += ", a free at the end failed";
            }
        }
    });
    (wrong, text)
}

fn free(notes: Option<Notes>, ptr: u64) -> u32 {
    match notes {
        Some(notes) => notes.around(ptr, true, || cu!(cuMemFree_v2(ptr))),
        None => cu!(cuMemFree_v2(ptr)),
    }
}

fn need(what: &str, status: u32) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what} gives {status}")) }
}

fn one(
    shared: &Context,
    notes: Option<Notes>,
    rounds: usize,
    seed: u64,
    left: &Mutex<VecDeque<LeftBlock>>,
) -> Result<u64, String> {
    need("cuCtxSetCurrent", cu!(cuCtxSetCurrent(shared.handle as *mut _)))?;
    let (mut stream, mut counter, mut random) = (null_mut(), 0, Random::new(seed));
    need("cuStreamCreate", cu!(cuStreamCreate(&mut stream, 1)))?;
    need("cuMemAlloc", cu!(cuMemAlloc_v2(&mut counter, 8)))?;
    let context = shared.for_thread(stream, counter);
    let mut wrong = 0;
    for round in 0..rounds {
        let bytes = match random.below(4) {
            0 => 1024 + random.below(4096) as u64,
            1 => 1 << (11 + random.below(10)),
            2 => (1 << 20) + random.below(3 << 20) as u64,
            _ => 64 << 10,
        };
        let mut ptr = 0;
        need("cuMemAlloc", cu!(cuMemAlloc_v2(&mut ptr, bytes as usize)))?;
        if let Some(notes) = notes {
            notes.alloc(ptr, bytes);
        }
        let value = random.next() as u32;
        if random.chance(20) {
            need("a launch", context.spin(0, 200_000))?;
        }
        need("a launch", context.fill(0, ptr, WORDS.min(bytes / 4), value))?;
        match random.below(3) {
            // Frees the block while its kernel is pending.
            0 => need("cuMemFree", free(notes, ptr))?,
            1 => {
                wrong += context.wrong(0, ptr, WORDS.min(bytes / 4), value)?;
                need("cuMemFree", free(notes, ptr))?;
            }
            _ => {
                need("cuStreamSynchronize", cu!(cuStreamSynchronize(stream)))?;
                left.lock().map_err(|_| "poisoned")?.push_back(LeftBlock { ptr, bytes, value });
            }
        }
        let full = left.lock().map_err(|_| "poisoned")?.len() > MOST;
        if full || round % 3 == 2 {
            let taken = left.lock().map_err(|_| "poisoned")?.pop_front();
            if let Some(LeftBlock { ptr, bytes, value }) = taken {
                wrong += context.wrong(0, ptr, WORDS.min(bytes / 4), value)?;
                need("cuMemFree", free(notes, ptr))?;
            }
        }
    }
    need("cuStreamSynchronize", cu!(cuStreamSynchronize(stream)))?;
    need("cuMemFree", cu!(cuMemFree_v2(counter)))?;
    need("cuStreamDestroy", cu!(cuStreamDestroy_v2(stream)))?;
    Ok(wrong)
}
