//! Builds graphs node by node, and changes graphs and nodes of execs. Changes that would let a graph race with itself
//! are left out.

use super::api::{Api, Status};
use super::model::{Facts, Model, Node, before, races, racy};
use super::order::conflict;
use super::program::{Id, NewNode, Op};
use super::work::Work;
use super::world::{MOST_NODES, World, text};
use std::collections::BTreeSet;

impl<A: Api> World<A> {
    pub(super) fn graph(&mut self, g: Id, nodes: &[NewNode]) -> Option<()> {
        self.room(g)?;
        let status = self.api.graph(g);
        if self.say(format!("create g{g}"), status) {
            self.made(g, Vec::new());
            for node in nodes {
                self.add(g, node);
            }
        }
        Some(())
    }

    pub(super) fn add(&mut self, g: Id, new: &NewNode) -> Option<()> {
        let facts = self.model.facts(&new.work)?;
        let nodes = &self.model.graph(g)?.nodes;
        let own =
            matches!(new.work, Work::Child { g: child } if child == g) || matches!(new.work, Work::Temporary { .. });
        (nodes.len() < MOST_NODES && !own).then_some(())?;
        let there = |n: &usize| nodes.get(*n).is_some_and(|node| !node.gone);
        let mut after: BTreeSet<usize> = new.after.iter().copied().filter(there).collect();
        // No node that may run beside the new node may touch what the new node touches.
        for (n, node) in nodes.iter().enumerate().rev() {
            if !node.gone
                && conflict(&node.facts.touched, &facts.touched)
                && !before(nodes, after.iter().copied()).contains(&n)
            {
                after.insert(n);
            }
        }
        let mut work = new.work.clone();
        if let Some(k) = work.kernel_mut() {
            k.early = false;
        }
        let list: Vec<usize> = after.iter().copied().collect();
        let status = self.api.add(g, &list, &work);
        if self.say(format!("g{g} node {}: {} after {list:?}", nodes_of(&self.model, g), text(&work)), status) {
            let graph = self.model.graphs.get_mut(&g)?;
            graph.nodes.push(Node { work, after, facts, gone: false });
        }
        Some(())
    }

    pub(super) fn change(&mut self, op: &Op) -> Option<()> {
        match op {
            Op::Remove { g, n } => {
                self.model.node(*g, *n).filter(|_| self.api.has_node(*g, *n))?;
                let mut nodes = self.model.graph(*g)?.nodes.clone();
                nodes[*n].gone = true;
                for node in &mut nodes {
                    node.after.remove(n);
                }
                self.accept(*g, nodes, |api| api.remove(*g, *n), format!("g{g} remove node {n}"))
            }
            Op::Edge { g, from, to, on } => {
                self.model.node(*g, *from).and(self.model.node(*g, *to))?;
                (self.api.has_node(*g, *from) && self.api.has_node(*g, *to)).then_some(())?;
                let mut nodes = self.model.graph(*g)?.nodes.clone();
                (nodes[*to].after.contains(from) != *on).then_some(())?;
                (!before(&nodes, [*from]).contains(to)).then_some(())?;
                if *on {
                    nodes[*to].after.insert(*from)
                } else {
                    nodes[*to].after.remove(from)
                };
                self.accept(*g, nodes, |api| api.edge(*g, *from, *to, *on), format!("g{g} edge {from} -> {to} {on}"))
            }
            Op::Set { g, n, to } => {
                let old = self.model.node(*g, *n).filter(|_| self.api.has_node(*g, *n))?.work.clone();
                let mut facts = self.model.facts(to)?;
                (!matches!(to, Work::Child { .. } | Work::Empty | Work::Temporary { .. })).then_some(())?;
                let mut to = to.clone();
                if let Some(k) = to.kernel_mut() {
                    // Attributes of the node stay as they are.
                    let kept = old.kernel().cloned().unwrap_or_default();
                    (k.cluster, k.cooperative, k.priority, k.early) =
                        (kept.cluster, kept.cooperative, kept.priority, false);
                }
                let mut nodes = self.model.graph(*g)?.nodes.clone();
                if old.kind() != to.kind() {
                    // The driver refuses the change, so the node stays as it was.
                    facts = nodes[*n].facts.clone();
                } else {
                    nodes[*n].work = to.clone();
                }
                nodes[*n].facts = facts;
                self.accept(*g, nodes, |api| api.set(*g, *n, &to), format!("g{g} node {n} set {}", text(&to)))
            }
            Op::Attributes { g, n, k } => {
                let mut nodes = self.model.graph(*g)?.nodes.clone();
                self.model.node(*g, *n).filter(|_| self.api.has_node(*g, *n))?;
                let own = nodes[*n].work.kernel_mut()?;
                (own.cluster, own.cooperative, own.priority) = (k.cluster, k.cooperative, k.priority);
                let what = format!(
                    "g{g} node {n} cluster {} cooperative {} priority {}",
                    k.cluster, k.cooperative, k.priority
                );
                self.accept(*g, nodes, |api| api.attributes(*g, *n, k), what)
            }
            Op::CopyAttributes { g, n, from } => {
                let other = self.model.node(*g, *from).filter(|_| self.api.has_node(*g, *from))?.work.kernel()?.clone();
                self.model.node(*g, *n).filter(|_| self.api.has_node(*g, *n))?;
                let mut nodes = self.model.graph(*g)?.nodes.clone();
                let own = nodes[*n].work.kernel_mut()?;
                (own.cluster, own.cooperative, own.priority) = (other.cluster, other.cooperative, other.priority);
                self.accept(
                    *g,
                    nodes,
                    |api| api.copy_attributes(*g, *n, *from),
                    format!("g{g} node {n} attributes of {from}"),
                )
            }
            _ => None,
        }
    }

