//! Tells which part of the stack is certainly mapped, and reads the rest through the kernel.

use crate::process::errno::KeepErrno;
use crate::process::peek::read_memory;
use crate::process::threads;
use crate::process::wiped::process_id;
use std::cell::Cell;
use std::mem::MaybeUninit;

/// Stack bytes for a rule's lookup, at most: 17.2 KiB were measured in a release build and 31.2 in a debug build (see
/// the test below). The rest is for a signal that arrives meanwhile, whose frame takes 3 to 11 KiB.
#[cfg(target_arch = "x86_64")]
const ROOM: u64 = if cfg!(debug_assertions) { 48 << 10 } else { 28 << 10 };

/// True if the calling thread's stack has room to look a rule up: programs have threads of 16 KiB.
///
/// The main thread's stack grows on its own up to a limit. Below any other stack is a guard page, and below that may be
/// anything, so every page of the room is checked.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_room_below() -> bool {
    let here = 0_u8;
    let here = &raw const here as u64;
    // SAFETY: getpid takes no arguments and cannot fail.
    if threads::os_id() == unsafe { libc::getpid() }
        && let Some((end, most)) = main_stack()
        && here <= end
        && end - here <= most
    {
        return end - here + ROOM <= most;
    }
    let mut probe = [MaybeUninit::uninit(); 1];
    (1..=ROOM / PAGE).all(|page| read_memory(here.saturating_sub(page * PAGE), &mut probe).len() == 1)
}

/// Returns the end of the main thread's stack, and its maximum length at the moment.
#[cfg(target_arch = "x86_64")]
fn main_stack() -> Option<(u64, u64)> {
    // SAFETY: getauxval takes a number, and `limit` takes the one rlimit that is written. The
    // kernel put the program's name at the upper end of the stack and a word above it, which stay
    // mapped.
    unsafe {
        let name = libc::getauxval(libc::AT_EXECFN);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if name == 0 || libc::getrlimit(libc::RLIMIT_STACK, &mut limit) != 0 {
            return None;
        }
        let above = name + libc::strlen(name as *const libc::c_char) as u64 + 1;
        Some((above.next_multiple_of(PAGE), limit.rlim_cur))
    }
}

const PAGE: u64 = 4096;
/// Deeper stacks are read through the kernel.
const LONGEST_STACK: u64 = 256 << 20;
const COPY_WORDS: usize = 256;

/// The part of a thread's own stack that is known to be mapped for as long as the thread runs.
///
/// It ends at data that outlives every frame, put there by the C library (the thread's own descriptor) or the kernel
/// (the random bytes above main's stack). pthread_getattr_np also knows the end, but it calls malloc, and reads /proc
/// for the main thread.
pub(super) struct KnownStack {
    low: Cell<u64>,
    high: Cell<u64>,
}

impl KnownStack {
    pub(super) const fn new() -> Self {
        KnownStack { low: Cell::new(0), high: Cell::new(0) }
    }

    /// Returns bounds that hold `sp`. The range is empty if `sp` is on another stack (a coroutine's, a signal
    /// handler's), which may be unmapped meanwhile.
    #[inline]
    pub(super) fn around(&self, sp: u64) -> (u64, u64) {
        let (low, high) = (self.low.get(), self.high.get());
        if sp >= low && sp < high { (low, high) } else { self.find(sp) }
    }

    /// Returns the known bounds, possibly empty.
    #[inline(always)]
    pub(super) fn known(&self) -> (u64, u64) {
        (self.low.get(), self.high.get())
    }

    #[cold]
    fn find(&self, sp: u64) -> (u64, u64) {
        let _errno = KeepErrno::new();
        let (low, mut high) = (self.low.get(), self.high.get());
        if high == 0 {
            high = stack_top();
        }
        let known_from = if low == 0 { high } else { low };
        let from = sp & !(PAGE - 1);
        if sp == 0 || sp >= known_from || known_from - from > LONGEST_STACK || !readable(from, known_from) {
            return (0, 0);
        }
        self.low.set(from);
        self.high.set(high);
        (from, high)
    }
}

fn stack_top() -> u64 {
    // SAFETY: getpid, pthread_self and getauxval follow no pointer and change nothing.
    let (main, own, above_main) =
        unsafe { (libc::getpid() == threads::os_id(), libc::pthread_self() as u64, libc::getauxval(libc::AT_RANDOM)) };
    (if main { above_main } else { own }) & !7
}

/// True if every page from `from` up to `to` can be read.
fn readable(mut from: u64, to: u64) -> bool {
    const AT_ONCE: usize = 64;
    let mut bytes = [MaybeUninit::<u8>::uninit(); AT_ONCE];
    while from < to {
        let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 }; AT_ONCE];
        let mut pages = 0;
        while pages < AT_ONCE && from < to {
            remote[pages].iov_base = from as *mut _;
            pages += 1;
            from += PAGE;
        }
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: pages };
        // SAFETY: `local` describes `bytes`, which has room for a byte of each page. The kernel
        // checks `remote`, and answers with an error for what is not mapped.
        let read = unsafe { libc::process_vm_readv(process_id(), &local, 1, remote.as_ptr(), pages as u64, 0) };
        if read != pages as isize {
            return false;
        }
    }
    true
}

