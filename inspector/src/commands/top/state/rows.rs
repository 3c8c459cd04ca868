//! The rows of a table that are shown, their order, and the chosen one.

use super::super::keys::Does;
use super::super::look::List;

/// Order and choice of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct Rows {
    /// The chosen row: its position, and its id once a key has chosen it.
    pub at: usize,
    id: Option<String>,
    /// Title of the column to sort by; `None`: the original order.
    pub sorted_by: Option<String>,
    pub reversed: bool,
}

impl Rows {
    /// Returns the rows that match the filter, in order.
    pub(in super::super) fn shown(&self, list: &List, filter: &str) -> Vec<usize> {
        let filter = filter.to_lowercase();
        let sheet = &list.sheet;
        let mut rows: Vec<usize> =
            (0..sheet.len()).filter(|&row| filter.is_empty() || sheet.has(row, &filter)).collect();
        if let Some(title) = &self.sorted_by {
            rows.sort_by(|&a, &b| sheet.order(title, a, b));
        }
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns the chosen row.
    pub(in super::super) fn chosen(&self, list: &List, filter: &str) -> Option<usize> {
        self.shown(list, filter).get(self.at).copied()
    }

    /// Chooses the row at a position, or the last one.
    pub(super) fn move_to(&mut self, at: usize, list: &List, filter: &str) {
        let shown = self.shown(list, filter);
        self.at = at.min(shown.len().saturating_sub(1));
        // At the top the choice is the position itself, where the largest row appears.
        self.id = shown.get(self.at).filter(|_| self.at > 0).map(|&row| list.keys[row].id.clone());
    }

    /// Moves to the chosen row's present position.
    pub(super) fn follow(&mut self, list: &List, filter: &str) {
        let shown = self.shown(list, filter);
        let now = self.id.as_ref().and_then(|id| shown.iter().position(|&row| list.keys[row].id == *id));
        self.at = now.unwrap_or(self.at).min(shown.len().saturating_sub(1));
    }

    /// Sorts by another column, or in reverse.
    pub(super) fn sort(&mut self, does: Does, list: &List) {
        let Does::OtherSort(forward) = does else {
            self.reversed = !self.reversed;
            return;
        };
        let mut choices = vec![None];
        choices.extend(list.sheet.titles().map(|title| Some(title.to_owned())));
        let at = choices.iter().position(|choice| *choice == self.sorted_by).unwrap_or(0);
        let step = if forward { 1 } else { choices.len() - 1 };
        self.sorted_by = choices.swap_remove((at + step) % choices.len());
    }
}
