//! The file of an allocation trace (`GPUMEM_ALLOC_TRACE`): a page of header, then records of one size in the order in which
//! they were taken.
//!
//! A record counts once its last word is written, which holds a check over the others. So records that a killed process
//! was about to write are skipped, and so are damaged ones.

use crate::kinds::AllocKind;
use crate::read::Source;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// First eight bytes of every trace.
pub const MAGIC: [u8; 8] = *b"GPUMEM\x1aT";
/// Changes whenever anything in this file changes its meaning or place.
pub const VERSION: u32 = 1;
/// Offset of the first record.
pub const HEADER_BYTES: u64 = 4096;
/// Words of a record.
pub const WORDS: usize = 6;
/// Bytes of a record.
pub const RECORD_BYTES: u64 = WORDS as u64 * 8;

/// Beginning of a trace.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub record_bytes: u32,
    pub pid: u32,
    pub uid: u32,
    /// Start of the process, in clock ticks since boot: with the pid, the name of its ledger.
    pub start_ticks: u64,
    /// One moment on CLOCK_MONOTONIC, by which records are dated, and on CLOCK_REALTIME.
    pub created_ns: u64,
    pub created_real_ns: u64,
    /// 0: the trace continues, or the process ended. Otherwise it stopped before: an errno.
    pub stopped: u64,
}

/// Recorded action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    Alloc = 1,
    /// Written before the real free, so that no other allocation of the address comes first.
    Free = 2,
    /// The allocation failed.
    Failed = 3,
    /// The last free of this address was refused: the block is still live.
    Unfreed = 4,
}

/// One allocation or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// On CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Pointer, or handle.
    pub addr: u64,
    pub bytes: u64,
    /// The stream's handle if the call is ordered by one; else 0.
    pub stream: u64,
    pub tid: u32,
    /// The call stack of an allocation in the ledger of the process; 0: none.
    pub stack: u32,
    pub action: Action,
    pub kind: AllocKind,
}

impl Record {
    /// Returns the words of the record. The last one must be written last.
    #[inline]
    pub fn words(&self) -> [u64; WORDS] {
        let mut words = [
            self.time_ns,
            self.addr,
            self.bytes,
            self.stream,
            u64::from(self.tid) | u64::from(self.stack) << 32,
            self.action as u64 | (self.kind as u64) << 8,
        ];
        words[WORDS - 1] |= check(&words) << 32;
        words
    }

    /// Returns the record of these words, if they are one.
    pub fn of_words(words: [u64; WORDS]) -> Option<Self> {
        let last = words[WORDS - 1];
        let mut bare = words;
        bare[WORDS - 1] = last & 0xffff_ffff;
        if last >> 32 != check(&bare) {
            return None;
        }
        let action = match last as u8 {
            1 => Action::Alloc,
            2 => Action::Free,
            3 => Action::Failed,
            4 => Action::Unfreed,
            _ => return None,
        };
        let kind = AllocKind::from_u8((last >> 8) as u8)?;
        let (tid, stack) = (words[4] as u32, (words[4] >> 32) as u32);
        let [time_ns, addr, bytes, stream, ..] = words;
        Some(Self { time_ns, addr, bytes, stream, tid, stack, action, kind })
    }
}

/// Returns 32 bits over the words, never 0.
#[inline]
fn check(words: &[u64; WORDS]) -> u64 {
    let hash = words.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, &word| {
        (hash.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd)
    });
    (hash >> 32).max(1)
}

/// A trace that was read.
#[derive(Clone, Debug)]
pub struct Trace {
    pub header: Header,
    /// In the order of the file.
    pub records: Vec<Record>,
    /// Number of places between records that hold none: writers that were killed, or damage.
    pub torn: u64,
}

/// Reason why a file is not a trace.
#[derive(Debug)]
pub enum TraceError {
    Io(io::Error),
    /// It does not begin like one.
    NotATrace,
    /// Of another version.
    Version(u32),
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::NotATrace => f.write_str("this is no allocation trace of gpumem"),
            Self::Version(version) => {
                write!(f, "a trace of version {version}; this gpumem reads {VERSION}: use the release that wrote it")
            }
        }
    }
}

