//! Ranks live allocations by the number of references that were seen to them, fewest first.
//!
//! Two searches are combined, since a program may move a pointer past one of them. Unreferenced groups of blocks that
//! refer to each other are found as in a garbage collector: by marking from blocks that are surely referred to.

use super::sites::Sites;
use super::{Ledger, totals};
use gpumem_wire::counters;
use gpumem_wire::layout::{ALLOC_EXPORTED, AllocSlot, StackRef};
use gpumem_wire::references::{Place, References, Seen};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;

/// State of an allocation, the most suspect first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Standing {
    /// Neither search saw a word that counts.
    NoneSeen,
    /// All words that count lie in device memory that is in this state itself.
    OnlyFromSuch,
    /// All words that refer to it look like the driver's, or lie in memory that is in this state itself. Some of them
    /// may not be the driver's.
    OnlyLikeDriver,
    /// Fewer than half of the typical number in this process. Used only if the driver's words cannot be distinguished.
    Few,
    /// The memory read has no word that counts, but part of the memory was not read.
    Unknown,
    Referred,
    /// The allocation was shared with other processes, which may have its address.
    Outside,
    /// Too young to be judged.
    Young,
}

impl Standing {
    /// `all_was_read`: see [`Ranked`].
    pub(crate) const fn words(self, all_was_read: bool) -> &'static str {
        match self {
            Self::NoneSeen if !all_was_read => "no reference seen in what was read",
            Self::NoneSeen => "no reference seen in two scans",
            Self::OnlyFromSuch => "only from memory that itself has none",
            Self::OnlyLikeDriver => "only the driver seems to refer to it",
            Self::Few => "few",
            Self::Unknown => "not known: not all was read",
            Self::Referred => "referred to",
            Self::Outside => "referred to from outside",
            Self::Young => "too young",
        }
    }

    /// As [`words`](Self::words), on a narrow terminal.
    pub(crate) const fn short(self, all_was_read: bool) -> &'static str {
        match self {
            Self::NoneSeen if !all_was_read => "none where read",
            Self::NoneSeen => "none seen",
            Self::OnlyFromSuch => "only from such",
            Self::OnlyLikeDriver => "only the driver's",
            Self::Unknown => "not known",
            Self::Outside => "from outside",
            Self::Referred | Self::Few | Self::Young => self.words(all_was_read),
        }
    }

    /// True if it is shown by default.
    pub(crate) const fn is_suspect(self) -> bool {
        matches!(self, Self::NoneSeen | Self::OnlyFromSuch | Self::OnlyLikeDriver | Self::Few)
    }
}

/// One allocation, and the words that refer to it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Held {
    pub standing: Standing,
    pub serial: u64,
    pub address: u64,
    pub bytes: u64,
    pub age_ns: u64,
    /// Number of words that count, the larger one of the two searches.
    pub references: u64,
    /// The same by place.
    pub seen: BTreeMap<&'static str, u32>,
    /// Host address of one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<u64>,
    #[serde(skip)]
    pub stack: StackRef,
}

/// Result of the ranking.
pub(crate) struct Ranked {
    /// The most suspect first; within one state by bytes.
    pub all: Vec<Held>,
    /// Number of live allocations of kinds that are not searched for.
    pub not_looked_for: u64,
    /// Fewest references to an allocation that is old enough, and the typical number: the median over call sites.
    pub least: u64,
    pub typical: u64,
    /// A call site that grows, or may grow, and has more than half of the allocations that are old enough: the typical
    /// number may be its own.
    pub mostly: Option<Rc<str>>,
    /// Memory that should have been read and could not be. Then no allocation is called lost.
    pub unread: Vec<String>,
    /// Live device allocations that no search can ever read: they may hold the only reference.
    pub never_read: u64,
    /// Live allocations whose record was dropped: they are not searched for, and their memory is not read.
    pub without_record: u64,
}

impl Ranked {
    pub(crate) fn all_was_read(&self) -> bool {
        self.unread.is_empty() && self.never_read == 0 && self.without_record == 0
    }
}

/// Returns the memory that the searches should have read and did not, with the reason: it may hold any address.
fn unread(searches: &[References; 2]) -> Vec<String> {
    let cut = [("host_incomplete", "host memory"), ("device_incomplete", "device memory")];
    let mut unread = Vec::new();
    for (search, (fact, memory)) in searches.iter().flat_map(|search| cut.map(|cut| (search, cut))) {
        let said = search.facts.get(fact).map(|why| format!("not all {memory} was read: {why}"));
        unread.extend(said.filter(|said| !unread.contains(said)));
    }
    let graphs = searches.iter().map(|search| search.number("graphs_unread")).max().unwrap_or(0);
    if graphs > 0 {
        unread.push(format!("{} could not be read", crate::text::count(graphs, "graph")));
    }
    unread
}

