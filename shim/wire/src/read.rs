//! Bytes of a ledger or a dump to an owned [`Snapshot`]. Nothing in the bytes is trusted: every
//! offset, count and text is bounds-checked, and what does not hold is left out and counted.

use crate::counters;
use crate::layout::*;
use std::collections::HashMap;
use std::fmt;
use zerocopy::FromBytes;

/// Largest file that is read at all: 4 GiB.
pub const MAX_FILE_BYTES: u64 = 4 << 30;
/// Longest text that is believed.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Deepest stack that is believed.
const MAX_FRAMES: u32 = 1024;

/// Why a file is not a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// Smaller than a header.
    TooShort { bytes: usize },
    /// Does not begin as a ledger does.
    NotALedger,
    /// Written by a machine of another byte order.
    ByteOrder,
    /// Of another version than [`VERSION`].
    Version { found: u32 },
    /// The directory contradicts itself.
    Directory { why: &'static str },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { bytes } => write!(f, "{bytes} bytes are too few for a ledger ({HEADER_BYTES} at least)"),
            Self::NotALedger => write!(f, "it does not begin as a gpumem ledger does"),
            Self::ByteOrder => write!(f, "it was written on a machine of another byte order"),
            Self::Version { found } => {
                write!(
                    f,
                    "its layout is version {found}, this program reads version {VERSION}: use the gpumem of the same release as the libgpumem.so that wrote it"
                )
            }
            Self::Directory { why } => write!(f, "its table directory is damaged: {why}"),
        }
    }
}

impl std::error::Error for ReadError {}

/// Where bytes come from: a file that may change or shrink meanwhile, or a buffer.
pub trait Source {
    /// Fills as much of `buffer` from `offset` on as there is; returns how many bytes that was.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize>;
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)) else { return Ok(0) };
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

#[cfg(unix)]
impl Source for std::fs::File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        use std::os::unix::fs::FileExt;
        let mut done = 0;
        while done < buffer.len() {
            match FileExt::read_at(self, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// Everything a ledger said, owned.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub header: Header,
    pub allocs: Vec<AllocSlot>,
    pub stacks: HashMap<StackRef, Stack>,
    pub modules: Vec<ModuleSlot>,
    pub graphs: Vec<GraphSlot>,
    pub execs: Vec<ExecSlot>,
    /// By [`ContextRef`].
    pub contexts: HashMap<ContextRef, ContextSlot>,
    /// By index plus one, as [`AllocSlot::stream`] says it.
    pub streams: HashMap<u32, StreamSlot>,
    /// Oldest first.
    pub events: Vec<EventSlot>,
    /// Oldest first.
    pub samples: Vec<SampleSlot>,
    pub threads: Vec<ThreadSlot>,
    pub symbols: Vec<SymbolSlot>,
    /// Sums over all shards, by index as in [`counters`].
    pub counters: Vec<u64>,
    /// Slots that were half-written or damaged and are left out.
    pub torn: u64,
    /// The bytes that the file should have, where it ends before one of its tables does.
    pub cut: Option<u64>,
    strings: Vec<u8>,
}

/// A call stack with what came from it in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Return addresses, innermost first.
    pub frames: Vec<u64>,
    pub first_ns: u64,
    pub allocs: u64,
    pub alloc_bytes: u64,
    pub graphs: u64,
    pub execs: u64,
}

impl Snapshot {
    /// Reads a ledger or a dump.
    ///
    /// # Errors
    /// [`ReadError`] inside `Ok` when the bytes are not a ledger of this version, an I/O error of
    /// the source as it is.
    pub fn read<S: Source + ?Sized>(source: &S) -> std::io::Result<Result<Self, ReadError>> {
        Self::read_tables(source, |_| true)
    }

