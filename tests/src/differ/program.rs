//! Programs as data: a list of operations on symbolic handles, one JSON object a line.
//!
//! Graphs, execs and modules are numbers that the program chooses; streams, buffers and events exist
//! from the beginning. A node is named by its place in the order in which the nodes of its graph were
//! made. An operation that cannot be done (its handle does not exist, its module is gone, it would race
//! with a node beside it) is left out by whoever runs the program: so any operation may be removed from
//! a program, and what is left is a program.

use super::work::{Kernel, Work};
use crate::tester::{self, zero};
use serde::{Deserialize, Serialize};

pub type Id = u16;

/// Streams: three that do not block with the legacy stream (the second of high priority), one that does,
/// and the legacy stream.
pub const STREAMS: usize = 5;
pub const BLOCKING: usize = 3;
pub const LEGACY: usize = 4;
/// Events.
pub const EVENTS: usize = 4;

/// A node to be made: its work, and the earlier nodes that it comes after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewNode {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<usize>,
    #[serde(flatten)]
    pub work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// The function that instantiates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    #[default]
    Flags,
    Params,
    /// The function with five arguments, as before CUDA 12.
    Log,
}

/// Step between the beginning and the end of a capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Step {
    /// Work on a stream. A stream that does not capture yet is forked from the first one.
    Do {
        on: usize,
        #[serde(flatten)]
        work: Work,
    },
    /// A launch that is captured.
    Launch { on: usize, launch: Id },
    /// `join` waits for what `from` has captured so far.
    Join { join: usize, from: usize },
    /// Anything that is not part of the capture.
    Other { meanwhile: Op },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    Graph {
        g: Id,
        #[serde(default)]
        nodes: Vec<NewNode>,
    },
    Capture {
        g: Id,
        s: usize,
        mode: Mode,
        body: Vec<Step>,
    },
    Clone {
        g: Id,
        from: Id,
    },
    Add {
        g: Id,
        node: NewNode,
    },
    Remove {
        g: Id,
        n: usize,
    },
    Edge {
        g: Id,
        from: usize,
        to: usize,
        on: bool,
    },
    /// Sets the node's parameters in the graph.
    Set {
        g: Id,
        n: usize,
        to: Work,
    },
    /// Sets the node's launch attributes in the graph.
    Attributes {
        g: Id,
        n: usize,
        k: Kernel,
    },
    CopyAttributes {
        g: Id,
        n: usize,
        from: usize,
    },
    /// All that can be asked of a graph and its nodes.
    Query {
        g: Id,
    },
    DropGraph {
        g: Id,
    },
    Instantiate {
        e: Id,
        g: Id,
        #[serde(default, skip_serializing_if = "zero")]
        how: How,
        #[serde(default, skip_serializing_if = "zero")]
        flags: u64,
        #[serde(default, skip_serializing_if = "zero")]
        s: usize,
    },
    /// Updates an exec. `v`: which of the two forms of the function, 1 or 2.
    Update {
        e: Id,
        g: Id,
        v: u8,
    },
    /// Sets the node's parameters in the exec. `of`: a node of another graph than the exec's.
    SetExec {
        e: Id,
        n: usize,
        to: Work,
        #[serde(default, skip_serializing_if = "zero")]
        any: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<Id>,
    },
    Enable {
        e: Id,
        n: usize,
        on: bool,
    },
    Enabled {
        e: Id,
        n: usize,
    },
    Flags {
        e: Id,
    },
    Upload {
        e: Id,
        s: usize,
    },
    Launch {
        e: Id,
        s: usize,
    },
    DropExec {
        e: Id,
    },
    Load {
        m: Id,
    },
    Unload {
        m: Id,
    },
    Do {
        s: usize,
        work: Work,
    },
    Sync {
        s: usize,
    },
    SyncAll,
    /// Waits for all work and shows what the buffers hold.
    Dump,
    /// A host function holds the stream up until `Open`.
    Gate {
        s: usize,
    },
    Open,
    /// Two threads that run at the same time.
    Race {
        a: Vec<Op>,
        b: Vec<Op>,
    },
    /// Destroys everything and sets the buffers to what they hold at the beginning.
    Reset,
}

/// An operation and the thread that does it.
pub type Line = tester::Line<Op>;

/// Threads that operations may be done by, besides the first.
pub const THREADS: usize = 3;

/// A program.
pub type Program = tester::Program<Op>;
