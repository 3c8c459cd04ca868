//! What is done before an allocation runs out: everything idle goes back, then memory of graphs, then,
//! where the user allows it, the allocation is placed outside of the device's memory.

use super::Pool;
use super::block::{HOST, MANAGED};
use super::lock;
use super::owner::Owner;
use crate::call::Call;
use crate::{backend, clock, gate, graphs};
use gpumem_abi::types::{Device, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::OomFallback;
use std::sync::atomic::{AtomicU64, Ordering::*};
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

/// A block on its way: from the live ones to the idle ones, or from those to the driver.
pub(super) struct Moving<'a>(&'a Moves);

/// How many moves began, and ended.
pub(super) type Moves = (AtomicU64, AtomicU64);

impl<'a> Moving<'a> {
    #[cold]
    pub fn begin(moves: &'a Moves) -> Self {
        moves.0.fetch_add(1, SeqCst);
        Self(moves)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.1.fetch_add(1, SeqCst);
    }
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
    /// Asks for a block of `rounded` bytes until there is nothing more to try. `room`: to be held until they are counted.
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
        let plain = |bytes| Given { addr: None, bytes, flags: 0 };
        let mut status = OUT_OF_MEMORY;
        *room = self.admits(owner, rounded);
        if room.is_some() {
            // Other threads take what one gives back, and give back what another one looks for.
            for _ in 0..FLUSHES {
                let before = self.moved();
                status = real(rounded);
                if status != OUT_OF_MEMORY {
                    return if status == SUCCESS { Ok(plain(rounded)) } else { Err(status) };
                }
                // Without anything to give back, or enough of it, what the driver said is the answer.
                if !self.make_room(owner, rounded) && self.is_still_at(before) {
                    break;
                }
            }
            // HIP has the answer of the last call as the thread's last error: that has to be this one's.
            if status == OUT_OF_MEMORY && (relieve_graphs(owner) || self.vendor == Vendor::Hip) {
                status = real(rounded);
            }
            if status != OUT_OF_MEMORY {
                return if status == SUCCESS { Ok(plain(rounded)) } else { Err(status) };
            }
        } else {
            call.note(|shim| shim.limit_refused(asked));
        }
        if let Ok(given) = self.spill(call, owner, asked, self.fallback) {
            return Ok(given);
        }
        Err(status)
    }

    /// Room that the quota has for so many bytes more, after idle blocks went back if need be: held until these are
    /// counted.
    pub fn admits(&'static self, owner: &'static Owner, bytes: u64) -> Option<Reserved> {
        let limit = self.limit.load(Relaxed);
        if limit == 0 {
            return Some(Reserved::none());
        }
        for _ in 0..FLUSHES {
            let before = self.moved();
            if let Some(reserved) = self.reserve(owner, bytes, limit) {
                return Some(reserved);
            }
            if super::looks::capturing() {
                return None;
            }
            // What others have reserved counts twice while it is being counted.
            if self.flush(owner.device) == 0 && self.is_still_at(before) {
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
        Some(Reserved(Some((self, (owner.device, bytes), Moving::begin(&self.moves)))))
    }

    /// Gives back all that is idle, where so many bytes may fit then: it waits for all work. Whether that was anything.
    fn make_room(&'static self, owner: &'static Owner, bytes: u64) -> bool {
        self.may_fit(owner, bytes) && self.flush(owner.device) > 0
    }

    /// Whether so many bytes could be had if all that is idle went back, as far as is known.
    fn may_fit(&self, owner: &'static Owner, bytes: u64) -> bool {
        if super::looks::capturing() {
            return true;
        }
        let info = owner.within(|| backend::of(self.vendor).memory_info());
        info.is_none_or(|(free, _)| free + self.idle_on(owner.device) >= bytes)
    }

    /// How many moves have ended. As long as it changes there may be more to give back.
    fn moved(&self) -> u64 {
        self.moves.1.load(SeqCst)
    }

    /// Whether that is what it was, once no block is on its way. A thread that moves one may have to wait for a
    /// processor.
    fn is_still_at(&self, before: u64) -> bool {
        const YIELDS: usize = 100;
        const SLEEP: Duration = Duration::from_micros(50);
        const SLEEPS: usize = 400;
        for look in 0..YIELDS + SLEEPS {
            let moved = self.moved();
            if moved != before {
                return false;
            }
            if self.moves.0.load(SeqCst) == moved {
                return true;
            }
            if look < YIELDS { std::thread::yield_now() } else { std::thread::sleep(SLEEP) }
        }
        true
    }

    /// To be held while a block is counted as idle and as live, or found nowhere, where there is a limit.
    #[inline(always)]
    pub(super) fn moving(&self) -> Option<Moving<'_>> {
        if self.limit.load(Relaxed) == 0 { None } else { Some(Moving::begin(&self.moves)) }
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

    /// Gives back all idle blocks of a device; how many bytes. Waits for work that uses them; where
    /// something captures, those stay.
    pub fn flush(&'static self, device: i32) -> u64 {
        let Some(shim) = gate::shim() else { return 0 };
        // What another thread is about to give back is nobody's meanwhile.
        let _flushing = lock(&self.flushing);
        self.gather(shim);
        let (now, mut released) = (clock::now_ns(), 0);
        for owner in self.owners().into_iter().filter(|owner| owner.device == device) {
            // The context may be another thread's, which ends it: that waits until this is done.
            let Some(_staying) = owner.staying() else { continue };
            if owner.has_pending() {
                owner.settle(now);
            }
            owner.end_quarantine(now);
            released += self.release(owner, u64::MAX, usize::MAX);
        }
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

/// Gives back all idle blocks of a vendor's devices; how many bytes.
pub fn flush_all(vendor: Vendor) -> u64 {
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
pub fn bounded(call: &Call, bytes: usize, mut real: impl FnMut() -> Status) -> Status {
    let Some(_room) = room_for(call, bytes as u64) else { return OUT_OF_MEMORY };
    let status = real();
    if status != OUT_OF_MEMORY || super::looks::capturing() {
        return status;
    }
    let went_back = match of_thread(call, super::of(call.vendor)) {
        Some((pool, owner)) => pool.make_room(owner, bytes as u64),
        None => flush_all(call.vendor) > 0,
    };
    if went_back { real() } else { status }
}
