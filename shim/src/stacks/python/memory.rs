//! Reads the interpreter's memory through the kernel, so that an invalid address causes no fault.
//!
//! The state of a running Python thread is its own, and stays during its call to us. There is one exception: a thread
//! that ends the interpreter or a subinterpreter frees the states and frames of other threads without notice. Any
//! thread may do that, also while the process's first thread is in a call. A thread that has released the GIL can
//! neither prevent it nor learn of it in time, so nothing is read directly.
//!
//! Each read costs a system call, so a stack takes one or two. The first one fetches frames. For the next stack a thread
//! most likely reads the same frames as for its last ones, so their memory is fetched, with the code objects of the
//! stack that is expected ([`super::recent`]). If this stack runs other code, a second call fetches that.

use crate::process::peek::{read_memory, read_pieces};
use rustc_hash::FxHashMap;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Maximum number of pieces fetched together, and maximum bytes of them. A stack of 128 frames has five pieces a frame.
const MOST_PIECES: usize = 1024;
const MOST_BYTES: usize = 256 << 10;
const PAGE: u64 = 4096;
/// Bytes before and behind a piece among others that are fetched with it, within its pages: frames are adjacent since
/// 3.11, the outer ones first.
const BEFORE: u64 = 1024;
const BEHIND: u64 = 256;
/// Pieces within one page that are at most this far apart are fetched as one.
const CLOSE: u64 = 512;
/// Pieces of one code object that are at most this far apart are fetched as one.
const NEXT: u64 = 16;
/// Lifetime of a piece, in stacks that needed anything new since the last stack that used the piece.
const KEPT: u8 = 8;

#[derive(Clone, Copy, Default)]
pub(super) struct Piece {
    at: u64,
    len: usize,
    /// Offset of its bytes.
    from: usize,
    /// Number of stacks since one used it.
    age: u8,
}

impl Piece {
    #[inline(always)]
    fn holds(&self, at: u64, len: usize) -> bool {
        self.at <= at && at.saturating_add(len as u64) <= self.at + self.len as u64
    }

    fn end(&self) -> u64 {
        self.at + self.len as u64
    }

    /// Returns the piece in the kernel's form.
    fn wanted(&self) -> libc::iovec {
        libc::iovec { iov_base: self.at as *mut _, iov_len: self.len }
    }
}

/// Memory read for a stack. The next stack begins with it.
#[derive(Default)]
pub(super) struct Fetched {
    /// Pieces in the order of their addresses. The first ones are fetched together.
    pieces: Vec<Piece>,
    /// The pieces that are fetched together, in the kernel's form.
    pub wanted: Vec<libc::iovec>,
    pub bytes: Vec<u8>,
    /// Pieces that the last stack used, in its order, or that this one is expected to use.
    path: Vec<Piece>,
    /// The first piece of each code object among these.
    pub firsts: Vec<usize>,
    /// Pieces that this stack has used so far.
    pub asked: Vec<Piece>,
    /// Pieces that the last stacks used.
    recent: Vec<Piece>,
}

impl Fetched {
    /// Returns the offset of bytes in the fetched memory.
    fn find(&self, at: u64, len: usize) -> Option<usize> {
        let behind = self.pieces.partition_point(|piece| piece.at <= at);
        // A piece that was fetched with its surroundings may hold the beginnings of others.
        let piece = self.pieces[..behind].iter().rev().take(4).find(|piece| piece.holds(at, len))?;
        Some(piece.from + (at - piece.at) as usize)
    }

