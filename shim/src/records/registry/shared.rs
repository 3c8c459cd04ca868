//! Which rows of the ledger's table Shared are taken, and for what. What happens to them is in [`crate::records::shared`].

use gpumem_wire::kinds::SharedKind;
use gpumem_wire::layout::ContextRef;
use std::collections::HashMap;
use std::sync::Mutex;

/// A row that is taken.
pub(crate) struct Row {
    /// Its place in the table Shared.
    pub(crate) place: u32,
    pub(crate) kind: SharedKind,
    pub(crate) hash: [u8; 16],
    pub(crate) addr: u64,
    pub(crate) context: ContextRef,
    /// The place of the allocation's record, and the record's serial: after the end of the allocation the place is free,
    /// or has another serial.
    pub(crate) record: u32,
    pub(crate) serial: u64,
}

/// Programs share memory as rarely as they make processes, so one lock will do; it is never held over a call of the driver.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) inner: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// The oldest one first.
    pub(crate) rows: Vec<Row>,
    /// How often memory is open beyond once, by its address.
    pub(crate) opens: HashMap<u64, u32>,
}
