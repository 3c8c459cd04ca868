//! How the shim starts: with the first call of the program that makes or initialises something. It is told then of the
//! rooms that stand above its records ([`Above`]).

use crate::above::{Above, PoolBlock};
use crate::process::threads;
use crate::shim::Shim;
use crate::{control, gate, graphs, pool, reclaim};
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Keeps books after the real call succeeded; starts the shim if need be.
#[inline]
pub fn record<R>(f: impl FnOnce(&'static Shim) -> R) -> Option<R> {
    threads::local(|local| local.recorded());
    gate::record(&Rooms, f)
}

/// A runtime's function made something and the driver's hooks saw nothing of it: calls go past.
#[cold]
pub fn unseen(name: &str) {
    gate::record(&Rooms, |shim| shim.went_past(&format!("{name} reached a driver past the shim")));
}

struct Rooms;

impl Above for Rooms {
    fn context_exists(&self, shim: &'static Shim) {
        control::start(shim);
    }

    fn graph_refers_to(&self, memory: &Range<u64>) -> bool {
        graphs::refers_to(memory)
    }

    fn graph_may_refer_to(&self, shim: &Shim, ranges: &[Range<u64>]) -> bool {
        graphs::may_refer_to(shim, ranges)
    }

    fn block_at(&self, addr: u64) -> Option<PoolBlock> {
        let block = pool::all().find_map(|pool| pool.map.get(addr))?;
        Some(PoolBlock { bytes: block.asked.load(Relaxed), slot: block.slot.load(Relaxed) })
    }

    fn idle_and_limit(&self, shim: &'static Shim, vendor: Vendor, device: Device, adds: bool) -> Option<(u64, u64)> {
        let pool = pool::of(vendor)?;
        if adds {
            pool.tell_all(shim);
        }
        Some((pool.idle_on(device), pool.limit.load(Relaxed)))
    }

    fn flush_here(&self, vendor: Vendor) -> u64 {
        reclaim::flush_here(vendor)
    }
}
