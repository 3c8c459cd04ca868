//! The simulator's own memory. Rust aborts when there is none. A test could then not tell whether the simulator died, or
//! the library between the program and the driver. So the simulator ends the process with an exit status of its own.
//!
//! Blocks lie apart from the program's heap, in mappings of a device, since a real device's records are not in the
//! process at all. The records that a driver keeps in the program's heap are made on purpose
//! ([`crate::memory`]). Short blocks share one mapping, and each long one has its own. Blocks for
//! which nothing can be mapped come from the program's heap.
//!
//! There is no lock, so a child of `fork` can go on. Blocks of one class go back to a list. The list's head has a tag, so that a
//! block that was taken and put back in between is not mistaken for one that stayed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Exit status of a process whose simulator finds no memory.
pub const EXHAUSTED: i32 = 97;

/// The allocator of a simulated library.
pub struct Heap;

/// Blocks have 16 bytes, or two, four, … times as many, up to [`LONGEST`].
const CLASSES: usize = 13;
const SHORTEST: usize = 16;
const LONGEST: usize = SHORTEST << (CLASSES - 1);
/// Bytes that are mapped.
const ROOM: usize = 64 << 20;
/// Addresses have 48 bits; the rest of a head is its tag.
const ADDRESS: u64 = (1 << 48) - 1;

static FREE: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];

fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SHORTEST).next_power_of_two();
    (bytes <= LONGEST).then(|| (bytes / SHORTEST).trailing_zeros() as usize)
}

/// Start of the next block that was never handed out. 0: nothing is mapped yet. 1: nothing could be mapped.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Start of the mapping.
static BASE: AtomicU64 = AtomicU64::new(0);

/// Maps memory of a device. `flags`: what else the mapping is. The answer is null if there is none.
fn map(bytes: usize, flags: i32) -> *mut u8 {
    // SAFETY: the path is a literal that ends in NUL. Without MAP_FIXED the kernel picks addresses that are free. The
    // descriptor is closed by this block alone.
    unsafe {
        let _errno = super::errno::KeepErrno::new();
        let device = libc::open(c"/dev/zero".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // A process without the device, or without a descriptor for it, has memory all the same.
        let flags = flags | libc::MAP_PRIVATE | if device < 0 { libc::MAP_ANONYMOUS } else { 0 };
        let at = libc::mmap(std::ptr::null_mut(), bytes, access, flags, device, 0);
        if device >= 0 {
            libc::close(device);
        }
        if at == libc::MAP_FAILED { std::ptr::null_mut() } else { at.cast() }
    }
}

/// Ends a mapping.
///
/// # Safety
/// [`map`] gave it with this length, and it is not used any more.
unsafe fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: our caller vouches for the mapping.
    unsafe {
        let _errno = super::errno::KeepErrno::new();
        libc::munmap(at.cast(), bytes);
    }
}

/// True if a new thread finds memory in the program's heap for its own storage.
pub(crate) fn has_room_for_a_thread() -> bool {
    const STORAGE: usize = 64 << 10;
    // SAFETY: free gets what malloc gave, which may be null.
    unsafe {
        // Not left out by the compiler, since the answer is looked at.
        let at = std::hint::black_box(libc::malloc(STORAGE));
        libc::free(at);
        !at.is_null()
    }
}

/// A block that was never handed out; `None` if there is no room for it.
fn fresh(bytes: u64) -> Option<*mut u8> {
    let mut next = NEXT.load(Acquire);
    loop {
        if next == 0 {
            // Where another thread maps as well, one of the two is left: it is not touched, so that it takes no memory.
            let at = (map(ROOM, libc::MAP_NORESERVE) as u64).max(1);
            let _ = BASE.compare_exchange(0, at, AcqRel, Acquire);
            let base = BASE.load(Acquire);
            next = NEXT.compare_exchange(0, base, AcqRel, Acquire).map_or_else(|now| now, |_| base);
        }
        let at = next.next_multiple_of(bytes.min(4096));
        if next == 1 || at + bytes > BASE.load(Acquire) + ROOM as u64 {
            return None;
        }
        match NEXT.compare_exchange_weak(next, at + bytes, AcqRel, Acquire) {
            Ok(_) => return Some(at as *mut u8),
            Err(now) => next = now,
        }
    }
}

/// Bytes of short blocks that were ever handed out. Memory measurements leave them out, since a real driver's records are
/// not in the process.
#[allow(dead_code)] // Of a runtime's own heap nobody asks.
pub fn taken() -> u64 {
    NEXT.load(Acquire).saturating_sub(BASE.load(Acquire))
}

const PAGE: usize = 4096;

/// The layout of a long block in the program's heap, and where in it the block begins: not at a page, as a mapping does.
fn in_heap(layout: Layout) -> (Layout, usize) {
    let begin = layout.align().max(SHORTEST);
    if begin >= PAGE {
        exhausted();
    }
    // SAFETY: a power of two, and no layout is so long that a page more would exceed what a layout may have.
    (unsafe { Layout::from_size_align_unchecked(layout.size() + begin, PAGE) }, begin)
}

fn long(layout: Layout) -> *mut u8 {
    let mapped = map(layout.size(), 0);
    if !mapped.is_null() {
        return mapped;
    }
    let (whole, begin) = in_heap(layout);
    // SAFETY: the layout is not empty, and the block begins within it.
    unsafe { some(System.alloc(whole)).add(begin) }
}

