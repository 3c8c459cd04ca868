//! Allocations, graphs and execs one by one, as in JSON.

use super::{Ledger, execs, graphs};
use crate::source::liveness::real_ns;
use gpumem_wire::kinds::{AllocKind, GraphOrigin, Pinned};
use gpumem_wire::layout::{AllocSlot, ExecSlot, GraphSlot};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// An allocation, a graph or an exec. In JSON it has the names below.
pub(crate) struct SlotRow<'a, S> {
    pub ledger: &'a Ledger,
    pub slot: &'a S,
}

impl Serialize for SlotRow<'_, AllocSlot> {
    fn serialize<T: Serializer>(&self, to: T) -> Result<T::Ok, T::Error> {
        let Self { ledger, slot: alloc } = self;
        to.collect_map([
            ("address", Value::from(alloc.addr)),
            ("bytes", alloc.bytes.into()),
            ("kind", AllocKind::name_of(alloc.kind).into()),
            ("time_unix_ns", real_ns(&ledger.snapshot.header, alloc.time_ns).into()),
            ("age_ns", ledger.age(alloc.time_ns).into()),
            ("serial", alloc.serial.into()),
            ("tid", alloc.tid.into()),
            ("tag", ledger.snapshot.text(alloc.tag).into()),
            // Empty if it takes no memory of its own.
            ("location", ledger.location(alloc).into()),
            ("context", alloc.context.into()),
            ("stream", alloc.stream.into()),
            ("flags", Ledger::flags(alloc).into()),
        ])
    }
}

impl Serialize for SlotRow<'_, GraphSlot> {
    fn serialize<T: Serializer>(&self, to: T) -> Result<T::Ok, T::Error> {
        let Self { ledger, slot: graph } = self;
        to.collect_map([
            ("handle", Value::from(graph.handle)),
            ("serial", graph.serial.into()),
            ("origin", GraphOrigin::name_of(graph.origin).into()),
            ("nodes", graph.nodes.into()),
            // 0 if the driver holds it.
            ("folded_bytes", graph.folded_bytes.into()),
            ("host_bytes_estimated", graph.held_bytes().into()),
            ("instantiates", graph.instantiates.into()),
            ("age_ns", ledger.age(graph.time_ns).into()),
            ("last_used_age_ns", ledger.age_of(graph.last_used_ns).into()),
            ("tid", graph.tid.into()),
            ("tag", ledger.snapshot.text(graph.tag).into()),
            ("context", graph.context.into()),
        ])
    }
}

impl Serialize for SlotRow<'_, ExecSlot> {
    fn serialize<T: Serializer>(&self, to: T) -> Result<T::Ok, T::Error> {
        let Self { ledger, slot: exec } = self;
        let (pinned, held) = (execs::why_pinned(exec), execs::held(exec));
        let all = [
            ("handle", Value::from(exec.handle)),
            ("serial", exec.serial.into()),
            ("graph_serial", exec.graph_serial.into()),
            ("state", execs::state_name(exec).into()),
            ("pinned", pinned.map(Pinned::name).into()),
            ("pinned_why", pinned.map(Pinned::why).into()),
            // Sixteen hexadecimal digits; empty without a class.
            ("class", execs::class_name(exec).into()),
            ("flags", exec.flags.into()),
            ("nodes_total", exec.nodes_total.into()),
            ("nodes", graphs::by_name(&exec.nodes.map(u64::from)).into_iter().collect()),
            ("launches", exec.launches.into()),
            ("last_launch_age_ns", ledger.age_of(exec.last_launch_ns).into()),
            ("updates", exec.updates.into()),
            ("failed_updates", exec.failed_updates.into()),
            ("node_sets", exec.node_sets.into()),
            ("instantiate_ns", exec.instantiate_ns.into()),
            ("hits", execs::hits(exec).into()),
            ("retargets", exec.retargets.into()),
            ("instantiations", exec.instantiations.into()),
            ("evictions", exec.evictions.into()),
            ("saved_ns", exec.saved_ns.into()),
            ("source_bytes", exec.source_bytes.into()),
            ("host_bytes_estimated", held.host_all().into()),
            ("device_bytes_estimated", held.device.into()),
            // Host and device bytes of a real exec for it, even if it has none now.
            ("real_bytes_estimated", exec.host_bytes.saturating_add(exec.device_bytes).into()),
            ("age_ns", ledger.age(exec.time_ns).into()),
            ("tid", exec.tid.into()),
            ("tag", ledger.snapshot.text(exec.tag).into()),
            ("context", exec.context.into()),
        ];
        // Absent if the exec is not pinned, or not under the graph cache.
        let is_absent = |name: &str, value: &Value| value.is_null() && ["pinned", "pinned_why", "hits"].contains(&name);
        to.collect_map(all.into_iter().filter(|(name, value)| !is_absent(name, value)))
    }
}
