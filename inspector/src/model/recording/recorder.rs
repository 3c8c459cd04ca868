//! Turns ledgers into lines: new and changed facts since the previous tick.

use super::budget::Budget;
use super::line::{Begin, Line, Made, RowOf, Stack, StartedBy, Tick, VERSION};
use crate::model::cache::{self, Cache};
use crate::model::course::{self, Moment, Of};
use crate::model::execs::hex;
use crate::model::{Ledger, devices, graphs, totals};
use crate::source::liveness::real_ns;
use gpumem_wire::growth;
use gpumem_wire::kinds::{AllocKind, EventKind, GrowthKind, Space};
use gpumem_wire::layout::{ALLOC_SPILLED, AllocSlot, ContextRef, SampleSlot, StackRef};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::rc::Rc;

/// Numbers of a ledger from which the columns of a tick's totals are taken.
struct TotalsSource {
    sample: SampleSlot,
    idle: u64,
    graphs: graphs::Group,
    cache: Cache,
}

type TotalsColumn = (Of, &'static str, fn(&TotalsSource) -> u64);

/// The columns of a tick's totals. Rates are written as counters; readers use their increase.
const COLUMNS: &[TotalsColumn] = &[
    (Of::Whole, "resident memory of the process", |of| of.sample.rss),
    (Of::Whole, "used on its devices, by everybody", |of| of.sample.device_used),
    (Of::Whole, "idle in the pool", |of| of.idle),
    (Of::Whole, "host memory of graphs and execs", |of| of.graphs.host_bytes),
    (Of::Whole, "device memory of execs", |of| of.graphs.device_bytes),
    (Of::Count, "graphs", |of| of.graphs.graphs),
    (Of::Count, "execs", |of| of.graphs.execs),
    (Of::Count, "real execs", |of| of.cache.real_execs),
    (Of::Count, "parked", |of| of.cache.parked_execs),
    (Of::Rate, "launches", |of| of.cache.launches),
    (Of::Rate, "retargets", |of| of.cache.retargets),
    (Of::Rate, "instantiates", |of| of.cache.instantiations),
    (Of::Rate, "evictions", |of| of.cache.evictions),
];

/// Most large allocations, new and freed, and most moments in one tick.
const MOST_EVENTS: usize = 2000;

/// Memory of a row: live bytes, live count, bytes ever made, number ever made.
type Held = [u64; 4];

/// State of a recording: what was written so far of one process.
#[derive(Default)]
pub(crate) struct Recorder {
    begin: Begin,
    frames: FxHashMap<Rc<str>, u32>,
    stacks: FxHashSet<StackRef>,
    rows: FxHashMap<(Of, u64), (u32, Held)>,
    /// Large allocations that were written, and live ones that wait for a later tick.
    large: FxHashSet<u64>,
    passed_over: FxHashSet<u64>,
    large_budget: Budget,
    moments_budget: Budget,
    /// Rows whose stack or tag was missing in the ledger when they were first seen.
    waiting: FxHashSet<(Of, u64)>,
    /// Number of the last event seen, and the time of the last tick.
    events: Option<u64>,
    last_unix_ns: u64,
}

impl Recorder {
    /// Starts a recording of a ledger's process.
    pub(crate) fn new(ledger: &Ledger, interval_ns: u64, events_from_bytes: u64) -> Self {
        let header = &ledger.snapshot.header;
        let begin = Begin {
            version: VERSION,
            pid: ledger.pid(),
            name: ledger.name(),
            began_unix_ns: real_ns(header, ledger.status.now_ns),
            interval_ns,
            events_from_bytes,
            columns: COLUMNS.iter().map(|&(of, name, _)| (of, name.to_owned())).collect(),
            ..Begin::default()
        };
        Self { begin, ..Self::default() }
    }

    /// Notes that the process was started to be recorded. Returns a tick of zeros at the process's start, so that the
    /// recording begins there however late the first look is.
    pub(crate) fn begin_with_nothing(&mut self, ledger: &Ledger, started_by: StartedBy) -> Line {
        self.begin.started_by = started_by;
        let header = &ledger.snapshot.header;
        let unix_ns = real_ns(header, header.created_ns);
        (self.begin.began_unix_ns, self.last_unix_ns) = (unix_ns, unix_ns);
        Line::Tick(Tick { unix_ns, totals: vec![0; COLUMNS.len()], ..Tick::default() })
    }

    /// Returns the first line of a file.
    pub(crate) fn begin(&self) -> Line {
        Line::GpumemRecording(self.begin.clone())
    }

    /// Starts another file, which repeats all definitions.
    pub(crate) fn next_file(&mut self) {
        self.begin.part += 1;
        self.frames.clear();
        self.stacks.clear();
        self.rows.clear();
        self.large.clear();
        self.passed_over.clear();
        // The new budget is as large as the one before, so that everything written there fits again.
        self.large_budget = Budget::default();
    }

    /// Returns the lines of one tick.
    pub(crate) fn tick(&mut self, ledger: &Ledger) -> Vec<Line> {
        let mut lines = Vec::new();
        // For a process that has ended, the time is its last sign of life, which may be before the last look.
        let now = real_ns(&ledger.snapshot.header, ledger.status.now_ns).max(self.last_unix_ns + 1);
        self.last_unix_ns = now;
        let mut tick = Tick { unix_ns: now, totals: totals_of(ledger), ..Tick::default() };
        let mut held = held(ledger);
        // Write rows that no longer hold anything once more.
        for (key, (_, before)) in &self.rows {
            held.entry(*key).or_insert([0, 0, before[2], before[3]]);
        }
        let mut held: Vec<((Of, u64), Held)> = held.into_iter().collect();
        held.sort_unstable_by_key(|(key, _)| *key);
        for (key, now) in held {
            let row = match self.rows.get(&key).map(|(row, _)| *row) {
                Some(row) => row,
                None if now == [0; 4] || self.waits(ledger, key) => continue,
                None => self.define(ledger, key, &mut lines),
            };
            let before = self.rows.insert(key, (row, now)).map_or([0; 4], |(_, before)| before);
            if now != before {
                let change = |at: usize| now[at].wrapping_sub(before[at]) as i64;
                tick.rows.push((row, change(0), change(1), change(2), change(3)));
            }
        }
        self.large_ones(ledger, &mut tick, &mut lines);
        self.moments(ledger, &mut tick);
        lines.push(Line::Tick(tick));
        lines
    }

    /// True if a row should wait for the next tick. The tables of a ledger are read one after another, so a row may be
    /// newer than the table that should hold its stack or tag.
    fn waits(&mut self, ledger: &Ledger, key: (Of, u64)) -> bool {
        let reference = u32::try_from(key.1).unwrap_or(0);
        let is_there = match key.0 {
            Of::Site | Of::Graphs => reference == 0 || !ledger.addresses(reference).is_empty(),
            Of::Tag => {
                let tag: Cow<'_, str> = ledger.snapshot.name(reference);
                !tag.is_empty()
            }
            Of::Card => ledger.snapshot.contexts.contains_key(&(key.1 as ContextRef)),
            _ => true,
        };
        !is_there && ledger.status.running() && self.waiting.insert(key)
    }

    /// Writes the definition of a row and returns its number.
    fn define(&mut self, ledger: &Ledger, key: (Of, u64), lines: &mut Vec<Line>) -> u32 {
        let (kind, number) = key;
        let reference = u32::try_from(number).unwrap_or(0);
        let (name, stack) = match kind {
            Of::Site | Of::Graphs => (String::new(), reference),
            Of::Tag => (ledger.snapshot.name(reference).into_owned(), 0),
            Of::Class => (hex(number), 0),
            Of::Card => (card(ledger, number as ContextRef), 0),
            _ => (AllocKind::name_of(number as u8).to_owned(), 0),
        };
        self.tell_stack(ledger, stack, lines);
        let id = self.rows.len() as u32;
        lines.push(Line::Row(RowOf { id, kind, name, stack }));
        id
    }

    fn tell_stack(&mut self, ledger: &Ledger, stack: StackRef, lines: &mut Vec<Line>) {
        if stack == 0 || ledger.addresses(stack).is_empty() || !self.stacks.insert(stack) {
            return;
        }
        let labels = ledger.labels(stack);
        let outside = ledger.steps_from_site(stack);
        let mut fresh = Vec::new();
        let frames: Vec<u32> = labels
            .iter()
            .map(|label| {
                let next = self.frames.len() as u32;
                *self.frames.entry(Rc::clone(label)).or_insert_with(|| {
                    fresh.push(label.to_string());
                    next
                })
            })
            .collect();
        if !fresh.is_empty() {
            lines.push(Line::Frames(fresh));
        }
        let site = labels.len().saturating_sub(outside) as u32;
        lines.push(Line::Stack(Stack { id: stack, frames, site }));
    }

    fn large_ones(&mut self, ledger: &Ledger, tick: &mut Tick, lines: &mut Vec<Line>) {
        let from = self.begin.events_from_bytes;
        let large = |alloc: &&AllocSlot| alloc.bytes >= from && alloc.takes_memory();
        let live: FxHashMap<u64, &AllocSlot> =
            ledger.snapshot.allocs.iter().filter(large).map(|alloc| (alloc.serial, alloc)).collect();
        let gone = self.large.iter().copied().filter(|serial| !live.contains_key(serial));
        tick.freed = gone.take(MOST_EVENTS).collect();
        tick.freed.sort_unstable();
        self.large.retain(|serial| tick.freed.binary_search(serial).is_err());
        let mut fresh: Vec<&AllocSlot> =
            live.values().filter(|alloc| !self.large.contains(&alloc.serial)).copied().collect();
        fresh.sort_unstable_by_key(|alloc| (std::cmp::Reverse(alloc.bytes), alloc.serial));
        let room = self.large_budget.take(tick.unix_ns, fresh.len().min(MOST_EVENTS));
        self.passed_over.retain(|serial| live.contains_key(serial));
        let late = fresh[..room].iter().filter(|alloc| self.passed_over.remove(&alloc.serial));
        tick.told_late = late.count() as u64;
        tick.left_out = fresh[room..].iter().filter(|alloc| self.passed_over.insert(alloc.serial)).count() as u64;
        fresh.truncate(room);
        for alloc in fresh {
            self.large.insert(alloc.serial);
            self.tell_stack(ledger, alloc.stack, lines);
            tick.made.push(Made {
                serial: alloc.serial,
                bytes: alloc.bytes,
                stack: alloc.stack,
                kind: AllocKind::name_of(alloc.kind).into(),
                tag: ledger.snapshot.name(alloc.tag).into_owned(),
                unix_ns: real_ns(&ledger.snapshot.header, alloc.time_ns),
            });
        }
    }

    /// Adds the events since the previous tick; at the first tick, all events still in the ledger.
    fn moments(&mut self, ledger: &Ledger, tick: &mut Tick) {
        let fresh = ledger.snapshot.events.iter().filter(|event| self.events.is_none_or(|seen| event.seq > seen));
        let mut moments: Vec<Moment> = fresh.filter_map(|event| course::moment(ledger, event)).collect();
        let room = self.moments_budget.take(tick.unix_ns, moments.len().min(MOST_EVENTS));
        tick.moments_left_out = (moments.len() - room) as u64;
        // Marks of the user come first, then causes before effects.
        moments.sort_by_key(|moment| moment.kind != EventKind::Mark.name());
        moments.truncate(room);
        moments.sort_by_key(|moment| moment.unix_ns);
        tick.moments = moments;
        self.events = ledger.snapshot.events.last().map(|event| event.seq).or(self.events);
    }
}

/// Returns the name of a context's card, which is the same in all processes, whatever number they know it by.
fn card(ledger: &Ledger, context: ContextRef) -> String {
    let Some(slot) = ledger.snapshot.contexts.get(&context) else { return "unknown".into() };
    let name = ledger.snapshot.name(slot.name);
    match devices::uuid(&slot.uuid) {
        uuid if uuid.is_empty() => format!("{name} {}", slot.device),
        uuid => format!("{name} GPU-{uuid}"),
    }
}

/// Returns the memory that each row holds now.
fn held(ledger: &Ledger) -> FxHashMap<(Of, u64), Held> {
    let mut held: FxHashMap<(Of, u64), Held> = FxHashMap::default();
    let of = |kind| match kind {
        GrowthKind::Site => Some(Of::Site),
        GrowthKind::Tag => Some(Of::Tag),
        GrowthKind::Graphs => Some(Of::Graphs),
        GrowthKind::Class => Some(Of::Class),
        GrowthKind::Heap => Some(Of::Whole),
        GrowthKind::Code | GrowthKind::Streams | GrowthKind::Events | GrowthKind::Contexts => None,
    };
    let mut add = |(kind, key): growth::Key, bytes: u64| {
        let Some(of) = of(kind) else { return };
        let held = held.entry((of, key)).or_default();
        held[0] = held[0].saturating_add(bytes);
        held[1] += 1;
    };
    for alloc in &ledger.snapshot.allocs {
        growth::keys_of_alloc(alloc).for_each(|key| add(key, alloc.bytes));
    }
    for graph in &ledger.snapshot.graphs {
        add(growth::key_of_graph(graph), graph.held_bytes());
    }
    for exec in &ledger.snapshot.execs {
        growth::keys_of_exec(exec).for_each(|key| add(key, exec.held_bytes()));
    }
    let on_device = |alloc: &&AllocSlot| alloc.space() == Space::Device && alloc.flags & ALLOC_SPILLED == 0;
    for alloc in ledger.snapshot.allocs.iter().filter(on_device).filter(|_| !ledger.status.is_parked()) {
        let held = held.entry((Of::Card, alloc.context.into())).or_default();
        held[0] = held[0].saturating_add(alloc.bytes);
        held[1] += 1;
    }
    for (&stack, totals) in ledger.snapshot.stacks.iter().filter(|(_, totals)| totals.allocs > 0) {
        let held = held.entry((Of::Site, stack.into())).or_default();
        (held[2], held[3]) = (totals.alloc_bytes, totals.allocs);
    }
    for total in totals::kinds(ledger) {
        let Some(kind) = AllocKind::from_name(total.kind).filter(|_| total.space != Space::None.name()) else {
            continue;
        };
        let now = [total.live_bytes, total.live, total.alloc_bytes, total.allocs];
        let held = held.entry((Of::Kind, kind as u64)).or_default();
        held.iter_mut().zip(now).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    held
}

/// Returns the values of [`COLUMNS`].
fn totals_of(ledger: &Ledger) -> Vec<u64> {
    let cache = cache::of(ledger);
    let idle = ledger.snapshot.contexts.values().filter(|context| context.gone_ns == 0);
    let source = TotalsSource {
        sample: ledger.snapshot.samples.last().copied().unwrap_or_default(),
        idle: idle.fold(0, |sum: u64, context| sum.saturating_add(context.idle_bytes)),
        graphs: graphs::total(ledger, &cache),
        cache,
    };
    COLUMNS.iter().map(|(.., value)| value(&source)).collect()
}
