//! Reads the bytes of a ledger or a dump into an owned [`Snapshot`]. No byte is trusted: every offset, count and text
//! is bounds-checked, and invalid entries are left out and counted.
//!
//! The size of a snapshot follows from the bytes that the file stores: holes cost nothing, tables lie beside one
//! another, a frame belongs to one stack, and a text ends at the beginning of the next one.

mod directory;
mod growth;
mod reused;
mod source;
mod tables;

pub use growth::{Growth, Point};
pub use reused::as_mapped;
pub use source::Source;

use crate::counters;
use crate::layout::*;
use directory::{Table, directory, pieces};
use std::collections::HashMap;
use std::fmt;
use tables::Tables;
use zerocopy::FromBytes;

/// Largest file that is read: 4 GiB.
pub const MAX_FILE_BYTES: u64 = 4 << 30;
/// Maximum length of a text.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Maximum length of the name of a thread, device or tag.
const MAX_NAME_BYTES: usize = 256;
/// Maximum depth of a stack.
const MAX_FRAMES: u32 = 1024;

/// Why a file is not a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// Smaller than a header.
    TooShort { bytes: usize },
    /// Does not begin like a ledger.
    NotALedger,
    /// Written by a machine of another byte order.
    ByteOrder,
    /// Of another version than [`VERSION`].
    Version { found: u32 },
    /// The directory contradicts itself.
    Directory { why: &'static str },
    /// It has more bytes than allowed.
    TooMuch { bytes: u64 },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { bytes } => write!(f, "{bytes} bytes are too few for a ledger ({HEADER_BYTES} at least)"),
            Self::NotALedger => write!(f, "it is not a ledger or dump of gpumem"),
            Self::ByteOrder => write!(f, "it was written on a machine of another byte order"),
            Self::Version { found } => {
                write!(
                    f,
                    "its layout is version {found}, this program reads version {VERSION}: use the gpumem of the same release as the libgpumem.so that wrote it"
                )
            }
            Self::Directory { why } => write!(f, "its table directory is damaged: {why}"),
            Self::TooMuch { bytes } => write!(f, "its tables are too large to be read here ({bytes} bytes)"),
        }
    }
}

impl std::error::Error for ReadError {}

/// The whole contents of a ledger, owned.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub header: Header,
    pub allocs: Vec<AllocSlot>,
    /// Memory shown to other processes, or belonging to them.
    pub shared: Vec<SharedSlot>,
    pub stacks: HashMap<StackRef, Stack>,
    /// Python code, by its index.
    pub codes: HashMap<u32, CodeSlot>,
    pub modules: Vec<ModuleSlot>,
    pub graphs: Vec<GraphSlot>,
    pub execs: Vec<ExecSlot>,
    /// By [`ContextRef`].
    pub contexts: HashMap<ContextRef, ContextSlot>,
    /// By index plus one, as in [`AllocSlot::stream`].
    pub streams: HashMap<u32, StreamSlot>,
    /// Oldest first.
    pub events: Vec<EventSlot>,
    /// Oldest first.
    pub samples: Vec<SampleSlot>,
    pub threads: Vec<ThreadSlot>,
    pub symbols: Vec<SymbolSlot>,
    /// Sums over all shards, by index as in [`counters`].
    pub counters: Vec<u64>,
    /// Memory holders over time.
    pub growth: Growth,
    /// Number of slots that were half-written or damaged and are left out.
    pub torn: u64,
    /// The bytes that the file should have, if it ends before one of its tables does.
    pub cut: Option<u64>,
    /// Bytes that the file stores, from which everything else follows; of small tables, those that they claim.
    pub stored: u64,
    frames: Vec<u64>,
    strings: Vec<u8>,
    /// Offsets of texts that something refers to, in order.
    texts: Vec<StrRef>,
}

