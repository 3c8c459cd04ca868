//! What is known of a live allocation.

use gpumem_wire::kinds::{AllocKind, Space};
use gpumem_wire::layout::ContextRef;
use gpumem_wire::location::Tally;

/// What a free needs to know of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub kind: AllocKind,
    /// Which sum its bytes are in.
    pub(crate) space: Space,
    pub context: ContextRef,
    pub bytes: u64,
}

impl Entry {
    /// What it is counted with.
    pub(crate) fn tally(&self) -> Tally {
        Tally::of(self.kind, self.space)
    }

    /// Whether it ends with a context. Virtual memory and what is mapped there belong to the device.
    pub(crate) fn ends_with(&self, context: ContextRef) -> bool {
        use AllocKind::*;
        let stays = matches!(self.kind, VmmPhysical | VmmMapping | VmmReservation | VmmImport | Multicast | Reported);
        self.context == context && !stays
    }
}
