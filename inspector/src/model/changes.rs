//! Compares two snapshots: growth by call site.

use super::Ledger;
use super::allocs::{self, By, Filter};
use super::graphs;
use super::ledger::frames;
use super::sites;
use crate::symbols::{Frame, Room};
use crate::text::file_name;
use gpumem_wire::layout::StackRef;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Identity of call sites in two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Match {
    /// By the file and the address in it: exact, for runs of the same build
    Address,
    /// By the function's name: also across builds
    Function,
}

/// One call site in both snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    pub site: String,
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub bytes_change: i64,
    pub(super) count_before: u64,
    pub(super) count_after: u64,
    pub count_change: i64,
    /// Set if both snapshots are of one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_minute: Option<i64>,
}

/// Graphs and execs of one call site in both snapshots; bytes are estimates, host and device together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct GraphChange {
    pub site: String,
    pub(super) graphs_before: u64,
    pub(super) graphs_after: u64,
    pub graphs_change: i64,
    pub(super) execs_before: u64,
    pub(super) execs_after: u64,
    pub execs_change: i64,
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub bytes_change: i64,
}

/// Returns the difference, clamped to the range of `i64`.
pub(crate) fn minus(after: u64, before: u64) -> i64 {
    i64::try_from(i128::from(after) - i128::from(before)).unwrap_or(if after > before { i64::MAX } else { i64::MIN })
}

/// True if both snapshots are of one process.
pub(crate) fn same_process(before: &Ledger, after: &Ledger) -> bool {
    let id = |ledger: &Ledger| {
        let header = &ledger.snapshot.header;
        (header.pid, header.start_ticks, header.boot_id, header.pid_ns)
    };
    id(before) == id(after)
}

/// A rate over a shorter time is meaningless.
const SHORTEST_NS: u64 = 1_000_000_000;

/// Returns the time between two snapshots, nanoseconds; `None` if they are of two processes, or too close together.
pub(crate) fn elapsed_ns(before: &Ledger, after: &Ledger) -> Option<u64> {
    let elapsed = after.status.now_ns.checked_sub(before.status.now_ns);
    elapsed.filter(|&elapsed| elapsed >= SHORTEST_NS && same_process(before, after))
}

/// Returns a change as a rate per minute.
pub(crate) fn per_minute(change: i64, elapsed_ns: u64) -> i64 {
    (change as f64 * 60e9 / elapsed_ns.max(1) as f64).round() as i64
}

/// Stacks of two ledgers, named together: the same site has the same name in both.
struct StackNames<'a> {
    ledgers: [&'a Ledger; 2],
    by: Match,
    /// The words for an offset in a file, from the ledger that knows the function, if one does.
    words: FxHashMap<(String, u64), Rc<[Rc<str>]>>,
    room: Room,
}

