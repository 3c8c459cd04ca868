//! Every ledger, and every process that has the shim.

use super::life::Status;
use super::open::{self, Owner};
use super::process::{Mapped, Process};
use super::world::World;
use crate::failure::{Failure, plain};
use gpumem_wire::layout::{TableKind, VERSION};
use gpumem_wire::place::ProcessId;
use gpumem_wire::read::Snapshot;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process with the shim, or what one left.
#[derive(Debug)]
pub struct Found {
    /// As seen from here; for the dead, as they saw it themselves.
    pub pid: u32,
    pub process: Option<Process>,
    pub what: What,
}

/// What there is of it.
#[derive(Debug)]
pub enum What {
    /// A ledger, with its header, texts, counters and contexts.
    Ledger { path: PathBuf, summary: Box<Snapshot>, status: Status },
    /// A file with a ledger's name that cannot be read. `other_version`: it is a ledger all the same, of
    /// another layout.
    Unreadable { path: PathBuf, why: Failure, other_version: Option<u32> },
    /// The shim is mapped and has written nothing.
    NoLedger { mapped: Mapped, expected: PathBuf },
}

/// What a look around gave.
#[derive(Debug, Default)]
pub struct Survey {
    pub found: Vec<Found>,
    /// Places that could not be searched, and why.
    pub warnings: Vec<String>,
}

impl Found {
    /// The process's name: as /proc says, else as the ledger does.
    pub fn name(&self) -> String {
        match (&self.process, &self.what) {
            (_, What::Ledger { summary, .. }) if !summary.text(summary.header.exe).is_empty() => {
                file_name(&summary.text(summary.header.exe))
            }
            (Some(process), _) => process.name.clone(),
            // A damaged ledger has lost its texts.
            _ => "?".into(),
        }
    }

    /// Its ledger's path.
    pub fn path(&self) -> Option<&Path> {
        match &self.what {
            What::Ledger { path, .. } | What::Unreadable { path, .. } => Some(path),
            What::NoLedger { .. } => None,
        }
    }

    /// The status of a readable ledger.
    pub fn status(&self) -> Option<&Status> {
        match &self.what {
            What::Ledger { status, .. } => Some(status),
            _ => None,
        }
    }

    /// True for a ledger that cannot be read and whose process, by pid and start time in its name, does not run.
    pub fn is_unreadable_and_dead(&self) -> bool {
        matches!(self.what, What::Unreadable { .. }) && self.process.is_none()
    }

    /// True for such a one that another version of gpumem can read.
    pub fn is_dead_of_other_version(&self) -> bool {
        self.is_unreadable_and_dead() && matches!(self.what, What::Unreadable { other_version: Some(_), .. })
    }

    /// True for a ledger whose process runs.
    pub fn is_live(&self) -> bool {
        self.status().is_some_and(Status::running)
    }
}

/// The part of a path behind its last slash.
pub fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// Tables that a list of processes needs.
fn for_lists(kind: TableKind) -> bool {
    matches!(kind, TableKind::Strings | TableKind::Counters | TableKind::Contexts | TableKind::Samples)
}

/// Looks through this user's directories and through every process that can be seen.
pub fn survey(world: &World) -> Survey {
    let processes = Process::all(world);
    let by_id: HashMap<ProcessId, &Process> = processes.iter().map(|process| (process.id(), process)).collect();
    let mut survey = Survey::default();
    let mut seen = HashSet::new();
    for dir in std::iter::once(&world.own_dir).chain(&world.more_dirs) {
        for (path, id) in survey.ledgers_in(world, dir) {
            if seen.insert(identity(&path)) {
                let process = by_id.get(&id).copied();
                let owner = Owner::Only(owner_of(world, dir, &path, process));
                survey.add(world, path, id.pid, process, owner);
            }
        }
    }
    for process in &processes {
        let Ok(mapped) = process.mapped(world) else { continue };
        if !mapped.shim {
            continue;
        }
        let expected = match process.ledger_path(world) {
            Ok(path) => path,
            Err(error) => {
                survey.warnings.push(format!("pid {}: its environment cannot be read: {}", process.pid, plain(&error)));
                continue;
            }
        };
        if world.narrow && !same_dir(&expected, &world.own_dir) {
            continue;
        }
        // A directory may have been seen already: as this user's own, or through another process.
        match identity(&expected) {
            Some(known) if !seen.insert(Some(known)) => {}
            Some(_) => survey.add(world, expected, process.pid, Some(process), Owner::Only(process.uid)),
            None if survey.found.iter().any(|found| found.process.as_ref() == Some(process)) => {}
            None => {
                let process = Some(process.clone());
                let pid = process.as_ref().map_or(0, |process| process.pid);
                survey.found.push(Found { pid, process, what: What::NoLedger { mapped, expected } });
            }
        }
    }
    survey.found.sort_by_key(|found| (!found.is_live(), found.is_unreadable_and_dead(), found.pid));
    survey
}

impl Survey {
    /// Files in a directory that are named as ledgers are.
    fn ledgers_in(&mut self, world: &World, dir: &Path) -> Vec<(PathBuf, ProcessId)> {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                self.warnings.push(format!("{} cannot be searched: {}", dir.display(), plain(&error)));
                return Vec::new();
            }
        };
        if let Ok(meta) = std::fs::symlink_metadata(dir)
            && world.uid != 0
            && !world.narrow
            && meta.uid() != world.uid
            && meta.uid() != 0
        {
            self.warnings.push(format!("{} belongs to user {} and is left out", dir.display(), meta.uid()));
            return Vec::new();
        }
        let mut ledgers: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Some((entry.path(), ProcessId::from_ledger_name(entry.file_name().to_str()?)?)))
            .collect();
        ledgers.sort_by_key(|(_, id)| *id);
        ledgers
    }

    fn add(&mut self, world: &World, path: PathBuf, pid: u32, process: Option<&Process>, owner: Owner) {
        let what = match open::snapshot(&path, owner, for_lists) {
            Ok(summary) => {
                let status = Status::of(world, &summary, process);
                What::Ledger { path, summary: Box::new(summary), status }
            }
            Err(why) => {
                let other_version = open::version(&path, owner).filter(|&version| version != VERSION);
                What::Unreadable { path, why, other_version }
            }
        };
        let pid = process.map_or(pid, |process| process.pid);
        self.found.push(Found { pid, process: process.cloned(), what });
    }
}

/// True if a file's directory is this one, by whatever path.
fn same_dir(file: &Path, dir: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    file.parent().and_then(id).is_some_and(|parent| Some(parent) == id(dir))
}

/// Device and inode: the same file by two paths is one ledger.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whose files are believed in a directory: this user's. For root its owner's; in one that was named, which may
/// be shared, those of the process, or of whoever left them.
fn owner_of(world: &World, dir: &Path, file: &Path, process: Option<&Process>) -> u32 {
    let owner = |path: &Path| std::fs::symlink_metadata(path).map_or(0, |meta| meta.uid());
    match (world.uid, process) {
        (0, Some(process)) if world.narrow => process.uid,
        (0, None) if world.narrow => owner(file),
        (0, _) => owner(dir),
        (uid, _) => uid,
    }
}
