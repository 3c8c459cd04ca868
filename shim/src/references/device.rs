//! Words of device memory that refer to allocations: live blocks of the pool. A kernel reads them while their context
//! rests, many at a time. Otherwise they are copied out piece by piece, beside the device's work.

use super::reading::{self, Flight, LiveMemory, Part, PieceRead};
use super::targets::Targets;
use super::{END, Limit};
use crate::backend::reader::ROOM;
use crate::backend::scan::{LISTS, PIECE, RANGES, Wanted};
use crate::pool;
use crate::pool::context_pool::Scan;
use crate::process::cancel;
use crate::progress::activity::WHY_BROKEN;
use crate::shim::Shim;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::references::{Place, Seen};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Bytes whose words always fit: the kernel reads this much at a time after it found more than it had room for.
const LEAST_SCANNED: u64 = 64 << 10;
/// Maximum bytes of the first launch. Each read launch doubles it: so the device has something to read while the host
/// looks up and claims the next blocks, which takes a third as long as reading them, if they have 2 MiB each.
const FIRST_READ: u64 = 512 << 20;
/// Fewer bytes or parts are not worth a launch.
const FEWEST_SCANNED: usize = 16;
/// Maximum number of pairs, of a referring and a referred allocation, that are kept.
const MOST_EDGES: usize = 1 << 20;
/// Wait while something captures: nothing is read then.
const NAP: Duration = Duration::from_millis(1);
/// Maximum time of a copy. It waits for nothing, so one that takes longer never completes.
const LONGEST: Duration = Duration::from_secs(1);
const NO_TIME: &str = "there was no time to read all of it";
const ALL_CAPTURED: &str = "a stream was being captured all the time";

/// The result of the search of device memory.
#[derive(Default)]
pub(super) struct DeviceSearch {
    /// Number of allocations that were read; `bytes` has their bytes.
    pub allocs: u64,
    /// Number of allocations that were freed meanwhile: before they were read, or while they were.
    pub gone: u64,
    pub bytes: u64,
    /// Bytes of those that a kernel read, in `launches` launches.
    pub by_kernel: u64,
    pub launches: u64,
    /// Indexes of targets: the first refers to the second.
    pub edges: FxHashSet<(u32, u32)>,
    /// True if there were more pairs.
    pub more_edges: bool,
    pub incomplete: Option<&'static str>,
    /// Reason why device memory is never read here.
    pub never: Option<&'static str>,
}

/// Counts the words of device memory that refer to a target.
pub(super) fn count(shim: &Shim, targets: &Targets, seen: &mut [Seen], limit: &mut Limit) -> DeviceSearch {
    let mut found = DeviceSearch::default();
    let Some(pool) = pool::of(Vendor::Cuda) else {
        found.never = Some("gpumem has no pool here");
        return found;
    };
    let wanted = Wanted::new(targets.all().iter().map(|target| target.start..target.end));
    let mut read = Read {
        pool,
        wanted,
        targets,
        seen,
        limit,
        next: 0,
        blocks: 0,
        left: Vec::new(),
        first: None,
        others: Vec::new(),
        gone: FxHashSet::default(),
        not_found: FxHashSet::default(),
        most: FIRST_READ,
        copies: false,
    };
    let mut flights = VecDeque::new();
    found.incomplete = read.all(&mut found, &mut flights).err();
    for (flight, parts) in flights {
        flight.end(&|| true, &mut None, |_| ());
        read.left.extend(parts);
    }
    let left = read.left.iter().chain(&read.others).map(|part| part.live.addr);
    let not_read: FxHashSet<u64> = left.chain(read.gone.iter().copied()).collect();
    found.allocs = (read.blocks - not_read.len()) as u64;
    found.gone = (read.gone.len() + ended(shim, read.not_found)) as u64;
    found
}

/// Returns how many of these records have ended. Host memory is read before device memory, so a short-lived allocation
/// may be gone when its block is looked up. Memory outside the pool has a record all the time.
fn ended(shim: &Shim, mut serials: FxHashSet<u64>) -> usize {
    if !serials.is_empty() {
        shim.ledger.allocs.each(|slot| _ = serials.remove(&slot.serial));
    }
    serials.len()
}

/// Parts that the kernel is reading now.
type Flights = VecDeque<(Flight, Vec<Part>)>;

/// The next step.
enum Next {
    /// The kernel has begun.
    Begun(Flight, Vec<Part>),
    /// Some blocks are gone.
    Gone,
    /// Nothing can start until a running read has ended.
    Later,
    /// It was read by a copy.
    Copied,
    Captured,
    Broken,
}

