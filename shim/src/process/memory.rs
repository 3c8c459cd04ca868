//! The process's own memory: its mappings, which of their pages have been written, and their contents. Pages that the
//! process never touched are not touched here: no page comes into being, and no fault reaches a handler of the program.

use super::descriptor::Descriptor;
use super::page::page_bytes;
use super::pagemap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes read at a time.
pub(crate) const PIECE: u64 = 1 << 20;

/// A mapping, as `/proc/self/maps` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub readable: bool,
    pub writable: bool,
    /// True if shared with other processes, or with a file.
    pub shared: bool,
    pub name: Vec<u8>,
}

impl Mapping {
    /// Parses one line.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let (range, flags) = (std::str::from_utf8(fields.next()?).ok()?, fields.next()?);
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, name) = (hex(start)?, hex(end)?, fields.nth(3).unwrap_or_default());
        let has = |at: usize, flag| flags.get(at) == Some(&flag);
        let (readable, writable, shared) = (has(0, b'r'), has(1, b'w'), has(3, b's'));
        Some(Self { start, end, readable, writable, shared, name: name.trim_ascii_start().to_vec() })
    }

    /// True if the mapping belongs to a device, which reading could affect. Memory files have no device behind them.
    /// Neither does memory shared with children (`MAP_SHARED | MAP_ANONYMOUS`), which has the third name of
    /// [`is_shared_memory`](Self::is_shared_memory).
    pub(crate) fn is_device(&self) -> bool {
        self.name.starts_with(b"/dev/") && !self.is_shared_memory()
            || self.name.windows(11).any(|part| part == b"/dev/nvidia")
    }

    /// True if its file is plain shared memory.
    pub(crate) fn is_shared_memory(&self) -> bool {
        const MEMORY: [&[u8]; 5] = [b"/dev/shm/", b"/dev/hugepages/", b"/dev/zero (deleted)", b"/memfd:", b"/SYSV"];
        MEMORY.iter().any(|memory| self.name.starts_with(memory))
    }
}

/// Returns all mappings, in the order of their addresses.
///
/// # Errors
/// The system's.
pub(crate) fn mappings() -> std::io::Result<Vec<Mapping>> {
    let text = std::fs::read("/proc/self/maps")?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(Mapping::parse).collect())
}

/// Returns mappings that hold nothing, neither in memory nor swapped out; `None` if the kernel does not say.
pub(crate) fn empty_ones() -> Option<Vec<Range<u64>>> {
    // With many mappings the file is long.
    Some(empty_in(BufReader::new(File::open("/proc/self/smaps").ok()?)))
}

fn empty_in(mut smaps: impl BufRead) -> Vec<Range<u64>> {
    /// Lines that say how much of a mapping is held.
    const HELD: [&[u8]; 4] = [b"Rss:", b"Swap:", b"Shared_Hugetlb:", b"Private_Hugetlb:"];
    let (mut all, mut line) = (Vec::new(), Vec::new());
    // The current mapping while no line says that it holds something, and the number of lines that say it does not.
    let mut at_hand: Option<(Range<u64>, usize)> = None;
    let mut done = |at_hand: &mut Option<(Range<u64>, usize)>| {
        // Kernels without huge pages have two of these lines.
        all.extend(at_hand.take().filter(|(_, told)| *told >= 2).map(|(range, _)| range));
    };
    while smaps.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (name, value) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !name.ends_with(b":") {
            done(&mut at_hand);
            at_hand = Mapping::parse(line.trim_ascii_end()).map(|mapping| (mapping.start..mapping.end, 0));
        } else if HELD.contains(&name) {
            at_hand = at_hand.filter(|_| value == b"0").map(|(range, told)| (range, told + 1));
        }
        line.clear();
    }
    done(&mut at_hand);
    all
}

/// Returns a range minus others, which are sorted.
pub(crate) fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut at = range.start;
    for other in others.iter().filter(|other| other.start < range.end && other.end > range.start) {
        if other.start > at {
            left.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        left.push(at..range.end);
    }
    left
}

/// Tells which pages hold something.
pub(crate) struct Pages {
    map: Option<Descriptor>,
    page: u64,
}

impl Pages {
    pub(crate) fn new() -> Self {
        Self { map: File::open("/proc/self/pagemap").ok().map(Descriptor::from), page: page_bytes() }
    }

    /// Returns the start of the page after the one that holds an address.
    pub(crate) fn next(&self, at: u64) -> u64 {
        (at + 1).next_multiple_of(self.page)
    }

    /// Returns the range rounded out to whole pages.
    pub(crate) fn around(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.page * self.page..range.end.next_multiple_of(self.page)
    }

