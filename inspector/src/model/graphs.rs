//! Graphs and execs: per call site, and one by one.

use super::Ledger;
use super::cache::Cache;
use super::execs::{held, hits, state, state_name, why_pinned};
use super::key::GroupKey;
use super::sites::Sites;
use gpumem_wire::kinds::{ExecState, NodeKind, Pinned};
use gpumem_wire::layout::{ExecSlot, GraphSlot, StackRef};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, HashMap};

/// Graphs and execs with the same key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Group {
    #[serde(skip)]
    pub stack: StackRef,
    pub graphs: u64,
    pub execs: u64,
    /// Nodes of the execs, by kind.
    #[serde(serialize_with = "with_names")]
    pub nodes: Nodes,
    /// Nodes of the graphs.
    pub graph_nodes: u64,
    pub launches: u64,
    #[serde(skip)]
    pub last_launch_ns: u64,
    pub updates: u64,
    pub failed_updates: u64,
    pub node_sets: u64,
    pub instantiate_ns: u64,
    /// Execs under the graph cache, by the location of their real exec.
    pub resident: u64,
    pub folded: u64,
    pub gone: u64,
    /// Execs that are not under it, by reason.
    #[serde(rename = "pinned_by")]
    pub pinned: BTreeMap<&'static str, u64>,
    pub source_bytes: u64,
    pub hits: u64,
    pub retargets: u64,
    pub instantiations: u64,
    pub evictions: u64,
    pub saved_ns: u64,
    /// Bytes held now, sources included; estimated.
    #[serde(rename = "host_bytes_estimated")]
    pub host_bytes: u64,
    #[serde(rename = "device_bytes_estimated")]
    pub device_bytes: u64,
    #[serde(skip)]
    pub oldest_ns: u64,
    /// Number ever made at these stacks.
    #[serde(rename = "graphs_ever")]
    pub graphs_total: u64,
    #[serde(rename = "execs_ever")]
    pub execs_total: u64,
}

fn with_names<S: Serializer>(nodes: &Nodes, to: S) -> Result<S::Ok, S::Error> {
    by_name(nodes).serialize(to)
}

/// Nodes by the number of their kind.
pub(super) type Nodes = [u64; 16];

/// Grouping of graphs and execs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    #[default]
    /// The innermost function outside of GPU runtimes; if several stacks share it, with its callers.
    Site,
    /// The whole call stack.
    Stack,
    /// The thread.
    Thread,
    /// The tag that the program gave.
    Tag,
    /// The context.
    Context,
    /// The class: handles that can share real execs
    Class,
    /// The state of the handle: resident, folded, gone, or native with the reason
    State,
}

/// Selects execs; any condition leaves graphs out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only execs that are pinned for a reason.
    pub pinned: bool,
    /// Only these states; empty: all.
    pub states: Vec<ExecState>,
}

impl Filter {
    /// True if the filter selects every graph and exec.
    pub(crate) fn is_open(&self) -> bool {
        !self.pinned && self.states.is_empty()
    }

    /// True if the filter selects this exec.
    pub(crate) fn fits(&self, exec: &ExecSlot) -> bool {
        (!self.pinned || why_pinned(exec).is_some())
            && (self.states.is_empty() || state(exec).is_some_and(|state| self.states.contains(&state)))
    }
}

