//! Contents of a graph's nodes as bytes: one record per node, and the folded form of them all.
//!
//! Only the backend knows what a record means. Here records are only compared and folded. Each record is kept as its
//! difference from the record at the same place in the shape's base, or from an earlier record of the same length and
//! beginning (the same kernel, in another layer). LZ4 packs the result.

use std::ops::Range;

/// One record per node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    /// End of each record.
    ends: Vec<u32>,
}

impl Records {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn range(&self, index: usize) -> Option<Range<usize>> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(start..end)
    }

    /// Returns a node's record; empty if there is none.
    pub(crate) fn get(&self, index: usize) -> &[u8] {
        self.range(index).map_or(&[], |range| &self.bytes[range])
    }

    /// Adds a record: `fill` appends its bytes.
    pub(crate) fn push(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        fill(&mut self.bytes);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// Replaces a node's record.
    pub(crate) fn replace(&mut self, index: usize, record: &[u8]) {
        let Some(range) = self.range(index) else { return };
        let (before, after) = (range.len() as i64, record.len() as i64);
        self.bytes.splice(range, record.iter().copied());
        if before != after {
            for end in &mut self.ends[index..] {
                *end = (i64::from(*end) + after - before) as u32;
            }
        }
    }
}

/// Bytes. A small graph's few bytes are stored in place, so that its source is one block of 64 bytes. Longer ones are
/// kept in blocks that the heap's size classes hold without waste, since a folded graph may have some tens of
/// kilobytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Blob {
    Few { len: u8, bytes: [u8; FEW] },
    Many(Box<[Box<[u8]>]>),
}

const FEW: usize = 30;
const BLOCK: usize = 4096;

impl Default for Blob {
    fn default() -> Self {
        Self::Few { len: 0, bytes: [0; FEW] }
    }
}

impl Blob {
    fn new(all: &[u8]) -> Self {
        let mut bytes = [0; FEW];
        match bytes.get_mut(..all.len()) {
            Some(few) => {
                few.copy_from_slice(all);
                Self::Few { len: all.len() as u8, bytes }
            }
            None => Self::Many(all.chunks(BLOCK).map(Box::from).collect()),
        }
    }

    /// Returns the number of kept bytes.
    fn len(&self) -> usize {
        match self {
            Self::Few { len, .. } => (*len).into(),
            Self::Many(blocks) => blocks.iter().map(|block| block.len() + size_of::<Box<[u8]>>()).sum(),
        }
    }

    fn copy_to(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Few { len, bytes } => out.extend_from_slice(&bytes[..usize::from(*len)]),
            Self::Many(blocks) => blocks.iter().for_each(|block| out.extend_from_slice(block)),
        }
    }
}

/// Folded bytes of any kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    blob: Blob,
    raw: u32,
}

impl Packed {
    pub(crate) fn new(raw: &[u8], scratch: &mut Scratch) -> Self {
        let room = lz4_flex::block::get_maximum_output_size(raw.len());
        if scratch.packed.len() < room {
            scratch.packed.resize(room, 0);
        }
        // The output has the maximum room that LZ4 can need, so this cannot fail. If it did, nothing would unpack.
        let len = lz4_flex::block::compress_into(raw, &mut scratch.packed).unwrap_or(0);
        Self { blob: Blob::new(&scratch.packed[..len]), raw: raw.len() as u32 }
    }

    /// Unpacks into `scratch.raw`; returns true if that worked.
    fn unpack(&self, scratch: &mut Scratch) -> bool {
        self.blob.copy_to(&mut scratch.packed);
        scratch.raw.clear();
        scratch.raw.resize(self.raw as usize, 0);
        lz4_flex::block::decompress_into(&scratch.packed, &mut scratch.raw).is_ok_and(|len| len == self.raw as usize)
    }

    pub(crate) fn unpacked<'a>(&self, scratch: &'a mut Scratch) -> Option<&'a [u8]> {
        self.unpack(scratch).then_some(scratch.raw.as_slice())
    }

    /// Returns the number of kept bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blob.len() as u64
    }
}

/// Buffers that are reused. Otherwise large ones would come from the kernel page by page.
#[derive(Default)]
pub(crate) struct Scratch {
    raw: Vec<u8>,
    packed: Vec<u8>,
}

/// Records, folded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    packed: Packed,
    nodes: u32,
}

/// Code of a record: equal to the base's. For the next two codes a 16-bit word follows in a second list.
const AS_BASE: u8 = 0;
/// Equal to an earlier record. The word is the distance back.
const AS_EARLIER: u8 = 1;
/// Stored whole. The word is its length.
const AS_IS: u8 = 2;

