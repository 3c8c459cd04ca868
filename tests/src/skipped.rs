//! Tests for which a machine may lack something: there they are skipped, and say so in one line on stderr.
//! The tests of crates that this one depends on take this file by its path.
//!
//! What needs which tool is listed in docs/reliability.md, and tests/tests/repository/tools.rs holds the list to the sources.

use std::fmt::Display;
use std::path::PathBuf;

/// A program on PATH. Where there is none, a line says that what needs it is skipped.
pub fn installed(name: &str) -> Option<PathBuf> {
    one_installed(&[name])
}

/// The first of these programs that is on PATH; the line names the first.
pub fn one_installed(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let file = |name: &&str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let found = names.iter().find_map(file);
    if found.is_none() {
        skipped(format_args!("{} is not installed", names.first().unwrap_or(&"nothing")));
    }
    found
}

/// Says why a test, or a part of it, is skipped.
pub fn skipped(why: impl Display) {
    eprintln!("skipped: {why}");
}
