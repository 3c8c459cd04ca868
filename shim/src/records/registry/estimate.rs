//! Estimates of the driver's memory for graphs, which no call tells.
//!
//! Measured on an H200, driver 580, CUDA 13.0, with 20 or more objects of 1000 nodes each: bytes for each node. The
//! driver reuses the memory of destroyed objects, and gives none back.

use gpumem_wire::kinds::NodeKind;

/// Host bytes of a graph for each of its nodes, of any kind.
pub(crate) const GRAPH_HOST_PER_NODE: u64 = 1983;
/// Host bytes of an exec for each kernel node.
const EXEC_HOST_PER_NODE: u64 = 5877;
/// Device bytes of an exec for each kernel or copy node; other kinds take none.
const EXEC_DEVICE_PER_NODE: u64 = 2621;

/// Returns an exec's host and device bytes, from its nodes by kind.
pub(crate) fn exec_bytes(counts: &[u32; 16]) -> (u64, u64) {
    let of = |kind: NodeKind| u64::from(counts[kind as usize]);
    let total: u64 = counts.iter().map(|&n| u64::from(n)).sum();
    let (kernel, copy, empty) = (of(NodeKind::Kernel), of(NodeKind::Memcpy), of(NodeKind::Empty));
    let host = kernel * EXEC_HOST_PER_NODE + copy * 6613 + empty * 2033 + (total - kernel - copy - empty) * 4044;
    (host, (kernel + copy) * EXEC_DEVICE_PER_NODE)
}