    /// Makes a change to a graph unless that would make it race with itself.
    fn accept(&mut self, g: Id, nodes: Vec<Node>, call: impl FnOnce(&mut A) -> Status, what: String) -> Option<()> {
        (!racy(&nodes)).then_some(())?;
        let status = call(&mut self.api);
        if self.say(what, status) {
            self.model.graphs.get_mut(&g)?.nodes = nodes;
        }
        Some(())
    }

    /// The graph of an exec, if the program has a handle of that node of it.
    pub(super) fn exec_node(&self, e: Id, n: usize) -> Option<Id> {
        let graph = self.model.graph_of(e)?;
        let g = self.model.execs.get(&e)?.graph;
        graph.nodes.get(n).filter(|node| !node.gone && self.model.usable(&node.facts))?;
        self.api.has_node(g, n).then_some(g)
    }

    pub(super) fn set_exec(&mut self, op: &Op) -> Option<()> {
        let Op::SetExec { e, n, to, any, of } = op else { return None };
        let facts = self.model.facts(to)?;
        (!matches!(to, Work::Empty | Work::Temporary { .. })).then_some(())?;
        let g = match of {
            Some(g) => {
                self.model.node(*g, *n).filter(|_| self.api.has_node(*g, *n))?;
                *g
            }
            None => self.exec_node(*e, *n)?,
        };
        let exec = self.model.exec(*e)?;
        // A node made after the exec is none of its nodes.
        let mut nodes = exec.nodes.clone()?;
        let foreign = exec.graph != g || Some(exec.graph_serial) != self.model.graphs.get(&g).map(|g| g.serial);
        let known = !foreign && nodes.get(*n).is_some_and(|node| !node.gone);
        if known && nodes[*n].work.kind() == to.kind() {
            (!races(&nodes, *n, &facts.touched)).then_some(())?;
            nodes[*n].facts = facts;
            nodes[*n].work = to.clone();
        }
        let status = self.api.set_exec(*e, g, *n, to, *any);
        let what = format!("e{e} node {n} of g{g} set {}{}", text(to), if *any { " (any)" } else { "" });
        if self.say(what, status) {
            let exec = self.model.execs.get_mut(e)?;
            exec.facts.add(&Facts::of(&nodes));
            exec.facts.modules = Facts::of(&nodes).modules;
            exec.nodes = Some(nodes);
        }
        Some(())
    }
}

fn nodes_of(model: &Model, g: Id) -> usize {
    model.graphs.get(&g).map_or(0, |graph| graph.nodes.len())
}
