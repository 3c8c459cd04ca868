//! Tells which memory of the process is the shim's own. Its contents say nothing about the program.
//!
//! The kernel joins adjacent mappings, so a line in `/proc/self/maps` does not tell whose a mapping is. Nothing here
//! locks or allocates, because the shim's allocator calls it and a child of `fork` continues with it.

use super::page::page_bytes;
use super::threads;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Maximum number of mappings.
const MOST: usize = 8192;
/// Maximum number of our threads at a time.
const THREADS: usize = 8;
/// Replaces the beginning of a mapping while a thread changes its entry.
const BUSY: u64 = 1;

/// Beginning and end of each mapping; 0: no mapping.
static MAPPINGS: [(AtomicU64, AtomicU64); MOST] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; MOST];
/// Entries from here on have never held a mapping.
static USED: AtomicUsize = AtomicUsize::new(0);
/// True once a mapping found no room here.
static FULL: AtomicBool = AtomicBool::new(false);
/// Our threads: the kernel's thread number, and start and end of the stack.
static STACKS: [(AtomicU32, AtomicU64, AtomicU64); THREADS] =
    [const { (AtomicU32::new(0), AtomicU64::new(0), AtomicU64::new(0)) }; THREADS];

/// Number of mappings and threads that have come or gone, plus 1.
static CHANGES: AtomicU64 = AtomicU64::new(1);

/// Returns a number that changes whenever the answer of [`ranges`] may change.
pub(crate) fn changes() -> u64 {
    CHANGES.load(SeqCst)
}

/// Adds a mapping as ours.
pub(crate) fn add(at: *const u8, bytes: usize) {
    let (start, end) = (at as u64, at as u64 + bytes as u64);
    add_range(start, end);
    CHANGES.fetch_add(1, SeqCst);
}

fn add_range(start: u64, end: u64) {
    for (index, (from, to)) in MAPPINGS.iter().enumerate() {
        if from.load(Relaxed) == 0 && from.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok() {
            to.store(end, Relaxed);
            from.store(start, Release);
            USED.fetch_max(index + 1, AcqRel);
            return;
        }
    }
    FULL.store(true, Relaxed);
}

/// Removes a mapping, or a part of one, that is about to be unmapped.
pub(crate) fn remove(at: *const u8, bytes: usize) {
    let (start, end) = (at as u64, at as u64 + bytes as u64);
    for (from, to) in &MAPPINGS[..USED.load(Acquire)] {
        let (begin, last) = (from.load(Acquire), to.load(Relaxed));
        if begin <= BUSY || begin > start || end > last || from.compare_exchange(begin, BUSY, Acquire, Relaxed).is_err()
        {
            continue;
        }
        let last = to.load(Relaxed);
        to.store(start, Relaxed);
        from.store(if begin < start { begin } else { 0 }, Release);
        if end < last {
            add_range(end, last);
        }
        break;
    }
    CHANGES.fetch_add(1, SeqCst);
}

/// Marks the calling thread as ours while it lives, with a stack of at most the given bytes.
pub(crate) struct OwnThread(Option<usize>);

impl OwnThread {
    /// Begins. `here` is an address in the thread's first frame.
    pub(crate) fn begin(here: u64, stack: u64) -> Self {
        let ours = threads::os_id() as u32;
        for (index, (tid, low, high)) in STACKS.iter().enumerate() {
            let known = tid.load(Acquire);
            // After a fork none of these threads exists.
            let is_free = known == 0 || !threads::is_known(known);
            if is_free && tid.compare_exchange(known, ours, AcqRel, Relaxed).is_ok() {
                low.store(here.saturating_sub(stack) / PAGE * PAGE, Relaxed);
                high.store(here.next_multiple_of(PAGE), Release);
                CHANGES.fetch_add(1, SeqCst);
                return Self(Some(index));
            }
        }
        Self(None)
    }
}

/// True if the calling thread is one of ours.
pub(crate) fn is_this_thread() -> bool {
    let this = threads::os_id() as u32;
    STACKS.iter().any(|(tid, ..)| tid.load(Acquire) == this)
}

/// Returns the number of our threads that exist now.
pub(crate) fn threads() -> u32 {
    let there = STACKS.iter().map(|(tid, ..)| tid.load(Acquire)).filter(|&tid| tid != 0 && threads::is_known(tid));
    there.count() as u32
}

/// The range above a thread's first frame is not covered: it has no address of device memory.
const PAGE: u64 = 4096;

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            STACKS[index].2.store(0, Relaxed);
            STACKS[index].0.store(0, Release);
            CHANGES.fetch_add(1, SeqCst);
        }
    }
}

/// Returns all ranges now, sorted; `None` if some are not known.
pub(crate) fn ranges() -> Option<Vec<Range<u64>>> {
    if FULL.load(Relaxed) {
        return None;
    }
    let mappings = MAPPINGS[..USED.load(Acquire)].iter().map(|(from, to)| from.load(Acquire)..to.load(Relaxed));
    let threads = STACKS.iter().filter(|(tid, ..)| {
        let tid = tid.load(Acquire);
        tid != 0 && threads::is_known(tid)
    });
    let stacks = threads.map(|(_, low, high)| low.load(Relaxed)..high.load(Acquire));
    let mut all: Vec<_> =
        mappings.chain(stacks).filter(|range| range.start > BUSY && range.start < range.end).collect();
    all.sort_unstable_by_key(|range| range.start);
    Some(all)
}

