//! The samples of the devices that one process uses.

use super::page::Page;
use super::table as t;
use crate::model::devices::{self, Device};
use crate::model::overview::Overview;
use crate::model::{Ledger, sums};
use gpumem_wire::kinds::{AllocKind, Space, Vendor};
use gpumem_wire::layout::{ALLOC_SPILLED, AllocSlot};
use std::collections::BTreeMap;

pub(super) fn add(page: &mut Page, ledger: &Ledger, overview: &Overview) {
    let devices = &overview.devices;
    if let Some(used) = devices::process_used(ledger, devices) {
        page.add(&t::USED_BYTES, &[], used as f64);
    }
    let kinds = kinds(ledger);
    let in_contexts = &overview.pool.in_contexts;
    for device in devices {
        let number = device.device.to_string();
        let labels = [("device", &*number), ("uuid", &*device.uuid), ("device_name", &*device.name)];
        of_device(page, device, &labels);
        for (&(.., kind), &bytes) in
            kinds.iter().filter(|((vendor, n, _), _)| (*vendor, *n) == (device.vendor, device.device))
        {
            let kind = [("kind", AllocKind::name_of(kind))];
            page.add(&t::DEVICE_LIVE_BYTES, &[&labels[..], &kind].concat(), bytes as f64);
        }
        let limits = in_contexts.iter().filter(|context| context.device == device.device);
        if let Some(limit) = limits.map(|context| context.limit_bytes).filter(|&limit| limit > 0).min() {
            page.add(&t::DEVICE_LIMIT_BYTES, &labels, limit as f64);
        }
    }
    for context in in_contexts {
        let (number, device) = (context.context.to_string(), context.device.to_string());
        let of = [("context", &*number), ("device", &*device)];
        for (metric, value) in [
            (&t::POOL_LIVE_BYTES, context.live_bytes),
            (&t::POOL_IDLE_BYTES, context.idle_bytes),
            (&t::POOL_IDLE_PEAK_BYTES, context.idle_peak_bytes),
            (&t::POOL_IDLE_BLOCKS, context.idle_blocks),
        ] {
            page.add(metric, &of, value as f64);
        }
    }
}

/// Older readings of the shim are stale: it reads when the program allocates memory.
const SEEN_WITHIN_NS: u64 = 60_000_000_000;

fn of_device(page: &mut Page, device: &Device, labels: &[(&str, &str)]) {
    let seen = device.used_bytes > 0 && device.used_age_ns < SEEN_WITHIN_NS;
    for (metric, value) in [
        (&t::DEVICE_TRACKED_BYTES, Some(device.tracked_bytes)),
        (&t::DEVICE_PEAK_BYTES, Some(device.peak_bytes)),
        (&t::DEVICE_MANAGED_BYTES, Some(device.managed_bytes)),
        (&t::DEVICE_SPILLED_BYTES, Some(device.spilled_bytes)),
        (&t::DEVICE_IDLE_BYTES, Some(device.idle_bytes)),
        (&t::DEVICE_GRAPH_BYTES, Some(device.graph_bytes)),
        (&t::DEVICE_POOL_IDLE_BYTES, Some(device.pool_idle_bytes)),
        (&t::DEVICE_GRAPH_MEMORY_BYTES, Some(device.graph_memory_bytes)),
        (&t::DEVICE_TAKEN_BYTES, Some(device.taken_bytes)),
        (&t::DEVICE_TOTAL_BYTES, Some(device.total_bytes).filter(|&total| total > 0)),
        (&t::DEVICE_USED_BYTES, Some(device.used_bytes).filter(|_| seen)),
        (&t::DEVICE_UNEXPLAINED_BYTES, device.unexplained_bytes.filter(|_| seen)),
    ] {
        if let Some(value) = value {
            page.add(metric, labels, value as f64);
        }
    }
}

/// Returns the live bytes in the device's memory, by device and kind. Pinned memory has a context too, but is host
/// memory; imported memory is counted where it was made.
fn kinds(ledger: &Ledger) -> BTreeMap<(&'static str, u32, u8), u64> {
    let on_device = |alloc: &&AllocSlot| {
        alloc.flags & ALLOC_SPILLED == 0 && matches!(alloc.space(), Space::Device | Space::Managed)
    };
    let key = |alloc: &AllocSlot| {
        let context = ledger.snapshot.contexts.get(&alloc.context)?;
        Some(((Vendor::name_of(context.vendor), context.device, alloc.kind), alloc.bytes))
    };
    sums::by(ledger.snapshot.allocs.iter().filter(on_device).filter_map(key)).into_iter().collect()
}
