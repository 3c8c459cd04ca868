//! Memory in reserve, for the time when the kernel gives no more.
//!
//! The reserve has two parts: [`KEPT`], and a mapping twice as long as all long blocks together, since a collection
//! doubles its size when it grows. At the kernel's first refusal, recording ends for good (see [`when_refused`]). Work
//! that has begun by then is finished with memory of the reserve. Many threads may need a long block at that moment.
//! They can do without it and do not rely on the reserve: see [`softly`](super::softly).

use super::mapping::{map, unmap};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

/// Bytes of [`KEPT`].
const KEPT_BYTES: usize = 1 << 20;

/// The part of the reserve for short blocks. It is touched only when needed, so until then it takes no memory.
#[repr(align(65536))]
struct Kept(UnsafeCell<[u8; KEPT_BYTES]>);

// SAFETY: `take` hands out each part once, by an exchange of KEPT_USED. So no two threads have the
// same part.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept(UnsafeCell::new([0; KEPT_BYTES]));
static KEPT_USED: AtomicUsize = AtomicUsize::new(0);
/// The mapping for long blocks, with its length in its first word. 0: there is none.
static SPARE: AtomicUsize = AtomicUsize::new(0);
/// The value of [`SPARE`] while a thread takes a part of the mapping.
const BUSY: usize = 1;
/// Turns for which a thread waits while another one takes a part. In a child of `fork` the other thread does not exist.
const TURNS: usize = 1_000_000;
/// Bytes of long blocks, without those asked for [`softly`](super::softly).
static LONG: AtomicUsize = AtomicUsize::new(0);
/// Bytes of long blocks that the reserve can cover.
static COVERED: AtomicUsize = AtomicUsize::new(KEPT_BYTES / 4);
/// True once the kernel has refused memory.
static SHORT: AtomicBool = AtomicBool::new(false);
/// Functions to call at the refusal, each a `fn()`: one for each room that has something to close.
static CLOSE: [AtomicPtr<()>; CLOSES] = [const { AtomicPtr::new(null_mut()) }; CLOSES];
const CLOSES: usize = 4;

/// True if the kernel has refused memory. Then nothing may begin that needs more.
pub(crate) fn is_short() -> bool {
    SHORT.load(Relaxed)
}

/// Registers `close`, to be called when the kernel refuses memory; calls it at once if the kernel already has. `close`
/// runs inside the allocator: it takes no lock, asks for no memory, and may be called twice.
pub(crate) fn when_refused(close: fn()) {
    let close_at = close as *mut ();
    let has_place = CLOSE.iter().any(|place| match place.compare_exchange(null_mut(), close_at, SeqCst, SeqCst) {
        Ok(_) => true,
        Err(other) => other == close_at,
    });
    debug_assert!(has_place, "more rooms have something to close than there are places");
    if SHORT.load(SeqCst) {
        close();
    }
}

/// Ends recording after the kernel's refusal.
#[cold]
pub(super) fn ran_short() {
    if SHORT.swap(true, SeqCst) {
        return;
    }
    // After `SHORT`: either this loop sees a function, or `when_refused` sees `SHORT` and calls the function. Both may.
    for close in CLOSE.iter().map(|place| place.load(SeqCst)).filter(|close| !close.is_null()) {
        // SAFETY: only `when_refused` stores to CLOSE, and it stores functions of this type.
        unsafe { std::mem::transmute::<*mut (), fn()>(close)() };
    }
}

/// Counts a new long block, which needs room in the reserve when it doubles.
pub(super) fn long_block_made(bytes: usize) {
    let long = LONG.fetch_add(bytes, Relaxed) + bytes;
    if long > COVERED.load(Relaxed) {
        lengthen(long);
    }
}

/// Uncounts a long block that has ended. A block that was asked for softly was not counted.
pub(super) fn long_block_ended(bytes: usize) {
    let _ = LONG.fetch_update(Relaxed, Relaxed, |long| Some(long.saturating_sub(bytes)));
}

