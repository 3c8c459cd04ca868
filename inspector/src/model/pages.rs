//! Bytes that the driver takes beyond what was asked for, because it gives device memory in pages.

use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::AllocSlot;
use std::collections::BTreeSet;

/// The driver gives memory in pages of this size. A smaller request goes into the first page with room for it
/// (docs/decisions/drivers.md).
pub(super) const PAGE: u64 = 2 << 20;

/// Use of pages by live allocations.
#[derive(Default)]
pub(super) struct Pages {
    /// Pages that smaller allocations lie in, and the bytes of these.
    shared: BTreeSet<u64>,
    in_shared: u64,
    /// Bytes of smaller allocations whose record has a handle in place of an address.
    of_handles: u64,
    /// Bytes that allocations of whole pages leave of their last one.
    in_last: u64,
}

impl Pages {
    /// Adds an allocation in device memory.
    pub(super) fn add(&mut self, alloc: &AllocSlot) {
        let (sum, bytes) = match AllocKind::from_u8(alloc.kind) {
            // Lies in pages that the driver takes for many, and has a number for.
            Some(AllocKind::Async | AllocKind::GraphLeft) => return,
            _ if alloc.bytes >= PAGE => (&mut self.in_last, alloc.bytes.wrapping_neg() % PAGE),
            Some(AllocKind::Device | AllocKind::Pitch) => {
                self.shared.insert(alloc.addr / PAGE);
                (&mut self.in_shared, alloc.bytes)
            }
            _ => (&mut self.of_handles, alloc.bytes),
        };
        *sum = sum.saturating_add(bytes);
    }

    /// Returns the bytes of the pages that no allocation was asked for with. Idle blocks of the pool may lie there.
    pub(super) fn rounding(&self) -> u64 {
        let shared = (self.shared.len() as u64 * PAGE).saturating_sub(self.in_shared);
        self.in_last.saturating_add(shared).saturating_add(self.of_handles.wrapping_neg() % PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As measured: `cuMemGetInfo` fell by this much after allocations at these addresses.
    #[test]
    fn allocations_take_the_pages_that_they_lie_in() {
        const MIB: u64 = 1 << 20;
        let taken = |allocs: &[(u64, u64)]| {
            let mut pages = Pages::default();
            let kind = AllocKind::Device as u8;
            allocs.iter().for_each(|&(addr, bytes)| pages.add(&AllocSlot { addr, bytes, kind, ..Default::default() }));
            allocs.iter().map(|(_, bytes)| bytes).sum::<u64>() + pages.rounding()
        };
        let page = |n: u64| 0x7f75_1480_0000 + n * PAGE;
        assert_eq!(taken(&[(page(0), MIB), (page(0) + MIB, MIB), (page(1), MIB)]), 4 * MIB);
        assert_eq!(taken(&[(page(0), MIB + 1), (page(1), MIB + 1)]), 4 * MIB);
        assert_eq!(taken(&[(page(0), MIB * 3 / 2), (page(0) + MIB * 3 / 2, MIB / 2)]), 2 * MIB);
        assert_eq!(taken(&[(page(0), 2 * MIB + 1), (page(2), 3 * MIB), (page(4), 2 * MIB)]), 10 * MIB);
    }
}
