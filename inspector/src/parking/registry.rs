//! The processes that are parked: a file each beside the ledgers, `PID-START.parked`.
//!
//! The files tell what the driver no longer does: which cards a process needs, and how many bytes. If it is parked now
//! is asked of the driver.

use crate::failure::{Failure, Result};
use crate::source::process::Process;
use crate::source::world::World;
use gpumem_wire::place::ProcessId;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const SUFFIX: &str = ".parked";
/// Most bytes of a file that are read: thousands of cards.
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
        self.cards.iter().fold(0, |sum, card| sum.saturating_add(card.bytes))
    }

    fn path(&self, world: &World) -> PathBuf {
        path(world, self.pid, self.start_ticks)
    }
}

fn path(world: &World, pid: u32, start_ticks: u64) -> PathBuf {
    world.own_dir.join(format!("{pid}-{start_ticks}{SUFFIX}"))
}

/// Returns the time for [`Parked::since`].
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A turn of this user's: nobody else parks or resumes while it lives. The kernel ends it with the process.
pub(crate) struct Turn(File);

/// Waits for a turn.
///
/// # Errors
/// Those of the system.
pub(crate) fn turn(world: &World) -> Result<Turn> {
    let path = world.own_dir.join("parking.lock");
    let open = || {
        DirBuilder::new().recursive(true).mode(0o700).create(&world.own_dir)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok(Turn(file))
    };
    open().map_err(|error: std::io::Error| Failure::io(path.display(), &error))
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Returns the note about a process.
pub(crate) fn of(world: &World, pid: u32, start_ticks: u64) -> Option<Parked> {
    let parked = read(world, &path(world, pid, start_ticks))?;
    ((parked.pid, parked.start_ticks) == (pid, start_ticks)).then_some(parked)
}

/// Notes a process. The file is complete or not there.
///
/// # Errors
/// Those of the system.
pub(crate) fn note(world: &World, parked: &Parked) -> Result<()> {
    let path = parked.path(world);
    let write = || {
        DirBuilder::new().recursive(true).mode(0o700).create(&world.own_dir)?;
        let mut file = tempfile::NamedTempFile::new_in(&world.own_dir)?;
        serde_json::to_writer(&mut file, parked)?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|failed| failed.error)
    };
    write().map(drop).map_err(|error| Failure::io(format!("cannot write {}", path.display()), &error))
}

/// Removes the note about a process, if there is one.
pub(crate) fn forget(world: &World, pid: u32, start_ticks: u64) {
    let _ = std::fs::remove_file(path(world, pid, start_ticks));
}

/// Returns the notes about processes that run, by pid, and removes those of processes that have ended.
pub(crate) fn all(world: &World) -> Vec<Parked> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&world.own_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).and_then(id_of);
        let Some(id) = id else { continue };
        if Process::of(world, id.pid).is_none_or(|process| process.start_ticks != id.start_ticks) {
            forget(world, id.pid, id.start_ticks);
            continue;
        }
        all.extend(
            read(world, &entry.path()).filter(|parked| (parked.pid, parked.start_ticks) == (id.pid, id.start_ticks)),
        );
    }
    all.sort_by_key(|parked| parked.pid);
    all
}

/// Parses `PID-START`.
fn id_of(name: &str) -> Option<ProcessId> {
    let (pid, start) = name.split_once('-')?;
    let id = ProcessId { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? };
    // `+5` and `05` are numbers for Rust.
    (format!("{}-{}", id.pid, id.start_ticks) == name).then_some(id)
}

/// Reads a note of this user's, or of root's. Anyone can write to a public directory.
fn read(world: &World, path: &Path) -> Option<Parked> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let what = file.metadata().ok()?;
    if !what.is_file() || ![0, world.uid].contains(&what.uid()) {
        return None;
    }
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
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
        std::fs::write(mine.path(&world), serde_json::to_vec(&Parked { pid: 1, ..mine.clone() }).unwrap()).unwrap();
        assert_eq!(all(&world), []);
        forget(&world, me.pid, me.start_ticks);
        forget(&world, me.pid, me.start_ticks);
        assert!(!mine.path(&world).exists());
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
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), mine.path(&world)).unwrap();
        assert_eq!(all(&world), []);
    }
}
