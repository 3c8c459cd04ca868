//! Plain tables: columns padded to their widest cell. On a terminal that is too narrow some give way, where the
//! table says which, and the last one is cut at the edge.

use crate::text;
use anstyle::{AnsiColor, Style};
use std::io::Write;
use unicode_width::UnicodeWidthStr;

/// Headings.
pub(crate) const HEAD: Style = Style::new().bold();
/// What is less important.
pub(crate) const DIM: Style = Style::new().dimmed();
/// What is well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What deserves a look.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// What is wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// `text` in a style; the stream strips it where colours are not wanted.
pub(crate) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Where a cell's text stands in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

struct Cell {
    text: String,
    style: Style,
}

/// A row, and what is said below it.
pub(crate) struct Line {
    cells: Vec<Cell>,
    below: Vec<String>,
}

impl Line {
    /// A row; text is cleaned of control characters.
    pub(crate) fn new(cells: impl IntoIterator<Item = String>) -> Self {
        Self::styled(cells.into_iter().map(|text| (text, Style::new())))
    }

    /// A row whose cells have styles.
    pub(crate) fn styled(cells: impl IntoIterator<Item = (String, Style)>) -> Self {
        let cells = cells.into_iter().map(|(text, style)| Cell { text: text::clean(&text).into_owned(), style });
        Self { cells: cells.collect(), below: Vec::new() }
    }

    /// The row with lines below it.
    pub(crate) fn below(mut self, lines: Vec<String>) -> Self {
        self.below = lines;
        self
    }
}

/// Rows under a heading.
pub(crate) struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Line>,
    /// Columns that a narrow terminal may do without, the first ones first.
    giving_way: &'static [&'static str],
}

/// Hands every row to its argument.
type Rows<'a> = &'a dyn Fn(&mut dyn FnMut(&Line) -> std::io::Result<()>) -> std::io::Result<()>;

/// What a last column keeps of its width before other columns give way for it, and before it is cut at last.
const LAST_WANTS: usize = 40;
const LAST_KEEPS: usize = 24;

