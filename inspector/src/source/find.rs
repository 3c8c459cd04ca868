//! Every ledger, and every process that has the shim.

use super::budget::{Budget, Part};
use super::folder::{FileIdentity, Folder};
pub(crate) use super::found::{At, FoundProcess, LedgerFile};
use super::liveness::{Life, Status, sees_all_namespaces};
use super::maps;
use super::open::{self, Owner};
use super::presence::Presence;
use super::process::{Process, Users};
use super::remembered::Remembered;
use super::world::World;
use crate::failure::plain;
use gpumem_wire::layout::{TableKind, VERSION};
use gpumem_wire::place::ProcessId;
use rustix::process::{Resource, getrlimit};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Result of a survey.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub found: Vec<FoundProcess>,
    /// Places that could not be searched, with the reason, and a line about what was left out.
    pub warnings: Vec<String>,
    /// Budget left for later reads.
    pub budget: Budget,
}

/// True for tables that a list of processes needs.
pub(crate) fn for_lists(kind: TableKind) -> bool {
    matches!(kind, TableKind::Strings | TableKind::Counters | TableKind::Contexts | TableKind::Samples)
}

/// Bytes of file names that are kept at a time, for one directory.
const NAMES_AT_ONCE: u64 = 8 << 20;
/// Bytes charged for a found process besides those counted exactly: its name, its path, the reason why it cannot be
/// read, and the table row that a command makes of it.
const FOUND_BYTES: u64 = 4 << 10;

/// Searches this user's directories and every process that can be seen. Running processes come first, so that no number
/// of dead ledgers can hide them.
pub(crate) fn survey(world: &World) -> Survey {
    survey_again(world, Budget::default(), &mut Remembered::default(), Depth::Lists)
}

/// How much a survey reads of a ledger whose process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The tables that a list needs.
    Lists,
    /// The header alone. They are read right afterwards, so they are left open.
    Headers,
}

/// Most ledgers that are left open, and the share of the files that this process may open.
const MOST_OPEN: (u64, u64) = (256, 4);

/// As [`survey`], with a part of the budget and what the last survey learned.
pub(crate) fn survey_again(world: &World, budget: Budget, remembered: &mut Remembered, depth: Depth) -> Survey {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / MOST_OPEN.1;
    let may_open = if depth == Depth::Headers { allowed.min(MOST_OPEN.0) } else { 0 };
    let (found, warnings, known) = (Vec::new(), Vec::new(), HashSet::new());
    let mut search = Search { world, remembered, depth, may_open, found, warnings, budget, known };
    search.run();
    let Search { found, warnings, budget, .. } = search;
    Survey { found, warnings, budget }
}

/// A survey that is being made.
struct Search<'a> {
    world: &'a World,
    remembered: &'a mut Remembered,
    depth: Depth,
    /// Number of ledgers that may still be left open.
    may_open: u64,
    found: Vec<FoundProcess>,
    warnings: Vec<String>,
    budget: Budget,
    /// Device and inode of every ledger seen so far.
    known: HashSet<(u64, u64)>,
}

/// The processes that can be seen.
struct Who<'a> {
    by_id: HashMap<ProcessId, &'a Process>,
    by_pid: HashMap<u32, &'a Process>,
}

