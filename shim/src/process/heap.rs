//! Memory for the shim's own bookkeeping, straight from the kernel.
//!
//! The program's `malloc` may be anything: an interposer that calls `dlsym` inside it, one that takes
//! a lock and then walks the loaded objects, a checker that aborts or counts leaks. Bookkeeping must
//! enter none of them, so this library's allocator (nobody else's) is made of mappings.
//!
//! No locks: a child of `fork` or a bare `clone` must not find one held. Blocks of one size class ([`classes`])
//! come from chunks and go back to a list whose head carries a tag, so that a block that was taken and
//! put back in between is not mistaken for one that stayed. Chunks are never unmapped.
//!
//! All of this is memory of the program's process, so none is touched before it is needed: a chunk is handed out block
//! by block from its beginning ([`run`]), and chunks of short blocks of all classes lie in one mapping.
//!
//! The kernel may give no more (RLIMIT_AS, overcommit, the number of mappings), and Rust's collections end the
//! process where an allocation fails. So some memory is kept that nobody has: [`KEPT`], and beside it a mapping twice
//! as long as all long blocks together, since what grows doubles. The first time that the kernel refuses, recording ends
//! for good (see [`when_refused`]), and what is under way then is finished with the memory that was kept. What many
//! threads may do at that moment, each with a long block, does not rely on it: see [`softly`].

mod classes;
mod run;

use super::errno::KeepErrno;
use super::{own, threads};
use classes::{CLASSES, MOST_ALIGNED, bytes_of, class_of};
use run::Run;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use zerocopy::FromZeros;

/// Chunks begin at a multiple of this. Those of blocks that are no longer lie in one mapping.
const CHUNK: usize = MOST_ALIGNED;
/// A chunk has room for so many blocks, or for more.
const BLOCKS: usize = 4;
/// Mappings are this long, or multiples of it.
const PAGE: usize = 64 << 10;
/// Bytes of [`KEPT`].
const KEPT_BYTES: usize = 1 << 20;
/// Addresses have 48 bits; the rest of a head is its tag.
const ADDRESS: u64 = (1 << 48) - 1;

/// The allocator of this library.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Free blocks of each class: the address of the first, and a tag above it.
static FREE: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];

/// Blocks of each class that nobody has had.
static FRESH: [Run; CLASSES] = [const { Run::new() }; CLASSES];

/// What of a mapping is in no chunk yet.
static CHUNKS: Run = Run::new();

/// For when the kernel gives no more. Nothing touches it before, so that it takes no memory.
#[repr(align(65536))]
struct Kept(UnsafeCell<[u8; KEPT_BYTES]>);

// SAFETY: `kept` hands out each part once, by an exchange of KEPT_USED. So no two threads have the
// same part.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept(UnsafeCell::new([0; KEPT_BYTES]));
static KEPT_USED: AtomicUsize = AtomicUsize::new(0);
/// A mapping that is kept for long blocks; its length is in its first word. 0: there is none.
static SPARE: AtomicUsize = AtomicUsize::new(0);
/// In place of it: a thread takes a part of it.
const BUSY: usize = 1;
/// A thread is waited for that takes a part, for so many turns: in a child of `fork` it is not there.
const TURNS: usize = 1_000_000;
/// Bytes of long blocks, without those that are asked for [`softly`].
static LONG: AtomicUsize = AtomicUsize::new(0);
/// So many bytes need no spare mapping, or have one.
static COVERED: AtomicUsize = AtomicUsize::new(KEPT_BYTES / 4);
/// The kernel refused.
static SHORT: AtomicBool = AtomicBool::new(false);
/// What is called then, each a `fn()`: one of each room that has something to close.
static CLOSE: [AtomicPtr<()>; CLOSES] = [const { AtomicPtr::new(null_mut()) }; CLOSES];
const CLOSES: usize = 4;

/// Whether the kernel has refused memory: nothing may be begun that needs more.
pub(crate) fn is_short() -> bool {
    SHORT.load(Relaxed)
}

/// Memory from the kernel, or from what is kept; null if both are used up.
fn obtain(bytes: usize) -> *mut u8 {
    let bytes = bytes.next_multiple_of(PAGE);
    #[cfg(test)]
    if REFUSED.get() {
        return null_mut();
    }
    let at = map(bytes);
    if at.is_null() {
        // What is kept is for this thread, too: recording ends while it has it in hand.
        let kept = if is_soft() { null_mut() } else { kept(bytes) };
        ran_short();
        return kept;
    }
    at
}

/// Memory for a block that is too long for the classes.
fn obtain_long(bytes: usize) -> *mut u8 {
    let at = obtain(bytes);
    if !at.is_null() && !is_soft() {
        let bytes = bytes.next_multiple_of(PAGE);
        let long = LONG.fetch_add(bytes, Relaxed) + bytes;
        if long > COVERED.load(Relaxed) {
            keep_spare(long);
        }
    }
    at
}

