//! The shim's own heap: no block and no piece of memory belongs to two threads at once. One thread's accesses to a
//! block come before those of the block's next owner.

mod atomic {
    pub use gpumem_models::atomic::*;
}

#[path = "../../src/process/heap/list.rs"]
mod list;
#[path = "../../src/process/heap/run.rs"]
mod run;

use atomic::{AtomicU64, Ordering::Relaxed};
use gpumem_models::{Arc, Plain, model, thread};
use list::{ADDRESS_BITS, FreeList};
use run::Run;

const BLOCKS: usize = 8;

struct Block {
    /// Its first word, while it is in the list.
    link: AtomicU64,
    /// The owner's contents.
    bytes: Plain<u64>,
}

struct Heap {
    blocks: [Block; BLOCKS],
    list: FreeList<ADDRESS_BITS>,
    run: Run,
}

fn address(index: usize) -> u64 {
    (index as u64 + 1) << 4
}

impl Heap {
    /// Creates a heap with `free` of its blocks in its list.
    fn new(free: usize) -> Arc<Self> {
        let block = |_| Block { link: AtomicU64::new(0), bytes: Plain::new(0) };
        let blocks = std::array::from_fn(block);
        let heap = Self { blocks, list: FreeList(AtomicU64::new(0)), run: Run(AtomicU64::new(0)) };
        (0..free).for_each(|index| heap.give_back(address(index)));
        Arc::new(heap)
    }

    fn block(&self, address: u64) -> &Block {
        &self.blocks[(address >> 4) as usize - 1]
    }

    fn take(&self) -> Option<u64> {
        self.list.take(|address| self.block(address).link.load(Relaxed))
    }

    fn give_back(&self, address: u64) {
        self.list.put(address, |next| self.block(address).link.store(next, Relaxed));
    }

    /// Uses the block, which must belong to this thread alone: loom and Miri report other users.
    fn use_it(&self, address: u64, own: u64) {
        let bytes = &self.block(address).bytes;
        bytes.write(own);
        assert_eq!(bytes.read(), own);
    }

    fn rest(&self) -> Vec<u64> {
        let mut all: Vec<u64> = std::iter::from_fn(|| self.take()).collect();
        all.sort_unstable();
        all
    }
}

/// One thread takes two blocks and puts the first one back, while another has begun to take it. The head is then the
/// same block, but its next block is another.
#[test]
fn a_block_that_came_back_is_not_mistaken_for_one_that_stayed() {
    model(3, || {
        let heap = Heap::new(3);
        let other = {
            let heap = heap.clone();
            thread::spawn(move || {
                let (first, second) = (heap.take().unwrap(), heap.take().unwrap());
                heap.use_it(first, 1);
                heap.give_back(first);
                heap.use_it(second, 1);
                second
            })
        };
        let here = heap.take().unwrap();
        heap.use_it(here, 2);
        let there = other.join().unwrap();
        let mut all = heap.rest();
        all.extend([here, there]);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2].map(address), "none is lost, and none is there twice");
    });
}

#[test]
fn a_block_goes_from_thread_to_thread_with_what_is_in_it() {
    model(2, || {
        let heap = Heap::new(1);
        let others = [1, 2].map(|own| {
            let heap = heap.clone();
            thread::spawn(move || {
                if let Some(block) = heap.take() {
                    heap.use_it(block, own);
                    heap.give_back(block);
                }
            })
        });
        if let Some(block) = heap.take() {
            heap.use_it(block, 3);
            heap.give_back(block);
        }
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(heap.rest(), [address(0)]);
    });
}

/// Takes a block like the heap does if no block comes back: out of the run, or out of a new chunk of two, whose second
/// block goes into the run, or to the list if another thread was faster.
fn fresh(heap: &Heap, chunk: usize) -> u64 {
    let seen = match heap.run.take(16, 1) {
        Ok(block) => return block as u64,
        Err(seen) => seen,
    };
    let [first, second] = [address(chunk), address(chunk + 1)];
    heap.use_it(second, 0);
    if !heap.run.refill(seen, second as *mut u8, 1) {
        heap.give_back(second);
    }
    first
}

#[test]
fn two_that_make_a_chunk_lose_no_piece() {
    model(3, || {
        let heap = Heap::new(0);
        let takes = |heap: &Heap, chunks: [usize; 2]| {
            chunks.map(|chunk| {
                let block = heap.take().unwrap_or_else(|| fresh(heap, chunk));
                heap.use_it(block, chunk as u64);
                block
            })
        };
        let other = {
            let heap = heap.clone();
            thread::spawn(move || takes(&heap, [4, 6]))
        };
        let mut all = [takes(&heap, [0, 2]), other.join().unwrap()].concat();
        all.extend(heap.rest());
        all.extend(std::iter::from_fn(|| heap.run.take(16, 1).ok().map(|at| at as u64)));
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "a piece is two threads': {all:?}");
        // Each chunk that was made is there with both of its blocks.
        let pairs: Vec<_> = all.chunks(2).map(|pair| (pair[0] >> 4) % 2 == 1 && pair[0] + 16 == pair[1]).collect();
        assert!(!pairs.is_empty() && pairs.iter().all(|whole| *whole), "{all:?}");
    });
}
