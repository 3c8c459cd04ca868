//! Attributes unknown to this release: notes which graphs have them ([`attributes_set`]), and that they were met
//! ([`crate::newer`]).

use crate::backend::attributes_set;
use crate::gate;
use crate::progress::queries;
use gpumem_abi::types::*;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// True if this process keeps such records. A child of a fork does not, because the driver does not work there.
fn kept() -> bool {
    gate::shim().is_some()
}

/// Notes the attributes of a launch.
///
/// # Safety
/// `config` is the program's `CUlaunchConfig` of a launch that the driver has just accepted.
#[inline]
pub(super) unsafe fn launch(config: *const LaunchConfig) {
    // SAFETY: our caller vouches for the CUlaunchConfig of a launch that the driver has just accepted.
    if let Some(id) = unsafe { attributes_set::launch(config) } {
        unknown_launch(id);
    }
}

#[cold]
fn unknown_launch(id: u32) {
    if queries::capturing() {
        attributes_set::unknown_in_capture();
    }
    /// The last attribute that was reported.
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.swap(id, Relaxed) != id {
        gate::record_if_started(|shim| shim.met(&format!("launches with attribute {id}")));
    }
}

/// Runs a note of [`attributes_set`], if this process keeps such records.
pub(super) fn if_kept(note: impl FnOnce()) {
    if kept() {
        note();
    }
}

/// Notes that a node was given an unknown attribute. Returns true if its graph is known and now marked.
pub(super) fn to_node(node: GraphNode, id: u32) -> bool {
    gate::record_if_started(|shim| shim.met(&format!("nodes with attribute {id}")));
    kept() && attributes_set::unknown_in_node(node)
}

/// Notes that a node was given another node's attributes. Returns true if it is known which graphs have those.
pub(super) fn copied(to: GraphNode, from: GraphNode) -> bool {
    !kept() || attributes_set::copied(to, from)
}

/// Notes that a stream is given an attribute.
pub(super) fn to_stream(id: u32) {
    if !attributes_set::is_known(id) {
        gate::record_if_started(|shim| shim.met(&format!("streams with attribute {id}")));
        attributes_set::unknown_in_stream();
    }
}

/// Notes that a call that gives a function, or a kernel, an attribute has answered `status`. Returns it.
///
/// # Safety
/// The function is the program's, and alive if the call has succeeded.
pub(super) unsafe fn to_function(status: Status, function: Opaque, id: i32) -> Status {
    if status == SUCCESS && !attributes_set::is_known_of_functions(id) && kept() {
        gate::record_if_started(|shim| shim.met(&format!("functions with attribute {id}")));
        // SAFETY: the call has succeeded, so our caller vouches that the function is alive.
        unsafe { attributes_set::unknown_in_function(function) };
    }
    status
}
