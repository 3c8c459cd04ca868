//! The devices that a process uses, and the memory it takes on each.

use super::account::{Account, How, Share};
use super::execs::held;
use super::measured::{AS_MEASURED, MeasuredCard};
use super::pages::{PAGE, Pages};
use super::{Ledger, cache};
use crate::source::nvml::{Books, Count};
use gpumem_wire::kinds::{AllocKind, Space, Taken, Vendor};
use gpumem_wire::layout::{ALLOC_SPILLED, AllocSlot, ContextSlot, StrRef};
use gpumem_wire::read::Snapshot;
use serde::Serialize;
use std::collections::BTreeMap;

/// One device, with its explained memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Device {
    pub device: u32,
    pub name: String,
    pub vendor: &'static str,
    pub uuid: String,
    pub contexts: u64,
    /// The device uses the machine's memory. Used and free bytes are those of all programs, on the GPU or not.
    pub integrated: bool,
    pub total_bytes: u64,
    /// Bytes in use by all processes at the last look, with what this process took and gave back since; 0 if unknown.
    pub used_bytes: u64,
    pub used_age_ns: u64,
    /// Source of the used bytes: `driver` (NVML, now) or `ledger` (the shim, earlier).
    pub used_source: &'static str,
    /// True if the used bytes include what this process took and gave back since the last look.
    #[serde(skip)]
    pub used_has_changes: bool,
    /// The used bytes are those of a moment before the newest live allocation.
    #[serde(skip)]
    pub used_is_older: bool,
    /// Bytes in use by all processes just after the first context was made.
    pub baseline_bytes: u64,
    /// Recorded live allocations of this process in device memory.
    pub tracked_bytes: u64,
    pub managed_bytes: u64,
    /// Bytes that this process requested as device memory and that lie outside of it.
    pub spilled_bytes: u64,
    /// Estimate for this process's graph execs, parked ones included.
    pub graph_bytes: u64,
    /// Bytes that the pool keeps for later allocations of this process.
    pub idle_bytes: u64,
    /// Bytes that the driver keeps for the default stream-ordered pool, beyond live stream-ordered allocations, at the
    /// last look; 0 if unknown or unused.
    pub pool_idle_bytes: u64,
    /// Bytes that the driver keeps for the memory nodes of graphs, beyond memory that graphs left, at the last look; 0 if
    /// unknown or unused.
    pub graph_memory_bytes: u64,
    /// Bytes that the driver took for itself: the fall of free memory around calls that load code, make a stream,
    /// launch a kernel for the first time, set a limit, or make another context.
    pub taken_bytes: u64,
    /// The kernel with the most local memory per thread for which the driver took memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalMemory>,
    /// Memory of this process on the device, in parts that add up to the driver's count for it.
    pub of_process: Account,
    /// Bytes used by other processes. `None` if the driver's count for this one is unknown.
    pub others_bytes: Option<u64>,
    /// The rest of this process's account. If the driver's count for it is unknown: all used bytes that belong to no
    /// part. `None` if the last look contradicts the present records.
    pub unexplained_bytes: Option<u64>,
    pub peak_bytes: u64,
}

/// Local memory of a kernel: arrays and spilled registers of its threads. At the first launch the driver takes it for
/// as many threads as the device runs at once, and keeps it for the context's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LocalMemory {
    pub kernel: String,
    /// Bytes per thread.
    pub per_thread: u64,
    /// Fall of free memory around such launches.
    pub bytes: u64,
}

/// Sums on the way to a [`Device`].
#[derive(Default)]
struct Looks {
    /// Time at which the first context was made, and the used bytes then. The clock is coarse: of two contexts that were
    /// made at one moment, the first found less in use.
    first: Option<(u64, u64)>,
    used_ns: u64,
    /// The context with the newest look.
    looked: ContextSlot,
    /// Bytes that the process holds on the device, as the contexts count them.
    held: u64,
    /// Time and result of the newest look at the pool and at graph memory.
    pool: (u64, u64),
    graph_memory: (u64, u64),
    async_bytes: u64,
    /// Bytes of memory that graphs left.
    left_bytes: u64,
    /// Recorded bytes by kind.
    kinds: BTreeMap<&'static str, u64>,
    pages: Pages,
    /// Bytes that the driver took, by reason.
    taken: BTreeMap<Taken, u64>,
    /// Live streams.
    streams: u64,
    /// Time of the newest live allocation.
    newest_ns: u64,
}

