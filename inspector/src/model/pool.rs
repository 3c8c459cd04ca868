//! The pool: its state, its idle memory, its work, and memory placed elsewhere.

use super::sites::Sites;
use super::{Ledger, sums};
use crate::symbols::Frame;
use gpumem_wire::counters::{self as c};
use gpumem_wire::kinds::{EventKind, PoolState, Space};
use gpumem_wire::layout::{ContextSlot, EventSlot};
use gpumem_wire::settings::{FreeMode, Settings};
use serde::Serialize;

/// The pool of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pool {
    /// `on`: it serves a context; `off`; `unused`: no request has reached it so far.
    pub state: &'static str,
    /// The reason why it is not on, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The event that a free waits for: `strict`, `deferred`.
    pub free: &'static str,
    /// The limits in force. `None`: a quarter of each device; 0 ns: no time limit.
    pub idle_max_bytes: Option<u64>,
    pub decay_ns: u64,
    /// Sum over all existing contexts.
    pub idle_bytes: u64,
    pub idle_blocks: u64,
    pub spilled_live_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub passed: u64,
    pub kept: u64,
    pub released: u64,
    pub released_bytes: u64,
    pub barriers: u64,
    pub barriers_saved: u64,
    pub flushes: u64,
    pub trims: u64,
    pub spills: u64,
    pub spilled_bytes: u64,
    pub limit_refusals: u64,
    pub press_refusals: u64,
    pub freed_in_graph: u64,
    pub guard: Guard,
    /// Memory of gpumem's own kernels, streams and buffers for the guard and for searches: on the device, and pinned on
    /// the host.
    pub own_device_bytes: u64,
    pub own_pinned_bytes: u64,
    pub in_contexts: Vec<OfContext>,
    /// Bytes stranded now, by the counters, and the reported call sites, each as in its last report.
    pub stranded_bytes: u64,
    pub stranded: Vec<StrandedSite>,
}

/// Work of `GPUMEM_GUARD`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Guard {
    pub on: bool,
    /// Memory that the guard takes beyond the program's requests: zones behind allocations, and freed memory in
    /// quarantine.
    pub bytes: u64,
    /// Ranges that were read, and those that could not be read.
    pub checks: u64,
    pub unchecked: u64,
    /// Allocations that are not watched.
    pub without: u64,
    pub written_outside: u64,
    pub written_after_free: u64,
    pub freed_graph_launches: u64,
}

/// One context.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct OfContext {
    pub context: u16,
    pub device: u32,
    /// A [`PoolState`], and the reason if it is not on.
    pub state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    pub live_bytes: u64,
    pub peak_bytes: u64,
    pub idle_bytes: u64,
    pub idle_peak_bytes: u64,
    pub idle_blocks: u64,
    /// Memory limit of the process on the device. 0: no limit.
    pub limit_bytes: u64,
    pub spilled_live_bytes: u64,
}

/// A call site whose requests grow slowly while older buffers stay unused.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StrandedSite {
    pub site: String,
    /// Bytes stranded at the last report, `last_age_ns` ago.
    pub bytes: u64,
    pub blocks: u64,
    /// Reports still in the ring of events, and the age of the last one.
    pub times: u64,
    pub last_age_ns: u64,
    /// Bytes of the site that are stranded now.
    #[serde(skip)]
    pub now_bytes: u64,
    pub stack: Vec<Frame>,
}

/// A call site that was reported for stranded memory.
pub(crate) struct Reported<'a> {
    pub last: &'a EventSlot,
    times: u64,
    pub now_bytes: u64,
}

/// Returns the pool of a ledger's process.
pub(crate) fn of(ledger: &Ledger) -> Pool {
    let counter = |index| ledger.snapshot.counter(index);
    let settings = ledger.settings();
    let mut pool = Pool {
        free: match settings.free {
            FreeMode::Strict => "strict",
            FreeMode::Deferred => "deferred",
        },
        idle_max_bytes: settings.pool_max,
        decay_ns: settings.pool_decay_ns(),
        hits: counter(c::POOL_HITS),
        misses: counter(c::POOL_MISSES),
        passed: counter(c::POOL_PASSED),
        kept: counter(c::POOL_KEPT),
        released: counter(c::POOL_RELEASED),
        released_bytes: counter(c::POOL_RELEASED_BYTES),
        barriers: counter(c::POOL_BARRIERS),
        barriers_saved: counter(c::POOL_BARRIERS_FREE),
        flushes: counter(c::POOL_FLUSHES),
        trims: counter(c::TRIMS),
        spills: counter(c::SPILLS),
        spilled_bytes: counter(c::SPILLED_BYTES),
        limit_refusals: counter(c::LIMIT_REFUSALS),
        press_refusals: counter(c::PRESS_REFUSALS),
        freed_in_graph: counter(c::FREED_IN_GRAPH),
        guard: Guard {
            on: settings.guard != gpumem_wire::settings::Guard::Off,
            bytes: counter(c::GUARD_BYTES_ADDED).saturating_sub(counter(c::GUARD_BYTES_REMOVED)),
            checks: counter(c::GUARD_CHECKS),
            unchecked: counter(c::GUARD_UNCHECKED),
            without: counter(c::GUARD_WITHOUT),
            written_outside: counter(c::GUARD_OUTSIDE),
            written_after_free: counter(c::GUARD_FREED),
            freed_graph_launches: counter(c::GUARD_GRAPHS),
        },
        own_device_bytes: counter(c::OWN_DEVICE_ADDED).saturating_sub(counter(c::OWN_DEVICE_REMOVED)),
        own_pinned_bytes: counter(c::OWN_PINNED_ADDED).saturating_sub(counter(c::OWN_PINNED_REMOVED)),
        in_contexts: contexts(ledger),
        stranded_bytes: stranded_bytes(ledger),
        stranded: stranded(ledger),
        ..Pool::default()
    };
    for context in &pool.in_contexts {
        pool.idle_bytes = pool.idle_bytes.saturating_add(context.idle_bytes);
        pool.idle_blocks = pool.idle_blocks.saturating_add(context.idle_blocks);
        pool.spilled_live_bytes = pool.spilled_live_bytes.saturating_add(context.spilled_live_bytes);
    }
    (pool.state, pool.reason) = on(ledger, settings, &pool);
    pool
}

