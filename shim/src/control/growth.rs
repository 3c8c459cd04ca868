//! Samples of memory holders over time. Older samples are kept at a coarser resolution.
//!
//! The program's calls count nothing for it. A sample reads the records of all live memory and adds up the bytes of
//! each call stack, tag and class. That takes a few nanoseconds for each record. [`REST`] bounds the share of time that
//! samples take.

use super::proc_files::ProcFiles;
use crate::process::{clock, own};
use crate::shim::Shim;
use gpumem_wire::growth::{Key, key_of_context, key_of_graph, key_of_stream, keys_of_alloc, keys_of_exec};
use gpumem_wire::kinds::GrowthKind;
use gpumem_wire::layout::{GROWTH_BLOCK, GROWTH_LEVELS, GROWTH_POINTS, GrowthSlot, StackRef, StackSlot};
use rustc_hash::FxHashMap;
use std::mem::offset_of;
use std::sync::atomic::{Ordering::*, fence};
use std::time::{Duration, Instant};

/// After a sample the thread pauses for this many times the sample's duration.
const REST: u32 = 100;

/// A key gets another key's row only if it holds more than this many times as many bytes.
const TAKES_OVER: u64 = 2;

/// Live bytes, and the number of allocations.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    bytes: u64,
    count: u64,
}

impl Held {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.wrapping_add(bytes);
        self.count += 1;
    }
}

/// A key that holds memory and has no row yet.
#[derive(Default)]
struct Stranger {
    live: Held,
    /// Time of its newest allocation; 0: unknown.
    newest_ns: u64,
}

/// A row of the ledger's table.
struct GrowthRow {
    slot: u32,
    now: Held,
    peak: u64,
    /// For a call site: number of things it ever made, now and at the last note. `None`: nothing was noted yet.
    made_now: u64,
    made: Option<u64>,
    /// The minimum since the present point began, for each coarser level.
    least: [Held; GROWTH_LEVELS.len() - 1],
}

/// All rows of this process.
pub(super) struct Growth {
    interval: Duration,
    /// Time of the next sample; `None`: at the next mark.
    next: Option<Instant>,
    rows: FxHashMap<Key, GrowthRow>,
    /// Number of samples so far.
    samples: u64,
    /// Time of the first sample of the present point, for each level.
    began_ns: [u64; GROWTH_LEVELS.len()],
    /// True if there is no storage for a further row.
    full: bool,
}

impl Growth {
    pub(super) fn new(shim: &Shim) -> Self {
        let mut growth = Self {
            interval: Duration::ZERO,
            next: None,
            rows: FxHashMap::default(),
            samples: 0,
            began_ns: [0; GROWTH_LEVELS.len()],
            full: false,
        };
        // The block of the times comes first.
        growth.full = shim.ledger.growth_points.append(&[0; GROWTH_BLOCK]).is_none();
        growth.apply_settings(shim);
        growth
    }

    /// Applies the present interval.
    pub(super) fn apply_settings(&mut self, shim: &Shim) {
        let interval = Duration::from_nanos(shim.in_force.all().growth_interval);
        if interval != self.interval {
            self.interval = interval;
            self.next = (!interval.is_zero()).then(Instant::now);
        }
    }

    /// Returns when the next sample is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Takes a sample if one is due.
    pub(super) fn sample_if_due(&mut self, shim: &Shim, files: &mut ProcFiles) {
        if self.next.is_some_and(|next| next <= Instant::now()) {
            self.sample(shim, files);
        }
    }

    /// Takes a sample.
    pub(super) fn sample(&mut self, shim: &Shim, files: &mut ProcFiles) {
        // The thread's working time counts, not the elapsed time. So samples on a busy machine are late, but not rarer.
        let (begin, worked) = (Instant::now(), clock::worked_ns());
        let now_ns = clock::precise_ns();
        let strangers = self.look(shim, files);
        self.admit(shim, strangers, now_ns);
        self.write(shim, now_ns);
        self.note_made(shim, now_ns);
        self.samples += 1;
        // If a stopped process missed samples, they are not taken later.
        let took = Duration::from_nanos(clock::worked_ns().saturating_sub(worked));
        let rest = self.interval.max(took * REST);
        self.next = (!self.interval.is_zero()).then(|| begin + rest);
    }