/// Returns every device that had a context.
pub(crate) fn of(ledger: &Ledger, books: &Books) -> Vec<Device> {
    let mut devices: BTreeMap<(u8, u32), (Device, Looks)> = BTreeMap::new();
    let snapshot = &ledger.snapshot;
    for context in snapshot.contexts.values() {
        let fresh = || (Device::empty(snapshot, context), Looks::default());
        let (device, looks) = devices.entry((context.vendor, context.device)).or_insert_with(fresh);
        device.add_context(snapshot, context, looks);
    }
    let of = |context| snapshot.contexts.get(&context).map(|slot| (slot.vendor, slot.device));
    for alloc in &snapshot.allocs {
        if let Some((device, looks)) = of(alloc.context).and_then(|key| devices.get_mut(&key)) {
            device.add_alloc(alloc, looks);
        }
    }
    let execs = snapshot.execs.iter().map(|exec| (exec.context, held(exec).device));
    for (context, bytes) in execs.chain(cache::parked_device(ledger)) {
        if let Some((device, _)) = of(context).and_then(|key| devices.get_mut(&key)) {
            device.graph_bytes = device.graph_bytes.saturating_add(bytes);
        }
    }
    for stream in snapshot.streams.values() {
        if let Some((_, looks)) = of(stream.context).and_then(|key| devices.get_mut(&key)) {
            looks.streams += 1;
        }
    }
    let alone = devices.len() == 1;
    devices.into_values().map(|(device, looks)| device.finish(&looks, ledger, books, alone)).collect()
}

impl Device {
    /// Returns the device of a context, with empty sums.
    fn empty(snapshot: &Snapshot, context: &ContextSlot) -> Self {
        Self {
            device: context.device,
            name: snapshot.name(context.name).into_owned(),
            vendor: Vendor::name_of(context.vendor),
            uuid: uuid(&context.uuid),
            integrated: context.integrated != 0,
            total_bytes: context.total_bytes,
            used_source: "ledger",
            ..Self::default()
        }
    }

    fn add_context(&mut self, snapshot: &Snapshot, context: &ContextSlot, looks: &mut Looks) {
        self.contexts += 1;
        let made = (context.time_ns, context.baseline_used);
        if looks.first.is_none_or(|first| made < first) {
            (looks.first, self.baseline_bytes) = (Some(made), context.baseline_used);
        }
        self.peak_bytes = self.peak_bytes.saturating_add(context.peak_bytes);
        if context.gone_ns == 0 {
            self.idle_bytes = self.idle_bytes.saturating_add(context.idle_bytes);
            looks.held = looks.held.wrapping_add(context.held_bytes());
            self.taken_bytes = self.taken_bytes.saturating_add(context.taken_bytes());
            for &what in Taken::ALL {
                let sum = looks.taken.entry(what).or_default();
                *sum = sum.saturating_add(context.taken_for(what));
            }
            let local = LocalMemory {
                kernel: snapshot.text(context.local_kernel as StrRef).into_owned(),
                per_thread: context.local_per_thread,
                bytes: context.taken_for(Taken::Local),
            };
            let most = self.local.as_ref().map_or(0, |most| most.bytes);
            self.local = Some(local).filter(|local| local.bytes > most).or(self.local.take());
        }
        if context.used_ns >= looks.used_ns && context.used_bytes > 0 {
            (looks.looked, looks.used_ns) = (*context, context.used_ns);
        }
        // Both numbers belong to the device. Contexts on it repeat them, so they are not added up. A context without a
        // look has 0.
        for (kept, newest) in [(context.pool_bytes, &mut looks.pool), (context.graph_bytes, &mut looks.graph_memory)] {
            if kept > 0 && context.used_ns >= newest.0 {
                *newest = (context.used_ns, kept);
            }
        }
    }

