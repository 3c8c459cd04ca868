//! JSON: every answer is one object with `schema_version` and `command` first.

use super::out::json;
use serde::Serialize;
use std::io::Write;

/// Changes if a field is renamed, removed or changes its meaning; new fields do not change it.
pub(super) const SCHEMA_VERSION: u32 = 2;

#[derive(Serialize)]
struct Envelope<'a, T> {
    schema_version: u32,
    command: &'a str,
    #[serde(flatten)]
    report: &'a T,
}

/// Writes a report while it is being made.
///
/// # Errors
/// Those of `out`.
pub(crate) fn print<T: Serialize>(out: &mut dyn Write, command: &str, report: &T) -> std::io::Result<()> {
    let envelope = Envelope { schema_version: SCHEMA_VERSION, command, report };
    let mut out = json(out);
    serde_json::to_writer_pretty(&mut out, &envelope).map_err(std::io::Error::from)?;
    writeln!(out)
}

/// Writes a value on one line, for JSON formats defined elsewhere.
///
/// # Errors
/// Those of `out`.
pub(crate) fn plain<T: Serialize>(out: &mut dyn Write, value: &T) -> std::io::Result<()> {
    serde_json::to_writer(json(out), value).map_err(std::io::Error::from)
}