/// Returns the process's resident bytes, and how many of them are private and anonymous.
fn of_process() -> (u64, u64) {
    resident_by(&std::fs::read("/proc/self/statm").unwrap_or_default())
}

/// As [`of_process`], from the text of `/proc/self/statm`.
pub(crate) fn resident_by(statm: &[u8]) -> (u64, u64) {
    let statm = std::str::from_utf8(statm).unwrap_or_default();
    let mut pages = statm.split_ascii_whitespace().skip(1).map(|pages| pages.parse::<u64>().unwrap_or(0));
    let (all, of_files) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    let page = page_bytes();
    (all * page, all.saturating_sub(of_files) * page)
}

/// Heap bytes that the driver keeps since our first work, and a flag that there was any.
static KEPT_BY_DRIVER: AtomicU64 = AtomicU64::new(0);
static WORKED: AtomicBool = AtomicBool::new(false);

/// Runs work of ours that calls the driver. The first time, the driver takes heap memory for it and keeps it, so the
/// heap's growth by then counts as ours. It includes, once, what the program allocated in that time.
pub(crate) fn keeping<R>(work: impl FnOnce() -> R) -> R {
    if WORKED.swap(true, Relaxed) {
        return work();
    }
    let of_others = || of_process().1.saturating_sub(resident());
    let before = of_others();
    let result = work();
    KEPT_BY_DRIVER.store(of_others().saturating_sub(before), Relaxed);
    result
}

/// Returns the resident bytes that the process has because of gpumem.
pub(crate) fn bytes() -> u64 {
    resident() + KEPT_BY_DRIVER.load(Relaxed)
}

/// Asks the kernel for the resident bytes of all our mappings. A mapping that is unmapped meanwhile counts as 0.
fn resident() -> u64 {
    /// Pages queried at a time: 16 MiB of small ones.
    const PAGES: usize = 4096;
    let (page, mut seen) = (page_bytes(), [0_u8; PAGES]);
    let mut bytes = 0;
    for (from, to) in &MAPPINGS[..USED.load(Acquire)] {
        let (mut at, end) = (from.load(Acquire), to.load(Relaxed));
        while at > BUSY && at < end {
            let piece = (end - at).min(page * PAGES as u64);
            // SAFETY: the kernel writes a byte for each page of the range, which has no more pages than `seen` has
            // bytes, and answers with an error if a part of the range is not mapped.
            let status = unsafe { libc::mincore(at as *mut libc::c_void, piece as usize, seen.as_mut_ptr()) };
            if status == 0 {
                let pages = seen[..piece.div_ceil(page) as usize].iter().filter(|&&seen| seen & 1 != 0).count();
                bytes += pages as u64 * page;
            }
            at += piece;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(at: u64) -> Option<Range<u64>> {
        ranges().expect("there is room").into_iter().find(|range| range.contains(&at))
    }

    #[test]
    fn a_part_that_goes_leaves_the_rest() {
        // Addresses outside any mapping.
        let at = 0x10_0000_u64 as *const u8;
        add(at, 0x9000);
        assert_eq!(known(0x10_4000), Some(0x10_0000..0x10_9000));
        remove(0x10_3000_u64 as *const u8, 0x2000);
        assert_eq!((known(0x10_2fff), known(0x10_3000)), (Some(0x10_0000..0x10_3000), None));
        assert_eq!((known(0x10_4fff), known(0x10_5000)), (None, Some(0x10_5000..0x10_9000)));
        remove(at, 0x3000);
        remove(0x10_5000_u64 as *const u8, 0x4000);
        assert_eq!((known(0x10_0000), known(0x10_8000)), (None, None));
    }

    #[test]
    fn what_the_shims_heap_maps_is_its_own() {
        // Longer than any block of a chunk.
        let long = vec![7_u8; 8 << 20];
        let at = long.as_ptr() as u64;
        assert!(known(at).is_some_and(|range| range.contains(&(at + (8 << 20) - 1))));
        let short = Box::new(7_u64);
        assert!(known(&raw const *short as u64).is_some());
        drop(long);
        assert!(known(at).is_none());
    }

    /// A page of ours counts once it is touched, and no longer after it is freed.
    #[test]
    fn what_is_touched_of_the_shims_memory_is_resident() {
        let grows = |before: u64, by: u64| resident() >= before + by;
        let before = resident();
        let mut long = vec![0_u8; 32 << 20];
        assert!(!grows(before, 24 << 20), "nothing of it is touched");
        long.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        assert!(grows(before, 32 << 20));
        drop(long);
        assert!(!grows(before, 24 << 20));
    }

    #[test]
    fn a_thread_of_ours_is_known_while_it_runs() {
        let here = std::hint::black_box(7_u64);
        let at = &raw const here as u64;
        let ours = OwnThread::begin(at, 64 << 10);
        assert!(known(at).is_some() && known(at - 4096).is_some());
        drop(ours);
        assert!(known(at).is_none());
    }
}
