//! Calls of the program about one node of an exec: set it, switch it on or off, or query it.

use super::InUse;
use crate::backend::graphs::{GraphCalls, Setter};
use crate::backend::source::Source;
use crate::gate;
use crate::graphs::handle::INVALID;
use crate::graphs::real::Lease;
use crate::graphs::store::ExecStore;
use crate::records;
use gpumem_abi::types::{Graph, GraphExec, GraphNode, SUCCESS, Status};
use gpumem_wire::kinds::{NodeKind, Pinned};
use std::ffi::c_uint;

/// The most levels of nested child graphs that are followed.
const MAX_DEPTH: u32 = 16;
/// A handle with more changes than this has them folded into its source.
const MANY_CHANGES: usize = 64;

impl InUse {
    /// Sets or queries one node for the program. `real` does so with a real exec and its node. `change` is the handle's
    /// record of it.
    ///
    /// # Errors
    /// A status for the program if the handle or the node is not valid.
    pub(crate) fn change_node(
        mut self,
        node: GraphNode,
        change: NodeChange,
        real: impl FnOnce(GraphExec, GraphNode) -> Status,
    ) -> Result<Status, Status> {
        let alive = self.is_graph_alive();
        let at = alive.then(|| self.place_of(node)).flatten();
        let mut lease = match self.real() {
            Ok(lease) => lease,
            Err(status) => return self.node_without(at, change).ok_or(status),
        };
        let template = lease.body().template.clone().ok_or(INVALID)?;
        let there = alive.then(|| {
            let place_of = |node| self.place_of(node);
            let inside = || {
                let _alone = template.alone();
                let inner = (self.body.graph as Graph, node);
                node_inside(self.store, inner, template.graph, place_of)
            };
            let there = at.and_then(|at| template.nodes.get(at as usize).copied());
            there.or_else(|| self.class.alone.then(inside).flatten()).map(|there| (at, there))
        });
        let Some((at, there)) = there.flatten() else {
            self.publish(lease);
            return Err(INVALID);
        };
        let status = {
            let _alone = template.alone();
            real(lease.real().exec(), there)
        };
        if status != SUCCESS || !change.changes() {
            self.publish(lease);
            return Ok(status);
        }
        let remembered = match (at, change) {
            (Some(at), NodeChange::Set(kind, setter)) => self.remember(&mut lease, at, kind, setter),
            (Some(at), NodeChange::Enabled(on)) => {
                switch(&mut self.body.edits_mut().disabled, at, on);
                switch(&mut lease.body().disabled, at, on);
                true
            }
            _ => false,
        };
        if remembered && !self.class.alone {
            self.source_changed();
            self.publish(lease);
        } else {
            self.own(lease, Pinned::NodeSet);
        }
        Ok(status)
    }

    /// As [`Self::change_node`], if no exec can be made. Natively there would be one, so the handle remembers the
    /// change and the next exec gets it. `None` if only the library can tell if it accepts the change.
    fn node_without(&mut self, at: Option<u32>, change: NodeChange) -> Option<Status> {
        if self.class.alone || self.body.apart().owned {
            return None;
        }
        let (library, sources) = (self.store.library(), self.store.sources());
        let shape = self.class.shape.clone();
        let Some(at) = at else { return Some(INVALID) };
        let has_switch = matches!(shape.kind(at as usize), NodeKind::Kernel | NodeKind::Memcpy | NodeKind::Memset);
        match change {
            NodeChange::Set(_, setter) if setter.params.is_null() => return Some(INVALID),
            NodeChange::Set(kind, setter) => {
                let refuses = sources.with_work(|work| {
                    let shape = shape.key.unpacked(&mut work.scratch);
                    // SAFETY: not NULL, and the program's own parameters for a setter of this kind.
                    // They are valid during its call, which this is part of.
                    shape.is_some_and(|shape| unsafe { library.calls.refuses(shape, at, kind, setter) })
                });
                if refuses {
                    return Some(INVALID);
                }
                let mut record = Vec::new();
                let within = library.relax_in(shape.context);
                // SAFETY: not NULL, and the program's own parameters for a setter of this kind.
                // They are valid during its call, which this is part of.
                let held = unsafe { library.calls.record(kind, setter, &mut record) };
                let takes = held
                    && sources.with_work(|work| {
                        let shape = shape.key.unpacked(&mut work.scratch);
                        shape.is_some_and(|shape| library.calls.takes(shape, at, kind, &record))
                    });
                drop(within);
                takes.then_some(())?;
                self.keep_change(at, record);
            }
            NodeChange::Enabled(on) if has_switch => switch(&mut self.body.edits_mut().disabled, at, on),
            NodeChange::IsEnabled(out) if !out.is_null() && has_switch => {
                // SAFETY: not NULL, and the program's own out-parameter. It takes a number during
                // the program's call, which this is part of.
                unsafe { *out = u32::from(!self.body.edits().disabled.contains(&at)) };
            }
            _ => return None,
        }
        self.source_changed();
        Some(SUCCESS)
    }