/// Returns the number of live allocations without a row in the table.
fn without_record(ledger: &Ledger) -> u64 {
    if ledger.snapshot.counter(counters::DROPPED_RECORDS) == 0 {
        return 0;
    }
    let listed = ledger.snapshot.allocs.iter().filter(|slot| slot.takes_memory()).count() as u64;
    totals::live(&ledger.snapshot, &ledger.status).count.saturating_sub(listed)
}

/// Returns the device allocations that a search passed over, without those freed meanwhile.
fn never_read(search: &References) -> u64 {
    let read = search.number("device_allocs").saturating_add(search.number("device_gone"));
    if search.facts.contains_key("device_incomplete") { 0 } else { search.number("device_wanted").saturating_sub(read) }
}

/// Combines two searches. Allocations younger than `older_ns` are not judged. `sites` names call sites, and `grows`
/// tells if one grows, as far as that is known.
pub(crate) fn rank(
    ledger: &Ledger,
    searches: &[References; 2],
    older_ns: u64,
    sites: &Sites,
    grows: impl Fn(&str) -> Option<bool>,
) -> Ranked {
    let both = |serial: u64| Some([searches[0].allocs.get(&serial)?, searches[1].allocs.get(&serial)?]);
    let mut all: Vec<(Held, [Seen; 2])> = Vec::new();
    let mut not_looked_for = 0;
    for slot in &ledger.snapshot.allocs {
        if !slot.takes_memory() {
            continue;
        }
        match both(slot.serial) {
            Some(seen) => all.push((held(ledger, slot, seen, older_ns), seen.map(|seen| *seen))),
            None => not_looked_for += 1,
        }
    }
    let mut judged: BTreeMap<Rc<str>, Vec<u64>> = BTreeMap::new();
    for (held, _) in all.iter().filter(|(held, _)| held.standing != Standing::Young) {
        judged.entry(sites.name(held.stack)).or_default().push(held.references);
    }
    let least = judged.values().flatten().copied().min().unwrap_or(0);
    let (typical, mostly) = (typical(&judged, &grows), mostly(&judged, &grows));
    // If the driver's words cannot be distinguished, they count too. Each allocation has some.
    let is_mixed = searches.iter().any(|search| search.facts.contains_key("driver_unknown"));
    let of_driver = if is_mixed { least } else { 0 };
    let few = typical.saturating_sub(of_driver).div_ceil(2).saturating_add(of_driver);
    let [reached, reached_or_like] = [false, true].map(|like| reached(&all, searches, like));
    let unread = unread(searches);
    for (held, seen) in all.iter_mut().filter(|(held, _)| held.standing == Standing::Referred) {
        let no_word = seen.iter().all(|seen| seen.references() == 0);
        let no_like = seen.iter().all(|seen| seen.of(Place::DriverLike) == 0);
        held.standing = match () {
            () if !unread.is_empty() && reached.contains(&held.serial) => Standing::Referred,
            () if !unread.is_empty() => Standing::Unknown,
            () if no_word && no_like => Standing::NoneSeen,
            () if !reached_or_like.contains(&held.serial) => Standing::OnlyFromSuch,
            () if !reached.contains(&held.serial) => Standing::OnlyLikeDriver,
            // If the driver's words are distinguished, one word of the program is enough.
            () if is_mixed && held.references < few => Standing::Few,
            () => Standing::Referred,
        };
    }
    let mut all: Vec<Held> = all.into_iter().map(|(held, _)| held).collect();
    let key = |held: &Held| (held.standing, held.references);
    all.sort_by(|a, b| key(a).cmp(&key(b)).then(b.bytes.cmp(&a.bytes)).then(a.serial.cmp(&b.serial)));
    let never_read = searches.iter().map(never_read).max().unwrap_or(0);
    Ranked { all, not_looked_for, least, typical, mostly, unread, never_read, without_record: without_record(ledger) }
}

/// Returns the median over call sites of each site's median. In a leak most blocks are lost ones, so their number does
/// not count, and growing sites are left out unless all grow.
fn typical(judged: &BTreeMap<Rc<str>, Vec<u64>>, grows: impl Fn(&str) -> Option<bool>) -> u64 {
    let of = |also_growing: bool| {
        let sites = judged.iter().filter(|(site, _)| also_growing || grows(site) != Some(true));
        median(sites.map(|(_, counts)| median(counts.clone()).unwrap_or(0)).collect())
    };
    of(false).or_else(|| of(true)).unwrap_or(0)
}

