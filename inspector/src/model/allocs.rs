//! Live allocations, in groups.

use super::Ledger;
use super::key::GroupKey;
use super::parts::{Part, Parts};
use super::sites::Sites;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{ALLOC_SPILLED, AllocSlot, StackRef};
use gpumem_wire::location::{Location, Tally};
use rustc_hash::FxHashMap;

/// Grouping of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    #[default]
    /// The innermost function outside of GPU runtimes; if several stacks share it, with its callers.
    Site,
    /// The whole call stack.
    Stack,
    /// How the memory was allocated.
    Kind,
    /// Bytes asked for.
    Size,
    /// The thread that allocated.
    Thread,
    /// The tag that the program gave.
    Tag,
    /// The context.
    Context,
    /// The device of the context.
    Device,
}

/// Order of groups and allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    #[default]
    Bytes,
    Count,
    /// Oldest first.
    Age,
    /// What grew most in the later half of the samples, or since --since. A single allocation does not grow, so --all puts the newest first.
    Growth,
}

/// Selects allocations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Empty: every kind that takes memory of its own.
    pub kinds: Vec<AllocKind>,
    /// Include kinds without memory of their own: addresses, mappings, imports, graph nodes, parts.
    pub all_kinds: bool,
    pub min_bytes: u64,
    pub min_age_ns: u64,
    /// Only allocations made at this time or later, on the ledger's clock.
    pub since_ns: u64,
    pub tag: Option<String>,
    pub tid: Option<u32>,
    /// Only memory requested on the device that lies outside of it.
    pub spilled: bool,
}

/// A group of allocations with the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub key: GroupKey,
    pub live: u64,
    pub bytes: u64,
    /// Bytes and number of addresses, mappings, imports, graph nodes and parts. Their memory is counted elsewhere, so
    /// the other sums leave them out.
    pub address_bytes: u64,
    pub addresses: u64,
    /// Live bytes that were requested as device memory and lie outside of it.
    pub spilled_bytes: u64,
    /// Times of the oldest and newest live allocation; 0 if none is live.
    pub oldest_ns: u64,
    pub newest_ns: u64,
    /// Bytes and number ever allocated, if the ledger keeps them for this kind of group.
    pub total: Option<(u64, u64)>,
    /// Highest live bytes, if the ledger keeps them.
    pub peak_bytes: Option<u64>,
    /// Growth of its live bytes, if requested and if there are samples.
    pub growth: Option<i64>,
    /// The stack of one member.
    pub stack: StackRef,
}

impl Filter {
    /// True if the filter selects this allocation.
    fn wants(&self, ledger: &Ledger, alloc: &AllocSlot, tags: &mut FxHashMap<u32, bool>) -> bool {
        let kind = match AllocKind::from_u8(alloc.kind) {
            _ if self.kinds.is_empty() => self.all_kinds || alloc.takes_memory(),
            Some(kind) => self.kinds.contains(&kind),
            None => false,
        };
        let tag = |wanted: &String| {
            *tags.entry(alloc.tag).or_insert_with(|| ledger.snapshot.text(alloc.tag) == wanted.as_str())
        };
        kind && alloc.bytes >= self.min_bytes
            && (!self.spilled || alloc.flags & ALLOC_SPILLED != 0)
            && alloc.time_ns >= self.since_ns
            && (self.min_age_ns == 0 || ledger.age(alloc.time_ns) >= self.min_age_ns)
            && self.tid.is_none_or(|tid| tid == alloc.tid)
            && self.tag.as_ref().is_none_or(tag)
    }

    /// Returns a predicate for [`Iterator::filter`].
    pub(crate) fn on(&self, ledger: &Ledger) -> impl FnMut(&&AllocSlot) -> bool {
        let mut tags = FxHashMap::default();
        move |alloc| self.wants(ledger, alloc, &mut tags)
    }

    /// True if the filter selects everything that takes memory.
    pub(super) fn is_default(&self) -> bool {
        let Self { kinds, min_bytes, min_age_ns, since_ns, tag, tid, spilled, all_kinds: _ } = self;
        kinds.is_empty()
            && *min_bytes == 0
            && *min_age_ns == 0
            && *since_ns == 0
            && tag.is_none()
            && tid.is_none()
            && !spilled
    }
}

/// Returns the allocations that a filter selects.
pub(super) fn select<'a>(ledger: &'a Ledger, filter: &'a Filter) -> impl Iterator<Item = &'a AllocSlot> {
    ledger.snapshot.allocs.iter().filter(filter.on(ledger))
}

