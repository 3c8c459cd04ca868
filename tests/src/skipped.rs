//! If the machine lacks something that a test needs, the test is skipped, and says so in one line on stderr.
//! `REQUIRE=1` makes that a failure. `make test` names a file in SKIPPED, which gathers the lines of all processes, and
//! prints it in the end. The tests of crates that this one depends on take this file by its path.
//!
//! docs/reliability.md lists which tests need which tool. tests/tests/repository/tools.rs checks the list against the
//! sources.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// The package or command that brings each tool that a test asks for.
pub const TOOLS: &[(&str, &str)] = &[
    ("addr2line", "package binutils"),
    ("bash", "package bash"),
    ("chromium", "package chromium"),
    ("fish", "package fish"),
    ("hipcc", "package hipcc"),
    ("inferno-flamegraph", "cargo install inferno"),
    ("musl-gcc", "package musl-tools"),
    ("prometheus", "package prometheus"),
    ("promtool", "package prometheus"),
    ("python3", "package python3"),
    ("qemu-x86_64-static", "package qemu-user-static"),
    ("setpriv", "package util-linux"),
    ("systemd-analyze", "package systemd"),
    ("zsh", "package zsh"),
];

/// The user who may mount, make namespaces and give files away.
pub const ROOT: &str = "root";

/// A program on PATH. If there is none, a line says that what needs it is skipped.
pub fn installed(name: &str) -> Option<PathBuf> {
    one_installed(&[name])
}

/// The first of these programs that is on PATH; the line names the first.
pub fn one_installed(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let file = |name: &&str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let found = names.iter().find_map(file);
    if found.is_none() {
        let tool = names.first().unwrap_or(&"nothing");
        let brings = TOOLS.iter().find(|(name, _)| name == tool).map_or("nothing known", |(_, brings)| brings);
        skipped(format_args!("{tool} is not installed"), brings);
    }
    found
}

/// Says why a test, or a part of it, is skipped, and what brings what it needs.
///
/// # Panics
/// With REQUIRE=1.
#[track_caller]
pub fn skipped(why: impl Display, brings: &str) {
    assert!(std::env::var_os("REQUIRE").is_none_or(|set| set != "1"), "{why} ({brings}), and REQUIRE=1");
    eprintln!("skipped: {why} ({brings})");
    let Some(file) = std::env::var_os("SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{why} ({brings})\t{}\n", thread.name().unwrap_or("a thread"));
    let appended = std::fs::File::options().append(true).create(true).open(&file);
    // One write, so that lines of several processes do not mix.
    let written = appended.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("SKIPPED={}: {error}", file.display()));
}
