//! Words of sources, and the live allocations that they are addresses of.

use super::index::{ReferredBlock, is_device_memory};
use crate::ledger::Ledger;
use gpumem_wire::layout::AllocSlot;
use rustc_hash::{FxHashMap, FxHashSet};

/// Range of addresses. Smaller or larger words are not addresses.
const ADDRESSES: std::ops::Range<u64> = 0x1_0000..1 << 56;

/// Larger nodes are left out: kernels with more than 256 bytes of parameters. Tables of addresses are passed in place,
/// and the part that a program does not fill has old contents (PyTorch's `cat` and its optimizers).
const MOST_BYTES: usize = 56 + 256;

/// A word of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SourceWord {
    word: u64,
    /// Number of its source.
    of: u32,
    /// The node.
    record: u32,
}

/// Words of the sources of several execs.
#[derive(Default)]
pub(super) struct SourceWords {
    words: Vec<SourceWord>,
}

/// An allocation that a source has an address of.
#[derive(Clone, Copy, Debug)]
struct Hit {
    of: u32,
    record: u32,
    /// The allocation's place among the found ones.
    alloc: u32,
    /// True if the word is the allocation's first address.
    is_start: bool,
}

/// Matches of the live allocations with words and blocks.
#[derive(Default)]
pub(super) struct FoundMemory {
    allocs: Vec<(u32, AllocSlot)>,
    hits: Vec<Hit>,
    /// For the place of a freed block: the allocation that lies there now, and its record's slot. An allocation that is
    /// the block made again comes before others.
    pub owners: FxHashMap<u32, (u32, AllocSlot)>,
}

impl SourceWords {
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Adds the words of one node. Parameters of 8 bytes lie at multiples of 8 in a record.
    pub(super) fn add(&mut self, of: u32, record: u32, bytes: &[u8]) {
        if bytes.len() > MOST_BYTES {
            return;
        }
        let words = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        self.words.extend(words.filter(|word| ADDRESSES.contains(word)).map(|word| SourceWord { word, of, record }));
    }

    /// Searches all live allocations once. `gone` are freed blocks, with their places.
    pub(super) fn find(mut self, ledger: &Ledger, mut gone: Vec<(u32, ReferredBlock)>) -> FoundMemory {
        self.words.sort_unstable();
        self.words.dedup();
        gone.sort_unstable_by_key(|(_, block)| block.addr);
        let longest = gone.iter().map(|(_, block)| block.bytes).max().unwrap_or(0);
        let mut found = FoundMemory::default();
        ledger.allocs.each_slot(|slot, alloc| {
            if is_device_memory(alloc) {
                self.match_words(slot, alloc, &mut found);
                match_blocks(slot, alloc, &gone, longest, &mut found);
            }
        });
        found.without_ends();
        found
    }

    fn match_words(&self, slot: u32, alloc: &AllocSlot, found: &mut FoundMemory) {
        let end = alloc.addr.saturating_add(alloc.bytes);
        let first = self.words.partition_point(|word| word.word < alloc.addr);
        let within = self.words[first..].iter().take_while(|word| word.word < end);
        let (before, number) = (found.hits.len(), found.allocs.len() as u32);
        found.hits.extend(within.map(|&SourceWord { word, of, record }| Hit {
            of,
            record,
            alloc: number,
            is_start: word == alloc.addr,
        }));
        if found.hits.len() > before {
            found.allocs.push((slot, *alloc));
        }
    }
}

/// Notes, for each freed block, that this allocation now lies at its place.
fn match_blocks(slot: u32, alloc: &AllocSlot, gone: &[(u32, ReferredBlock)], longest: u64, found: &mut FoundMemory) {
    let end = alloc.addr.saturating_add(alloc.bytes);
    let behind = gone.partition_point(|(_, block)| block.addr < end);
    let near = gone[..behind].iter().rev().take_while(|(_, block)| block.addr.saturating_add(longest) > alloc.addr);
    for (at, block) in near.filter(|(_, block)| block.addr.saturating_add(block.bytes) > alloc.addr) {
        // The record was not whole when the block was checked, or it is another allocation than the one that counts.
        if alloc.serial == block.serial || !block.may_be_owned_by(alloc) {
            continue;
        }
        let owner = found.owners.entry(*at).or_insert((slot, *alloc));
        if block.is_made_again_by(alloc) {
            *owner = (slot, *alloc);
        }
    }
}