/// Number of earlier records that are searched for a similar one.
const LOOK_BACK: usize = 64;
/// Bytes at the beginning of a record that name what it calls: for kernels the function.
const HEAD: usize = 8;

/// Bytes of a word: most differences are pointers.
const WORD: usize = 8;

/// Appends the difference of a record from a model of the same length: a bit for each word, set if it differs, then the
/// differences of those words. Most words are the same and never reach LZ4.
fn push_difference(record: &[u8], model: &[u8], out: &mut Vec<u8>) {
    let bits = out.len();
    out.resize(bits + record.len().div_ceil(WORD).div_ceil(8), 0);
    let ((ours, rest), (theirs, their_rest)) = (record.as_chunks::<WORD>(), model.as_chunks::<WORD>());
    for (at, (ours, theirs)) in ours.chunks(8).zip(theirs.chunks(8)).enumerate() {
        let mut differ = 0;
        for (bit, (a, b)) in ours.iter().zip(theirs).enumerate() {
            let difference = u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b);
            if difference != 0 {
                differ |= 1 << bit;
                out.extend_from_slice(&difference.to_ne_bytes());
            }
        }
        out[bits + at] = differ;
    }
    if rest != their_rest {
        out[bits + ours.len() / 8] |= 1 << (ours.len() % 8);
        out.extend(rest.iter().zip(their_rest).map(|(a, b)| a ^ b));
    }
}

/// Turns the model in `record` into the record that differs from it. Returns the rest of `body`.
fn take_difference<'a>(record: &mut [u8], body: &'a [u8]) -> Option<&'a [u8]> {
    let (bits, mut body) = body.split_at_checked(record.len().div_ceil(WORD).div_ceil(8))?;
    for (at, &differ) in bits.iter().enumerate() {
        // One bit at a time: few are set.
        let mut left = differ;
        while left != 0 {
            let start = (at * 8 + left.trailing_zeros() as usize) * WORD;
            let word = record.get_mut(start..)?;
            let len = word.len().min(WORD);
            let (difference, rest) = body.split_at_checked(len)?;
            word.iter_mut().zip(difference).for_each(|(byte, difference)| *byte ^= difference);
            body = rest;
            left &= left - 1;
        }
    }
    Some(body)
}

impl Source {
    /// Folds records against a base (none: the base itself).
    pub(crate) fn fold(records: &Records, base: Option<&Records>, scratch: &mut Scratch) -> Self {
        let nodes = records.len();
        let mut raw = std::mem::take(&mut scratch.raw);
        raw.clear();
        raw.resize(nodes, AS_BASE);
        let like = |index: usize| {
            let record = records.get(index);
            if base.is_some_and(|base| base.get(index).len() == record.len()) {
                return (AS_BASE, 0);
            }
            let earlier = (1..=LOOK_BACK.min(index)).find(|&back| {
                let earlier = records.get(index - back);
                earlier.len() == record.len() && earlier.get(..HEAD) == record.get(..HEAD)
            });
            earlier.map_or((AS_IS, record.len()), |back| (AS_EARLIER, back))
        };
        let mut list = Vec::new();
        for (index, code_of) in raw.iter_mut().enumerate() {
            let (code, word) = like(index);
            *code_of = code;
            if code != AS_BASE {
                list.extend_from_slice(&(word as u16).to_le_bytes());
            }
        }
        raw.extend_from_slice(&list);
        let mut words = list.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
        for index in 0..nodes {
            let record = records.get(index);
            match raw[index] {
                AS_BASE => push_difference(record, base.map_or(&[], |base| base.get(index)), &mut raw),
                code => match (code, words.next().unwrap_or(0)) {
                    (AS_EARLIER, back) => push_difference(record, records.get(index - usize::from(back)), &mut raw),
                    _ => raw.extend_from_slice(record),
                },
            }
        }
        let packed = Packed::new(&raw, scratch);
        scratch.raw = raw;
        Self { packed, nodes: nodes as u32 }
    }