impl Table {
    /// A table with these columns.
    pub(crate) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), giving_way: &[] }
    }

    /// Leaves out these columns, in this order, until the others fit on the terminal, if there is one; says
    /// so, and that `--wide` shows all, which is `wide`.
    pub(crate) fn gives_way(mut self, columns: &'static [&'static str], wide: bool) -> Self {
        self.giving_way = if wide { &[] } else { columns };
        self
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(Line::new(cells));
    }

    /// Adds a row whose cells have styles.
    pub(crate) fn styled(&mut self, cells: impl IntoIterator<Item = (String, Style)>) {
        self.rows.push(Line::styled(cells));
    }

    /// Adds lines below the row that was added last.
    pub(crate) fn below(&mut self, lines: Vec<String>) {
        if let Some(last) = self.rows.last_mut() {
            last.below = lines;
        }
    }

    /// True when no row was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the table; columns that are empty in every row are left out.
    pub(crate) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        self.print_at(out, terminal_columns(), &|each| self.rows.iter().try_for_each(each))
    }

    /// Writes rows that are made as they are shown, and made twice: how wide a column is, the last row may say.
    pub(crate) fn print_lines<I: Iterator<Item = Line>>(
        &self,
        out: &mut dyn Write,
        lines: impl Fn() -> I,
    ) -> std::io::Result<()> {
        self.print_at(out, terminal_columns(), &|each| lines().try_for_each(|line| each(&line)))
    }

    fn print_at(&self, out: &mut dyn Write, edge: Option<usize>, rows: Rows) -> std::io::Result<()> {
        // `None`: empty in every row.
        let mut widths: Vec<Option<usize>> = vec![None; self.columns.len()];
        rows(&mut |line| {
            for (width, cell) in widths.iter_mut().zip(&line.cells).filter(|(_, cell)| !cell.text.is_empty()) {
                *width = Some(width.unwrap_or(0).max(cell.text.width()));
            }
            Ok(())
        })?;
        // Columns by number, each with its width.
        let wide = |(column, width): (usize, &Option<usize>)| {
            let heading = self.columns.get(column)?.0.width();
            Some((column, (*width)?.max(heading)))
        };
        let mut shown: Vec<(usize, usize)> = widths.iter().enumerate().filter_map(wide).collect();
        let left_out = edge.map(|edge| self.fit(&mut shown, edge)).unwrap_or_default();
        let heads: Vec<_> = self.columns.iter().map(|&(name, _)| Cell { text: name.to_owned(), style: HEAD }).collect();
        self.line(out, &heads, &shown)?;
        rows(&mut |line| {
            self.line(out, &line.cells, &shown)?;
            line.below.iter().try_for_each(|line| writeln!(out, "{}", paint(DIM, text::clean(line))))
        })?;
        if left_out > 0 {
            let columns = text::count(left_out, "column");
            writeln!(out, "{}", paint(DIM, format!("… {columns} left out to fit: --wide shows all")))?;
        }
        Ok(())
    }

    /// Makes the columns fit before the edge of the terminal, nearly; how many gave way.
    fn fit(&self, shown: &mut Vec<(usize, usize)>, edge: usize) -> u64 {
        let mut left_out = 0;
        for &name in self.giving_way {
            let (last, rest) = shown.split_last().map_or((0, &[][..]), |(&(_, last), rest)| (last, rest));
            if rest.iter().map(|(_, width)| width + 2).sum::<usize>() + last.min(LAST_WANTS) <= edge {
                break;
            }
            let before = shown.len();
            shown.retain(|&(column, _)| self.columns[column].0 != name);
            left_out += (before - shown.len()) as u64;
        }
        if let Some(((_, last), rest)) = shown.split_last_mut() {
            let before = rest.iter().map(|(_, width)| width + 2).sum::<usize>();
            *last = (*last).min(edge.saturating_sub(before).max(LAST_KEEPS));
        }
        left_out
    }

    fn line(&self, out: &mut dyn Write, row: &[Cell], shown: &[(usize, usize)]) -> std::io::Result<()> {
        let empty = Cell { text: String::new(), style: Style::new() };
        let mut line = String::new();
        for (index, &(column, width)) in shown.iter().enumerate() {
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
pub(super) fn terminal_columns() -> Option<usize> {
    terminal_size().map(|(columns, _)| columns)
}

/// Columns and rows of the terminal on stdout.
pub(crate) fn terminal_size() -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, and `size` is one. A stdout that is no terminal gives
    // an error.
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
    #[test]
    fn a_narrow_terminal_has_fewer_columns() {
        let names = [("a", Side::Right), ("b", Side::Right), ("c", Side::Right), ("site", Side::Left)];
        let made = |wide| {
            let mut table = Table::new(&names).gives_way(&["c", "a"], wide);
            table.row(["aaaaaaaa".into(), "bbbbbbbb".into(), "cccccccc".into(), "s".repeat(30)]);
            table
        };
        let at = |edge, wide| {
            let mut out = Vec::new();
            let table = made(wide);
            table.print_at(&mut out, edge, &|each| table.rows.iter().try_for_each(each)).unwrap();
            anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
        };
        let all = at(None, false);
        assert_eq!((at(Some(60), false), all.lines().count()), (all.clone(), 2), "8 + 2 thrice, and 30");
        let fewer = at(Some(59), false);
        assert_eq!(fewer.lines().next(), Some("       a         b  site"));
        assert!(fewer.ends_with("\n… 1 column left out to fit: --wide shows all\n"), "{fewer}");
        let fewest = at(Some(30), false);
        assert!(fewest.starts_with("       b  site\n"), "{fewest}");
        assert!(fewest.ends_with("\n… 2 columns left out to fit: --wide shows all\n"), "{fewest}");
        assert_eq!(at(Some(59), true).lines().next(), all.lines().next(), "nothing gives way");
    }
}
