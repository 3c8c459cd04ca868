//! The ledger: the file in which the shim keeps its records, so that other processes can read them at any time.
//!
//! It is memory-mapped. A reader needs no answer from the process, and can read after the process is gone.
//!
//! * [`file`](mod@file): makes the file and grows its tables. [`directory`]: the ledgers' directory. [`sweep`]: removes
//!   the files of dead processes.
//! * [`storage`]: files that can be touched without ending the program.
//! * [`table`]: fixed slots, free lists ([`stocked`]), growth. [`ring`], [`words`]: the same without free lists. [`slots`]: addresses
//!   of slots. [`mod@publish`]: writes and reads one slot. None of these knows what a slot means.
//! * [`text`]: interned strings.
//! * This file: the tables and their sizes.

pub(crate) mod directory;
pub(crate) mod file;
mod publish;
mod ring;
mod slots;
mod stocked;
pub(crate) mod storage;
mod sweep;
pub(crate) mod table;
pub(crate) mod text;
mod words;

mod atomic {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use file::{Backing, Full, Plan};
use gpumem_wire::counters;
use gpumem_wire::layout::*;
use gpumem_wire::place;
use ring::Ring;
use slots::Slots;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use table::{NO_SLOT, Table};
use text::Texts;
use words::Words;

/// The header's fields that change after creation, at their offsets in [`Header`].
pub(crate) struct LiveHeader(*mut u8);

// SAFETY: the header page belongs to no thread, and is mapped for as long as the ledger is.
unsafe impl Send for LiveHeader {}
// SAFETY: the fields that `LiveHeader` gives access to are atomics, and nothing else hands out a reference to the
// header.
unsafe impl Sync for LiveHeader {}

macro_rules! live_fields {
    ($($name:ident: $atomic:ty;)*) => { impl LiveHeader { $(
        pub(crate) fn $name(&self) -> &$atomic {
            // SAFETY: the header page is mapped for the life of the ledger and aligned to pages.
            // Rows below give each field the atomic of its size.
            unsafe { &*self.0.add(std::mem::offset_of!(Header, $name)).cast() }
        }
    )* } };
}
live_fields! {
    heartbeat_ns: AtomicU64;
    parking: AtomicU64;
    parking_ns: AtomicU64;
    parked_bytes: AtomicU64;
    parked_total_ns: AtomicU64;
    idle_since_ns: AtomicU64;
    share: AtomicU32;
    stack_depth: AtomicU32;
    exited_ns: AtomicU64;
    state: AtomicU32;
    mode: AtomicU32;
    mode_reason: AtomicU32;
    interception: AtomicU32;
    interception_reason: AtomicU32;
    driver_version: AtomicU32;
    doors: AtomicU32;
    exe: AtomicU32;
    cmdline: AtomicU32;
    shim_version: AtomicU32;
    settings: AtomicU32;
    complaints: AtomicU32;
    changes: AtomicU32;
    decided: AtomicU32;
    unknown: AtomicU32;
    python: AtomicU32;
    group: AtomicU32;
}

/// All tables of a process.
pub(crate) struct Ledger {
    backing: &'static Backing,
    header: LiveHeader,
    pub allocs: Table<AllocSlot>,
    pub shared: Table<SharedSlot>,
    pub stacks: Table<StackSlot>,
    pub codes: Table<CodeSlot>,
    pub frames: Words,
    pub texts: Texts,
    pub modules: Table<ModuleSlot>,
    pub graphs: Table<GraphSlot>,
    pub execs: Table<ExecSlot>,
    pub contexts: Table<ContextSlot>,
    pub streams: Table<StreamSlot>,
    pub events: Ring<EventSlot>,
    pub samples: Ring<SampleSlot>,
    pub threads: Table<ThreadSlot>,
    pub growth: Table<GrowthSlot>,
    pub growth_points: Words,
    counters: Words,
    pub path: PathBuf,
    /// One sentence for each better place, saying why the ledger could not lie there.
    pub passed_over: Vec<String>,
}

/// Counters of exec launches. Their addresses are kept apart from the tables, so that a launch reads one cache line to
/// find them, not three on three pages.
pub(crate) struct Launches {
    counters: Slots<u64>,
    execs: Slots<ExecSlot>,
}

impl Launches {
    /// Prefetches the counters of a launch that begins, while the library does the launch.
    #[inline(always)]
    pub(crate) fn begins(&self, slot: u32) {
        #[cfg(target_arch = "x86_64")]
        if slot != NO_SLOT {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let launches = self.execs.field(slot, offset_of!(ExecSlot, launches));
            // SAFETY: a prefetch is a hint: it reads nothing that the program can see, and faults
            // at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(launches).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = slot;
    }

    /// Counts a finished launch, by the thread of this shard.
    #[inline(always)]
    pub(crate) fn done(&self, shard: usize, slot: u32, at_ns: u64) {
        count(&self.counters, shard, &[(counters::LAUNCHES, 1)]);
        if slot != NO_SLOT {
            let field = |offset| self.execs.field(slot, offset);
            field(offset_of!(ExecSlot, launches)).fetch_add(1, Relaxed);
            field(offset_of!(ExecSlot, last_launch_ns)).store(at_ns, Relaxed);
        }
    }
}

/// Adds to counters, in the shard of the calling thread.
#[inline(always)]
fn count(counters: &Slots<u64>, shard: usize, counts: &[(usize, u64)]) {
    // Each of the first threads has its own shard, which needs no atomic addition. Later threads share the rest.
    const OWN: usize = counters::OWN_SHARDS;
    const { assert!(OWN <= crate::process::threads::OWN) };
    if shard < OWN {
        let first = shard * counters::PER_SHARD;
        for &(counter, n) in counts {
            let at = counters.at(first + counter);
            at.store(at.load(Relaxed).wrapping_add(n), Relaxed);
        }
    } else {
        count_shared(counters, shard, counts);
    }
}

/// As [`count`], for a shard that several threads share.
#[cold]
fn count_shared(counters: &Slots<u64>, shard: usize, counts: &[(usize, u64)]) {
    let first = (counters::OWN_SHARDS + shard % (counters::SHARDS - counters::OWN_SHARDS)) * counters::PER_SHARD;
    for &(counter, n) in counts {
        counters.at(first + counter).fetch_add(n, Relaxed);
    }
}

/// Maximum share of the ledger per table, in percent. Live allocations are the part that grows; a stack of 32 frames
/// takes 256 bytes of frames and 64 of its own.
const SHARES: &[(TableKind, u64)] = &[
    (TableKind::Allocs, 50),
    (TableKind::Frames, 16),
    (TableKind::Stacks, 4),
    (TableKind::Strings, 4),
    (TableKind::Modules, 2),
    (TableKind::Graphs, 8),
    (TableKind::Execs, 12),
    (TableKind::Contexts, 1),
    (TableKind::Streams, 1),
    (TableKind::Threads, 1),
    (TableKind::Codes, 1),
];

/// Number of samples kept: at one a second, about 17 minutes.
const SAMPLES: u64 = 1024;

/// Bytes of a growth row with its points.
const GROWTH_ROW_BYTES: u64 = (size_of::<GrowthSlot>() + GROWTH_BLOCK * 8) as u64;
/// The growth rows get this share of the ledger, but at least this number of rows.
const GROWTH_SHARE: u64 = 128;
const GROWTH_FEWEST: u64 = 8;
/// Rows of shared memory get at most this share of the ledger.
const SHARED_SHARE: u64 = 128;

impl Ledger {
    /// Makes the ledger of this process.
    ///
    /// # Errors
    /// A sentence for the user if the directory or the file cannot be made.
    pub(crate) fn create(settings: &gpumem_wire::settings::Settings) -> Result<Self, String> {
        let counters = (counters::SHARDS * counters::PER_SHARD) as u64;
        let ring_bytes = settings.events * size_of::<EventSlot>() as u64 + SAMPLES * size_of::<SampleSlot>() as u64;
        let growth_rows = (settings.ledger_max / GROWTH_SHARE / GROWTH_ROW_BYTES).clamp(GROWTH_FEWEST, GROWTH_ROWS);
        let shared_rows = (settings.ledger_max / SHARED_SHARE / size_of::<SharedSlot>() as u64).min(SHARED_ROWS);
        let shared_bytes = shared_rows * size_of::<SharedSlot>() as u64;
        let fixed = HEADER_BYTES as u64 + counters * 8 + ring_bytes + growth_rows * GROWTH_ROW_BYTES + shared_bytes;
        let shared = settings.ledger_max.saturating_sub(fixed).max(512 << 10);
        let mut sizes: Vec<(TableKind, u64)> = SHARES
            .iter()
            .map(|&(kind, percent)| {
                let slot = TableKind::from_u32(kind as u32).map_or(1, |(_, bytes)| bytes as u64);
                let slots = shared / 100 * percent / slot;
                // References to contexts and streams have 16 bits; 0 means none.
                let few = matches!(kind, TableKind::Contexts | TableKind::Streams);
                (kind, if few { slots.min(u64::from(ContextRef::MAX) - 1) } else { slots })
            })
            .collect();
        sizes.push((TableKind::Events, settings.events));
        sizes.push((TableKind::Samples, SAMPLES));
        sizes.push((TableKind::Counters, counters));
        sizes.push((TableKind::Growth, growth_rows));
        sizes.push((TableKind::Shared, shared_rows));
        sizes.push((TableKind::GrowthPoints, (growth_rows + 1) * GROWTH_BLOCK as u64));
        // SAFETY: geteuid takes no arguments and cannot fail.
        let uid = unsafe { libc::geteuid() };
        let plan = Plan { id: file::this_process()?, uid, stack_depth: settings.stacks, sizes: &sizes };
        let runtime_dir = place::runtime_dir(uid);
        let mut refusals = Vec::new();
        for dir in place::directories(settings.dir.as_deref(), runtime_dir.as_deref(), uid) {
            match Self::create_in(&plan, &dir, settings.dir.is_some(), settings.control) {
                Ok(ledger) => return Ok(Self { passed_over: refusals, ..ledger }),
                Err(why) => refusals.push(why),
            }
        }
        Err(refusals.join("; "))
    }

