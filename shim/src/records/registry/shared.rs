//! Rows of the ledger's table Shared in use, and their allocations. [`crate::records::shared`] changes them.

use gpumem_wire::kinds::SharedKind;
use gpumem_wire::layout::ContextRef;
use std::collections::HashMap;

/// A row in use.
pub(crate) struct Row {
    /// Its place in the table Shared.
    pub(crate) place: u32,
    pub(crate) kind: SharedKind,
    pub(crate) hash: [u8; 16],
    pub(crate) addr: u64,
    pub(crate) context: ContextRef,
    /// The place of the allocation's record, and the record's serial: after the end of the allocation the place is
    /// free, or has another serial.
    pub(crate) record: u32,
    pub(crate) serial: u64,
}

/// Programs share memory as rarely as they make processes, so one lock suffices; it is never held over a driver call.
#[derive(Default)]
pub(crate) struct Shared {
    /// Rows, the oldest first.
    pub(crate) rows: Vec<Row>,
    /// Number of opens beyond the first, by address.
    pub(crate) opens: HashMap<u64, u32>,
}