    fn add_alloc(&mut self, alloc: &AllocSlot, looks: &mut Looks) {
        let space = alloc.space();
        looks.newest_ns = looks.newest_ns.max(alloc.time_ns);
        // The driver takes their pages for many at a time, and has a number for those.
        let of_driver = match AllocKind::from_u8(alloc.kind) {
            Some(AllocKind::Async) if space == Space::Device => Some(&mut looks.async_bytes),
            Some(AllocKind::GraphLeft) => Some(&mut looks.left_bytes),
            _ => None,
        };
        if let Some(sum) = of_driver {
            *sum = sum.saturating_add(alloc.bytes);
        }
        let sum = match space {
            _ if alloc.flags & ALLOC_SPILLED != 0 => &mut self.spilled_bytes,
            Space::Device => &mut self.tracked_bytes,
            Space::Managed => &mut self.managed_bytes,
            Space::Host | Space::Unknown | Space::None => return,
        };
        *sum = sum.saturating_add(alloc.bytes);
        if space != Space::Device || alloc.flags & ALLOC_SPILLED != 0 {
            return;
        }
        let kind = AllocKind::name_of(alloc.kind);
        let sum = looks.kinds.entry(kind).or_default();
        *sum = sum.saturating_add(alloc.bytes);
        looks.pages.add(alloc);
    }

    fn finish(mut self, looks: &Looks, ledger: &Ledger, books: &Books, alone: bool) -> Self {
        self.pool_idle_bytes = looks.pool.1.saturating_sub(looks.async_bytes);
        self.graph_memory_bytes = looks.graph_memory.1.saturating_sub(looks.left_bytes);
        (self.used_bytes, self.used_has_changes) = looks.looked.used_now(looks.held);
        self.used_is_older = !self.used_has_changes && looks.newest_ns > looks.used_ns;
        self.used_age_ns = if looks.used_ns == 0 { 0 } else { ledger.age(looks.used_ns) };
        if ledger.status.is_parked() {
            return self.of_parked(books);
        }
        let Counted { used, of_process: count, alone_on_card } = counted(ledger, &self.uuid, books, alone);
        if let Some(used) = used {
            (self.used_bytes, self.used_age_ns, self.used_source) = (used, 0, "driver");
            self.used_is_older = false;
        }
        let known = MeasuredCard::find(&self.name, ledger.snapshot.header.driver_version);
        let mut parts = self.parts(looks, known);
        parts.extend(self.first_context(known, alone_on_card));
        let used = Some(self.used_bytes).filter(|&used| used > 0);
        self.of_process = Account::of(count, parts, used.filter(|_| !self.used_is_older));
        (self.others_bytes, self.unexplained_bytes) = match self.of_process.counted_bytes {
            Some(counted) => (used.map(|used| used.saturating_sub(counted)), self.of_process.rest_bytes),
            None => (None, used.and_then(|used| used.checked_sub(self.of_process.explained_bytes()))),
        };
        self
    }

    /// Returns the device of a parked process, which holds nothing there.
    fn of_parked(self, books: &Books) -> Self {
        let used = books.card(&self.uuid).ok().map(|card| card.used);
        let why = "the process is parked: its device memory is on the host".into();
        Self {
            used_bytes: used.unwrap_or(0),
            used_source: if used.is_some() { "driver" } else { self.used_source },
            others_bytes: used,
            tracked_bytes: 0,
            graph_bytes: 0,
            idle_bytes: 0,
            taken_bytes: 0,
            local: None,
            of_process: Account { counted_bytes: Some(0), why, ..Account::default() },
            ..self
        }
    }

    /// Returns the local memory of kernels: as measured with this card, else the fall of free memory. That fall
    /// includes code loaded at the same launch; the second number is the part left for code.
    fn local_memory(&self, taken: u64, known: Option<&MeasuredCard>) -> (Share, u64) {
        const NAME: &str = "local memory of kernels";
        match (known, &self.local) {
            (Some(card), Some(local)) => {
                let beyond = local.per_thread.saturating_sub(MeasuredCard::LOCAL_AT_FIRST);
                let bytes = card.threads.saturating_mul(beyond);
                (Share::new(NAME, bytes, How::Estimated, AS_MEASURED), taken.saturating_sub(bytes))
            }
            _ => (Share::new(NAME, taken, How::Measured, "gpumem events --kind driver-took"), 0),
        }
    }

    /// Returns the first context: free memory cannot be queried before it exists.
    fn first_context(&self, known: Option<&MeasuredCard>, alone_on_card: bool) -> Option<Share> {
        let (bytes, remark) = match known {
            Some(card) => (card.first_context, AS_MEASURED),
            // No other process is there, so all memory used once the context was made counts as its own.
            None if alone_on_card => (self.baseline_bytes, "used on the card when it was made"),
            None => return None,
        };
        Some(Share::new("first context", bytes, How::Estimated, remark))
    }

