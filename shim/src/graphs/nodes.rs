//! The nodes that a handle was made of, by their handles, which setters name.
//!
//! A node that the program destroys is no longer a node of its execs' graphs. Its address is often reused at once for
//! another node. An exec that was made before does not accept that node (measured on an H200, driver 580).

use crate::backend::source::{Packed, Scratch};
use crate::gate;
use crate::process::wiped::{Place, Word};
use gpumem_abi::types::GraphNode;
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// When each destroyed node was last destroyed, by its address. Addresses are reused, so these are few.
// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const GONE: Place<Mutex<FxHashMap<usize, u64>>> = unsafe { Place::new(Word::DestroyedNodes) };
/// Number of nodes destroyed so far.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Notes that the program is about to destroy a node. Called before the real destroy, because another thread may get
/// the address at once.
pub(crate) fn destroyed(node: GraphNode) {
    // Without a shim no thread has recorded nodes.
    if gate::shim().is_some() {
        forget(node);
    }
}

fn forget(node: GraphNode) {
    let mut gone = GONE.locked();
    let turn = TURN.fetch_add(1, AcqRel) + 1;
    gone.insert(node as usize, turn);
}

/// Returns true if the program has destroyed any node.
pub(crate) fn any_destroyed() -> bool {
    TURN.load(Acquire) != 0
}

/// Notes that the node was not destroyed after all.
pub(crate) fn stays(node: GraphNode) {
    if gate::shim().is_some() {
        GONE.locked().remove(&(node as usize));
    }
}

/// The handles of a graph's nodes, packed. Mostly they are a constant distance apart.
pub(crate) struct KnownNodes {
    packed: Packed,
    /// Number of nodes that had been destroyed when these were read.
    since: u64,
}

impl KnownNodes {
    pub(crate) fn new(nodes: &[GraphNode], scratch: &mut Scratch) -> Self {
        let since = TURN.load(Acquire);
        let mut before = 0_u64;
        let mut raw = Vec::with_capacity(nodes.len() * 8);
        for &node in nodes {
            raw.extend_from_slice(&(node as u64).wrapping_sub(before).to_le_bytes());
            before = node as u64;
        }
        Self { packed: Packed::new(&raw, scratch), since }
    }

    /// Returns the index of a node among them.
    pub(crate) fn place_of(&self, node: GraphNode, scratch: &mut Scratch) -> Option<u32> {
        let mut handle = 0_u64;
        let deltas = self.packed.unpacked(scratch)?.as_chunks::<8>().0;
        let found = deltas.iter().position(|delta| {
            handle = handle.wrapping_add(u64::from_le_bytes(*delta));
            handle == node as u64
        });
        found.filter(|_| !self.is_gone(node)).map(|at| at as u32)
    }

    fn is_gone(&self, node: GraphNode) -> bool {
        TURN.load(Acquire) != self.since && GONE.locked().get(&(node as usize)).is_some_and(|&turn| turn > self.since)
    }

    /// Returns the host memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.packed.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_destroyed_is_known_no_more_by_those_who_knew_it() {
        let nodes = [0x1000, 0x1040, 0x1080].map(std::ptr::without_provenance_mut);
        let mut scratch = Scratch::default();
        let before = KnownNodes::new(&nodes, &mut scratch);
        assert_eq!(nodes.map(|node| before.place_of(node, &mut scratch)), [Some(0), Some(1), Some(2)]);
        forget(nodes[1]);
        let after = KnownNodes::new(&nodes, &mut scratch);
        assert_eq!(nodes.map(|node| before.place_of(node, &mut scratch)), [Some(0), None, Some(2)]);
        assert_eq!(after.place_of(nodes[1], &mut scratch), Some(1));
    }
}
