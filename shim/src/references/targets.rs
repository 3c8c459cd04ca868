//! What words may refer to: live allocations, found by an address inside of them.

use crate::shim::Shim;
use gpumem_wire::kinds::AllocKind;

/// Bits of the filter: one for all addresses whose [`BLOCK`] has this number, modulo.
const BITS: u64 = 1 << 17;
/// Bytes that one bit of the filter stands for.
const BLOCK: u64 = 2 << 20;

/// Allocations by address.
pub struct Targets {
    /// Beginning, end and number of the record of each, by their beginning.
    all: Vec<(u64, u64, u64)>,
    /// How many of them are device memory.
    on_device: usize,
    low: u64,
    /// From `low` to behind the last one.
    span: u64,
    /// Most words are nobody's address: nearly all of them end here.
    filter: Box<[u64]>,
}

impl Targets {
    /// What is live now, of memory that has an address of its own.
    pub fn of(shim: &Shim) -> Self {
        let (mut all, mut on_device) = (Vec::new(), 0);
        shim.ledger.allocs.each(|slot| {
            let end = slot.addr.saturating_add(slot.bytes);
            if AllocKind::from_u8(slot.kind).is_some_and(is_looked_for) && slot.addr != 0 && slot.addr < end {
                all.push((slot.addr, end, slot.serial));
                on_device += usize::from(slot.kind != AllocKind::HostPinned as u8);
            }
        });
        Self { on_device, ..Self::new(all) }
    }

    /// Beginning, end and number of each.
    pub fn new(mut all: Vec<(u64, u64, u64)>) -> Self {
        all.sort_unstable();
        // An address that was given out again while the table was read.
        all.dedup_by_key(|target| target.0);
        let low = all.first().map_or(0, |first| first.0);
        let high = all.iter().map(|target| target.1).max().unwrap_or(0);
        let mut filter = vec![0; BITS as usize / 64].into_boxed_slice();
        for &(start, end, _) in &all {
            for block in (start / BLOCK..=(end - 1) / BLOCK).take(BITS as usize) {
                let bit = block % BITS;
                filter[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        }
        Self { on_device: all.len(), all, low, span: high - low, filter }
    }

    /// How many of them are device memory, or managed.
    pub fn on_device(&self) -> usize {
        self.on_device
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Where one begins, and its bytes.
    pub fn range(&self, index: usize) -> (u64, u64) {
        let (start, end, _) = self.all[index];
        (start, end - start)
    }

    /// As they were given, in the order of their addresses.
    pub fn all(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.all.iter().copied()
    }

    /// The numbers of their records, in their order.
    pub fn serials(&self) -> impl Iterator<Item = u64> {
        self.all.iter().map(|target| target.2)
    }

    /// The index of the one that an address lies in. The address behind its last byte does not.
    #[inline(always)]
    pub fn find(&self, word: u64) -> Option<usize> {
        if word.wrapping_sub(self.low) >= self.span {
            return None;
        }
        self.search(word)
    }

    #[inline(never)]
    fn search(&self, word: u64) -> Option<usize> {
        let bit = word / BLOCK % BITS;
        if self.filter[(bit / 64) as usize] & 1 << (bit % 64) == 0 {
            return None;
        }
        let index = self.all.partition_point(|target| target.0 <= word).checked_sub(1)?;
        (word < self.all[index].1).then_some(index)
    }
}

/// Handles of what has no address are not told from other words, and addresses without memory hold none.
fn is_looked_for(kind: AllocKind) -> bool {
    matches!(kind, AllocKind::Device | AllocKind::Pitch | AllocKind::Async | AllocKind::Managed | AllocKind::HostPinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_inside_is_found_and_its_end_is_not() {
        let base = 0x7f00_0000_0000;
        // One behind the other, small ones and one of many blocks, and one far away.
        let ranges = [(base, 512), (base + 512, 100), (base + 0x40_0000, 64 << 20), (base + (1 << 40), 4096)];
        let mut all: Vec<_> = ranges.iter().zip(1..).map(|(&(at, bytes), serial)| (at, at + bytes, serial)).collect();
        all.reverse();
        let targets = Targets::new(all);
        assert_eq!(targets.serials().collect::<Vec<_>>(), [1, 2, 3, 4]);
        for (index, (at, bytes)) in ranges.into_iter().enumerate() {
            for inside in [at, at + 1, at + bytes / 2, at + bytes - 1] {
                assert_eq!(targets.find(inside), Some(index), "{inside:#x}");
            }
            assert_ne!(targets.find(at + bytes), Some(index));
        }
        for outside in [0, base - 1, base + 612, base + (1 << 40) + 4096, base + (1 << 39), u64::MAX] {
            assert_eq!(targets.find(outside), None, "{outside:#x}");
        }
        assert_eq!(Targets::new(Vec::new()).find(0), None);
    }
}
