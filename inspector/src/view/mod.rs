//! Output: tables, units, colours, JSON, and the whole screen. Nothing here depends on ledgers.
//!
//! * [`screen`]: the whole screen of a terminal. [`painted`]: printed text on it. [`spark`]: lines of bars. [`plain`]:
//!   the terminal's abilities.
//! * [`table`]: a table of text. [`lazy`]: rows that are made when they are shown. [`json`], [`out`]: answers.

pub(crate) mod json;
pub(crate) mod lazy;
pub(crate) mod out;
pub(crate) mod page;
pub(crate) mod painted;
pub(crate) mod plain;
pub(crate) mod screen;
pub(crate) mod spark;
pub(crate) mod table;
