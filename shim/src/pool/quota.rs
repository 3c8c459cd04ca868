//! What this process may take of a device (`GPUMEM_LIMIT`), what it takes, and what of that is idle.

use super::context_pool::ContextPool;
use super::in_transit::{InTransit, Transit, Tries, are_unchanged};
use super::shared_quota::GroupRoom;
use super::{Pool, lock};
use crate::gate;
use crate::records;
use gpumem_abi::types::Device;
use std::sync::atomic::Ordering::*;

/// Bytes that the quota and the group have room for. They stay reserved until they are counted as taken.
#[derive(Default)]
pub(crate) struct Reserved {
    _own: Option<OwnRoom>,
    _group: Option<GroupRoom>,
}

impl Reserved {
    /// For requests that need no room.
    pub(crate) fn none() -> Self {
        Self::default()
    }
}

/// Which limit has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The limit of this process.
    Own,
    /// The limit of its group.
    Group,
}

/// Room in the quota of this process alone.
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
    /// Reserves room in the quota and in the group for so many bytes more. Idle blocks go back before, if need be. The
    /// room is held until these bytes are counted.
    ///
    /// # Errors
    /// Which of the two has no room.
    pub(crate) fn admits(&'static self, context_pool: &'static ContextPool, bytes: u64) -> Result<Reserved, Refused> {
        let limit = self.limit.load(Relaxed);
        let own = || match limit {
            0 => Ok(None),
            _ => self.admits_alone(context_pool, bytes, limit).map(Some).ok_or(Refused::Own),
        };
        if !self.grouped {
            return Ok(Reserved { _own: own()?, _group: None });
        }
        // The group is asked only where the own limit has room. The reservation ends before that: the group waits for
        // this process's requests, and would wait for this one.
        drop(own()?);
        let group = self.admits_in_group(context_pool, bytes).ok_or(Refused::Group)?;
        Ok(Reserved { _own: own()?, _group: group })
    }

    fn admits_alone(&'static self, context_pool: &'static ContextPool, bytes: u64, limit: u64) -> Option<OwnRoom> {
        let mut tries = Tries::default();
        while tries.go_on() {
            let InTransit { blocks, requests } = context_pool.in_transit;
            let before = [(blocks, blocks.ended()), (requests, requests.ended())];
            if let Some(reserved) = self.reserve(context_pool, bytes, limit) {
                return Some(reserved);
            }
            // The bytes of another thread's request stand in `reserved` until that request is recorded, and among the
            // live bytes from then on. In between they count twice: that refuses too much and never too little, so
            // the question is asked again once that thread is done.
            if !self.may_flush(context_pool)
                || self.flush(context_pool.device) == 0 && are_unchanged(&before, self.longest_transit(context_pool))
            {
                break;
            }
        }
        self.reserve(context_pool, bytes, limit)
    }

    fn reserve(&'static self, context_pool: &'static ContextPool, bytes: u64, limit: u64) -> Option<OwnRoom> {
        let mut reserved = lock(&self.reserved);
        let of_device: u64 =
            reserved.iter().filter(|(device, _)| *device == context_pool.device).map(|(_, bytes)| bytes).sum();
        let room = limit.checked_sub(self.used(context_pool).saturating_add(of_device))?;
        if room < bytes {
            return None;
        }
        reserved.push((context_pool.device, bytes));
        Some(OwnRoom(self, (context_pool.device, bytes), context_pool.in_transit.requests.begin()))
    }

    /// Held while a block is counted both as idle and as live, or is found nowhere. `None` where there is no limit.
    #[inline(always)]
    pub(super) fn transit(&self, context_pool: &ContextPool) -> Option<Transit<'static>> {
        if self.is_limited() { Some(context_pool.in_transit.blocks.begin()) } else { None }
    }

    /// Bytes that this process takes of a context's device, idle ones among them.
    pub(crate) fn used(&self, context_pool: &'static ContextPool) -> u64 {
        let live = gate::shim().map_or(0, |shim| records::pooled::live_on(shim, self.vendor, context_pool.device));
        live + self.idle_on(context_pool.device)
    }
}
