//! The allocations that live execs refer to. Execs that refer to the same ones share one set.

use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, ContextRef, StackRef};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// In a serial: see [`ReferredBlock::of_stranger`].
const STRANGER: u64 = 1 << 63;

/// Maximum number of references in all sets. Execs beyond it are not judged.
const MOST_REFERENCES: usize = 1 << 18;

/// An allocation that an exec refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReferredBlock {
    pub addr: u64,
    pub bytes: u64,
    pub serial: u64,
    /// Slot of its record.
    pub slot: u32,
    pub stack: StackRef,
    pub context: ContextRef,
    /// `None`: the allocation is live.
    pub gone: Option<Gone>,
    /// Number of sets that hold it.
    sets: u32,
}

/// The allocation was freed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gone {
    /// Number of allocations that its call site had made at the last count.
    pub made: Option<u64>,
    /// Time since which it has been gone without a break: its call site made no other one since then.
    pub since_ns: Option<u64>,
}

impl ReferredBlock {
    fn of(slot: u32, alloc: &AllocSlot) -> Self {
        let AllocSlot { addr, bytes, serial, stack, context, .. } = *alloc;
        Self { addr, bytes, serial, slot, stack, context, gone: None, sets: 0 }
    }

    /// Creates a block for memory that was freed before its exec was read: the live allocation that lies there now came
    /// after the exec, and from another call site. Such a block counts as gone, and only this allocation as its next
    /// owner.
    fn of_stranger(slot: u32, alloc: &AllocSlot) -> Self {
        let serial = alloc.serial | STRANGER;
        Self { serial, stack: 0, gone: Some(Gone::default()), ..Self::of(slot, alloc) }
    }

    /// True if only the memory's present owner is known.
    pub(super) fn is_strangers(&self) -> bool {
        self.serial & STRANGER != 0
    }

    /// True if this allocation may be reported as the next owner.
    pub(super) fn may_be_owned_by(&self, alloc: &AllocSlot) -> bool {
        !self.is_strangers() || self.serial == alloc.serial | STRANGER
    }

    /// True if this allocation has the block's address, size and call site, as far as call sites are known. A program
    /// that frees and allocates a buffer in each step gets the same memory natively, too.
    pub(super) fn is_made_again_by(&self, alloc: &AllocSlot) -> bool {
        let is_same_site = alloc.stack == self.stack || alloc.stack == 0 || self.stack == 0;
        !self.is_strangers() && is_same_site && (alloc.addr, alloc.bytes) == (self.addr, self.bytes)
    }
}

/// True if an allocation is device memory that a graph may refer to by address.
pub(super) fn is_device_memory(alloc: &AllocSlot) -> bool {
    let has_address =
        [AllocKind::Device, AllocKind::Pitch, AllocKind::Async].iter().any(|&kind| alloc.kind == kind as u8);
    has_address && alloc.location().is_device()
}

/// An exec's references, by the places of the blocks.
struct BlockSet {
    blocks: Rc<[u32]>,
    execs: u32,
}

/// An allocation that an exec refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Referred {
    /// Slot of its record.
    pub slot: u32,
    pub alloc: AllocSlot,
    /// True if it came after the exec, and from another call site than the exec's original memory.
    pub is_stranger: bool,
}

/// The place of a set.
pub(super) type SetRef = u32;

/// All sets and their blocks.
#[derive(Default)]
pub(super) struct Index {
    blocks: Vec<Option<ReferredBlock>>,
    unused_blocks: Vec<u32>,
    by_serial: FxHashMap<u64, u32>,
    sets: Vec<Option<BlockSet>>,
    unused_sets: Vec<u32>,
    by_blocks: FxHashMap<Rc<[u32]>, SetRef>,
    references: usize,
}

/// Puts a value into an unused place, or behind the last one.
fn put<T>(all: &mut Vec<Option<T>>, unused: &mut Vec<u32>, value: T) -> u32 {
    match unused.pop() {
        Some(at) => {
            all[at as usize] = Some(value);
            at
        }
        None => {
            all.push(Some(value));
            all.len() as u32 - 1
        }
    }
}

