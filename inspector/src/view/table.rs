//! Plain tables: columns padded to their widest cell, the last one cut at the terminal's edge.

use super::text;
use anstyle::{AnsiColor, Style};
use std::io::Write;
use unicode_width::UnicodeWidthStr;

/// Headings.
pub const HEAD: Style = Style::new().bold();
/// What is less important.
pub const DIM: Style = Style::new().dimmed();
/// What is well.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// What deserves a look.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// What is wrong.
pub const BAD: Style = AnsiColor::Red.on_default();

/// `text` in a style; the stream strips it where colours are not wanted.
pub fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Where a cell's text stands in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

struct Cell {
    text: String,
    style: Style,
}

/// Rows under a heading.
pub struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<Cell>>,
    /// Lines of text below a row, by the number of the row.
    below: Vec<(usize, Vec<String>)>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[(&'static str, Side)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), below: Vec::new() }
    }

    /// Adds a row; text is cleaned of control characters.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.styled(cells.into_iter().map(|text| (text, Style::new())));
    }

    /// Adds a row whose cells have styles.
    pub fn styled(&mut self, cells: impl IntoIterator<Item = (String, Style)>) {
        let cells = cells.into_iter().map(|(text, style)| Cell { text: text::clean(&text).into_owned(), style });
        self.rows.push(cells.collect());
    }

    /// Adds lines below the row that was added last.
    pub fn below(&mut self, lines: Vec<String>) {
        let lines = lines.iter().map(|line| text::clean(line).into_owned()).collect();
        self.below.push((self.rows.len(), lines));
    }

    /// True when no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the table; columns that are empty in every row are left out.
    pub fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&column| self.rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.text.is_empty())))
            .collect();
        let mut widths: Vec<usize> = shown
            .iter()
            .map(|&column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.width());
                cells.max().unwrap_or(0).max(self.columns[column].0.width())
            })
            .collect();
        self.fit(&mut widths);
        let heads = self.columns.iter().map(|&(name, _)| Cell { text: name.to_owned(), style: HEAD }).collect();
        let mut below = self.below.iter().peekable();
        for (index, row) in std::iter::once(&heads).chain(&self.rows).enumerate() {
            self.line(out, row, &shown, &widths)?;
            while let Some((_, lines)) = below.next_if(|(row, _)| *row == index) {
                for line in lines {
                    writeln!(out, "{}", paint(DIM, line))?;
                }
            }
        }
        Ok(())
    }

    /// Lets the last column end at the edge of the terminal, if there is one.
    fn fit(&self, widths: &mut [usize]) {
        let (Some(columns), Some((last, rest))) = (terminal_columns(), widths.split_last_mut()) else { return };
        let before = rest.iter().map(|width| width + 2).sum::<usize>();
        *last = (*last).min(columns.saturating_sub(before).max(24));
    }

    fn line(&self, out: &mut dyn Write, row: &[Cell], shown: &[usize], widths: &[usize]) -> std::io::Result<()> {
        let empty = Cell { text: String::new(), style: Style::new() };
        let mut line = String::new();
        for (index, (&column, &width)) in shown.iter().zip(widths).enumerate() {
            let cell = row.get(column).unwrap_or(&empty);
            let last = index + 1 == shown.len();
            let text = if last { text::shorten(&cell.text, width) } else { cell.text.as_str().into() };
            let padding = " ".repeat(width.saturating_sub(text.width()));
            let painted = if text.is_empty() { String::new() } else { paint(cell.style, &text) };
            match self.columns[column].1 {
                Side::Right => line.extend([padding, painted]),
                Side::Left if last => line.push_str(&painted),
                Side::Left => line.extend([painted, padding]),
            }
            if !last {
                line.push_str("  ");
            }
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// Columns of the terminal on stdout; `None` if it is none.
pub fn terminal_columns() -> Option<usize> {
    terminal_size().map(|(columns, _)| columns)
}

/// Columns and rows of the terminal on stdout.
pub fn terminal_size() -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, which `size` is; a stdout that is no terminal gives an error.
    let answer = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    (answer == 0 && size.ws_col > 0).then_some((usize::from(size.ws_col), usize::from(size.ws_row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(table: &Table) -> String {
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn columns_line_up_and_empty_ones_vanish() {
        let mut table = Table::new(&[("bytes", Side::Right), ("tag", Side::Left), ("site", Side::Left)]);
        table.row(["1 B".into(), String::new(), "main".into()]);
        table.row(["10.0 MiB".into(), String::new(), "esc\x1b[31m".into()]);
        assert_eq!(print(&table), "   bytes  site\n     1 B  main\n10.0 MiB  esc\\x1b[31m\n");
    }
}