/// State for reading blocks.
struct Read<'a> {
    pool: &'a pool::Pool,
    wanted: Wanted,
    targets: &'a Targets,
    seen: &'a mut [Seen],
    limit: &'a mut Limit,
    /// Index of the next target whose block is looked up, and the blocks that were found so far.
    next: usize,
    blocks: usize,
    /// Parts to be read before others: the next one stands last.
    left: Vec<Part>,
    /// The first block, and those of other contexts than its own: they are read later.
    first: Option<LiveMemory>,
    others: Vec<Part>,
    /// Addresses of blocks that went meanwhile.
    gone: FxHashSet<u64>,
    /// Serial numbers of targets that have no block of the pool, if they are device memory: freed, or outside of it.
    not_found: FxHashSet<u64>,
    /// Maximum that the kernel reads next: less after it found more than there is room for.
    most: u64,
    /// True if something must be copied before the kernel is tried again.
    copies: bool,
}

impl Read<'_> {
    /// Reads all that is left.
    ///
    /// # Errors
    /// Why nothing more is read. Reads in flight are not ended then.
    fn all(&mut self, found: &mut DeviceSearch, flights: &mut Flights) -> Result<(), &'static str> {
        let (mut why, mut ended) = (NO_TIME, None);
        loop {
            self.look_up();
            if self.left.is_empty() && flights.is_empty() {
                return Ok(());
            }
            if self.limit.check() {
                return Err(why);
            }
            let next = if flights.len() < LISTS { self.begin(!flights.is_empty()) } else { Next::Later };
            match next {
                Next::Begun(flight, parts) => flights.push_back((flight, parts)),
                Next::Gone => {}
                _ if !flights.is_empty() => {
                    if let Some((flight, parts)) = flights.pop_front() {
                        self.land(found, flight, parts, &mut ended)?;
                    }
                }
                Next::Later => {}
                Next::Copied => self.copied(found, &mut why)?,
                Next::Captured => {
                    why = ALL_CAPTURED;
                    cancel::sleep(NAP);
                }
                Next::Broken => return Err(WHY_BROKEN),
            }
        }
    }

    /// Looks up the next live block if no part is left: blocks are looked up while the device reads.
    fn look_up(&mut self) {
        while self.left.is_empty()
            && let Some(target) = self.targets.all().get(self.next)
        {
            self.next += 1;
            let Some(live) = reading::live_block(self.pool, target.start) else {
                self.not_found.extend(target.on_device.then_some(target.serial));
                continue;
            };
            let part = Part { live, at: 0, words: live.bytes / 8, is_gone: false };
            if part.words == 0 {
                continue;
            }
            self.blocks += 1;
            let first = *self.first.get_or_insert(live);
            if live.is_beside(&first) { &mut self.left } else { &mut self.others }.push(part);
        }
        if self.left.is_empty() {
            self.left = std::mem::take(&mut self.others);
            self.left.sort_unstable_by_key(|part| std::cmp::Reverse(part.live.order()));
        }
    }

    /// Returns the maximum wait, no longer than the search.
    fn longest(&self) -> Duration {
        LONGEST.min(self.limit.until.saturating_duration_since(Instant::now()))
    }

    /// Starts the kernel on the next parts.
    fn begin(&mut self, is_another: bool) -> Next {
        let Some(next) = self.left.last() else { return Next::Later };
        if self.copies {
            return Next::Copied;
        }
        let Some(at_once) = next.live.scanned_at_once(is_another) else { return Next::Later };
        let mut parts = self.take(at_once.min(self.most) / 8);
        let words: u64 = parts.iter().map(|part| part.words).sum();
        if words * 8 < LEAST_SCANNED && parts.len() < FEWEST_SCANNED {
            self.put_back(parts);
            return Next::Copied;
        }
        let how = Scan { wanted: &self.wanted, longest: self.longest() };
        let begun = reading::begin_scan(self.pool, &mut parts, &how);
        let is_gone = |part: &Part| part.is_gone || matches!(begun, Err(PieceRead::Gone));
        self.gone.extend(parts.iter().filter(|part| is_gone(part)).map(|part| part.live.addr));
        parts.retain(|part| !is_gone(part));
        let why = match begun {
            Ok(Some(flight)) => return Next::Begun(flight, parts),
            Ok(None) | Err(PieceRead::Gone) => return Next::Gone,
            Err(why) => why,
        };
        self.put_back(parts);
        match why {
            PieceRead::Captured => Next::Captured,
            PieceRead::Broken => Next::Broken,
            // The program has started work. Whether that has ended shows once our own read has ended.
            _ if is_another => Next::Later,
            _ => {
                self.refused(words * 8);
                Next::Copied
            }
        }
    }

    /// Notes that the kernel did not read `bytes` bytes: it is tried with fewer, and not at once.
    fn refused(&mut self, bytes: u64) {
        self.most = (bytes / 8).max(LEAST_SCANNED);
        self.copies = true;
    }

    /// Takes parts of one context from what is left, at most `most` words.
    fn take(&mut self, most: u64) -> Vec<Part> {
        let (mut parts, mut words, mut pieces): (Vec<Part>, _, _) = (Vec::new(), 0, 0);
        loop {
            self.look_up();
            let Some(next) = self.left.last_mut() else { break };
            if parts.first().is_some_and(|first| !first.live.is_beside(&next.live)) {
                break;
            }
            let room = (most - words).min((RANGES - pieces) as u64 * PIECE);
            // A part is cut between vectors.
            let taken = if next.words <= room { next.words } else { room / 2 * 2 };
            if taken == 0 && next.words > 0 {
                break;
            }
            words += taken;
            pieces += Part::pieces(taken);
            parts.push(Part { words: taken, ..*next });
            (next.at, next.words) = (next.at + taken * 8, next.words - taken);
            if next.words == 0 {
                self.left.pop();
            }
        }
        parts
    }

    fn put_back(&mut self, parts: Vec<Part>) {
        self.left.extend(parts.into_iter().rev());
    }

    /// Waits for the kernel, and takes what it found.
    fn land(
        &mut self,
        found: &mut DeviceSearch,
        flight: Flight,
        parts: Vec<Part>,
        ended: &mut Option<Instant>,
    ) -> Result<(), &'static str> {
        let until = self.limit.until;
        let is_over = || END.load(Relaxed) || Instant::now() >= until;
        let landed = flight.end(&is_over, ended, |words| {
            for &[at, word] in words {
                if let Some(from) = self.targets.find(at) {
                    found.words(from, [word].into_iter(), self.targets, self.seen);
                }
            }
        });
        let bytes = parts.iter().map(|part| part.words * 8).sum();
        found.launches += 1;
        if landed == PieceRead::Read {
            found.bytes += bytes;
            found.by_kernel += bytes;
            self.most = self.most.saturating_mul(2);
            return Ok(());
        }
        self.put_back(parts);
        self.refused(bytes);
        if landed == PieceRead::Broken { Err(WHY_BROKEN) } else { Ok(()) }
    }

    /// Reads some of the next part by a copy.
    ///
    /// # Errors
    /// Why nothing more is read.
    fn copied(&mut self, found: &mut DeviceSearch, why: &mut &'static str) -> Result<(), &'static str> {
        let Some(part) = self.left.last().copied() else { return Ok(()) };
        let Some(from) = self.targets.find(part.live.addr) else { return Ok(()) };
        let (words, longest) = (part.words.min(ROOM as u64 / 8), self.longest());
        let read = |copied: &[u8]| {
            let (words, _) = copied.as_chunks::<8>();
            found.words(from, words.iter().map(|word| u64::from_ne_bytes(*word)), self.targets, self.seen);
        };
        self.copies = false;
        match reading::read_piece(self.pool, &part.live, part.at, words as usize * 8, longest, read) {
            PieceRead::Read => {
                found.bytes += words * 8;
                self.left.pop();
                if words < part.words {
                    self.left.push(Part { at: part.at + words * 8, words: part.words - words, ..part });
                }
            }
            PieceRead::Gone => {
                self.left.pop();
                self.gone.insert(part.live.addr);
            }
            PieceRead::Captured => {
                *why = ALL_CAPTURED;
                cancel::sleep(NAP);
            }
            PieceRead::Broken => return Err(WHY_BROKEN),
            PieceRead::Refused if self.limit.check() => return Err(*why),
            PieceRead::Refused => return Err("the driver does not copy it"),
        }
        Ok(())
    }
}

impl DeviceSearch {
    /// Counts words of a target's memory.
    fn words(&mut self, from: usize, words: impl Iterator<Item = u64>, targets: &Targets, seen: &mut [Seen]) {
        for to in words.filter_map(|word| targets.find(word)) {
            if to == from {
                seen[to].add(Place::Itself, 1);
                continue;
            }
            seen[to].add(Place::Device, 1);
            if self.edges.len() < MOST_EDGES {
                self.edges.insert((from as u32, to as u32));
            } else {
                self.more_edges = true;
            }
        }
    }
}
