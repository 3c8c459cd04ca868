//! Plain tables: a list of columns, each with a function that makes a row's cell. Columns are padded to their widest
//! cell. On a narrow terminal whole columns are dropped: empty ones first, then in the order of their `way`, then
//! numbers. Text is shortened. Numbers are never cut, nor is text in a kept column.

use crate::text::{self, units};
use anstyle::{AnsiColor, Style};
use std::borrow::Borrow;
use std::io::Write;
use unicode_width::UnicodeWidthStr;

/// Headings.
pub(crate) const HEAD: Style = Style::new().bold();
/// Less important text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Good values.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Values that deserve a look.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Problems.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// `text` in a style; the stream strips it if colours are off.
pub(crate) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Alignment of a cell's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A row's cell in a column.
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        (text, Style::new()).into()
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Control characters are removed from the text.
impl From<(String, Style)> for Cell {
    fn from((text, style): (String, Style)) -> Self {
        Self { text: text::clean(&text).into_owned(), style }
    }
}

/// A column of a table whose rows are of type `T`.
struct Column<'a, T> {
    title: &'a str,
    side: Side,
    way: u8,
    is_kept: bool,
    cell: Box<dyn Fn(&T) -> Cell + 'a>,
}

/// Makes the lines below a row.
type Below<'a, T> = Box<dyn Fn(&T) -> Vec<String> + 'a>;

/// Rows under a heading.
pub(crate) struct Table<'a, T> {
    columns: Vec<Column<'a, T>>,
    below: Option<Below<'a, T>>,
    /// True if `--wide` was given; `None` if the command has no such option.
    wide: Option<bool>,
}

/// Width that the last column keeps before columns with a `way` are dropped for it, and width that it keeps before
/// other columns are.
const LAST_WANTS: usize = 40;
const LAST_KEEPS: usize = 24;
/// Width that any other text column keeps.
const TEXT_KEEPS: usize = 12;
/// Gap between two columns.
const GAP: usize = 2;
/// Cells that count as empty.
const NOTHING: [&str; 4] = ["", "0", "0 B", "never"];

/// A column that is shown: its number, its width, and true if it holds anything.
#[derive(Clone, Copy)]
struct Shown {
    column: usize,
    width: usize,
    says: bool,
}

impl<'a, T> Table<'a, T> {
    /// Returns a table without columns.
    pub(crate) fn new() -> Self {
        Self { columns: Vec::new(), below: None, wide: None }
    }

    fn column<C: Into<Cell>>(mut self, title: &'a str, side: Side, way: u8, cell: impl Fn(&T) -> C + 'a) -> Self {
        self.columns.push(Column { title, side, way, is_kept: false, cell: Box::new(move |row| cell(row).into()) });
        self
    }

    /// Adds a column of text, which may be shortened. On a narrow terminal columns with a `way` other than 0 are
    /// dropped, those with a low number first.
    pub(crate) fn left<C: Into<Cell>>(self, title: &'a str, way: u8, cell: impl Fn(&T) -> C + 'a) -> Self {
        self.column(title, Side::Left, way, cell)
    }

    /// Adds a column of text borrowed from the row.
    pub(crate) fn text(self, title: &'a str, way: u8, text: impl Fn(&T) -> &str + 'a) -> Self {
        self.left(title, way, move |row| text(row).to_owned())
    }

    /// Adds a column that is never cut.
    pub(crate) fn right<C: Into<Cell>>(self, title: &'a str, way: u8, cell: impl Fn(&T) -> C + 'a) -> Self {
        self.column(title, Side::Right, way, cell)
    }

    /// Adds a column of bytes.
    pub(crate) fn bytes(self, title: &'a str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.right(title, way, move |row| units::bytes(value(row)))
    }

    /// Adds a column of bytes, empty for 0.
    pub(crate) fn some_bytes(self, title: &'a str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.right(title, way, move |row| Some(value(row)).filter(|&n| n > 0).map(units::bytes).unwrap_or_default())
    }

    /// Adds a column of numbers.
    pub(crate) fn number(self, title: &'a str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.right(title, way, move |row| units::number(value(row)))
    }

    /// Adds a column of times, given in nanoseconds.
    pub(crate) fn span(self, title: &'a str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.right(title, way, move |row| units::span(value(row)))
    }

    /// Keeps the text of the column added last whole: a cut word could be misread.
    pub(crate) fn kept(mut self) -> Self {
        self.columns.iter_mut().next_back().into_iter().for_each(|column| column.is_kept = true);
        self
    }