/// A call stack with the totals of what was made there. [`Snapshot::frames`] has its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    first_frame: u32,
    frames: u32,
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
    /// [`ReadError`] inside `Ok` if the bytes are not a ledger of this version; an I/O error of the source unchanged.
    pub fn read<S: Source + ?Sized>(source: &S) -> std::io::Result<Result<Self, ReadError>> {
        Self::read_tables(source, |_| true, u64::MAX)
    }

    /// As [`Snapshot::read`], but unwanted tables stay empty: a list of processes needs no allocations. Nothing is read
    /// if the wanted ones may have more than `most` bytes.
    ///
    /// # Errors
    /// As [`Snapshot::read`].
    pub fn read_tables<S: Source + ?Sized>(
        source: &S,
        wanted: impl Fn(TableKind) -> bool,
        most: u64,
    ) -> std::io::Result<Result<Self, ReadError>> {
        let mut page = vec![0; HEADER_BYTES];
        let got = source.read_at(0, &mut page)?;
        let header = match header(&page[..got]) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let pieces = pieces(source, &header)?;
        let mut directory = match directory(&header, &pieces) {
            Ok(directory) => directory,
            Err(error) => return Ok(Err(error)),
        };
        // Asked after the header was read: a ledger that is being written has at least that length from then on.
        let end = directory.values().map(Table::end).max().unwrap_or(0).max(1);
        let cut = if source.read_at(end - 1, &mut [0])? == 0 { Some(end) } else { None };
        // The totals of stacks are partly among the counters.
        let needed = |kind| kind == TableKind::Counters && wanted(TableKind::Stacks);
        directory.retain(|&kind, _| wanted(kind) || needed(kind));
        let mut tables = Tables::new(source, directory)?;
        if tables.bytes_at_most() > most {
            return Ok(Err(ReadError::TooMuch { bytes: tables.bytes_at_most() }));
        }
        let strings = tables.bytes(TableKind::Strings)?;
        let mut frames = tables.words(TableKind::Frames)?;
        let counted = tables.words(TableKind::Counters)?;
        let (mut stacks, mut left, mut lost) = (HashMap::<StackRef, Stack>::new(), frames.len(), 0);
        tables.for_each::<StackSlot>(|index, slot| match stack(&slot, frames.len()) {
            // Stacks do not share frames: together they have no more than exist.
            Some(stack) if stack.frames as usize <= left && index < u32::MAX => {
                left -= stack.frames as usize;
                stacks.insert(index + 1, stack);
            }
            _ => lost += 1,
        })?;
        tables.torn += lost;
        let codes = tables.slots::<CodeSlot>()?.into_iter().collect();
        let contexts = tables
            .slots::<ContextSlot>()?
            .into_iter()
            .filter_map(|(index, slot)| Some((ContextRef::try_from(index.checked_add(1)?).ok()?, slot)))
            .collect();
        let streams = tables.slots::<StreamSlot>()?.into_iter();
        let streams = streams.filter_map(|(index, slot)| Some((index.checked_add(1)?, slot))).collect();
        let mut events = tables.list::<EventSlot>()?;
        events.sort_unstable_by_key(|event| event.seq);
        let mut samples = tables.list::<SampleSlot>()?;
        samples.sort_unstable_by_key(|sample| sample.seq);
        let mut sums = vec![0_u64; counters::PER_SHARD];
        for shard in counted.chunks(counters::PER_SHARD) {
            let (shard, sites) = shard.split_at(shard.len().min(counters::SITES));
            sums.iter_mut().zip(shard).for_each(|(sum, &value)| *sum = sum.wrapping_add(value));
            add_sites(&mut stacks, sites);
        }
        let growth = Growth::read(&mut tables)?;
        let mut modules = tables.list()?;
        reused::part(&mut modules, &stacks, &mut frames);
        // Before the allocations: one that is exported between the two looks was not freed.
        let shared = tables.list()?;
        let mut snapshot = Self {
            header,
            growth,
            allocs: tables.list()?,
            shared,
            stacks,
            codes,
            modules,
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
            stored: tables.stored,
            frames,
            strings,
            texts: Vec::new(),
        };
        snapshot.texts = snapshot.references();
        Ok(Ok(snapshot))
    }

    /// Drops texts that neither the header nor a context refers to, since a list of processes does not show them.
    /// Returns the remaining bytes.
    pub fn shrink(&mut self) -> u64 {
        let mut strings = vec![0; 4];
        let mut keep = |at: &mut StrRef| {
            let text = self.text_bytes(*at);
            if *at == 0 || text.is_empty() {
                *at = 0;
                return;
            }
            *at = strings.len() as StrRef;
            strings.extend_from_slice(&(text.len() as u32).to_le_bytes());
            strings.extend_from_slice(text);
        };
        let mut header = self.header;
        header_texts(&mut header).into_iter().for_each(&mut keep);
        let mut contexts = self.contexts.clone();
        contexts.values_mut().for_each(|context| keep(&mut context.name));
        (self.header, self.contexts, self.strings) = (header, contexts, strings);
        self.texts = self.references();
        self.samples.shrink_to_fit();
        let slots = self.contexts.len() * 2 * size_of::<ContextSlot>() + self.samples.len() * size_of::<SampleSlot>();
        (size_of::<Self>() + slots + self.counters.len() * 8 + self.strings.len()) as u64
    }

    /// Returns the bytes of a text, up to the maximum length.
    fn text_bytes(&self, at: StrRef) -> &[u8] {
        self.bytes_of(at, MAX_TEXT_BYTES)
    }

    /// Returns every reference to a text, in order.
    fn references(&self) -> Vec<StrRef> {
        let mut texts: Vec<_> = header_texts(&mut self.header.clone()).map(|at| *at).to_vec();
        // Neighbours are often alike, and there may be a million of them.
        let mut add = |at: StrRef| {
            if texts.last() != Some(&at) && at != 0 {
                texts.push(at);
            }
        };
        self.allocs.iter().for_each(|alloc| add(alloc.tag));
        self.allocs.iter().for_each(|alloc| add(alloc.pool_name()));
        self.modules.iter().for_each(|module| add(module.path));
        self.codes.values().for_each(|code| [code.name, code.file].into_iter().for_each(&mut add));
        self.graphs.iter().for_each(|graph| add(graph.tag));
        self.execs.iter().for_each(|exec| add(exec.tag));
        self.contexts.values().for_each(|context| add(context.name));
        self.events.iter().for_each(|event| add(event.text));
        self.threads.iter().for_each(|thread| add(thread.name));
        self.growth.tags().for_each(&mut add);
        self.symbols
            .iter()
            .for_each(|symbol| [symbol.function, symbol.file, symbol.module].into_iter().for_each(&mut add));
        texts.sort_unstable();
        texts.dedup();
        texts.shrink_to_fit();
        texts
    }

    /// Returns the return addresses of a stack, innermost first.
    pub fn frames(&self, stack: &Stack) -> &[u64] {
        let first = stack.first_frame as usize;
        self.frames.get(first..first + stack.frames as usize).unwrap_or_default()
    }

    /// Returns the text at a reference; empty for 0 and for invalid references.
    pub fn text(&self, at: StrRef) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.bytes_of(at, MAX_TEXT_BYTES))
    }

    /// As [`Snapshot::text`], for short texts: the name of a thread or a device, a tag.
    pub fn name(&self, at: StrRef) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.bytes_of(at, MAX_NAME_BYTES))
    }

    fn bytes_of(&self, at: StrRef, most: usize) -> &[u8] {
        if at == 0 {
            return &[];
        }
        let next = self.texts.partition_point(|&text| text <= at);
        let end = self.texts.get(next).map_or(self.strings.len(), |&next| next as usize);
        let text = || {
            let begin = (at as usize).checked_add(4)?;
            let len = u32::from_le_bytes(self.strings.get(at as usize..begin)?.try_into().ok()?) as usize;
            // A text that would continue into the next is damaged, and ends there.
            let bytes = self.strings.get(begin..end.min(self.strings.len()))?;
            Some(&bytes[..len.min(most).min(bytes.len())])
        };
        text().unwrap_or_default()
    }

    /// Returns the whole Strings table, for copies that keep every reference.
    pub fn strings(&self) -> &[u8] {
        &self.strings
    }

    /// Returns the sum of a counter.
    pub fn counter(&self, index: usize) -> u64 {
        self.counters.get(index).copied().unwrap_or(0)
    }
}

