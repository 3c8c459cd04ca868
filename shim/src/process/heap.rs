//! Memory for the shim's own bookkeeping, straight from the kernel.
//!
//! The program's `malloc` may be anything: an interposer that calls `dlsym` inside it, one that takes a lock and then
//! walks the loaded objects, a checker that aborts or counts leaks. Bookkeeping must not enter any of them, so this
//! library has its own allocator over mappings.
//!
//! The allocator has no locks, since a child of `fork` or a bare `clone` must not find one held. Blocks of one size
//! class ([`classes`]) come from chunks and go back to a [`list`]. Chunks are never unmapped.
//!
//! The allocator's memory is part of the program's process, so it is touched only when needed. A chunk is handed out
//! block by block from its beginning ([`run`]). Chunks of short blocks of all classes share one mapping ([`mapping`]).
//!
//! The kernel may refuse memory (RLIMIT_AS, overcommit, the number of mappings), and Rust's collections end the process
//! if an allocation fails. For that case there is a [`reserve`].

mod classes;
pub(crate) mod list;
mod mapping;
mod reserve;
mod run;

mod atomic {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

use super::threads;
use classes::{CLASSES, MOST_ALIGNED, bytes_of, class_of};
use list::{ADDRESS_BITS, FreeList};
pub(crate) use mapping::use_small_pages;
use mapping::{map, unmap};
pub(crate) use reserve::{is_short, when_refused};
use run::Run;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::*};
use zerocopy::FromZeros;

/// Chunks begin at a multiple of this. Chunks of blocks up to this length share one mapping.
const CHUNK: usize = MOST_ALIGNED;
/// Minimum number of blocks in a chunk.
const BLOCKS: usize = 4;
/// Mapping lengths are multiples of this.
const PAGE: usize = 64 << 10;
/// The number of low bits of a block's address that are zero. Lists leave them out and have a longer tag instead.
const ALIGNED: u32 = 4;

/// The allocator of this library.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Free blocks of each class.
static FREE: [FreeList<{ ADDRESS_BITS - ALIGNED }>; CLASSES] = [const { FreeList(AtomicU64::new(0)) }; CLASSES];

/// Blocks of each class that were never handed out.
static FRESH: [Run; CLASSES] = [const { Run(AtomicU64::new(0)) }; CLASSES];

/// The part of a mapping that is in no chunk yet.
static CHUNKS: Run = Run(AtomicU64::new(0));

/// Returns `bytes` from the kernel, or `least` bytes from the reserve, and how many; null if both are used up. The
/// reserve gives no more than is needed, since many threads may need a part of it at once.
fn obtain(bytes: usize, least: usize) -> (*mut u8, usize) {
    let (bytes, least) = (bytes.next_multiple_of(PAGE), least.next_multiple_of(CHUNK));
    #[cfg(test)]
    if REFUSED.get() {
        return (null_mut(), 0);
    }
    #[cfg(test)]
    if RESERVE_ALONE.get() {
        return (reserve::take(least), least);
    }
    let at = map(bytes);
    if at.is_null() {
        // Taken before recording ends, so that this thread also gets a part of the reserve.
        let kept = if is_soft() { null_mut() } else { reserve::take(least) };
        reserve::ran_short();
        return (kept, least);
    }
    (at, bytes)
}

/// Returns memory for a block that is too long for the classes.
fn obtain_long(bytes: usize) -> *mut u8 {
    let bytes = bytes.next_multiple_of(PAGE);
    let (at, _) = obtain(bytes, bytes);
    if !at.is_null() && !is_soft() {
        reserve::long_block_made(bytes);
    }
    at
}

fn is_soft() -> bool {
    threads::if_known(|local| local.soft.get()) == Some(true)
}

/// Runs `f`, which can do without the memory that it asks for. So `f` gets none of the reserve, which is kept for other
/// work. All memory that `f` frees was also asked for softly.
pub(crate) fn softly<R>(f: impl FnOnce() -> R) -> R {
    threads::if_known(|local| local.soft.set(true));
    let result = f();
    threads::if_known(|local| local.soft.set(false));
    result
}

#[cfg(test)]
thread_local! {
    static REFUSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Memory comes from the reserve alone.
    static RESERVE_ALONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `f` as if neither the kernel nor the reserve gave this thread memory.
#[cfg(test)]
pub(crate) fn refused<R>(f: impl FnOnce() -> R) -> R {
    REFUSED.set(true);
    let result = f();
    REFUSED.set(false);
    result
}

/// Returns a slice of `len` zeroed values. A page of a long slice takes no memory until it is touched.
pub(crate) fn zeroes<T: FromZeros>(len: usize) -> Box<[T]> {
    let Ok(layout) = Layout::array::<T>(len) else { return Box::default() };
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the layout is not empty. FromZeros says that zeroes are a valid `T`, and the global allocator gave the
    // memory for the layout that the box will give it back with.
    unsafe {
        let at = std::alloc::alloc_zeroed(layout).cast::<T>();
        if at.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, len))
    }
}

/// Returns the link inside a free block.
///
/// # Safety
/// `block` is the address of a block of a chunk.
unsafe fn link<'a>(block: u64) -> &'a AtomicU64 {
    // SAFETY: our caller vouches for a block of a chunk. Blocks are aligned to 16 bytes, and chunks
    // are never unmapped.
    unsafe { &*(block as *const AtomicU64) }
}

/// Returns a block of a class, null if there is no memory; and true if the block is all zeroes because it was never
/// handed out.
fn take(class: usize) -> (*mut u8, bool) {
    // SAFETY: the list has blocks of chunks only.
    match FREE[class].take(|block| unsafe { link(block << ALIGNED) }.load(Relaxed)) {
        Some(block) => ((block << ALIGNED) as *mut u8, false),
        None => (take_fresh(class), true),
    }
}

