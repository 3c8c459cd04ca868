//! What is done before an allocation runs out: everything idle goes back, then memory of graphs, then,
//! where the user allows it, the allocation is placed outside of the device's memory.

use super::Pool;
use super::back::LONGEST_WAIT;
use super::block::{HOST, MANAGED};
use super::lock;
use super::moves::{Moves, Moving, are_still_at};
use super::owner::Owner;
use crate::call::Call;
use crate::{gate, graphs, vendor};
use gpumem_abi::types::{Device, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::OomFallback;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Times that idle blocks go back for one request at most.
const FLUSHES: usize = 64;

/// What was got.
#[derive(Clone, Copy)]
pub struct Given {
    /// Its address, where the real function did not give it.
    pub addr: Option<u64>,
    pub bytes: u64,
    pub flags: u32,
}

/// Bytes that the quota has room for, until they are counted.
pub struct Reserved(Option<(&'static Pool, (Device, u64), Moving<'static>)>);

impl Reserved {
    /// Where nothing has to be reserved.
    pub fn none() -> Self {
        Self(None)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some((pool, what, _moving)) = &self.0 else { return };
        let mut reserved = lock(&pool.reserved);
        if let Some(at) = reserved.iter().position(|reserved| reserved == what) {
            reserved.swap_remove(at);
        }
    }
}

impl Pool {
    /// Asks for a block of `rounded` bytes until there is nothing more to try, then for one of `asked`. `room`: to be held
    /// until they are counted.
    ///
    /// # Errors
    /// The driver's, or its code for no memory at the quota.
    pub(super) fn climb(
        &'static self,
        call: &Call,
        owner: &'static Owner,
        rounded: u64,
        asked: u64,
        real: &mut dyn FnMut(u64) -> Status,
        room: &mut Option<Reserved>,
    ) -> Result<Given, Status> {
        let mut status = OUT_OF_MEMORY;
        let mut bytes = rounded;
        *room = self.admits(owner, bytes);
        if room.is_none() && asked < rounded {
            bytes = asked;
            *room = self.admits(owner, bytes);
        }
        if room.is_some() {
            status = self.until_there_is_room(owner, bytes, None, &mut || real(bytes));
            // A few more than were asked for are what does not fit.
            if status == OUT_OF_MEMORY && asked < bytes {
                bytes = asked;
                status = real(bytes);
            }
            // HIP has the answer of the last call as the thread's last error: that has to be this one's.
            if status == OUT_OF_MEMORY && (relieve_graphs(owner) || self.vendor == Vendor::Hip) {
                status = real(bytes);
            }
            if status != OUT_OF_MEMORY {
                return if status == SUCCESS { Ok(Given { addr: None, bytes, flags: 0 }) } else { Err(status) };
            }
        } else {
            call.note(|shim| shim.limit_refused(asked));
        }
        if let Ok(given) = self.spill(call, owner, asked, self.fallback) {
            return Ok(given);
        }
        Err(status)
    }

    /// Asks for so many bytes until there are some, or nothing more to give back. `first`: what the driver said just now.
    fn until_there_is_room(
        &'static self,
        owner: &'static Owner,
        bytes: u64,
        mut first: Option<Status>,
        real: &mut dyn FnMut() -> Status,
    ) -> Status {
        let mut status = OUT_OF_MEMORY;
        // Other threads take what one gives back, and give back what another one looks for.
        for _ in 0..FLUSHES {
            let blocks = &owner.moves.blocks;
            let before = blocks.ended();
            status = first.take().unwrap_or_else(&mut *real);
            // Without anything to give back, or enough of it, what the driver said is the answer.
            if status != OUT_OF_MEMORY
                || !self.make_room(owner, bytes) && are_still_at(&[(blocks, before)], self.longest_move(owner))
            {
                break;
            }
        }
        status
    }

    /// How long something may be on its way.
    fn longest_move(&self, owner: &Owner) -> Duration {
        /// A thread that has to wait for a processor.
        const DESCHEDULED: Duration = Duration::from_secs(2);
        if self.deferred || !owner.gives_back_at_once() { LONGEST_WAIT } else { DESCHEDULED }
    }

    /// Room that the quota has for so many bytes more, after idle blocks went back if need be: held until these are
    /// counted.
    pub fn admits(&'static self, owner: &'static Owner, bytes: u64) -> Option<Reserved> {
        let limit = self.limit.load(Relaxed);
        if limit == 0 {
            return Some(Reserved::none());
        }
        for _ in 0..FLUSHES {
            let Moves { blocks, requests } = owner.moves;
            let before = [(blocks, blocks.ended()), (requests, requests.ended())];
            if let Some(reserved) = self.reserve(owner, bytes, limit) {
                return Some(reserved);
            }
            // What others have reserved counts twice while it is being counted.
            if !self.may_flush(owner)
                || self.flush(owner.device) == 0 && are_still_at(&before, self.longest_move(owner))
            {
                break;
            }
        }
        self.reserve(owner, bytes, limit)
    }

    fn reserve(&'static self, owner: &'static Owner, bytes: u64, limit: u64) -> Option<Reserved> {
        let mut reserved = lock(&self.reserved);
        let of_device: u64 =
            reserved.iter().filter(|(device, _)| *device == owner.device).map(|(_, bytes)| bytes).sum();
        let room = limit.checked_sub(self.used(owner).saturating_add(of_device))?;
        if room < bytes {
            return None;
        }
        reserved.push((owner.device, bytes));
        Some(Reserved(Some((self, (owner.device, bytes), owner.moves.requests.begin()))))
    }

    /// Gives back all that is idle, where so many bytes may fit then. Whether that was anything.
    fn make_room(&'static self, owner: &'static Owner, bytes: u64) -> bool {
        self.may_flush(owner) && self.may_fit(owner, bytes) && self.flush(owner.device) > 0
    }

    /// Whether idle blocks can go back now: a real free is refused while something captures.
    fn may_flush(&self, owner: &Owner) -> bool {
        !crate::progress::looks::capturing() || owner.gives_back_at_once()
    }

    /// Whether so many bytes could be had if all that is idle went back, as far as is known.
    fn may_fit(&self, owner: &'static Owner, bytes: u64) -> bool {
        let info = owner.within(|| vendor::of(self.vendor).memory_info());
        info.is_none_or(|(free, _)| free + self.idle_on(owner.device) >= bytes)
    }

    /// To be held while a block is counted as idle and as live, or found nowhere, where there is a limit.
    #[inline(always)]
    pub(super) fn moving(&self, owner: &Owner) -> Option<Moving<'static>> {
        if self.limit.load(Relaxed) == 0 { None } else { Some(owner.moves.blocks.begin()) }
    }

    /// Device bytes that this process takes of an owner's device, idle ones among them.
    pub fn used(&self, owner: &'static Owner) -> u64 {
        let live = gate::shim().map_or(0, |shim| shim.live_on(self.vendor, owner.device));
        live + self.idle_on(owner.device)
    }

    /// Idle bytes of a device.
    pub fn idle_on(&self, device: i32) -> u64 {
        self.owners().into_iter().filter(|owner| owner.device == device).map(|owner| self.idle(owner)).sum()
    }

    /// Gives back all idle blocks of a device; how many bytes. What work uses, where a free does not wait for it, stays if
    /// that work does not end soon.
    pub fn flush(&'static self, device: i32) -> u64 {
        let Some(shim) = gate::shim() else { return 0 };
        self.gather(shim);
        let of_device = self.owners().into_iter().filter(|owner| owner.device == device);
        // The context may be another thread's, which ends it: that waits until this is done.
        let give_back = |owner: &'static Owner| owner.staying().map_or(0, |_staying| self.release_all(owner));
        let released = of_device.map(give_back).sum();
        shim.count(counters::POOL_FLUSHES, 1);
        released
    }

    /// Places an allocation outside of the device's memory.
    ///
    /// # Errors
    /// The driver's; its code for no memory where that is not allowed.
    pub(super) fn spill(
        &'static self,
        call: &Call,
        owner: &'static Owner,
        bytes: u64,
        to: OomFallback,
    ) -> Result<Given, Status> {
        if to == OomFallback::None {
            return Err(OUT_OF_MEMORY);
        }
        let place = || match to {
            OomFallback::None => Err(OUT_OF_MEMORY),
            OomFallback::Managed => match owner.calls.managed(owner.device, bytes as usize) {
                Ok(addr) => Ok((addr, MANAGED)),
                // Devices that cannot share managed memory with a running host use host memory.
                Err(_) => owner.calls.host(bytes as usize).map(|addr| (addr, HOST)),
            },
            OomFallback::Host => owner.calls.host(bytes as usize).map(|addr| (addr, HOST)),
        };
        let (addr, flags) = owner.within(place)?;
        call.note(|shim| shim.spilled(call, bytes));
        Ok(Given { addr: Some(addr), bytes, flags })
    }
}

