//! The shape of a graph as bytes: written while a graph is read, parsed when one is built or run.
//!
//! ```text
//! words of 64 bits: context, number of nodes, of edges, of sets
//!   per set: number of attributes, then per attribute: id, value (8 words)
//!   per node: tag; of a kernel, the tag in the lower half and the set in the upper
//!   per edge: from in the lower half and to in the upper, then data
//! a byte per node: kind
//! ```

use super::layout::AttributeValue;
use gpumem_wire::kinds::NodeKind;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// Attributes that a kernel node can have; `CU_LAUNCH_ATTRIBUTE_*`.
pub(super) mod attribute {
    pub(crate) const ACCESS_POLICY_WINDOW: u32 = 1;
    pub(crate) const COOPERATIVE: u32 = 2;
    pub(crate) const CLUSTER_DIMENSION: u32 = 4;
    pub(crate) const CLUSTER_SCHEDULING: u32 = 5;
    pub(crate) const PRIORITY: u32 = 8;
    pub(crate) const SYNC_DOMAIN_MAP: u32 = 9;
    pub(crate) const SYNC_DOMAIN: u32 = 10;
    pub(crate) const PREFERRED_CLUSTER: u32 = 11;
    pub(crate) const DEVICE_UPDATABLE: u32 = 13;
    pub(crate) const CARVEOUT: u32 = 14;
    pub(crate) const NVLINK_SCHEDULING: u32 = 16;

    /// Attributes that are asked of each node.
    pub(crate) const OF_NODES: [u32; 4] = [COOPERATIVE, CLUSTER_DIMENSION, PRIORITY, DEVICE_UPDATABLE];
    /// Hints to the scheduler and the caches, which change no result: one node of each function in a graph is asked.
    pub(crate) const OF_FUNCTIONS: [u32; 7] = [
        ACCESS_POLICY_WINDOW,
        CLUSTER_SCHEDULING,
        SYNC_DOMAIN_MAP,
        SYNC_DOMAIN,
        PREFERRED_CLUSTER,
        CARVEOUT,
        NVLINK_SCHEDULING,
    ];
    /// Attributes of launches or streams only: an empty entry, how to wait for a stream, and edges and events that a
    /// launch makes.
    pub(crate) const OF_LAUNCHES: [u32; 5] = [0, 3, 6, 7, 12];
}

/// Attributes of one kernel node, as far as the driver tells them.
pub(super) type Set = Vec<(u32, AttributeValue)>;

/// One edge: indexes of its nodes, and `CUgraphEdgeData`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub from: u32,
    pub to: u32,
    pub data: u64,
}

/// The kernel's parameters were given in one buffer, and are read back in that form. No trait uses this bit.
pub(super) const PACKED: u64 = 1 << 31;

/// One node of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub kind: NodeKind,
    /// For kernels: index of the attributes.
    pub set: u16,
    /// For kernels: the function's traits and [`PACKED`]. For copies and memsets: the properties that a setter cannot
    /// change.
    pub tag: u64,
}

/// A shape, parsed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub context: u64,
    pub sets: Vec<Set>,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
}

impl Shape {
    pub(super) fn clear(&mut self) {
        self.sets.clear();
        self.nodes.clear();
        self.edges.clear();
    }

    /// True if a node is a cooperative kernel's: it takes no parameters in one block (measured on an H200, driver 580).
    pub(super) fn is_cooperative(&self, node: usize) -> bool {
        let set = self.nodes.get(node).and_then(|node| self.sets.get(usize::from(node.set)));
        let value = set.and_then(|set| set.iter().find(|(id, _)| *id == attribute::COOPERATIVE));
        value.is_some_and(|(_, value)| value[0] as u32 != 0)
    }

