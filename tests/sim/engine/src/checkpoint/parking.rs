//! The memory of the devices while its process is checkpointed: the devices have none of it, and its contents are
//! scrambled, so that a read or a write shows.

use crate::config::config;
use crate::error::Result;
use crate::machine::Machine;

/// Bytes of each device that a checkpoint took.
#[derive(Default)]
pub(crate) struct Parked(Vec<u64>);

impl Machine {
    /// True if the driver moves memory of this process between host and device.
    pub(crate) fn has_managed(&self) -> bool {
        self.allocs.values().any(|alloc| self.is_managed(alloc))
    }

    /// True if no work is submitted that is not done.
    pub(crate) fn is_idle(&self) -> bool {
        (0..config().devices).all(|device| self.device_fences(device).is_empty())
    }

    /// Takes the memory of all devices away.
    pub(crate) fn park(&mut self) -> Parked {
        self.scramble();
        let bytes: Vec<u64> = self.devices.iter().map(|device| device.used).collect();
        for (device, bytes) in bytes.iter().enumerate() {
            self.refund(device as u32, *bytes);
        }
        crate::card::tell_parked(bytes[0]);
        Parked(bytes)
    }

    /// Takes room on all devices again, or on none.
    pub(crate) fn make_room(&mut self, parked: &Parked) -> Result {
        for (device, bytes) in parked.0.iter().enumerate() {
            if let Err(error) = self.charge(device as u32, *bytes) {
                for (device, bytes) in parked.0[..device].iter().enumerate() {
                    self.refund(device as u32, *bytes);
                }
                return Err(error);
            }
        }
        crate::card::tell_parked(0);
        Ok(())
    }

    /// Makes the contents of all device memory unreadable, or readable again. Pages that were never touched stay so.
    pub(crate) fn scramble(&mut self) {
        let allocations = self.allocs.iter().filter(|(_, alloc)| alloc.kind.owns_arena() && !self.lies_on_host(alloc));
        let allocations = allocations.map(|(addr, alloc)| (*addr, alloc.size));
        let physical = self.physical.values().filter(|p| p.foreign.is_none() && p.place.device().is_some());
        let ranges: Vec<_> = allocations.chain(physical.map(|p| (p.addr, p.size))).collect();
        for (addr, len) in ranges {
            self.arena.scramble(addr, len);
        }
    }
}