    /// Adds up the live bytes of each key: in its row, or, for keys without a row, in the returned map.
    fn look(&mut self, shim: &Shim, files: &mut ProcFiles) -> FxHashMap<Key, Stranger> {
        let (rows, mut strangers) = (&mut self.rows, FxHashMap::<Key, Stranger>::default());
        rows.values_mut().for_each(|row| row.now = Held::default());
        let mut add = |key: Key, bytes, time_ns| match rows.get_mut(&key) {
            Some(row) => row.now.add(bytes),
            None => {
                let stranger = strangers.entry(key).or_default();
                stranger.live.add(bytes);
                stranger.newest_ns = stranger.newest_ns.max(time_ns);
            }
        };
        let ledger = &shim.ledger;
        ledger.allocs.each(|alloc| {
            keys_of_alloc(alloc).for_each(|key| add(key, alloc.bytes, alloc.time_ns));
        });
        ledger.graphs.each(|graph| add(key_of_graph(graph), graph.held_bytes(), graph.time_ns));
        ledger.execs.each(|exec| keys_of_exec(exec).for_each(|key| add(key, exec.held_bytes(), exec.time_ns)));
        ledger.streams.each(|stream| add(key_of_stream(stream), 0, stream.time_ns));
        ledger.contexts.each(|context| {
            key_of_context(context).into_iter().for_each(|key| add(key, 0, context.time_ns));
        });
        // gpumem's own memory is never attributed to the program.
        add((GrowthKind::Heap, 0), files.resident().1.saturating_sub(own::bytes()), 0);
        strangers
    }

    /// Gives rows to the keys without one, largest first. If there is no more room, they get the rows of the smallest
    /// keys.
    fn admit(&mut self, shim: &Shim, strangers: FxHashMap<Key, Stranger>, now_ns: u64) {
        if strangers.is_empty() {
            return;
        }
        let mut strangers: Vec<_> = strangers.into_iter().collect();
        strangers.sort_unstable_by_key(|(key, stranger)| (std::cmp::Reverse(stranger.live.bytes), *key));
        let mut strangers = strangers.into_iter();
        while let Some((key, stranger)) = strangers.next() {
            if let Some(slot) = self.fresh(shim) {
                self.give(shim, slot, key, stranger, now_ns);
                continue;
            }
            let mut least: Vec<_> = self.rows.iter().map(|(key, row)| (row.now.bytes, *key)).collect();
            least.sort_unstable();
            let rest = std::iter::once((key, stranger)).chain(strangers.by_ref());
            let pairs =
                rest.zip(least).take_while(|((_, stranger), (least, _))| stranger.live.bytes > least * TAKES_OVER);
            for ((key, stranger), (_, old)) in pairs {
                let Some(row) = self.rows.remove(&old) else { continue };
                shim.ledger.growth.hide(row.slot);
                self.give(shim, row.slot, key, stranger, now_ns);
            }
            return;
        }
    }

    /// Returns a row that no key had before.
    fn fresh(&mut self, shim: &Shim) -> Option<u32> {
        if self.full || self.rows.len() as u64 >= shim.ledger.growth.capacity() {
            return None;
        }
        // Rows are never freed, so the block behind the last one belongs to the next slot.
        let slot = shim.ledger.growth_points.append(&[0; GROWTH_BLOCK]).and_then(|_| shim.ledger.growth.take());
        self.full = slot.is_none();
        slot
    }

