//! What is done before an allocation runs out: everything idle goes back, then memory of graphs, then,
//! where the user allows it, the allocation is placed outside of the device's memory.

use super::Pool;
use super::block::{HOST, MANAGED};
use super::lock;
use super::owner::Owner;
use crate::call::Call;
use crate::{clock, gate, graphs};
use gpumem_abi::types::{OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::OomFallback;
use std::sync::atomic::{AtomicU64, Ordering::*};

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

impl Pool {
    /// Asks for a block of `rounded` bytes until there is nothing more to try.
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
    ) -> Result<Given, Status> {
        let plain = |bytes| Given { addr: None, bytes, flags: 0 };
        let mut status = OUT_OF_MEMORY;
        if self.admits(owner, rounded) {
            // Other threads take what one gives back, and give back what another one looks for.
            for _ in 0..FLUSHES {
                let before = self.moved();
                status = real(rounded);
                if status != OUT_OF_MEMORY {
                    return if status == SUCCESS { Ok(plain(rounded)) } else { Err(status) };
                }
                // Without anything to give back, what the driver said is the answer.
                if self.flush(owner.device) == 0 && self.is_still_at(before) {
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

    /// Whether the quota has room for so many bytes more, after idle blocks went back if need be.
    pub fn admits(&'static self, owner: &'static Owner, bytes: u64) -> bool {
        let limit = self.limit.load(Relaxed);
        if limit == 0 {
            return true;
        }
        let room = || limit.checked_sub(self.used(owner)).is_some_and(|room| room >= bytes);
        for _ in 0..FLUSHES {
            let before = self.moved();
            if room() {
                return true;
            }
            if super::looks::capturing() {
                return false;
            }
            if self.flush(owner.device) == 0 && self.is_still_at(before) {
                break;
            }
        }
        room()
    }

    /// How many moves have ended. As long as it changes there may be more to give back.
    fn moved(&self) -> u64 {
        self.moves.1.load(SeqCst)
    }

    /// Whether that is what it was, once no block is on its way.
    fn is_still_at(&self, before: u64) -> bool {
        const LOOKS: usize = 1000;
        for _ in 0..LOOKS {
            if self.moves.0.load(SeqCst) == self.moved() {
                break;
            }
            std::thread::yield_now();
        }
        self.moved() == before
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

/// Whether the quota has no room for so many bytes more of this thread's device, which is then written down.
pub fn refuses(call: &Call, bytes: u64) -> bool {
    let Some(pool) = super::of_limited(call.vendor).filter(|pool| pool.limit.load(Relaxed) != 0) else { return false };
    let owner = call.note(|shim| pool.owner_of_thread(shim)).flatten();
    let refused = owner.is_some_and(|owner| !pool.admits(owner, bytes));
    if refused {
        call.note(|shim| shim.limit_refused(bytes));
    }
    refused
}

/// Runs a call that takes so many bytes of the device: not if the quota has no room for them; again, after
/// all that is idle went back, if there is no memory.
pub fn bounded(call: &Call, bytes: usize, mut real: impl FnMut() -> Status) -> Status {
    if refuses(call, bytes as u64) {
        return OUT_OF_MEMORY;
    }
    let status = real();
    if status != OUT_OF_MEMORY || super::looks::capturing() || flush_all(call.vendor) == 0 {
        return status;
    }
    real()
}
