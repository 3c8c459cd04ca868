//! Everything live in the process: allocations, graphs, execs, contexts, streams.
//!
//! The ledger's tables are the records. The maps here find a record by its pointer or handle. They are passive:
//! [`crate::records`] changes them.
//!
//! * This file: all maps together, and the listed threads.
//! * [`execs`]: execs by handle.
//! * [`live`]: the map of allocations, graphs and the library's own execs. [`allocations`], [`graphs`]: its entries.
//! * [`contexts`], [`streams`], [`vmm`], [`driver_pools`], [`graph_memory`], [`shared`]: maps of one noun each.
//! * [`sites`]: call stacks and the modules of their frames. [`python`]: the code that Python frames run. [`tag`]:
//!   names that the program gives.
//! * [`summary`]: totals at the program's exit. [`estimate`]: bytes of graphs and execs.

pub(crate) mod allocations;
pub(crate) mod contexts;
pub(crate) mod driver_pools;
pub(crate) mod estimate;
pub(crate) mod execs;
pub(crate) mod graph_memory;
pub(crate) mod graphs;
pub(crate) mod live;
pub(crate) mod python;
pub(crate) mod shared;
pub(crate) mod sites;
pub(crate) mod streams;
pub(crate) mod summary;
pub(crate) mod tag;
pub(crate) mod vmm;

use crate::ledger::Ledger;
use crate::ledger::text::TextPlace;
use crate::process::errno::KeepErrno;
use crate::process::threads::{self, is_known};
use gpumem_wire::layout::{StrRef, ThreadSlot};
use gpumem_wire::settings::Settings;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Everything live in the process.
pub(crate) struct Registry {
    pub allocations: live::Live<allocations::Entry>,
    pub graphs: live::Live<graphs::GraphEntry>,
    pub execs: execs::Execs,
    pub contexts: contexts::Contexts,
    pub streams: streams::Streams,
    pub vmm: Mutex<vmm::Vmm>,
    pub driver_pools: driver_pools::DriverPools,
    pub graph_memory: Mutex<graph_memory::GraphMemory>,
    pub shared: Mutex<shared::Shared>,
    pub sites: sites::Sites,
    /// True once a graph has nodes that allocate, or memory was allocated in stream order. The driver then keeps memory
    /// that no call shows.
    pub memory_nodes: AtomicBool,
    pub stream_ordered: AtomicBool,
    serial: AtomicU64,
    /// Start of the next search for an ended thread's slot.
    ended_thread: AtomicU64,
    /// Names of listed threads, by their slots. They are not interned, because threads come without end, and each may
    /// have its own name.
    names: Mutex<Vec<Option<TextPlace>>>,
}

impl Registry {
    /// Creates the registry; `None` if there is no memory for it.
    pub(crate) fn new(settings: &Settings, ledger: &Ledger) -> Option<Self> {
        Some(Self {
            allocations: live::Live::new(),
            graphs: live::Live::new(),
            execs: execs::Execs::new(),
            contexts: contexts::Contexts::new(),
            streams: streams::Streams::new(),
            vmm: Mutex::default(),
            driver_pools: driver_pools::DriverPools::new(),
            graph_memory: Mutex::default(),
            shared: Mutex::default(),
            sites: sites::Sites::new(settings, ledger)?,
            memory_nodes: AtomicBool::new(false),
            stream_ordered: AtomicBool::new(false),
            serial: AtomicU64::new(1),
            ended_thread: AtomicU64::new(0),
            names: Mutex::default(),
        })
    }

    /// True if the driver may keep memory that no call shows.
    pub(crate) fn keeps_unseen(&self) -> bool {
        self.memory_nodes.load(Relaxed) || self.stream_ordered.load(Relaxed)
    }

    /// Returns the next number in the order of records.
    #[inline]
    pub(crate) fn serial(&self) -> u64 {
        self.serials(1)
    }

    /// Takes `count` new numbers; returns the first.
    #[inline]
    pub(crate) fn serials(&self, count: u64) -> u64 {
        self.serial.fetch_add(count, Relaxed)
    }

    /// Returns an ended thread's slot in a full table, so that the latest threads are listed.
    #[cold]
    fn slot_of_ended_thread(&self, ledger: &Ledger) -> Option<u32> {
        /// Number of slots examined. In a program with that many live threads, new ones have no names.
        const LOOKS: u64 = 64;
        let _errno = KeepErrno::new();
        let threads = &ledger.threads;
        for _ in 0..LOOKS.min(threads.handed_out()) {
            let slot = (self.ended_thread.fetch_add(1, Relaxed) % threads.handed_out()) as u32;
            if threads.read(slot).is_some_and(|thread| thread.tid != 0 && !is_known(thread.tid)) {
                threads.clear(slot);
                return threads.take();
            }
        }
        None
    }

    /// Writes the name of the slot's present thread. Returns 0 if the thread has no name, or there is no room for it.
    fn name_at(&self, ledger: &Ledger, slot: u32, name: &[u8]) -> StrRef {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() <= slot as usize {
            names.resize_with(slot as usize + 1, || None);
        }
        let Some(place) = names.get_mut(slot as usize).filter(|_| !name.is_empty()) else { return 0 };
        if place.is_none() {
            *place = ledger.texts.place();
        }
        place.as_mut().map_or(0, |place| ledger.texts.rewrite(place, name))
    }

    /// Lists a new thread.
    pub(crate) fn new_thread(&self, ledger: &Ledger, tid: u32) {
        let Some(slot) = ledger.threads.take().or_else(|| self.slot_of_ended_thread(ledger)) else { return };
        let name = self.name_at(ledger, slot, &threads::name());
        ledger
            .threads
            .write(slot, ThreadSlot { tid, name, time_ns: crate::process::clock::now_ns(), ..Default::default() });
    }
}
