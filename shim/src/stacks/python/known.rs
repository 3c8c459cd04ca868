//! Known places in Python code, and the word that stands for each in a stack.
//!
//! An entry has two words, the first mixed with the second, so that an entry torn by two writers matches nothing. A
//! place is looked up by a number made of the address, the place in the code, and the contents of the code object
//! ([`super::code::print`]), since addresses are reused. A place that was forgotten or is new is read again.
//!
//! A place may be in any entry of its set, which is a cache line. With one entry for each place, two of a hundred places
//! shared an entry, and each stack with both read one of them again.

use crate::process::heap;
use once_cell::race::OnceBox;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of places kept: 64 KiB. A program that uses PyTorch has some hundreds.
const PLACES: usize = 4096;
/// Entries of a set.
const WAYS: usize = 4;

/// Mixes one more word into the number of a place or of a stack.
#[inline(always)]
pub(super) fn mix(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Mixes bytes into a number.
#[inline(always)]
pub(super) fn mix_bytes(mut sum: u64, bytes: &[u8]) -> u64 {
    // Four sums at a time, because a processor waits for each product before the next one of the same sum.
    let (fours, bytes) = bytes.as_chunks::<32>();
    let mut lanes = [sum; 4];
    for four in fours {
        for (lane, word) in lanes.iter_mut().zip(four.as_chunks::<8>().0) {
            *lane = mix(*lane, u64::from_ne_bytes(*word));
        }
    }
    if !fours.is_empty() {
        sum = lanes.iter().fold(sum, |sum, lane| mix(sum, *lane));
    }
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum = mix(sum, u64::from_ne_bytes(*word));
    }
    let rest = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    mix(sum, rest)
}

/// The entries; allocated for the first one.
pub(super) struct SeenCode(OnceBox<Box<[AtomicU64]>>);

impl SeenCode {
    pub(super) const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// Returns the entries that may hold a place.
    #[inline(always)]
    fn set(&self, print: u64) -> &[[AtomicU64; 2]] {
        let words = self.0.get_or_init(|| {
            let words: Box<[u64]> = heap::zeroes(2 * PLACES);
            Box::new(words.into_iter().map(AtomicU64::new).collect())
        });
        let at = (print >> 32) as usize % (PLACES / WAYS) * WAYS;
        &words.as_chunks::<2>().0[at..at + WAYS]
    }

    /// Returns the word for a place, never 0.
    #[inline(always)]
    pub(super) fn find(&self, print: u64) -> Option<u64> {
        self.set(print).iter().find_map(|[mixed, word]| {
            let word = word.load(Relaxed);
            (word != 0 && mixed.load(Relaxed) ^ word == print).then_some(word)
        })
    }

    pub(super) fn put(&self, print: u64, stands: u64) {
        let set = self.set(print);
        // The lowest bits of a print choose the entry that is replaced, so that places of a full set replace different
        // ones.
        let free = set.iter().find(|[_, word]| word.load(Relaxed) == 0);
        let [mixed, word] = free.unwrap_or(&set[print as usize % WAYS]);
        mixed.store(print ^ stands, Relaxed);
        word.store(stands, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_known_until_others_take_their_entries() {
        let known = SeenCode::new();
        assert_eq!(known.find(7 << 32), None);
        known.put(7 << 32, 5);
        assert_eq!(known.find(7 << 32), Some(5));
        assert_eq!(known.find(7 << 32 | 1), None);
        // Places of one set.
        let place = |number: usize| (7 + number * PLACES / WAYS) << 32;
        (1..WAYS).for_each(|number| known.put(place(number) as u64, 5 + number as u64));
        let found = || (0..=WAYS).filter_map(|number| known.find(place(number) as u64)).collect::<Vec<_>>();
        assert_eq!(found(), [5, 6, 7, 8]);
        known.put(place(WAYS) as u64, 9);
        assert_eq!(found(), [6, 7, 8, 9]);
    }
}
