//! Known places in Python code, and the word that stands for each in a stack.
//!
//! An entry has two words, the first mixed with the second, so that an entry torn by two writers matches nothing. A
//! place is looked up by a number made of the address, the place in the code, and the contents of the code object
//! ([`super::code::print`]), since addresses are reused. A place that was forgotten or is new is read again.

use crate::process::heap;
use once_cell::race::OnceBox;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of places kept: 64 KiB. A program that uses PyTorch has some hundreds.
const PLACES: usize = 4096;

/// The entries; allocated for the first one.
pub(super) struct SeenCode(OnceBox<Box<[AtomicU64]>>);

impl SeenCode {
    pub(super) const fn new() -> Self {
        Self(OnceBox::new())
    }

    #[inline(always)]
    fn entry(&self, print: u64) -> &[AtomicU64] {
        let words = self.0.get_or_init(|| {
            let words: Box<[u64]> = heap::zeroes(2 * PLACES);
            Box::new(words.into_iter().map(AtomicU64::new).collect())
        });
        let at = (print >> 32) as usize % PLACES * 2;
        &words[at..at + 2]
    }

    /// Returns the word for a place, never 0.
    #[inline(always)]
    pub(super) fn find(&self, print: u64) -> Option<u64> {
        let [mixed, word] = self.entry(print) else { return None };
        let word = word.load(Relaxed);
        (word != 0 && mixed.load(Relaxed) ^ word == print).then_some(word)
    }

    pub(super) fn put(&self, print: u64, stands: u64) {
        if let [mixed, word] = self.entry(print) {
            mixed.store(print ^ stands, Relaxed);
            word.store(stands, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_until_another_takes_its_entry() {
        let known = SeenCode::new();
        assert_eq!(known.find(7 << 32), None);
        known.put(7 << 32, 5);
        assert_eq!(known.find(7 << 32), Some(5));
        assert_eq!(known.find(7 << 32 | 1), None);
        known.put((7 + PLACES as u64) << 32, 6);
        assert_eq!((known.find(7 << 32), known.find((7 + PLACES as u64) << 32)), (None, Some(6)));
    }
}
