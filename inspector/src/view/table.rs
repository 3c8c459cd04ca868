//! Plain tables: columns padded to their widest cell. On a terminal that is too narrow columns of numbers give way as
//! a whole, those first that the table names, and text is shortened. A number is never cut, nor is text that the table
//! keeps.

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
    /// Columns of text that are shown whole.
    kept: &'static [&'static str],
    /// Whether `--wide` was given; `None` where the command has no such option.
    wide: Option<bool>,
}

/// Hands every row to its argument.
type Rows<'a> = &'a dyn Fn(&mut dyn FnMut(&Line) -> std::io::Result<()>) -> std::io::Result<()>;

/// How much of its width the last column keeps before columns that the table names give way for it, and how much before
/// others do.
const LAST_WANTS: usize = 40;
const LAST_KEEPS: usize = 24;
/// How much of its width any other column of text keeps.
const TEXT_KEEPS: usize = 12;
/// Between two columns.
const GAP: usize = 2;

impl Table {
    /// A table with these columns.
    pub(crate) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), giving_way: &[], kept: &[], wide: None }
    }

    /// Leaves out these columns first, in this order, until the others fit on the terminal, if there is one; says
    /// so, and that `--wide` shows all, which is `wide`.
    pub(crate) fn gives_way(mut self, columns: &'static [&'static str], wide: bool) -> Self {
        self.giving_way = columns;
        self.wide = Some(wide);
        self
    }

    /// As [`gives_way`](Self::gives_way), where no option shows all.
    pub(crate) fn without(mut self, columns: &'static [&'static str]) -> Self {
        self.giving_way = columns;
        self
    }

    /// Shortens none of the text in these columns: half of a word says something else.
    pub(crate) fn keeps(mut self, columns: &'static [&'static str]) -> Self {
        self.kept = columns;
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
            let how = if self.wide.is_some() { "--wide" } else { "a wider terminal" };
            writeln!(out, "{}", paint(DIM, format!("… {columns} left out to fit: {how} shows all")))?;
        }
        Ok(())
    }

    /// Makes the columns fit before the edge of the terminal; how many gave way.
    fn fit(&self, shown: &mut Vec<(usize, usize)>, edge: usize) -> u64 {
        let all = shown.len();
        if self.wide != Some(true) {
            for &name in self.giving_way {
                if self.least(shown, LAST_WANTS) <= edge {
                    break;
                }
                shown.retain(|&(column, _)| self.columns[column].0 != name);
            }
            // Then numbers, the last ones first. The first column stays: it is what rows are sorted by.
            while self.least(shown, LAST_KEEPS) > edge {
                let numbers = |&(column, _): &(usize, usize)| self.columns[column].1 == Side::Right;
                match shown.iter().rposition(numbers).filter(|&place| place > 0) {
                    Some(place) => drop(shown.remove(place)),
                    None => break,
                }
            }
            // Then text beside text that is kept.
            while !self.kept.is_empty() && self.least(shown, LAST_KEEPS) > edge {
                let last = shown.len().saturating_sub(1);
                let gives = |&place: &usize| !self.is_kept(shown[place].0);
                match (1..last).rev().find(gives) {
                    Some(place) => drop(shown.remove(place)),
                    None => break,
                }
            }
        }
        self.shorten(shown, edge);
        (all - shown.len()) as u64
    }

    /// Columns of the terminal that a line takes at least, where the last column keeps this much.
    fn least(&self, shown: &[(usize, usize)], last_keeps: usize) -> usize {
        let last = shown.len().saturating_sub(1);
        let width = |(place, &(column, width)): (usize, &(usize, usize))| match self.columns[column].1 {
            Side::Right => width,
            Side::Left if self.is_kept(column) => width,
            Side::Left if place == last => width.min(last_keeps),
            Side::Left => width.min(TEXT_KEEPS.max(self.columns[column].0.width())),
        };
        shown.iter().enumerate().map(width).sum::<usize>() + last * GAP
    }

    fn is_kept(&self, column: usize) -> bool {
        self.kept.contains(&self.columns[column].0)
    }

    /// Takes what is too much from text: from the last column first, then from the widest others.
    fn shorten(&self, shown: &mut [(usize, usize)], edge: usize) {
        let taken = shown.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP);
        let mut over = taken.saturating_sub(edge);
        let last = shown.len().saturating_sub(1);
        // With --wide the other columns stay whole, and lines may be too long.
        let others = if self.wide == Some(true) { 0 } else { last };
        let mut order: Vec<usize> = (0..others).collect();
        order.sort_by_key(|&place| std::cmp::Reverse(shown[place].1));
        let keeps = |place: usize| if place == last { LAST_KEEPS } else { TEXT_KEEPS };
        for place in std::iter::once(last).chain(order).take(shown.len()) {
            let (column, width) = &mut shown[place];
            let (title, side) = self.columns[*column];
            if side == Side::Left && !self.kept.contains(&title) {
                let less = over.min(width.saturating_sub(keeps(place).max(title.width())));
                (*width, over) = (*width - less, over - less);
            }
        }
    }

    fn line(&self, out: &mut dyn Write, row: &[Cell], shown: &[(usize, usize)]) -> std::io::Result<()> {
        let empty = Cell { text: String::new(), style: Style::new() };
        let mut line = String::new();
        for (index, &(column, width)) in shown.iter().enumerate() {
            let cell = row.get(column).unwrap_or(&empty);
            let last = index + 1 == shown.len();
            let text = match self.columns[column].1 {
                Side::Left => text::shorten(&cell.text, width),
                Side::Right => cell.text.as_str().into(),
            };
            let padding = " ".repeat(width.saturating_sub(text.width()));
            let painted = if text.is_empty() { String::new() } else { paint(cell.style, &text) };
            match self.columns[column].1 {
                Side::Right => line.extend([padding, painted]),
                Side::Left if last => line.push_str(&painted),
                Side::Left => line.extend([painted, padding]),
            }
            if !last {
                line.push_str(&" ".repeat(GAP));
            }
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// Columns of the terminal on stdout; `None` if it is none.
pub(crate) fn terminal_columns() -> Option<usize> {
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

    #[test]
    fn numbers_are_whole_on_any_terminal() {
        let (left, right) = (Side::Left, Side::Right);
        let mut table =
            Table::new(&[("growth", right), ("name", left), ("after", right), ("why", left), ("site", left)]);
        table.row(["+10.0 MiB".into(), "n".repeat(40), "100.0 MiB".into(), "w".repeat(20), "s".repeat(50)]);
        for edge in 40..140 {
            let mut out = Vec::new();
            table.print_at(&mut out, Some(edge), &|each| table.rows.iter().try_for_each(each)).unwrap();
            let shown = anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string();
            assert!(shown.lines().all(|line| edge < 63 || line.width() <= edge), "{edge}:\n{shown}");
            assert!(shown.contains("+10.0 MiB"), "{edge}:\n{shown}");
            let note = "… 1 column left out to fit: a wider terminal shows all\n";
            assert_eq!(shown.contains("100.0 MiB"), !shown.ends_with(note), "{edge}:\n{shown}");
            assert_eq!(shown.ends_with(note), edge < 74, "{edge}:\n{shown}");
        }
    }
}
