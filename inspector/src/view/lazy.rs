//! Rows that are made when they are shown: a list of a million takes no more memory than one row.

use serde::{Serialize, Serializer};

type Rows<'a, T> = Box<dyn Iterator<Item = T> + 'a>;

/// Rows that can be iterated any number of times.
pub(crate) struct Lazy<'a, T> {
    len: usize,
    rows: Box<dyn Fn() -> Rows<'a, T> + 'a>,
}

impl<'a, T: 'a> Lazy<'a, T> {
    /// Makes a row of each item with `row`.
    pub(crate) fn of<I: Copy + 'a>(items: Vec<I>, row: impl Fn(I) -> T + 'a) -> Self {
        // The closure that returns iterators is called for as long as `self` lives, and each iterator borrows from the
        // shared data.
        let shared = std::rc::Rc::new((items, row));
        let len = shared.0.len();
        let rows = move || {
            let shared = std::rc::Rc::clone(&shared);
            Box::new((0..len).map(move |at| (shared.1)(shared.0[at]))) as Rows<'a, T>
        };
        Self { len, rows: Box::new(rows) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> Rows<'a, T> {
        (self.rows)()
    }
}

impl<T: Serialize> Serialize for Lazy<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq((self.rows)())
    }
}
