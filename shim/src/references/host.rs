//! Words of the process's own memory that refer to allocations.
//!
//! All that the process wrote is read: variables, heaps, stacks, memory that it mapped. Left out are the shim's own
//! memory, and what belongs to devices. Registers are not seen, nor what lies in memory that cannot be read.

use super::Limit;
use super::driver::{AROUND, Patterns, WINDOW, Window};
use super::targets::Targets;
use crate::process::memory::{self, Mapping, PIECE, Pages};
use crate::process::own;
use crate::process::peek::read_value;
use crate::shim::Shim;
use crate::stacks::modules::{self, Modules};
use gpumem_wire::references::{Place, Seen};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// Below its stack pointer a thread may use so many bytes.
const RED_ZONE: u64 = 128;

/// What the search of the host came to.
#[derive(Default)]
pub struct Found {
    /// Bytes that were read.
    pub bytes: u64,
    /// Words that refer to a target.
    pub words: u64,
    /// Why not all of it was read.
    pub incomplete: Option<String>,
}

/// A word that refers to a target.
pub struct Word<'a> {
    /// Of the target.
    pub index: usize,
    pub place: Place,
    pub at: u64,
    pub word: u64,
    /// What was read, and where in it the word is.
    read: (&'a [u8], usize),
}

impl Word<'_> {
    /// The word and its neighbours; zeroes where there are none.
    pub fn window(&self) -> Window {
        let (bytes, at) = self.read;
        let first = at.wrapping_sub(AROUND * 8);
        let mut near = [0; WINDOW];
        match bytes.get(first..first.wrapping_add(WINDOW)) {
            Some(within) => near.copy_from_slice(within),
            None => {
                let (before, behind) = near.split_at_mut(AROUND * 8);
                let from = self.at.saturating_sub(AROUND as u64 * 8);
                // Page by page: the first may not be there.
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

/// Counts the words of all of the host's memory that refer to a target; those that fit the patterns are the driver's.
pub fn count(shim: &Shim, targets: &Targets, patterns: &Patterns, limit: &mut Limit) -> (Found, Vec<Seen>) {
    let mut all = vec![Seen::default(); targets.len()];
    let found = look(shim, targets, limit, |word| {
        let seen = &mut all[word.index];
        if patterns.len() > 0 && is_drivers(patterns, targets, word) {
            return seen.add(Place::Driver, 1);
        }
        seen.add(word.place, 1);
        // A variable says more than any other place.
        if seen.at == 0 || word.place == Place::Data && seen.of(Place::Data) == 1 {
            seen.at = word.at;
        }
    });
    (found, all)
}

/// Whether a word stands in a record of the driver's: that of its block, or of the one that ends where it begins.
fn is_drivers(patterns: &Patterns, targets: &Targets, word: &Word) -> bool {
    let window = word.window();
    let before = word.index.checked_sub(1).map(|before| targets.range(before));
    patterns.fit(&window, targets.range(word.index)) || before.is_some_and(|before| patterns.fit(&window, before))
}

/// Looks through all of the host's memory.
pub fn look(shim: &Shim, targets: &Targets, limit: &mut Limit, each: impl FnMut(&Word)) -> Found {
    let mut found = Found::default();
    let Some(mut own) = own::ranges() else {
        found.incomplete = Some("gpumem's own memory is in more pieces than are told apart".into());
        return found;
    };
    let mappings = match memory::mappings() {
        Ok(mappings) => mappings,
        Err(error) => {
            found.incomplete = Some(format!("/proc/self/maps: {error}"));
            return found;
        }
    };
    let modules = modules::refresh();
    static HERE: u8 = 0;
    own.extend(modules.find(&raw const HERE as u64).map(|library| library.start..library.end));
    own.sort_unstable_by_key(|range| range.start);
    let mut look = Look {
        targets,
        own,
        ledger: shim.ledger.path.as_os_str().as_bytes().to_vec(),
        trace: shim.settings.record.as_ref().map(|path| path.as_os_str().as_bytes().to_vec()),
        pages: Pages::new(),
        modules,
        stacks: memory::stack_pointers(),
        room: Vec::new(),
        found,
        each,
    };
    for mapping in &mappings {
        if !look.mapping(mapping, limit) {
            look.found.incomplete = Some("there was no time to read all of it".into());
            break;
        }
    }
    look.found
}

struct Look<'a, F> {
    targets: &'a Targets,
    own: Vec<Range<u64>>,
    ledger: Vec<u8>,
    trace: Option<Vec<u8>>,
    pages: Pages,
    modules: Modules,
    /// Stack pointers of threads that wait.
    stacks: Vec<u64>,
    room: Vec<MaybeUninit<u8>>,
    found: Found,
    each: F,
}

impl<F: FnMut(&Word)> Look<'_, F> {
    /// False: there is no time left.
    fn mapping(&mut self, mapping: &Mapping, limit: &mut Limit) -> bool {
        // What nobody writes may have been written before, so it is read where it is the process's alone.
        let is_wanted = mapping.readable && (mapping.writable || !mapping.shared);
        if !is_wanted || mapping.is_device() || self.is_no_memory(mapping) {
            return true;
        }
        let (place, from) = self.place(mapping);
        for range in memory::without(from..mapping.end, &self.own) {
            // A library ends anywhere.
            let range = range.start.next_multiple_of(8)..range.end;
            for start in (range.start..range.end).step_by(PIECE as usize) {
                if limit.is_over() {
                    return false;
                }
                let piece = start..range.end.min(start + PIECE);
                for part in self.pages.filled(mapping, self.pages.around(&piece)) {
                    self.part(&(part.start.max(piece.start)..part.end.min(piece.end)), place);
                }
            }
        }
        true
    }

    /// The ledger has the address of each allocation, and the trace may. `[vdso]` and its like are the kernel's.
    fn is_no_memory(&self, mapping: &Mapping) -> bool {
        let trace = self.trace.as_ref().is_some_and(|trace| mapping.name.starts_with(trace));
        trace || mapping.name.starts_with(&self.ledger) || mapping.name.starts_with(b"[v")
    }

    /// What kind of place it is, and where what is in use of it begins.
    fn place(&self, mapping: &Mapping) -> (Place, u64) {
        let range = mapping.start..mapping.end;
        // The lowest, where several threads share one.
        let stack = self.stacks.iter().filter(|stack| range.contains(stack)).min();
        if let Some(stack) = stack {
            return (Place::Stack, stack.saturating_sub(RED_ZONE).max(mapping.start) & !7);
        }
        let place = match mapping.name.as_slice() {
            b"[stack]" => Place::Stack,
            b"[heap]" => Place::Heap,
            _ if mapping.shared => Place::Shared,
            _ if self.modules.find(mapping.start).is_some() => Place::Data,
            _ => Place::Memory,
        };
        (place, mapping.start)
    }

    fn part(&mut self, part: &Range<u64>, place: Place) {
        let bytes = memory::words(part, &mut self.room);
        self.found.bytes += bytes.len() as u64;
        let (words, _) = bytes.as_chunks::<8>();
        for (at, word) in (part.start..).step_by(8).zip(words) {
            let word = u64::from_ne_bytes(*word);
            let Some(index) = self.targets.find(word) else { continue };
            self.found.words += 1;
            let offset = (at - part.start) as usize;
            (self.each)(&Word { index, place, at, word, read: (bytes, offset) });
        }
    }
}
