//! Notes of test programs about their own allocations and frees.
//!
//! An allocator between the program and the driver keeps freed blocks, so that the driver sees neither
//! the free nor the next allocation. If a program notes both, by `sim_note_*`, the simulator reports memory that was
//! given out while work on it was pending, given out twice, or freed without the barrier of
//! cuMemFree.

use crate::handle::H;
use crate::lifecycle::thread_id;
use crate::machine::{Machine, lock};
use crate::queue::Fence;
use crate::report;
use crate::work::{Step, describe};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

/// Pending work.
struct Submitted {
    refs: Vec<(u64, u64)>,
    what: String,
}

/// A free that has not returned.
struct Freeing {
    bytes: u64,
    before: Vec<Fence>,
}

/// All pending work, by number. It has a lock of its own, not the machine's: work may end, or be refused, while
/// the machine's lock is held.
static SUBMITTED: Mutex<(u64, BTreeMap<u64, Submitted>)> = Mutex::new((0, BTreeMap::new()));

fn all_submitted() -> MutexGuard<'static, (u64, BTreeMap<u64, Submitted>)> {
    SUBMITTED.lock().unwrap_or_else(|e| e.into_inner())
}

#[derive(Default)]
pub struct Notes {
    live: BTreeMap<u64, u64>,
    freeing: HashMap<(u64, u64), Freeing>,
}

impl Notes {
    /// The number of live allocations by the notes, and their bytes.
    pub fn live(&self) -> (u64, u64) {
        (self.live.len() as u64, self.live.values().sum())
    }
}

/// While this lives, the work is pending.
pub struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        all_submitted().1.remove(&self.0);
    }
}

/// Work enters a stream.
pub fn submitted(m: &Machine, steps: &[Step]) -> Option<Running> {
    let refs: Vec<(u64, u64)> = steps.iter().flat_map(|s| s.refs.iter().map(|r| (r.addr, r.len))).collect();
    if refs.is_empty() {
        return None;
    }
    let what = if steps.len() == 1 { describe(&steps[0].kind, m) } else { "a graph".into() };
    let mut all = all_submitted();
    all.0 += 1;
    let id = all.0;
    all.1.insert(id, Submitted { refs, what });
    Some(Running(id))
}

/// An allocation has returned.
pub fn alloc(ptr: u64, bytes: u64) {
    let mut m = lock();
    report::count("noted_allocs", 1);
    let end = ptr + bytes.max(1);
    let touches = |at: u64, len: u64| at < end && ptr < at + len;
    for work in all_submitted().1.values() {
        if work.refs.iter().any(|(at, len)| touches(*at, *len)) {
            let text = format!("{bytes} bytes at {ptr:#x} were given out before {} was over", work.what);
            report::violation("reuse_under_work", &text);
        }
    }
    if let Some((at, len)) = m.notes.live.range(..end).next_back().filter(|(at, len)| touches(**at, **len)) {
        let text = format!("{bytes} bytes at {ptr:#x} were given out while {len} bytes at {at:#x} are live");
        report::violation("given_out_twice", &text);
    }
    if m.cover(ptr, bytes.max(1)).is_none() {
        report::violation("not_allocated", &format!("{bytes} bytes at {ptr:#x} are not the driver's"));
    }
    m.notes.live.insert(ptr, bytes.max(1));
}

/// A free is about to be called.
pub fn free(ptr: u64) {
    let mut m = lock();
    let Some(bytes) = m.notes.live.remove(&ptr) else { return };
    let Some((device, ctx)) = m.find(ptr).map(|(_, a)| (a.device, a.ctx)) else { return };
    let before = m.free_fences(device, ctx);
    m.notes.freeing.insert((thread_id(), ptr), Freeing { bytes, before });
}

/// A free has returned `status`. `strict`: it has the barrier of cuMemFree.
pub fn freed(ptr: u64, status: u32, strict: bool) {
    let mut m = lock();
    let Some(freeing) = m.notes.freeing.remove(&(thread_id(), ptr)) else { return };
    if status != 0 {
        m.notes.live.insert(ptr, freeing.bytes);
        return;
    }
    report::count("noted_frees", 1);
    if strict && !freeing.before.iter().all(Fence::reached) {
        report::violation("free_without_barrier", &format!("{ptr:#x} was freed before earlier work was over"));
    }
}

impl Machine {
    /// The work that a free of this context's memory waits for: the context's own, not that of other contexts on its device
    /// (measured on an H200), and that of contexts on other devices that have peer access to it.
    pub fn free_fences(&self, device: u32, ctx: H) -> Vec<Fence> {
        let mut all = self.context_fences(ctx);
        let peers = self.contexts.iter().filter(|(_, c)| c.device != device && c.peers.contains(&ctx));
        all.extend(peers.flat_map(|(h, _)| self.context_fences(*h)));
        all
    }
}
