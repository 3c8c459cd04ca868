//! Features of the driver that the process has met and this release of gpumem does not know. They are shown and never
//! guessed at.
//!
//! A newer minor version of CUDA adds functions, kinds of nodes, attributes and flags. Code that meets one reports it
//! ([`crate::shim::Shim::met`]), and does what is right without knowing more: a graph stays the driver's own, a call is
//! passed on.

use crate::process::lock::lock;
use std::sync::Mutex;

/// Maximum number of lines kept.
const MOST: usize = 64;

/// The features, in the order in which they were met.
#[derive(Default)]
pub(crate) struct Newer {
    lines: Mutex<Vec<String>>,
}

impl Newer {
    /// Adds a feature: a noun, such as "nodes of kind 30". Returns all features met so far, a line each. `None`: it was
    /// known, or there is no room for it.
    pub(crate) fn add(&self, what: &str) -> Option<String> {
        let mut lines = lock(&self.lines);
        if lines.len() == MOST || lines.iter().any(|line| line == what) {
            return None;
        }
        lines.push(what.to_owned());
        Some(lines.join("\n"))
    }
}