impl FoundMemory {
    /// Removes hits that may be the end of one allocation or the start of the next: programs pass kernels the end of a
    /// buffer.
    fn without_ends(&mut self) {
        let end_of = |hit: &Hit| {
            let (_, alloc) = self.allocs[hit.alloc as usize];
            (hit.of, hit.record, alloc.addr.saturating_add(alloc.bytes))
        };
        let ends: FxHashSet<(u32, u32, u64)> = self.hits.iter().map(end_of).collect();
        let allocs = &self.allocs;
        self.hits
            .retain(|hit| !hit.is_start || !ends.contains(&(hit.of, hit.record, allocs[hit.alloc as usize].1.addr)));
        self.hits.sort_unstable_by_key(|hit| (hit.of, hit.alloc));
        self.hits.dedup_by_key(|hit| (hit.of, hit.alloc));
    }

    /// Returns the allocations that the source of this number has addresses of.
    pub(super) fn of(&self, of: u32) -> impl Iterator<Item = &(u32, AllocSlot)> {
        let first = self.hits.partition_point(|hit| hit.of < of);
        self.hits[first..].iter().take_while(move |hit| hit.of == of).map(|hit| &self.allocs[hit.alloc as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::Referred;
    use super::*;

    const BYTES: u64 = 0x1000;

    fn alloc(serial: u64) -> AllocSlot {
        let kind = gpumem_wire::kinds::AllocKind::Device as u8;
        AllocSlot { serial, addr: 0x7f00_0000_0000 + serial * BYTES, bytes: BYTES, kind, ..Default::default() }
    }

    /// Returns which of three adjacent allocations these nodes refer to. Their words are offsets from the first one's
    /// start.
    fn referred(nodes: &[&[u64]]) -> Vec<u64> {
        let (mut words, mut found) = (SourceWords::default(), FoundMemory::default());
        for (record, node) in nodes.iter().enumerate() {
            let bytes: Vec<u8> = node.iter().flat_map(|at| (alloc(0).addr + at).to_le_bytes()).collect();
            words.add(0, record as u32, &bytes);
        }
        words.words.sort_unstable();
        (0..3).for_each(|serial| words.match_words(serial as u32, &alloc(serial), &mut found));
        found.without_ends();
        assert_eq!(found.of(1).count(), 0);
        found.of(0).map(|(_, alloc)| alloc.serial).collect()
    }

    #[test]
    fn the_end_of_a_buffer_is_not_the_start_of_the_next() {
        assert_eq!(referred(&[&[0]]), [0]);
        assert_eq!(referred(&[&[BYTES]]), [1]);
        assert_eq!(referred(&[&[0, BYTES]]), [0], "a buffer and its end");
        assert_eq!(referred(&[&[0, BYTES + 8]]), [0, 1], "inside of the next one");
        assert_eq!(referred(&[&[0, BYTES], &[BYTES]]), [0, 1], "another node has it alone");
        assert_eq!(referred(&[&[8, 2 * BYTES, 16]]), [0, 2]);
        assert_eq!(referred(&[&[3 * BYTES]]), [], "behind all");
    }

    #[test]
    fn a_node_that_may_have_a_table_of_addresses_is_left_out() {
        let table = [0; MOST_BYTES / 8 + 1];
        assert_eq!(referred(&[&table[1..]]), [0]);
        assert_eq!(referred(&[&table, &[BYTES]]), [1]);
    }

    #[test]
    fn the_next_owner_of_a_freed_block_is_found() {
        let mut index = super::super::index::Index::default();
        let (old, near) = (alloc(5), alloc(9));
        let referred = |alloc| Referred { slot: 0, alloc, is_stranger: false };
        index.set_of(&[referred(old), referred(near)]).unwrap();
        let gone: Vec<_> = index.blocks().map(|(at, block)| (at, *block)).collect();
        let owner_of = |allocs: &[AllocSlot]| {
            let mut found = FoundMemory::default();
            for (slot, alloc) in allocs.iter().enumerate() {
                match_blocks(slot as u32, alloc, &gone, BYTES, &mut found);
            }
            let mut owners: Vec<_> = found.owners.values().map(|(_, alloc)| alloc.serial).collect();
            owners.sort_unstable();
            owners
        };
        let part = AllocSlot { serial: 20, addr: old.addr + 512, bytes: 512, ..old };
        let whole = AllocSlot { serial: 21, addr: old.addr - BYTES, bytes: 8 * BYTES, ..old };
        let again = AllocSlot { serial: 22, ..old };
        assert_eq!(owner_of(&[part]), [20]);
        assert_eq!(owner_of(&[whole]), [21, 21], "of both");
        assert_eq!(owner_of(&[part, again]), [22], "the one that is made again comes first");
        assert_eq!(owner_of(&[again, part]), [22]);
        assert_eq!(owner_of(&[alloc(4), alloc(6), old]), [0; 0], "neighbours, and the block itself");
    }
}
