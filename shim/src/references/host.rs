//! Words of the process's own memory that refer to allocations.
//!
//! The search reads all memory that the process wrote: variables, heaps, stacks, mappings. It leaves out the shim's own
//! memory and the memory of devices. It does not see registers, nor memory that cannot be read.

use super::targets::Targets;
use super::tokens::{AROUND, WINDOW, Window};
use crate::process::memory::{self, Mapping, PIECE, Pages};
use crate::process::own;
use crate::process::peek::{read_by_force, read_memory, read_value};
use crate::process::thread_stacks;
use crate::shim::Shim;
use crate::stacks::modules::{self, Modules};
use gpumem_wire::references::Place;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// A larger mapping is mostly reserved address space of runtimes and drivers. Checking each of its pages takes long, so
/// the kernel is first asked if the mapping has any memory.
const VAST: u64 = 16 << 30;
/// Bytes of a vast mapping that the kernel is asked about at a time.
const STRIDE: u64 = 64 << 20;
/// Bytes below its stack pointer that a thread may use.
const RED_ZONE: u64 = 128;

/// Result of a search of the host's memory.
#[derive(Default)]
pub(super) struct Found {
    /// Bytes that were read.
    pub bytes: u64,
    /// Words that refer to a target.
    pub words: u64,
    /// Bytes of vast mappings without memory, which were skipped.
    pub reserved: u64,
    /// Reason why some memory was not read; `None` if all was.
    pub incomplete: Option<String>,
}

/// A word that refers to a target.
pub(super) struct Word<'a> {
    /// Index of the target.
    pub index: usize,
    pub place: Place,
    pub at: u64,
    pub word: u64,
    /// The bytes that were read, and the offset of the word in them.
    read: (&'a [u8], usize),
}

impl Word<'_> {
    /// Returns the word and its neighbours. An unreadable neighbour is zero.
    pub(super) fn window(&self) -> Window {
        let (bytes, at) = self.read;
        let first = at.wrapping_sub(AROUND * 8);
        let mut near = [0; WINDOW];
        match bytes.get(first..first.wrapping_add(WINDOW)) {
            Some(within) => near.copy_from_slice(within),
            None => {
                let (before, behind) = near.split_at_mut(AROUND * 8);
                let from = self.at.saturating_sub(AROUND as u64 * 8);
                // Word by word, since the neighbours may lie on a page that is not mapped.
                for (to, at) in before.chunks_exact_mut(8).zip((from..).step_by(8)) {
                    to.copy_from_slice(&read_value::<[u8; 8]>(at).unwrap_or_default());
                }
                for (to, at) in behind.chunks_exact_mut(8).zip((self.at..).step_by(8)) {
                    to.copy_from_slice(&read_value::<[u8; 8]>(at).unwrap_or_default());
                }
            }
        }
        let (words, _) = near.as_chunks::<8>();
        std::array::from_fn(|index| u64::from_ne_bytes(words[index]))
    }
}

/// Searches all of the host's memory, until `is_over` returns true.
pub(super) fn look(shim: &Shim, targets: &Targets, is_over: impl FnMut() -> bool, each: impl FnMut(&Word)) -> Found {
    let mut found = Found::default();
    let mappings = match memory::mappings() {
        Ok(mappings) => mappings,
        Err(error) => {
            found.incomplete = Some(format!("/proc/self/maps: {error}"));
            return found;
        }
    };
    let is_vast = |mapping: &Mapping| is_wanted(mapping) && mapping.end - mapping.start > VAST;
    let empty = if mappings.iter().any(is_vast) { memory::empty_ones().unwrap_or_default() } else { Vec::new() };
    let mut look = Look {
        targets,
        empty,
        own: Own::default(),
        ledger: shim.ledger.path.as_os_str().as_bytes().to_vec(),
        trace: shim.settings.alloc_trace.as_ref().map(|path| path.as_os_str().as_bytes().to_vec()),
        pages: Pages::new(),
        modules: modules::refresh(),
        unused: unused_stacks(&mappings),
        room: Vec::new(),
        found,
        is_over,
        each,
    };
    for mapping in &mappings {
        if let Err(why) = look.mapping(mapping) {
            look.found.incomplete = Some(why.into());
            break;
        }
    }
    look.found
}

/// True if the process may have written to a mapping. A mapping without write access may have been written earlier, so
/// it is read if it is private or shared memory. Other mapped files are not memory of the program.
fn is_wanted(mapping: &Mapping) -> bool {
    let is_memory = mapping.readable && mapping.writable || !mapping.shared || mapping.is_shared_memory();
    is_memory && !mapping.is_device()
}

/// Returns the unused parts of the stacks of waiting threads, sorted.
fn unused_stacks(mappings: &[Mapping]) -> Vec<Range<u64>> {
    let first = mappings.iter().find(|mapping| mapping.name == b"[stack]").map(|first| first.start..first.end);
    let mut all = thread_stacks::unused(first);
    all.iter_mut().for_each(|unused| unused.end = unused.end.saturating_sub(RED_ZONE).max(unused.start) & !7);
    all.sort_unstable_by_key(|unused| unused.start);
    all
}

/// gpumem's own memory: its library, and the mappings of its allocator so far.
#[derive(Default)]
struct Own {
    ranges: Vec<Range<u64>>,
    /// The value of [`own::changes`] for these ranges.
    changes: u64,
}