impl Index {
    /// Returns the set of these allocations, for one more exec. `None` if there are none, or no room for the set.
    pub(super) fn set_of(&mut self, allocs: &[Referred]) -> Option<SetRef> {
        if self.references + allocs.len() > MOST_REFERENCES {
            return None;
        }
        let place_of = |Referred { slot, alloc, is_stranger }: &Referred| {
            let block =
                if *is_stranger { ReferredBlock::of_stranger(*slot, alloc) } else { ReferredBlock::of(*slot, alloc) };
            let new = || put(&mut self.blocks, &mut self.unused_blocks, block);
            *self.by_serial.entry(block.serial).or_insert_with(new)
        };
        let mut blocks: Vec<u32> = allocs.iter().map(place_of).collect();
        blocks.sort_unstable();
        blocks.dedup();
        self.share(blocks)
    }

    /// Returns the set of these blocks, for one more exec.
    fn share(&mut self, blocks: Vec<u32>) -> Option<SetRef> {
        if blocks.is_empty() {
            return None;
        }
        if let Some(&known) = self.by_blocks.get(blocks.as_slice()) {
            if let Some(set) = &mut self.sets[known as usize] {
                set.execs += 1;
            }
            return Some(known);
        }
        for &at in &blocks {
            if let Some(block) = &mut self.blocks[at as usize] {
                block.sets += 1;
            }
        }
        self.references += blocks.len();
        let blocks: Rc<[u32]> = blocks.into();
        let set = put(&mut self.sets, &mut self.unused_sets, BlockSet { blocks: blocks.clone(), execs: 1 });
        self.by_blocks.insert(blocks, set);
        Some(set)
    }

    /// Releases an exec's hold on this set. The last release removes the set and its blocks.
    pub(super) fn release(&mut self, set: SetRef) {
        let Some(its) = self.sets.get_mut(set as usize).and_then(Option::as_mut) else { return };
        its.execs -= 1;
        if its.execs > 0 {
            return;
        }
        let Some(BlockSet { blocks, .. }) = self.sets[set as usize].take() else { return };
        self.unused_sets.push(set);
        self.by_blocks.remove(&blocks);
        self.references -= blocks.len();
        for &at in blocks.iter() {
            let Some(block) = &mut self.blocks[at as usize] else { continue };
            block.sets -= 1;
            if block.sets == 0 {
                let serial = block.serial;
                self.blocks[at as usize] = None;
                self.unused_blocks.push(at);
                self.forget_serial(serial, at);
            }
        }
    }

    fn forget_serial(&mut self, serial: u64, at: u32) {
        if self.by_serial.get(&serial) == Some(&at) {
            self.by_serial.remove(&serial);
        }
    }

    /// Removes blocks from an exec's references. Returns its new set.
    pub(super) fn without(&mut self, set: SetRef, blocks: &[u32]) -> Option<SetRef> {
        let all = self.blocks_of(set);
        let left = self.share(all.iter().copied().filter(|at| !blocks.contains(at)).collect());
        self.release(set);
        left
    }

    /// Returns the places of a set's blocks.
    pub(super) fn blocks_of(&self, set: SetRef) -> Rc<[u32]> {
        let its = self.sets.get(set as usize).and_then(Option::as_ref);
        its.map_or_else(|| Rc::from([]), |set| set.blocks.clone())
    }

    pub(super) fn block(&self, at: u32) -> Option<&ReferredBlock> {
        self.blocks.get(at as usize)?.as_ref()
    }