    /// Remembers a setter's change. Returns true if a source can hold it.
    fn remember(&mut self, lease: &mut Lease, at: u32, kind: NodeKind, setter: Setter) -> bool {
        let mut record = Vec::new();
        // SAFETY: the library has just accepted these parameters for a node of this kind, in the
        // program's call that this is part of.
        if !unsafe { self.store.library().calls.record(kind, setter, &mut record) } {
            return false;
        }
        lease.body().content.replace(at as usize, &record);
        self.keep_change(at, record);
        true
    }

    fn keep_change(&mut self, at: u32, record: Vec<u8>) {
        let body = &mut self.body;
        let changes = &mut body.edits_mut().changes;
        changes.retain(|(known, _)| *known != at);
        changes.push((at, record.into()));
        if changes.len() > MANY_CHANGES {
            self.store.sources().with_work(|work| {
                let base = body.class.as_ref().and_then(|class| class.shape.base(&mut work.scratch));
                if let Some(base) = base.filter(|_| work.unfold(body)) {
                    body.source = Some(Source::fold(&work.target, Some(&base), &mut work.scratch).into());
                    body.take_changes();
                }
            });
        }
    }

    /// Returns true if the graph is alive. As in the library, setters accept a graph's nodes as long as the graph
    /// lives.
    fn is_graph_alive(&self) -> bool {
        let Some(serial) = self.body.graph_serial else { return true };
        let now = gate::record_if_started(|shim| records::graphs::serial(shim, self.body.graph));
        now.is_none_or(|now| now == Some(serial.get()))
    }

    /// Returns the index of one of the program's nodes in the graph that the handle came from.
    fn place_of(&self, node: GraphNode) -> Option<u32> {
        match &self.body.apart().nodes {
            Some(nodes) => self.store.sources().with_work(|work| nodes.place_of(node, &mut work.scratch)),
            // The graph was folded. The program's nodes are now those of the graph that was built for it since.
            None => self.store.sources().place_in_unfolded(self.body.graph as Graph, node),
        }
    }
}

/// Switches a node on or off in a list of those that are off.
fn switch(disabled: &mut Vec<u32>, at: u32, on: bool) {
    disabled.retain(|&known| known != at);
    if !on {
        disabled.push(at);
    }
}

/// Record of a call about one node, for the handle.
pub(crate) enum NodeChange {
    /// A query if the node is enabled, with the address for the answer.
    IsEnabled(*mut c_uint),
    Set(NodeKind, Setter),
    Enabled(bool),
    /// A change that no source can hold.
    Other,
}

impl NodeChange {
    pub(crate) fn changes(&self) -> bool {
        !matches!(self, Self::IsEnabled(_))
    }
}

/// Returns the node inside a child graph of `to` at the same index as `node` has inside a child graph of `from`.
/// `place_of` returns the indices that nodes of `from` had when `to` was made of it. The program may have removed nodes
/// and added others since.
fn node_inside(
    store: &ExecStore,
    (from, node): (Graph, GraphNode),
    to: Graph,
    place_of: impl Fn(GraphNode) -> Option<u32>,
) -> Option<GraphNode> {
    let calls = store.library().calls;
    let (ours, theirs) = (calls.nodes(store.sources().unfolded(from)?)?, calls.nodes(to)?);
    ours.into_iter().find_map(|ours| {
        let from = calls.child_graph(ours)?;
        let theirs = *theirs.get(place_of(ours)? as usize)?;
        node_in(calls, from, node, calls.child_graph(theirs)?, 1)
    })
}

fn node_in(calls: &dyn GraphCalls, from: Graph, node: GraphNode, to: Graph, depth: u32) -> Option<GraphNode> {
    let (ours, theirs) = (calls.nodes(from)?, calls.nodes(to)?);
    if depth == MAX_DEPTH || ours.len() != theirs.len() {
        return None;
    }
    if let Some(at) = ours.iter().position(|&known| known == node) {
        return theirs.get(at).copied();
    }
    ours.iter().zip(&theirs).find_map(|(&a, &b)| {
        let (a, b) = (calls.child_graph(a)?, calls.child_graph(b)?);
        node_in(calls, a, node, b, depth + 1)
    })
}
