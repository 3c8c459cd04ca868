//! Compares two snapshots: growth by call site.

use super::allocs::{self, By, Filter};
use super::ledger::frames;
use super::{Ledger, graphs, sites};
use crate::symbols::{Frame, Room};
use crate::text::file_name;
use gpumem_wire::layout::StackRef;
use rustc_hash::FxHashMap;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::cmp::Reverse;
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

/// One call site in both snapshots: each amount before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change<const N: usize> {
    pub site: Rc<str>,
    names: [&'static str; N],
    pub before: [u64; N],
    pub after: [u64; N],
    /// Change of the bytes. Set if both snapshots are of one process.
    pub bytes_per_minute: Option<i64>,
}

/// Places of the amounts of allocations, and of graphs and execs. Bytes of graphs are estimates, host and device together.
pub(crate) const ALLOCS: [&str; 2] = ["bytes", "count"];
pub(crate) const GRAPHS: [&str; 3] = ["graphs", "execs", "bytes"];

impl<const N: usize> Change<N> {
    /// Returns the change of an amount.
    pub(crate) fn difference(&self, amount: usize) -> i64 {
        minus(self.after[amount], self.before[amount])
    }
}

impl<const N: usize> Serialize for Change<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("site", &*self.site)?;
        for (amount, name) in self.names.iter().enumerate() {
            map.serialize_entry(&format!("{name}_before"), &self.before[amount])?;
            map.serialize_entry(&format!("{name}_after"), &self.after[amount])?;
            map.serialize_entry(&format!("{name}_change"), &self.difference(amount))?;
        }
        if let Some(rate) = self.bytes_per_minute {
            map.serialize_entry("bytes_per_minute", &rate)?;
        }
        map.end()
    }
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
pub(crate) fn allocs(before: &Ledger, after: &Ledger, by: Match, filter: &Filter) -> Vec<Change<2>> {
    let amounts = |ledger: &Ledger| {
        let groups = allocs::group(ledger, filter, By::Stack, false).into_iter();
        groups.map(|group| (group.stack, [group.bytes, group.live])).collect()
    };
    let mut changes = changes([before, after], by, ALLOCS, amounts);
    changes.sort_by_key(|change| Reverse((change.difference(0), change.difference(1))));
    changes
}

/// Returns the changes of graphs and execs, largest growth first.
pub(crate) fn graphs(before: &Ledger, after: &Ledger, by: Match) -> Vec<Change<3>> {
    let held = |group: &graphs::Group| group.host_bytes.saturating_add(group.device_bytes);
    let amounts = |ledger: &Ledger| {
        let groups = graphs::group(ledger, &graphs::Filter::default(), graphs::By::Stack).into_iter();
        groups.map(|(_, group)| (group.stack, [group.graphs, group.execs, held(&group)])).collect()
    };
    let mut changes = changes([before, after], by, GRAPHS, amounts);
    changes.sort_by_key(|change| Reverse((change.difference(2), change.difference(1))));
    changes
}

/// Returns the call sites whose amounts differ; `amounts` returns those of a ledger's stacks.
fn changes<const N: usize>(
    ledgers: [&Ledger; 2],
    by: Match,
    names: [&'static str; N],
    amounts: impl Fn(&Ledger) -> Vec<(StackRef, [u64; N])>,
) -> Vec<Change<N>> {
    let of = |of: usize| amounts(ledgers[of]).into_iter().map(move |(stack, amounts)| ((of, stack), amounts));
    let (stacks, amounts): (Vec<_>, Vec<_>) = of(0).chain(of(1)).unzip();
    let mut sites: BTreeMap<Rc<str>, [[u64; N]; 2]> = BTreeMap::new();
    for ((&(of, _), amounts), site) in stacks.iter().zip(amounts).zip(StackNames::names(ledgers, by, &stacks)) {
        let sums = &mut sites.entry(site).or_insert([[0; N]; 2])[of];
        sums.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum = sum.saturating_add(amount));
    }
    sites.retain(|_, [before, after]| before != after);
    let sites = sites.into_iter();
    sites.map(|(site, [before, after])| Change { site, names, before, after, bytes_per_minute: None }).collect()
}