/// Returns the contexts that exist.
fn contexts(ledger: &Ledger) -> Vec<OfContext> {
    // A context's total lacks live bytes that threads have not added yet; the list of allocations has them.
    let on_device = ledger.snapshot.allocs.iter().filter(|alloc| alloc.space() == Space::Device);
    let live = sums::by(on_device.map(|alloc| (alloc.context, alloc.bytes)));
    let there = ledger.snapshot.contexts.iter().filter(|(_, slot)| slot.gone_ns == 0);
    let row = |(&context, slot): (&u16, &ContextSlot)| {
        let state = slot.pool_state();
        let why = state.filter(|&state| !matches!(state, PoolState::On | PoolState::Unused));
        OfContext {
            context,
            device: slot.device,
            state: state.map_or("unknown", PoolState::name),
            reason: why.map(|state| state.why().to_owned()).unwrap_or_default(),
            live_bytes: live.get(&context).copied().unwrap_or(0),
            peak_bytes: slot.peak_bytes,
            idle_bytes: slot.idle_bytes,
            idle_peak_bytes: slot.idle_peak_bytes,
            idle_blocks: slot.idle_blocks,
            limit_bytes: slot.limit_bytes,
            spilled_live_bytes: slot.spilled_bytes,
        }
    };
    let mut rows: Vec<_> = there.map(row).collect();
    rows.sort_by_key(|row| row.context);
    rows
}

/// Returns the state of the pool, with the reason if it is not on.
fn on(ledger: &Ledger, settings: &Settings, pool: &Pool) -> (&'static str, String) {
    let contexts = &pool.in_contexts;
    if !settings.pool {
        return ("off", "GPUMEM_POOL=0".into());
    }
    if let Some(reason) = ledger.record_only().or_else(|| ledger.partial().filter(|_| !contexts.is_empty())) {
        return ("off", reason);
    }
    let served = contexts.iter().any(|context| context.state == PoolState::On.name());
    match contexts.iter().find(|context| !context.reason.is_empty()) {
        _ if served => ("on", String::new()),
        Some(first) => ("off", first.reason.clone()),
        None if pool.hits > 0 || pool.misses > 0 => ("on", String::new()),
        None => ("unused", PoolState::Unused.why().into()),
    }
}

/// Returns the unused bytes at call sites that ask for more.
fn stranded_bytes(ledger: &Ledger) -> u64 {
    ledger.snapshot.counter(c::STRANDED_ADDED).saturating_sub(ledger.snapshot.counter(c::STRANDED_REMOVED))
}

/// Returns the reported sites, most bytes first. A site's own bytes are those of its last report; the sum over all
/// sites is the present one.
pub(crate) fn stranded_now(ledger: &Ledger) -> Vec<Reported<'_>> {
    let mut all: Vec<Reported> = Vec::new();
    for event in ledger.snapshot.events.iter().filter(|event| event.kind == EventKind::StrandedSite as u8) {
        match all.iter_mut().find(|known| known.last.stack == event.stack) {
            Some(known) => (known.last, known.times) = (event, known.times + 1),
            None => all.push(Reported { last: event, times: 1, now_bytes: 0 }),
        }
    }
    all.sort_by_key(|reported| std::cmp::Reverse(reported.last.a));
    let mut left = stranded_bytes(ledger);
    for reported in &mut all {
        reported.now_bytes = reported.last.a.min(left);
        left -= reported.now_bytes;
    }
    all
}

fn stranded(ledger: &Ledger) -> Vec<StrandedSite> {
    let reported = stranded_now(ledger);
    if reported.is_empty() {
        return Vec::new();
    }
    let sites = Sites::of_events(ledger);
    let row = |Reported { last, times, now_bytes }: Reported| StrandedSite {
        site: sites.name(last.stack).to_string(),
        bytes: last.a,
        blocks: last.b,
        times,
        last_age_ns: ledger.age(last.time_ns),
        now_bytes,
        stack: ledger.frames(last.stack),
    };
    reported.into_iter().map(row).collect()
}

impl Pool {
    /// True if there is more to show than that the pool is off or unused.
    pub(crate) fn seen(&self) -> bool {
        let did = [self.hits, self.misses, self.passed, self.kept, self.spills, self.limit_refusals];
        self.state == "on" || did.iter().any(|&n| n > 0)
    }

    /// Contexts that the pool does not serve, for a reason of their own.
    pub(crate) fn not_served(&self) -> impl Iterator<Item = &OfContext> {
        self.in_contexts.iter().filter(|context| !context.reason.is_empty())
    }
}
