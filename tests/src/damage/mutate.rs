//! Damages a file by a seed. Damage is of two kinds: changed bytes, which seals and bounds catch, and false values
//! under a correct seal, which only checks of their sense catch.

use super::corpus::{Kind, Seedling};
use super::image::Image;
use crate::differ::random::Random;
use gpumem_wire::layout::*;
use gpumem_wire::trace;
use std::mem::offset_of;

/// The damaged file of a seed.
pub fn mutated(corpus: &[Seedling], random: &mut Random) -> (Kind, String, Image) {
    let files: Vec<&Seedling> = corpus.iter().filter(|seedling| seedling.kind != Kind::Program).collect();
    let seedling = *random.pick(&files);
    let mut image = seedling.image.clone();
    // A recording is damaged as it is, or unpacked, damaged and packed again.
    if seedling.kind == Kind::Recording && random.chance(75) {
        return (seedling.kind, seedling.name.clone(), super::recording::mutated(&image, random));
    }
    for _ in 0..1 + random.below(4) {
        match (seedling.kind, random.weighted(&[3, 3, 3, 5, 2, 2, 2])) {
            (_, 0) => bytes(&mut image, random),
            (Kind::Trace, 1..=3) => records(&mut image, random),
            (_, 1) => header(&mut image, random),
            (_, 2) => directory(&mut image, random),
            (_, 3) => sealed(&mut image, random),
            (_, 4) => length(&mut image, random),
            (_, 5) => moved(&mut image, random),
            _ => texts(&mut image, random),
        }
    }
    (seedling.kind, seedling.name.clone(), image)
}

/// A random number, often one at a boundary where code tends to fail.
pub(super) fn number(random: &mut Random) -> u64 {
    const EDGES: [u64; 14] = [
        0,
        1,
        2,
        0x7f,
        0xff,
        0xffff,
        0x1_0000,
        0x7fff_ffff,
        0xffff_ffff,
        0x1_0000_0000,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
    ];
    match random.below(3) {
        0 => *random.pick(&EDGES),
        1 => random.next() >> random.below(64),
        _ => random.below(5000) as u64,
    }
}

/// A random place in the stored bytes.
fn place(image: &Image, random: &mut Random) -> u64 {
    let mut at = random.next() % image.stored().max(1);
    for (offset, part) in &image.parts {
        match at.checked_sub(part.len() as u64) {
            None => return offset + at,
            Some(rest) => at = rest,
        }
    }
    0
}

pub(super) fn put(image: &mut Image, at: u64, bytes: &[u8]) {
    if let Some(there) = image.at_mut(at, bytes.len()) {
        let len = there.len();
        there.copy_from_slice(&bytes[..len]);
    }
}

pub(super) fn bytes(image: &mut Image, random: &mut Random) {
    for _ in 0..1 << random.below(9) {
        let at = place(image, random);
        let byte = random.next() as u8;
        put(image, at, &[byte]);
    }
}

/// A word of the header behind the marks by which it is known.
fn header(image: &mut Image, random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        let at = 16 + random.below(offset_of!(Header, tables) / 4 - 4) as u64 * 4;
        let number = number(random);
        put(image, at, &(number as u32).to_le_bytes());
    }
}

/// Changes a field of the directory: kind, offset, capacity or use.
fn directory(image: &mut Image, random: &mut Random) {
    let entry = offset_of!(Header, tables) as u64 + random.below(15) as u64 * size_of::<TableDesc>() as u64;
    let number = number(random);
    let piece = HEADER_BYTES as u64 + random.below(60) as u64 * size_of::<PieceDesc>() as u64;
    match random.below(10) {
        6 => put(image, piece, &number.to_le_bytes()),
        7 => put(image, piece, &(4096 + number % image.len.max(1)).to_le_bytes()),
        8 => put(image, piece + 8, &(number as u32).to_le_bytes()),
        9 => put(image, piece + 12, &((number % 16) as u32).to_le_bytes()),
        0 => put(image, entry, &(number as u32).to_le_bytes()),
        1 => put(image, entry + 8, &number.to_le_bytes()),
        2 => put(image, entry + 8, &(4096 + number % image.len.max(1)).to_le_bytes()),
        3 => put(image, entry + 24, &(number % 100_000).to_le_bytes()),
        // As many slots as the largest file holds.
        4 => {
            put(image, entry + 16, &((1_u64 << 32) / 256).to_le_bytes());
            put(image, entry + 24, &((1_u64 << 32) / 256).to_le_bytes());
        }
        _ => put(image, offset_of!(Header, tables_len) as u64, &((number % 30) as u32).to_le_bytes()),
    }
}

