//! All blocks: a map by address, and spare block objects that stand for no memory.

use super::block::{Block, State};
use super::lock;
use crate::process::heap;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use zerocopy::FromZeros;

/// Blocks by address. Lookups take no lock.
///
/// A lookup may read a table that was replaced meanwhile and is being filled with other addresses. A block found there
/// is correct, because the block itself stores its address. An empty result counts only if no table was replaced
/// meanwhile.
pub(crate) struct Blocks {
    table: AtomicPtr<BlockTable>,
    /// Number of table replacements.
    replaced: AtomicU64,
    /// Taken to change the map.
    inner: Mutex<BlockMaps>,
    /// Block objects that stand for no memory now.
    spare: Mutex<Vec<&'static Block>>,
}

#[derive(Default)]
struct BlockMaps {
    /// Slots in use.
    used: usize,
    /// The previous table, kept for the next replacement.
    spare: Option<&'static BlockTable>,
    /// For lookups of addresses inside blocks.
    sorted: BTreeMap<u64, &'static Block>,
    /// Blocks that are not in `sorted` yet. A lookup inside blocks moves them there, so that no allocation waits for
    /// that.
    unsorted: Vec<(u64, &'static Block)>,
}

impl BlockMaps {
    fn sorted(&mut self) -> &mut BTreeMap<u64, &'static Block> {
        self.sorted.extend(self.unsorted.drain(..));
        &mut self.sorted
    }
}

/// Slots of the first table.
const LEAST_PLACES: usize = 256;

struct BlockTable {
    /// The slots; their number is a power of two.
    places: Box<[BlockSlot]>,
}

#[derive(FromZeros)]
struct BlockSlot {
    /// 0: the slot is free. An address keeps its slot, since addresses come back.
    addr: AtomicU64,
    block: AtomicPtr<Block>,
}

