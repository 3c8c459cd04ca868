//! Programs as data: operations on symbolic buffers, one JSON object a line.
//!
//! The program chooses numbers for buffers and graphs. Contexts and streams exist from the beginning. The runner leaves
//! out each operation that cannot be done, and each whose answer would depend on addresses or on time. So any operation
//! can be removed, and the rest is still a program.

use crate::tester::{self, zero};
use serde::{Deserialize, Serialize};

pub type Id = u16;

/// Contexts: the first device's primary one, one that the program makes and destroys there, and the second
/// device's primary one, if there is a second device.
pub const CONTEXTS: usize = 3;
pub const OWN: usize = 1;
pub const SECOND: usize = 2;
/// Streams of each context: the legacy one, a blocking one, two that do not block. Stream `s` is the
/// `s % STREAMS`th of context `s / STREAMS`.
pub const STREAMS: usize = 4;
/// Threads that operations may be done by.
pub const THREADS: usize = 3;

/// The function that allocates a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    #[default]
    Driver,
    Runtime,
    Pitch,
    Async,
    Managed,
    Host,
}

/// The function that frees a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    #[default]
    Driver,
    Runtime,
    Async,
    Host,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    Alloc {
        p: Id,
        bytes: u64,
        #[serde(default, skip_serializing_if = "zero")]
        how: How,
        #[serde(default, skip_serializing_if = "zero")]
        s: usize,
    },
    /// `at`: so many bytes behind the buffer's beginning.
    Free {
        p: Id,
        #[serde(default, skip_serializing_if = "zero")]
        by: By,
        #[serde(default, skip_serializing_if = "zero")]
        at: u64,
        #[serde(default, skip_serializing_if = "zero")]
        s: usize,
    },
    /// Frees an address that never was device memory: 0 NULL, 1 a small number, 2 a stack address, 3 a heap address.
    WildFree {
        what: u8,
        #[serde(default, skip_serializing_if = "zero")]
        by: By,
    },
    /// A kernel that writes the first words, or the last.
    Fill {
        p: Id,
        s: usize,
        v: u32,
        #[serde(default, skip_serializing_if = "zero")]
        end: bool,
    },
    /// A memset of the first words.
    Set {
        p: Id,
        s: usize,
        v: u32,
    },
    /// A copy of the first words of another buffer of the same context.
    Copy {
        p: Id,
        from: Id,
        s: usize,
    },
    /// Checks that the buffer holds what was last written.
    Check {
        p: Id,
        s: usize,
    },
    /// Keeps a stream busy.
    Spin {
        s: usize,
        us: u32,
    },
    Sync {
        s: usize,
    },
    SyncAll,
    /// Waits until all work has finished, then compares the ledger's live bytes.
    Quiet,
    /// Range and attributes of an address in a buffer, live or freed.
    Query {
        p: Id,
        #[serde(default, skip_serializing_if = "zero")]
        at: u64,
    },
    /// Asks for the buffer's number, which is new for each allocation.
    Number {
        p: Id,
    },
    /// Sets an attribute of it.
    Mark {
        p: Id,
    },
    /// Asks for a handle that other processes can open.
    Export {
        p: Id,
    },
    /// cuMemGetInfo.
    Info,
    /// Sets the thread's current context, or none if there is no such context.
    Current {
        c: usize,
    },
    /// Destroys or resets a context, and creates it again.
    Renew {
        c: usize,
    },
    Begin {
        s: usize,
        mode: u32,
    },
    /// Ends a capture, and instantiates what was captured.
    End {
        s: usize,
        g: Id,
    },
    Launch {
        g: Id,
        s: usize,
    },
    DropGraph {
        g: Id,
    },
    /// cuThreadExchangeStreamCaptureMode.
    Exchange {
        mode: u32,
    },
    /// Threads that allocate, write, hand over, check and free at once.
    Stress {
        c: usize,
        threads: usize,
        rounds: usize,
        seed: u64,
    },
    /// A kernel that writes to an unmapped address. The context cannot be used afterwards.
    Fault,
}

/// An operation and the thread that does it.
pub type Line = tester::Line<Op>;

/// A program.
pub type Program = tester::Program<Op>;
