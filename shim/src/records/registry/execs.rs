//! Live execs by handle. A program may hold very many handles of ours. These are adjacent addresses, so the entries are
//! adjacent too: eight bytes each. The library's own execs are in a map.

use super::graphs::ExecEntry;
use super::live::{Class, Live};
use crate::process::handle_range::index_in;
use crate::process::heap;
use crate::process::lock::lock;
use crate::process::wiped;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::ContextRef;
use std::sync::Mutex;

const VENDORS: [Vendor; 2] = [Vendor::Cuda, Vendor::Hip];

pub(crate) struct Execs {
    own: Live<ExecEntry>,
    /// Handles of ours, by vendor.
    ours: [Mutex<Row>; VENDORS.len()],
}

impl Execs {
    pub(crate) fn new() -> Self {
        Self { own: Live::new(), ours: Default::default() }
    }

    /// Returns the place of our handle's entry.
    fn place(&self, exec: u64) -> Option<(&Mutex<Row>, usize)> {
        let index = |vendor| index_in(wiped::exec_handles(vendor), exec as usize);
        VENDORS.iter().zip(&self.ours).find_map(|(&vendor, row)| Some((row, index(vendor)? as usize)))
    }

    /// Adds an entry; returns the one it replaced, if any.
    pub(crate) fn insert(&self, exec: u64, entry: ExecEntry) -> Option<ExecEntry> {
        match self.place(exec) {
            Some((row, index)) => lock(row).replace(index, Some(entry)),
            None => self.own.insert(Class::Exec, exec, entry),
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, exec: u64) -> Option<ExecEntry> {
        match self.place(exec) {
            Some((row, index)) => lock(row).replace(index, None),
            None => self.own.remove(Class::Exec, exec),
        }
    }

    pub(crate) fn get(&self, exec: u64) -> Option<ExecEntry> {
        match self.place(exec) {
            Some((row, index)) => lock(row).word(index).and_then(|word| entry_of(*word)),
            None => self.own.get(Class::Exec, exec),
        }
    }

    /// Removes all entries for which `wanted` is true.
    pub(crate) fn drain(&self, wanted: impl Fn(&ExecEntry) -> bool) -> Vec<ExecEntry> {
        let mut taken = self.own.drain(&wanted);
        for row in &self.ours {
            let mut row = lock(row);
            let Row { chunks, there } = &mut *row;
            for word in chunks.iter_mut().flatten() {
                if let Some(entry) = entry_of(*word).filter(&wanted) {
                    *word = 0;
                    *there -= 1;
                    taken.push(entry);
                }
            }
        }
        taken
    }

    /// True if `wanted` is true for an entry.
    pub(crate) fn any(&self, wanted: impl Fn(&ExecEntry) -> bool) -> bool {
        let in_row = |row: &Mutex<Row>| {
            lock(row).chunks.iter().flatten().any(|word| entry_of(*word).is_some_and(|its| wanted(&its)))
        };
        self.own.any(&wanted) || self.ours.iter().any(in_row)
    }

    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.ours.iter().map(|row| lock(row).there).sum::<usize>()
    }
}

/// Entries per chunk. Its pages take no memory until they are touched.
const CHUNK: usize = 1024;

/// Entries by the index of the handle.
#[derive(Default)]
struct Row {
    chunks: Vec<Box<[u64]>>,
    /// Number of entries.
    there: usize,
}

/// Set in the word of an existing entry.
const THERE: u64 = 1 << 63;

fn word_of(entry: ExecEntry) -> u64 {
    THERE | u64::from(entry.context) << 32 | u64::from(entry.slot)
}

fn entry_of(word: u64) -> Option<ExecEntry> {
    (word & THERE != 0).then_some(ExecEntry { slot: word as u32, context: (word >> 32) as ContextRef })
}

impl Row {
    fn word(&mut self, index: usize) -> Option<&mut u64> {
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    /// Sets or clears a place's entry; returns the old one.
    fn replace(&mut self, index: usize, entry: Option<ExecEntry>) -> Option<ExecEntry> {
        while entry.is_some() && self.chunks.len() <= index / CHUNK {
            self.chunks.push(heap::zeroes(CHUNK));
        }
        let word = self.word(index)?;
        let before = entry_of(std::mem::replace(word, entry.map_or(0, word_of)));
        self.there = self.there + usize::from(entry.is_some()) - usize::from(before.is_some());
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_what_was_put_there() {
        let mut row = Row::default();
        let entry = |slot, context| ExecEntry { slot, context };
        let is = |found: Option<ExecEntry>| found.map(|its| (its.slot, its.context));
        for (index, slot, context) in [(0, u32::MAX, 0), (CHUNK, 7, ContextRef::MAX >> 1), (3 * CHUNK - 1, 0, 0)] {
            assert!(row.replace(index, None).is_none() && row.replace(index, Some(entry(slot, context))).is_none());
            assert_eq!(row.word(index).and_then(|word| is(entry_of(*word))), Some((slot, context)));
        }
        assert_eq!((row.there, row.chunks.len()), (3, 3));
        assert_eq!(is(row.replace(CHUNK, Some(entry(8, 1)))), Some((7, ContextRef::MAX >> 1)));
        assert_eq!((is(row.replace(CHUNK, None)), is(row.replace(CHUNK, None)), row.there), (Some((8, 1)), None, 2));
        assert!(row.replace(1 << 30, None).is_none() && row.chunks.len() == 3, "nothing is made to take something out");
    }
}