impl Search<'_> {
    fn run(&mut self) {
        let world = self.world;
        let processes = self.remembered.all(world, &self.budget);
        self.warnings.extend(world.lacks_proc());
        self.warnings.extend(world.crowded.iter().cloned());
        let dirs = std::iter::once(&world.own_dir).chain(&world.more_dirs);
        let folders: Vec<Rc<Folder>> = dirs.filter_map(|dir| self.open(dir)).collect();
        for process in &processes {
            self.look_for(process, &folders);
        }
        self.look_at_all(&processes);
        self.remembered.end();
        let by_id: HashMap<ProcessId, &Process> = processes.iter().map(|process| (process.id(), process)).collect();
        let by_pid: HashMap<u32, &Process> = processes.iter().map(|process| (process.pid, process)).collect();
        let who = Who { by_id, by_pid };
        for (at, folder) in folders.iter().enumerate() {
            self.look_through(folder, folders.len() - at, &who);
        }
        self.warnings.extend(self.budget.left_out());
        // Of dead processes the last ones first: users look for those.
        let ago = |found: &FoundProcess| found.status().filter(|_| !found.is_live()).map_or(0, |status| status.ago_ns);
        self.found.sort_by_key(|found| (!found.is_live(), found.is_unreadable_and_dead(), ago(found), found.pid));
    }

    /// Adds the ledger of a process that lies in one of these directories.
    fn look_for(&mut self, process: &Process, folders: &[Rc<Folder>]) {
        let name = OsString::from(process.id().ledger_name());
        for folder in folders {
            if !self.budget.is_over()
                && let Ok(seen) = folder.look(&name)
            {
                self.add_named(folder, name.clone(), seen, process.ns_pid, Some(process));
            }
        }
    }

    /// Adds processes with the shim that were not found by their ledgers. Those with many mappings come last, each with
    /// an equal share of half of the time; the other half is for ledgers of dead processes.
    fn look_at_all(&mut self, processes: &[Process]) {
        let found: HashSet<u32> = self.found.iter().map(|found| found.pid).collect();
        let is_left = |process: &&Process| !found.contains(&process.pid) && !self.remembered.lacks_shim(process.pid);
        let mut left: Vec<&Process> = processes.iter().filter(is_left).collect();
        let until = Instant::now() + self.budget.time() / 2;
        for most in [maps::FEW, maps::MOST] {
            let mut n = left.len() as u32;
            left.retain(|process| {
                let time = until.saturating_duration_since(Instant::now()) / n;
                n -= 1;
                time.is_zero() || !self.look_at(process, most, time)
            });
        }
        self.budget.leave_out(Part::Mappings, left.len() as u64);
    }

    /// Adds the files of a directory that have a ledger's name. The directory gets an equal share of the budget left
    /// for it and the directories after it.
    fn look_through(&mut self, folder: &Rc<Folder>, folders: usize, who: &Who) {
        let (bytes, until) = (
            self.budget.bytes() - self.budget.bytes() / folders as u64,
            Instant::now() + self.budget.time() / folders as u32,
        );
        let is_over = |budget: &Budget| budget.is_over() || budget.bytes() <= bytes || Instant::now() >= until;
        let (ledgers, left_out) = self.ledgers_in(folder, until);
        self.budget.leave_out(Part::Name, left_out);
        let mut ledgers = ledgers.into_iter();
        for (name, id) in ledgers.by_ref() {
            // The file went away meanwhile, or lies in a directory that was searched under another name.
            let Ok(seen) = folder.look(&name) else { continue };
            let process = who.by_id.get(&id).copied();
            self.add_named(folder, name, seen, id.pid, process);
            self.doubt_the_last(who);
            if is_over(&self.budget) {
                break;
            }
        }
        self.budget.leave_out(Part::Ledger, ledgers.len() as u64);
    }

    /// Removes the ledger added last if it claims to be of a process in another pid namespace while a process here has
    /// the same pid: that process or root must have written it. In sibling namespaces the two may be different
    /// processes; then the claim is rejected only if the process here has a ledger.
    fn doubt_the_last(&mut self, who: &Who) {
        let is_claimed = |found: &&FoundProcess| {
            found.process.is_none() && found.status().is_some_and(|status| status.life == Life::Elsewhere)
        };
        let Some(found) = self.found.last().filter(is_claimed) else { return };
        if let (Some(process), Some(at), Some(path)) = (who.by_pid.get(&found.pid), &found.at, found.path())
            && !process.users.believe(at.seen.owner)
            && (sees_all_namespaces(self.world)
                || self.found.iter().any(|other| other.process.as_ref() == Some(process)))
        {
            let warning = not_its_own(path, process, at.seen.owner);
            self.warnings.push(warning);
            self.found.pop();
        }
    }

    /// Adds a file in a directory, named after a process.
    fn add_named(
        &mut self,
        folder: &Rc<Folder>,
        name: OsString,
        seen: FileIdentity,
        pid: u32,
        process: Option<&Process>,
    ) {
        if !self.known.insert(seen.identity()) {
            return;
        }
        let path = folder.path.join(&name);
        if let Some(process) = process.filter(|process| !process.users.believe(seen.owner)) {
            self.warnings.push(not_its_own(&path, process, seen.owner));
            return;
        }
        let owner = Owner::Only(owner_of(self.world, folder, &seen, process));
        let file = open::file_at(folder.dir(), Path::new(&name), &path, owner);
        // Judge, and maybe remove, the file that was opened.
        let seen = file.as_ref().ok().and_then(|file| FileIdentity::of_file(file).ok()).unwrap_or(seen);
        self.add(path, file, pid, process, Some(At { folder: Rc::clone(folder), name, seen }));
    }

    /// Adds a process that has the shim, with its ledger if no directory showed it. False if the process has too many
    /// mappings to tell.
    fn look_at(&mut self, process: &Process, most: u64, time: Duration) -> bool {
        match Presence::of(self.world, process, most, time) {
            Presence::None if self.remembered.wants_mappings(process.pid) => {
                let mapped = process.mapped_within(self.world, maps::FEW, time);
                self.remembered.set_shim(process.pid, mapped.is_ok_and(|(mapped, whole)| mapped.shim || !whole));
            }
            Presence::None => {}
            Presence::NoShim => self.remembered.set_shim(process.pid, false),
            Presence::Unclear => return false,
            // A directory may have been searched already: as this user's own, or through another process.
            Presence::Ledger(_, Ok(seen)) if !self.known.insert(seen.identity()) => {}
            // Report a file that cannot be looked up like one that cannot be opened.
            Presence::Ledger(path, seen) => {
                let file = open::file_of(seen, &path, Owner::Only(process.users));
                self.add(path, file, process.pid, Some(process), None);
            }
            Presence::NoLedger(mapped, expected) => {
                self.budget.pay(FOUND_BYTES);
                let (pid, process) = (process.pid, Some(process.clone()));
                let what = LedgerFile::NoLedger { mapped, expected };
                self.found.push(FoundProcess { pid, process, what, at: None, file: None });
            }
            Presence::Hidden(error) => {
                let why = plain(&error);
                self.warnings.push(format!("pid {}: its environment cannot be read: {why}", process.pid));
            }
        }
        true
    }

    /// Opens a directory of ledgers. A directory that the user named may be a link and may belong to any user.
    fn open(&mut self, dir: &Path) -> Option<Rc<Folder>> {
        let world = self.world;
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

    /// Returns files in a directory that have a ledger's name, and the number left out.
    fn ledgers_in(&mut self, folder: &Folder, until: Instant) -> (Vec<(OsString, ProcessId)>, u64) {
        let names = match folder.names() {
            Ok(names) => names,
            Err(error) => {
                self.warnings.push(format!("{} cannot be searched: {}", folder.path.display(), plain(&error)));
                return (Vec::new(), 0);
            }
        };
        let (mut ledgers, mut left_out) = (Vec::new(), 0);
        let mut room = NAMES_AT_ONCE.min(self.budget.bytes() / 4);
        for name in names {
            if let Some(id) = name.to_str().and_then(ProcessId::from_ledger_name) {
                let cost = (name.len() + size_of::<(OsString, ProcessId)>()) as u64 * 2;
                match room.checked_sub(cost) {
                    Some(left) => {
                        room = left;
                        ledgers.push((name, id));
                    }
                    None => left_out += 1,
                }
            }
            if Instant::now() >= until {
                left_out += 1;
                break;
            }
        }
        ledgers.sort_by_key(|(_, id)| *id);
        (ledgers, left_out)
    }

    fn add(
        &mut self,
        path: PathBuf,
        file: crate::failure::Result<File>,
        pid: u32,
        process: Option<&Process>,
        at: Option<At>,
    ) {
        let most = self.budget.bytes() / 2;
        let is_whole = process.is_none() || self.depth == Depth::Lists;
        let read = file.map_err(|why| (why, None)).and_then(|file| {
            let summary = open::read(&file, &path, |kind| is_whole && for_lists(kind), most);
            match summary {
                Ok(summary) => Ok((summary, file)),
                Err(why) => Err((why, open::version(&file))),
            }
        });
        let cost = FOUND_BYTES + path.as_os_str().len() as u64 * 4;
        let mut left_open = None;
        let what = match read {
            Ok((mut summary, file)) => {
                if process.is_some() && self.may_open > 0 {
                    self.may_open -= 1;
                    left_open = Some(file);
                }
                let status = Status::of(self.world, &summary, process);
                self.budget.pay(summary.shrink());
                LedgerFile::Ledger { path, summary: Box::new(summary), status }
            }
            Err((why, version)) => {
                LedgerFile::Unreadable { path, why, other_version: version.filter(|&version| version != VERSION) }
            }
        };
        self.budget.pay(cost);
        let pid = process.map_or(pid, |process| process.pid);
        self.found.push(FoundProcess { pid, process: process.cloned(), what, at, file: left_open });
    }
}

/// Warns about a ledger that another user named after a process.
fn not_its_own(path: &Path, process: &Process, owner: u32) -> String {
    let (pid, user, path) = (process.pid, process.uid, path.display());
    format!("{path} is named after pid {pid} of user {user}, but belongs to user {owner}: it is ignored")
}

/// Returns the users whose files are trusted in a directory: this user. For root: the users of the process that the
/// file is named after; for a dead process the directory's owner, or the file's owner in a named directory, which may
/// be shared.
fn owner_of(world: &World, folder: &Folder, seen: &FileIdentity, process: Option<&Process>) -> Users {
    match (world.uid, process) {
        (0, Some(process)) => process.users,
        (0, None) if world.narrow => Users::one(seen.owner),
        (0, None) => Users::one(folder.owner()),
        (uid, _) => Users::one(uid),
    }
}
