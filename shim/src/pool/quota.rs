//! Per-process memory limit (`GPUMEM_LIMIT`): used and idle bytes against it.
//!
//! The limit of the process's group (`GPUMEM_LIMIT_GROUP`): room is reserved in the group before the driver is asked.
//! Ended members are removed. Members that keep idle blocks give them back for a member that is short of memory.

use super::context_pool::ContextPool;
use super::idle_memory::IdleMemory;
use super::in_transit::{FLUSHES, InTransit, Transit, Tries};
use super::lock;
use super::releaser::Releaser;
use crate::gate;
use crate::group::{Answer, Group, Place};
use crate::process::cancel::{poll, sleep};
use crate::process::clock;
use crate::progress::queries;
use crate::records::{grouped, pooled};
use gpumem_abi::types::Device;
use gpumem_wire::settings::Settings;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// The most live bytes that a thread may leave out of its context's total, so that threads need not write one shared
/// word.
const UNREPORTED: i64 = 32 << 20;

/// Longest wait of a request for other members' requests in transit. Such a request may wait for the driver, or for a
/// processor.
const OTHERS_TAKE: Duration = Duration::from_secs(2);
/// The most times that the other members are asked for one request.
const CALLS: usize = 3;
/// Longest wait for the other members' answer.
const ANSWERS_TAKE: Duration = Duration::from_secs(2);

/// Bytes that are reserved in the quota and in the group until they are counted as taken. By default nothing.
#[derive(Default)]
pub(crate) struct Reserved {
    _own: Option<OwnRoom>,
    _group: Option<GroupRoom>,
}

/// The limit that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitRefused {
    /// The limit of this process.
    Own,
    /// The limit of its group.
    Group,
}

/// The limit of one process.
#[repr(C)]
pub(crate) struct Quota {
    /// The bytes of each device that this process may take. 0: no limit.
    limit: AtomicU64,
    /// A group limits this process, too.
    grouped: bool,
    /// The reserved bytes of requests in transit, by device.
    reserved: Mutex<Vec<(Device, u64)>>,
}

/// Room in the quota of this process alone.
struct OwnRoom(&'static Quota, (Device, u64), #[expect(dead_code, reason = "held")] Transit<'static>);

impl Drop for OwnRoom {
    fn drop(&mut self) {
        let Self(quota, what, _) = self;
        let mut reserved = lock(&quota.reserved);
        if let Some(at) = reserved.iter().position(|reserved| reserved == what) {
            reserved.swap_remove(at);
        }
    }
}

impl Quota {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            limit: AtomicU64::new(settings.limit.unwrap_or(0)),
            grouped: settings.limit_group.is_some(),
            reserved: Mutex::default(),
        }
    }

    /// Applies a new limit to the device of each of these contexts.
    pub(super) fn apply_settings(&self, settings: &Settings, context_pools: &[&'static ContextPool]) {
        let limit = settings.limit.unwrap_or(0);
        self.limit.store(limit, Relaxed);
        for context_pool in context_pools {
            gate::record_if_started(|shim| pooled::limit(shim, context_pool.record(), limit));
        }
    }

    /// Returns the bytes of each device that this process may take. 0: no limit of its own.
    #[inline(always)]
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Returns true if there is a limit, for this process alone or for its group.
    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.grouped || self.limit() != 0
    }

    /// Returns the most live bytes that a thread may leave out of its context's total: 0 if live bytes count against a
    /// limit.
    #[inline]
    pub(super) fn unreported_at_most(&self) -> i64 {
        if self.limit() == 0 { UNREPORTED } else { 0 }
    }

    /// Returns a transit that is held while a block counts both as idle and as live, or is in no list. `None` if there
    /// is no limit.
    #[inline(always)]
    pub(super) fn transit(&self, context_pool: &ContextPool) -> Option<Transit<'static>> {
        if self.is_limited() { Some(context_pool.in_transit.blocks.begin()) } else { None }
    }

    /// Reserves room for `bytes` more in the quota and in the group. Gives back idle blocks first, if needed. The room
    /// is held until these bytes are counted.
    ///
    /// # Errors
    /// The limit that has no room.
    pub(crate) fn admits(
        &'static self,
        releaser: &'static Releaser,
        context_pool: &'static ContextPool,
        bytes: u64,
    ) -> Result<Reserved, LimitRefused> {
        let limit = self.limit();
        let own = || match limit {
            0 => Ok(None),
            _ => self.admits_alone(releaser, context_pool, bytes, limit).map(Some).ok_or(LimitRefused::Own),
        };
        if !self.grouped {
            return Ok(Reserved { _own: own()?, _group: None });
        }
        // The group is asked only if the own limit has room. The own reservation ends first: the group waits for this
        // process's requests, and would wait for this one.
        drop(own()?);
        let group = admits_in_group(releaser, context_pool, bytes).ok_or(LimitRefused::Group)?;
        Ok(Reserved { _own: own()?, _group: group })
    }

    fn admits_alone(
        &'static self,
        releaser: &'static Releaser,
        context_pool: &'static ContextPool,
        bytes: u64,
        limit: u64,
    ) -> Option<OwnRoom> {
        let mut tries = Tries::default();
        while tries.go_on() {
            let InTransit { blocks, requests } = context_pool.in_transit;
            let before = [(blocks, blocks.ended()), (requests, requests.ended())];
            if let Some(reserved) = self.reserve(releaser.idle(), context_pool, bytes, limit) {
                return Some(reserved);
            }
            // The bytes of another thread's request are in `reserved` until that request is recorded, and among the
            // live bytes from then on. In between they count twice: that refuses too much, never too little. So the
            // question is asked again once that thread is done.
            if !releaser.may_have_made_room(context_pool, &before) {
                break;
            }
        }
        self.reserve(releaser.idle(), context_pool, bytes, limit)
    }

    fn reserve(
        &'static self,
        idle: &IdleMemory,
        context_pool: &'static ContextPool,
        bytes: u64,
        limit: u64,
    ) -> Option<OwnRoom> {
        let mut reserved = lock(&self.reserved);
        let of_device: u64 =
            reserved.iter().filter(|(device, _)| *device == context_pool.device).map(|(_, bytes)| bytes).sum();
        let room = limit.checked_sub(used(idle, context_pool).saturating_add(of_device))?;
        if room < bytes {
            return None;
        }
        reserved.push((context_pool.device, bytes));
        Some(OwnRoom(self, (context_pool.device, bytes), context_pool.in_transit.requests.begin()))
    }
}