/// Puts a chain of blocks, linked from `first` to `last`, on the list of its class.
fn put(class: usize, first: u64, last: u64) {
    // SAFETY: `last` is a block that our caller is giving back, so no other thread uses it.
    FREE[class].put(first >> ALIGNED, |next| unsafe { link(last) }.store(next, Relaxed));
}

/// Returns a block that was never handed out.
#[cold]
fn take_fresh(class: usize) -> *mut u8 {
    let (run, block) = (&FRESH[class], bytes_of(class));
    let seen = match run.take(block, 1) {
        Ok(first) => return first,
        Err(seen) => seen,
    };
    let (chunk, len) = new_chunk(block);
    if chunk.is_null() {
        return chunk;
    }
    let (start, others) = (chunk as u64, len - 1);
    // If another thread has made a chunk meanwhile, the blocks of this one go to the list.
    if others == 0 || run.refill(seen, chunk.wrapping_add(block), others) {
        return chunk;
    }
    for index in 1..others {
        // SAFETY: the index is below `len`, so this is a block of the chunk that was just made.
        unsafe { link(start + (index * block) as u64) }
            .store((start + ((index + 1) * block) as u64) >> ALIGNED, Relaxed);
    }
    put(class, start + block as u64, start + (others * block) as u64);
    chunk
}

/// Returns zeroed memory for blocks of a length, and the number of blocks; null if there is no memory.
fn new_chunk(block: usize) -> (*mut u8, usize) {
    if block > CHUNK {
        let (chunk, bytes) = obtain(block, block);
        return (chunk, bytes / block);
    }
    let bytes = (block * BLOCKS).next_multiple_of(CHUNK);
    let pieces = bytes / CHUNK;
    let seen = match CHUNKS.take(CHUNK, pieces) {
        Ok(chunk) => return (chunk, bytes / block),
        Err(seen) => seen,
    };
    let (chunk, got) = obtain(PAGE, block);
    if got <= bytes {
        return (chunk, got / block);
    }
    if !chunk.is_null() {
        // A remainder stays unused: the earlier mapping's, or this one's if another thread was faster.
        CHUNKS.refill(seen, chunk.wrapping_add(bytes), got / CHUNK - pieces);
    }
    (chunk, bytes / block)
}

// SAFETY: a block is as large and as aligned as its class, which is at least what the layout asks.
// Mappings are page-aligned, and a larger alignment is refused. The lists give each block to one
// owner until it comes back.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            _ if layout.align() > MOST_ALIGNED => null_mut(),
            Some(class) => take(class).0,
            None => obtain_long(layout.size()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => put(class, block as u64, block as u64),
            None => {
                let bytes = layout.size().next_multiple_of(PAGE);
                if !is_soft() {
                    // A map also frees here, when it is dropped, the memory that it asked for softly.
                    reserve::long_block_ended(bytes);
                }
                if !reserve::contains(block) {
                    // SAFETY: our caller gives back what `alloc` gave for this layout. For such a layout
                    // that is a mapping of this length, or a part of one.
                    unsafe { unmap(block, bytes) };
                }
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout).filter(|_| layout.align() <= MOST_ALIGNED) else {
            // SAFETY: our caller keeps `alloc`'s contract. New mappings and the reserve are zeroes.
            return unsafe { self.alloc(layout) };
        };
        let (block, is_zeroes) = take(class);
        if !block.is_null() && !is_zeroes {
            // SAFETY: the block is of the layout's class, so it has at least `layout.size()` bytes, and `take` gave it
            // to this thread alone.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_block_takes_the_pages_that_are_touched() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let block = zeroes::<AtomicU64>(1 << 20);
        block[1 << 19].store(1, Relaxed);
        let address = block.as_ptr() as usize;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        };
        let its = smaps.lines().skip_while(|line| begins(line).is_none_or(|range| !range.contains(&address)));
        let flags = its.into_iter().find_map(|line| line.strip_prefix("VmFlags:")).expect("its flags");
        assert!(flags.split(' ').any(|flag| flag == "nh"), "huge pages where they are on: {flags}");
    }

    /// Sixteen threads that start when the kernel gives no more memory need about six chunks each, of blocks of up to
    /// 16 KiB.
    #[test]
    fn the_reserve_serves_many_threads() {
        RESERVE_ALONE.set(true);
        let chunks: Vec<_> = (0..100).map(|n| new_chunk([48, 3072, 4128, 16384][n % 4])).collect();
        RESERVE_ALONE.set(false);
        assert!(chunks.iter().all(|&(chunk, blocks)| !chunk.is_null() && blocks > 0), "{chunks:?}");
    }

    #[test]
    fn pieces_are_handed_out_once_and_in_order() {
        let run = Run(AtomicU64::new(0));
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
        let run = Run(AtomicU64::new(0));
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

    #[test]
    fn threads_never_share_a_block() {
        let threads: Vec<_> = (0..8_u8)
            .map(|id| {
                std::thread::spawn(move || {
                    let mut random = u32::from(id) * 7919 + 1;
                    let mut held: Vec<Vec<u8>> = Vec::new();
                    for _ in 0..20_000 {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        if random & 1 == 0 || held.is_empty() {
                            held.push(vec![id; 1 + (random >> 8) as usize % 5000]);
                        } else {
                            let block = held.swap_remove((random >> 8) as usize % held.len());
                            assert!(block.iter().all(|&byte| byte == id));
                        }
                        held.truncate(64);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
