//! The lines of a recording: each is a JSON object with one member, whose name is the line's type.

use crate::model::course::{Moment, Of};
use crate::model::summary::{Summary, few};
use serde::{Deserialize, Serialize};

/// Raised if a line changes its meaning. Readers skip new kinds of lines and new fields, so these do not change it.
pub(crate) const VERSION: u32 = 1;

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first line of a file.
    GpumemRecording(Begin),
    /// Frames in words, numbered from 0 through all lines of a file.
    Frames(Vec<String>),
    Stack(Stack),
    Row(RowOf),
    Tick(Tick),
    /// The summary of the process at the previous tick.
    Summary(Box<Summary>),
    End(End),
}

/// Description of a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Begin {
    pub version: u32,
    pub pid: u32,
    pub name: String,
    #[serde(flatten)]
    pub started_by: StartedBy,
    /// Start of the recording, nanoseconds since 1970: the same in all files of one process.
    pub began_unix_ns: u64,
    /// The number of this file in the recording, from 0.
    pub part: u32,
    /// Requested time between two ticks.
    pub interval_ns: u64,
    /// Allocations of at least this many bytes are recorded one by one.
    pub events_from_bytes: u64,
    /// The columns of a tick's totals.
    #[serde(deserialize_with = "few::<_, _, 64>")]
    pub columns: Vec<(Of, String)>,
}

/// The recorder and the parent that started a process. The processes of one recorder form one report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StartedBy {
    /// Start of the recorder, nanoseconds since 1970. 0: the process was running already, and was recorded alone.
    pub recorder_unix_ns: u64,
    /// The command that the recorder started.
    pub command: String,
    pub parent_pid: u32,
    pub parent_name: String,
}

impl Begin {
    /// Parses a first line.
    pub(crate) fn of(line: &[u8]) -> Option<Self> {
        match serde_json::from_slice(line).ok()? {
            Line::GpumemRecording(begin) => Some(begin),
            _ => None,
        }
    }

    /// True if this file continues another one.
    pub(crate) fn follows(&self, before: &Self) -> bool {
        self.began_unix_ns == before.began_unix_ns
            && self.pid == before.pid
            && before.part.checked_add(1) == Some(self.part)
    }

    /// True if another process was recorded together with this one.
    pub(crate) fn is_together_with(&self, other: &Self) -> bool {
        self.started_by.recorder_unix_ns != 0
            && self.started_by.recorder_unix_ns == other.started_by.recorder_unix_ns
            && self.pid != other.pid
    }
}

/// A call stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Stack {
    pub id: u32,
    /// Numbers of frames, innermost first.
    pub frames: Vec<u32>,
    /// Index of the call site: the innermost frame outside of GPU runtimes.
    pub site: u32,
}

/// A row, whose bytes appear in ticks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RowOf {
    pub id: u32,
    pub kind: Of,
    /// Empty if the stack gives the name.
    pub name: String,
    /// 0: none.
    pub stack: u32,
}

/// Live memory at one moment, as the change since the previous tick. Totals are absolute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Tick {
    pub unix_ns: u64,
    /// In the order of the first line's columns.
    pub totals: Vec<u64>,
    /// For each row that changed: its number; live bytes, live count, bytes ever made, number ever made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<(u32, i64, i64, i64, i64)>,
    /// New large allocations, and the numbers of freed ones.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few::<_, _, 4096>")]
    pub made: Vec<Made>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freed: Vec<u64>,
    /// Large allocations that did not fit into this tick and were not left out before; and the number of those left out
    /// earlier that this tick reports.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub told_late: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few::<_, _, 4096>")]
    pub moments: Vec<Moment>,
    /// Moments that did not fit, and are never reported.
    #[serde(skip_serializing_if = "is_zero")]
    pub moments_left_out: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A large allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Made {
    pub serial: u64,
    pub bytes: u64,
    pub stack: u32,
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tag: String,
    pub unix_ns: u64,
}

/// The reason why the recording ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct End {
    pub why: String,
}
