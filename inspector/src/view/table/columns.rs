//! The columns of a table. They are padded to their widest cell. On a narrow terminal whole columns are dropped: empty
//! ones first, then in the order of their `way`, then numbers. Text is shortened. Numbers are never cut, nor is text in a
//! kept column.

use super::{HEAD, paint};
use crate::text;
use anstyle::Style;
use std::borrow::Borrow;
use unicode_width::UnicodeWidthStr;

/// Alignment of a cell's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A row's cell in a column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(super) text: String,
    style: Style,
    /// The number that the text shows.
    pub(super) number: Option<f64>,
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
        Self { text: text::clean(&text).into_owned(), style, number: None }
    }
}

/// A number and its text; an empty cell for `None`.
impl From<Option<(f64, String)>> for Cell {
    fn from(value: Option<(f64, String)>) -> Self {
        value.map(|(number, text)| Self { number: Some(number), ..text.into() }).unwrap_or_default()
    }
}

/// Heading and place of a column.
#[derive(Clone, Debug)]
struct Column {
    title: String,
    side: Side,
    way: u8,
    is_kept: bool,
    /// Width that its text keeps if it is not the last column.
    keeps: usize,
}

/// The columns of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    list: Vec<Column>,
    /// True if `--wide` was given; `None` if the command has no such option.
    pub wide: Option<bool>,
}

/// Width that the last column keeps before columns with a `way` are dropped for it, and width that it keeps before
/// other columns are.
const LAST_WANTS: usize = 40;
const LAST_KEEPS: usize = 24;
/// Width that any other text column keeps, unless it says another.
const TEXT_KEEPS: usize = 12;
/// Gap between two columns.
const GAP: usize = 2;
/// Cells that count as empty.
const NOTHING: [&str; 4] = ["", "0", "0 B", "never"];

/// A column that is shown: its number, its width, and true if it holds anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub column: usize,
    width: usize,
    says: bool,
}

impl Shown {
    /// Takes a cell into account.
    pub(super) fn see(&mut self, cell: &Cell) {
        self.width = self.width.max(cell.text.width());
        self.says |= !NOTHING.contains(&&*cell.text);
    }
}

impl Columns {
    pub(super) fn add(&mut self, title: &str, side: Side, way: u8) {
        self.list.push(Column { title: title.to_owned(), side, way, is_kept: false, keeps: TEXT_KEEPS });
    }

    pub(super) fn keep_last(&mut self) {
        self.list.iter_mut().next_back().into_iter().for_each(|column| column.is_kept = true);
    }

    pub(super) fn last_keeps(&mut self, width: usize) {
        self.list.iter_mut().next_back().into_iter().for_each(|column| column.keeps = width);
    }

    pub(super) fn swap_last(&mut self) {
        if let [.., a, b] = &mut self.list[..] {
            std::mem::swap(a, b);
        }
    }

    pub(super) fn title(&self, column: usize) -> &str {
        &self.list[column].title
    }

    /// Returns all columns; no cell was seen yet.
    pub(super) fn all(&self) -> Vec<Shown> {
        (0..self.list.len()).map(|column| Shown { column, width: 0, says: false }).collect()
    }

    /// Removes empty columns, and fits the others to the terminal's width; returns the number of dropped ones.
    pub(super) fn fit(&self, shown: &mut Vec<Shown>, edge: Option<usize>) -> u64 {
        shown.retain(|of| of.width > 0);
        shown.iter_mut().for_each(|of| of.width = of.width.max(self.title(of.column).width()));
        let Some(edge) = edge else { return 0 };
        let all = shown.len();
        if self.wide != Some(true) {
            let mut ways: Vec<Shown> = shown.iter().copied().filter(|of| self.list[of.column].way > 0).collect();
            ways.sort_by_key(|of| (of.says, self.list[of.column].way));
            for first in ways {
                if self.least(shown, LAST_WANTS) <= edge {
                    break;
                }
                shown.retain(|of| of.column != first.column);
            }
            // Then drop numbers, the last ones first. The first column stays, because rows are sorted by it.
            while self.least(shown, LAST_KEEPS) > edge {
                let numbers = |of: &Shown| self.list[of.column].side == Side::Right;
                match shown.iter().rposition(numbers).filter(|&place| place > 0) {
                    Some(place) => drop(shown.remove(place)),
                    None => break,
                }
            }
            // Then drop text beside kept text.
            while self.list.iter().any(|column| column.is_kept) && self.least(shown, LAST_KEEPS) > edge {
                let last = shown.len().saturating_sub(1);
                match (1..last).rev().find(|&place| !self.list[shown[place].column].is_kept) {
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
        let width = |(place, of): (usize, &Shown)| match &self.list[of.column] {
            column if column.side == Side::Right || column.is_kept => of.width,
            _ if place == last => of.width.min(last_keeps),
            column => of.width.min(column.keeps.max(column.title.width())),
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
        for place in std::iter::once(last).chain(order).take(shown.len()) {
            let Shown { column, width, .. } = &mut shown[place];
            let Column { title, side, is_kept, keeps, .. } = &self.list[*column];
            let keeps = if place == last { LAST_KEEPS } else { *keeps };
            if *side == Side::Left && !is_kept {
                let less = over.min(width.saturating_sub(keeps.max(title.width())));
                (*width, over) = (*width - less, over - less);
            }
        }
    }

    /// Returns the line of the titles.
    pub(super) fn heading(&self, shown: &[Shown]) -> String {
        self.line(shown, |column| Cell::from((self.list[column].title.clone(), HEAD)))
    }

    /// Returns a painted line.
    pub(super) fn line<C: Borrow<Cell>>(&self, shown: &[Shown], cell: impl Fn(usize) -> C) -> String {
        let mut line = String::new();
        for (index, &Shown { column, width, .. }) in shown.iter().enumerate() {
            let made = cell(column);
            let Cell { text, style, .. } = made.borrow();
            let (side, last) = (self.list[column].side, index + 1 == shown.len());
            let text = match side {
                Side::Left => text::shorten(text, width),
                Side::Right => text.as_str().into(),
            };
            let padding = " ".repeat(width.saturating_sub(text.width()));
            let painted = if text.is_empty() { String::new() } else { paint(*style, &text) };
            match side {
                Side::Right => line.extend([padding, painted]),
                Side::Left if last => line.push_str(&painted),
                Side::Left => line.extend([painted, padding]),
            }
            if !last {
                line.push_str(&" ".repeat(GAP));
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}
