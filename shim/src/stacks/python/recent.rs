//! Memory that a thread's last stacks read, and the stack to expect next: programs repeat their steps.
//!
//! The pieces of the expected stack's code objects are fetched together with the frames. If the places of the stack and
//! the bytes of these pieces are as expected, so are its words, and the expected words are used.
//!
//! Of a code object, the same pieces are fetched as when it was last seen, and only new pieces one by one. Remembering
//! the reads of the last eight stacks was not enough: a program whose steps have more stacks read most of its pieces
//! one by one.

use super::known::{mix, mix_bytes};
use super::memory::{Fetched, Memory, Piece};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Maximum number of code objects whose pieces are known.
const MOST_CODES: usize = 4096;
/// Maximum number of stacks of which the next one is known.
const MOST_STACKS: usize = 1024;

/// A place in code.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The code object's address.
    pub code: u64,
    /// Bytes from the beginning of its instructions.
    pub at: i64,
    /// Native code called the frame.
    pub entry: bool,
}

/// A stack that came after another one.
struct Expected {
    /// The pieces of its code objects, in the kernel's form.
    wanted: Box<[libc::iovec]>,
    /// A number for its places, and one for the bytes of its pieces.
    number: u64,
    print: u64,
    /// A word for each place; none if these needed other pieces as well.
    words: Box<[u64]>,
}

/// Memory that a thread's last stacks read, and the stack to expect next.
#[derive(Default)]
pub(super) struct Recent {
    frames: Fetched,
    codes: Fetched,
    /// Pieces that were read of a code object, in their order.
    paths: FxHashMap<u64, Box<[Piece]>>,
    /// The places of this stack.
    places: Vec<Place>,
    /// A number for the places of the last stack.
    last: u64,
    /// The stack that came after each.
    next: FxHashMap<u64, Expected>,
    /// Range of the expected pieces' bytes among those of the frames; empty if not all could be read.
    expected: Range<usize>,
}

impl Recent {
    /// Runs `walk` with the memory of the last stacks' frames. It adds the places of this one.
    pub(super) fn frames<R>(&mut self, walk: impl FnOnce(&mut Memory, &mut Vec<Place>) -> R) -> R {
        let Self { frames, places, last, next, expected, .. } = self;
        places.clear();
        *expected = frames.begin(next.get(last).map_or(&[][..], |next| &next.wanted));
        frames.walk(|memory| walk(memory, places))
    }

    /// Writes a word for each place, up to the first that has none. `word` finds it in the memory of the place's code
    /// object, for an interpreter of the number `era`. Returns the number of words.
    #[inline(always)]
    pub(super) fn words(
        &mut self,
        era: u64,
        to: &mut [u64],
        word: impl FnMut(&mut Memory, Place) -> Option<u64>,
    ) -> usize {
        let number = self
            .places
            .iter()
            .fold(era, |sum, &Place { code, at, entry }| mix(mix(sum, code), (at as u64) << 1 | u64::from(entry)));
        let last = std::mem::replace(&mut self.last, number);
        if let Some(next) = self.next.get(&last)
            && (next.number, next.words.len()) == (number, self.places.len())
            && next.print == print(self.frames.bytes.get(self.expected.clone()).unwrap_or_default())
        {
            to[..next.words.len()].copy_from_slice(&next.words);
            return next.words.len();
        }
        self.read(last, to, word)
    }

    /// As [`Recent::words`], for a stack that was not expected after the stack `last`.
    #[inline(never)]
    fn read(&mut self, last: u64, to: &mut [u64], mut word: impl FnMut(&mut Memory, Place) -> Option<u64>) -> usize {
        let Self { frames, codes, paths, places, next, expected, last: number } = self;
        let its = || places.iter().map(|place| place.code);
        codes.expect(its(), paths);
        codes.gather(
            frames.bytes.get(expected.clone()).unwrap_or_default(),
            next.get(&last).map_or(&[][..], |next| &next.wanted),
        );
        let print = print(&codes.bytes);
        let (mut len, mut is_enough) = (0, true);
        for (index, &place) in places.iter().enumerate() {
            let first = codes.firsts[index];
            let mut memory = Memory::new(codes, first);
            let found = word(&mut memory, place);
            if memory.left {
                is_enough = false;
                if paths.len() >= MOST_CODES {
                    paths.clear();
                }
                paths.insert(place.code, codes.asked.as_slice().into());
            }
            let Some(found) = found else { break };
            to[len] = found;
            len += 1;
        }
        if !is_enough {
            codes.expect(its(), paths);
        }
        if next.len() >= MOST_STACKS {
            next.clear();
        }
        let words = if is_enough { &to[..len] } else { &[] };
        let wanted = codes.wanted.as_slice().into();
        next.insert(last, Expected { wanted, number: *number, print, words: words.into() });
        len
    }
}