fn is_soft() -> bool {
    threads::local(|local| local.soft.get())
}

/// Runs `f`, which can do without the memory that it asks for: what is kept is for others. What it gives back is what was
/// asked for so.
pub(crate) fn softly<R>(f: impl FnOnce() -> R) -> R {
    threads::local(|local| local.soft.set(true));
    let result = f();
    threads::local(|local| local.soft.set(false));
    result
}

#[cfg(test)]
thread_local! {
    static REFUSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `f`, for which this thread gets nothing from the kernel, nor of what is kept.
#[cfg(test)]
pub(crate) fn refused<R>(f: impl FnOnce() -> R) -> R {
    REFUSED.set(true);
    let result = f();
    REFUSED.set(false);
    result
}

/// So many things of which zeroes are valid ones. Of a long slice no page takes memory that nobody touches.
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

/// Has `close` called once the kernel refuses memory; at once if it has. It runs inside of the allocator: it takes no
/// lock, asks for nothing, and may be called twice.
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

#[cold]
fn ran_short() {
    if SHORT.swap(true, SeqCst) {
        return;
    }
    // After `SHORT`: either this sees a function, or `when_refused` sees that it is to call it. Both may.
    for close in CLOSE.iter().map(|place| place.load(SeqCst)).filter(|close| !close.is_null()) {
        // SAFETY: only `when_refused` stores to CLOSE, and it stores functions of this type.
        unsafe { std::mem::transmute::<*mut (), fn()>(close)() };
    }
}

/// Keeps a mapping for what doubles so many bytes of long blocks.
#[cold]
fn keep_spare(long: usize) {
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

/// Takes the spare mapping, for a moment; 0 if there is none.
fn take_spare() -> usize {
    for _ in 0..TURNS {
        match SPARE.swap(BUSY, AcqRel) {
            BUSY => std::thread::yield_now(),
            spare => return spare,
        }
    }
    0
}

/// A part of what is kept, as zeroes.
#[cold]
fn kept(bytes: usize) -> *mut u8 {
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
            // Others may need less.
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

/// Whether a block is a part of [`KEPT`].
fn is_kept(block: *mut u8) -> bool {
    (block as usize).wrapping_sub(KEPT.0.get() as usize) < KEPT_BYTES
}

fn map(bytes: usize) -> *mut u8 {
    let _errno = KeepErrno::new();
    // SAFETY: without MAP_FIXED the kernel picks addresses that are free, so no other mapping is
    // touched.
    let at = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if at == libc::MAP_FAILED {
        return null_mut();
    }
    // SAFETY: this is the mapping that was just made.
    unsafe { use_small_pages(at, bytes) };
    own::add(at.cast(), bytes);
    at.cast()
}

/// Has the kernel give a mapping, of which little may ever be touched, no memory but the pages that are: where huge pages
/// are always on, one word would take 2 MiB.
///
/// # Safety
/// The range is a mapping of the caller's own.
pub(crate) unsafe fn use_small_pages(at: *mut libc::c_void, bytes: usize) {
    let _errno = KeepErrno::new();
    // SAFETY: our caller vouches for the range, whose contents the advice does not change. Kernels without huge pages
    // refuse.
    unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
}

/// The kernel may refuse that, too; the memory is lost then.
///
/// # Safety
/// A mapping of `map`, or the end of one, that nobody refers to.
unsafe fn unmap(at: *mut u8, bytes: usize) {
    let _errno = KeepErrno::new();
    own::remove(at, bytes);
    // SAFETY: our caller vouches that this is a mapping of `map`, or the end of one, to which no
    // one refers.
    unsafe { libc::munmap(at.cast(), bytes) };
}

/// The link inside a free block.
///
/// # Safety
/// `block` is the address of a block of a chunk.
unsafe fn link<'a>(block: u64) -> &'a AtomicU64 {
    // SAFETY: our caller vouches for a block of a chunk. Blocks are aligned to 16 bytes, and chunks
    // are never unmapped.
    unsafe { &*(block as *const AtomicU64) }
}

/// A block of a class, null if there is no memory; and whether it is all zeroes, since nobody has had it.
fn take(class: usize) -> (*mut u8, bool) {
    let head = &FREE[class];
    let mut seen = head.load(Acquire);
    while seen & ADDRESS != 0 {
        // SAFETY: heads hold addresses of blocks only. If another thread takes this one meanwhile,
        // the exchange fails and what was read is dropped.
        let next = unsafe { link(seen & ADDRESS) }.load(Relaxed) & ADDRESS;
        let wanted = next | (seen & !ADDRESS).wrapping_add(ADDRESS + 1);
        match head.compare_exchange_weak(seen, wanted, AcqRel, Acquire) {
            Ok(_) => return ((seen & ADDRESS) as *mut u8, false),
            Err(now) => seen = now,
        }
    }
    (take_fresh(class), true)
}

/// Puts a chain of blocks, linked from `first` to `last`, on the list of its class.
fn put(class: usize, first: u64, last: u64) {
    let head = &FREE[class];
    let mut seen = head.load(Relaxed);
    loop {
        // SAFETY: `last` is a block that our caller is giving back, so no other thread uses it.
        unsafe { link(last) }.store(seen & ADDRESS, Relaxed);
        let wanted = first | (seen & !ADDRESS).wrapping_add(ADDRESS + 1);
        match head.compare_exchange_weak(seen, wanted, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// A block that nobody has had.
#[cold]
fn take_fresh(class: usize) -> *mut u8 {
    let (run, block) = (&FRESH[class], bytes_of(class));
    let seen = match run.take(block, 1) {
        Ok(first) => return first,
        Err(seen) => seen,
    };
    let (chunk, len) = new_chunk(block);
    let (start, others) = (chunk as u64, len - 1);
    // Where another thread has made a chunk, too, the list takes the blocks of this one.
    if chunk.is_null() || others == 0 || run.refill(seen, chunk.wrapping_add(block), others) {
        return chunk;
    }
    for index in 1..others {
        // SAFETY: the index is below `len`, so this is a block of the chunk that was just made.
        unsafe { link(start + (index * block) as u64) }.store(start + ((index + 1) * block) as u64, Relaxed);
    }
    put(class, start + block as u64, start + (others * block) as u64);
    chunk
}

/// Memory for blocks of a length, as zeroes, and how many it is for; null if there is none.
fn new_chunk(block: usize) -> (*mut u8, usize) {
    if block > CHUNK {
        let bytes = block.next_multiple_of(PAGE);
        return (obtain(bytes), bytes / block);
    }
    let bytes = (block * BLOCKS).next_multiple_of(CHUNK);
    let pieces = bytes / CHUNK;
    let chunk = CHUNKS.take(CHUNK, pieces).unwrap_or_else(|seen| {
        let mapping = obtain(PAGE);
        if !mapping.is_null() {
            // What was left there, or is left here if another thread was faster, nobody touches any more.
            CHUNKS.refill(seen, mapping.wrapping_add(bytes), PAGE / CHUNK - pieces);
        }
        mapping
    });
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
                    // A map that ends gives back here what it asked for softly.
                    let _ = LONG.fetch_update(Relaxed, Relaxed, |long| Some(long.saturating_sub(bytes)));
                }
                if !is_kept(block) {
                    // SAFETY: our caller gives back what `alloc` gave for this layout. For such a layout
                    // that is a mapping of this length, or a part of one.
                    unsafe { unmap(block, bytes) };
                }
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout).filter(|_| layout.align() <= MOST_ALIGNED) else {
            // SAFETY: our caller keeps `alloc`'s contract. New mappings and KEPT are zeroes.
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
    fn what_is_kept_is_handed_out_once_and_as_zeroes() {
        // Tests share the heap: what another thread keeps meanwhile is as good.
        let longest = COVERED.load(Relaxed) + PAGE;
        keep_spare(longest);
        let mut seen: Vec<(usize, usize)> = Vec::new();
        for bytes in [PAGE, longest, 3 * PAGE] {
            let at = kept(bytes);
            assert!(!at.is_null(), "{bytes} bytes");
            // SAFETY: `kept` has just given these `bytes` bytes to this test alone.
            let block = unsafe { std::slice::from_raw_parts_mut(at, bytes) };
            assert!(block.iter().all(|&byte| byte == 0));
            block.fill(1);
            let (from, to) = (at as usize, at as usize + bytes);
            assert!(seen.iter().all(|&(start, end)| to <= start || end <= from), "{bytes} bytes twice");
            seen.push((from, to));
        }
        assert!(kept(1 << 40).is_null());
    }

    /// A thread does not find nothing because another one takes its part just then.
    #[test]
    fn threads_that_need_what_is_kept_at_one_time_all_get_some() {
        keep_spare(COVERED.load(Relaxed) + PAGE);
        while KEPT_USED.load(Relaxed) + PAGE <= KEPT_BYTES {
            kept(PAGE);
        }
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spare = take_spare();
            assert!(spare > BUSY);
            let needs = scope.spawn(|| {
                begun.store(true, Release);
                !kept(PAGE).is_null()
            });
            while !begun.load(Acquire) {
                std::thread::yield_now();
            }
            (0..100).for_each(|_| std::thread::yield_now());
            SPARE.store(spare, Release);
            assert!(needs.join().unwrap(), "it waits for what the other puts back");
        });
    }

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
