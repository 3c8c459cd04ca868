//! The lines of a recording: each is one JSON object with one member, whose name says what it is.

use crate::model::course::{Moment, Of};
use crate::model::summary::{Summary, few};
use serde::{Deserialize, Serialize};

/// Raised when a line changes its meaning. New kinds of lines and new fields do not change it: readers skip them.
pub(crate) const VERSION: u32 = 1;

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first line of a file.
    GpumemRecording(Begin),
    /// Frames in words. They are numbered from 0 through all lines of a file.
    Frames(Vec<String>),
    Stack(Stack),
    Row(RowOf),
    Tick(Tick),
    /// The summary of the process at the tick before.
    Summary(Box<Summary>),
    End(End),
}

/// What a file is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Begin {
    pub version: u32,
    pub pid: u32,
    pub name: String,
    /// Nanoseconds since 1970 at which the recording began: what the files of one recording have in common.
    pub began_unix_ns: u64,
    /// The number of this file in the recording, from 0.
    pub part: u32,
    /// Time between two ticks, as it was asked for.
    pub interval_ns: u64,
    /// Allocations of so many bytes are recorded one by one.
    pub events_from_bytes: u64,
    /// What the totals of a tick are.
    #[serde(deserialize_with = "few::<_, _, 64>")]
    pub columns: Vec<(Of, String)>,
}

impl Begin {
    /// What a first line says.
    pub(crate) fn of(line: &[u8]) -> Option<Self> {
        match serde_json::from_slice(line).ok()? {
            Line::GpumemRecording(begin) => Some(begin),
            _ => None,
        }
    }

    /// Whether this is the file that comes after another one.
    pub(crate) fn follows(&self, before: &Self) -> bool {
        self.began_unix_ns == before.began_unix_ns
            && self.pid == before.pid
            && before.part.checked_add(1) == Some(self.part)
    }
}

/// A call stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Stack {
    pub id: u32,
    /// Numbers of frames, innermost first.
    pub frames: Vec<u32>,
    /// Which of them is the call site: the innermost outside of GPU runtimes.
    pub site: u32,
}

/// Something whose bytes are told at ticks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RowOf {
    pub id: u32,
    pub kind: Of,
    /// Empty where the stack says it.
    pub name: String,
    /// 0: none.
    pub stack: u32,
}

/// What was live at one moment, as the change since the tick before. Totals are as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Tick {
    pub unix_ns: u64,
    /// By the columns of the first line.
    pub totals: Vec<u64>,
    /// Of each row that changed: its number; live bytes, live count, bytes ever made, ever made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<(u32, i64, i64, i64, i64)>,
    /// Large allocations that are new, and the numbers of those that are gone.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few::<_, _, 4096>")]
    pub made: Vec<Made>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freed: Vec<u64>,
    /// Large allocations that did not fit into this tick and had not been left out before; and how many of those that had
    /// are told now.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub told_late: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few::<_, _, 4096>")]
    pub moments: Vec<Moment>,
    /// Moments that did not fit, and are not told later.
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

/// Why there is no more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct End {
    pub why: String,
}
