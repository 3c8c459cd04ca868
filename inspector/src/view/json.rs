//! JSON: every answer is one object with `schema_version` and `command` first.

use serde::Serialize;
use std::io::Write;

/// Changes whenever a field is renamed, removed or changes its meaning; new fields do not change it.
pub const SCHEMA_VERSION: u32 = 2;

#[derive(Serialize)]
struct Envelope<'a, T> {
    schema_version: u32,
    command: &'a str,
    #[serde(flatten)]
    report: &'a T,
}

/// Writes a report.
pub fn print<T: Serialize>(out: &mut dyn Write, command: &str, report: &T) -> std::io::Result<()> {
    writeln!(out, "{}", to_string(command, report)?)
}

/// A report as text.
pub fn to_string<T: Serialize>(command: &str, report: &T) -> std::io::Result<String> {
    let envelope = Envelope { schema_version: SCHEMA_VERSION, command, report };
    Ok(super::text::clean_json(serde_json::to_string_pretty(&envelope)?))
}