    /// Returns the whole pages of a piece of a mapping that hold what the process wrote; the whole piece if the kernel
    /// cannot tell.
    pub(crate) fn filled(&self, mapping: &Mapping, piece: Range<u64>) -> Vec<Range<u64>> {
        let is_filled: Option<Vec<bool>> = if mapping.shared { self.cached(&piece) } else { self.written(&piece) };
        let Some(filled) = is_filled else { return vec![piece] };
        let mut parts: Vec<Range<u64>> = Vec::new();
        for (start, _) in (piece.start..piece.end).step_by(self.page as usize).zip(filled).filter(|(_, is)| *is) {
            let end = (start + self.page).min(piece.end);
            match parts.last_mut().filter(|part| part.end == start) {
                Some(part) => part.end = end,
                None => parts.push(start..end),
            }
        }
        parts
    }

    /// Tells, for private memory, which pages are present or swapped out and do not belong to a file. Pages that the
    /// kernel does not report are taken as empty.
    fn written(&self, piece: &Range<u64>) -> Option<Vec<bool>> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const OF_FILE: u64 = 1 << 61;
        let fd = self.map.as_ref()?.get()?;
        let mut entries = vec![0_u64; ((piece.end - piece.start) / self.page) as usize];
        let (bytes, at) = (entries.len() * 8, (piece.start / self.page * 8) as i64);
        // SAFETY: `entries` has room for as many bytes as are asked for. `get` has checked that the descriptor still is
        // ours.
        let read = unsafe { libc::pread64(fd, entries.as_mut_ptr().cast(), bytes, at) };
        let is_filled = |&entry: &u64| entry & SWAPPED != 0 || entry & PRESENT != 0 && entry & OF_FILE == 0;
        if read != bytes as isize {
            return None;
        }
        // In reserved but unused memory all pages have the same entry.
        if entries.first().is_some_and(|first| !is_filled(first)) && entries[1..] == entries[..entries.len() - 1] {
            return Some(Vec::new());
        }
        Some(entries.iter().map(is_filled).collect())
    }

    /// Returns, for private memory, what [`filled`](Self::filled) does: ranges of whole pages, together at most `most`
    /// bytes, and the address up to which the answer holds. The kernel skips unwritten memory, however long it is.
    /// `None`: the kernel cannot do that.
    pub(crate) fn written_from(&self, range: Range<u64>, most: u64) -> Option<(Vec<Range<u64>>, u64)> {
        pagemap::scan(self.map.as_ref()?.get()?, range, (most / self.page).max(1))
    }

    /// Tells, for shared memory, which pages the kernel has cached.
    fn cached(&self, piece: &Range<u64>) -> Option<Vec<bool>> {
        let bytes = piece.end - piece.start;
        let mut pages = vec![0_u8; (bytes / self.page) as usize];
        // SAFETY: mincore writes a byte for each page, and `pages` has as many. What is not mapped is an error.
        let told = unsafe { libc::mincore(piece.start as *mut _, bytes as usize, pages.as_mut_ptr()) };
        (told == 0).then(|| pages.iter().map(|page| page & 1 != 0).collect())
    }
}

/// [`read_memory`](super::peek::read_memory), or [`read_by_force`](super::peek::read_by_force).
pub(crate) type Read = fn(u64, &mut [MaybeUninit<u8>]) -> &mut [u8];

/// Returns the aligned words of a part, which is no longer than [`PIECE`], up to the first that `read` cannot read.
pub(crate) fn words<'a>(part: &Range<u64>, room: &'a mut Vec<MaybeUninit<u8>>, read: Read) -> &'a [u8] {
    room.resize(PIECE as usize, MaybeUninit::uninit());
    let bytes = (part.end - part.start).min(PIECE) as usize;
    read(part.start, &mut room[..bytes])
}

/// True if the page is mapped.
pub(crate) fn is_mapped(at: u64) -> bool {
    let mut page = 0_u8;
    // SAFETY: mincore writes a byte for each page, of which there is one. What is not mapped is an error.
    unsafe { libc::mincore(at as *mut _, 1, &mut page) == 0 }
}

#[cfg(test)]
mod tests {
    use super::super::peek::{read_by_force, read_memory};
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn lines_are_mappings() {
        let line = b"7f01a000-7f01c000 rw-s 00000000 00:05 1034       /dev/shm/a b (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f01_a000, 0x7f01_c000));
        assert!(mapping.readable && mapping.writable && mapping.shared && !mapping.is_device());
        assert_eq!(mapping.name, b"/dev/shm/a b (deleted)");
        let mapping = Mapping::parse(b"7f01a000-7f01c000 ---p 00000000 00:00 0 ").unwrap();
        assert!(!mapping.readable && !mapping.shared && mapping.name.is_empty());
        for (name, is_device) in [
            ("/dev/nvidia-uvm", true),
            ("/dev/zero (deleted)", false),
            ("/dev/hugepages/a", false),
            ("/memfd:/dev/nvidiactl", true),
        ] {
            let mapping = Mapping::parse(format!("1-2 rw-s 0 00:06 7   {name}").as_bytes()).unwrap();
            assert_eq!(mapping.is_device(), is_device, "{name}");
        }
        assert!(Mapping::parse(b"").is_none() && Mapping::parse(b"x-y rw-p 0 0 0").is_none());
    }