/// Returns the groups, most memory first.
pub(crate) fn group(ledger: &Ledger, filter: &Filter, by: By) -> Vec<(GroupKey, Group)> {
    let sites = if by == By::Site { Sites::of_graphs(ledger) } else { Sites::default() };
    let mut groups: BTreeMap<GroupKey, Group> = BTreeMap::new();
    let key = |stack, tid, tag, context| match by {
        By::Site => GroupKey::Site(sites.name(stack)),
        By::Stack => GroupKey::Stack(stack),
        By::Thread => GroupKey::Thread(tid),
        By::Tag => GroupKey::Tag(ledger.snapshot.text(tag).into_owned()),
        By::Context => GroupKey::Context(context),
        By::Class => GroupKey::Class(None),
        By::State => GroupKey::State("", ""),
    };
    for graph in ledger.snapshot.graphs.iter().filter(|_| filter.is_open()) {
        let group = groups.entry(key(graph.stack, graph.tid, graph.tag, graph.context)).or_default();
        group.add_graph(graph);
    }
    for exec in ledger.snapshot.execs.iter().filter(|exec| filter.fits(exec)) {
        let key = match by {
            By::Class => GroupKey::Class(Some(exec.class)),
            By::State => GroupKey::State(state_name(exec), why_pinned(exec).map_or("", Pinned::name)),
            _ => key(exec.stack, exec.tid, exec.tag, exec.context),
        };
        groups.entry(key).or_default().add_exec(exec);
    }
    if matches!(by, By::Site | By::Stack) {
        for (&stack, totals) in &ledger.snapshot.stacks {
            if let Some(group) = groups.get_mut(&key(stack, 0, 0, 0)) {
                group.graphs_total = group.graphs_total.saturating_add(totals.graphs);
                group.execs_total = group.execs_total.saturating_add(totals.execs);
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| {
        std::cmp::Reverse((group.host_bytes.saturating_add(group.device_bytes), group.execs, group.graphs))
    });
    groups
}

/// Returns the sum of all graphs and execs, with parked real execs.
pub(crate) fn total(ledger: &Ledger, cache: &Cache) -> Group {
    let mut total = Group {
        host_bytes: cache.parked_host_bytes_estimated,
        device_bytes: cache.parked_device_bytes_estimated,
        ..Group::default()
    };
    ledger.snapshot.graphs.iter().for_each(|graph| total.add_graph(graph));
    ledger.snapshot.execs.iter().for_each(|exec| total.add_exec(exec));
    total
}

impl Group {
    fn seen(&mut self, stack: StackRef, time_ns: u64) {
        if self.graphs + self.execs == 0 {
            (self.stack, self.oldest_ns) = (stack, time_ns);
        }
        self.oldest_ns = self.oldest_ns.min(time_ns);
    }

    fn add_graph(&mut self, graph: &GraphSlot) {
        self.seen(graph.stack, graph.time_ns);
        self.graphs += 1;
        self.graph_nodes = self.graph_nodes.saturating_add(graph.nodes);
        self.host_bytes = self.host_bytes.saturating_add(graph.held_bytes());
    }

    fn add_exec(&mut self, exec: &ExecSlot) {
        self.seen(exec.stack, exec.time_ns);
        self.execs += 1;
        for (sum, &n) in self.nodes.iter_mut().zip(&exec.nodes) {
            *sum += u64::from(n);
        }
        self.launches = self.launches.saturating_add(exec.launches);
        self.last_launch_ns = self.last_launch_ns.max(exec.last_launch_ns);
        self.updates = self.updates.saturating_add(exec.updates);
        self.failed_updates = self.failed_updates.saturating_add(exec.failed_updates);
        self.node_sets = self.node_sets.saturating_add(exec.node_sets);
        self.instantiate_ns = self.instantiate_ns.saturating_add(exec.instantiate_ns);
        match state(exec) {
            Some(ExecState::Resident) => self.resident += 1,
            Some(ExecState::Folded) => self.folded += 1,
            Some(ExecState::Gone) => self.gone += 1,
            Some(ExecState::Native) | None => {}
        }
        if let Some(reason) = why_pinned(exec) {
            *self.pinned.entry(reason.name()).or_insert(0) += 1;
        }
        self.hits = self.hits.saturating_add(hits(exec).unwrap_or(0));
        self.retargets = self.retargets.saturating_add(exec.retargets);
        self.instantiations = self.instantiations.saturating_add(exec.instantiations);
        self.evictions = self.evictions.saturating_add(exec.evictions);
        self.saved_ns = self.saved_ns.saturating_add(exec.saved_ns);
        let held = held(exec);
        self.source_bytes = self.source_bytes.saturating_add(held.source);
        self.host_bytes = self.host_bytes.saturating_add(held.host_all());
        self.device_bytes = self.device_bytes.saturating_add(held.device);
    }
}

/// Returns the nodes by the name of their kind, without kinds that have none.
pub(crate) fn by_name(nodes: &Nodes) -> BTreeMap<&'static str, u64> {
    let mut named = BTreeMap::new();
    for (number, &n) in nodes.iter().enumerate().filter(|&(_, &n)| n > 0) {
        let kind = NodeKind::from_u8(number as u8).unwrap_or(NodeKind::Other);
        *named.entry(kind.name()).or_insert(0) += n;
    }
    named
}

/// Returns the execs by the serial of the graph that they were instantiated from.
pub(crate) fn execs_by_graph(ledger: &Ledger) -> HashMap<u64, Vec<&ExecSlot>> {
    let mut map: HashMap<u64, Vec<&ExecSlot>> = HashMap::new();
    for exec in ledger.snapshot.execs.iter().filter(|exec| exec.graph_serial != 0) {
        map.entry(exec.graph_serial).or_default().push(exec);
    }
    map
}
