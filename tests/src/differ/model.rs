//! A model of what a program has made so far, without a device. It suffices to know which operations are well defined.

use super::order::{Clock, Order, Touched, conflict};
use super::program::{EVENTS, Id};
use super::work::{Buf, Work};
use std::collections::{BTreeMap, BTreeSet};

/// Known facts about a node, or about all nodes of a graph together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub touched: Touched,
    /// The loads of modules that its functions come from.
    pub modules: BTreeSet<u32>,
    /// It has a host function.
    pub host: bool,
    /// It waits for an event.
    pub waits: bool,
    /// Events that it records.
    pub records: BTreeSet<u8>,
    /// It runs something at all. Only then do launches of one exec follow each other.
    pub runs: bool,
}

impl Facts {
    pub fn add(&mut self, other: &Facts) {
        for (buf, write) in &other.touched {
            *self.touched.entry(*buf).or_default() |= *write;
        }
        self.modules.extend(&other.modules);
        self.host |= other.host;
        self.waits |= other.waits;
        self.records.extend(&other.records);
        self.runs |= other.runs;
    }

    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Facts {
        let mut all = Facts::default();
        nodes.into_iter().filter(|node| !node.gone).for_each(|node| all.add(&node.facts));
        all
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub work: Work,
    pub after: BTreeSet<usize>,
    pub facts: Facts,
    /// The node was removed from its graph. Its number is not used again.
    pub gone: bool,
}

/// Nodes that come before `n`, in any number of steps.
pub fn before(nodes: &[Node], starts: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
    let (mut seen, mut todo) = (BTreeSet::new(), starts.into_iter().collect::<Vec<_>>());
    while let Some(n) = todo.pop() {
        if seen.insert(n) {
            todo.extend(&nodes[n].after);
        }
    }
    seen
}

/// True if a node that touches this at the place of `n` would race with a node beside it.
pub fn races(nodes: &[Node], n: usize, touched: &Touched) -> bool {
    let mine = before(nodes, [n]);
    nodes.iter().enumerate().any(|(other, node)| {
        let beside = !node.gone && !mine.contains(&other) && !before(nodes, [other]).contains(&n);
        beside && conflict(touched, &node.facts.touched)
    })
}

/// True if two nodes touch the same memory and neither comes before the other.
pub fn racy(nodes: &[Node]) -> bool {
    (0..nodes.len()).any(|n| !nodes[n].gone && races(nodes, n, &nodes[n].facts.touched))
}

#[derive(Clone, Debug)]
pub struct Graph {
    /// Told apart from an earlier graph of the same number.
    pub serial: u32,
    pub nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
pub struct Exec {
    pub serial: u32,
    /// The graph that it was made from.
    pub graph: Id,
    pub graph_serial: u32,
    /// Its nodes as they are now, in the order of its graph's nodes. `None` once an update has paired them in an
    /// unknown way.
    pub nodes: Option<Vec<Node>>,
    pub facts: Facts,
    /// The clock at which its last launch has finished.
    pub last: Clock,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub graphs: BTreeMap<Id, Graph>,
    pub execs: BTreeMap<Id, Exec>,
    /// The current load of each module.
    pub modules: BTreeMap<Id, u32>,
    pub order: Order,
    /// Streams that capture.
    pub capturing: BTreeSet<usize>,
    /// An update may have been refused, so execs may still touch what they touched before.
    pub doubt: bool,
    serial: u32,
}

impl Model {
    pub fn new() -> Self {
        let mut new = Self { serial: 0, ..Self::default() };
        new.load(0);
        new
    }

    pub fn serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    /// Passes over serial numbers that another thread's copy has used.
    pub fn skip_serials(&mut self, other: &Model) {
        self.serial = self.serial.max(other.serial);
    }

    pub fn load(&mut self, m: Id) {
        let serial = self.serial();
        self.modules.insert(m, serial);
    }

    /// True if all functions that it uses are still loaded.
    pub fn usable(&self, facts: &Facts) -> bool {
        facts.modules.iter().all(|load| self.modules.values().any(|live| live == load))
    }

    pub fn graph(&self, g: Id) -> Option<&Graph> {
        self.graphs.get(&g).filter(|graph| self.usable(&Facts::of(&graph.nodes)))
    }

    pub fn exec(&self, e: Id) -> Option<&Exec> {
        self.execs.get(&e).filter(|exec| self.usable(&exec.facts))
    }

    /// The node of a graph, unless it was removed.
    pub fn node(&self, g: Id, n: usize) -> Option<&Node> {
        self.graph(g)?.nodes.get(n).filter(|node| !node.gone)
    }

    /// The graph that an exec was made from, if it is still there.
    pub fn graph_of(&self, e: Id) -> Option<&Graph> {
        let exec = self.exec(e)?;
        self.graphs.get(&exec.graph).filter(|graph| graph.serial == exec.graph_serial)
    }

