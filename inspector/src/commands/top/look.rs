//! Result of one look: plain data, passed from the reading thread to the drawing one.

use crate::model::{allocs, graphs};
use crate::view::table::Sheet;
use gpumem_wire::layout::StackRef;
use std::path::PathBuf;
use std::time::Duration;

/// A tab, in their order on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(super) enum Tab {
    #[default]
    Overview,
    Allocations,
    Graphs,
    Events,
}

/// Request for a look.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ask {
    /// The ledger of a process; `None`: all processes.
    pub whom: Option<PathBuf>,
    pub tab: Tab,
    pub by: allocs::By,
    pub graphs_by: graphs::By,
    /// The row shown in detail.
    pub detail: Option<String>,
    pub interval: Duration,
    pub paused: bool,
}

/// One look.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// The request.
    pub ask: Ask,
    /// Painted lines that the command prints above its rows.
    pub lines: Vec<String>,
    /// Totals over time.
    pub totals: Sheet,
    pub list: List,
    /// All about the row shown in detail.
    pub detail: Option<Vec<String>>,
    /// Number of addresses without a name yet.
    pub unnamed: usize,
    /// Time from this look to the next.
    pub pace: Duration,
}

/// The rows to choose from, which can be sorted and filtered.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub sheet: Sheet,
    /// The identity of each row.
    pub keys: Vec<RowKey>,
    /// The grouping, if it can be chosen.
    pub by: String,
    /// Number of further rows.
    pub left_out: usize,
    /// Text if there are no rows.
    pub empty: &'static str,
}

/// Identity of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct RowKey {
    /// Identifies the row in any order.
    pub id: String,
    /// The call stack behind it.
    pub stack: StackRef,
    /// For a process: its ledger.
    pub ledger: Option<PathBuf>,
}