/// Returns the bytes that this process takes of a context's device, including idle ones.
fn used(idle: &IdleMemory, context_pool: &ContextPool) -> u64 {
    let live = gate::shim().map_or(0, |shim| pooled::live_on(shim, context_pool.vendor, context_pool.device));
    live + idle.on(context_pool.device)
}

/// Bytes that are reserved in the group until they are counted as taken.
struct GroupRoom {
    group: &'static Group,
    place: Place,
    bytes: u64,
}

impl Drop for GroupRoom {
    fn drop(&mut self) {
        self.group.settle(&self.place, self.bytes);
    }
}

/// Reserves room for `bytes` more in the group. Gives back all idle memory that can go back first, if needed. The outer
/// `Option` is `None` if there is no room. The inner one is `None` if there is no group.
fn admits_in_group(
    releaser: &'static Releaser,
    context_pool: &'static ContextPool,
    bytes: u64,
) -> Option<Option<GroupRoom>> {
    let Some(shim) = gate::shim() else { return Some(None) };
    let Some(group) = &shim.group else { return Some(None) };
    // Bytes of a context without a record could not be counted, and are refused.
    let place = grouped::place(shim, context_pool.record())?;
    let start = clock::precise_ns();
    let (mut pause, mut looks, mut flushes, mut calls) = (Duration::from_micros(20), 0, 0, 0);
    loop {
        let InTransit { blocks, requests } = context_pool.in_transit;
        let before = [(blocks, blocks.ended()), (requests, requests.ended())];
        match group.ask(&place, bytes) {
            Answer::Granted => return Some(Some(GroupRoom { group, place, bytes })),
            Answer::Busy if clock::precise_ns() - start < OTHERS_TAKE.as_nanos() as u64 => {
                // A member may have been killed while its request was in transit.
                if !group.reap() {
                    sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(5)) + Duration::from_nanos(start % 20_000);
                }
                continue;
            }
            Answer::Busy | Answer::Full => {}
        }
        if group.reap() {
            continue;
        }
        // Another member may be removing an ended one now.
        if looks == 0 {
            looks = 1;
            sleep(Duration::from_millis(1));
            continue;
        }
        if flushes < FLUSHES {
            flushes += 1;
            if releaser.may_have_made_room(context_pool, &before) {
                continue;
            }
        }
        if calls == CALLS || queries::capturing() || !others_give(group, &place, bytes) {
            return None;
        }
        calls += 1;
    }
}

/// Asks the other members to give back unused memory. Returns true if some member was asked and answered before the
/// timeout.
fn others_give(group: &Group, place: &Place, bytes: u64) -> bool {
    const LOOK_EVERY: Duration = Duration::from_millis(2);
    let Some(call) = group.call_for(place, bytes, clock::precise_ns()) else { return false };
    let answered = poll(ANSWERS_TAKE, LOOK_EVERY, || group.have_answered(place, call));
    group.call_ended(place);
    answered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::block::{Block, State};
    use gpumem_wire::kinds::Vendor;

    fn settings(limit: &str) -> Settings {
        Settings::read(std::iter::once(("GPUMEM_LIMIT".into(), limit.into()))).0
    }

    /// Reserved room and idle memory count as taken; room comes back with its request.
    #[test]
    fn a_limit_has_room_once() {
        let quota: &'static Quota = Box::leak(Box::new(Quota::new(&settings("1MiB"))));
        let idle = IdleMemory::new(Vendor::Cuda);
        let [here, elsewhere] = [0, 1].map(|device| idle.contexts().add_for_test(1, device, 0));
        let reserve = |context_pool, kib: u64| quota.reserve(&idle, context_pool, kib << 10, quota.limit());
        let room = reserve(here, 600);
        assert!(room.is_some() && reserve(here, 600).is_none() && reserve(elsewhere, 600).is_some());
        drop(room);
        assert!(reserve(here, 1024).is_some());
        let block: &'static Block = Box::leak(Box::default());
        block.set_bytes(512 << 10);
        block.set(State::Busy);
        here.keep(block, 0);
        assert!(reserve(here, 513).is_none() && reserve(here, 512).is_some());
    }

    #[test]
    fn threads_report_each_byte_under_a_limit() {
        let quota = Quota::new(&settings("1MiB"));
        let context_pool = ContextPool::for_test(1, 0, 0);
        assert!(quota.is_limited() && quota.unreported_at_most() == 0 && quota.transit(context_pool).is_some());
        quota.apply_settings(&settings("0"), &[context_pool]);
        assert!(!quota.is_limited() && quota.unreported_at_most() == UNREPORTED);
        assert!(quota.transit(context_pool).is_none());
    }
}