    /// Gives a row to a key. The key may have made its allocations long ago, so the row starts with the time of the
    /// newest one.
    fn give(&mut self, shim: &Shim, slot: u32, key: Key, stranger: Stranger, now_ns: u64) {
        let (kind, key_of, made_ns) = (key.0 as u8, key.1, stranger.newest_ns);
        shim.ledger
            .growth
            .write(slot, GrowthSlot { kind, key: key_of, since_ns: now_ns, made_ns, ..Default::default() });
        let now = stranger.live;
        self.rows.insert(
            key,
            GrowthRow { slot, now, peak: 0, made_now: 0, made: None, least: [now; GROWTH_LEVELS.len() - 1] },
        );
    }

    /// Writes the points that end with this sample.
    fn write(&mut self, shim: &Shim, now_ns: u64) {
        let mut first = 0;
        for (number, level) in GROWTH_LEVELS.iter().enumerate() {
            let begins = self.samples.is_multiple_of(level.every);
            if begins {
                self.began_ns[number] = now_ns;
            }
            let coarse = number.checked_sub(1);
            if let Some(coarse) = coarse {
                for row in self.rows.values_mut() {
                    let least = &mut row.least[coarse];
                    if begins || row.now < *least {
                        *least = row.now;
                    }
                }
            }
            if self.samples % level.every == level.every - 1 {
                let place = first + (self.samples / level.every) as usize % level.points;
                self.write_point(shim, place, self.began_ns[number], coarse);
            }
            first += level.points;
        }
        for row in self.rows.values_mut() {
            let field = |offset| shim.ledger.growth.field(row.slot, offset);
            field(offset_of!(GrowthSlot, bytes)).store(row.now.bytes, Relaxed);
            field(offset_of!(GrowthSlot, count)).store(row.now.count, Relaxed);
            if row.now.bytes > row.peak {
                row.peak = row.now.bytes;
                field(offset_of!(GrowthSlot, peak_bytes)).store(row.peak, Relaxed);
                field(offset_of!(GrowthSlot, peak_ns)).store(now_ns, Relaxed);
            }
        }
    }

    /// Notes which call sites made something since the last sample.
    fn note_made(&mut self, shim: &Shim, now_ns: u64) {
        const MEMORY: [usize; 1] = [offset_of!(StackSlot, allocs)];
        const GRAPHS: [usize; 2] = [offset_of!(StackSlot, graphs), offset_of!(StackSlot, execs)];
        for (key, row) in &mut self.rows {
            row.made_now = match key.0 {
                GrowthKind::Site => shim.ledger.made_at(key.1 as StackRef, &MEMORY),
                GrowthKind::Graphs => shim.ledger.made_at(key.1 as StackRef, &GRAPHS),
                _ => 0,
            };
        }
        // The places are read after the records. Counts that move from a place to a record meanwhile are missed this
        // time, and never counted twice.
        fence(Acquire);
        for (stack, allocs) in shim.ledger.in_places() {
            if let Some(row) = self.rows.get_mut(&(GrowthKind::Site, stack.into())) {
                row.made_now = row.made_now.wrapping_add(allocs);
            }
        }
        for row in self.rows.values_mut().filter(|row| row.made.is_none_or(|made| made < row.made_now)) {
            // Things made before the row existed do not count.
            let Some(_) = row.made.replace(row.made_now) else { continue };
            shim.ledger.growth.field(row.slot, offset_of!(GrowthSlot, made_ns)).store(now_ns, Relaxed);
        }
    }

    /// Writes one point of every row. While it is being written the point has no time. Its time is stored last.
    fn write_point(&self, shim: &Shim, place: usize, time_ns: u64, coarse: Option<usize>) {
        let points = &shim.ledger.growth_points;
        if self.full && self.rows.is_empty() {
            return;
        }
        points.at(place).store(0, Relaxed);
        fence(Release);
        for row in self.rows.values() {
            let held = coarse.map_or(row.now, |level| row.least[level]);
            let block = (row.slot as usize + 1) * GROWTH_BLOCK;
            points.at(block + place).store(held.bytes, Relaxed);
            points.at(block + GROWTH_POINTS + place).store(held.count, Relaxed);
        }
        points.at(place).store(time_ns, Release);
    }
}
