//! The targets that words may refer to: live allocations, found by any address inside of them.

use crate::pool;
use crate::shim::Shim;
use gpumem_wire::kinds::{AllocKind, Vendor};

/// Bits of the filter: one for all addresses whose [`BLOCK`] has this number, modulo.
const BITS: u64 = 1 << 17;
/// Bytes that one bit of the filter stands for.
const BLOCK: u64 = 2 << 20;

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub start: u64,
    pub end: u64,
    /// The number of its record.
    pub serial: u64,
    /// It is device memory, or managed.
    pub on_device: bool,
    /// Beginning of the driver's own memory, which the driver has records of. A block of the pool may be longer than
    /// the request.
    pub base: u64,
    pub bytes: u64,
}

impl Target {
    pub(super) fn new(start: u64, end: u64, serial: u64) -> Self {
        Self { start, end, serial, on_device: true, base: start, bytes: end - start }
    }
}

/// Allocations by address.
pub(super) struct Targets {
    /// By their beginning.
    all: Vec<Target>,
    /// Number of them that are device memory.
    on_device: usize,
    low: u64,
    /// Distance from `low` to behind the last one.
    span: u64,
    /// Most words are not addresses of a target. The filter rejects nearly all of them.
    filter: Box<[u64]>,
}

impl Targets {
    /// Returns the live allocations whose memory has an address of its own.
    pub(super) fn of(shim: &Shim) -> Self {
        let mut all = Vec::new();
        shim.ledger.allocs.each(|slot| {
            let end = slot.addr.saturating_add(slot.bytes);
            if AllocKind::from_u8(slot.kind).is_some_and(is_looked_for) && slot.addr != 0 && slot.addr < end {
                let mut target = Target::new(slot.addr, end, slot.serial);
                let block = pool::of(Vendor::Cuda).and_then(|pool| pool.releaser.blocks().get(slot.addr));
                if let Some(block) = block {
                    (target.base, target.bytes) = (block.base(), block.bytes());
                }
                target.on_device = slot.kind != AllocKind::HostPinned as u8;
                all.push(target);
            }
        });
        Self::new(all)
    }

    pub(super) fn new(mut all: Vec<Target>) -> Self {
        all.sort_unstable();
        // An address may have been given out again while the table was read.
        all.dedup_by_key(|target| target.start);
        let low = all.first().map_or(0, |first| first.start);
        let high = all.iter().map(|target| target.end).max().unwrap_or(0);
        let mut filter = vec![0; BITS as usize / 64].into_boxed_slice();
        for &Target { start, end, .. } in &all {
            for block in (start / BLOCK..=(end - 1) / BLOCK).take(BITS as usize) {
                let bit = block % BITS;
                filter[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        }
        let on_device = all.iter().filter(|target| target.on_device).count();
        Self { on_device, all, low, span: high - low, filter }
    }

    /// Returns the number of them that are device memory, or managed.
    pub(super) fn on_device(&self) -> usize {
        self.on_device
    }

    /// Returns all of them, sorted by beginning.
    pub(super) fn all(&self) -> &[Target] {
        &self.all
    }

    /// Returns the target whose driver memory ends at this address. The driver's record of it holds the address as
    /// well.
    pub(super) fn ends_at(&self, index: usize, address: u64) -> Option<usize> {
        let before = index.checked_sub(1)?;
        (self.all[before].base + self.all[before].bytes == address).then_some(before)
    }

    /// Returns the index of the target that an address lies in. The address behind the last byte is not inside.
    #[inline(always)]
    pub(super) fn find(&self, word: u64) -> Option<usize> {
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
        let index = self.all.partition_point(|target| target.start <= word).checked_sub(1)?;
        (word < self.all[index].end).then_some(index)
    }
}

/// True if words can refer to this kind. Handles without an address cannot be told from other words, and addresses
/// without memory hold none.
fn is_looked_for(kind: AllocKind) -> bool {
    matches!(kind, AllocKind::Device | AllocKind::Pitch | AllocKind::Async | AllocKind::Managed | AllocKind::HostPinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_inside_is_found_and_its_end_is_not() {
        let base = 0x7f00_0000_0000;
        // Adjacent ones, small ones and one of many blocks, and one far away.
        let ranges = [(base, 512), (base + 512, 100), (base + 0x40_0000, 64 << 20), (base + (1 << 40), 4096)];
        let target = |(&(at, bytes), serial): (&(u64, u64), u64)| Target::new(at, at + bytes, serial);
        let mut all: Vec<_> = ranges.iter().zip(1..).map(target).collect();
        all.reverse();
        let targets = Targets::new(all);
        assert!(targets.all().iter().map(|target| target.serial).eq([1, 2, 3, 4]));
        assert_eq!((targets.ends_at(1, base + 512), targets.ends_at(2, base + 612)), (Some(0), Some(1)));
        assert_eq!((targets.ends_at(0, base), targets.ends_at(1, base)), (None, None));
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
