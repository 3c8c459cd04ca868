//! Plain tables: a list of columns, each with a function that makes a row's cell.
//!
//! * [`columns`]: headings, widths, and which columns fit. [`sheet`]: a table's rows as text, to be sorted and searched.

mod columns;
mod sheet;

pub(crate) use columns::Cell;
pub(crate) use sheet::Sheet;

use crate::text::{self, units};
use anstyle::{AnsiColor, Style};
use columns::{Columns, Shown, Side};
use std::borrow::Borrow;
use std::io::Write;

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

/// Makes a row's cell in a column.
type MakeCell<'a, T> = Box<dyn Fn(&T) -> Cell + 'a>;
/// Makes the lines below a row.
type Below<'a, T> = Box<dyn Fn(&T) -> Vec<String> + 'a>;

/// Rows of type `T` under a heading.
pub(crate) struct Table<'a, T> {
    columns: Columns,
    cells: Vec<MakeCell<'a, T>>,
    below: Option<Below<'a, T>>,
}

impl<'a, T> Table<'a, T> {
    /// Returns a table without columns.
    pub(crate) fn new() -> Self {
        Self { columns: Columns::default(), cells: Vec::new(), below: None }
    }

    fn column<C: Into<Cell>>(mut self, title: &str, side: Side, way: u8, cell: impl Fn(&T) -> C + 'a) -> Self {
        self.columns.add(title, side, way);
        self.cells.push(Box::new(move |row| cell(row).into()));
        self
    }

    /// Adds a column of text, which may be shortened. On a narrow terminal columns with a `way` other than 0 are
    /// dropped, those with a low number first.
    pub(crate) fn left<C: Into<Cell>>(self, title: &str, way: u8, cell: impl Fn(&T) -> C + 'a) -> Self {
        self.column(title, Side::Left, way, cell)
    }

    /// Adds a column of text borrowed from the row.
    pub(crate) fn text(self, title: &str, way: u8, text: impl Fn(&T) -> &str + 'a) -> Self {
        self.left(title, way, move |row| text(row).to_owned())
    }

    /// Adds a column that is never cut.
    pub(crate) fn right<C: Into<Cell>>(self, title: &str, way: u8, cell: impl Fn(&T) -> C + 'a) -> Self {
        self.column(title, Side::Right, way, cell)
    }

    /// Adds a column of numbers, which `show` writes; empty for `None`.
    pub(crate) fn some(
        self,
        title: &str,
        way: u8,
        value: impl Fn(&T) -> Option<u64> + 'a,
        show: fn(u64) -> String,
    ) -> Self {
        self.right(title, way, move |row| value(row).map(|n| (n as f64, show(n))))
    }

    /// Adds a column of bytes.
    pub(crate) fn bytes(self, title: &str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.some(title, way, move |row| Some(value(row)), units::bytes)
    }

    /// Adds a column of bytes, empty for 0.
    pub(crate) fn some_bytes(self, title: &str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.some(title, way, move |row| Some(value(row)).filter(|&n| n > 0), units::bytes)
    }

    /// Adds a column of numbers.
    pub(crate) fn number(self, title: &str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.some(title, way, move |row| Some(value(row)), units::number)
    }

    /// Adds a column of times, given in nanoseconds.
    pub(crate) fn span(self, title: &str, way: u8, value: impl Fn(&T) -> u64 + 'a) -> Self {
        self.some(title, way, move |row| Some(value(row)), units::span)
    }

    /// Keeps the text of the column added last whole: a cut word could be misread.
    pub(crate) fn kept(mut self) -> Self {
        self.columns.keep_last();
        self
    }

    /// Lets the text of the column added last keep this width, also if other columns are dropped for it.
    pub(crate) fn keeping(mut self, width: usize) -> Self {
        self.columns.last_keeps(width);
        self
    }

    /// Moves the column added last in front of the one before it.
    pub(crate) fn before_last(mut self) -> Self {
        self.columns.swap_last();
        if let [.., a, b] = &mut self.cells[..] {
            std::mem::swap(a, b);
        }
        self
    }

    /// Sets `--wide`, which shows all columns.
    pub(crate) fn wide(mut self, wide: bool) -> Self {
        self.columns.wide = Some(wide);
        self
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
        let mut shown: Vec<Shown> = self.columns.all();
        for row in rows() {
            for of in &mut shown {
                of.see(&(self.cells[of.column])(row.borrow()));
            }
        }
        let left_out = self.columns.fit(&mut shown, edge);
        writeln!(out, "{}", self.columns.heading(&shown))?;
        for row in rows() {
            writeln!(out, "{}", self.columns.line(&shown, |at| (self.cells[at])(row.borrow())))?;
            let below = self.below.as_ref().map(|below| below(row.borrow())).unwrap_or_default();
            below.iter().try_for_each(|line| writeln!(out, "{}", paint(DIM, text::clean(line))))?;
        }
        if left_out > 0 {
            let columns = text::count(left_out, "column");
            let how = if self.columns.wide.is_some() { "--wide" } else { "a wider terminal" };
            writeln!(out, "{}", paint(DIM, format!("… {columns} left out to fit: {how} shows all")))?;
        }
        Ok(())
    }

    /// Returns the rows as text.
    pub(crate) fn sheet(self, rows: impl Iterator<Item: Borrow<T>>) -> Sheet {
        let cells = |row: &T| self.cells.iter().map(|cell| cell(row)).collect();
        let rows = rows.map(|row| cells(row.borrow())).collect();
        Sheet::new(self.columns, rows)
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
    use unicode_width::UnicodeWidthStr;

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
    fn text_that_keeps_its_width_drops_the_columns_behind_it() {
        let table =
            Table::<()>::new().right("time", 0, |()| "12:00:00").left("text", 0, |()| "t".repeat(60)).keeping(40);
        let table = table.left("site", 2, |()| "s".repeat(30));
        assert_eq!(print(&table, &[()], Some(82)).lines().next().map(|line| line.contains("site")), Some(true));
        let narrow = print(&table, &[()], Some(74));
        assert!(!narrow.contains("site") && narrow.contains(&"t".repeat(60)), "{narrow}");
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
