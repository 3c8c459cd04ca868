//! Result of one look: plain data, passed from the reading thread to the drawing one.

use crate::model::allocs;
use crate::model::graphs;
use crate::view::grid::Kind;
use ratatui::style::{Color, Modifier, Style};
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
    Pool,
    Events,
}

/// Request for a look.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    /// The ledger of a process; `None`: all processes.
    pub whom: Option<PathBuf>,
    pub tab: Tab,
    pub by: allocs::By,
    pub graphs_by: graphs::By,
    /// The row shown in detail.
    pub detail: Option<String>,
    /// Number of the baseline for differences. 0: no differences.
    pub baseline: u64,
    pub interval: Duration,
    pub paused: bool,
}

/// One look.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// The request.
    pub ask: Ask,
    pub head: Head,
    /// Warnings that a reader needs before the numbers.
    pub warnings: Vec<String>,
    /// Lines of text above the tables.
    pub lines: Vec<String>,
    /// Numbers, each with its value over time and its rate.
    pub numbers: Sheet,
    /// The list, which can be sorted and filtered.
    pub list: Sheet,
    /// Lines about the row shown in detail.
    pub detail: Option<Vec<String>>,
    /// Number of addresses without a name yet.
    pub unnamed: usize,
    /// Time from this look to the next.
    pub pace: Duration,
}

impl Look {
    /// Returns a look without lines and tables.
    pub(super) fn new(ask: &Ask, head: Head, warnings: Vec<String>) -> Self {
        Self {
            ask: ask.clone(),
            head,
            warnings,
            lines: Vec::new(),
            numbers: Sheet::default(),
            list: Sheet::default(),
            detail: None,
            unnamed: 0,
            pace: Duration::ZERO,
        }
    }
}

/// The process, or all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Head {
    /// Empty: all processes.
    pub name: String,
    pub pid: u32,
    /// "recorded for 3 min 2 s", "killed 4 s ago".
    pub status: String,
    pub running: bool,
    /// Bytes that the pool could release.
    pub idle_bytes: u64,
    /// Age of the baseline.
    pub baseline_age: Option<Duration>,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(super) struct Sheet {
    pub columns: &'static [Column],
    /// Content of the last column, if it can be chosen.
    pub of: String,
    pub rows: Vec<Row>,
    /// Number of further rows.
    pub left_out: usize,
    /// Text if there are no rows.
    pub empty: &'static str,
}

/// A column of a table.
#[derive(Debug, PartialEq)]
pub(super) struct Column {
    pub title: &'static str,
    /// Its title if differences are shown.
    pub changed: &'static str,
    pub kind: Kind,
    pub least: usize,
    pub gives_way: u8,
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Identifies the row in any order.
    pub id: String,
    pub cells: Vec<Cell>,
    pub style: Style,
    /// For a process: its ledger.
    pub ledger: Option<PathBuf>,
}

impl Row {
    pub(super) fn new(id: impl Into<String>, cells: Vec<Cell>) -> Self {
        Self { id: id.into(), cells, style: PLAIN, ledger: None }
    }

    pub(super) fn style(self, style: Style) -> Self {
        Self { style, ..self }
    }
}

/// Styles of rows and texts, by their urgency.
pub(super) const PLAIN: Style = Style::new();
pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
pub(super) const WARN: Style = Style::new().fg(Color::Yellow);
pub(super) const BAD: Style = Style::new().fg(Color::Red);

