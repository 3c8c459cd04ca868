//! Places of memory of pools and of the virtual memory calls.

use crate::abi::Location;
use crate::config::config;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::Machine;
use crate::pool::Pool;

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_ALLOCATION_TYPE_MANAGED`.
pub const PINNED: u32 = 1;
pub const MANAGED: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Device(u32),
    Host,
    /// A NUMA node of the host.
    Node(u32),
    /// A place that only a later driver has (`SIM_LATER_PLACE`).
    Later(u32),
    /// Moved between the host and devices; the place that the program prefers.
    Managed(u32, i32),
}

impl Place {
    /// The place of memory of an allocation type at a location. The machine has one NUMA node.
    pub fn of(m: &Machine, alloc_type: u32, at: Location) -> Result<Place> {
        let pinned = match (at.kind, at.id) {
            (1, id) if id >= 0 && (id as usize) < m.devices.len() => Place::Device(id as u32),
            (1, _) => return Err(Error::INVALID_DEVICE),
            (2, _) => Place::Host,
            (3, 0) | (4, _) => Place::Node(0),
            (kind, _) if kind != 0 && kind == config().later_place => Place::Later(kind),
            _ => return Err(Error::INVALID_VALUE),
        };
        match alloc_type {
            PINNED => Ok(pinned),
            MANAGED => Ok(Place::Managed(at.kind, at.id)),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    pub fn location(self) -> Location {
        match self {
            Place::Device(id) => Location { kind: 1, id: id as i32 },
            Place::Host => Location { kind: 2, id: 0 },
            Place::Node(id) => Location { kind: 3, id: id as i32 },
            Place::Later(kind) => Location { kind, id: 0 },
            Place::Managed(kind, id) => Location { kind, id },
        }
    }

    /// The device whose memory it takes.
    pub fn device(self) -> Option<u32> {
        if let Place::Device(device) = self { Some(device) } else { None }
    }

    /// True if the host's processors can use it.
    pub fn host_can_use(self) -> bool {
        self.device().is_none()
    }

    pub fn on_host(self) -> bool {
        matches!(self, Place::Host | Place::Node(_))
    }
}

impl Machine {
    /// Takes bytes of a place; only devices have a bound.
    pub fn charge_at(&mut self, place: Place, bytes: u64) -> Result {
        place.device().map_or(Ok(()), |device| self.charge(device, bytes))
    }

    pub fn refund_at(&mut self, place: Place, bytes: u64) {
        if let Some(device) = place.device() {
            self.refund(device, bytes);
        }
    }

    /// The default pool of a place, made when it is asked for first.
    pub fn default_pool(&mut self, place: Place) -> H {
        if let Some(device) = place.device() {
            return self.devices[device as usize].default_pool;
        }
        if let Some(&pool) = self.default_pools.get(&place) {
            return pool;
        }
        let pool = self.handles.make("pool");
        self.pools.insert(pool, Pool::at(place));
        self.default_pools.insert(place, pool);
        pool
    }

    /// The current pool of a place.
    pub fn current_pool(&mut self, place: Place) -> H {
        match (place.device(), self.current_pools.get(&place)) {
            (Some(device), _) => self.devices[device as usize].current_pool,
            (None, Some(&pool)) => pool,
            (None, None) => self.default_pool(place),
        }
    }

    /// Makes a pool the current one of a place, which has to be its own.
    pub fn set_current_pool(&mut self, place: Place, pool: H) -> Result {
        if self.pool(pool)?.place != place {
            return Err(Error::INVALID_VALUE);
        }
        match place.device() {
            Some(device) => self.devices[device as usize].current_pool = pool,
            None => drop(self.current_pools.insert(place, pool)),
        }
        Ok(())
    }
}
