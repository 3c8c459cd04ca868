//! Questions to the child that reads a program's files, and its answers.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// Longest answer, and the limits of its parts.
pub(super) const MOST_ANSWER: u64 = 8 << 20;
pub(super) const MOST_NAME: usize = 16 << 10;
pub(super) const MOST_INLINED: usize = 100;

/// A file of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct CodeFile {
    /// The file system in which the path holds.
    pub root: OsString,
    pub path: OsString,
    /// The kernel's link in /proc to the file, if its path leads to another file by now.
    pub kept: Option<OsString>,
}

/// Identity of a file's content: device, inode, length, times of its last changes, and the file system in which its
/// links hold. Files of two processes with the same identity have the same symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Content(pub(super) [u64; 7]);

/// One function at an address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Symbol {
    pub function: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// True if inlined into the next function.
    pub inlined: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum SymbolDetail {
    BuildId,
    /// Only the function's name.
    Name,
    /// Also inlined functions, with files and lines.
    Full,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Question {
    pub what: SymbolDetail,
    pub file: CodeFile,
    pub address: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    Nothing(String),
    BuildId(Option<Vec<u8>>, Content),
    /// Innermost function first.
    Symbols(Vec<Symbol>),
}
