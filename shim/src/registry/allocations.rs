//! What is known of a live allocation.

use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::ContextRef;

/// What a free needs to know of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub kind: AllocKind,
    pub context: ContextRef,
    pub bytes: u64,
}

impl Entry {
    /// Whether it ends with a context. Virtual memory and what is mapped there belong to the device.
    pub(crate) fn ends_with(&self, context: ContextRef) -> bool {
        use AllocKind::*;
        let stays = matches!(self.kind, VmmPhysical | VmmMapping | VmmReservation | VmmImport | Multicast | Reported);
        self.context == context && !stays
    }
}
