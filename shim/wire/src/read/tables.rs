//! Reads the tables of one file, a piece of slots at a time.

use super::directory::Table;
use super::source::Source;
use crate::layout::{Sealed, TableKind};
use std::collections::HashMap;

/// Bytes read at a time: a claim of gigabytes in a small file allocates no more than this. The C library's heap keeps
/// buffers of this size, and gives larger ones back to the kernel, which clears their pages for the next table.
const PIECE_BYTES: usize = 64 << 10;
/// Extent of a table that is allowed beyond twice the stored bytes: storage taken ahead of its use.
const AHEAD_BYTES: u64 = 1 << 20;

pub(super) struct Tables<'a, S: Source + ?Sized> {
    source: &'a S,
    directory: HashMap<TableKind, Table>,
    pub(super) stored: u64,
    /// End of reading a table, in bytes from its start. A table fills from its start, so a record cannot lie further
    /// out than the file's stored bytes. So the memory for reading a file follows from what it stores, whatever it
    /// claims.
    reach: u64,
    /// True if the tables claim so little that holes in them are read as the zeroes that they are.
    reads_holes: bool,
    pub(super) torn: u64,
}

impl<'a, S: Source + ?Sized> Tables<'a, S> {
    pub(super) fn new(source: &'a S, directory: HashMap<TableKind, Table>) -> std::io::Result<Self> {
        let claimed = directory.values().map(Table::bytes).fold(0, u64::saturating_add);
        let reads_holes = claimed <= AHEAD_BYTES;
        let stored = if reads_holes { claimed } else { source.stored()? };
        let reach = stored.saturating_mul(2).saturating_add(AHEAD_BYTES);
        Ok(Self { source, directory, stored, reach, reads_holes, torn: 0 })
    }

    /// Returns the maximum bytes that reading all tables can give.
    pub(super) fn bytes_at_most(&self) -> u64 {
        self.directory.values().map(|table| table.bytes().min(self.reach)).fold(0, u64::saturating_add)
    }

    /// Visits the stored parts of a table, a piece of whole slots at a time, each with the index of its first slot.
    /// Holes are zeroes. Those of larger tables are left out.
    fn pieces(&self, kind: TableKind, mut each: impl FnMut(u64, &[u8])) -> std::io::Result<()> {
        let Some(table) = self.directory.get(&kind) else { return Ok(()) };
        let slot = u64::from(table.desc.slot_bytes);
        // Both from the table's start.
        let (mut at, end) = (0, table.bytes().min(self.reach) / slot * slot);
        let mut piece = vec![0; end.min(PIECE_BYTES as u64 / slot * slot) as usize];
        while at < end {
            let stored = || table.stored_from(self.source, at);
            let Some(stretch) = (if self.reads_holes { Some(at..end) } else { stored()? }) else { break };
            // A partly stored slot is read whole.
            at = at.max(stretch.start / slot * slot);
            let stop = end.min(stretch.end.next_multiple_of(slot));
            while at < stop {
                let want = (stop - at).min(piece.len() as u64) as usize;
                let got = table.read_at(self.source, at, &mut piece[..want])?;
                each(at / slot, &piece[..got]);
                if got < want {
                    return Ok(());
                }
                at += want as u64;
            }
        }
        Ok(())
    }

    /// Returns the table as bytes; holes are zeroes.
    pub(super) fn bytes(&self, kind: TableKind) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.pieces(kind, |first, piece| {
            bytes.resize(first as usize, 0);
            bytes.extend_from_slice(piece);
        })?;
        Ok(bytes)
    }

    /// Returns the table as words; holes are zeroes.
    pub(super) fn words(&self, kind: TableKind) -> std::io::Result<Vec<u64>> {
        let mut words = Vec::new();
        self.pieces(kind, |first, piece| {
            words.resize(first as usize, 0);
            words.extend(piece.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        })?;
        Ok(words)
    }

    /// Returns the first words of a table, as they are now.
    pub(super) fn first_words(&self, kind: TableKind, words: usize) -> std::io::Result<Vec<u64>> {
        let Some(table) = self.directory.get(&kind) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; table.bytes().min(self.reach).min(words as u64 * 8) as usize];
        let got = table.read_at(self.source, 0, &mut bytes)?;
        Ok(bytes[..got].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Calls `each` for every valid slot with its index.
    pub(super) fn for_each<T: Sealed>(&mut self, mut each: impl FnMut(u32, T)) -> std::io::Result<()> {
        let mut torn = 0;
        self.pieces(T::TABLE, |first, piece| {
            for (index, chunk) in (first..).zip(piece.chunks_exact(size_of::<T>())) {
                let Ok(index) = u32::try_from(index) else { return };
                if chunk[..4] != [0; 4] {
                    match T::read_from_bytes(chunk) {
                        Ok(slot) if slot.seal().to_le_bytes() == chunk[..4] => each(index, slot),
                        _ => match self.again::<T>(index) {
                            Again::Whole(slot) => each(index, slot),
                            Again::Free => {}
                            Again::Torn => torn += 1,
                        },
                    }
                }
            }
        })?;
        self.torn += torn;
        Ok(())
    }

    /// Reads a slot again that was caught in the middle of a change.
    fn again<T: Sealed>(&self, index: u32) -> Again<T> {
        let look = || {
            let table = self.directory.get(&T::TABLE)?;
            let mut chunk = [0; 512];
            let chunk = chunk.get_mut(..size_of::<T>())?;
            let got = table.read_at(self.source, u64::from(index) * size_of::<T>() as u64, chunk).ok()?;
            Some((T::read_from_bytes(chunk.get(..got)?).ok()?, [chunk[0], chunk[1], chunk[2], chunk[3]]))
        };
        match look() {
            Some((_, [0, 0, 0, 0])) => Again::Free,
            Some((slot, check)) if slot.seal().to_le_bytes() == check => Again::Whole(slot),
            _ => Again::Torn,
        }
    }

    pub(super) fn slots<T: Sealed>(&mut self) -> std::io::Result<Vec<(u32, T)>> {
        let mut slots = Vec::new();
        self.for_each(|index, slot| slots.push((index, slot)))?;
        Ok(slots)
    }

    pub(super) fn list<T: Sealed>(&mut self) -> std::io::Result<Vec<T>> {
        let mut slots = Vec::new();
        self.for_each(|_, slot| slots.push(slot))?;
        Ok(slots)
    }
}

enum Again<T> {
    Whole(T),
    Free,
    Torn,
}