impl<'a> StackNames<'a> {
    /// Returns the names of these stacks, each with the number of its ledger.
    fn names(ledgers: [&'a Ledger; 2], by: Match, stacks: &[(usize, StackRef)]) -> Vec<Rc<str>> {
        let mut named = Self { ledgers, by, words: FxHashMap::default(), room: Room::default() };
        for &(of, stack) in stacks {
            for &address in frames::steps(ledgers[of], stack).0.iter().take(sites::MAX_FRAMES + 1) {
                named.learn(of, address);
            }
        }
        sites::name(stacks.len(), &|item, depth| named.step(stacks[item], depth))
    }

    fn place(&self, of: usize, address: u64) -> (String, u64) {
        let frame = &self.ledgers[of].symbols.frames(address)[0];
        if frame.python {
            let text = |text: &Option<Rc<str>>| text.clone().unwrap_or_default();
            return (format!("{}\n{}", text(&frame.file), text(&frame.function)), frame.line.unwrap_or(0).into());
        }
        let module = frame.module.as_deref().map(file_name).unwrap_or_default();
        (module, frame.module_address.unwrap_or(address))
    }

    fn learn(&mut self, of: usize, address: u64) {
        let frames = self.ledgers[of].symbols.frames(address);
        let words = || frames.iter().map(|frame| self.room.word(&self.frame(frame))).collect();
        let (place, words) = (self.place(of, address), words());
        if frames[0].function.is_some() {
            self.words.insert(place, words);
        } else {
            self.words.entry(place).or_insert(words);
        }
    }

    /// Returns a frame in words. Lines, and addresses of known functions, differ between builds and are left out.
    fn frame(&self, frame: &Frame) -> String {
        match (self.by, &frame.function) {
            (Match::Function, Some(_)) => Frame { file: None, line: None, ..frame.clone() }.label(),
            _ => frame.label(),
        }
    }

    fn step(&self, (of, stack): (usize, StackRef), depth: usize) -> Option<Rc<str>> {
        frames::step(self.ledgers[of], stack, depth, |address| self.words.get(&self.place(of, address)).cloned())
    }
}

/// Returns the changes of live allocations, largest growth first; sites without a change are left out.
pub(crate) fn allocs(before: &Ledger, after: &Ledger, by: Match, filter: &Filter) -> Vec<Change> {
    let of = |of, ledger| allocs::group(ledger, filter, By::Stack, false).into_iter().map(move |group| (of, group));
    let groups: Vec<_> = of(0, before).chain(of(1, after)).collect();
    let stacks: Vec<_> = groups.iter().map(|(of, group)| (*of, group.stack)).collect();
    let names = StackNames::names([before, after], by, &stacks);
    let mut changes: BTreeMap<Rc<str>, Change> = BTreeMap::new();
    for ((of, group), name) in groups.iter().zip(names) {
        let change = changes.entry(name).or_default();
        let (bytes, count) = match of {
            0 => (&mut change.bytes_before, &mut change.count_before),
            _ => (&mut change.bytes_after, &mut change.count_after),
        };
        *bytes = bytes.saturating_add(group.bytes);
        *count += group.live;
    }
    let finish = |(name, change): (Rc<str>, Change)| Change {
        site: name.to_string(),
        bytes_change: minus(change.bytes_after, change.bytes_before),
        count_change: minus(change.count_after, change.count_before),
        ..change
    };
    let mut changes: Vec<_> = changes.into_iter().map(finish).collect();
    changes.retain(|change| change.bytes_change != 0 || change.count_change != 0);
    changes.sort_by_key(|change| (std::cmp::Reverse(change.bytes_change), std::cmp::Reverse(change.count_change)));
    changes
}

/// Returns the changes of graphs and execs, largest growth first.
pub(crate) fn graphs(before: &Ledger, after: &Ledger, by: Match) -> Vec<GraphChange> {
    let of = |of, ledger| {
        graphs::group(ledger, &graphs::Filter::default(), graphs::By::Stack)
            .into_iter()
            .map(move |(_, group)| (of, group))
    };
    let groups: Vec<_> = of(0, before).chain(of(1, after)).collect();
    let stacks: Vec<_> = groups.iter().map(|(of, group)| (*of, group.stack)).collect();
    let names = StackNames::names([before, after], by, &stacks);
    let mut changes: BTreeMap<Rc<str>, GraphChange> = BTreeMap::new();
    for ((of, group), name) in groups.iter().zip(names) {
        let change = changes.entry(name).or_default();
        let (graphs, execs, sum) = match of {
            0 => (&mut change.graphs_before, &mut change.execs_before, &mut change.bytes_before),
            _ => (&mut change.graphs_after, &mut change.execs_after, &mut change.bytes_after),
        };
        *graphs += group.graphs;
        *execs += group.execs;
        *sum = sum.saturating_add(group.host_bytes.saturating_add(group.device_bytes));
    }
    let finish = |(name, change): (Rc<str>, GraphChange)| GraphChange {
        site: name.to_string(),
        graphs_change: minus(change.graphs_after, change.graphs_before),
        execs_change: minus(change.execs_after, change.execs_before),
        bytes_change: minus(change.bytes_after, change.bytes_before),
        ..change
    };
    let mut changes: Vec<_> = changes.into_iter().map(finish).collect();
    changes.retain(|change| change.graphs_change != 0 || change.execs_change != 0 || change.bytes_change != 0);
    changes.sort_by_key(|change| (std::cmp::Reverse(change.bytes_change), std::cmp::Reverse(change.execs_change)));
    changes
}