    /// As [`Snapshot::read`], but tables that are not wanted stay empty: a list of processes needs
    /// no allocations.
    ///
    /// # Errors
    /// As [`Snapshot::read`].
    pub fn read_tables<S: Source + ?Sized>(
        source: &S,
        wanted: impl Fn(TableKind) -> bool,
    ) -> std::io::Result<Result<Self, ReadError>> {
        let mut page = vec![0; HEADER_BYTES];
        let got = source.read_at(0, &mut page)?;
        let header = match header(&page[..got]) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let mut directory = match directory(&header) {
            Ok(directory) => directory,
            Err(error) => return Ok(Err(error)),
        };
        // Asked after the header was read: a ledger that is being written has its whole length from the start.
        let ends = directory.values().filter(|desc| desc.used > 0);
        let end = ends.map(|desc| desc.offset + desc.used * u64::from(desc.slot_bytes)).max().unwrap_or(1);
        let cut = if source.read_at(end.saturating_sub(1), &mut [0])? == 0 { Some(end) } else { None };
        directory.retain(|&kind, _| wanted(kind));
        let mut tables = Tables { source, directory, torn: 0 };
        let strings = tables.bytes(TableKind::Strings)?;
        let frames = tables.words(TableKind::Frames)?;
        let stacks = tables
            .slots::<StackSlot>()?
            .into_iter()
            .filter_map(|(index, slot)| Some((index + 1, stack(&slot, &frames)?)))
            .collect();
        let contexts = tables
            .slots::<ContextSlot>()?
            .into_iter()
            .filter_map(|(index, slot)| Some((ContextRef::try_from(index + 1).ok()?, slot)))
            .collect();
        let streams = tables.slots::<StreamSlot>()?.into_iter().map(|(index, slot)| (index + 1, slot)).collect();
        let mut events = tables.list::<EventSlot>()?;
        events.sort_unstable_by_key(|event| event.seq);
        let mut samples = tables.list::<SampleSlot>()?;
        samples.sort_unstable_by_key(|sample| sample.seq);
        let mut sums = vec![0_u64; counters::PER_SHARD];
        for (index, value) in tables.words(TableKind::Counters)?.into_iter().enumerate() {
            let sum = &mut sums[index % counters::PER_SHARD];
            *sum = sum.wrapping_add(value);
        }
        Ok(Ok(Self {
            header,
            allocs: tables.list()?,
            stacks,
            modules: tables.list()?,
            graphs: tables.list()?,
            execs: tables.list()?,
            contexts,
            streams,
            events,
            samples,
            threads: tables.list()?,
            symbols: tables.list()?,
            counters: sums,
            torn: tables.torn,
            cut,
            strings,
        }))
    }

    /// The text at a reference; empty for 0 and for references that do not hold.
    pub fn text(&self, at: StrRef) -> std::borrow::Cow<'_, str> {
        let bytes = usize::try_from(at)
            .ok()
            .filter(|&at| at != 0)
            .and_then(|at| {
                let len = u32::from_le_bytes(self.strings.get(at..at + 4)?.try_into().ok()?) as usize;
                self.strings.get(at + 4..)?.get(..len.min(MAX_TEXT_BYTES))
            })
            .unwrap_or_default();
        String::from_utf8_lossy(bytes)
    }

    /// The whole Strings table, for copies that keep every reference.
    pub fn strings(&self) -> &[u8] {
        &self.strings
    }

    /// The sum of a counter.
    pub fn counter(&self, index: usize) -> u64 {
        self.counters.get(index).copied().unwrap_or(0)
    }
}

fn header(page: &[u8]) -> Result<Header, ReadError> {
    if page.len() < HEADER_BYTES {
        return Err(ReadError::TooShort { bytes: page.len() });
    }
    let header = Header::read_from_bytes(&page[..HEADER_BYTES]).map_err(|_| ReadError::NotALedger)?;
    if header.magic != MAGIC {
        return Err(ReadError::NotALedger);
    }
    match header.byte_order {
        0x0102_0304 => {}
        0x0403_0201 => return Err(ReadError::ByteOrder),
        _ => return Err(ReadError::NotALedger),
    }
    if header.version != VERSION {
        return Err(ReadError::Version { found: header.version });
    }
    Ok(header)
}

