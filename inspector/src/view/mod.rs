//! How things are shown: tables, units, colours, JSON. Nothing here knows what a ledger is.

pub mod json;
pub mod lazy;
pub mod out;
pub mod table;
pub mod text;
pub mod units;