    /// Writes the shape as words, and the kinds of its nodes behind them.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        let mut push = |word: u64| out.extend_from_slice(&word.to_le_bytes());
        push(self.context);
        [self.nodes.len(), self.edges.len(), self.sets.len()].iter().for_each(|&len| push(len as u64));
        for set in &self.sets {
            push(set.len() as u64);
            for (id, value) in set {
                push(u64::from(*id));
                value.iter().for_each(|word| push(*word));
            }
        }
        // Only kernels have a set, and their tags have 32 bits.
        self.nodes.iter().for_each(|node| push(node.tag | u64::from(node.set) << 32));
        for edge in &self.edges {
            push(u64::from(edge.from) | u64::from(edge.to) << 32);
            push(edge.data);
        }
        out.extend(self.nodes.iter().map(|node| node.kind as u8));
    }

    /// Parses a shape; `None` for bytes that [`Shape::write`] did not write.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let nodes = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?) as usize;
        let (words, kinds) = bytes.split_at(bytes.len().checked_sub(nodes)?);
        let (words, rest) = words.as_chunks();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next();
        let mut shape = Self { context: next()?, ..Self::default() };
        let [_, edges, sets] = [next()?, next()?, next()?];
        for _ in 0..sets {
            let mut set = Set::new();
            for _ in 0..next()? {
                let id = next()? as u32;
                let mut value = AttributeValue::default();
                for word in &mut value {
                    *word = next()?;
                }
                set.push((id, value));
            }
            shape.sets.push(set);
        }
        for &kind in kinds {
            let (kind, word) = (NodeKind::from_u8(kind)?, next()?);
            let is_kernel = kind == NodeKind::Kernel;
            let (set, tag) = if is_kernel { ((word >> 32) as u16, word & u64::from(u32::MAX)) } else { (0, word) };
            shape.nodes.push(Node { kind, set, tag });
        }
        for _ in 0..edges {
            let (ends, data) = (next()?, next()?);
            shape.edges.push(Edge { from: ends as u32, to: (ends >> 32) as u32, data });
        }
        let inside = shape.edges.iter().all(|edge| edge.from.max(edge.to) < nodes as u32);
        (next().is_none() && rest.is_empty() && inside).then_some(shape)
    }

    /// Returns a fingerprint of the kinds of nodes, their attributes, and the kinds of edges. These alone decide if a
    /// graph can be built again.
    pub(super) fn features(&self) -> u64 {
        let kinds = self.nodes.iter().fold(0_u32, |kinds, node| kinds | 1 << (node.kind as u32 % 32));
        let mut edges: Vec<u64> = self.edges.iter().map(|edge| edge.data).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut hasher = FxHasher::default();
        (self.context, kinds, &self.sets, edges).hash(&mut hasher);
        hasher.finish()
    }

    /// True if an update that the driver accepts leaves an exec of this shape with exactly the other's nodes. For that,
    /// both need the same kinds and edges, by which nodes are paired, and the same attributes, since some of those stay
    /// unchanged (measured on an H200, driver 580). The driver refuses changes that a copy or memset cannot make.
    pub(super) fn becomes(&self, other: &Self) -> bool {
        let set = |of: &Self, node: &Node| of.sets.get(usize::from(node.set)).cloned();
        let alike = |(a, b): (&Node, &Node)| match (a.kind, b.kind) {
            (NodeKind::Kernel, NodeKind::Kernel) => a.tag & !PACKED == b.tag & !PACKED && set(self, a) == set(other, b),
            (a, b) => a == b,
        };
        self.context == other.context
            && self.edges == other.edges
            && self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(alike)
    }

    /// Returns indexes of all nodes, each behind its dependencies; `None` if the edges form a circle.
    pub(super) fn in_order(&self) -> Option<Vec<u32>> {
        let mut waits = vec![0_u32; self.nodes.len()];
        let mut next: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for edge in &self.edges {
            waits[edge.to as usize] += 1;
            next[edge.from as usize].push(edge.to);
        }
        let mut ready: std::collections::VecDeque<u32> =
            (0..self.nodes.len() as u32).filter(|&node| waits[node as usize] == 0).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(node) = ready.pop_front() {
            order.push(node);
            for &after in &next[node as usize] {
                waits[after as usize] -= 1;
                if waits[after as usize] == 0 {
                    ready.push_back(after);
                }
            }
        }
        (order.len() == self.nodes.len()).then_some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Shape {
        let kernel = Node { kind: NodeKind::Kernel, set: 1, tag: 7 };
        let copy = Node { kind: NodeKind::Memcpy, set: 0, tag: u64::MAX };
        let empty = Node { kind: NodeKind::Empty, set: 0, tag: 0 };
        Shape {
            context: 0x7f00_dead_0000,
            sets: vec![vec![], vec![(4, [2, 1, 1, 0, 0, 0, 0, 0]), (8, [0; 8])]],
            nodes: vec![empty, kernel, copy, kernel],
            edges: vec![Edge { from: 3, to: 1, data: 0 }, Edge { from: 2, to: 3, data: 0x0100 }],
        }
    }

    #[test]
    fn what_is_written_is_parsed() {
        let mut bytes = Vec::new();
        for shape in [sample(), Shape::default()] {
            shape.write(&mut bytes);
            assert_eq!(Shape::parse(&bytes), Some(shape));
        }
        sample().write(&mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(Shape::parse(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_shape_becomes_those_whose_nodes_have_its_attributes() {
        let changed = |change: fn(&mut Shape)| {
            let mut other = sample();
            change(&mut other);
            (sample().becomes(&other), other.becomes(&sample()))
        };
        assert_eq!(changed(|_| {}), (true, true));
        // Sets in another order, the parameters in another form, a copy between other places.
        assert_eq!(
            changed(|other| {
                other.sets.reverse();
                other.nodes.iter_mut().filter(|node| node.set == 1).for_each(|node| node.set = 0);
            }),
            (true, true)
        );
        assert_eq!(changed(|other| other.nodes[1].tag |= PACKED), (true, true));
        assert_eq!(changed(|other| other.nodes[2].tag = 4), (true, true));
        for change in [
            (|other| other.nodes[1].set = 0) as fn(&mut Shape),
            |other| other.sets[1][0].1[0] = 4,
            |other| other.nodes[3].tag = 8,
            |other| other.nodes[0].kind = NodeKind::Host,
            |other| other.edges[0].data = 1,
            |other| other.edges.swap(0, 1),
            |other| other.nodes.truncate(3),
            |other| other.context = 1,
        ] {
            assert_eq!(changed(change), (false, false));
        }
    }

    #[test]
    fn nodes_come_behind_those_they_depend_on() {
        assert_eq!(sample().in_order(), Some(vec![0, 2, 3, 1]));
        let mut circle = sample();
        circle.edges.push(Edge { from: 1, to: 2, data: 0 });
        assert_eq!(circle.in_order(), None);
    }
}