/// Content of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Empty,
    Bytes(u64),
    Count(u64),
    /// Change since the baseline.
    BytesChange(i64),
    CountChange(i64),
    /// Nanoseconds.
    Age(u64),
    /// Bytes per minute.
    BytesRate(f64),
    CountRate(f64),
    /// Values over time, oldest first.
    Bars(Vec<u64>),
    Text(String),
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Makes a cell of bytes, or of their difference to a baseline.
    pub(super) fn bytes(now: u64, before: Option<u64>) -> Self {
        before.map_or(Self::Bytes(now), |before| Self::BytesChange(crate::model::changes::minus(now, before)))
    }

    /// Makes a cell of a number, or of its difference to a baseline.
    pub(super) fn count(now: u64, before: Option<u64>) -> Self {
        before.map_or(Self::Count(now), |before| Self::CountChange(crate::model::changes::minus(now, before)))
    }

    /// Returns the sort key; an empty cell is the least.
    pub(super) fn weight(&self) -> Option<f64> {
        Some(match self {
            Self::Empty | Self::Text(_) | Self::Bars(_) => return None,
            Self::Bytes(n) | Self::Count(n) | Self::Age(n) => *n as f64,
            Self::BytesChange(n) | Self::CountChange(n) => *n as f64,
            Self::BytesRate(n) | Self::CountRate(n) => *n,
        })
    }
}

const fn number(title: &'static str, changed: &'static str, least: usize, gives_way: u8) -> Column {
    Column { title, changed, kind: Kind::Number, least, gives_way }
}

const fn bars(gives_way: u8) -> Column {
    Column { title: "history", changed: "history", kind: Kind::Bars, least: 8, gives_way }
}

const fn text(title: &'static str, least: usize) -> Column {
    Column { title, changed: title, kind: Kind::Text, least, gives_way: 0 }
}

const fn word(title: &'static str, least: usize, gives_way: u8) -> Column {
    Column { title, changed: title, kind: Kind::Word, least, gives_way }
}

pub(super) const NUMBERS: &[Column] = &[
    word("", 22, 0),
    number("now", "Δ baseline", 11, 0),
    number("peak", "peak", 10, 3),
    number("Δ/min", "Δ/min", 11, 2),
    bars(1),
];

pub(super) const ALLOCATIONS: &[Column] = &[
    word("", 1, 0),
    number("live", "Δ live", 11, 0),
    number("count", "Δ count", 9, 3),
    number("oldest", "oldest", 11, 4),
    number("Δ/min", "Δ/min", 11, 1),
    word("growth", 14, 5),
    bars(2),
    text("site", 24),
];

pub(super) const PROCESSES: &[Column] = &[
    number("pid", "pid", 7, 0),
    word("name", 10, 0),
    word("status", 8, 1),
    number("device", "device", 10, 0),
    number("managed", "managed", 10, 7),
    number("host", "host", 10, 6),
    number("allocs", "allocs", 9, 5),
    number("graphs", "graphs", 7, 8),
    number("rss", "rss", 10, 4),
    number("device/min", "device/min", 11, 2),
    bars(3),
];

pub(super) const GRAPHS: &[Column] = &[
    number("execs", "Δ execs", 7, 0),
    number("graphs", "Δ graphs", 8, 4),
    number("device ~", "Δ device ~", 11, 0),
    number("host ~", "Δ host ~", 11, 3),
    number("launches", "launches", 10, 5),
    number("Δ/min", "Δ/min", 11, 1),
    number("launched", "launched", 11, 6),
    bars(2),
    text("site", 24),
];

pub(super) const CONTEXTS: &[Column] = &[
    number("context", "context", 7, 0),
    number("device", "device", 6, 6),
    number("live", "live", 10, 0),
    number("peak", "peak", 10, 2),
    number("idle", "idle", 10, 0),
    number("idle peak", "idle peak", 10, 3),
    number("spilled", "spilled", 10, 4),
    number("limit", "limit", 10, 5),
    text("pool", 36),
];

pub(super) const EVENTS: &[Column] =
    &[number("ago", "ago", 11, 0), word("what", 15, 0), word("thread", 10, 2), text("text", 44), SITE];

/// The event matters more than the site, which is in the detail too.
const SITE: Column = Column { title: "site", changed: "site", kind: Kind::Text, least: 24, gives_way: 1 };
