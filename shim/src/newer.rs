//! What the process has met of the driver that this release of gpumem does not know. It is shown and never guessed at.
//!
//! A newer minor version of CUDA adds functions, kinds of nodes, attributes and flags. Whoever meets one reports it
//! ([`crate::shim::Shim::met`]), and does what is right without knowing more: a graph stays the driver's own, a call is
//! passed on.

use crate::process::lock::lock;
use std::sync::Mutex;

/// Lines that are kept.
const MOST: usize = 64;

/// What was met, in the order in which it was.
#[derive(Default)]
pub(crate) struct Newer {
    lines: Mutex<Vec<String>>,
}

impl Newer {
    /// Adds what was met: a noun, as "nodes of kind 30". The answer is all that was met by then, a line each. `None`:
    /// it was known, or there is no room for it.
    pub(crate) fn add(&self, what: &str) -> Option<String> {
        let mut lines = lock(&self.lines);
        if lines.len() == MOST || lines.iter().any(|line| line == what) {
            return None;
        }
        lines.push(what.to_owned());
        Some(lines.join("\n"))
    }
}