    #[test]
    fn mappings_without_anything_are_told() {
        let of = |start: u64, rss: u64, more: &str| {
            format!(
                "{start:x}-{:x} ---p 00000000 00:00 0 \nSize: 4 kB\nRss:   {rss} kB\n{more}VmFlags: mr mw\n",
                start + 1
            )
        };
        let text = [
            of(1, 0, "Shared_Hugetlb: 0 kB\nPrivate_Hugetlb: 0 kB\nSwap:     0 kB\nSwapPss: 0 kB\n"),
            of(2, 4, "Swap: 0 kB\n"),
            of(3, 0, "Swap: 8 kB\n"),
            of(4, 0, "Private_Hugetlb: 2048 kB\nSwap: 0 kB\n"),
            // This mapping has too few lines.
            of(5, 0, ""),
            of(6, 0, "Swap: 0 kB\n"),
        ];
        assert_eq!(empty_in(text.concat().as_bytes()), [1..2, 6..7]);
        assert_eq!(empty_in(&b""[..]), []);
        // A page that is present, and an absent one.
        let bytes = 2 << 20;
        // SAFETY: the mapping is private and anonymous, and the kernel chooses where it lies. It is this test's.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the mapping is this test's.
        let hide = || assert_eq!(unsafe { libc::mprotect(at, bytes, libc::PROT_NONE) }, 0);
        hide();
        let is_empty = || {
            let all = mappings().unwrap();
            let of = all.iter().find(|mapping| (mapping.start..mapping.end).contains(&(at as u64))).unwrap();
            empty_ones().unwrap().contains(&(of.start..of.end))
        };
        assert!(is_empty());
        // SAFETY: as above; the first word is in it.
        unsafe {
            assert_eq!(libc::mprotect(at, bytes, libc::PROT_READ | libc::PROT_WRITE), 0);
            at.cast::<u64>().write(1);
        }
        hide();
        assert!(!is_empty());
        // SAFETY: the mapping is this test's, and nothing refers to it any more.
        assert_eq!(unsafe { libc::munmap(at, bytes) }, 0);
    }

    #[test]
    fn what_is_left_of_a_range() {
        let others = [2..4, 6..7, 9..20];
        assert_eq!(without(0..10, &others), [0..2, 4..6, 7..9]);
        assert_eq!(without(3..4, &others), []);
        assert_eq!(without(4..6, &others), from_ref(&(4..6)));
        assert_eq!(without(10..30, &others), from_ref(&(20..30)));
    }

    #[test]
    fn only_pages_that_were_written_are_read() {
        let pages = Pages::new();
        // SAFETY: the mapping is private and anonymous, and the kernel chooses where it lies. It is this test's.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let at = libc::mmap(std::ptr::null_mut(), 1 << 20, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, 1 << 20, libc::MADV_NOHUGEPAGE);
            at as u64
        };
        // SAFETY: the third page is in the mapping.
        unsafe { ((at + 2 * pages.page) as *mut u64).write(0x1234_5678_9abc) };
        let all = mappings().unwrap();
        let mapping = all.iter().find(|mapping| (mapping.start..mapping.end).contains(&at)).unwrap();
        let filled = pages.filled(mapping, at..at + (1 << 20));
        let written = at + 2 * pages.page..at + 3 * pages.page;
        assert_eq!(filled, from_ref(&written));
        let mut room = Vec::new();
        assert_eq!(words(&written, &mut room, read_memory)[..8], 0x1234_5678_9abc_u64.to_ne_bytes());
        // SAFETY: the mapping is this test's, and nothing refers to it any more.
        assert_eq!(unsafe { libc::munmap(at as *mut _, 1 << 20) }, 0);
        assert!(words(&written, &mut room, read_memory).is_empty(), "what went meanwhile is no fault");
        assert!(words(&written, &mut room, read_by_force).is_empty() && !is_mapped(written.start));
    }

    /// Memory that the process may not read now is read anyway, without a fault.
    #[test]
    fn what_may_not_be_read_is_read_by_force() {
        let page = Pages::new().page;
        // SAFETY: the mapping is private and anonymous, and the kernel chooses where it lies. It is this test's.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), page as usize, libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u64>().write(0x1234_5678_9abc);
            assert_eq!(libc::mprotect(at, page as usize, libc::PROT_NONE), 0);
            at as u64
        };
        let (part, mut room) = (at..at + page, Vec::new());
        assert!(words(&part, &mut room, read_memory).is_empty() && is_mapped(at));
        assert_eq!(words(&part, &mut room, read_by_force)[..8], 0x1234_5678_9abc_u64.to_ne_bytes());
        // SAFETY: the mapping is this test's, and nothing refers to it any more.
        assert_eq!(unsafe { libc::munmap(at as *mut _, page as usize) }, 0);
    }
}
