//! Lines for people on the program's stderr.

use super::cancel::Uncancelled;
use super::{load, write};

/// One line on stderr, in one write.
pub(crate) fn say(line: &dyn std::fmt::Display) {
    let line = format!("gpumem: {line}\n");
    let _uncancelled = Uncancelled::new();
    // No line is put into a file that has stderr's number by now.
    if load::stderr_is_the_same() {
        write::to_stderr(line.as_bytes());
    }
}
