//! Live memory over time, from the samples in a ledger or from a recording.

use super::history::Samples;
use super::sites::Sites;
use super::{Ledger, events, execs};
use crate::source::liveness::real_ns;
use gpumem_wire::kinds::{EventKind, GrowthKind};
use gpumem_wire::layout::{EventSlot, SampleSlot};
use serde::{Deserialize, Serialize};

/// Rows of numbers at the same moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Grid {
    /// Nanoseconds since 1970, in order.
    pub times: Vec<u64>,
    pub rows: Vec<Row>,
}

/// One number over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    pub kind: Of,
    pub name: String,
    /// The stack of the row, by its writer's number. 0: none.
    pub stack: u32,
    /// One for each moment.
    pub values: Vec<u64>,
}

/// Type of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Of {
    /// Live bytes by the kind of allocation, or by the memory they take.
    #[default]
    Kind,
    /// Live bytes of one call site or one tag.
    Site,
    Tag,
    /// Bytes of graphs and execs of one call site, or of execs of one class: estimated.
    Graphs,
    Class,
    /// Live bytes of device memory on one card, in recordings alone.
    Card,
    /// Bytes of the process and its devices as a whole.
    Whole,
    /// Number of graphs and execs.
    Count,
    /// Events per second.
    Rate,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Moment {
    pub unix_ns: u64,
    /// Name of the event's kind.
    pub kind: String,
    pub text: String,
    /// True if memory ran out.
    pub out_of_memory: bool,
}

/// The whole course of a process.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Course {
    /// Live bytes by memory, and the process as a whole.
    pub totals: Grid,
    /// Bytes that each holder held.
    pub held: Grid,
    pub moments: Vec<Moment>,
}

type CourseColumn = (Of, &'static str, fn(&SampleSlot) -> u64);

const COLUMNS: &[CourseColumn] = &[
    (Of::Kind, "device memory", |sample| sample.device_live),
    (Of::Kind, "managed memory", |sample| sample.managed_live),
    (Of::Kind, "host memory", |sample| sample.host_live),
    (Of::Kind, "memory in unknown places", |sample| sample.unknown_live),
    (Of::Whole, "resident memory of the process", |sample| sample.rss),
    (Of::Whole, "used on its devices, by everybody", |sample| sample.device_used),
    (Of::Whole, "idle in the pool", |sample| sample.device_idle),
    (Of::Whole, "host memory of graphs and execs", |sample| sample.graph_host_bytes),
    (Of::Count, "graphs", |sample| sample.graphs_live),
    (Of::Count, "execs", |sample| sample.execs_live),
];

/// Returns the course in a ledger's own samples. Old samples are coarse.
pub(crate) fn of_ledger(ledger: &Ledger) -> Course {
    let moments = ledger.snapshot.events.iter().filter_map(|event| moment(ledger, event)).collect();
    Course { totals: totals(ledger), held: held(ledger), moments }
}

fn totals(ledger: &Ledger) -> Grid {
    let (header, range) = (&ledger.snapshot.header, ledger.snapshot.header.created_ns..=ledger.status.now_ns);
    let mut samples: Vec<&SampleSlot> =
        ledger.snapshot.samples.iter().filter(|sample| range.contains(&sample.time_ns)).collect();
    samples.sort_by_key(|sample| sample.time_ns);
    let row = |&(kind, name, column): &CourseColumn| {
        let values: Vec<u64> = samples.iter().map(|sample| column(sample)).collect();
        Row { kind, name: name.into(), stack: 0, values }
    };
    Grid {
        times: samples.iter().map(|sample| real_ns(header, sample.time_ns)).collect(),
        rows: COLUMNS.iter().map(row).collect(),
    }
}

fn held(ledger: &Ledger) -> Grid {
    let samples = Samples::of(ledger);
    let (sites, graphs) = (Sites::of_allocs(ledger), Sites::of_graphs(ledger));
    let rows = ledger.snapshot.growth.rows().filter_map(|(number, slot)| {
        let key = u32::try_from(slot.key).unwrap_or(0);
        let (kind, name, stack) = match GrowthKind::from_u8(slot.kind)? {
            GrowthKind::Site => (Of::Site, sites.name(key).to_string(), key),
            GrowthKind::Graphs => (Of::Graphs, graphs.name(key).to_string(), key),
            GrowthKind::Tag => (Of::Tag, ledger.snapshot.name(key).into_owned(), 0),
            GrowthKind::Class => (Of::Class, execs::hex(slot.key), 0),
            GrowthKind::Heap => return None,
            // Recordings have only kinds that take memory.
            GrowthKind::Code | GrowthKind::Streams | GrowthKind::Events | GrowthKind::Contexts => return None,
        };
        let points = samples.row(ledger, number, slot).points;
        let held = points.iter().map(|point| (point.time_ns, point.bytes));
        let values = at(held, samples.points.iter().map(|point| point.time_ns));
        // A row that was never sampled has no course.
        (!points.is_empty()).then_some(Row { kind, name, stack, values })
    });
    let rows = rows.collect();
    let header = &ledger.snapshot.header;
    Grid { times: samples.points.iter().map(|point| real_ns(header, point.time_ns)).collect(), rows }
}

/// Returns the bytes held at each of these moments: those of the newest time until then, and 0 before the first. Both are
/// in order.
pub(super) fn at<T: PartialOrd>(
    held: impl IntoIterator<Item = (T, u64)>,
    moments: impl IntoIterator<Item = T>,
) -> Vec<u64> {
    let (mut held, mut now) = (held.into_iter().peekable(), 0);
    let value = |moment: T| {
        while let Some((_, bytes)) = held.next_if(|(from, _)| *from <= moment) {
            now = bytes;
        }
        now
    };
    moments.into_iter().map(value).collect()
}

/// Returns the event as a moment, if timelines show its kind.
pub(crate) fn moment(ledger: &Ledger, event: &EventSlot) -> Option<Moment> {
    use EventKind::*;
    let kind = EventKind::from_u8(event.kind)?;
    let out_of_memory = matches!(kind, OutOfMemory | LimitRefused | AllocFailed);
    if !out_of_memory && !matches!(kind, Mark | OomRetry | Thrash | StrandedSite | Pressed | Parked | Resumed) {
        return None;
    }
    let (unix_ns, text) = (real_ns(&ledger.snapshot.header, event.time_ns), events::sentence(ledger, event));
    Some(Moment { unix_ns, kind: kind.name().into(), text, out_of_memory })
}