fn directory(header: &Header) -> Result<HashMap<TableKind, TableDesc>, ReadError> {
    let damaged = |why| Err(ReadError::Directory { why });
    if header.tables_len as usize > MAX_TABLES {
        return damaged("it claims more tables than fit");
    }
    let mut directory = HashMap::new();
    for desc in &header.tables[..header.tables_len as usize] {
        let Some((kind, slot_bytes)) = TableKind::from_u32(desc.kind) else { continue };
        if desc.slot_bytes as usize != slot_bytes {
            return damaged("a table's slots are of another size");
        }
        let bytes = desc.capacity.checked_mul(slot_bytes as u64);
        let end = bytes.and_then(|bytes| bytes.checked_add(desc.offset));
        if desc.used > desc.capacity || end.is_none_or(|end| end > MAX_FILE_BYTES) {
            return damaged("a table is larger than a ledger can be");
        }
        if directory.insert(kind, *desc).is_some() {
            return damaged("a table is listed twice");
        }
    }
    Ok(directory)
}

fn stack(slot: &StackSlot, frames: &[u64]) -> Option<Stack> {
    let first = usize::try_from(slot.first_frame).ok()?;
    let frames = frames.get(first..)?.get(..slot.frames.min(MAX_FRAMES) as usize)?;
    Some(Stack {
        frames: frames.to_vec(),
        first_ns: slot.first_ns,
        allocs: slot.allocs,
        alloc_bytes: slot.alloc_bytes,
        graphs: slot.graphs,
        execs: slot.execs,
    })
}

/// Bytes that are read at a time: a claim of gigabytes in a small file allocates no more than this.
const PIECE_BYTES: usize = 1 << 20;

struct Tables<'a, S: Source + ?Sized> {
    source: &'a S,
    directory: HashMap<TableKind, TableDesc>,
    torn: u64,
}