    /// The facts of this work. `None` if it names something that does not exist.
    pub fn facts(&self, work: &Work) -> Option<Facts> {
        let mut facts = Facts { runs: true, ..Facts::default() };
        let mut touch = |buf: Buf, write: bool| *facts.touched.entry(buf).or_default() |= write;
        let fits = |n: u32, at: u32| (1..=Buf::WORDS).contains(&(n.saturating_add(at)));
        let rows = |w: u32, h: u32, pitch: u32| w >= 1 && h >= 1 && w <= pitch && pitch * h <= Buf::WORDS * 4;
        let whole = |size: u32| matches!(size, 1 | 2 | 4);
        let plain = |buf: Buf| !buf.is_log();
        let fine = match work {
            Work::Fill { b, n, at, .. } => {
                touch(*b, true);
                b.is_device() && fits(*n, *at)
            }
            Work::Scale { d, s, n, .. } => {
                touch(*s, false);
                touch(*d, true);
                d.is_device() && s.is_device() && fits(*n, 0)
            }
            Work::Verify { b, n, m, .. } => {
                touch(*b, false);
                touch(*m, true);
                b.is_device() && m.is_device() && b != m && fits(*n, 0)
            }
            Work::Spin { b, us, .. } => {
                b.iter().for_each(|b| touch(*b, true));
                b.is_none_or(Buf::is_device) && *us <= 100_000
            }
            Work::Cluster { b, .. } => {
                touch(*b, true);
                b.is_device()
            }
            Work::Copy { d, s, n, d_at, s_at } => {
                touch(*s, false);
                touch(*d, true);
                d != s && plain(*d) && plain(*s) && *n > 0 && fits(*n, *d_at) && fits(*n, *s_at)
            }
            Work::Copy2 { d, s, w, h, d_pitch, s_pitch } => {
                touch(*s, false);
                touch(*d, true);
                d != s && plain(*d) && plain(*s) && rows(*w, *h, *d_pitch) && rows(*w, *h, *s_pitch)
            }
            Work::Set { b, n, size, at, .. } => {
                touch(*b, true);
                b.is_device() && *n > 0 && whole(*size) && fits((*n * *size).div_ceil(4), *at)
            }
            Work::Set2 { b, size, w, h, pitch, .. } => {
                touch(*b, true);
                b.is_device() && whole(*size) && pitch % size == 0 && rows(*w * *size, *h, *pitch)
            }
            Work::Temporary { b, n, .. } => {
                touch(*b, true);
                b.is_device() && *n > 0 && fits(*n, 0)
            }
            Work::Host { log, .. } => {
                touch(*log, true);
                facts.host = true;
                log.is_log()
            }
            Work::Empty => {
                facts.runs = false;
                true
            }
            Work::Record { ev } => {
                facts.runs = false;
                facts.records.insert(*ev);
                usize::from(*ev) < EVENTS
            }
            Work::Wait { ev } => {
                (facts.runs, facts.waits) = (false, true);
                usize::from(*ev) < EVENTS
            }
            Work::Child { g } => {
                facts = Facts::of(&self.graph(*g)?.nodes);
                true
            }
        };
        if let Some(k) = work.kernel() {
            facts.modules.insert(*self.modules.get(&k.m)?);
            let shape = k.grid <= 64 && k.block <= 512 && k.shared <= 32768 && k.cluster <= 8;
            return (fine && shape).then_some(facts);
        }
        fine.then_some(facts)
    }

    /// An exec made from a graph as it is now.
    pub fn instantiated(&mut self, e: Id, g: Id) {
        let serial = self.serial();
        let Some(graph) = self.graphs.get(&g) else { return };
        let facts = Facts::of(&graph.nodes);
        let (graph_serial, nodes) = (graph.serial, Some(graph.nodes.clone()));
        self.execs.insert(e, Exec { serial, graph: g, graph_serial, nodes, facts, last: Clock::default() });
    }

    /// Notes that an exec was updated from a graph. The places of its nodes stay known if both graphs were built alike.
    pub fn updated(&mut self, e: Id, g: Id) {
        let Some(graph) = self.graphs.get(&g).cloned() else { return };
        let Some(exec) = self.execs.get_mut(&e) else { return };
        let before = std::mem::replace(&mut exec.facts, Facts::of(&graph.nodes));
        if self.doubt {
            exec.facts.add(&before);
        }
        exec.nodes = exec.nodes.take().and_then(|old| paired(&old, &graph.nodes));
    }
}

/// The old nodes with the work of the new ones, if the new graph has as many nodes, of the same kinds, after the same
/// others.
fn paired(old: &[Node], new: &[Node]) -> Option<Vec<Node>> {
    let places = |nodes: &[Node]| (0..nodes.len()).filter(|n| !nodes[*n].gone).collect::<Vec<_>>();
    let (from, to) = (places(old), places(new));
    let at = |list: &[usize], n: &usize| list.iter().position(|place| place == n);
    let mut result = old.to_vec();
    for (o, n) in from.iter().zip(&to) {
        let (a, b) = (&old[*o], &new[*n]);
        let after = |node: &Node, list: &[usize]| node.after.iter().map(|n| at(list, n)).collect::<BTreeSet<_>>();
        if a.work.kind() != b.work.kind() || after(a, &from) != after(b, &to) {
            return None;
        }
        result[*o].facts = b.facts.clone();
        result[*o].work = b.work.clone();
    }
    (from.len() == to.len()).then_some(result)
}
