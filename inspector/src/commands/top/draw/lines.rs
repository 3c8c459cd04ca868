//! Wrapped text, and cells of tables as text.

use super::super::look::Cell;
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
