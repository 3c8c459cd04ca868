//! The interpreter's memory: read at once where nobody can take it away, through the kernel elsewhere.
//!
//! What a thread of Python's runs is its own, and stays while it calls us. There is one exception: the thread that ends
//! the interpreter takes the states and frames of all other threads away, at a moment of which they hear nothing. So
//! the process's first thread reads directly, and every other one asks the kernel.
//!
//! Asking costs a system call. What a thread read for its last stack it will most likely read for the next one: that is
//! fetched with one call before anything else, and only what is new is fetched piece by piece.

use crate::process::peek::{read_memory, read_pieces};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// How memory is read. `None`: it is not there.
pub(super) trait Memory {
    /// Says that the next reads lie in these bytes.
    fn window(&mut self, at: u64, len: usize) -> Option<()>;
    fn word(&mut self, at: u64) -> Option<u64>;
    fn half(&mut self, at: u64) -> Option<u32>;
    fn byte(&mut self, at: u64) -> Option<u8>;
    /// Reads so many bytes.
    fn bytes(&mut self, at: u64, len: usize) -> Option<&[u8]>;
}

/// Memory that is certainly mapped.
pub(super) struct Direct(());

impl Direct {
    /// # Safety
    /// All that is asked of it is mapped, and nobody takes it away meanwhile.
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

impl Memory for Direct {
    #[inline(always)]
    fn window(&mut self, _: u64, _: usize) -> Option<()> {
        Some(())
    }

    #[inline(always)]
    fn word(&mut self, at: u64) -> Option<u64> {
        // SAFETY: `new` asks that all memory that is read through this is mapped and stays so, and its caller
        // vouches for that.
        Some(unsafe { (at as *const u64).read_unaligned() })
    }

    #[inline(always)]
    fn half(&mut self, at: u64) -> Option<u32> {
        // SAFETY: `new` asks that all memory that is read through this is mapped and stays so, and its caller
        // vouches for that.
        Some(unsafe { (at as *const u32).read_unaligned() })
    }

    #[inline(always)]
    fn byte(&mut self, at: u64) -> Option<u8> {
        // SAFETY: `new` asks that all memory that is read through this is mapped and stays so, and its caller
        // vouches for that.
        Some(unsafe { (at as *const u8).read() })
    }

    #[inline(always)]
    fn bytes(&mut self, at: u64, len: usize) -> Option<&[u8]> {
        // SAFETY: `new` asks that all memory that is read through this is mapped and stays so, and its caller
        // vouches for that.
        Some(unsafe { std::slice::from_raw_parts(at as *const u8, len) })
    }
}

/// Most pieces that are fetched together, and most bytes of them.
const MOST_PIECES: usize = 512;
const MOST_BYTES: usize = 64 << 10;
const PAGE: u64 = 4096;
/// How many windows are kept.
const WINDOWS: usize = 4;

#[derive(Clone, Copy)]
struct Piece {
    at: u64,
    len: usize,
    /// Where its bytes are.
    from: usize,
}

/// What was read for a stack. The next stack begins with it.
#[derive(Default)]
struct Fetched {
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
    /// What was asked for.
    asked: Vec<Piece>,
}

/// Copies that threads take and put back. A thread most likely takes the one that it put back itself.
pub(super) struct Copies([AtomicPtr<Fetched>; 16]);

impl Copies {
    pub(super) const fn new() -> Self {
        Self([const { AtomicPtr::new(std::ptr::null_mut()) }; 16])
    }

    /// Takes one for the thread of this number.
    pub(super) fn take(&self, tid: u32) -> Kernel<'_> {
        let place = &self.0[tid as usize % self.0.len()];
        let taken = place.swap(std::ptr::null_mut(), AcqRel);
        let fetched = match taken.is_null() {
            true => Box::default(),
            // SAFETY: `drop` put the pointer there out of a box, and whoever swaps it out is the only one to have it.
            false => unsafe { Box::from_raw(taken) },
        };
        Kernel::new(Some(place), fetched)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for place in &mut self.0 {
            let left = std::mem::replace(place.get_mut(), std::ptr::null_mut());
            if !left.is_null() {
                // SAFETY: a `Kernel` put the pointer there out of a box when it was dropped. `self` is borrowed mutably, so
                // no other thread can take it out.
                drop(unsafe { Box::from_raw(left) });
            }
        }
    }
}

/// Memory that may be unmapped.
pub(super) struct Kernel<'a> {
    back: Option<&'a AtomicPtr<Fetched>>,
    fetched: Box<Fetched>,
    /// How many pieces were fetched together, in the order of their addresses.
    together: usize,
    windows: [Piece; WINDOWS],
    newest: usize,
}

impl Kernel<'_> {
    /// For a single stack, with nothing fetched before.
    pub(super) fn once() -> Self {
        Kernel::new(None, Box::default())
    }
}

impl<'a> Kernel<'a> {
    fn new(back: Option<&'a AtomicPtr<Fetched>>, mut fetched: Box<Fetched>) -> Self {
        let Fetched { pieces, bytes, .. } = &mut *fetched;
        bytes.clear();
        let wanted = pieces.iter().map(|piece| (piece.at, piece.len));
        let there = read_pieces(wanted, bytes);
        // Pieces behind the first one that is not there were not read.
        let (mut from, mut whole) = (0, 0);
        pieces.retain_mut(|piece| {
            piece.from = from;
            from += piece.len;
            if from <= there {
                whole = from;
            }
            from <= there
        });
        bytes.truncate(whole);
        let none = Piece { at: 0, len: 0, from: 0 };
        let together = pieces.len();
        Self { back, fetched, together, windows: [none; WINDOWS], newest: 0 }
    }

