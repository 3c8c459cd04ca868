//! The report of a request for which nothing is left to try: an event and the largest holders, in the ledger and on
//! stderr.
//!
//! A program may ask in a loop. So holders are searched only once in a while, and named again only if they have
//! changed.

use crate::backend;
use crate::call::Call;
use crate::group::{Member, Used};
use crate::pool;
use crate::process::clock;
use crate::process::stderr::say;
use crate::process::wiped::{Place, Word};
use crate::records;
use crate::records::site_text::Places;
use crate::shim::Shim;
use crate::stranded;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, Severity, Space, Vendor};
use gpumem_wire::layout::{ContextRef, StackRef};
use gpumem_wire::units;
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Mutex;

/// Least time between two searches for holders, ns.
const EVERY_NS: u64 = 10_000_000_000;
/// A program that retries asks again within this time, ns; PyTorch waits for the device in between.
const RETRY_NS: u64 = 2_000_000_000;
/// The most call sites that are named.
const NAMED: usize = 5;

// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const SAID: Place<Mutex<LastReport>> = unsafe { Place::new(Word::OutOfMemory) };

/// The last report, and the failure that was not reported because the program was expected to try again.
#[derive(Default)]
struct LastReport {
    looked_ns: u64,
    holders: Option<Vec<Holder>>,
    /// Thread, bytes and time.
    first_try: Option<(u32, u64, u64)>,
}

/// Memory that a call site holds.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Holder {
    stack: StackRef,
    bytes: u64,
    blocks: u64,
}

/// A device that ran out of memory.
struct FullDevice {
    context: ContextRef,
    device: u32,
    live: u64,
    idle: u64,
    /// Free and total bytes, if the device could be asked.
    free: Option<(u64, u64)>,
    total: u64,
    limit: u64,
    /// The group of this process, and the group's use of the device.
    group: Option<(&'static str, Used)>,
}

/// Reports that the program is told that there is no device memory for its request.
#[cold]
pub(super) fn ran_out(shim: &'static Shim, call: &Call, kind: AllocKind, bytes: u64, stack: StackRef) {
    // The request was refused so that the program frees memory and asks again. The device is not full.
    if stranded::pressed(shim) {
        return;
    }
    let context = context_unasked(shim, call.vendor);
    let Some(full) = full(shim, call.vendor, context) else { return };
    shim.event_at(EventKind::OutOfMemory, (bytes, full.live), stack, context);
    // No device is that large, so the holders do not matter.
    if bytes > full.total {
        return;
    }
    let Some(Ok(mut last)) = SAID.get_or_default().map(Mutex::try_lock) else { return };
    if begins_try(shim, &mut last, bytes, stack) {
        return;
    }
    let now = clock::now_ns();
    if last.looked_ns != 0 && now.saturating_sub(last.looked_ns) < EVERY_NS {
        return;
    }
    last.looked_ns = now;
    let holders = top_holders(shim, call.vendor, full.device);
    if last.holders.as_ref() == Some(&holders) {
        return;
    }
    for holder in &holders {
        shim.event_at(EventKind::TopHolder, (holder.bytes, holder.blocks), holder.stack, full.context);
    }
    // Recorded for later readers, because the group's file may have changed by then.
    if let Some((name, used)) = full.group.as_ref().filter(|(_, used)| used.all.saturating_add(bytes) > used.limit) {
        let lines: Vec<String> = std::iter::once(of_group(name, used)).chain(of_members(name, used)).collect();
        shim.message(Severity::Warning, &format!("out of memory at GPUMEM_LIMIT_GROUP: {}", lines.join("; ")));
    }
    if shim.in_force.oom_report() && !shim.in_force.quiet() {
        say(&report(shim, kind, bytes, &full, &holders));
    }
    last.holders = Some(holders);
}

/// Remembers this request. Returns true if the program is known to free its caches and ask again, and has not done so
/// for this request yet.
fn begins_try(shim: &Shim, last: &mut LastReport, bytes: u64, stack: StackRef) -> bool {
    let (tid, now) = (shim.tid(), clock::now_ns());
    let before = last.first_try.replace((tid, bytes, now));
    let again = before.is_some_and(|(who, what, at)| (who, what) == (tid, bytes) && now.saturating_sub(at) < RETRY_NS);
    !again && stranded::program_retries(shim, stack)
}

/// Returns this thread's context without asking HIP: any answer of HIP becomes the thread's last error, which the
/// program reads now.
fn context_unasked(shim: &'static Shim, vendor: Vendor) -> ContextRef {
    match vendor {
        Vendor::Cuda => records::contexts::current(shim, vendor),
        Vendor::Hip => records::contexts::last(shim, vendor),
    }
}

/// Returns the state of a device, and the part of it that this process takes.
fn full(shim: &'static Shim, vendor: Vendor, context: ContextRef) -> Option<FullDevice> {
    let slot = records::contexts::slot(shim, context)?;
    let device = slot.device as i32;
    let pool = pool::of(vendor);
    // Adds the live bytes that threads have left out of the totals.
    if let Some(pool) = pool {
        pool.report_all(shim);
    }
    let may_ask = vendor == Vendor::Cuda && shim.registry.streams.capturing() == 0;
    Some(FullDevice {
        context,
        device: slot.device,
        live: records::pooled::live_on(shim, vendor, device),
        idle: pool.map_or(0, |pool| pool.idle_on(device)),
        free: if may_ask { backend::of(vendor).memory_info() } else { None },
        total: slot.total_bytes,
        limit: pool.map_or(0, |pool| pool.quota.limit()),
        group: shim.group.as_ref().and_then(|group| {
            let place = records::grouped::place(shim, context)?;
            Some((group.spec.name(), group.used(&place)))
        }),
    })
}

/// Returns the call sites that hold most of a device's memory, the largest first.
fn top_holders(shim: &Shim, vendor: Vendor, device: u32) -> Vec<Holder> {
    let contexts = records::contexts::on(shim, vendor, device as i32);
    let mut held: FxHashMap<StackRef, Holder> = FxHashMap::default();
    shim.ledger.allocs.each(|slot| {
        if contexts.contains(&slot.context) && slot.space() == Space::Device {
            let holder = held.entry(slot.stack).or_insert(Holder { stack: slot.stack, ..Default::default() });
            holder.bytes = holder.bytes.saturating_add(slot.bytes);
            holder.blocks += 1;
        }
    });
    let mut holders: Vec<Holder> = held.into_values().collect();
    holders.sort_unstable_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.stack));
    holders.truncate(NAMED);
    holders
}