/// Makes the mapping of the reserve long enough for `long` bytes of long blocks that double.
#[cold]
fn lengthen(long: usize) {
    let before = COVERED.fetch_max(long, AcqRel);
    let bytes = long.saturating_mul(2);
    if before >= long || is_short() {
        return;
    }
    let spare = map(bytes);
    if spare.is_null() {
        return ran_short();
    }
    // SAFETY: `map` made this mapping of at least a word just now, and no other thread knows it.
    unsafe { spare.cast::<usize>().write(bytes) };
    let old = SPARE.swap(spare as usize, AcqRel);
    if old > BUSY {
        // SAFETY: the swap took the mapping out of SPARE, so this thread alone has it. Its first
        // word says its length.
        unsafe { unmap(old as *mut u8, (old as *const usize).read()) };
    }
}

/// Takes the reserve's mapping for exclusive use; 0 if there is none.
fn take_spare() -> usize {
    for _ in 0..TURNS {
        match SPARE.swap(BUSY, AcqRel) {
            BUSY => std::thread::yield_now(),
            spare => return spare,
        }
    }
    0
}

/// Returns a zeroed part of the reserve; null if none is long enough.
#[cold]
pub(super) fn take(bytes: usize) -> *mut u8 {
    let mut used = KEPT_USED.load(Relaxed);
    // A long block would leave nothing for the many short ones.
    while bytes <= KEPT_BYTES / 2 && used + bytes <= KEPT_BYTES {
        match KEPT_USED.compare_exchange_weak(used, used + bytes, AcqRel, Relaxed) {
            // SAFETY: the exchange gave `used..used + bytes` to this thread alone, and the
            // condition keeps that within KEPT.
            Ok(_) => return unsafe { KEPT.0.get().cast::<u8>().add(used) },
            Err(now) => used = now,
        }
    }
    let spare = take_spare();
    if spare == 0 {
        SPARE.store(0, Release);
        return null_mut();
    }
    // SAFETY: `take_spare` took the mapping out of SPARE, so this thread alone has it. Its first word
    // says its length, and the rest that is put back begins within it.
    unsafe {
        let len = (spare as *const usize).read();
        let Some(rest) = len.checked_sub(bytes) else {
            // Other threads may need less.
            SPARE.store(spare, Release);
            return null_mut();
        };
        let rest_at = if rest == 0 { 0 } else { spare + bytes };
        if rest > 0 {
            (rest_at as *mut usize).write(rest);
        }
        SPARE.store(rest_at, Release);
        (spare as *mut usize).write(0);
        spare as *mut u8
    }
}

/// True if a block is a part of [`KEPT`], which cannot be unmapped.
pub(super) fn contains(block: *mut u8) -> bool {
    (block as usize).wrapping_sub(KEPT.0.get() as usize) < KEPT_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::PAGE;
    use super::*;

    #[test]
    fn what_is_kept_is_handed_out_once_and_as_zeroes() {
        // Tests share the heap. A mapping that another test's thread leaves meanwhile serves as well.
        let longest = COVERED.load(Relaxed) + PAGE;
        lengthen(longest);
        let mut seen: Vec<(usize, usize)> = Vec::new();
        for bytes in [PAGE, longest, 3 * PAGE] {
            let at = take(bytes);
            assert!(!at.is_null(), "{bytes} bytes");
            // SAFETY: `take` has just given these `bytes` bytes to this test alone.
            let block = unsafe { std::slice::from_raw_parts_mut(at, bytes) };
            assert!(block.iter().all(|&byte| byte == 0));
            block.fill(1);
            let (from, to) = (at as usize, at as usize + bytes);
            assert!(seen.iter().all(|&(start, end)| to <= start || end <= from), "{bytes} bytes twice");
            seen.push((from, to));
        }
        assert!(take(1 << 40).is_null());
    }

    /// A thread waits while another one takes its part, and then also gets a part.
    #[test]
    fn threads_that_need_what_is_kept_at_one_time_all_get_some() {
        lengthen(COVERED.load(Relaxed) + PAGE);
        while KEPT_USED.load(Relaxed) + PAGE <= KEPT_BYTES {
            take(PAGE);
        }
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spare = take_spare();
            assert!(spare > BUSY);
            let needs = scope.spawn(|| {
                begun.store(true, Release);
                !take(PAGE).is_null()
            });
            while !begun.load(Acquire) {
                std::thread::yield_now();
            }
            (0..100).for_each(|_| std::thread::yield_now());
            SPARE.store(spare, Release);
            assert!(needs.join().unwrap(), "it waits for what the other puts back");
        });
    }
}
