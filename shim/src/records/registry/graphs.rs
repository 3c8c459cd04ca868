//! What is known of a live graph and of an executable one.

use gpumem_wire::layout::ContextRef;

/// What is needed to find a graph's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphEntry {
    pub slot: u32,
    pub serial: u64,
}

/// What is needed to find an exec's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecEntry {
    pub slot: u32,
    pub context: ContextRef,
}
