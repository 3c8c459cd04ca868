//! Jobs on ranges of watched memory: each is filled, or read for bytes that have changed.
//!
//! While the context is idle, memset and a kernel do them. Otherwise copies do them.

use crate::backend::reader::{ANSWERS, Mismatch, ROOM};
use crate::pool::claims::Claim;
use crate::pool::context_pool::{ContextPool, NotKnown, POISON, ReaderWork};
use std::time::Duration;

/// The least bytes that one thread block of the kernel reads, and the most thread blocks for one range.
const CHUNK: u64 = 64 << 10;
const CHUNKS: u64 = 1024;

/// One job on a range of memory.
#[derive(Clone, Copy)]
pub(super) enum Job {
    /// Fills a number of bytes at an address with [`POISON`].
    Fill(u64, u64),
    /// Finds the bytes of a range that are no longer [`POISON`].
    Read(u64, u64),
}

/// Does these jobs in order, in memory of the claimed blocks. Returns the results, one for each job that reads. `None`:
/// the result is unknown, and some of the work may go on, for as long as the blocks stay claimed.
pub(super) fn work_through(
    owner: &ContextPool,
    jobs: &[Job],
    claim: &Claim,
    longest: Duration,
) -> Option<Vec<Mismatch>> {
    let does = |work: &mut ReaderWork<'_>| Jobs { work, open: Vec::new(), found: Vec::new() }.all(jobs);
    owner.with_reader(owner.is_idle(), claim, longest, does, |_, found| found)
}

/// A reader at work on jobs.
struct Jobs<'a, 'b> {
    work: &'a mut ReaderWork<'b>,
    /// The number of chunks of each range whose results are pending.
    open: Vec<usize>,
    found: Vec<Mismatch>,
}

impl Jobs<'_, '_> {
    fn all(&mut self, jobs: &[Job]) -> Result<Vec<Mismatch>, NotKnown> {
        let (mut used, idle) = (0, self.work.idle);
        for &job in jobs {
            let reader = &mut *self.work.reader;
            match job {
                Job::Fill(addr, bytes) if idle => reader.fill(addr, bytes, POISON).map_err(NotKnown::Refused)?,
                Job::Fill(addr, bytes) => reader.fill_by_copies(addr, bytes).map_err(NotKnown::Refused)?,
                Job::Read(addr, bytes) if idle && reader.has_kernel() => {
                    let chunk = (bytes / CHUNKS).next_multiple_of(16).max(CHUNK);
                    let chunks = bytes.div_ceil(chunk) as usize;
                    if used + chunks > ANSWERS {
                        self.answered()?;
                        used = 0;
                    }
                    self.work.reader.read(addr, bytes, chunk, POISON, used).map_err(NotKnown::Refused)?;
                    self.open.push(chunks);
                    used += chunks;
                }
                Job::Read(addr, bytes) => {
                    self.answered()?;
                    used = 0;
                    let mismatch = self.read_by_copies(addr, bytes)?;
                    self.found.push(mismatch);
                }
            }
        }
        self.answered()?;
        Ok(std::mem::take(&mut self.found))
    }

    /// Waits for all work that was begun, and takes the results.
    fn answered(&mut self) -> Result<(), NotKnown> {
        self.work.wait()?;
        let mut at = 0;
        for chunks in self.open.drain(..) {
            self.found.push(self.work.reader.answers(at, chunks));
            at += chunks;
        }
        Ok(())
    }

    fn read_by_copies(&mut self, addr: u64, bytes: u64) -> Result<Mismatch, NotKnown> {
        let mut found = Mismatch::NOTHING;
        for at in (0..bytes).step_by(ROOM) {
            let piece = (bytes - at).min(ROOM as u64) as usize;
            self.work.reader.copy(addr + at, piece).map_err(NotKnown::Refused)?;
            self.work.wait()?;
            found = found.and(Mismatch::of(self.work.reader.copied(piece), at, POISON));
        }
        Ok(found)
    }
}
