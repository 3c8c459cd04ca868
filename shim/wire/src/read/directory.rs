//! Positions of each table's bytes, from the header's directory and the list of pieces; checked before anything is read
//! by them.

use super::{MAX_FILE_BYTES, ReadError, Source};
use crate::layout::*;
use std::collections::HashMap;
use std::ops::Range;
use zerocopy::FromBytes;

/// Reads the list of pieces; empty if each table lies in one part.
pub(super) fn pieces<S: Source + ?Sized>(source: &S, header: &Header) -> std::io::Result<Vec<PieceDesc>> {
    let len = (header.pieces_len as usize).min(MAX_PIECES);
    let mut bytes = vec![0; len * size_of::<PieceDesc>()];
    let got = source.read_at(HEADER_BYTES as u64, &mut bytes)?;
    let listed = bytes[..got].chunks_exact(size_of::<PieceDesc>());
    Ok(listed.filter_map(|piece| PieceDesc::read_from_bytes(piece).ok()).collect())
}

/// Position of a table's bytes.
pub(super) struct Table {
    pub(super) desc: TableDesc,
    /// In the order of the table.
    parts: Vec<Part>,
}

/// A run of a table's bytes in the file.
struct Part {
    /// From the table's start.
    at: u64,
    /// From the file's start.
    offset: u64,
    bytes: u64,
}

impl Table {
    /// Returns the backed bytes, as far as the parts reach.
    pub(super) fn bytes(&self) -> u64 {
        let reach = self.parts.last().map_or(0, |part| part.at + part.bytes);
        reach.min(self.desc.used * u64::from(self.desc.slot_bytes))
    }

    /// Returns the file length needed for all of them; 0 if there are none.
    pub(super) fn end(&self) -> u64 {
        let bytes = self.bytes();
        let last = self.parts.iter().rfind(|part| part.at < bytes);
        last.map_or(0, |part| part.offset + part.bytes.min(bytes - part.at))
    }

    /// Returns the first stored stretch from `at` of the table on, as [`Source::stored_from`] does.
    pub(super) fn stored_from<S: Source + ?Sized>(&self, source: &S, at: u64) -> std::io::Result<Option<Range<u64>>> {
        let first = self.parts.partition_point(|part| part.at + part.bytes <= at);
        for part in &self.parts[first..] {
            let skip = at.saturating_sub(part.at);
            let Some(stored) = source.stored_from(part.offset + skip)? else { continue };
            let (start, end) = (stored.start - part.offset, (stored.end - part.offset).min(part.bytes));
            if start < end {
                return Ok(Some(part.at + start..part.at + end));
            }
        }
        Ok(None)
    }

    /// Fills as much of `buffer` from `at` of the table on as there is; returns the number of bytes.
    pub(super) fn read_at<S: Source + ?Sized>(&self, source: &S, at: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = at + done as u64;
            let index = self.parts.partition_point(|part| part.at + part.bytes <= at);
            let Some(part) = self.parts.get(index) else { break };
            let (skip, left) = (at - part.at, buffer.len() - done);
            let want = left.min(usize::try_from(part.bytes - skip).unwrap_or(left));
            let got = source.read_at(part.offset + skip, &mut buffer[done..done + want])?;
            done += got;
            if got < want {
                break;
            }
        }
        Ok(done)
    }
}

pub(super) fn directory(header: &Header, pieces: &[PieceDesc]) -> Result<HashMap<TableKind, Table>, ReadError> {
    let damaged = |why| Err(ReadError::Directory { why });
    if header.tables_len as usize > MAX_TABLES || header.pieces_len as usize > MAX_PIECES {
        return damaged("it claims more tables or pieces than fit");
    }
    let mut directory = HashMap::new();
    for (index, desc) in header.tables[..header.tables_len as usize].iter().enumerate() {
        let Some((kind, slot_bytes)) = TableKind::from_u32(desc.kind) else { continue };
        if desc.slot_bytes as usize != slot_bytes {
            return damaged("a table's slots are of another size");
        }
        let bytes = desc.capacity.checked_mul(slot_bytes as u64);
        let end = bytes.and_then(|bytes| bytes.checked_add(desc.offset));
        if desc.used > desc.capacity || end.is_none_or(|end| end > MAX_FILE_BYTES) {
            return damaged("a table is larger than a ledger can be");
        }
        let parts = match header.pieces_len {
            0 => vec![Part { at: 0, offset: desc.offset, bytes: desc.used * slot_bytes as u64 }],
            _ => parts(pieces, index),
        };
        if directory.insert(kind, Table { desc: *desc, parts }).is_some() {
            return damaged("a table is listed twice");
        }
    }
    // Overlapping tables would be read twice: all tables together are no more than the file.
    let mut used: Vec<(u64, u64)> = match header.pieces_len {
        0 => {
            directory.values().filter(|table| table.bytes() > 0).map(|table| (table.desc.offset, table.end())).collect()
        }
        _ => pieces.iter().map(|piece| (piece.offset, piece.offset.saturating_add(piece.bytes.into()))).collect(),
    };
    used.sort_unstable();
    let head = HEADER_BYTES as u64 + u64::from(header.pieces_len) * size_of::<PieceDesc>() as u64;
    if used.first().is_some_and(|first| first.0 < head) {
        return damaged("a table lies over the header");
    }
    if used.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return damaged("two tables lie over each other");
    }
    if used.last().is_some_and(|last| last.1 > MAX_FILE_BYTES) {
        return damaged("a table is larger than a ledger can be");
    }
    Ok(directory)
}

/// Returns the pieces of the table at this index of the directory, in order.
fn parts(pieces: &[PieceDesc], table: usize) -> Vec<Part> {
    let mut at = 0;
    let of_table = pieces.iter().filter(|piece| piece.table as usize == table && piece.bytes > 0);
    of_table
        .map(|piece| {
            let bytes = u64::from(piece.bytes);
            at += bytes;
            Part { at: at - bytes, offset: piece.offset, bytes }
        })
        .collect()
}
