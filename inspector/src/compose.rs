//! Writes compact ledger files: the same header and tables, each exactly as large as its contents. Dumps are such
//! files, and tests feed them to the reader.

use gpumem_wire::layout::{
    HEADER_BYTES, Header, MAGIC, Sealed, StackSlot, StrRef, SymbolSlot, TableDesc, TableKind, VERSION,
};
use std::collections::HashMap;
use std::io::{self, Write};
use zerocopy::{FromZeros, IntoBytes};

/// A ledger being composed.
pub struct Composer {
    pub header: Header,
    tables: Vec<(TableKind, Vec<u8>)>,
    strings: Vec<u8>,
    interned: HashMap<String, StrRef>,
}

impl Composer {
    /// Returns an empty ledger. Its header has only the fields that identify a ledger.
    pub fn new() -> Self {
        let mut header = Header::new_zeroed();
        (header.magic, header.version, header.byte_order) = (MAGIC, VERSION, 0x0102_0304);
        Self { header, tables: Vec::new(), strings: vec![0; 4], interned: HashMap::new() }
    }

    /// Starts a copy with this header and these texts, which keep their references.
    pub fn copy_of(header: &Header, strings: &[u8]) -> Self {
        let mut composer = Self::new();
        let fresh = composer.header;
        composer.header = Header { tables: fresh.tables, tables_len: 0, pieces_len: 0, ..*header };
        composer.strings = strings.to_vec();
        if composer.strings.len() < 4 {
            composer.strings.resize(4, 0);
        }
        composer
    }

    /// Returns the reference of a text; equal texts share one.
    pub fn text(&mut self, text: &str) -> StrRef {
        if text.is_empty() {
            return 0;
        }
        if let Some(&at) = self.interned.get(text) {
            return at;
        }
        let at = self.strings.len() as StrRef;
        self.strings.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.strings.extend_from_slice(text.as_bytes());
        self.interned.insert(text.to_owned(), at);
        at
    }

    /// Adds slots and seals each.
    pub fn slots<T: Sealed>(&mut self, slots: impl IntoIterator<Item = T>) {
        let bytes = self.table(T::TABLE);
        for slot in slots {
            bytes.extend_from_slice(&sealed(slot));
        }
    }

    /// Adds slots at their indices (from 0), with free slots between them.
    pub fn slots_at<T: Sealed>(&mut self, slots: impl IntoIterator<Item = (usize, T)>) {
        let bytes = self.table(T::TABLE);
        for (index, slot) in slots {
            let at = index * size_of::<T>();
            if bytes.len() < at + size_of::<T>() {
                bytes.resize(at + size_of::<T>(), 0);
            }
            bytes[at..at + size_of::<T>()].copy_from_slice(&sealed(slot));
        }
    }

    /// Adds a table of words, such as counters.
    pub fn words(&mut self, kind: TableKind, words: &[u64]) {
        self.table(kind).extend_from_slice(words.as_bytes());
    }

    /// Appends a stack's frames to the Frames table and stores the stack at its index.
    pub fn stack(&mut self, index: usize, mut slot: StackSlot, frames: &[u64]) {
        let table = self.table(TableKind::Frames);
        slot.first_frame = (table.len() / 8) as u64;
        slot.frames = frames.len() as u32;
        table.extend_from_slice(frames.as_bytes());
        self.slots_at([(index, slot)]);
    }

    /// Adds a symbol.
    pub fn symbol(&mut self, address: u64, inlined: u32, function: &str, file: &str, line: u32, module: &str) {
        let slot = SymbolSlot {
            address,
            inlined,
            function: self.text(function),
            file: self.text(file),
            line,
            module: self.text(module),
            ..Default::default()
        };
        self.slots([slot]);
    }

    fn table(&mut self, kind: TableKind) -> &mut Vec<u8> {
        let at = self.tables.iter().position(|(other, _)| *other == kind).unwrap_or_else(|| {
            self.tables.push((kind, Vec::new()));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }

    /// Writes the whole file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(mut self, out: &mut dyn Write) -> io::Result<()> {
        let strings = std::mem::take(&mut self.strings);
        self.tables.push((TableKind::Strings, strings));
        let mut offset = HEADER_BYTES as u64;
        for (index, (kind, bytes)) in self.tables.iter().enumerate() {
            let slot_bytes = TableKind::from_u32(*kind as u32).map_or(1, |(_, slot_bytes)| slot_bytes);
            let slots = (bytes.len() / slot_bytes) as u64;
            self.header.tables[index] = TableDesc {
                kind: *kind as u32,
                slot_bytes: slot_bytes as u32,
                offset,
                capacity: slots,
                used: slots,
                written: 0,
            };
            offset += padded(bytes.len()) as u64;
        }
        self.header.tables_len = self.tables.len() as u32;
        out.write_all(self.header.as_bytes())?;
        for (_, bytes) in &self.tables {
            out.write_all(bytes)?;
            out.write_all(&[0; 64][..padded(bytes.len()) - bytes.len()])?;
        }
        out.flush()
    }

    /// Returns the file's bytes.
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to a vector cannot fail.
        let _ = self.write(&mut bytes);
        bytes
    }
}

impl Default for Composer {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the bytes of a slot with its checksum.
fn sealed<T: Sealed>(slot: T) -> Vec<u8> {
    let mut bytes = slot.as_bytes().to_vec();
    bytes[..4].copy_from_slice(&slot.seal().to_le_bytes());
    bytes
}

/// Rounds up to a multiple of 64, where tables begin.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}