fn median(mut of: Vec<u64>) -> Option<u64> {
    of.sort_unstable();
    of.get(of.len() / 2).copied()
}

/// See [`Ranked::mostly`].
fn mostly(judged: &BTreeMap<Rc<str>, Vec<u64>>, grows: impl Fn(&str) -> Option<bool>) -> Option<Rc<str>> {
    let all: usize = judged.values().map(Vec::len).sum();
    let (site, _) = judged.iter().find(|(_, counts)| counts.len() * 2 > all && counts.len() > 1)?;
    (grows(site) != Some(false)).then(|| Rc::clone(site))
}

/// Returns the state before any comparison: `Referred` means still to be judged.
fn held(ledger: &Ledger, slot: &AllocSlot, seen: [&Seen; 2], older_ns: u64) -> Held {
    let age_ns = ledger.age(slot.time_ns);
    let standing = match () {
        () if slot.flags & ALLOC_EXPORTED != 0 => Standing::Outside,
        () if age_ns < older_ns => Standing::Young,
        () => Standing::Referred,
    };
    let more = |place: Place| seen[0].of(place).max(seen[1].of(place));
    let places = Place::ALL.iter().filter(|&&place| more(place) > 0);
    Held {
        standing,
        serial: slot.serial,
        address: slot.addr,
        bytes: slot.bytes,
        age_ns,
        references: seen[0].references().max(seen[1].references()),
        seen: places.map(|&place| (place.name(), more(place))).collect(),
        seen_at: [seen[1].at, seen[0].at].into_iter().find(|&at| at != 0),
        stack: slot.stack,
    }
}

/// Returns the serials of the records that are reached: from references outside of device memory, through the memory of
/// reached records. `like`: also count words that look like the driver's.
fn reached(all: &[(Held, [Seen; 2])], searches: &[References; 2], like: bool) -> FxHashSet<u64> {
    let mut edges: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
    for &(from, to) in searches.iter().flat_map(|search| &search.edges) {
        edges.entry(from).or_default().push(to);
    }
    let more = searches.iter().any(|search| search.facts.contains_key("device_edges_incomplete"));
    let has_from: FxHashSet<u64> = edges.values().flatten().copied().collect();
    let is_root = |(held, seen): &&(Held, [Seen; 2])| {
        let besides = |seen: &Seen| seen.references() > u64::from(seen.of(Place::Device));
        // If the owner of a word in device memory is unknown, it may be any allocation.
        let by_whom = |seen: &Seen| seen.of(Place::Device) > 0 && (more || !has_from.contains(&held.serial));
        let is_like = |seen: &Seen| like && seen.of(Place::DriverLike) > 0;
        held.standing != Standing::Referred || seen.iter().any(|seen| besides(seen) || by_whom(seen) || is_like(seen))
    };
    let mut reached: FxHashSet<u64> = all.iter().filter(is_root).map(|(held, _)| held.serial).collect();
    let mut open: Vec<u64> = reached.iter().copied().collect();
    while let Some(from) = open.pop() {
        for &to in edges.get(&from).into_iter().flatten() {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(sites: &[(&str, &[u64], usize)]) -> BTreeMap<Rc<str>, Vec<u64>> {
        sites.iter().map(|&(site, counts, times)| (site.into(), counts.repeat(times))).collect()
    }

    /// In a leak most blocks are lost ones.
    #[test]
    fn what_is_typical_is_taken_from_sites_that_do_not_grow() {
        let leak = judged(&[("lost", &[2], 500), ("cache", &[5, 6], 8), ("weights", &[4], 1)]);
        let grows = |site: &str| Some(site == "lost");
        assert_eq!((typical(&leak, grows), mostly(&leak, grows).as_deref()), (6, Some("lost")));
        // The growing site is not known yet: each site counts once.
        assert_eq!((typical(&leak, |_| None), mostly(&leak, |_| None).as_deref()), (4, Some("lost")));
        let flat = |_: &str| Some(false);
        assert_eq!((typical(&leak, flat), mostly(&leak, flat)), (4, None));
        let alone = judged(&[("lost", &[2], 500)]);
        assert_eq!((typical(&alone, grows), mostly(&alone, grows).as_deref()), (2, Some("lost")));
        assert_eq!((typical(&judged(&[]), grows), mostly(&judged(&[]), grows)), (0, None));
    }
}
