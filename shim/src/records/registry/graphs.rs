//! Entries of live graphs and execs.

use gpumem_wire::layout::ContextRef;

/// Data to find a graph's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphEntry {
    pub slot: u32,
    pub serial: u64,
}

/// Data to find an exec's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecEntry {
    pub slot: u32,
    pub context: ContextRef,
}
