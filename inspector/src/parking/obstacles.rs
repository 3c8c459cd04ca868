//! Obstacles to parking a process. Parking is known to fail with each of them, and with some of them to hang, so the
//! driver is not asked to try.

use super::driver::State;
use super::plan::Member;
use super::room;
use crate::model::{Ledger, shared, totals};
use crate::source::find::{self, FoundProcess};
use crate::source::nvml::Books;
use crate::source::process::Process;
use crate::source::standing::Standing;
use crate::source::world::World;
use crate::source::{choose, maps};
use crate::text::{clean, count};
use gpumem_wire::units;
use std::ops::ControlFlow;
use std::time::Duration;

/// Longest time for reading the mappings of a process.
const PATIENCE: Duration = Duration::from_secs(2);

/// A reason against parking a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub what: String,
    /// The user may know better: `--i-know` passes it.
    pub passable: bool,
}

fn refused(what: impl Into<String>) -> Option<Obstacle> {
    Some(Obstacle { what: what.into(), passable: false })
}

/// Returns what keeps the process from being parked; empty if nothing is known.
pub(crate) fn of(world: &World, member: &Member, books: &Books) -> Vec<Obstacle> {
    let all = [
        of_state(member.state),
        of_user(world, &member.process),
        of_standing(world, &member.process),
        of_tool(world, &member.process),
        of_nccl(world, &member.process),
        of_managed_memory(member),
        of_ipc(world, member),
        of_host(world, member),
    ];
    let cards = member.cards.iter().filter_map(|card| of_card(books, &card.uuid, member.process.pid));
    all.into_iter().flatten().chain(cards).collect()
}

fn of_state(state: State) -> Option<Obstacle> {
    match state {
        State::Running => None,
        State::Locked => {
            refused("it is locked already, by another tool or by a park that ended: gpumem resume unlocks it")
        }
        state => refused(format!("it is {state}")),
    }
}

/// The driver tells nothing of another user's process (304), so whoever looks for it asks this, too.
pub(crate) fn of_user(world: &World, process: &Process) -> Option<Obstacle> {
    let others = world.uid != 0 && process.uid != world.uid;
    others.then(|| refused(format!("it belongs to user {}: only that user and root may park it", process.uid)))?
}

fn of_standing(world: &World, process: &Process) -> Option<Obstacle> {
    let tracer = Standing::of(world, process.pid).tracer?;
    refused(format!("pid {tracer} traces it (a debugger, strace)"))
}

fn of_tool(world: &World, process: &Process) -> Option<Obstacle> {
    let tool = process.mapped(world).ok()?.tool?;
    refused(format!("{} watches the GPU in it: the driver cannot park a process with such a tool", clean(&tool)))
}

/// Beginning of the names that NCCL gives its shared memory. Only a process that communicates by NCCL has some.
const NCCL: &[u8] = b"/dev/shm/nccl-";

fn of_nccl(world: &World, process: &Process) -> Option<Obstacle> {
    let mut has = false;
    let dir = world.proc.join(process.pid.to_string());
    let _ = maps::each_line(&dir, maps::MOST, PATIENCE, |line| {
        has |= line.windows(NCCL.len()).any(|part| part == NCCL);
        if has { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let what = "it talks to other processes by NCCL: ranks that are parked one at a time hang, and a watchdog ends a \
                job that stands still for 480 s. --i-know tries it, with all ranks in one command";
    has.then(|| Obstacle { what: what.into(), passable: true })
}

fn of_managed_memory(member: &Member) -> Option<Obstacle> {
    let ledger = member.ledger.as_ref()?;
    let managed = totals::live(&ledger.snapshot, &ledger.status).managed;
    let text = || format!("it has {} of managed memory, which the driver cannot park", units::bytes(managed));
    (managed > 0).then(|| refused(text()))?
}

fn of_ipc(world: &World, member: &Member) -> Option<Obstacle> {
    let ledger = member.ledger.as_ref().filter(|ledger| shared::is_shared(ledger))?;
    let others = find::survey(&world.wide()).found;
    let read = |found: &FoundProcess| choose::read(world, found).map(|opened| Ledger::of(world, opened));
    let shared = shared::of(world, ledger, &others, read);
    let exported = shared.exported.iter().map(|exported| exported.pid);
    let mut with: Vec<u32> = exported.chain(shared.imported.iter().filter_map(|imported| imported.pid)).collect();
    with.sort_unstable();
    with.dedup();
    let whom = match with.as_slice() {
        [] if shared.imported.is_empty() => return None,
        [] => "a process that is not known".to_owned(),
        [first, ..] => format!("{} (pid {first})", count(with.len() as u64, "process")),
    };
    refused(format!("it shares device memory with {whom}: the driver cannot park memory that another process has open"))
}

fn of_host(world: &World, member: &Member) -> Option<Obstacle> {
    let (room, bytes) = (room::on_host(world, &member.process)?, member.bytes());
    let text = || {
        let (wanted, has) = (units::bytes(bytes), units::bytes(room.bytes));
        format!("its copy takes {wanted} of host memory, and {} has {has}", room.of)
    };
    (room.bytes < bytes).then(|| refused(text()))?
}

fn of_card(books: &Books, uuid: &str, pid: u32) -> Option<Obstacle> {
    let division = books.division(uuid);
    if uuid.starts_with("MIG-") || division.split {
        refused(format!("{uuid} is split into instances (MIG): the driver cannot park what runs on one"))
    } else if division.virtual_gpu {
        refused(format!("{uuid} is a virtual GPU: the driver cannot park what runs on one"))
    } else if division.mps.contains(&pid) {
        refused("it is a client of MPS: the driver cannot park one")
    } else {
        None
    }
}