    /// Where bytes are in what was fetched.
    fn fetched(&self, at: u64, len: usize) -> Option<usize> {
        let holds = |piece: &&Piece| piece.at <= at && at.saturating_add(len as u64) <= piece.at + piece.len as u64;
        let (together, since) = self.fetched.pieces.split_at(self.together);
        let last = together.partition_point(|piece| piece.at <= at);
        let found = together[..last].last().filter(holds);
        let piece = found.or_else(|| since.iter().rev().find(holds))?;
        Some(piece.from + (at - piece.at) as usize)
    }

    fn piece(&mut self, at: u64, len: usize) -> Option<Piece> {
        let from = match self.fetched(at, len) {
            Some(from) => from,
            None => self.fetch(at, len)?,
        };
        let piece = Piece { at, len, from };
        self.fetched.asked.push(piece);
        Some(piece)
    }

    /// Fetches bytes that were not fetched together with the others.
    #[cold]
    fn fetch(&mut self, at: u64, len: usize) -> Option<usize> {
        let Fetched { pieces, bytes, .. } = &mut *self.fetched;
        let from = bytes.len();
        if pieces.len() >= MOST_PIECES || from + len > MOST_BYTES {
            return None;
        }
        bytes.resize(from + len, 0);
        let (first, room) = (bytes.as_mut_ptr().cast::<MaybeUninit<u8>>(), len);
        // SAFETY: `resize` has just made these bytes, and nothing else refers to them.
        let read = read_memory(at, unsafe { std::slice::from_raw_parts_mut(first.add(from), room) }).len();
        if read < len {
            bytes.truncate(from);
            return None;
        }
        pieces.push(Piece { at, len, from });
        Some(from)
    }

    fn part<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let holds = |piece: &&Piece| at >= piece.at && at.saturating_add(N as u64) <= piece.at + piece.len as u64;
        let piece = match self.windows.iter().find(holds) {
            Some(piece) => *piece,
            None => self.piece(at, N)?,
        };
        let from = piece.from + (at - piece.at) as usize;
        self.fetched.bytes.get(from..from + N)?.try_into().ok()
    }
}

impl Memory for Kernel<'_> {
    fn window(&mut self, at: u64, len: usize) -> Option<()> {
        let piece = self.piece(at, len)?;
        self.newest = (self.newest + 1) % WINDOWS;
        self.windows[self.newest] = piece;
        Some(())
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        self.part(at).map(u64::from_ne_bytes)
    }

    fn half(&mut self, at: u64) -> Option<u32> {
        self.part(at).map(u32::from_ne_bytes)
    }

    fn byte(&mut self, at: u64) -> Option<u8> {
        self.part::<1>(at).map(|[byte]| byte)
    }

    fn bytes(&mut self, at: u64, len: usize) -> Option<&[u8]> {
        let piece = self.piece(at, len)?;
        self.fetched.bytes.get(piece.from..piece.from + len)
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        let Some(back) = self.back else { return };
        let Fetched { pieces, asked, .. } = &mut *self.fetched;
        pieces.clear();
        asked.sort_unstable_by_key(|piece| piece.at);
        // The kernel's time depends on the number of pages, so bytes within one page are a single piece.
        for piece in asked.drain(..) {
            let end = piece.at + piece.len as u64;
            match pieces.last_mut() {
                Some(last) if (end - 1) / PAGE == last.at / PAGE || piece.at <= last.at + last.len as u64 => {
                    last.len = last.len.max((end - last.at) as usize);
                }
                _ => pieces.push(piece),
            }
        }
        let fetched = std::mem::take(&mut self.fetched);
        let left = back.swap(Box::into_raw(fetched), AcqRel);
        if !left.is_null() {
            // SAFETY: a `Kernel` put the pointer there out of a box, and whoever swaps it out is the only one to have it.
            drop(unsafe { Box::from_raw(left) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_last_is_there_at_the_next_stack() {
        let (one, two) = ([1_u64, 2, 3], *b"some text");
        let copies = Copies::new();
        for round in 0..3 {
            let mut memory = copies.take(7);
            assert_eq!(memory.together > 0, round > 0);
            memory.window(one.as_ptr() as u64, 24).unwrap();
            assert_eq!(memory.word(one.as_ptr() as u64 + 16), Some(3));
            assert_eq!(memory.half(one.as_ptr() as u64 + 8), Some(2));
            assert_eq!(memory.bytes(two.as_ptr() as u64, 9), Some(&two[..]));
            assert!(round == 0 || memory.fetched.pieces.len() == memory.together, "something was read once more");
        }
    }

    /// Memory that is gone is not found, and what lies behind it is read anew.
    #[test]
    fn memory_that_is_taken_away_is_no_fault() {
        // SAFETY: the mapping is private and anonymous, and the kernel chooses where it lies.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let (copies, there) = (Copies::new(), 77_u64);
        let read = || {
            let mut memory = copies.take(1);
            (memory.word(page as u64), memory.word((&raw const there) as u64))
        };
        assert_eq!((read(), read()), ((Some(0), Some(77)), (Some(0), Some(77))));
        // SAFETY: the page was mapped above, and nothing refers to it.
        assert_eq!(unsafe { libc::munmap(page, 4096) }, 0);
        assert_eq!((read(), read()), ((None, Some(77)), (None, Some(77))));
    }

    #[test]
    fn what_is_asked_of_the_kernel_is_bounded() {
        let large = vec![7_u8; MOST_BYTES + 1];
        let mut memory = Kernel::once();
        assert_eq!(memory.bytes(large.as_ptr() as u64, large.len()), None);
        let read = (0..2 * MOST_PIECES).filter(|at| memory.byte(large.as_ptr() as u64 + *at as u64).is_some());
        assert_eq!(read.count(), MOST_PIECES);
    }
}
