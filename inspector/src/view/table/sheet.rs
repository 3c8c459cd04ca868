//! A table's rows as text: to be sorted and searched, and drawn at any width.

use super::columns::{Cell, Columns, Shown};
use std::cmp::Ordering;

/// A table's columns and rows, without the data that they were made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    columns: Columns,
    rows: Vec<Vec<Cell>>,
    /// The columns, with the widths of their cells.
    seen: Vec<Shown>,
}

impl Sheet {
    pub(super) fn new(columns: Columns, rows: Vec<Vec<Cell>>) -> Self {
        let mut seen = columns.all();
        for row in &rows {
            seen.iter_mut().zip(row).for_each(|(of, cell)| of.see(cell));
        }
        columns.fit(&mut seen, None);
        Self { columns, rows, seen }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the titles of the columns that are not empty.
    pub(crate) fn titles(&self) -> impl Iterator<Item = &str> {
        self.seen.iter().map(|of| self.columns.title(of.column))
    }

    /// Returns the heading and these rows as painted lines of this width.
    pub(crate) fn lines(&self, edge: usize, rows: &[usize]) -> Vec<String> {
        let mut shown = self.seen.clone();
        self.columns.fit(&mut shown, Some(edge));
        let line = |&row: &usize| self.columns.line(&shown, |column| &self.rows[row][column]);
        std::iter::once(self.columns.heading(&shown)).chain(rows.iter().map(line)).collect()
    }

    /// Returns a row's values, each with its title, without empty ones.
    pub(crate) fn values(&self, row: usize) -> Vec<String> {
        let width = self.titles().map(crate::text::width).max().unwrap_or(0);
        let values = self.seen.iter().map(|of| (self.columns.title(of.column), &self.rows[row][of.column].text));
        let line = |(title, text): (&str, &String)| format!("{title:<width$}  {text}");
        values.filter(|(_, text)| !text.is_empty()).map(line).collect()
    }

    /// True if a cell of the row has this text, in small letters.
    pub(crate) fn has(&self, row: usize, text: &str) -> bool {
        self.rows[row].iter().any(|cell| cell.text.to_lowercase().contains(text))
    }

    /// Orders two rows by a column: the largest numbers first, texts in alphabetical order, empty cells last.
    pub(crate) fn order(&self, title: &str, a: usize, b: usize) -> Ordering {
        let column = self.seen.iter().find(|of| self.columns.title(of.column) == title);
        let Some(column) = column.map(|of| of.column) else { return Ordering::Equal };
        let (a, b) = (&self.rows[a][column], &self.rows[b][column]);
        let numbers = b.number.partial_cmp(&a.number).unwrap_or(Ordering::Equal);
        numbers.then_with(|| a.text.is_empty().cmp(&b.text.is_empty())).then_with(|| match a.number {
            Some(_) => Ordering::Equal,
            None => a.text.cmp(&b.text),
        })
    }
}
