//! Whether a process grows: by the samples, which know how much, and not from where.
//!
//! Who grows is a question to the records. A finding for each call site belongs here as soon as one is known, in place of
//! the command that compares two dumps.

use super::finding::{Finding, Severity};
use crate::model::Ledger;
use crate::model::growth::{self, Growth};
use crate::text::units;

/// What is younger has too few samples to be judged, ns.
const SHORTEST_NS: u64 = 60_000_000_000;
/// Growth in a minute that is less is none, bytes.
const LITTLE: i64 = 16 << 20;

/// What is looked at: the name of the column, what it is, and the command that says more.
const WHAT: [(&str, &str, &str); 3] = [
    ("device_live_bytes", "live device memory", "gpumem dump -o before.gpumem PID"),
    ("graph_host_bytes", "host memory of graphs and execs", "gpumem graphs PID"),
    ("rss_bytes", "resident memory", "gpumem stats PID"),
];

/// All of them.
pub(super) fn check(ledger: &Ledger) -> Vec<Finding> {
    let finding = |severity, text: String| Finding::new("growth", severity, text);
    let Some((span_ns, rows)) = growth::growth(ledger).filter(|&(span_ns, _)| span_ns >= SHORTEST_NS) else {
        return vec![finding(Severity::Ok, "too little was recorded to judge".into())];
    };
    let of = |name: &str| rows.iter().find(|row| row.what == name).filter(|row| grows(row));
    let grown: Vec<Finding> = WHAT
        .iter()
        .filter_map(|&(name, what, command)| of(name).map(|row| (row, what, command)))
        .map(|(row, what, command)| {
            let said = format!(
                "{what} grew by {} in the last minute, and from {} to {} in {}",
                units::bytes(row.last_minute.unsigned_abs()),
                units::bytes(row.first),
                units::bytes(row.last),
                units::span(span_ns)
            );
            let pid = ledger.pid().to_string();
            let then = match row.what {
                "device_live_bytes" => {
                    format!("a minute later gpumem diff before.gpumem {pid} says which call site grew")
                }
                "rss_bytes" => "it says what of it is not of the GPU: that is the program's own".into(),
                _ => String::new(),
            };
            finding(Severity::Warning, said)
                .bytes(row.last_minute.unsigned_abs())
                .paste(command.replace("PID", &pid))
                .fix(then)
        })
        .collect();
    match grown.is_empty() {
        true => vec![finding(Severity::Ok, "nothing grew steadily over the last minute".into())],
        false => grown,
    }
}

/// Whether a number grows steadily: in the last minute, as before, and near its peak. A rise that is over is none.
fn grows(row: &Growth) -> bool {
    let minute = row.last_minute;
    minute >= LITTLE
        && minute as u64 >= row.last / 50
        && row.last >= row.peak / 20 * 19
        && row.per_minute * 2.0 >= minute as f64
}