/// # Safety
/// `block` is what [`long`] gave for this layout, and it is not used any more.
unsafe fn long_ends(block: *mut u8, layout: Layout) {
    // SAFETY: our caller vouches for the block. Only a mapping begins at a page.
    unsafe {
        if (block as usize).is_multiple_of(PAGE) {
            return unmap(block, layout.size());
        }
        let (whole, begin) = in_heap(layout);
        System.dealloc(block.sub(begin), whole);
    }
}

fn some(at: *mut u8) -> *mut u8 {
    if at.is_null() { exhausted() } else { at }
}

/// The link inside a free block.
///
/// # Safety
/// `block` is the address of a block of a class.
unsafe fn link<'a>(block: u64) -> &'a AtomicU64 {
    // SAFETY: our caller vouches for a block of a class. Blocks are aligned to 16 bytes, and never given back.
    unsafe { &*(block as *const AtomicU64) }
}

fn put(class: usize, first: u64, last: u64) {
    let head = &FREE[class];
    let mut seen = head.load(Relaxed);
    loop {
        // SAFETY: `last` is a block that nobody else has.
        unsafe { link(last) }.store(seen & ADDRESS, Relaxed);
        let wanted = first | (seen & !ADDRESS).wrapping_add(ADDRESS + 1);
        match head.compare_exchange_weak(seen, wanted, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

fn take(class: usize) -> *mut u8 {
    let head = &FREE[class];
    let mut seen = head.load(Acquire);
    while seen & ADDRESS != 0 {
        // SAFETY: heads hold addresses of blocks only. If another thread takes this one meanwhile, the exchange fails and
        // what was read is dropped.
        let next = unsafe { link(seen & ADDRESS) }.load(Relaxed) & ADDRESS;
        let wanted = next | (seen & !ADDRESS).wrapping_add(ADDRESS + 1);
        match head.compare_exchange_weak(seen, wanted, AcqRel, Acquire) {
            Ok(_) => return (seen & ADDRESS) as *mut u8,
            Err(now) => seen = now,
        }
    }
    let block = SHORTEST << class;
    // SAFETY: the layout is not empty: a power of two, aligned to itself up to a page.
    let of_program = || unsafe { System.alloc(Layout::from_size_align_unchecked(block, block.min(4096))) };
    fresh(block as u64).unwrap_or_else(|| some(of_program()))
}

// SAFETY: a block is as long and as aligned as its class, which is at least what the layout asks; no layout of the
// simulator asks for more than a page. The lists give each block to one owner until it comes back. What has no class has
// a mapping of its own, or a piece of System's that begins behind a page's start, by which the two are told apart.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => take(class),
            None => long(layout),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => put(class, block as u64, block as u64),
            // SAFETY: our caller gives back what `alloc` gave for this layout, which was a long block.
            None => unsafe { long_ends(block, layout) },
        }
    }
}

/// Ends the process, since the simulator cannot go on without memory or threads.
pub fn exhausted() -> ! {
    let said = b"sim: no host memory or thread\n";
    // SAFETY: `said` is a literal of `said.len()` bytes. _exit takes a number and never returns.
    unsafe {
        libc::write(2, said.as_ptr().cast(), said.len());
        libc::_exit(EXHAUSTED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of the mapping that an address lies in, as the kernel lists it.
    fn mapping_of(at: u64) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a list of mappings");
        let line = maps.lines().find(|line| {
            let ends = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let [from, to] = [ends.0, ends.1].map(|end| u64::from_str_radix(end, 16).expect("a number"));
            (from..to).contains(&at)
        });
        line.unwrap_or_default().to_owned()
    }

    /// The simulator's list of some thousand blocks is long. In the program's heap it would look like
    /// references of the program.
    #[test]
    fn long_blocks_lie_apart_from_the_programs_heap_and_go_back() {
        for bytes in [LONGEST + 1, 98_304, 1 << 20, 10 << 20] {
            let layout = Layout::from_size_align(bytes, 8).unwrap();
            // SAFETY: the layout is not empty. The block is written within its length and given back once.
            let at = unsafe {
                let block = Heap.alloc(layout);
                block.write_bytes(7, bytes);
                assert!(mapping_of(block as u64).ends_with("/dev/zero"), "{bytes}: {}", mapping_of(block as u64));
                Heap.dealloc(block, layout);
                block as u64
            };
            assert!(!mapping_of(at).ends_with("/dev/zero"), "{bytes}: it was not given back");
        }
    }

    #[test]
    fn threads_have_blocks_of_their_own() {
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                scope.spawn(move || {
                    let mut held: Vec<(*mut u8, Layout)> = Vec::new();
                    for n in 0..4000_usize {
                        let layout = Layout::from_size_align(1 + n * 37 % 70_000, 8).unwrap();
                        // SAFETY: the layout is not empty. Each block is written within its length and given back once.
                        unsafe {
                            let block = Heap.alloc(layout);
                            block.write_bytes(thread, layout.size());
                            held.push((block, layout));
                            if n % 3 != 0 {
                                let (block, layout) = held.swap_remove(n % held.len());
                                assert!((0..layout.size()).all(|at| block.add(at).read() == thread));
                                Heap.dealloc(block, layout);
                            }
                        }
                    }
                    // SAFETY: each block is one that Heap gave for its layout, and nobody else has it.
                    held.into_iter().for_each(|(block, layout)| unsafe { Heap.dealloc(block, layout) });
                });
            }
        });
    }
}
