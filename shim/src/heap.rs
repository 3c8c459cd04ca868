//! Memory for the shim's own bookkeeping, straight from the kernel.
//!
//! The program's `malloc` may be anything: an interposer that calls `dlsym` inside it, one that takes
//! a lock and then walks the loaded objects, a checker that aborts or counts leaks. Bookkeeping must
//! enter none of them, so this library's allocator (nobody else's) is made of mappings.
//!
//! No locks: a child of `fork` or a bare `clone` must not find one held. Blocks of one size class
//! come from slabs and go back to a list whose head carries a tag, so that a block that was taken and
//! put back in between is not mistaken for one that stayed. Slabs are never unmapped.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Smallest block, bytes; classes double from here.
const SMALLEST: usize = 16;
/// Classes: up to 128 KiB. What is larger gets a mapping of its own.
const CLASSES: usize = 14;
/// A slab is this long, or as long as its one block.
const SLAB: usize = 64 << 10;
/// Addresses have 48 bits; the rest of a head is its tag.
const ADDRESS: u64 = (1 << 48) - 1;

/// The allocator of this library.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Free blocks of each class: the address of the first, and a tag above it.
static FREE: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];

fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    let class = (bytes / SMALLEST).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn map(bytes: usize) -> *mut u8 {
    // SAFETY: a new anonymous mapping.
    let at = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if at == libc::MAP_FAILED { null_mut() } else { at.cast() }
}

/// The link inside a free block.
///
/// # Safety
/// `block` is the address of a block of a slab.
unsafe fn link<'a>(block: u64) -> &'a AtomicU64 {
    // SAFETY: as the caller promises; blocks are aligned to 16 bytes and slabs are never unmapped.
    unsafe { &*(block as *const AtomicU64) }
}

fn take(class: usize) -> *mut u8 {
    let head = &FREE[class];
    let mut seen = head.load(Acquire);
    while seen & ADDRESS != 0 {
        // SAFETY: addresses in a head are those of blocks. If another thread takes it meanwhile, what
        // is read here is discarded with the exchange.
        let next = unsafe { link(seen & ADDRESS) }.load(Relaxed) & ADDRESS;
        let wanted = next | (seen & !ADDRESS).wrapping_add(ADDRESS + 1);
        match head.compare_exchange_weak(seen, wanted, AcqRel, Acquire) {
            Ok(_) => return (seen & ADDRESS) as *mut u8,
            Err(now) => seen = now,
        }
    }
    carve(class)
}

/// Puts a chain of blocks, linked from `first` to `last`, on the list of its class.
fn put(class: usize, first: u64, last: u64) {
    let head = &FREE[class];
    let mut seen = head.load(Relaxed);
    loop {
        // SAFETY: `last` is a block that nobody else knows.
        unsafe { link(last) }.store(seen & ADDRESS, Relaxed);
        let wanted = first | (seen & !ADDRESS).wrapping_add(ADDRESS + 1);
        match head.compare_exchange_weak(seen, wanted, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// A new slab: its first block, the others on the list.
#[cold]
fn carve(class: usize) -> *mut u8 {
    let block = SMALLEST << class;
    let slab = map(SLAB.max(block));
    if slab.is_null() {
        return slab;
    }
    let (start, len) = (slab as u64, SLAB / block);
    if len > 1 {
        for index in 1..len - 1 {
            // SAFETY: blocks of the slab just made.
            unsafe { link(start + (index * block) as u64) }.store(start + ((index + 1) * block) as u64, Relaxed);
        }
        put(class, start + block as u64, start + ((len - 1) * block) as u64);
    }
    slab
}

// SAFETY: blocks are as large and as aligned as their class, which is at least what the layout asks
// (mappings are page-aligned; a larger alignment is refused), and are given out once until they come back.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => take(class),
            None if layout.align() > 4096 => null_mut(),
            None => map(layout.size()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => put(class, block as u64, block as u64),
            // SAFETY: a mapping of this size, made by `alloc`.
            None => unsafe {
                libc::munmap(block.cast(), layout.size());
            },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`; a block of a class may have been used, a mapping is zeroes.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() && class_of(layout).is_some() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_is_asked() {
        for (size, align) in [(1, 1), (16, 8), (17, 8), (100, 64), (4096, 4096), (128 << 10, 8)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let block = SMALLEST << class_of(layout).unwrap();
            assert!(block >= size && block.is_multiple_of(align), "{size} {align}");
        }
        assert_eq!(class_of(Layout::from_size_align((128 << 10) + 1, 8).unwrap()), None);
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
