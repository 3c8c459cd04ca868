//! What this process may take of a device (`GPUMEM_LIMIT`), what it takes, and what of that is idle.

use super::context_pool::ContextPool;
use super::in_transit::{DESCHEDULED, InTransit, Transit, Tries, are_still_at};
use super::shared_quota::GroupRoom;
use super::short::LONGEST_WAIT;
use super::{Pool, lock};
use crate::gate;
use crate::progress::queries;
use crate::records;
use gpumem_abi::types::Device;
use gpumem_wire::counters;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Bytes that the quota has room for, and the group, until they are counted.
#[derive(Default)]
pub(crate) struct Reserved {
    _own: Option<OwnRoom>,
    _group: Option<GroupRoom>,
}

impl Reserved {
    /// Where nothing has to be reserved.
    pub(crate) fn none() -> Self {
        Self::default()
    }
}

/// Which limit has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// That of this process.
    Own,
    /// That of its group.
    Group,
}

/// Bytes of the quota of this process alone.
struct OwnRoom(&'static Pool, (Device, u64), #[expect(dead_code, reason = "held")] Transit<'static>);

impl Drop for OwnRoom {
    fn drop(&mut self) {
        let Self(pool, what, _) = self;
        let mut reserved = lock(&pool.reserved);
        if let Some(at) = reserved.iter().position(|reserved| reserved == what) {
            reserved.swap_remove(at);
        }
    }
}

impl Pool {
    /// Room that the quota and the group have for so many bytes more, after idle blocks went back if need be: held until
    /// these are counted.
    ///
    /// # Errors
    /// Which of them has none.
    pub(crate) fn admits(&'static self, owner: &'static ContextPool, bytes: u64) -> Result<Reserved, Refused> {
        let limit = self.limit.load(Relaxed);
        let own = match limit {
            0 => None,
            _ => Some(self.admits_alone(owner, bytes, limit).ok_or(Refused::Own)?),
        };
        let group = match self.grouped {
            true => self.admits_in_group(owner, bytes).ok_or(Refused::Group)?,
            false => None,
        };
        Ok(Reserved { _own: own, _group: group })
    }

    fn admits_alone(&'static self, owner: &'static ContextPool, bytes: u64, limit: u64) -> Option<OwnRoom> {
        let mut tries = Tries::default();
        while tries.go_on() {
            let InTransit { blocks, requests } = owner.in_transit;
            let before = [(blocks, blocks.ended()), (requests, requests.ended())];
            if let Some(reserved) = self.reserve(owner, bytes, limit) {
                return Some(reserved);
            }
            // The bytes of another thread's request stand in `reserved` until that request is recorded, and among the
            // live bytes from then on. In between they count twice: that refuses too much and never too little, so
            // the question is asked again once that thread is done.
            if !self.may_flush(owner)
                || self.flush(owner.device) == 0 && are_still_at(&before, self.longest_transit(owner))
            {
                break;
            }
        }
        self.reserve(owner, bytes, limit)
    }

    fn reserve(&'static self, owner: &'static ContextPool, bytes: u64, limit: u64) -> Option<OwnRoom> {
        let mut reserved = lock(&self.reserved);
        let of_device: u64 =
            reserved.iter().filter(|(device, _)| *device == owner.device).map(|(_, bytes)| bytes).sum();
        let room = limit.checked_sub(self.used(owner).saturating_add(of_device))?;
        if room < bytes {
            return None;
        }
        reserved.push((owner.device, bytes));
        Some(OwnRoom(self, (owner.device, bytes), owner.in_transit.requests.begin()))
    }

    /// Whether idle blocks can go back now: a real free is refused while something captures.
    pub(crate) fn may_flush(&self, owner: &ContextPool) -> bool {
        !queries::capturing() || owner.gives_back_at_once()
    }

    /// How long something may be on its way.
    pub(crate) fn longest_transit(&self, owner: &ContextPool) -> Duration {
        if !self.may_have_pending() && owner.gives_back_at_once() {
            return DESCHEDULED;
        }
        // A free that waits was waited for already.
        let of_device = self.owners().into_iter().filter(|other| other.device == owner.device);
        LONGEST_WAIT.saturating_sub(of_device.map(ContextPool::frees_for).max().unwrap_or_default())
    }

    /// To be held while a block is counted as idle and as live, or found nowhere, where there is a limit.
    #[inline(always)]
    pub(super) fn transit(&self, owner: &ContextPool) -> Option<Transit<'static>> {
        if self.is_limited() { Some(owner.in_transit.blocks.begin()) } else { None }
    }

    /// Device bytes that this process takes of an owner's device, idle ones among them.
    pub(crate) fn used(&self, owner: &'static ContextPool) -> u64 {
        let live = gate::shim().map_or(0, |shim| records::pooled::live_on(shim, self.vendor, owner.device));
        live + self.idle_on(owner.device)
    }

    /// Idle bytes of a device.
    pub(crate) fn idle_on(&self, device: i32) -> u64 {
        self.owners().into_iter().filter(|owner| owner.device == device).map(|owner| self.idle(owner)).sum()
    }

    /// Idle bytes of a device that can go back for a request, whatever the device does.
    pub(crate) fn to_be_had_on(&self, device: i32) -> u64 {
        let of_device = self.owners().into_iter().filter(|owner| owner.device == device);
        let goes = |owner: &&'static ContextPool| {
            !owner.frees_wait() || owner.known_idle() || owner.calls.tells_all() && owner.is_idle()
        };
        of_device.filter(goes).map(|owner| self.idle(owner)).sum()
    }

    /// Gives back all idle blocks of a device; how many bytes. What work uses, where a free does not wait for it, stays if
    /// that work does not end soon.
    pub(crate) fn flush(&'static self, device: i32) -> u64 {
        let Some(shim) = gate::shim() else { return 0 };
        self.gather(shim);
        let of_device = self.owners().into_iter().filter(|owner| owner.device == device);
        // The context may be another thread's, which ends it: that waits until this is done.
        let give_back = |owner: &'static ContextPool| owner.hold().map_or(0, |_hold| self.release_all(owner));
        let released = of_device.map(give_back).sum();
        shim.count(counters::POOL_FLUSHES, 1);
        released
    }
}