/// Returns the groups, unsorted. With `freed`, also groups without live members.
pub(crate) fn group(ledger: &Ledger, filter: &Filter, by: By, freed: bool) -> Vec<Group> {
    let sites = &if by == By::Site { Sites::of_allocs(ledger) } else { Sites::default() };
    let mut groups = Groups::default();
    for alloc in select(ledger, filter) {
        groups.add(number(by, alloc), alloc);
    }
    let mut merged: FxHashMap<GroupKey, Group> = FxHashMap::default();
    for (number, group) in groups.list {
        let key = key(ledger, sites, by, number);
        merge(&mut merged, Group { key, ..group });
    }
    totals(ledger, sites, filter, by, freed, &mut merged);
    merged.into_values().collect()
}

/// Returns the parts of each group's allocations that the program reported.
pub(crate) fn parts(ledger: &Ledger, filter: &Filter, by: By) -> FxHashMap<GroupKey, Vec<Part>> {
    let parts = Parts::of(ledger);
    let sites = if by == By::Site && parts.are_any() { Sites::of_allocs(ledger) } else { Sites::default() };
    let mut wants = filter.on(ledger);
    parts.by(ledger, |alloc| wants(&alloc).then(|| key(ledger, &sites, by, number(by, alloc))))
}

/// Returns the call stacks of one group with their sums, most bytes first.
pub(crate) fn stacks_of(ledger: &Ledger, sites: &Sites, filter: &Filter, by: By, wanted: &GroupKey) -> Vec<Group> {
    let mut is_wanted: FxHashMap<u64, bool> = FxHashMap::default();
    let mut groups = Groups::default();
    for alloc in select(ledger, filter) {
        let number = number(by, alloc);
        if *is_wanted.entry(number).or_insert_with(|| key(ledger, sites, by, number) == *wanted) {
            groups.add(u64::from(alloc.stack), alloc);
        }
    }
    let of_stack = |(_, group): (u64, Group)| Group { key: GroupKey::Stack(group.stack), ..group };
    let mut stacks: Vec<Group> = groups.list.into_iter().map(of_stack).collect();
    sort(&mut stacks, Sort::Bytes);
    stacks
}

/// Flag in a group's number: the other bits are a device, not a context.
const OF_DEVICE: u64 = 1 << 32;

/// Returns a cheap number that identifies a group: this runs once for each live allocation.
fn number(by: By, alloc: &AllocSlot) -> u64 {
    match by {
        By::Site | By::Stack => u64::from(alloc.stack),
        By::Kind => u64::from(alloc.kind),
        By::Size => alloc.bytes,
        By::Thread => u64::from(alloc.tid),
        By::Tag => u64::from(alloc.tag),
        By::Context => u64::from(alloc.context),
        By::Device => match alloc.location() {
            Location::Device(device) => OF_DEVICE | u64::from(device),
            _ => u64::from(alloc.context),
        },
    }
}

#[derive(Default)]
struct Groups {
    index: FxHashMap<u64, u32>,
    list: Vec<(u64, Group)>,
    /// The last answer: neighbours are often alike.
    last: Option<(u64, u32)>,
}

impl Groups {
    fn add(&mut self, number: u64, alloc: &AllocSlot) {
        let at = match self.last {
            Some((last, at)) if last == number => at,
            _ => *self.index.entry(number).or_insert_with(|| {
                self.list.push((number, Group::empty(alloc.stack)));
                self.list.len() as u32 - 1
            }),
        };
        self.last = Some((number, at));
        self.list[at as usize].1.add(alloc);
    }
}

impl Group {
    /// Adds an allocation to the sums.
    pub(crate) fn add(&mut self, alloc: &AllocSlot) {
        if alloc.takes_memory() {
            self.live += 1;
            self.bytes = self.bytes.saturating_add(alloc.bytes);
        } else {
            self.addresses += 1;
            self.address_bytes = self.address_bytes.saturating_add(alloc.bytes);
        }
        if alloc.flags & ALLOC_SPILLED != 0 {
            self.spilled_bytes = self.spilled_bytes.saturating_add(alloc.bytes);
        }
        self.oldest_ns = self.oldest_ns.min(alloc.time_ns);
        self.newest_ns = self.newest_ns.max(alloc.time_ns);
    }

    /// Adds another group to the sums.
    pub(crate) fn add_group(&mut self, other: &Self) {
        self.live += other.live;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.addresses += other.addresses;
        self.address_bytes = self.address_bytes.saturating_add(other.address_bytes);
        self.spilled_bytes = self.spilled_bytes.saturating_add(other.spilled_bytes);
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.newest_ns = self.newest_ns.max(other.newest_ns);
    }

    pub(crate) fn empty(stack: StackRef) -> Self {
        Self {
            key: GroupKey::Stack(0),
            live: 0,
            bytes: 0,
            address_bytes: 0,
            addresses: 0,
            spilled_bytes: 0,
            oldest_ns: u64::MAX,
            newest_ns: 0,
            total: None,
            peak_bytes: None,
            growth: None,
            stack,
        }
    }
}

