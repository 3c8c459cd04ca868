//! The texts of a ledger, each stored once, and a limit on the text made from them.

use gpumem_wire::layout::StrRef;
use gpumem_wire::read::Snapshot;
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::rc::Rc;

/// Memory limit for text made from a ledger's texts: a text is in the file once, but may be used any number of times.
/// Beyond the limit, words are cut short.
#[derive(Debug)]
pub(crate) struct Room(Cell<usize>);

/// Bytes of all words before they are cut, and the length of each word from then on.
const ALL_WORDS: usize = 16 << 20;
const CUT_WORD: usize = 80;

impl Default for Room {
    fn default() -> Self {
        Self(Cell::new(ALL_WORDS))
    }
}

impl Room {
    /// Returns a word, or its beginning.
    pub(crate) fn word(&self, word: &str) -> Rc<str> {
        match self.0.get().checked_sub(word.len()) {
            Some(left) => self.0.set(left),
            None => return cut(word, CUT_WORD).into(),
        }
        word.into()
    }
}

/// Returns the beginning of a text, at most this many bytes.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// The texts of a ledger, each stored once.
pub(super) struct Shared<'a> {
    snapshot: &'a Snapshot,
    known: FxHashMap<StrRef, Rc<str>>,
}

impl<'a> Shared<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, known: FxHashMap::default() }
    }

    pub(super) fn text(&mut self, at: StrRef) -> Rc<str> {
        Rc::clone(self.known.entry(at).or_insert_with(|| self.snapshot.text(at).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_once_there_are_too_many() {
        let (room, long) = (Room::default(), "x".repeat(1 << 20));
        let words: Vec<_> = (0..100).map(|_| room.word(&long)).collect();
        assert_eq!((words[0].len(), words[99].len()), (long.len(), CUT_WORD));
        assert!(words.iter().map(|word| word.len()).sum::<usize>() <= 17 << 20);
    }
}