    /// Fetches bytes that were not fetched together with the others.
    #[cold]
    fn fetch(&mut self, at: u64, len: usize, is_among_others: bool) -> Option<usize> {
        let end = at.checked_add(len as u64)?;
        let (mut first, mut last) = (at, end);
        if is_among_others {
            first = at.saturating_sub(BEFORE).max(at & !(PAGE - 1));
            last = end.saturating_add(BEHIND).min(end.checked_next_multiple_of(PAGE)?);
        }
        let (from, room) = (self.bytes.len(), (last - first) as usize);
        if self.pieces.len() >= 2 * MOST_PIECES || from + room > 2 * MOST_BYTES {
            return None;
        }
        self.bytes.resize(from + room, 0);
        let begin = self.bytes.as_mut_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: `resize` has just made these bytes, and nothing else refers to them.
        let read = read_memory(first, unsafe { std::slice::from_raw_parts_mut(begin.add(from), room) }).len();
        self.bytes.truncate(from + read);
        let piece = Piece { at: first, len: read, from, age: 0 };
        if !piece.holds(at, len) {
            self.bytes.truncate(from);
            return None;
        }
        let place = self.pieces.partition_point(|known| known.at <= first);
        self.pieces.insert(place, piece);
        Some(from + (at - first) as usize)
    }

    /// Fetches the pieces that the last stacks used, and these. Returns where the bytes of these are; none are there if
    /// not all could be read.
    pub(super) fn begin(&mut self, more: &[libc::iovec]) -> Range<usize> {
        let Self { pieces, wanted, bytes, path, recent, .. } = self;
        let own = wanted.len();
        wanted.extend_from_slice(more);
        bytes.clear();
        let there = read_pieces(wanted, bytes);
        wanted.truncate(own);
        let own = pieces.last().map_or(0, |piece| piece.from + piece.len);
        if there == own + total(more) {
            return own..there;
        }
        let whole = pieces.partition_point(|piece| piece.from + piece.len <= there);
        if whole < pieces.len() {
            // Pieces behind the first unmapped one were not read.
            pieces.truncate(whole);
            wanted.truncate(whole);
            path.clear();
            recent.clear();
        }
        bytes.truncate(pieces.last().map_or(0, |piece| piece.from + piece.len));
        0..0
    }

    /// Takes the expected pieces from `read`, the bytes of these pieces, or else fetches them.
    pub(super) fn gather(&mut self, read: &[u8], of: &[libc::iovec]) {
        let of = of.iter().map(|piece| (piece.iov_base, piece.iov_len));
        if read.len() == total(&self.wanted) && of.eq(self.wanted.iter().map(|piece| (piece.iov_base, piece.iov_len))) {
            self.bytes.extend_from_slice(read);
        } else if read_pieces(&self.wanted, &mut self.bytes) < total(&self.wanted) {
            self.bytes.clear();
            self.path.clear();
        }
    }

    /// Expects that these code objects are read in this order, by these pieces.
    pub(super) fn expect(&mut self, its: impl Iterator<Item = u64>, paths: &FxHashMap<u64, Box<[Piece]>>) {
        let Self { pieces, wanted, bytes, path, firsts, .. } = self;
        pieces.clear();
        wanted.clear();
        bytes.clear();
        path.clear();
        firsts.clear();
        let mut from = 0;
        for code in its {
            firsts.push(path.len());
            let its = paths.get(&code).map_or(&[][..], |its| its);
            for piece in its {
                // Most functions of a stack are in the same file as their callers.
                let callee = path.len().checked_sub(its.len()).map(|at: usize| path[at]);
                let fetched = callee.filter(|callee| (callee.at, callee.len) == (piece.at, piece.len));
                if let Some(same) = fetched {
                    path.push(same);
                    continue;
                }
                match wanted.last_mut().filter(|last| is_next(last, piece)) {
                    // A piece more costs more than the bytes between the two.
                    Some(last) => {
                        let whole = (piece.end() - last.iov_base as u64) as usize;
                        from += whole - last.iov_len;
                        last.iov_len = whole;
                    }
                    None => {
                        wanted.push(piece.wanted());
                        from += piece.len;
                    }
                }
                path.push(Piece { from: from - piece.len, ..*piece });
            }
        }
    }