    /// Unfolds into `out`; returns true if that worked.
    pub(crate) fn unfold(&self, base: Option<&Records>, out: &mut Records, scratch: &mut Scratch) -> bool {
        out.clear();
        if !self.packed.unpack(scratch) {
            return false;
        }
        let nodes = self.nodes as usize;
        let Some((codes, rest)) = scratch.raw.split_at_checked(nodes) else { return false };
        let coded = codes.iter().filter(|&&code| code != AS_BASE).count();
        let Some((list, mut body)) = rest.split_at_checked(2 * coded) else { return false };
        let mut words = list.chunks_exact(2).map(|word| usize::from(u16::from_le_bytes([word[0], word[1]])));
        for (index, &code) in codes.iter().enumerate() {
            let start = out.bytes.len();
            match code {
                AS_BASE => out.bytes.extend_from_slice(base.map_or(&[], |base| base.get(index))),
                AS_EARLIER => {
                    let Some(range) = words.next().and_then(|back| out.range(index.checked_sub(back)?)) else {
                        return false;
                    };
                    out.bytes.extend_from_within(range);
                }
                _ => {
                    let Some((record, rest)) = words.next().and_then(|len| body.split_at_checked(len)) else {
                        return false;
                    };
                    out.bytes.extend_from_slice(record);
                    body = rest;
                }
            }
            if code == AS_BASE || code == AS_EARLIER {
                let Some(rest) = take_difference(&mut out.bytes[start..], body) else { return false };
                body = rest;
            }
            out.ends.push(out.bytes.len() as u32);
        }
        true
    }

    /// Returns the number of kept bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.packed.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(list: &[&[u8]]) -> Records {
        let mut records = Records::default();
        list.iter().for_each(|record| records.push(|bytes| bytes.extend_from_slice(record)));
        records
    }

    fn there_and_back(of: &Records, base: Option<&Records>) -> u64 {
        let (mut scratch, mut out) = (Scratch::default(), Records::default());
        let source = Source::fold(of, base, &mut scratch);
        assert!(source.unfold(base, &mut out, &mut scratch));
        assert_eq!(&out, of);
        source.bytes()
    }

    #[test]
    fn what_is_folded_unfolds() {
        let base = records(&[b"kernel-a....1111", b"", b"kernel-b....22", b"kernel-a....3333"]);
        let other = records(&[b"kernel-a....1191", b"", b"kernel-a....2222", b"x"]);
        for of in [&base, &other, &Records::default()] {
            there_and_back(of, None);
            there_and_back(of, Some(&base));
            there_and_back(of, Some(&other));
        }
    }

    #[test]
    fn random_records_unfold() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let mut make = |nodes: u64| {
                let mut all = Records::default();
                for _ in 0..nodes {
                    let (len, head) = ([0, 8, 24, 56, 180][next(5) as usize], next(3) as u8);
                    all.push(|bytes| bytes.extend((0..len).map(|at| if at < 8 { head } else { next(256) as u8 })));
                }
                all
            };
            let (base, of) = (make(40), make(41));
            there_and_back(&of, Some(&base));
            there_and_back(&of, None);
        }
    }

    #[test]
    fn layers_of_one_model_take_few_bytes() {
        // A thousand kernels of four kinds with six pointers that differ from layer to layer.
        let mut graph = Records::default();
        for node in 0..1000_u64 {
            graph.push(|bytes| {
                bytes.extend_from_slice(&(0x7f00_1234_0000 + (node % 4) * 64).to_le_bytes());
                bytes.extend_from_slice(&[7; 48]);
                for pointer in 0..6 {
                    bytes.extend_from_slice(&(0x7f55_0000_0000_u64 + node * 4096 * 37 + pointer * 65536).to_le_bytes());
                }
                bytes.extend_from_slice(&[3; 80]);
            });
        }
        let bytes = there_and_back(&graph, None);
        assert!(bytes < 60 * 1000, "{bytes} bytes for 1000 nodes");
        assert!(there_and_back(&graph, Some(&graph)) < 3000);
    }

    #[test]
    fn a_record_is_replaced_by_a_longer_one() {
        let mut of = records(&[b"aaaa", b"bb", b"cccc"]);
        of.replace(1, b"BBBBBB");
        assert_eq!(of, records(&[b"aaaa", b"BBBBBB", b"cccc"]));
        of.replace(0, b"");
        assert_eq!((of.get(0), of.get(1), of.get(2), of.get(3)), (&b""[..], &b"BBBBBB"[..], &b"cccc"[..], &b""[..]));
    }

    #[test]
    fn broken_bytes_do_not_unfold() {
        let mut scratch = Scratch::default();
        let of = records(&[b"kernel-a....1111", b"kernel-a....1112"]);
        let mut source = Source::fold(&of, None, &mut scratch);
        source.nodes = 90;
        assert!(!source.unfold(None, &mut Records::default(), &mut scratch));
        assert!(!Source { nodes: 2, ..Source::default() }.unfold(None, &mut Records::default(), &mut scratch));
    }
}
