//! Every ledger, and every process that has the shim.

use super::folder::{FileIdentity, Folder};
use super::liveness::Status;
use super::open::{self, Owner};
use super::process::{Mapped, Process};
use super::world::World;
use crate::failure::{Failure, plain};
use crate::text::file_name;
use gpumem_wire::layout::{TableKind, VERSION};
use gpumem_wire::place::ProcessId;
use gpumem_wire::read::Snapshot;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A process with the shim, or what one left.
#[derive(Debug)]
pub(crate) struct FoundProcess {
    /// As seen from here; for the dead, as they saw it themselves.
    pub pid: u32,
    pub process: Option<Process>,
    pub what: LedgerFile,
    /// Where its ledger was seen; `None` where it was reached through the process.
    pub at: Option<At>,
}

/// A file in a directory that was looked through.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub folder: Rc<Folder>,
    pub name: OsString,
    pub seen: FileIdentity,
}

/// What there is of it.
#[derive(Debug)]
pub(crate) enum LedgerFile {
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
pub(crate) struct Survey {
    pub found: Vec<FoundProcess>,
    /// Places that could not be searched, and why.
    pub warnings: Vec<String>,
}

impl FoundProcess {
    /// The process's name: as /proc says, else as the ledger does.
    pub(crate) fn name(&self) -> String {
        match (&self.process, &self.what) {
            (_, LedgerFile::Ledger { summary, .. }) if !summary.text(summary.header.exe).is_empty() => {
                file_name(summary.text(summary.header.exe).trim_end_matches(" (deleted)"))
            }
            (Some(process), _) => process.name.clone(),
            // A damaged ledger has lost its texts.
            _ => "?".into(),
        }
    }

    /// Its ledger's path.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.what {
            LedgerFile::Ledger { path, .. } | LedgerFile::Unreadable { path, .. } => Some(path),
            LedgerFile::NoLedger { .. } => None,
        }
    }

    /// The status of a readable ledger.
    pub(crate) fn status(&self) -> Option<&Status> {
        match &self.what {
            LedgerFile::Ledger { status, .. } => Some(status),
            _ => None,
        }
    }

    /// True for a ledger that cannot be read and whose process, by pid and start time in its name, does not run.
    pub(crate) fn is_unreadable_and_dead(&self) -> bool {
        matches!(self.what, LedgerFile::Unreadable { .. }) && self.process.is_none()
    }

    /// True for such a one that another version of gpumem can read.
    pub(crate) fn is_dead_of_other_version(&self) -> bool {
        self.is_unreadable_and_dead() && matches!(self.what, LedgerFile::Unreadable { other_version: Some(_), .. })
    }

    /// True for a ledger whose process runs.
    pub(crate) fn is_live(&self) -> bool {
        self.status().is_some_and(Status::running)
    }
}

/// Tables that a list of processes needs.
fn for_lists(kind: TableKind) -> bool {
    matches!(kind, TableKind::Strings | TableKind::Counters | TableKind::Contexts | TableKind::Samples)
}

/// Device and inode of every ledger that was looked at.
type Known = HashSet<(u64, u64)>;

/// Looks through this user's directories and through every process that can be seen.
pub(crate) fn survey(world: &World) -> Survey {
    let processes = Process::all(world);
    let mut survey = Survey::default();
    survey.warnings.extend(world.lacks_proc());
    let mut known = Known::new();
    let by_id: HashMap<ProcessId, &Process> = processes.iter().map(|process| (process.id(), process)).collect();
    for dir in std::iter::once(&world.own_dir).chain(&world.more_dirs) {
        if let Some(folder) = survey.open(world, dir) {
            survey.look_through(world, &folder, &by_id, &mut known);
        }
    }
    for process in &processes {
        survey.look_at(world, process, &mut known);
    }
    // Of those that have ended the last ones first: they are looked for.
    let ago = |found: &FoundProcess| found.status().filter(|_| !found.is_live()).map_or(0, |status| status.ago_ns);
    survey.found.sort_by_key(|found| (!found.is_live(), found.is_unreadable_and_dead(), ago(found), found.pid));
    survey
}