/// Reads words of a stack: directly if they are known to be mapped, else through the kernel.
pub(super) struct StackReader {
    low: u64,
    /// Bytes above `low` at which a word may begin.
    span: u64,
    copied_from: u64,
    copied: usize,
    copy: [MaybeUninit<u64>; COPY_WORDS],
}

impl StackReader {
    #[inline]
    pub(super) fn new((low, high): (u64, u64)) -> Self {
        StackReader {
            low,
            span: (high - low).saturating_sub(7),
            copied_from: 0,
            copied: 0,
            copy: [MaybeUninit::uninit(); COPY_WORDS],
        }
    }

    /// Returns the word at `address` if it can be read.
    #[inline(always)]
    pub(super) fn word(&mut self, address: u64) -> Option<u64> {
        if address.wrapping_sub(self.low) < self.span {
            // SAFETY: the address lies between `low` and `low + span`, where a whole word fits.
            // That part of the stack is known to be mapped, and belongs to this thread.
            return Some(unsafe { (address as *const u64).read_unaligned() });
        }
        self.word_elsewhere(address)
    }

    #[cold]
    #[inline(never)]
    fn word_elsewhere(&mut self, address: u64) -> Option<u64> {
        if address & 7 != 0 {
            return None;
        }
        let index = (address.wrapping_sub(self.copied_from) / 8) as usize;
        if index < self.copied {
            // SAFETY: `index` is below `copied`, and `read_memory` has written that many words.
            return Some(unsafe { self.copy[index].assume_init() });
        }
        let _errno = KeepErrno::new();
        // SAFETY: `copy` has COPY_WORDS words. They are written as MaybeUninit, so none need be
        // initialised.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.copy.as_mut_ptr().cast(), COPY_WORDS * 8) };
        // Aligned, so that neighbours on both sides are copied; all of it is in one page.
        self.copied_from = address & !(COPY_WORDS as u64 * 8 - 1);
        self.copied = read_memory(self.copied_from, bytes).len() / 8;
        let index = ((address - self.copied_from) / 8) as usize;
        // SAFETY: `index` is below `copied`, and `read_memory` has written that many words.
        (index < self.copied).then(|| unsafe { self.copy[index].assume_init() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many bytes of this thread's stack `f` changes below this frame.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    fn taken(f: impl FnOnce()) -> u64 {
        const PAINTED: u64 = 128 << 10;
        // Room for the frames of the test's own functions.
        const OWN: u64 = 1 << 10;
        const PAINT: u64 = 0xa5a5_a5a5_a5a5_a5a5;
        let sp: u64;
        // SAFETY: the instruction reads one register and writes only the one that is named.
        unsafe { std::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
        let words = (sp - PAINTED..sp - OWN).step_by(8);
        for word in words.clone() {
            // SAFETY: the words lie below every frame that is in use, and the test's stack is much
            // longer than PAINTED.
            unsafe { (word as *mut u64).write_volatile(PAINT) };
        }
        f();
        // SAFETY: the words lie below every frame that is in use, and the test's stack is much
        // longer than PAINTED.
        let deepest = words.into_iter().find(|word| unsafe { (*word as *const u64).read_volatile() } != PAINT);
        sp - deepest.unwrap_or(sp - OWN)
    }

    /// In a separate process this is the first look, which also lists the loaded objects.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn looking_a_rule_up_keeps_within_its_room() {
        let look = || {
            let functions = [
                libc::qsort as *const () as u64,
                libc::getaddrinfo as *const () as u64,
                read_memory as *const () as u64,
            ];
            functions.map(|at| taken(|| assert_ne!(super::super::learn(at + 1), super::super::Rule::UNKNOWN)))
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(look).expect("a thread");
        let taken = thread.join().expect("it lives");
        println!("{taken:?} bytes of {ROOM}");
        assert!(taken.iter().all(|taken| *taken > 4096 && *taken <= ROOM), "{taken:?} bytes of {ROOM}");
    }

    #[test]
    fn words_at_the_end_of_a_mapping_are_read_in_part() {
        // SAFETY: without MAP_FIXED the kernel picks addresses that are free. The second of these
        // two pages is taken away, and only the first is written.
        let page = unsafe {
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(std::ptr::null_mut(), 8192, access, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            libc::munmap(page.add(4096), 4096);
            page.cast::<u64>().add(511).write(77);
            page as u64
        };
        let mut reader = StackReader::new((0, 0));
        assert_eq!(reader.word(page + 4088), Some(77));
        assert_eq!(reader.word(page + 4080), Some(0));
        assert_eq!((reader.word(page + 4089), reader.word(page + 4096)), (None, None));
        let mut known = StackReader::new((page, page + 4096));
        assert_eq!((known.word(page + 4088), known.word(page + 4096), known.word(page + 4092)), (Some(77), None, None));
        // SAFETY: the first page was mapped above and no one uses it any more.
        unsafe { libc::munmap(page as *mut _, 4096) };
    }

    #[test]
    fn a_stack_is_known_up_to_its_top_and_other_stacks_are_not() {
        let local = 0_u64;
        let known = KnownStack::new();
        let (low, high) = known.around((&raw const local) as u64);
        assert!(low <= (&raw const local) as u64 && high > (&raw const local) as u64);
        let boxed = vec![0_u8; 1 << 20];
        assert_eq!(known.around(boxed.as_ptr() as u64 + 4096), (0, 0));
        assert_eq!(known.around(0), (0, 0));
        assert_eq!(known.around((&raw const local) as u64), (low, high));
    }
}
