//! The rows of a table that are shown, their order, and the chosen one.

use super::super::keys::Does;
use super::super::look::{Cell, Column, Row, Sheet};
use crate::view::grid::Kind;
use std::cmp::Ordering;

/// Order and choice of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct Rows {
    /// The chosen row: its position, and its id once a key has chosen it.
    pub at: usize,
    id: Option<String>,
    /// Column to sort by; `None`: the original order.
    pub sorted_by: Option<usize>,
    pub reversed: bool,
}

impl Rows {
    /// Returns the rows that match the filter, in order.
    pub(in super::super) fn shown<'a>(&self, sheet: &'a Sheet, filter: &str) -> Vec<&'a Row> {
        let filter = filter.to_lowercase();
        let has = |cell: &Cell| matches!(cell, Cell::Text(text) if text.to_lowercase().contains(&filter));
        let mut rows: Vec<&Row> =
            sheet.rows.iter().filter(|row| filter.is_empty() || row.cells.iter().any(has)).collect();
        if let Some(column) = self.sorted_by {
            rows.sort_by(|a, b| order(a.cells.get(column), b.cells.get(column)));
        }
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns the chosen row.
    pub(in super::super) fn chosen<'a>(&self, sheet: &'a Sheet, filter: &str) -> Option<&'a Row> {
        self.shown(sheet, filter).get(self.at).copied()
    }

    /// Chooses the row at a position, or the last one.
    pub(super) fn move_to(&mut self, at: usize, sheet: &Sheet, filter: &str) {
        let shown = self.shown(sheet, filter);
        self.at = at.min(shown.len().saturating_sub(1));
        // At the top the choice is the position itself, where the largest row appears.
        self.id = shown.get(self.at).filter(|_| self.at > 0).map(|row| row.id.clone());
    }

    /// Moves to the chosen row's present position.
    pub(super) fn follow(&mut self, sheet: &Sheet, filter: &str) {
        let shown = self.shown(sheet, filter);
        let now = self.id.as_ref().and_then(|id| shown.iter().position(|row| row.id == *id));
        self.at = now.unwrap_or(self.at).min(shown.len().saturating_sub(1));
    }

    /// Sorts by another column, or in reverse.
    pub(super) fn sort(&mut self, does: Does, columns: &[Column]) {
        if does == Does::Reverse {
            self.reversed = !self.reversed;
            return;
        }
        let sortable = |at: &usize| columns[*at].kind != Kind::Bars;
        let mut choices: Vec<Option<usize>> = (0..columns.len()).filter(sortable).map(Some).collect();
        choices.insert(0, None);
        let at = choices.iter().position(|choice| *choice == self.sorted_by).unwrap_or(0);
        let step = if does == Does::NextSort { 1 } else { choices.len() - 1 };
        self.sorted_by = choices[(at + step) % choices.len()];
    }
}

/// Puts the largest numbers first, texts in alphabetical order, empty cells last.
fn order(a: Option<&Cell>, b: Option<&Cell>) -> Ordering {
    let weight = |cell: Option<&Cell>| cell.and_then(Cell::weight);
    match (a, b) {
        (Some(Cell::Text(a)), Some(Cell::Text(b))) => a.cmp(b),
        _ => match (weight(a), weight(b)) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (a, b) => b.is_some().cmp(&a.is_some()),
        },
    }
}