    /// Sets `--wide`, which shows all columns.
    pub(crate) fn wide(self, wide: bool) -> Self {
        Self { wide: Some(wide), ..self }
    }

    /// Prints these lines below a row.
    pub(crate) fn below(self, below: impl Fn(&T) -> Vec<String> + 'a) -> Self {
        Self { below: Some(Box::new(below)), ..self }
    }

    /// Writes the table. Columns that are empty in every row are left out. Rows are made twice, since the last row may
    /// be the widest.
    pub(crate) fn print<I>(&self, out: &mut dyn Write, rows: impl Fn() -> I) -> std::io::Result<()>
    where
        I: Iterator<Item: Borrow<T>>,
    {
        self.print_at(out, terminal_columns(), rows)
    }

    fn print_at<I>(&self, out: &mut dyn Write, edge: Option<usize>, rows: impl Fn() -> I) -> std::io::Result<()>
    where
        I: Iterator<Item: Borrow<T>>,
    {
        let mut shown: Vec<Shown> =
            (0..self.columns.len()).map(|column| Shown { column, width: 0, says: false }).collect();
        for row in rows() {
            for of in &mut shown {
                let text = (self.columns[of.column].cell)(row.borrow()).text;
                of.width = of.width.max(text.width());
                of.says |= !NOTHING.contains(&&*text);
            }
        }
        shown.retain(|of| of.width > 0);
        shown.iter_mut().for_each(|of| of.width = of.width.max(self.columns[of.column].title.width()));
        let left_out = edge.map(|edge| self.fit(&mut shown, edge)).unwrap_or_default();
        self.line(out, &shown, |column| Cell { text: column.title.to_owned(), style: HEAD })?;
        for row in rows() {
            self.line(out, &shown, |column| (column.cell)(row.borrow()))?;
            let below = self.below.as_ref().map(|below| below(row.borrow())).unwrap_or_default();
            below.iter().try_for_each(|line| writeln!(out, "{}", paint(DIM, text::clean(line))))?;
        }
        if left_out > 0 {
            let columns = text::count(left_out, "column");
            let how = if self.wide.is_some() { "--wide" } else { "a wider terminal" };
            writeln!(out, "{}", paint(DIM, format!("… {columns} left out to fit: {how} shows all")))?;
        }
        Ok(())
    }

    /// Fits the columns to the terminal's width; returns the number of dropped ones.
    fn fit(&self, shown: &mut Vec<Shown>, edge: usize) -> u64 {
        let all = shown.len();
        if self.wide != Some(true) {
            let mut ways: Vec<Shown> = shown.iter().copied().filter(|of| self.columns[of.column].way > 0).collect();
            ways.sort_by_key(|of| (of.says, self.columns[of.column].way));
            for first in ways {
                if self.least(shown, LAST_WANTS) <= edge {
                    break;
                }
                shown.retain(|of| of.column != first.column);
            }
            // Then drop numbers, the last ones first. The first column stays, because rows are sorted by it.
            while self.least(shown, LAST_KEEPS) > edge {
                let numbers = |of: &Shown| self.columns[of.column].side == Side::Right;
                match shown.iter().rposition(numbers).filter(|&place| place > 0) {
                    Some(place) => drop(shown.remove(place)),
                    None => break,
                }
            }
            // Then drop text beside kept text.
            while self.columns.iter().any(|column| column.is_kept) && self.least(shown, LAST_KEEPS) > edge {
                let last = shown.len().saturating_sub(1);
                match (1..last).rev().find(|&place| !self.columns[shown[place].column].is_kept) {
                    Some(place) => drop(shown.remove(place)),
                    None => break,
                }
            }
        }
        self.shorten(shown, edge);
        (all - shown.len()) as u64
    }

    /// Returns the least width of a line, if the last column keeps `last_keeps`.
    fn least(&self, shown: &[Shown], last_keeps: usize) -> usize {
        let last = shown.len().saturating_sub(1);
        let width = |(place, of): (usize, &Shown)| match &self.columns[of.column] {
            column if column.side == Side::Right || column.is_kept => of.width,
            _ if place == last => of.width.min(last_keeps),
            column => of.width.min(TEXT_KEEPS.max(column.title.width())),
        };
        shown.iter().enumerate().map(width).sum::<usize>() + last * GAP
    }