    /// Makes the ledger in a directory. `swept_later`: a control thread will sweep the directory.
    fn create_in(plan: &Plan<'_>, dir: &Path, named: bool, swept_later: bool) -> Result<Self, String> {
        directory::make(dir, plan.uid, named)?;
        if !swept_later || sweep::is_overdue(dir) {
            sweep::sweep(dir);
        }
        let (backing, path) = Backing::create(plan, dir, named)?;
        let backing: &'static Backing = Box::leak(Box::new(backing));
        Self::lay_out(backing, &path).map_err(|_| {
            // SAFETY: the box was leaked above. `lay_out` failed, and has dropped the tables that
            // referred to it.
            unsafe { Backing::discard(backing, &path) };
            format!("{}: no space for the ledger's tables", path.display())
        })
    }

    /// Removes some of the files that dead processes left beside this ledger. Returns true if there may be more.
    pub(crate) fn sweep(&self) -> bool {
        self.path.parent().is_some_and(sweep::sweep)
    }

    fn lay_out(backing: &'static Backing, path: &Path) -> Result<Self, Full> {
        for kind in [TableKind::Allocs, TableKind::Stacks, TableKind::Frames, TableKind::Strings] {
            backing.table(kind).2.grow(1)?;
        }
        Ok(Self {
            backing,
            header: LiveHeader(backing.base()),
            allocs: Table::new(backing),
            shared: Table::new(backing),
            stacks: Table::new(backing),
            codes: Table::new(backing),
            frames: Words::new(backing, TableKind::Frames),
            texts: Texts::new(backing),
            modules: Table::new(backing),
            graphs: Table::new(backing),
            execs: Table::new(backing),
            contexts: Table::new(backing),
            streams: Table::new(backing),
            events: Ring::new(backing)?,
            samples: Ring::new(backing)?,
            threads: Table::new(backing),
            growth: Table::new(backing),
            growth_points: Words::new(backing, TableKind::GrowthPoints),
            counters: Words::new(backing, TableKind::Counters).filled()?,
            path: path.to_owned(),
            passed_over: Vec::new(),
        })
    }

