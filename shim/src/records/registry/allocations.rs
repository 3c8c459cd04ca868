//! A live allocation's entry.

use gpumem_wire::kinds::{AllocKind, Space};
use gpumem_wire::layout::ContextRef;
use gpumem_wire::location::Tally;

/// An allocation's data that a free needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub kind: AllocKind,
    /// The sum that its bytes belong to.
    pub(crate) space: Space,
    pub context: ContextRef,
    pub bytes: u64,
}

impl Entry {
    /// Returns the counters for it.
    pub(crate) fn tally(&self) -> Tally {
        Tally::of(self.kind, self.space)
    }

    /// True if it ends with a context. Virtual memory and what is mapped there belong to the device.
    pub(crate) fn ends_with(&self, context: ContextRef) -> bool {
        use AllocKind::*;
        let stays = matches!(self.kind, VmmPhysical | VmmMapping | VmmReservation | VmmImport | Multicast | Reported);
        self.context == context && !stays
    }
}
