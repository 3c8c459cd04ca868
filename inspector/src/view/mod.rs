//! How things are shown: tables, units, colours, JSON. Nothing here knows what a ledger is.

pub(crate) mod json;
pub(crate) mod lazy;
pub(crate) mod out;
pub(crate) mod page;
pub(crate) mod table;