    /// Returns the known parts of this process's memory on the device.
    fn parts(&self, looks: &Looks, known: Option<&MeasuredCard>) -> Vec<Share> {
        let recorded = looks.kinds.iter().map(|(kind, &bytes)| Share::new(kind, bytes, How::Recorded, "recorded"));
        let pages = "the driver gives pages of 2 MiB";
        let kept = "kept for the next allocations";
        let taken = |what| looks.taken.get(&what).copied().unwrap_or(0);
        let kept_for_graphs = match looks.left_bytes {
            0 => "the driver keeps it until cudaDeviceGraphMemTrim",
            _ => "beyond graph-left: the driver takes 32 MiB at a time",
        };
        let measured = |name, what, remark| Share::new(name, taken(what), How::Measured, remark);
        let (local, code_of_launches) = self.local_memory(taken(Taken::Local), known);
        let (streams, of_ended) = of_streams(looks.streams, taken(Taken::Stream), known);
        let launches = taken(Taken::Launch).saturating_add(code_of_launches);
        let others = [
            Share::new("idle in gpumem's pool", self.idle_bytes, How::Recorded, kept),
            Share::new(
                "idle in the driver's stream-ordered pool",
                self.pool_idle_bytes,
                How::Estimated,
                "cudaMallocAsync reuses it",
            ),
            Share::new("memory nodes of graphs", self.graph_memory_bytes, How::Estimated, kept_for_graphs),
            Share::new("graph execs", self.graph_bytes, How::Estimated, "estimated"),
            Share::new("rounding", looks.pages.rounding(), How::Estimated, pages),
            local,
            measured("limits of the context", Taken::Limit, "cudaDeviceSetLimit"),
            measured("further contexts", Taken::Context, ""),
            measured("code", Taken::Code, "modules and libraries"),
            Share::new("first launches", launches, How::Measured, "code that is loaded late"),
            streams,
            Share::new("streams that ended", of_ended, How::Measured, "the driver keeps it for the next"),
            measured("gpumem's own", Taken::Gpumem, "for the guard and for searches"),
        ];
        recorded.chain(others).collect()
    }
}

/// Queues of streams: as measured, else the fall of free memory. The second number is the part left for streams that
/// are gone.
fn of_streams(live: u64, taken: u64, known: Option<&MeasuredCard>) -> (Share, u64) {
    if known.is_none() {
        return (Share::new("streams", taken, How::Measured, "their queues"), 0);
    }
    // A page for the 2nd, 6th, 10th, … stream, and one more for about 64.
    let pages = live.saturating_add(2) / 4;
    let bytes = (pages + pages / 16).saturating_mul(PAGE);
    (Share::new("streams", bytes, How::Estimated, AS_MEASURED), taken.saturating_sub(bytes))
}

/// The driver's counts on one device.
struct Counted {
    /// Used by all processes.
    used: Option<u64>,
    of_process: Count,
    /// No other process is on the card.
    alone_on_card: bool,
}

/// Returns NVML's answer for a running process; the stored one for a dump. `alone`: the process uses no other device.
fn counted(ledger: &Ledger, uuid: &str, books: &Books, alone: bool) -> Counted {
    let of_process = |of_process| Counted { used: None, of_process, alone_on_card: false };
    if let Some(used) = dumped(ledger) {
        let several = Count::Unknown("a dump has one count for all devices");
        return of_process(if alone { Count::Bytes(used) } else { several });
    }
    let Some(process) = ledger.process.as_ref().filter(|_| ledger.status.running()) else {
        return of_process(Count::Unknown("the driver was not asked while it ran"));
    };
    match books.card(uuid) {
        Ok(card) => Counted {
            used: Some(card.used),
            of_process: card.of_process(process.pid),
            alone_on_card: card.is_alone(process.pid),
        },
        Err(why) => of_process(Count::Unknown(why)),
    }
}

fn dumped(ledger: &Ledger) -> Option<u64> {
    Some(ledger.snapshot.header.dumped_device_used).filter(|&used| used > 0)
}

/// Returns the driver's count for the process over all its devices. `None` if one of them is unknown.
pub(crate) fn process_used(ledger: &Ledger, devices: &[Device]) -> Option<u64> {
    let each = devices.iter().map(|device| device.of_process.counted_bytes);
    let all: Option<u64> = each.sum();
    dumped(ledger).or(all).filter(|_| !devices.is_empty())
}

/// Returns a device's UUID in NVML's format, without the prefix; empty if the driver gave none.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    if *bytes == [0; 16] {
        return String::new();
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