/// Bytes of a slot, and how many of them its seal covers.
const SEALED: &[(TableKind, usize)] = &[
    (TableKind::Allocs, <AllocSlot as Sealed>::SEALED),
    (TableKind::Shared, <SharedSlot as Sealed>::SEALED),
    (TableKind::Stacks, <StackSlot as Sealed>::SEALED),
    (TableKind::Modules, <ModuleSlot as Sealed>::SEALED),
    (TableKind::Graphs, <GraphSlot as Sealed>::SEALED),
    (TableKind::Execs, <ExecSlot as Sealed>::SEALED),
    (TableKind::Contexts, <ContextSlot as Sealed>::SEALED),
    (TableKind::Streams, <StreamSlot as Sealed>::SEALED),
    (TableKind::Events, <EventSlot as Sealed>::SEALED),
    (TableKind::Samples, <SampleSlot as Sealed>::SEALED),
    (TableKind::Threads, <ThreadSlot as Sealed>::SEALED),
    (TableKind::Symbols, <SymbolSlot as Sealed>::SEALED),
    (TableKind::Growth, <GrowthSlot as Sealed>::SEALED),
];

/// Returns the place of a table: its offset, the bytes of a slot, and the slots used.
fn table(image: &Image, kind: TableKind) -> Option<(u64, u64, u64)> {
    (0..MAX_TABLES as u64).find_map(|index| {
        let desc = image.at(offset_of!(Header, tables) as u64 + index * size_of::<TableDesc>() as u64, 40)?;
        let word = |at: usize| Some(u64::from_le_bytes(desc.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(desc.get(at..at + 4)?.try_into().ok()?));
        let (slot, used) = (u64::from(half(4)?), word(24)?);
        let offset = first_piece(image, index as u32).map_or(word(8), Some)?;
        (half(0)? == kind as u32).then_some((offset, slot, used))
    })
}

/// Returns the offset of a table's first piece, in a file whose tables are in pieces.
fn first_piece(image: &Image, table: u32) -> Option<u64> {
    let len = image.at(offset_of!(Header, pieces_len) as u64, 4)?.try_into().ok().map(u32::from_le_bytes)?;
    (0..u64::from(len).min(MAX_PIECES as u64)).find_map(|index| {
        let piece = image.at(HEADER_BYTES as u64 + index * size_of::<PieceDesc>() as u64, 16)?;
        let of = u32::from_le_bytes(piece.get(12..16)?.try_into().ok()?);
        (of == table).then(|| piece.get(..8)?.try_into().ok().map(u64::from_le_bytes)).flatten()
    })
}

/// Changes slots and seals them again. Some slots are first copied over others.
fn sealed(image: &mut Image, random: &mut Random) {
    let (kind, sealed) = *random.pick(SEALED);
    let Some((offset, slot, used)) = table(image, kind) else { return };
    let (_, of_kind) = TableKind::from_u32(kind as u32).expect("one of them");
    let stored = image.at(offset, usize::MAX).map_or(0, |bytes| bytes.len() as u64 / slot.max(1));
    if slot != of_kind as u64 || used.min(stored) == 0 {
        return;
    }
    let most = used.min(stored);
    for _ in 0..1 << random.below(7) {
        let at = |index: u64| offset + index * slot;
        let (from, to) = (random.next() % most, random.next() % most);
        let Some(mut bytes) = image.at(at(from), of_kind).map(<[u8]>::to_vec) else { continue };
        if bytes.len() < of_kind {
            continue;
        }
        for _ in 0..random.below(4) {
            let word = 4 + random.below((of_kind - 4) / 4) * 4;
            let number = number(random).to_le_bytes();
            let wide = if random.chance(50) { 8 } else { 4 }.min(of_kind - word);
            bytes[word..word + wide].copy_from_slice(&number[..wide]);
        }
        let check = seal(&bytes[..sealed]);
        bytes[..4].copy_from_slice(&check.to_le_bytes());
        put(image, at(to), &bytes);
    }
}

/// Makes the file shorter, or longer by a hole, or puts a hole into it.
pub(super) fn length(image: &mut Image, random: &mut Random) {
    match random.below(4) {
        0 => {
            let at = place(image, random);
            image.len = at;
            image.parts.retain(|(offset, _)| *offset < at);
            if let Some((offset, part)) = image.parts.last_mut() {
                part.truncate((at - *offset) as usize);
            }
        }
        1 => image.len = image.len.max(random.next() % (5 << 30)),
        2 => {
            let at = place(image, random) & !4095;
            image
                .parts
                .retain(|(offset, part)| *offset == 0 || *offset + part.len() as u64 <= at || *offset > at + 65_536);
        }
        _ => {
            // One more stretch, far out.
            let end = image.parts.last().map_or(0, |(offset, part)| offset + part.len() as u64);
            let offset = (end + random.next() % (1 << 31)) & !4095;
            if let Some(bytes) = image.at(place(image, random), 4096).map(<[u8]>::to_vec)
                && offset > end
            {
                image.len = image.len.max(offset + 4096);
                image.parts.push((offset, bytes));
            }
        }
    }
}

/// Copies a stretch of bytes to another place.
fn moved(image: &mut Image, random: &mut Random) {
    let (from, to) = (place(image, random), place(image, random));
    let len = 1 << random.below(14);
    if let Some(bytes) = image.at(from, len).map(<[u8]>::to_vec) {
        put(image, to.max(16), &bytes);
    }
}

/// Changes texts: they become long, share bytes, contain control sequences for terminals, or are no UTF-8.
fn texts(image: &mut Image, random: &mut Random) {
    let Some((offset, 1, used)) = table(image, TableKind::Strings) else { return };
    const TROUBLE: &[&[u8]] =
        &[b"\xff\xff\0\0", b"\x1b[2J", b"\xff\xfe", "\u{202e}".as_bytes(), b"\"},\n{", b"\0\0\0\0", b"/../../../"];
    for _ in 0..1 << random.below(8) {
        // Both values may already be damaged by an earlier round.
        let at = offset.wrapping_add(random.next() % used.max(1));
        let trouble: &&[u8] = random.pick(TROUBLE);
        put(image, at, trouble);
    }
}

/// Changes records of a trace: doubles or exchanges them, or gives them other words with a correct checksum.
fn records(image: &mut Image, random: &mut Random) {
    let Some(stored) = image.at(trace::HEADER_BYTES, usize::MAX).map(|bytes| bytes.len() as u64) else { return };
    let most = (stored / trace::RECORD_BYTES).max(1);
    for _ in 0..1 << random.below(8) {
        let at = |index: u64| trace::HEADER_BYTES + index * trace::RECORD_BYTES;
        let (from, to) = (random.next() % most, random.next() % most);
        let Some(bytes) = image.at(at(from), trace::RECORD_BYTES as usize).map(<[u8]>::to_vec) else { continue };
        let (words, _) = bytes.as_chunks::<8>();
        let Ok(mut words) =
            <[u64; trace::WORDS]>::try_from(words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>())
        else {
            continue;
        };
        if let Some(mut record) = trace::Record::of_words(words) {
            match random.below(5) {
                0 => record.time_ns = number(random),
                1 => record.addr = number(random),
                2 => record.bytes = number(random),
                3 => record.stream = number(random),
                _ => record.action = *random.pick(&[trace::Action::Alloc, trace::Action::Free, trace::Action::Unfreed]),
            }
            words = record.words();
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        put(image, at(to), &bytes);
    }
    // What the header says of the clocks.
    let at = 16 + random.below(6) as u64 * 8;
    let number = number(random);
    put(image, at, &number.to_le_bytes());
}