/// Describes a group's use of a device.
fn of_group(name: &str, used: &Used) -> String {
    format!("group {name} has {} of {}", units::bytes(used.all), units::bytes(used.limit))
}

/// Describes the members of a group by the memory that they hold, the largest first.
fn of_members(name: &str, used: &Used) -> Vec<String> {
    let line = |holder: &Member| {
        let (held, idle) = (units::bytes(holder.taken), units::bytes(holder.idle));
        format!("group {name}: {held}, {idle} of them idle: {} (pid {})", holder.program, holder.pid)
    };
    used.holders.iter().filter(|holder| holder.taken > 0).take(NAMED).map(line).collect()
}

/// Formats the report, without the prefix of gpumem's messages.
fn report(shim: &Shim, kind: AllocKind, bytes: u64, full: &FullDevice, holders: &[Holder]) -> String {
    let free = match full.free {
        Some((free, total)) => format!("{} of {} free", units::bytes(free), units::bytes(total)),
        None => format!("{} in all", units::bytes(full.total)),
    };
    let limit = if full.limit == 0 { String::new() } else { format!("; GPUMEM_LIMIT is {}", units::bytes(full.limit)) };
    let of_group = full.group.as_ref().map_or(String::new(), |(name, used)| format!("; {}", of_group(name, used)));
    let mut text = format!(
        "out of memory: {} ({kind}) requested on device {}; this process: {} live, {} idle; device: {free}{limit}{of_group}",
        units::bytes(bytes),
        full.device,
        units::bytes(full.live),
        units::bytes(full.idle),
    );
    let places = Places::now(shim);
    for holder in holders {
        let allocations = if holder.blocks == 1 { "allocation" } else { "allocations" };
        let (held, count) = (units::bytes(holder.bytes), holder.blocks);
        let _ = write!(text, "\ngpumem:   {held} in {count} {allocations}: {}", places.of(holder.stack));
    }
    for line in full.group.iter().flat_map(|(name, used)| of_members(name, used)) {
        let _ = write!(text, "\ngpumem:   {line}");
    }
    let more = if shim.ledger.counter(counters::DROPPED_RECORDS) > 0 { " (some records were dropped)" } else { "" };
    let (pid, path) = (std::process::id(), shim.ledger.path.display());
    let _ = write!(
        text,
        "\ngpumem: for function names: gpumem leaks {pid}, gpumem events --problems {pid}; ledger {path}{more}"
    );
    text
}