    /// Runs `walk`, and keeps the pieces that it used for the next stack.
    #[inline(always)]
    pub(super) fn walk<R>(&mut self, walk: impl FnOnce(&mut Memory) -> R) -> R {
        let mut memory = Memory::new(self, 0);
        let result = walk(&mut memory);
        let (left, missed) = (memory.left, memory.missed);
        if left {
            std::mem::swap(&mut self.path, &mut self.asked);
        }
        if missed {
            self.plan();
        }
        result
    }

    /// Plans what to fetch together the next time, since something was missing.
    #[cold]
    fn plan(&mut self) {
        let Self { pieces, path, recent, .. } = self;
        recent.iter_mut().for_each(|piece| piece.age = piece.age.saturating_add(1));
        recent.extend(path.iter().map(|piece| Piece { age: 0, ..*piece }));
        recent.sort_unstable_by_key(|piece| (piece.at, piece.len, piece.age));
        recent.dedup_by_key(|piece| (piece.at, piece.len));
        let kept = if recent.len() > MOST_PIECES / 2 { 1 } else { KEPT };
        recent.retain(|piece| piece.age < kept);
        pieces.clear();
        for piece in recent.iter() {
            match pieces.last_mut() {
                Some(last) if piece.at <= last.end() || is_close(last, piece) => {
                    last.len = (piece.end().max(last.end()) - last.at) as usize;
                }
                _ => pieces.push(*piece),
            }
        }
        let mut from = 0;
        for piece in pieces.iter_mut() {
            piece.from = from;
            from += piece.len;
        }
        if from > MOST_BYTES || pieces.len() > MOST_PIECES {
            *self = Self::default();
            return;
        }
        self.wanted.clear();
        self.wanted.extend(pieces.iter().map(Piece::wanted));
        for at in 0..self.path.len() {
            let Piece { at: start, len, .. } = self.path[at];
            self.path[at].from = self.find(start, len).unwrap_or(0);
        }
    }
}

/// Returns the bytes of all pieces.
fn total(pieces: &[libc::iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// True if a piece begins where another one ends, or shortly behind it on the same page: the length and the bytes of an
/// object lie so.
fn is_next(last: &libc::iovec, piece: &Piece) -> bool {
    let end = last.iov_base as u64 + last.iov_len as u64;
    let gap = piece.at.wrapping_sub(end);
    gap == 0 || gap <= NEXT && (end - 1) / PAGE == piece.at / PAGE
}

/// True if a piece begins shortly behind another one, on the page on which that ends.
fn is_close(last: &Piece, piece: &Piece) -> bool {
    (last.end() - 1) / PAGE == piece.at / PAGE && piece.at - last.end() <= CLOSE
}

/// Runs `walk` for a single stack, with nothing fetched before.
pub(super) fn once<R>(walk: impl FnOnce(&mut Memory) -> R) -> R {
    walk(&mut Memory::new(&mut Fetched::default(), 0))
}

/// Memory that may be unmapped.
pub(super) struct Memory<'a> {
    fetched: &'a mut Fetched,
    /// True if something was fetched that was not fetched together with the rest.
    missed: bool,
    /// True if this stack used something else than the last one.
    pub left: bool,
    /// Its first piece among the expected ones, and the one behind those that it used before it left.
    first: usize,
    asked: usize,
    window: Piece,
}

impl<'a> Memory<'a> {
    pub(super) fn new(fetched: &'a mut Fetched, first: usize) -> Self {
        Self { fetched, missed: false, left: false, first, asked: first, window: Piece::default() }
    }

    #[inline(always)]
    fn piece(&mut self, at: u64, len: usize, is_among_others: bool) -> Option<Piece> {
        // Most stacks use the same pieces as the last one, in the same order.
        if let Some(piece) = self.fetched.path.get(self.asked)
            && (piece.at, piece.len) == (at, len)
            && !self.left
        {
            self.asked += 1;
            return Some(*piece);
        }
        self.find(at, len, is_among_others)
    }

    /// Finds a piece of a stack that differs from the last one.
    #[inline(never)]
    fn find(&mut self, at: u64, len: usize, is_among_others: bool) -> Option<Piece> {
        let fetched = &mut *self.fetched;
        if !self.left {
            self.left = true;
            fetched.asked.clear();
            fetched.asked.extend_from_slice(fetched.path.get(self.first..self.asked).unwrap_or_default());
        }
        let from = match fetched.find(at, len) {
            Some(from) => from,
            None => {
                self.missed = true;
                fetched.fetch(at, len, is_among_others)?
            }
        };
        let piece = Piece { at, len, from, age: 0 };
        fetched.asked.push(piece);
        Some(piece)
    }

    #[inline(always)]
    fn part<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let mut piece = self.window;
        if !piece.holds(at, N) {
            piece = self.piece(at, N, false)?;
        }
        let from = piece.from + (at - piece.at) as usize;
        self.fetched.bytes.get(from..)?.first_chunk().copied()
    }
}