    /// Shortens text by the excess: the last column first, then the widest others.
    fn shorten(&self, shown: &mut [Shown], edge: usize) {
        let taken = shown.iter().map(|of| of.width + GAP).sum::<usize>().saturating_sub(GAP);
        let mut over = taken.saturating_sub(edge);
        let last = shown.len().saturating_sub(1);
        // With --wide the other columns stay whole, and lines may be too long.
        let others = if self.wide == Some(true) { 0 } else { last };
        let mut order: Vec<usize> = (0..others).collect();
        order.sort_by_key(|&place| std::cmp::Reverse(shown[place].width));
        let keeps = |place: usize| if place == last { LAST_KEEPS } else { TEXT_KEEPS };
        for place in std::iter::once(last).chain(order).take(shown.len()) {
            let Shown { column, width, .. } = &mut shown[place];
            let Column { title, side, is_kept, .. } = &self.columns[*column];
            if *side == Side::Left && !is_kept {
                let less = over.min(width.saturating_sub(keeps(place).max(title.width())));
                (*width, over) = (*width - less, over - less);
            }
        }
    }

    fn line(&self, out: &mut dyn Write, shown: &[Shown], cell: impl Fn(&Column<T>) -> Cell) -> std::io::Result<()> {
        let mut line = String::new();
        for (index, &Shown { column, width, .. }) in shown.iter().enumerate() {
            let column = &self.columns[column];
            let Cell { text, style } = cell(column);
            let last = index + 1 == shown.len();
            let text = match column.side {
                Side::Left => text::shorten(&text, width),
                Side::Right => text.as_str().into(),
            };
            let padding = " ".repeat(width.saturating_sub(text.width()));
            let painted = if text.is_empty() { String::new() } else { paint(style, &text) };
            match column.side {
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

/// Returns the width of the terminal on stdout; `None` if stdout is no terminal.
pub(crate) fn terminal_columns() -> Option<usize> {
    terminal_size().map(|(columns, _)| columns)
}

/// Returns the width and height of the terminal on stdout.
pub(crate) fn terminal_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok().filter(|size| size.ws_col > 0)?;
    Some((size.ws_col.into(), size.ws_row.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print<T>(table: &Table<T>, rows: &[T], edge: Option<usize>) -> String {
        let mut out = Vec::new();
        table.print_at(&mut out, edge, || rows.iter()).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn columns_line_up_and_empty_ones_vanish() {
        let table = Table::<(u64, &str)>::new().bytes("bytes", 0, |row| row.0);
        let table = table.left("tag", 0, |_| "").text("site", 0, |row| row.1);
        let said = print(&table, &[(1, "main"), (10 << 20, "esc\x1b[31m")], None);
        assert_eq!(said, "   bytes  site\n     1 B  main\n10.0 MiB  esc\\x1b[31m\n");
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns() {
        let at = |edge, wide| {
            let table = Table::new().right("a", 2, |()| "aaaaaaaa").right("b", 0, |()| "bbbbbbbb");
            let table = table.right("c", 1, |()| "cccccccc").left("site", 0, |()| "s".repeat(30));
            print(&table.wide(wide), &[()], edge)
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
    fn columns_that_say_nothing_give_way_first() {
        let table = Table::new().right("a", 1, |()| "aaaaaaaa").right("b", 2, |()| "0 B");
        let shown = print(&table.left("site", 0, |()| "s".repeat(30)), &[()], Some(42));
        assert!(shown.starts_with("       a  site\n"), "{shown}");
    }

    #[test]
    fn numbers_are_whole_on_any_terminal() {
        let table = Table::<()>::new().right("growth", 0, |()| "+10.0 MiB").left("name", 0, |()| "n".repeat(40));
        let table = table.right("after", 0, |()| "100.0 MiB").left("why", 0, |()| "w".repeat(20));
        let table = table.left("site", 0, |()| "s".repeat(50));
        for edge in 40..140 {
            let shown = print(&table, &[()], Some(edge));
            assert!(shown.lines().all(|line| edge < 63 || line.width() <= edge), "{edge}:\n{shown}");
            assert!(shown.contains("+10.0 MiB"), "{edge}:\n{shown}");
            let note = "… 1 column left out to fit: a wider terminal shows all\n";
            assert_eq!(shown.contains("100.0 MiB"), !shown.ends_with(note), "{edge}:\n{shown}");
            assert_eq!(shown.ends_with(note), edge < 74, "{edge}:\n{shown}");
        }
    }
}