impl Own {
    /// Updates the ranges. Returns `false` if not all of them are known.
    fn renew(&mut self, modules: &Modules) -> bool {
        let changes = own::changes();
        if changes == self.changes {
            return true;
        }
        let Some(ranges) = own::ranges() else { return false };
        (self.ranges, self.changes) = (ranges, changes);
        static HERE: u8 = 0;
        self.ranges.extend(modules.find(&raw const HERE as u64).map(|library| library.start..library.end));
        self.ranges.sort_unstable_by_key(|range| range.start);
        true
    }
}

struct Look<'a, O, F> {
    targets: &'a Targets,
    /// Mappings without memory, if there are vast mappings.
    empty: Vec<Range<u64>>,
    own: Own,
    ledger: Vec<u8>,
    trace: Option<Vec<u8>>,
    pages: Pages,
    modules: Modules,
    /// Unused parts of stacks, sorted.
    unused: Vec<Range<u64>>,
    room: Vec<MaybeUninit<u8>>,
    found: Found,
    is_over: O,
    each: F,
}

impl<O: FnMut() -> bool, F: FnMut(&Word)> Look<'_, O, F> {
    /// Searches a mapping.
    ///
    /// # Errors
    /// Why the search cannot go on.
    fn mapping(&mut self, mapping: &Mapping) -> Result<(), &'static str> {
        if !is_wanted(mapping) || self.is_no_memory(mapping) {
            return Ok(());
        }
        let bytes = mapping.end - mapping.start;
        if bytes > VAST && self.empty.contains(&(mapping.start..mapping.end)) {
            self.found.reserved += bytes;
            return Ok(());
        }
        let place = self.place(mapping);
        let mut start = mapping.start;
        while start < mapping.end {
            if (self.is_over)() {
                return Err("there was no time to read all of it");
            }
            let (all, next) = self.filled(mapping, start);
            for filled in all {
                let filled = filled.start.max(start)..filled.end.min(next);
                for start in filled.clone().step_by(PIECE as usize) {
                    self.piece(start..filled.end.min(start + PIECE), place)?;
                }
            }
            start = next;
        }
        Ok(())
    }

    /// Returns the ranges of a mapping, from an address on, that have contents, and the address up to which that is
    /// known.
    fn filled(&self, mapping: &Mapping, start: u64) -> (Vec<Range<u64>>, u64) {
        let is_vast = mapping.end - mapping.start > VAST;
        if is_vast
            && !mapping.shared
            && let Some(written) = self.pages.written_from(start..mapping.end, STRIDE)
        {
            return written;
        }
        let end = mapping.end.min(start + if is_vast { STRIDE } else { PIECE });
        (self.pages.filled(mapping, self.pages.around(&(start..end))), end)
    }

    /// Searches the parts of a piece that are the program's.
    ///
    /// # Errors
    /// As for [`mapping`](Self::mapping).
    fn piece(&mut self, piece: Range<u64>, place: Place) -> Result<(), &'static str> {
        if (self.is_over)() {
            return Err("there was no time to read all of it");
        }
        // The shim maps memory meanwhile, for itself and in the program's calls.
        if !self.own.renew(&self.modules) {
            return Err("gpumem's own memory is in more pieces than are told apart");
        }
        for part in memory::without(piece, &self.own.ranges) {
            for part in memory::without(part, &self.unused) {
                // A library or a stack may end at any address.
                self.part(part.start.next_multiple_of(8)..part.end, place)?;
            }
        }
        Ok(())
    }

    /// True if a mapping is not memory of the program. The ledger has the address of each allocation, and the trace may
    /// have it. Mappings such as `[vdso]` are the kernel's.
    fn is_no_memory(&self, mapping: &Mapping) -> bool {
        let trace = self.trace.as_ref().is_some_and(|trace| mapping.name.starts_with(trace));
        trace || mapping.name.starts_with(&self.ledger) || mapping.name.starts_with(b"[v")
    }

    /// Returns a mapping's kind of place.
    fn place(&self, mapping: &Mapping) -> Place {
        let range = mapping.start..mapping.end;
        match mapping.name.as_slice() {
            b"[stack]" => Place::Stack,
            b"[heap]" => Place::Heap,
            _ if mapping.shared => Place::Shared,
            _ if self.modules.find(mapping.start).is_some() => Place::Data,
            _ if self.unused.iter().any(|unused| range.contains(&unused.end)) => Place::Stack,
            _ => Place::Memory,
        }
    }

    /// Searches a part. Pages that are no longer mapped are left out.
    ///
    /// # Errors
    /// Some of the part is mapped and cannot be read.
    fn part(&mut self, mut part: Range<u64>, place: Place) -> Result<(), &'static str> {
        while part.start < part.end {
            let read = self.words(&part, place, read_memory) & !7;
            part.start += read;
            if part.start >= part.end.saturating_sub(7) {
                break;
            }
            // The page at which the read ended.
            let page = part.start..self.pages.next(part.start).min(part.end);
            if self.words(&page, place, read_by_force) == 0 && memory::is_mapped(self.pages.around(&page).start) {
                return Err("some of it cannot be read");
            }
            part.start = page.end;
        }
        Ok(())
    }

    /// Searches the readable beginning of a part; returns the number of bytes read.
    fn words(&mut self, part: &Range<u64>, place: Place, read: memory::Read) -> u64 {
        let bytes = memory::words(part, &mut self.room, read);
        self.found.bytes += bytes.len() as u64;
        let (words, _) = bytes.as_chunks::<8>();
        for (at, word) in (part.start..).step_by(8).zip(words) {
            let word = u64::from_ne_bytes(*word);
            let Some(index) = self.targets.find(word) else { continue };
            self.found.words += 1;
            let offset = (at - part.start) as usize;
            (self.each)(&Word { index, place, at, word, read: (bytes, offset) });
        }
        bytes.len() as u64
    }
}
