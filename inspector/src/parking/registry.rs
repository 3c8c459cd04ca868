//! The processes that are parked: a file each beside the ledgers, `PID-START.parked`.
//!
//! The files tell what the driver no longer does: which cards a process needs, and how many bytes. If it is parked now
//! is asked of the driver.

use super::files;
use crate::failure::{Failure, Result};
use crate::source::process::Process;
use crate::source::world::World;
use gpumem_wire::place::ProcessId;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most bytes of a note that are read: thousands of cards.
const MOST: u64 = 1 << 20;

/// Bytes of a process on a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OnCard {
    /// NVML's name of the card.
    pub uuid: String,
    pub bytes: u64,
}

/// A process that is parked, or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parked {
    pub pid: u32,
    /// With the pid it names a process for as long as the machine is up.
    pub start_ticks: u64,
    pub name: String,
    pub cards: Vec<OnCard>,
    /// When it was parked, seconds since 1970.
    pub since: u64,
    /// All processes that were parked together, in the order of the calls.
    pub job: Vec<u32>,
}

impl Parked {
    /// Device bytes on all cards.
    pub(crate) fn bytes(&self) -> u64 {
        sum(&self.cards)
    }

    fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_ticks: self.start_ticks }
    }
}

/// Returns the bytes on all cards.
pub(crate) fn sum(cards: &[OnCard]) -> u64 {
    cards.iter().fold(0, |sum, card| sum.saturating_add(card.bytes))
}

fn path(world: &World, id: ProcessId) -> PathBuf {
    world.own_dir.join(id.note_name())
}

/// Returns the time for [`Parked::since`].
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Waits until no other order of this user is carried out. None begins before the result is dropped.
///
/// # Errors
/// Those of the system.
pub(crate) fn turn(world: &World) -> Result<File> {
    let path = world.own_dir.join("parking.lock");
    files::lock(world, &path, FlockOperation::LockExclusive).map_err(|error| Failure::io(path.display(), &error))
}

/// Returns the note about a process.
pub(crate) fn of(world: &World, pid: u32, start_ticks: u64) -> Option<Parked> {
    let id = ProcessId { pid, start_ticks };
    read(world, &path(world, id), id)
}

/// Notes a process.
///
/// # Errors
/// Those of the system.
pub(crate) fn note(world: &World, parked: &Parked) -> Result<()> {
    let path = path(world, parked.id());
    let write = files::write(world, &path, parked);
    write.map_err(|error| Failure::io(format!("cannot write {}", path.display()), &error))
}

/// Removes the note about a process, if there is one.
pub(crate) fn forget(world: &World, pid: u32, start_ticks: u64) {
    let _ = std::fs::remove_file(path(world, ProcessId { pid, start_ticks }));
}

/// Returns the notes about processes that run, by pid, and removes those of processes that have ended.
pub(crate) fn all(world: &World) -> Vec<Parked> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&world.own_dir).into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(ProcessId::from_note_name) else { continue };
        match Process::of(world, id.pid).is_some_and(|process| process.start_ticks == id.start_ticks) {
            true => all.extend(read(world, &entry.path(), id)),
            false => forget(world, id.pid, id.start_ticks),
        }
    }
    all.sort_by_key(|parked| parked.pid);
    all
}

/// Reads a note of this user or of root, if it says what its name says.
fn read(world: &World, path: &Path, id: ProcessId) -> Option<Parked> {
    files::read(path, &[0, world.uid], MOST).filter(|parked: &Parked| parked.id() == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_kept_as_long_as_their_process_runs() {
        let dir = tempfile::tempdir().unwrap();
        let world = World::here(Some(dir.path().join("new")));
        assert_eq!(all(&world), [], "no directory yet");
        let me = Process::of(&world, std::process::id()).unwrap();
        let cards = vec![OnCard { uuid: "GPU-1".into(), bytes: 5 }, OnCard { uuid: "GPU-2".into(), bytes: 7 }];
        let mine = Parked { pid: me.pid, start_ticks: me.start_ticks, name: "me".into(), cards, since: 9, job: vec![] };
        note(&world, &mine).unwrap();
        note(&world, &Parked { start_ticks: me.start_ticks + 1, ..mine.clone() }).unwrap();
        std::fs::write(world.own_dir.join("x-y.parked"), "").unwrap();
        assert_eq!(all(&world), std::slice::from_ref(&mine));
        assert_eq!(mine.bytes(), 12);
        assert_eq!(std::fs::read_dir(&world.own_dir).unwrap().count(), 2, "that of the ended process is gone");
        // What does not say what its name says is no note.
        std::fs::write(path(&world, mine.id()), serde_json::to_vec(&Parked { pid: 1, ..mine.clone() }).unwrap())
            .unwrap();
        assert_eq!(all(&world), []);
        forget(&world, me.pid, me.start_ticks);
        forget(&world, me.pid, me.start_ticks);
        assert!(!path(&world, mine.id()).exists());
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let world = World::here(Some(dir.path().to_owned()));
        let me = Process::of(&world, std::process::id()).unwrap();
        let mine = Parked {
            pid: me.pid,
            start_ticks: me.start_ticks,
            name: "me".into(),
            cards: vec![],
            since: 9,
            job: vec![],
        };
        std::fs::write(dir.path().join("elsewhere"), serde_json::to_vec(&mine).unwrap()).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), path(&world, mine.id())).unwrap();
        assert_eq!(all(&world), []);
    }
}
