//! What is asked of the child that reads a program's files, and what it answers.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// Longest answer, and what it is made of.
pub(super) const MOST_ANSWER: u64 = 8 << 20;
pub(super) const MOST_NAME: usize = 16 << 10;
pub(super) const MOST_INLINED: usize = 100;

/// A file of the program's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct CodeFile {
    /// The file system that the path holds in.
    pub root: OsString,
    pub path: OsString,
    /// Where the kernel still has the file, if its path leads to another one by now: a link in /proc.
    pub kept: Option<OsString>,
}

/// One function at an address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Symbol {
    pub function: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Into the next one.
    pub inlined: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SymbolDetail {
    BuildId,
    /// The function's name alone.
    Name,
    /// What was inlined too, with files and lines.
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
    BuildId(Option<Vec<u8>>),
    /// Innermost first.
    Symbols(Vec<Symbol>),
}