/// Reads return `None` for unmapped memory.
impl Memory<'_> {
    /// Announces that the next reads lie in these bytes.
    #[inline(always)]
    pub(super) fn window(&mut self, at: u64, len: usize) -> Option<()> {
        self.window = self.piece(at, len, false)?;
        Some(())
    }

    /// As [`Memory::window`], for bytes whose surroundings are likely to be needed as well.
    #[inline(always)]
    pub(super) fn window_among_others(&mut self, at: u64, len: usize) -> Option<()> {
        self.window = self.piece(at, len, true)?;
        Some(())
    }

    #[inline(always)]
    pub(super) fn word(&mut self, at: u64) -> Option<u64> {
        self.part(at).map(u64::from_ne_bytes)
    }

    #[inline(always)]
    pub(super) fn half(&mut self, at: u64) -> Option<u32> {
        self.part(at).map(u32::from_ne_bytes)
    }

    #[inline(always)]
    pub(super) fn byte(&mut self, at: u64) -> Option<u8> {
        self.part::<1>(at).map(|[byte]| byte)
    }

    /// Reads `len` bytes.
    #[inline(always)]
    pub(super) fn bytes(&mut self, at: u64, len: usize) -> Option<&[u8]> {
        let piece = self.piece(at, len, false)?;
        self.fetched.bytes.get(piece.from..piece.from + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads memory as a walk reads frames.
    fn of_frames<R>(fetched: &mut Fetched, read: impl FnOnce(&mut Memory) -> R) -> R {
        fetched.begin(&[]);
        fetched.walk(read)
    }

    #[test]
    fn what_was_read_last_is_there_at_the_next_stack() {
        let (one, two) = ([1_u64, 2, 3], *b"some text");
        let mut fetched = Fetched::default();
        for round in 0..3 {
            of_frames(&mut fetched, |memory| {
                memory.window(one.as_ptr() as u64, 24).unwrap();
                assert_eq!(memory.word(one.as_ptr() as u64 + 16), Some(3));
                assert_eq!(memory.half(one.as_ptr() as u64 + 8), Some(2));
                assert_eq!(memory.bytes(two.as_ptr() as u64, 9), Some(&two[..]));
                assert_eq!(memory.missed, round == 0, "something was read once more");
            });
        }
    }

    /// Alternating stacks find what each of them read, in any order.
    #[test]
    fn several_stacks_are_remembered() {
        let stacks: Vec<Vec<u64>> = (0..4).map(|stack| (stack * 1000..stack * 1000 + 700).collect()).collect();
        let mut fetched = Fetched::default();
        for round in 0..12 {
            let stack = &stacks[if round < 4 { round } else { round * 7 % 4 }];
            of_frames(&mut fetched, |memory| {
                for word in stack.iter().step_by(50) {
                    assert_eq!(memory.word(&raw const *word as u64), Some(*word), "round {round}");
                }
                assert_eq!(memory.missed, round < 4, "round {round}");
            });
        }
    }

    /// Unmapped memory is not found, and memory behind it is read again.
    #[test]
    fn memory_that_is_taken_away_is_no_fault() {
        // SAFETY: the mapping is private and anonymous, and the kernel chooses where it lies.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let (mut fetched, there) = (Fetched::default(), 77_u64);
        let mut read =
            || of_frames(&mut fetched, |memory| (memory.word(page as u64), memory.word((&raw const there) as u64)));
        assert_eq!((read(), read()), ((Some(0), Some(77)), (Some(0), Some(77))));
        // SAFETY: the page was mapped above, and nothing refers to it.
        assert_eq!(unsafe { libc::munmap(page, 4096) }, 0);
        assert_eq!((read(), read()), ((None, Some(77)), (None, Some(77))));
    }

    /// Memory around a piece is read with it, up to the ends of its pages.
    #[test]
    fn neighbours_are_read_at_once() {
        let words: Vec<u64> = (0..4096).collect();
        let at = |index: usize| &raw const words[index] as u64;
        let index = (0..).find(|&index| at(index) % PAGE == 2048).expect("it has eight pages");
        once(|memory| {
            memory.window_among_others(at(index), 8).unwrap();
            assert_eq!(
                (memory.word(at(index)), memory.word(at(index - 100))),
                (Some(index as u64), Some(index as u64 - 100))
            );
            assert_eq!(memory.fetched.pieces.len(), 1);
            assert!(memory.window_among_others(0x10, 8).is_none());
        });
    }

    /// Pieces of a code object that lie behind each other are one piece for the kernel, and each is found within it.
    #[test]
    fn pieces_behind_each_other_are_fetched_as_one() {
        #[repr(align(256))]
        struct Bytes([u8; 256]);
        let bytes = Bytes(std::array::from_fn(|at| at as u8));
        let piece = |(at, len)| Piece { at: &raw const bytes.0[at] as u64, len, ..Piece::default() };
        let (of_one, of_two) = ([(0, 8), (8, 32), (56, 8), (128, 4)], [(200, 8), (8, 32), (217, 8), (40, 8)]);
        let paths = [(1, of_one.map(piece).into()), (2, of_two.map(piece).into())].into_iter().collect();
        let mut fetched = Fetched::default();
        fetched.expect([1, 1, 2].into_iter(), &paths);
        // The second function has the pieces of the first one, and the third has one of them.
        let lens: Vec<_> = fetched.wanted.iter().map(|piece| piece.iov_len).collect();
        assert_eq!(lens, [64, 4, 25, 8]);
        fetched.gather(&[], &[]);
        assert_eq!(fetched.firsts, [0, 4, 8]);
        for (path, (at, len)) in fetched.path.iter().zip([of_one, of_one, of_two].concat()) {
            assert_eq!(fetched.bytes[path.from..path.from + len], bytes.0[at..at + len]);
        }
    }

    #[test]
    fn what_is_asked_of_the_kernel_is_bounded() {
        let large = vec![7_u8; 2 * MOST_BYTES + 1];
        once(|memory| {
            assert_eq!(memory.bytes(large.as_ptr() as u64, large.len()), None);
            let read = (0..4 * MOST_PIECES).filter(|at| memory.byte(large.as_ptr() as u64 + *at as u64).is_some());
            assert_eq!(read.count(), 2 * MOST_PIECES);
        });
        // One stack needs too much to be fetched with anything else: it is read again each time.
        let mut fetched = Fetched::default();
        for _ in 0..2 {
            of_frames(&mut fetched, |memory| {
                let spread = large.iter().step_by(256).map(|byte| &raw const *byte as u64);
                let (there, all) = (spread.clone().filter(|&at| memory.byte(at).is_some()).count(), spread.count());
                assert_eq!(there, all.min(2 * MOST_PIECES));
            });
        }
    }
}