    /// Returns all blocks, with their places.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u32, &ReferredBlock)> {
        (0..).zip(&self.blocks).filter_map(|(at, block)| Some((at, block.as_ref()?)))
    }

    pub(super) fn blocks_mut(&mut self) -> impl Iterator<Item = (u32, &mut ReferredBlock)> {
        (0..).zip(&mut self.blocks).filter_map(|(at, block)| Some((at, block.as_mut()?)))
    }

    /// Replaces a block that was made again: the execs now refer to the new allocation.
    pub(super) fn made_again(&mut self, at: u32, slot: u32, alloc: &AllocSlot) {
        let Some(block) = self.blocks.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let before = block.serial;
        *block = ReferredBlock { sets: block.sets, ..ReferredBlock::of(slot, alloc) };
        self.forget_serial(before, at);
        self.by_serial.entry(alloc.serial).or_insert(at);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let maps = self.by_serial.is_empty() && self.by_blocks.is_empty() && self.references == 0;
        maps && self.blocks.iter().all(Option::is_none) && self.sets.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(serial: u64, addr: u64) -> Referred {
        let alloc = AllocSlot { serial, addr, bytes: 4096, stack: 7, ..Default::default() };
        Referred { slot: serial as u32 + 100, alloc, is_stranger: false }
    }

    #[test]
    fn execs_of_the_same_memory_share_a_set() {
        let mut index = Index::default();
        let (a, b, c) = (alloc(1, 0x1000), alloc(2, 0x2000), alloc(3, 0x3000));
        let first = index.set_of(&[a, b, a]).unwrap();
        assert_eq!(index.set_of(&[b, a]), Some(first), "whatever the order");
        let other = index.set_of(&[b, c]).unwrap();
        assert_ne!(other, first);
        assert_eq!((index.blocks().count(), index.set_of(&[])), (3, None));
        index.release(first);
        assert_eq!(index.blocks().count(), 3, "another exec has the set");
        index.release(first);
        assert_eq!(index.blocks().map(|(_, block)| block.serial).collect::<Vec<_>>(), [2, 3]);
        index.release(other);
        assert!(index.is_empty());
    }

    #[test]
    fn a_block_is_taken_out_for_one_exec() {
        let mut index = Index::default();
        let (a, b) = (alloc(1, 0x1000), alloc(2, 0x2000));
        let both = index.set_of(&[a, b]).unwrap();
        assert_eq!(index.set_of(&[a, b]), Some(both));
        let place = index.blocks().find(|(_, block)| block.serial == 1).unwrap().0;
        let left = index.without(both, &[place]).unwrap();
        assert_eq!((index.blocks_of(left).len(), index.blocks_of(both).len()), (1, 2));
        assert_eq!(index.without(both, &index.blocks_of(both)), None);
        index.release(left);
        assert!(index.is_empty());
    }

    #[test]
    fn a_block_that_was_made_again_is_found_by_its_new_serial() {
        let mut index = Index::default();
        let set = index.set_of(&[alloc(1, 0x1000)]).unwrap();
        let again = alloc(9, 0x1000);
        let block = index.block(0).unwrap();
        assert!(block.is_made_again_by(&again.alloc));
        assert!(block.is_made_again_by(&AllocSlot { stack: 0, ..again.alloc }), "no stack was taken");
        assert!(!block.is_made_again_by(&AllocSlot { stack: 8, ..again.alloc }));
        assert!(!block.is_made_again_by(&AllocSlot { bytes: 4095, ..again.alloc }));
        index.made_again(0, again.slot, &again.alloc);
        assert_eq!(index.set_of(&[again]), Some(set));
        index.release(set);
        index.release(set);
        assert!(index.is_empty());
    }

    #[test]
    fn a_stranger_is_not_what_others_refer_to() {
        let mut index = Index::default();
        let (its, other) = (alloc(1, 0x1000), alloc(2, 0x1000));
        let set = index.set_of(&[its]).unwrap();
        let strangers = index.set_of(&[Referred { is_stranger: true, ..its }]).unwrap();
        assert_ne!(set, strangers);
        let block = index.block(index.blocks_of(strangers)[0]).unwrap();
        assert!(block.gone.is_some() && block.is_strangers() && !block.is_made_again_by(&its.alloc));
        assert!(block.may_be_owned_by(&its.alloc) && !block.may_be_owned_by(&other.alloc));
        assert!(index.block(index.blocks_of(set)[0]).unwrap().may_be_owned_by(&other.alloc));
    }

    #[test]
    fn there_is_a_bound() {
        let mut index = Index::default();
        let many: Vec<_> = (0..MOST_REFERENCES as u64).map(|serial| alloc(serial, serial << 12)).collect();
        let all = index.set_of(&many).unwrap();
        assert_eq!(index.set_of(&[alloc(1 << 30, 0)]), None);
        index.release(all);
        assert!(index.set_of(&[alloc(1 << 30, 0)]).is_some());
    }
}