/// Reads a trace, also one that is being written.
///
/// # Errors
/// [`TraceError`]. A trace that was cut anywhere is no error.
pub fn read(file: &File) -> Result<Trace, TraceError> {
    let mut header = Header::new_zeroed();
    match FileExt::read_exact_at(file, header.as_mut_bytes(), 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(TraceError::NotATrace),
        other => other.map_err(TraceError::Io)?,
    }
    if header.magic != MAGIC {
        return Err(TraceError::NotATrace);
    }
    if header.version != VERSION || u64::from(header.record_bytes) != RECORD_BYTES {
        return Err(TraceError::Version(header.version));
    }
    let (mut records, mut torn, mut empty) = (Vec::new(), 0_u64, 0_u64);
    let mut piece = vec![0; 4096 * RECORD_BYTES as usize];
    let mut offset = HEADER_BYTES;
    while let Some(stretch) = file.stored_from(offset).map_err(TraceError::Io)? {
        // A record in a hole was never written.
        let skipped = stretch.start.saturating_sub(offset) / RECORD_BYTES;
        (empty, offset) = (empty.saturating_add(skipped), offset + skipped * RECORD_BYTES);
        while offset < stretch.end {
            let len = Source::read_at(file, offset, &mut piece).map_err(TraceError::Io)?;
            let whole = len / RECORD_BYTES as usize * RECORD_BYTES as usize;
            if whole == 0 {
                return Ok(Trace { header, records, torn });
            }
            // The piece may go beyond the stretch: a small hole is not seen as one.
            for bytes in piece[..whole].chunks_exact(RECORD_BYTES as usize) {
                let mut words = [0; WORDS];
                words
                    .iter_mut()
                    .zip(bytes.as_chunks::<8>().0)
                    .for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
                match Record::of_words(words) {
                    Some(record) => {
                        torn += std::mem::take(&mut empty);
                        records.push(record);
                    }
                    None => empty = empty.saturating_add(1),
                }
            }
            offset += whole as u64;
        }
    }
    Ok(Trace { header, records, torn })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u64) -> Record {
        Record {
            time_ns: n,
            addr: 0x7f00_0000_0000 + n * 512,
            bytes: n * 3 + 1,
            stream: n % 3,
            tid: n as u32,
            stack: !(n as u32),
            action: if n.is_multiple_of(2) { Action::Alloc } else { Action::Free },
            kind: AllocKind::Device,
        }
    }

    #[test]
    fn records_come_back_and_any_changed_bit_is_seen() {
        for n in 0..100 {
            let words = record(n).words();
            assert_eq!(Record::of_words(words), Some(record(n)));
            for bit in 0..WORDS * 64 {
                let mut changed = words;
                changed[bit / 64] ^= 1 << (bit % 64);
                assert_eq!(Record::of_words(changed), None, "bit {bit}");
            }
        }
        assert_eq!(Record::of_words([0; WORDS]), None);
    }

    #[test]
    fn holes_are_counted_and_what_was_never_written_is_not() {
        let name = format!("gpumem-trace-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read(&file), Err(TraceError::NotATrace)));
        let mut header = Header::new_zeroed();
        (header.magic, header.version, header.record_bytes) = (MAGIC, VERSION, RECORD_BYTES as u32);
        file.write_all_at(header.as_bytes(), 0).unwrap();
        assert_eq!(read(&file).unwrap().records, []);
        let put = |index: u64, record: Record| {
            file.write_all_at(record.words().as_bytes(), HEADER_BYTES + index * RECORD_BYTES).unwrap();
        };
        put(0, record(0));
        put(2, record(2));
        put(10_000, record(5));
        // A hole of a terabyte costs no work.
        file.set_len(1 << 40).unwrap();
        let trace = read(&file).unwrap();
        assert_eq!(trace.records, [record(0), record(2), record(5)]);
        assert_eq!(trace.torn, 10_001 - 3);
        header.version += 1;
        file.write_all_at(header.as_bytes(), 0).unwrap();
        assert!(matches!(read(&file), Err(TraceError::Version(2))));
    }
}