impl<S: Source + ?Sized> Tables<'_, S> {
    /// Hands out the backed bytes of a table, a piece of whole slots at a time; fewer if the file is
    /// shorter than its directory says.
    fn pieces(&self, kind: TableKind, mut each: impl FnMut(&[u8])) -> std::io::Result<()> {
        let Some(desc) = self.directory.get(&kind) else { return Ok(()) };
        let slot = desc.slot_bytes as usize;
        let mut left = desc.used * u64::from(desc.slot_bytes);
        let mut offset = desc.offset;
        let mut piece = vec![0; left.min((PIECE_BYTES / slot * slot) as u64) as usize];
        while left > 0 {
            let want = left.min(piece.len() as u64) as usize;
            let got = self.source.read_at(offset, &mut piece[..want])?;
            each(&piece[..got]);
            if got < want {
                break;
            }
            offset += want as u64;
            left -= want as u64;
        }
        Ok(())
    }

    fn bytes(&self, kind: TableKind) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.pieces(kind, |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }

    fn words(&self, kind: TableKind) -> std::io::Result<Vec<u64>> {
        let mut words = Vec::new();
        self.pieces(kind, |piece| {
            words.extend(piece.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())));
        })?;
        Ok(words)
    }

    /// Calls `each` for every valid slot with its index.
    fn for_each<T: Sealed>(&mut self, mut each: impl FnMut(u32, T)) -> std::io::Result<()> {
        let mut index = 0_u32;
        let mut torn = 0;
        self.pieces(T::TABLE, |piece| {
            for chunk in piece.chunks_exact(size_of::<T>()) {
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
                index = index.saturating_add(1);
            }
        })?;
        self.torn += torn;
        Ok(())
    }

    /// One more look at a slot that was caught in the middle of a change.
    fn again<T: Sealed>(&self, index: u32) -> Again<T> {
        let look = || {
            let desc = self.directory.get(&T::TABLE)?;
            let mut chunk = [0; 512];
            let chunk = chunk.get_mut(..size_of::<T>())?;
            let got = self.source.read_at(desc.offset + u64::from(index) * size_of::<T>() as u64, chunk).ok()?;
            Some((T::read_from_bytes(chunk.get(..got)?).ok()?, [chunk[0], chunk[1], chunk[2], chunk[3]]))
        };
        match look() {
            Some((_, [0, 0, 0, 0])) => Again::Free,
            Some((slot, check)) if slot.seal().to_le_bytes() == check => Again::Whole(slot),
            _ => Again::Torn,
        }
    }

    fn slots<T: Sealed>(&mut self) -> std::io::Result<Vec<(u32, T)>> {
        let mut slots = Vec::new();
        self.for_each(|index, slot| slots.push((index, slot)))?;
        Ok(slots)
    }

    fn list<T: Sealed>(&mut self) -> std::io::Result<Vec<T>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    /// A small ledger: one allocation with a stack, its text, and one torn slot.
    fn ledger() -> Vec<u8> {
        let mut header = Header::new_zeroed();
        (header.magic, header.version, header.byte_order) = (MAGIC, VERSION, 0x0102_0304);
        let mut file = vec![0; HEADER_BYTES];
        let mut put = |kind: TableKind, bytes: &[u8]| {
            let (_, slot) = TableKind::from_u32(kind as u32).unwrap();
            let n = (bytes.len() / slot) as u64;
            header.tables[header.tables_len as usize] = TableDesc {
                kind: kind as u32,
                slot_bytes: slot as u32,
                offset: file.len() as u64,
                capacity: n,
                used: n,
                written: 0,
            };
            header.tables_len += 1;
            file.extend_from_slice(bytes);
        };
        let mut alloc = AllocSlot { stack: 1, addr: 0x1000, bytes: 64, kind: 1, ..Default::default() };
        alloc.check = alloc.seal();
        let torn = AllocSlot { check: alloc.check ^ 2, ..alloc };
        put(TableKind::Allocs, &[alloc.as_bytes(), torn.as_bytes(), AllocSlot::default().as_bytes()].concat());
        let mut stack = StackSlot { frames: 2, first_frame: 1, allocs: 5, ..Default::default() };
        stack.check = stack.seal();
        put(TableKind::Stacks, stack.as_bytes());
        put(TableKind::Frames, [7_u64, 8, 9].as_bytes());
        put(TableKind::Strings, b"\0\0\0\0\x05\0\0\0hello");
        file[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        file
    }

    fn read(bytes: &[u8]) -> Result<Snapshot, ReadError> {
        Snapshot::read(bytes).unwrap()
    }

    #[test]
    fn what_was_written_is_read_and_torn_slots_are_counted() {
        let snapshot = read(&ledger()).unwrap();
        assert_eq!(snapshot.allocs.len(), 1);
        assert_eq!(snapshot.torn, 1);
        assert_eq!(snapshot.stacks[&1].frames, [8, 9]);
        assert_eq!(snapshot.text(4), "hello");
        assert_eq!(snapshot.text(0), "");
        assert_eq!(snapshot.text(9_999), "");
    }

    #[test]
    fn strangers_are_named() {
        assert_eq!(read(b"short").unwrap_err(), ReadError::TooShort { bytes: 5 });
        assert_eq!(read(&[0; 5000]).unwrap_err(), ReadError::NotALedger);
        let mut other = ledger();
        other[8] = 77;
        assert_eq!(read(&other).unwrap_err(), ReadError::Version { found: 77 });
        let mut swapped = ledger();
        swapped[12..16].reverse();
        assert_eq!(read(&swapped).unwrap_err(), ReadError::ByteOrder);
    }

    #[test]
    fn any_truncation_gives_an_answer() {
        let whole = ledger();
        for len in 0..whole.len() {
            let _ = read(&whole[..len]);
        }
        let cut = read(&whole[..HEADER_BYTES + 70]).unwrap();
        assert_eq!((cut.allocs.len(), cut.stacks.len()), (1, 0));
        assert_eq!(cut.cut, Some(whole.len() as u64));
        assert_eq!(read(&whole[..whole.len() - 1]).unwrap().cut, Some(whole.len() as u64));
        assert_eq!(read(&whole).unwrap().cut, None);
    }

    #[test]
    fn damage_anywhere_never_panics_or_grows_without_bound() {
        let whole = ledger();
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..20_000 {
            let mut hostile = whole.clone();
            for _ in 0..1 + random % 6 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Half of the damage goes to the fields that steer the reader.
                let range = if random & 1 == 0 { 80..HEADER_BYTES.min(392 + 6 * 40) } else { 0..hostile.len() };
                let at = range.start + (random >> 8) as usize % range.len();
                hostile[at] = (random >> 40) as u8;
            }
            if let Ok(snapshot) = read(&hostile) {
                assert!(snapshot.allocs.len() <= whole.len() / 64);
                for stack in snapshot.stacks.values() {
                    assert!(stack.frames.len() <= whole.len() / 8);
                }
            }
        }
    }
}