    /// Frees the file and everything taken for it: nothing will be recorded.
    pub(crate) fn discard(self) {
        let (backing, path) = (std::ptr::from_ref(self.backing), self.path.clone());
        drop(self);
        // SAFETY: `create_in` leaked the box. Only this ledger's tables refer to it, and they are
        // dropped with `self`.
        unsafe { Backing::discard(backing, &path) };
    }

    /// Returns the header's changing fields.
    pub(crate) fn header(&self) -> &LiveHeader {
        &self.header
    }

    /// Adds to a counter in the calling thread's shard, whose number `threads::shard` gives.
    #[inline(always)]
    pub(crate) fn count(&self, shard: usize, counter: usize, n: u64) {
        self.count_all(shard, &[(counter, n)]);
    }

    /// As [`Ledger::count`], for several counters.
    #[inline(always)]
    pub(crate) fn count_all(&self, shard: usize, counts: &[(usize, u64)]) {
        count(&self.counters.words(), shard, counts);
    }

    /// Returns the counters of launches.
    pub(crate) fn launches(&self) -> Launches {
        Launches { counters: self.counters.words(), execs: self.execs.slots() }
    }

    /// Adds an allocation to its stack's sum, in the calling thread's shard ([`counters::SITES`]).
    #[inline(always)]
    pub(crate) fn allocated_at(&self, shard: usize, stack: StackRef, bytes: u64) {
        if shard >= counters::OWN_SHARDS {
            return self.add_to_stack(stack, 1, bytes);
        }
        let way = stack as usize % counters::SITE_WAYS;
        let at = shard * counters::PER_SHARD + counters::SITES + 2 * way;
        let (site, of_site) = (self.counters.at(at), self.counters.at(at + 1));
        let known = site.load(Relaxed);
        // The same stack, with room for one more.
        if known ^ counters::site(stack, 0) < u64::from(u32::MAX) {
            site.store(known + 1, Relaxed);
            of_site.store(of_site.load(Relaxed).wrapping_add(bytes), Relaxed);
        } else {
            self.next_stack(site, of_site, stack, bytes);
        }
    }

