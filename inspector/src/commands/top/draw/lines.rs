//! Wrapped text, cells of tables as text, and the help: the keys, and how to read each tab.

use super::super::keys::KEYS;
use super::super::look::{Cell, Tab};
use super::super::state::State;
use crate::text::{self, units};
use crate::view::spark;

/// Wraps text into at most `most` lines of this width, between words, and within words longer than a line. `…` marks
/// omitted text.
pub(super) fn wrapped(line: &str, columns: u16, most: usize) -> Vec<String> {
    let columns = usize::from(columns).max(4);
    let line = text::clean(line);
    if text::width(&line) <= columns {
        return vec![line.into_owned()];
    }
    let indent: String = line.chars().take_while(|c| *c == ' ').chain("  ".chars()).take(columns / 4).collect();
    let (mut lines, mut now) = (Vec::new(), String::new());
    for word in line.split_inclusive(' ') {
        if text::width(&now) + text::width(word.trim_end()) > columns && !now.trim().is_empty() {
            lines.push(std::mem::replace(&mut now, indent.clone()));
        }
        for c in word.chars() {
            if text::width(&now) + text::width(c.encode_utf8(&mut [0; 4])) > columns && c != ' ' {
                lines.push(std::mem::replace(&mut now, indent.clone()));
            }
            now.push(c);
        }
    }
    lines.push(now);
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            // Whole words only: half a number is another number.
            while text::width(last) + 2 > columns {
                let end = last.rfind(' ').unwrap_or(0);
                last.truncate(end);
            }
            last.push_str(" …");
        }
    }
    lines
}

/// Returns the text of a cell; `bars` is the width of a cell with bars.
pub(super) fn cell(cell: &Cell, bars: usize) -> String {
    let changed = |n: i64, text: fn(i64) -> String| if n == 0 { "-".into() } else { text(n) };
    match cell {
        Cell::Empty => String::new(),
        Cell::Bytes(n) => units::bytes(*n),
        Cell::Count(n) => units::number(*n),
        Cell::BytesChange(n) => changed(*n, units::signed_bytes),
        Cell::CountChange(n) => changed(*n, units::signed),
        Cell::Age(ns) => units::span(*ns),
        Cell::BytesRate(n) => changed(n.round() as i64, units::signed_bytes),
        Cell::CountRate(n) => changed(n.round() as i64, units::signed),
        Cell::Bars(values) => spark::line(values, bars),
        Cell::Text(text) => text.clone(),
    }
}

/// Least width for a key's meaning beside the key.
const BESIDE: u16 = 76;

fn reading(state: &State) -> &'static [&'static str] {
    match state.tab {
        _ if state.whom.is_none() => &["A row for each process with libgpumem.so. Enter looks at one."],
        Tab::Overview => &[
            "Above: totals of the process. ~ is an estimate. Below: the call sites that hold most.",
            "devices, all users: memory in use on the devices of this process, by whoever.",
        ],
        Tab::Allocations => &[
            "A row for each group of live allocations. Enter shows the call stacks of one.",
            "growth: what gpumem leaks says of a call site; ▲ marks those that grow steadily.",
        ],
        Tab::Graphs => &[
            "Above: what the graph cache holds and does. Below: a row for each group of graphs and execs.",
            "device ~, host ~: estimates of what they take. launched: when the last one was, how long ago.",
        ],
        Tab::Pool => &[
            "Above: what the pool keeps and did. Below: a row for each context.",
            "idle: freed by the program and kept for it; t gives that back to the driver.",
        ],
        Tab::Events => &[
            "What happened, the newest first. Enter shows when, where and in which thread.",
            "Red: something failed. Yellow: something to look at.",
        ],
    }
}

/// Returns the whole help, in lines of this width.
pub(super) fn help(state: &State, columns: u16) -> Vec<String> {
    let mut lines = vec!["Keys".to_owned()];
    let width = KEYS.iter().map(|(keys, _)| text::width(keys)).max().unwrap_or(0);
    for &(keys, says) in KEYS {
        if columns < BESIDE {
            lines.push(keys.to_owned());
            let says = wrapped(says, columns - 4, usize::MAX);
            lines.extend(says.iter().map(|says| format!("    {}", says.trim_start())));
            continue;
        }
        let says = wrapped(says, columns - width as u16 - 2, usize::MAX);
        for (at, says) in says.iter().enumerate() {
            let keys = if at == 0 { keys } else { "" };
            let gap = " ".repeat(width - text::width(keys) + 2);
            lines.push(format!("{keys}{gap}{}", says.trim_start()));
        }
    }
    let common = [
        "Δ/min: how fast it grows, as gpumem leaks has it: the slope over the later half of the samples.",
        "history: the last 15 minutes, or since the first sample; its lowest and its highest value.",
    ];
    lines.push(String::new());
    for said in reading(state).iter().chain(&common) {
        lines.extend(wrapped(said, columns, usize::MAX));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words_and_no_number_is_cut() {
        let line = "each second: 123456 allocations, 123456 frees";
        assert_eq!(wrapped(line, 80, 2), [line]);
        assert_eq!(wrapped(line, 24, 9), ["each second: 123456", "  allocations, 123456", "  frees"]);
        assert_eq!(wrapped(line, 18, 1), ["each second: …"]);
        assert_eq!(wrapped("abcdefghijkl", 8, 9), ["abcdefgh", "  ijkl"]);
        assert!(wrapped(&"日本".repeat(20), 11, 9).iter().all(|line| text::width(line) <= 11));
    }
}
