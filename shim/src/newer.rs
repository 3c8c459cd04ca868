//! What of the driver the process has met that this release does not know: shown, and never guessed at.
//!
//! A newer minor version of CUDA adds functions, kinds of nodes, attributes and flags. Whoever meets one says so here,
//! and does what is right without knowing more: a graph stays the driver's own, a call is passed on.

use crate::gate;
use crate::process::lock::lock;
use crate::shim::Shim;
use gpumem_wire::kinds::Severity;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Lines that are kept.
const MOST: usize = 64;

/// What was met, in the order in which it was.
#[derive(Default)]
pub struct Newer {
    lines: Mutex<Vec<String>>,
}

/// Something was met that is not known: a noun, as "nodes of kind 30".
#[cold]
pub fn met(what: &str) {
    gate::record_if_started(|shim| shim.met(what));
}

impl Shim {
    /// As [`met`].
    pub fn met(&self, what: &str) {
        let all = {
            let mut lines = lock(&self.newer.lines);
            if lines.len() == MOST || lines.iter().any(|line| line == what) {
                return;
            }
            lines.push(what.to_owned());
            lines.join("\n")
        };
        self.ledger.header().unknown().store(self.ledger.texts.intern(all.as_bytes()), Relaxed);
        self.message(Severity::Info, &format!("newer than this gpumem: {what}"));
    }
}
