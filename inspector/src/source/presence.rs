//! Tells if a process has the shim: by its ledger, which its environment leads to, or by the mapped library.

use super::maps;
use super::process::{Mapped, Process};
use super::seen::{LastLink, Seen};
use super::world::World;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Signs of the shim in a process.
pub(super) enum Presence {
    /// It may not be looked at, or keeps its ledger elsewhere than the user wants to see.
    None,
    /// No mapping of it is of the shim.
    NoShim,
    /// It has too many mappings to tell.
    Unclear,
    /// The path of its ledger, and the file.
    Ledger(PathBuf, io::Result<Seen>),
    /// The shim is mapped, and there is no ledger at the expected path.
    NoLedger(Mapped, PathBuf),
    /// The shim is mapped, and its environment cannot be read.
    Hidden(io::Error),
}

impl Presence {
    /// Looks for the ledger first: a large program has thousands of mappings, of which `most` bytes are read in `time`.
    pub(super) fn of(world: &World, process: &Process, most: u64, time: Duration) -> Self {
        let expected = match process.ledger(world) {
            Ok((path, _)) if world.narrow && !is_in(&path, &world.own_dir) => return Self::None,
            Ok((path, Ok(seen))) if process.users.believe(seen.owner()) => return Self::Ledger(path, Ok(seen)),
            expected => expected,
        };
        let Ok((mapped, whole)) = process.mapped_within(world, most, time) else { return Self::None };
        if !mapped.shim {
            return if whole { Self::NoShim } else { Self::Unclear };
        }
        let (path, seen) = match expected {
            Ok(expected) => expected,
            Err(error) => return Self::Hidden(error),
        };
        match seen.or_else(|_| Seen::named(&path, LastLink::Keep)) {
            // The rest of the mappings names the driver or a tool.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !whole && most < maps::MOST => Self::Unclear,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::NoLedger(mapped, path),
            seen => Self::Ledger(path, seen),
        }
    }
}

/// True if the file lies in this directory, by whatever path.
fn is_in(file: &Path, dir: &Path) -> bool {
    let id = |path: &Path| Seen::named(path, LastLink::Follow).ok().map(|seen| seen.identity());
    file.parent().and_then(id).is_some_and(|parent| Some(parent) == id(dir))
}