impl Survey {
    /// Adds the ledgers in a directory.
    fn look_through(
        &mut self,
        world: &World,
        folder: &Rc<Folder>,
        by_id: &HashMap<ProcessId, &Process>,
        known: &mut Known,
    ) {
        for (name, id) in self.ledgers_in(folder) {
            let process = by_id.get(&id).copied();
            // It went away meanwhile, or lies in a directory that was looked through under another name.
            let Ok(seen) = folder.look(&name) else { continue };
            if !known.insert(seen.identity()) {
                continue;
            }
            let path = folder.path.join(&name);
            if let Some(process) = process.filter(|process| seen.owner != process.uid && seen.owner != 0) {
                let (pid, user, owner) = (process.pid, process.uid, seen.owner);
                let path = path.display();
                self.warnings.push(format!(
                    "{path} is named after pid {pid} of user {user}, but belongs to user {owner}: it is ignored"
                ));
                continue;
            }
            let owner = Owner::Only(owner_of(world, folder, &seen, process));
            let file = open::file_at(folder.dir(), Path::new(&name), &path, owner);
            // What was opened is what is judged, and maybe removed.
            let seen = file.as_ref().ok().and_then(|file| FileIdentity::of_file(file).ok()).unwrap_or(seen);
            self.add(world, path, file, id.pid, process, Some(At { folder: Rc::clone(folder), name, seen }));
        }
    }

    /// Adds a process that has the shim, with its ledger if that was not seen in a directory.
    fn look_at(&mut self, world: &World, process: &Process, known: &mut Known) {
        let Ok(mapped) = process.mapped(world) else { return };
        if !mapped.shim {
            return;
        }
        let expected = match process.ledger_path(world) {
            Ok(path) => path,
            Err(error) => {
                let why = plain(&error);
                self.warnings.push(format!("pid {}: its environment cannot be read: {why}", process.pid));
                return;
            }
        };
        if world.narrow && !same_dir(&expected, &world.own_dir) {
            return;
        }
        // A directory may have been seen already: as this user's own, or through another process.
        match identity(&expected) {
            Some(identity) if !known.insert(identity) => {}
            Some(_) => {
                let file = open::file(&expected, Owner::Only(process.uid));
                self.add(world, expected, file, process.pid, Some(process), None);
            }
            None if self.found.iter().any(|found| found.process.as_ref() == Some(process)) => {}
            None => {
                let (pid, process) = (process.pid, Some(process.clone()));
                self.found.push(FoundProcess {
                    pid,
                    process,
                    what: LedgerFile::NoLedger { mapped, expected },
                    at: None,
                });
            }
        }
    }

    /// A directory of ledgers that may be looked through. One that the user named may be a link, and anybody's.
    fn open(&mut self, world: &World, dir: &Path) -> Option<Rc<Folder>> {
        match Folder::open(dir, world.narrow) {
            Ok(folder) if world.uid != 0 && !world.narrow && ![0, world.uid].contains(&folder.owner()) => {
                let owner = folder.owner();
                self.warnings.push(format!("{} belongs to user {owner} and is ignored", dir.display()));
                None
            }
            Ok(folder) => Some(Rc::new(folder)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.warnings.push(format!("{} cannot be searched: {}", dir.display(), plain(&error)));
                None
            }
        }
    }

    /// Files in a directory that are named as ledgers are.
    fn ledgers_in(&mut self, folder: &Folder) -> Vec<(OsString, ProcessId)> {
        let names = folder.names().unwrap_or_else(|error| {
            self.warnings.push(format!("{} cannot be searched: {}", folder.path.display(), plain(&error)));
            Vec::new()
        });
        let ledger = |name: OsString| {
            let id = ProcessId::from_ledger_name(name.to_str()?)?;
            Some((name, id))
        };
        let mut ledgers: Vec<_> = names.into_iter().filter_map(ledger).collect();
        ledgers.sort_by_key(|(_, id)| *id);
        ledgers
    }

    fn add(
        &mut self,
        world: &World,
        path: PathBuf,
        file: crate::failure::Result<File>,
        pid: u32,
        process: Option<&Process>,
        at: Option<At>,
    ) {
        let read = file
            .map_err(|why| (why, None))
            .and_then(|file| open::read(&file, &path, for_lists).map_err(|why| (why, open::version(&file))));
        let what = match read {
            Ok(summary) => {
                let status = Status::of(world, &summary, process);
                LedgerFile::Ledger { path, summary: Box::new(summary), status }
            }
            Err((why, version)) => {
                LedgerFile::Unreadable { path, why, other_version: version.filter(|&version| version != VERSION) }
            }
        };
        let pid = process.map_or(pid, |process| process.pid);
        self.found.push(FoundProcess { pid, process: process.cloned(), what, at });
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

/// Whose files are believed in a directory: this user's. For root those of the process that they are named after;
/// of the dead the directory's owner's, and in one that was named, which may be shared, whoever left them.
fn owner_of(world: &World, folder: &Folder, seen: &FileIdentity, process: Option<&Process>) -> u32 {
    match (world.uid, process) {
        (0, Some(process)) => process.uid,
        (0, None) if world.narrow => seen.owner,
        (0, None) => folder.owner(),
        (uid, _) => uid,
    }
}