/// Gives back what graphs hold that nobody needs now; whether that was anything.
fn relieve_graphs(owner: &Owner) -> bool {
    graphs::cache(owner.vendor).is_some_and(|cache| owner.within(|| cache.relieve()))
}

/// Gives back all idle blocks of the device of this thread's context, of all devices if it has none; how many bytes.
pub fn flush_here(vendor: Vendor) -> u64 {
    match (super::of(vendor), vendor::of(vendor).current_device()) {
        (Some(pool), Some(device)) => pool.flush(device),
        _ => flush_all(vendor),
    }
}

/// Gives back all idle blocks of a vendor's devices; how many bytes.
fn flush_all(vendor: Vendor) -> u64 {
    let Some(pool) = super::of(vendor) else { return 0 };
    let mut devices: Vec<i32> = pool.owners().iter().map(|owner| owner.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.into_iter().map(|device| pool.flush(device)).sum()
}

/// Whether a vendor's devices have a limit for this process.
pub fn has_limit(vendor: Vendor) -> bool {
    super::of_limited(vendor).is_some_and(|pool| pool.limit.load(Relaxed) != 0)
}

/// A pool, and the owner of this thread's context there.
fn of_thread(call: &Call, pool: Option<&'static Pool>) -> Option<(&'static Pool, &'static Owner)> {
    let pool = pool?;
    Some((pool, call.note(|shim| pool.owner_of_thread(shim)).flatten()?))
}

/// Room in the quota for so many bytes more of this thread's device; `None` if it has none, which is then written down.
pub fn room_for(call: &Call, bytes: u64) -> Option<Reserved> {
    let limited = super::of_limited(call.vendor).filter(|pool| pool.limit.load(Relaxed) != 0);
    let Some((pool, owner)) = of_thread(call, limited) else { return Some(Reserved::none()) };
    let room = pool.admits(owner, bytes);
    if room.is_none() {
        call.note(|shim| shim.limit_refused(bytes));
    }
    room
}

/// Runs a call that takes so many bytes of the device: not if the quota has no room for them; again, after
/// all that is idle went back, if there is no memory.
pub fn bounded(call: &Call, bytes: usize, real: impl FnMut() -> Status) -> Status {
    let Some(_room) = room_for(call, bytes as u64) else { return OUT_OF_MEMORY };
    again(call, bytes, real)
}

/// Runs a call that takes so many bytes of the device; again, after all that is idle went back, if there is no memory.
pub fn again(call: &Call, bytes: usize, mut real: impl FnMut() -> Status) -> Status {
    let status = real();
    if status != OUT_OF_MEMORY {
        return status;
    }
    match of_thread(call, super::of(call.vendor)) {
        Some((pool, owner)) => {
            let status = pool.until_there_is_room(owner, bytes as u64, Some(status), &mut real);
            // As in `climb`.
            if status == OUT_OF_MEMORY && call.vendor == Vendor::Hip { real() } else { status }
        }
        None if !crate::progress::looks::capturing() && flush_all(call.vendor) > 0 => real(),
        None => status,
    }
}