    /// Adds the sum of a place's stack to the stack's record, and gives the place to another stack.
    #[cold]
    fn next_stack(&self, site: &AtomicU64, of_site: &AtomicU64, stack: StackRef, bytes: u64) {
        let (known, sum) = (site.load(Relaxed), of_site.load(Relaxed));
        // With 0 here, no reader takes the place's bytes for the new stack's.
        site.store(0, Relaxed);
        of_site.store(bytes, Relaxed);
        site.store(counters::site(stack, 1), Relaxed);
        self.add_to_stack((known >> 32) as StackRef, known & u64::from(u32::MAX), sum);
    }

    fn add_to_stack(&self, stack: StackRef, allocs: u64, bytes: u64) {
        // The file may have been damaged by another process.
        let Some(index) = stack.checked_sub(1).filter(|&index| u64::from(index) < self.stacks.handed_out()) else {
            return;
        };
        self.stacks.field(index, offset_of!(StackSlot, allocs)).fetch_add(allocs, Relaxed);
        self.stacks.field(index, offset_of!(StackSlot, alloc_bytes)).fetch_add(bytes, Relaxed);
    }

    /// Returns how often something was made at a stack: allocations without those still counted in threads' places, or
    /// graphs and execs.
    pub(crate) fn made_at(&self, stack: StackRef, made: &[usize]) -> u64 {
        let Some(index) = stack.checked_sub(1).filter(|&index| u64::from(index) < self.stacks.handed_out()) else {
            return 0;
        };
        made.iter().fold(0, |sum: u64, &offset| sum.wrapping_add(self.stacks.field(index, offset).load(Relaxed)))
    }

    /// Returns the allocations counted in threads' places, by stack.
    pub(crate) fn in_places(&self) -> impl Iterator<Item = (StackRef, u64)> {
        let places = (0..counters::OWN_SHARDS).flat_map(|shard| {
            let first = shard * counters::PER_SHARD + counters::SITES;
            (0..counters::SITE_WAYS).map(move |way| first + 2 * way)
        });
        let sites = places.map(|at| self.counters.at(at).load(Relaxed)).filter(|&site| site != 0);
        sites.map(|site| ((site >> 32) as StackRef, site & u64::from(u32::MAX)))
    }

    /// Returns the sum of a counter over all shards.
    pub(crate) fn counter(&self, counter: usize) -> u64 {
        (0..counters::SHARDS).fold(0_u64, |sum, shard| {
            sum.wrapping_add(self.counters.at(shard * counters::PER_SHARD + counter).load(Relaxed))
        })
    }
}
