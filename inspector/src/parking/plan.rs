//! Which processes a park is about, and what each has on which card.

use super::driver::{Checkpoints, State};
use super::registry::OnCard;
use crate::model::Ledger;
use crate::model::devices;
use crate::source::nvml::{Books, Count};
use crate::source::process::Process;
use crate::source::world::World;
use crate::source::{called, choose, find};

/// A process that the driver knows.
pub(crate) struct Member {
    pub process: Process,
    pub name: String,
    pub state: State,
    /// Its bytes on each card: NVML's count, else gpumem's own.
    pub cards: Vec<OnCard>,
    /// What libgpumem.so recorded, if it is in the process.
    pub ledger: Option<Ledger>,
}

impl Member {
    /// Device bytes on all cards.
    pub(crate) fn bytes(&self) -> u64 {
        self.cards.iter().map(|card| card.bytes).sum()
    }

    /// Names it in a message.
    pub(crate) fn whose(&self) -> String {
        format!("pid {} ({})", self.process.pid, self.name)
    }
}

/// Returns those of the processes that use a GPU, with their descendants unless `alone`, in the order of their pids.
/// The driver is asked about each. A process that has made no CUDA call is passed over.
pub(crate) fn members(world: &World, driver: &dyn Checkpoints, books: &Books, pids: &[u32], alone: bool) -> Vec<Member> {
    let survey = find::survey(&world.wide());
    let all = Process::all(world);
    let all = all.into_iter().filter(|process| pids.contains(&process.pid) || !alone && descends(world, process.pid, pids));
    let known = all.filter_map(|process| Some((driver.state(process.pid).ok()?, process)));
    let member = |(state, process): (State, Process)| {
        let found = survey.found.iter().find(|found| found.pid == process.pid && found.is_live());
        let ledger = found.and_then(|found| choose::read(world, found).ok()).map(|opened| Ledger::of(world, opened));
        let name = ledger.as_ref().map_or_else(|| called::of_process(world, &process), Ledger::name);
        let cards = on_cards(books, process.pid, ledger.as_ref());
        Member { process, name, state, cards, ledger }
    };
    known.map(member).collect()
}

/// Levels of parents that are looked at: more than any tree of processes has, and an end if pids are used again
/// meanwhile.
const LEVELS: usize = 64;

/// True if one of the processes is an ancestor of `pid`.
fn descends(world: &World, pid: u32, from: &[u32]) -> bool {
    std::iter::successors(Process::parent(world, pid), |&pid| Process::parent(world, pid))
        .take(LEVELS)
        .any(|parent| from.contains(&parent))
}

/// True if `ancestor` is one of `pid`'s ancestors.
pub(crate) fn is_under(world: &World, pid: u32, ancestor: u32) -> bool {
    descends(world, pid, &[ancestor])
}

/// Returns the bytes of a process on each card.
fn on_cards(books: &Books, pid: u32, ledger: Option<&Ledger>) -> Vec<OnCard> {
    let uuids = books.uuids().unwrap_or_default();
    let counted = uuids.into_iter().filter_map(|uuid| match books.card(&uuid).ok()?.of_process(pid) {
        Count::Bytes(bytes) => Some(OnCard { uuid, bytes }),
        Count::Unknown(_) => None,
    });
    let counted: Vec<_> = counted.collect();
    let of_ledger = || {
        let devices = devices::of(ledger?, books);
        let on_card = |device: devices::Device| OnCard { uuid: format!("GPU-{}", device.uuid), bytes: recorded(&device) };
        Some(devices.into_iter().map(on_card).collect())
    };
    if counted.is_empty() { of_ledger().unwrap_or_default() } else { counted }
}

/// Returns the device memory that gpumem knows of. The context itself is not in it.
fn recorded(device: &devices::Device) -> u64 {
    [device.tracked_bytes, device.idle_bytes, device.graph_bytes, device.taken_bytes].into_iter().fold(0, u64::saturating_add)
}