/// Returns the header's references to texts.
fn header_texts(header: &mut Header) -> [&mut StrRef; 13] {
    [
        &mut header.mode_reason,
        &mut header.interception_reason,
        &mut header.exe,
        &mut header.cmdline,
        &mut header.shim_version,
        &mut header.settings,
        &mut header.complaints,
        &mut header.changes,
        &mut header.decided,
        &mut header.unknown,
        &mut header.python,
        &mut header.group,
        &mut header.share,
    ]
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

fn stack(slot: &StackSlot, frames: usize) -> Option<Stack> {
    let first_frame = u32::try_from(slot.first_frame).ok()?;
    let len = slot.frames.min(MAX_FRAMES);
    let end = (first_frame as usize).checked_add(len as usize)?;
    (end <= frames).then_some(Stack {
        first_frame,
        frames: len,
        first_ns: slot.first_ns,
        allocs: slot.allocs,
        alloc_bytes: slot.alloc_bytes,
        graphs: slot.graphs,
        execs: slot.execs,
    })
}

/// Adds one shard's counts of its stacks ([`counters::SITES`]).
fn add_sites(stacks: &mut HashMap<StackRef, Stack>, sites: &[u64]) {
    for place in sites.chunks_exact(2) {
        if let Some(stack) = stacks.get_mut(&((place[0] >> 32) as StackRef)) {
            stack.allocs = stack.allocs.wrapping_add(place[0] & u64::from(u32::MAX));
            stack.alloc_bytes = stack.alloc_bytes.wrapping_add(place[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    /// A list of processes and a dump keep the texts that [`header_texts`] names, and no others.
    #[test]
    fn every_text_of_the_header_is_kept() {
        let (layout, this) = (include_str!("layout.rs"), include_str!("read.rs"));
        let header = layout.split("pub struct Header {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();
        let texts = header.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.strip_suffix(": StrRef,"));
        let kept = this.split("fn header_texts").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();
        let lost: Vec<_> = texts.filter(|name| !kept.contains(&format!("&mut header.{name},"))).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }

    /// Returns a small ledger: one allocation with a stack, its text, and one torn slot.
    fn ledger() -> Vec<u8> {
        ledger_with(&[])
    }

    /// As [`ledger`], with counters.
    fn ledger_with(shards: &[u64]) -> Vec<u8> {
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
        if !shards.is_empty() {
            put(TableKind::Counters, shards.as_bytes());
        }
        file[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        file
    }

    fn read(bytes: &[u8]) -> Result<Snapshot, ReadError> {
        Snapshot::read(bytes).unwrap()
    }

    /// Returns the same tables in pieces of 16 bytes, alternating between tables: slots lie across their ends.
    fn in_pieces() -> Vec<u8> {
        const PIECE: usize = 16;
        let whole = ledger();
        let mut header = Header::read_from_bytes(&whole[..HEADER_BYTES]).unwrap();
        let mut file = vec![0; HEADER_BYTES + MAX_PIECES * size_of::<PieceDesc>()];
        let mut pieces = Vec::new();
        for round in 0..64 {
            for (index, desc) in header.tables[..header.tables_len as usize].iter().enumerate() {
                let table = &whole[desc.offset as usize..][..(desc.used * u64::from(desc.slot_bytes)) as usize];
                let Some(part) = table.chunks(PIECE).nth(round) else { continue };
                let (offset, bytes) = (file.len() as u64, part.len() as u32);
                pieces.push(PieceDesc { offset, bytes, table: index as u32 });
                file.extend_from_slice(part);
            }
        }
        header.pieces_len = pieces.len() as u32;
        header.tables.iter_mut().for_each(|desc| desc.offset = 0);
        file[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        file[HEADER_BYTES..][..size_of_val(&pieces[..])].copy_from_slice(pieces.as_bytes());
        file
    }

    #[test]
    fn tables_in_pieces_are_the_same_tables() {
        let (whole, pieces) = (read(&ledger()).unwrap(), read(&in_pieces()).unwrap());
        assert_eq!((&pieces.allocs, &pieces.stacks), (&whole.allocs, &whole.stacks));
        assert_eq!((pieces.torn, pieces.strings(), pieces.cut), (1, whole.strings(), None));
        // Cut anywhere, it gives an answer, and says that it was cut.
        let file = in_pieces();
        for len in 0..file.len() {
            if let Ok(snapshot) = read(&file[..len]) {
                assert!(
                    snapshot.cut.is_some_and(|end| end == file.len() as u64) || len < HEADER_BYTES + 16 * MAX_PIECES
                );
            }
        }
    }

    #[test]
    fn pieces_that_overlap_are_refused() {
        let mut file = in_pieces();
        let (first, second) = (HEADER_BYTES, HEADER_BYTES + size_of::<PieceDesc>());
        file.copy_within(first..first + 8, second);
        assert_eq!(read(&file).unwrap_err(), ReadError::Directory { why: "two tables lie over each other" });
    }

    #[test]
    fn what_was_written_is_read_and_torn_slots_are_counted() {
        let snapshot = read(&ledger()).unwrap();
        assert_eq!(snapshot.allocs.len(), 1);
        assert_eq!(snapshot.torn, 1);
        assert_eq!(snapshot.frames(&snapshot.stacks[&1]), [8, 9]);
        assert_eq!(snapshot.text(4), "hello");
        assert_eq!(snapshot.text(0), "");
        assert_eq!(snapshot.text(9_999), "");
    }

    #[test]
    fn a_summary_keeps_the_texts_that_it_shows() {
        let mut header = Header::new_zeroed();
        (header.magic, header.version, header.byte_order) = (MAGIC, VERSION, 0x0102_0304);
        let (mut file, mut strings) = (vec![0; HEADER_BYTES], vec![0; 4]);
        let mut text = |text: &str| {
            let at = strings.len() as StrRef;
            strings.extend_from_slice(&(text.len() as u32).to_le_bytes());
            strings.extend_from_slice(text.as_bytes());
            at
        };
        let long = "long ".repeat(10_000);
        (header.exe, header.python, header.settings) = (text("/opt/app"), text(&long), text(""));
        let (unused, name) = (text(&"unused ".repeat(10_000)), text("a device"));
        let mut context = ContextSlot { name, ..Default::default() };
        context.check = context.seal();
        for (kind, bytes) in [(TableKind::Strings, &strings[..]), (TableKind::Contexts, context.as_bytes())] {
            let (_, slot) = TableKind::from_u32(kind as u32).unwrap();
            let n = (bytes.len() / slot) as u64;
            let offset = file.len() as u64;
            header.tables[header.tables_len as usize] =
                TableDesc { kind: kind as u32, slot_bytes: slot as u32, offset, capacity: n, used: n, written: 0 };
            header.tables_len += 1;
            file.extend_from_slice(bytes);
        }
        file[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        let whole = read(&file).unwrap();
        let mut small = whole.clone();
        let bytes = small.shrink();
        let texts = |snapshot: &Snapshot| {
            let header = &snapshot.header;
            let mut texts: Vec<_> = [header.exe, header.python, header.settings, header.cmdline, header.unknown]
                .map(|at| snapshot.text(at).into_owned())
                .into();
            texts.extend(snapshot.contexts.values().map(|context| snapshot.name(context.name).into_owned()));
            texts
        };
        assert_eq!(texts(&small), texts(&whole));
        assert_eq!(texts(&small)[0], "/opt/app");
        assert!(small.strings().len() < 51_000 && whole.strings().len() > 110_000 && unused > 0);
        assert!((51_000..60_000).contains(&bytes), "{bytes}");
        // More than allowed is not read.
        let most = |most| Snapshot::read_tables(&file[..], |_| true, most).unwrap().map(drop);
        assert_eq!(most(file.len() as u64), Ok(()));
        assert!(matches!(most(100_000), Err(ReadError::TooMuch { bytes: 110_000.. })));
    }

    #[test]
    fn what_shards_counted_of_a_stack_is_added_to_it() {
        // Two shards: allocations of the same stack, and of one that has no record.
        let mut shards = [0_u64; 2 * counters::PER_SHARD];
        for (shard, stack) in [(0, 1), (1, 1), (1, 9)] {
            let at = shard * counters::PER_SHARD + counters::SITES + 2 * (stack as usize % counters::SITE_WAYS);
            (shards[at], shards[at + 1]) = (counters::site(stack, 3), 300);
        }
        let snapshot = read(&ledger_with(&shards)).unwrap();
        assert_eq!((snapshot.stacks[&1].allocs, snapshot.stacks[&1].alloc_bytes), (5 + 3 + 3, 600));
        assert!(snapshot.counters[counters::SITES..].iter().all(|&count| count == 0), "no counters are there");
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

    /// Returns one table of these bytes, which claims `used` slots.
    fn table(kind: TableKind, bytes: &[u8], used: u64, offset: u64) -> (TableDesc, Vec<u8>) {
        let (_, slot) = TableKind::from_u32(kind as u32).unwrap();
        let desc = TableDesc { kind: kind as u32, slot_bytes: slot as u32, offset, capacity: used, used, written: 0 };
        (desc, bytes.to_vec())
    }

    fn file_of(tables: &[(TableDesc, Vec<u8>)]) -> Vec<u8> {
        let mut header = Header::new_zeroed();
        (header.magic, header.version, header.byte_order) = (MAGIC, VERSION, 0x0102_0304);
        header.tables_len = tables.len() as u32;
        let mut file = vec![0; HEADER_BYTES];
        for (at, (desc, bytes)) in tables.iter().enumerate() {
            header.tables[at] = *desc;
            let end = desc.offset as usize + bytes.len();
            file.resize(file.len().max(end), 0);
            file[desc.offset as usize..end].copy_from_slice(bytes);
        }
        file[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        file
    }

    #[test]
    fn tables_that_share_bytes_are_damage() {
        let words = [0_u8; 4096];
        let frames = table(TableKind::Frames, &words, 512, 4096);
        let apart = table(TableKind::Counters, &words, 512, 8192);
        assert!(read(&file_of(&[frames.clone(), apart])).is_ok());
        for offset in [4096, 4097, 8184, 0] {
            let other = table(TableKind::Counters, &words[..8], 1, offset);
            let answer = read(&file_of(&[frames.clone(), other])).unwrap_err();
            assert!(matches!(answer, ReadError::Directory { .. }), "{offset}: {answer}");
        }
        // An unused table takes no room.
        assert!(read(&file_of(&[frames, table(TableKind::Counters, &[], 0, 4096)])).is_ok());
    }

    #[test]
    fn stacks_have_no_more_frames_than_there_are() {
        let frames = table(TableKind::Frames, [7_u64; 1024].as_bytes(), 1024, 4096);
        let slot = |n: u64| {
            let mut slot = StackSlot { frames: 1024, hash: n, ..Default::default() };
            slot.check = slot.seal();
            slot
        };
        let slots: Vec<_> = (0..1000).map(slot).collect();
        let snapshot = read(&file_of(&[frames, table(TableKind::Stacks, slots.as_bytes(), 1000, 16384)])).unwrap();
        assert_eq!((snapshot.stacks.len(), snapshot.torn), (1, 999));
        assert_eq!(snapshot.frames(&snapshot.stacks[&1]).len(), 1024);
    }

    #[test]
    fn texts_are_together_no_longer_than_the_table() {
        // At any offset, these bytes state a length of 65,535 bytes.
        let strings = vec![0xff_u8; 100_000];
        let tagged = |tag| {
            let mut slot = AllocSlot { tag, ..Default::default() };
            slot.check = slot.seal();
            slot
        };
        let slots: Vec<_> = (1..20_000).map(|n| tagged(n * 5)).collect();
        let texts = table(TableKind::Strings, &strings, 100_000, 4096);
        let allocs = table(TableKind::Allocs, slots.as_bytes(), slots.len() as u64, 106_496);
        let snapshot = read(&file_of(&[texts, allocs])).unwrap();
        let whole: usize = snapshot.allocs.iter().map(|alloc| snapshot.bytes_of(alloc.tag, MAX_TEXT_BYTES).len()).sum();
        assert_eq!(snapshot.allocs.len(), 19_999);
        assert!(whole <= strings.len(), "{whole}");
    }

    #[test]
    fn holes_cost_nothing_and_what_lies_behind_them_counts() {
        use std::os::unix::fs::FileExt;
        let name = format!("gpumem-sparse-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut alloc = AllocSlot { bytes: 64, ..Default::default() };
        alloc.check = alloc.seal();
        let giant = (3_u64 << 30) / 64;
        file.write_all_at(&file_of(&[table(TableKind::Allocs, alloc.as_bytes(), giant, 4096)]), 0).unwrap();
        // The first is stored after a hole in its table, the second further out than a writer would have come.
        for at in [10_000, giant - 1] {
            file.write_all_at(alloc.as_bytes(), 4096 + at * 64).unwrap();
        }
        file.set_len(MAX_FILE_BYTES).unwrap();
        let stored = file.stored().unwrap();
        if stored > 1 << 20 {
            eprintln!("{} does not tell holes: not tested", std::env::temp_dir().display());
            return;
        }
        let snapshot = Snapshot::read(&file).unwrap().unwrap();
        assert_eq!(snapshot.allocs.len(), 2);
        assert_eq!(snapshot.cut, None);
    }

    #[test]
    fn damage_anywhere_never_panics_or_grows_without_bound() {
        let (whole, pieces) = (ledger(), in_pieces());
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for round in 0..20_000 {
            let mut hostile = if round % 2 == 0 { whole.clone() } else { pieces.clone() };
            for _ in 0..1 + random % 6 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Half of the damage goes to the fields that steer the reader.
                let range = match random % 3 {
                    0 => 80..HEADER_BYTES.min(392 + 6 * 40),
                    1 => HEADER_BYTES..hostile.len().min(HEADER_BYTES + 40 * size_of::<PieceDesc>()),
                    _ => 0..hostile.len(),
                };
                let at = range.start + (random >> 8) as usize % range.len();
                hostile[at] = (random >> 40) as u8;
            }
            if let Ok(snapshot) = read(&hostile) {
                assert!(snapshot.allocs.len() <= hostile.len() / 64);
                let frames: usize = snapshot.stacks.values().map(|stack| snapshot.frames(stack).len()).sum();
                assert!(frames <= hostile.len() / 8);
            }
        }
    }
}