/// Returns the key of a group of this [`number`].
pub(super) fn key(ledger: &Ledger, sites: &Sites, by: By, number: u64) -> GroupKey {
    match by {
        By::Site => GroupKey::Site(sites.name(number as StackRef)),
        By::Stack => GroupKey::Stack(number as StackRef),
        By::Kind => GroupKey::Kind(number as u8),
        By::Size => GroupKey::Size(number),
        By::Thread => GroupKey::Thread(number as u32),
        By::Tag => GroupKey::Tag(ledger.snapshot.text(number as u32).into_owned()),
        By::Context => GroupKey::Context(number as u16),
        By::Device if number & OF_DEVICE != 0 => GroupKey::Device(Some((number & !OF_DEVICE) as u32)),
        By::Device => GroupKey::Device(ledger.snapshot.contexts.get(&(number as u16)).map(|context| context.device)),
    }
}

fn merge(merged: &mut FxHashMap<GroupKey, Group>, group: Group) {
    match merged.get_mut(&group.key) {
        None => drop(merged.insert(group.key.clone(), group)),
        Some(into) => {
            into.add_group(&group);
            into.total = match (into.total, group.total) {
                (Some(a), Some(b)) => Some((a.0.wrapping_add(b.0), a.1.wrapping_add(b.1))),
                (a, b) => a.or(b),
            };
        }
    }
}

/// Adds the totals ever allocated, which the ledger keeps for stacks and kinds. A stack's totals cover all kinds, so
/// they are shown only if no filter narrows the live ones.
fn totals(
    ledger: &Ledger,
    sites: &Sites,
    filter: &Filter,
    by: By,
    freed: bool,
    merged: &mut FxHashMap<GroupKey, Group>,
) {
    let mut add = |key: GroupKey, stack: StackRef, total: (u64, u64)| {
        if freed || merged.contains_key(&key) {
            merge(merged, Group { key, total: Some(total), ..Group::empty(stack) });
        }
    };
    match by {
        By::Site | By::Stack if filter.is_default() => {
            let mut stacks: Vec<_> = ledger.snapshot.stacks.iter().collect();
            stacks.sort_unstable_by_key(|(stack, _)| **stack);
            for (&stack, totals) in stacks {
                if totals.allocs > 0 {
                    add(key(ledger, sites, by, u64::from(stack)), stack, (totals.allocs, totals.alloc_bytes));
                }
            }
        }
        By::Kind => {
            for row in Tally::all_of_memory() {
                let total = ledger.snapshot.counter(row.allocs());
                if total > 0 {
                    add(GroupKey::Kind(row.kind as u8), 0, (total, ledger.snapshot.counter(row.alloc_bytes())));
                }
            }
        }
        By::Context | By::Device => {
            for (&number, context) in &ledger.snapshot.contexts {
                let key = key(ledger, sites, by, u64::from(number));
                if let Some(group) = merged.get_mut(&key) {
                    group.peak_bytes = Some(group.peak_bytes.unwrap_or(0).saturating_add(context.peak_bytes));
                }
            }
        }
        _ => {}
    }
}

impl Ledger {
    /// Returns the device of an allocation.
    pub(crate) fn device_of(&self, alloc: &AllocSlot) -> Option<u32> {
        match alloc.location() {
            Location::Device(device) => Some(device.into()),
            _ => self.snapshot.contexts.get(&alloc.context).map(|context| context.device),
        }
    }

    /// Returns the location of an allocation in words: the graph of a graph node, and empty for other kinds without
    /// memory of their own.
    pub(crate) fn location(&self, alloc: &AllocSlot) -> String {
        match alloc.location() {
            Location::OwnDevice | Location::Device(_) => {
                self.device_of(alloc).map_or("device".into(), |device| format!("device {device}"))
            }
            Location::Host => "host".into(),
            Location::HostNode(node) => format!("host node {node}"),
            Location::Managed => "managed".into(),
            Location::Unknown => "unknown".into(),
            Location::Nowhere if alloc.kind == AllocKind::GraphNode as u8 => format!("graph {:#x}", alloc.extra),
            Location::Nowhere => String::new(),
        }
    }
}

/// Sorts groups; ties by stack, so that the order is the same each time.
pub(crate) fn sort(groups: &mut [Group], sort: Sort) {
    groups.sort_by(|a, b| {
        let order = match sort {
            Sort::Bytes => b.bytes.cmp(&a.bytes),
            Sort::Count => b.live.cmp(&a.live),
            Sort::Age => a.oldest_ns.cmp(&b.oldest_ns),
            Sort::Growth => b.growth.cmp(&a.growth),
        };
        order
            .then_with(|| b.bytes.cmp(&a.bytes))
            .then_with(|| b.total.cmp(&a.total))
            .then_with(|| a.stack.cmp(&b.stack))
    });
}
