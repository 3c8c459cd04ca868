//! Which processes a park is about, and what each has on which card.

use super::driver::{Checkpoints, State};
use super::registry::{self, OnCard, Parked};
use crate::model::{Ledger, devices};
use crate::source::find::{self, FoundProcess, LedgerFile};
use crate::source::nvml::{Books, Count};
use crate::source::process::Process;
use crate::source::standing::Standing;
use crate::source::world::World;
use crate::source::{called, choose};
use gpumem_wire::share::uuid_text;
use std::collections::{BTreeMap, BTreeSet};

/// A process that the driver knows.
pub(crate) struct Member {
    pub process: Process,
    pub name: String,
    pub state: State,
    /// Its bytes on each card: NVML's count, else gpumem's own.
    pub cards: Vec<OnCard>,
    /// Records of libgpumem.so, if it is in the process.
    pub ledger: Option<Ledger>,
}

impl Member {
    fn of(world: &World, books: &Books, process: Process, state: State, ledger: Option<Ledger>) -> Self {
        let name = ledger.as_ref().map_or_else(|| called::of_process(world, &process), Ledger::name);
        let cards = match state {
            State::Checkpointed => when_parked(world, &process, ledger.as_ref()),
            _ => on_cards(books, process.pid, ledger.as_ref()),
        };
        Self { process, name, state, cards, ledger }
    }

    /// Device bytes on all cards.
    pub(crate) fn bytes(&self) -> u64 {
        registry::sum(&self.cards)
    }

    /// Returns the note about it. `job`: all processes that are parked together.
    pub(crate) fn note(&self, since: u64, job: Vec<u32>) -> Parked {
        let Process { pid, start_ticks, .. } = self.process;
        Parked { pid, start_ticks, name: self.name.clone(), cards: self.cards.clone(), since, job }
    }

    /// Names it in a message.
    pub(crate) fn whose(&self) -> String {
        format!("pid {} ({})", self.process.pid, self.name)
    }
}

/// Returns those of the processes that use a GPU, with their descendants unless `alone`, in the order of their pids.
/// The driver is asked about each. A process that has made no CUDA call is passed over.
pub(crate) fn members(
    world: &World,
    driver: &dyn Checkpoints,
    books: &Books,
    pids: &[u32],
    alone: bool,
) -> Vec<Member> {
    let live = live(world);
    let all = Process::all(world);
    let named = |process: &Process| pids.contains(&process.pid) || !alone && descends(world, process.pid, pids);
    let all = all.into_iter().filter(|process| named(process) && !is_gpumem(world, process));
    let known = all.filter_map(|process| Some((state(world, driver, &process)?, process)));
    let member = |(state, process): (State, Process)| {
        let ledger = live.iter().find(|found| found.pid == process.pid).and_then(|found| read(world, found));
        Member::of(world, books, process, state, ledger)
    };
    known.map(member).collect()
}

/// Returns the processes that run and have a ledger, wherever it lies.
fn live(world: &World) -> Vec<FoundProcess> {
    find::survey(&world.wide()).found.into_iter().filter(FoundProcess::is_live).collect()
}

/// Reads the ledger of a process.
fn read(world: &World, found: &FoundProcess) -> Option<Ledger> {
    choose::read(world, found).ok().map(|opened| Ledger::of(world, opened))
}

/// Returns the ledgers of those of the processes that have one, by pid.
pub(crate) fn ledgers(world: &World, pids: &[u32]) -> BTreeMap<u32, Ledger> {
    let of = live(world).into_iter().filter(|found| pids.contains(&found.pid));
    of.filter_map(|found| Some((found.pid, read(world, &found)?))).collect()
}

/// Returns the state of a process; `None` if it has made no CUDA call.
fn state(world: &World, driver: &dyn Checkpoints, process: &Process) -> Option<State> {
    match Standing::of(world, process.pid).stopped {
        false => driver.state(process.pid).ok(),
        true => process.mapped(world).is_ok_and(|mapped| mapped.driver).then_some(State::Stopped),
    }
}

/// Returns the processes with this name in GPUMEM_SHARE.
pub(crate) fn sharing(world: &World, driver: &dyn Checkpoints, books: &Books, name: &str) -> Vec<Member> {
    let live = find::survey(world).found.into_iter().filter(FoundProcess::is_live);
    let member = |found: FoundProcess| {
        let process = found.process.clone()?;
        let header = match &found.what {
            LedgerFile::Ledger { summary, .. } => summary.text(summary.header.share).into_owned(),
            _ => return None,
        };
        if header.lines().next() != Some(name) {
            return None;
        }
        let state = state(world, driver, &process)?;
        Some(Member::of(world, books, process, state, read(world, &found)))
    };
    live.filter_map(member).collect()
}

/// Returns the reason, if any, why a member can never be parked, as far as libgpumem.so in it knows.
pub(crate) fn never(member: &Member) -> Option<String> {
    let ledger = member.ledger.as_ref()?;
    if !ledger.settings().control {
        return Some("GPUMEM_CONTROL=0: it cannot be told that it is parked".into());
    }
    let snapshot = &ledger.snapshot;
    let said = snapshot.text(snapshot.header.share).into_owned();
    said.split_once('\n').map(|(_, why)| why.to_owned()).filter(|why| !why.is_empty())
}

/// True for a process of this program: it uses the driver, and has no memory on a card.
fn is_gpumem(world: &World, process: &Process) -> bool {
    let exe = |pid: String| std::fs::read_link(world.proc.join(pid).join("exe")).ok();
    exe(process.pid.to_string()).is_some_and(|it| Some(it) == exe("self".into()))
}

/// Levels of parents that are looked at: more than any tree of processes has, and an end if pids are used again
/// meanwhile.
const LEVELS: usize = 64;

/// True if one of the processes is an ancestor of `pid`.
pub(crate) fn descends(world: &World, pid: u32, from: &[u32]) -> bool {
    std::iter::successors(Process::parent(world, pid), |&pid| Process::parent(world, pid))
        .take(LEVELS)
        .any(|parent| from.contains(&parent))
}

/// Returns what a parked process needs to come back: what was noted, else what libgpumem.so in it was told. Empty if
/// that is not known.
fn when_parked(world: &World, process: &Process, ledger: Option<&Ledger>) -> Vec<OnCard> {
    if let Some(noted) = registry::of(world, process.pid, process.start_ticks) {
        return noted.cards;
    }
    let told = || {
        let snapshot = &ledger?.snapshot;
        let bytes = Some(snapshot.header.parked_bytes).filter(|&bytes| bytes > 0)?;
        let uuids: BTreeSet<[u8; 16]> = snapshot.contexts.values().map(|context| context.uuid).collect();
        let uuid = uuids.first().filter(|_| uuids.len() == 1)?;
        Some(OnCard { uuid: uuid_text(uuid), bytes })
    };
    told().into_iter().collect()
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
        let on_card =
            |device: devices::Device| OnCard { uuid: format!("GPU-{}", device.uuid), bytes: recorded(&device) };
        Some(devices.into_iter().map(on_card).collect())
    };
    if counted.is_empty() { of_ledger().unwrap_or_default() } else { counted }
}

/// Returns the device memory that gpumem knows of. The context itself is not in it.
fn recorded(device: &devices::Device) -> u64 {
    [device.tracked_bytes, device.idle_bytes, device.graph_bytes, device.taken_bytes]
        .into_iter()
        .fold(0, u64::saturating_add)
}