impl BlockTable {
    fn new(places: usize) -> &'static Self {
        Box::leak(Box::new(Self { places: heap::zeroes(places) }))
    }

    /// Empties a table that is not in use.
    fn clear(&self) {
        for place in &self.places {
            place.addr.store(0, Release);
            place.block.store(std::ptr::null_mut(), Release);
        }
    }

    /// Returns the block at an address. `None` also if this table is no longer in use.
    #[inline]
    fn get(&self, addr: u64) -> Option<&'static Block> {
        // Another address may be taking a free slot now.
        let place = self.place(addr).ok()?;
        // SAFETY: null, or a Block out of a leaked box: blocks are used again and never freed.
        let block = unsafe { place.block.load(Acquire).as_ref() };
        // The slot may have been refilled between the two loads.
        block.filter(|block| block.addr() == addr)
    }

    /// Returns the slot of an address. `Err`: the free slot that the address would take. Blocks are at least 512 bytes
    /// apart.
    #[inline]
    fn place(&self, addr: u64) -> Result<&BlockSlot, &BlockSlot> {
        let mask = self.places.len() - 1;
        let mut at = ((addr >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        loop {
            // There is always a free slot: at least half of the slots are free.
            let place = &self.places[at];
            match place.addr.load(Acquire) {
                there if there == addr => return Ok(place),
                0 => return Err(place),
                _ => {}
            }
            at = (at + 1) & mask;
        }
    }
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self {
            table: AtomicPtr::new(std::ptr::from_ref(BlockTable::new(LEAST_PLACES)).cast_mut()),
            replaced: AtomicU64::new(0),
            inner: Mutex::default(),
            spare: Mutex::default(),
        }
    }

    #[inline]
    fn table(&self) -> &'static BlockTable {
        // SAFETY: the table is never null, and tables are leaked boxes: a larger one replaces a table, which is not
        // freed.
        unsafe { &*self.table.load(Acquire) }
    }

    /// Returns the block at exactly this address.
    #[inline]
    pub(crate) fn get(&self, addr: u64) -> Option<&'static Block> {
        if addr == 0 {
            return None;
        }
        self.table().get(addr).or_else(|| self.get_again(addr))
    }

    /// As [`Blocks::get`], but an empty result is final.
    #[cold]
    fn get_again(&self, addr: u64) -> Option<&'static Block> {
        loop {
            let replaced = self.replaced.load(Acquire);
            let found = self.table().get(addr);
            // A table is refilled only after this count was raised. A thread that reads any of the new content also
            // sees the new count.
            if found.is_some() || self.replaced.load(Acquire) == replaced {
                return found;
            }
        }
    }

    pub(super) fn insert(&self, addr: u64, block: &'static Block) {
        let mut inner = lock(&self.inner);
        let mut table = self.table();
        if inner.used * 2 >= table.places.len() {
            table = self.grow(table, &mut inner);
        }
        let block_ptr = std::ptr::from_ref(block).cast_mut();
        match table.place(addr) {
            Ok(known) => known.block.store(block_ptr, Release),
            Err(free) => {
                free.block.store(block_ptr, Release);
                free.addr.store(addr, Release);
                inner.used += 1;
            }
        }
        inner.unsorted.push((addr, block));
    }

    pub(super) fn remove(&self, addr: u64) {
        let mut inner = lock(&self.inner);
        if let Ok(place) = self.table().place(addr) {
            place.block.store(std::ptr::null_mut(), Release);
        }
        inner.sorted().remove(&addr);
    }

    /// Makes a table with room, without addresses that no block uses any more. Keeps the previous table for the next
    /// replacement. A previous table that is too small by then is leaked, since a lookup may still read it. All leaked
    /// tables together are at most as large as the new one.
    #[cold]
    fn grow(&self, old: &'static BlockTable, inner: &mut BlockMaps) -> &'static BlockTable {
        let spare = inner.spare.replace(old);
        let sorted = inner.sorted();
        // Enough slots for a quarter more blocks before the next replacement.
        let places = (sorted.len() * 5 / 2).next_power_of_two().max(old.places.len());
        let table = match spare.filter(|spare| spare.places.len() == places) {
            Some(spare) => {
                spare.clear();
                spare
            }
            None => BlockTable::new(places),
        };
        for (&addr, &block) in &*sorted {
            let (Ok(there) | Err(there)) = table.place(addr);
            there.block.store(std::ptr::from_ref(block).cast_mut(), Release);
            there.addr.store(addr, Release);
        }
        inner.used = sorted.len();
        self.table.store(std::ptr::from_ref(table).cast_mut(), Release);
        self.replaced.fetch_add(1, AcqRel);
        table
    }

    /// Returns a block object that stands for no memory now.
    pub(super) fn spare(&self) -> &'static Block {
        lock(&self.spare).pop().unwrap_or_else(|| Box::leak(Box::default()))
    }

    /// Keeps a block object as a spare one: it stands for no memory any more.
    pub(super) fn forget(&self, block: &'static Block) {
        block.set(State::Gone);
        lock(&self.spare).push(block);
    }

    /// Returns all blocks.
    pub(crate) fn all(&self) -> Vec<&'static Block> {
        lock(&self.inner).sorted().values().copied().collect()
    }

    /// Returns the block that contains an address.
    pub(crate) fn around(&self, addr: u64) -> Option<&'static Block> {
        let mut inner = lock(&self.inner);
        let (_, &block) = inner.sorted().range(..=addr).next_back()?;
        (addr < block.base() + block.bytes()).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn addresses_are_found_until_they_are_removed() {
        let all = Blocks::new();
        let blocks: Vec<&'static Block> = (1..5000_u64)
            .map(|n| {
                let block: &'static Block = Box::leak(Box::default());
                block.set_addr(n * 512);
                block.set_bytes(512);
                all.insert(n * 512, block);
                block
            })
            .collect();
        for block in &blocks {
            let addr = block.addr();
            assert!(std::ptr::eq(all.get(addr).unwrap(), *block));
            assert!(std::ptr::eq(all.around(addr + 511).unwrap(), *block));
        }
        for block in blocks.iter().step_by(2) {
            all.remove(block.addr());
        }
        assert!(all.get(512).is_none() && all.get(1024).is_some() && all.get(0).is_none());
        // The same addresses come and go without end: the table does not grow.
        for round in 0..100_000_u64 {
            move_to(&all, blocks[0], 512 + 1024 * (round % 2000));
            all.remove(512 + 1024 * (round % 2000));
        }
        assert!(all.table().places.len() <= 16_384);
        assert_eq!(all.all().len(), blocks.len() / 2);
    }

    fn move_to(all: &Blocks, block: &'static Block, addr: u64) {
        block.set_addr(addr);
        all.insert(addr, block);
    }

    /// The driver always gives new addresses while few blocks live.
    #[test]
    fn ever_new_addresses_take_no_memory() {
        let all = Blocks::new();
        let blocks: Vec<&'static Block> = (0..40).map(|_| &*Box::leak(Box::default())).collect();
        let mut tables = std::collections::BTreeSet::new();
        for n in 1..=100_000_u64 {
            let block = blocks[n as usize % blocks.len()];
            all.remove(block.addr());
            move_to(&all, block, n << 12);
            assert!(std::ptr::eq(all.get(n << 12).unwrap(), block));
            tables.insert(std::ptr::from_ref(all.table()) as usize);
        }
        assert_eq!((tables.len(), all.all().len()), (2, blocks.len()));
    }

    #[test]
    fn what_stays_is_found_while_tables_are_replaced() {
        let all = Blocks::new();
        let block = |addr: u64| {
            let block: &'static Block = Box::leak(Box::default());
            move_to(&all, block, addr);
            block
        };
        let stay: Vec<&'static Block> = (1..100).map(|n| block(n << 20)).collect();
        let moves = block(512);
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while done.load(Relaxed) == 0 {
                        for block in &stay {
                            let found = all.get(block.addr());
                            assert!(found.is_some_and(|found| std::ptr::eq(found, *block)));
                        }
                    }
                });
            }
            for n in 1..300_000_u64 {
                all.remove(moves.addr());
                move_to(&all, moves, n * 1536 + (1 << 40));
            }
            done.store(1, Relaxed);
        });
        assert!(all.replaced.load(Relaxed) > 100);
    }

    #[test]
    fn a_block_object_is_used_again() {
        let all = Blocks::new();
        let [one, other] = [(); 2].map(|()| all.spare());
        assert!(!std::ptr::eq(one, other));
        one.set(State::Live);
        all.forget(one);
        assert!(one.is(State::Gone) && std::ptr::eq(all.spare(), one) && !std::ptr::eq(all.spare(), one));
    }
}