/// Returns a number for the bytes of a stack's code objects.
#[inline(always)]
fn print(bytes: &[u8]) -> u64 {
    mix_bytes(bytes.len() as u64, bytes)
}

/// Copies that threads take and put back. A thread most likely takes the one that it put back itself.
pub(super) struct Copies([AtomicPtr<Recent>; 16]);

impl Copies {
    pub(super) const fn new() -> Self {
        Self([const { AtomicPtr::new(null_mut()) }; 16])
    }

    /// Runs `walk` with what the last stacks of the thread `tid` read.
    pub(super) fn with<R>(&self, tid: u32, walk: impl FnOnce(&mut Recent) -> R) -> R {
        let place = &self.0[tid as usize % self.0.len()];
        let taken = place.swap(null_mut(), AcqRel);
        let mut recent: Box<Recent> = match taken.is_null() {
            true => Box::default(),
            // SAFETY: the swap below put the pointer there out of a box, and the one that swaps it out is the only one
            // to have it.
            false => unsafe { Box::from_raw(taken) },
        };
        let result = walk(&mut recent);
        let left = place.swap(Box::into_raw(recent), AcqRel);
        if !left.is_null() {
            // SAFETY: another thread's swap put the pointer there out of a box, and this swap alone took it out.
            drop(unsafe { Box::from_raw(left) });
        }
        result
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for place in &mut self.0 {
            let left = std::mem::replace(place.get_mut(), null_mut());
            if !left.is_null() {
                // SAFETY: `with` put the pointer there out of a box. `self` is borrowed mutably, so no other thread can
                // take it out.
                drop(unsafe { Box::from_raw(left) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Words of two for each place: the second of its code object, and another one.
    fn words(recent: &mut Recent, stack: &[*const u64], other: *const u64, look: impl Fn(&Memory)) -> Vec<(u64, u64)> {
        let place = |&code: &*const u64| Place { code: code as u64, at: 0, entry: false };
        recent.frames(|_, places| places.extend(stack.iter().map(place)));
        let mut to = [0; 8];
        let len = recent.words(0, &mut to, |memory, place| {
            memory.window(place.code, 16).unwrap();
            let (word, other) = (memory.word(place.code + 8).unwrap(), memory.word(other as u64).unwrap());
            look(memory);
            Some(word << 32 | other)
        });
        to[..len].iter().map(|word| (word >> 32, word & u64::from(u32::MAX))).collect()
    }

    /// The pieces of a place's code object that were read last are fetched together, also if the code object is in the
    /// stack twice. Other pieces are read one by one.
    #[test]
    fn what_was_read_of_a_code_object_is_there_at_the_next_stack() {
        let (codes, mut text) = ([[1_u64, 2], [3, 4], [5, 6]], [7_u64, 8]);
        let mut recent = Recent::default();
        let mut read = |stack: &[usize], other: usize, known: bool| {
            let stack: Vec<_> = stack.iter().map(|&code| codes[code].as_ptr()).collect();
            let words = words(&mut recent, &stack, &raw const text[other], |memory| assert_eq!(!memory.left, known));
            text[0] += 1;
            words
        };
        assert_eq!(read(&[0, 1], 0, false), [(2, 7), (4, 7)]);
        assert_eq!(read(&[1, 0, 1], 0, true), [(4, 8), (2, 8), (4, 8)]);
        assert_eq!(read(&[2], 0, false), [(6, 9)]);
        assert_eq!(read(&[0, 2, 1], 0, true), [(2, 10), (6, 10), (4, 10)]);
        assert_eq!(read(&[2, 1], 1, false), [(6, 8), (4, 8)]);
        assert_eq!(read(&[1, 2], 1, true), [(4, 8), (6, 8)]);
    }

    /// A thread that repeats its steps has the words of its next stack with the frames, until anything of its code
    /// objects is another.
    #[test]
    fn the_next_stack_is_expected_to_be_that_of_the_last_time() {
        let (mut codes, other, looks) = ([[1_u64, 2], [3, 4], [5, 6]], 7_u64, Cell::new(0));
        let mut recent = Recent::default();
        for round in 0..24 {
            if round == 12 {
                codes[1][1] = 8;
            }
            let stack: Vec<_> = codes[..=round % 3].iter().map(|code| code.as_ptr()).collect();
            looks.set(0);
            let found = words(&mut recent, &stack, &raw const other, |_| looks.set(looks.get() + 1));
            let second = if round < 12 { 4 } else { 8 };
            assert_eq!(found, [(2, 7), (second, 7), (6, 7)][..=round % 3], "round {round}");
            let is_known = match round {
                0..8 => continue,
                12..15 => round % 3 == 0,
                _ => true,
            };
            assert_eq!(looks.get() == 0, is_known, "round {round}");
        }
    }
}
