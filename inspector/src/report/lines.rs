//! Lines of a kind that many views have.

use crate::symbols::Frame;
use crate::text::units;
use crate::view::table::{DIM, paint};
use std::io::Write;

/// A value, its name, and a remark.
pub(crate) fn line(out: &mut dyn Write, value: &str, name: &str, remark: &str) -> std::io::Result<()> {
    writeln!(
        out,
        "  {value:>10}  {name}{}",
        if remark.is_empty() { String::new() } else { paint(DIM, format!("  {remark}")) }
    )
}

/// A call stack, a line a frame.
pub(crate) fn stack(frames: &[Frame]) -> Vec<String> {
    frames
        .iter()
        .map(|frame| format!("    {}{}", frame.text(), if frame.inlined { " (inlined)" } else { "" }))
        .collect()
}

/// Below a table that does not show all its rows: how many more there are.
pub(crate) fn more(out: &mut dyn Write, hidden: usize) -> std::io::Result<()> {
    match hidden {
        0 => Ok(()),
        n => writeln!(out, "{}", paint(DIM, format!("… {} more: -n 0 shows all", units::number(n as u64)))),
    }
}
