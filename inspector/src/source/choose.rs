//! Finds the ledger that the user means: by pid, name or file, or the only one there is.

use super::find::{self, FoundProcess, LedgerFile};
use super::folder::FileIdentity;
use super::open::{self, Owner};
use super::process::{Process, Users};
use super::world::World;
use crate::failure::{Code, Failure, Result};
use crate::text;
use gpumem_wire::layout::TableKind;
use gpumem_wire::read::Snapshot;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The target as the user gave it.
pub(crate) struct TargetRequest<'a> {
    /// A pid, a name, or the path of a file. `None` if only one process is expected.
    pub target: Option<&'a OsStr>,
    /// True if the command needs a running process.
    pub live: bool,
    /// Returns the command line with this pid as its target.
    pub retype: &'a dyn Fn(u32) -> String,
}

/// A ledger that was read, with its origin.
pub(crate) struct Opened {
    pub snapshot: Snapshot,
    /// The path that it was read from.
    pub path: PathBuf,
    /// Its process, if still running.
    pub process: Option<Process>,
}

/// Reads the ledger of a target. A running process comes before a file of the same name, because programs often lie in
/// the working directory. A `/` makes the target a path.
///
/// # Errors
/// The message lists the processes there are and the command to type.
pub(crate) fn ledger(world: &World, asked: &TargetRequest) -> Result<Opened> {
    match asked.target {
        None => only_one(world, asked),
        Some(path) if path.as_bytes().contains(&b'/') => of_file(world, Path::new(path)),
        Some(target) => match target.to_str().and_then(pid) {
            Some(pid) => of_pid(world, pid, Path::new(target)),
            None => of_name(world, target, asked),
        },
    }
}

/// Parses a pid of digits alone: `+5` is a name.
pub(crate) fn pid(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn of_name(world: &World, file: &OsStr, asked: &TargetRequest) -> Result<Opened> {
    let name = &*file.to_string_lossy();
    let survey = find::survey(world);
    let named: Vec<&FoundProcess> =
        survey.found.iter().filter(|found| found.is_live() && found.is_called(name)).collect();
    match named.as_slice() {
        // The program's own file often has its name.
        [] if Path::new(file).exists() => of_file(world, Path::new(file)).map_err(|why| match dead_of(&survey, name) {
            dead if dead.is_empty() => why,
            _ => none_of_name(&survey, name, asked),
        }),
        // The process is listed but has no readable ledger: the message says why.
        [] => match survey.found.iter().find(|found| found.running().is_some() && found.is_called(name)) {
            Some(found) => read(world, found),
            None => Err(none_of_name(&survey, name, asked)),
        },
        [one] => read(world, one),
        several => Err(name_one(several, asked)),
    }
}

fn dead_of<'a>(survey: &'a find::Survey, name: &str) -> Vec<&'a FoundProcess> {
    survey.found.iter().filter(|found| found.status().is_some() && found.is_called(name)).collect()
}

/// Lists dead processes of this name but chooses none of them: the user may have meant another process.
fn none_of_name(survey: &find::Survey, name: &str, asked: &TargetRequest) -> Failure {
    let dead = dead_of(survey, name);
    let last = dead.iter().min_by_key(|found| found.status().map_or(u64::MAX, |status| status.ago_ns));
    let Some(last) = last else {
        return Failure::nothing(format!("{name:?} is not a pid, a file or the name of a running process"))
            .fix("gpumem ps lists the processes");
    };
    let others = match dead.len() {
        1 => String::new(),
        n => format!(", the last of {n}"),
    };
    let status = last.status().map(super::liveness::Status::text).unwrap_or_default();
    let failure = Failure::nothing(format!("no process {name} is running; pid {} {status}{others}", last.pid));
    failure.fix(match asked.live {
        true => "this command needs a running process".into(),
        false => format!("to see what it left, type: {}", (asked.retype)(last.pid)),
    })
}

/// Opens a dump or a ledger by its path.
fn of_file(world: &World, path: &Path) -> Result<Opened> {
    let file = open::file(path, Owner::Anyone)?;
    let snapshot = open::read(&file, path, |_| true, u64::MAX)?;
    let id = snapshot.header.pid;
    // A file of another user may claim to belong to any process.
    let owner = FileIdentity::of_file(&file).map_err(|error| Failure::io(path.display(), &error))?.owner;
    let own = |process: &Process| process.users.believe(owner);
    let same = |process: &Process| process.start_ticks == snapshot.header.start_ticks && own(process);
    let same_boot = world.boot_id == Some(snapshot.header.boot_id);
    let process = Process::of(world, id).filter(|process| same_boot && same(process)).or_else(|| {
        let wanted = |process: &Process| process.ns_pid == id && same(process);
        if same_boot { Process::all(world).into_iter().find(wanted) } else { None }
    });
    Ok(Opened { snapshot, path: path.to_owned(), process })
}

/// Reads the ledger of a process that was found.
///
/// # Errors
/// As [`open::snapshot`]; also if the process has no ledger.
pub(crate) fn read(world: &World, found: &FoundProcess) -> Result<Opened> {
    read_within(world, found, u64::MAX)
}

/// As [`read`], for a ledger of at most `most` bytes.
///
/// # Errors
/// As [`read`]; also if the ledger is longer.
pub(crate) fn read_within(world: &World, found: &FoundProcess, most: u64) -> Result<Opened> {
    read_tables(world, found, |_| true, most)
}

/// As [`read_within`], for the wanted tables alone.
///
/// # Errors
/// As [`read_within`].
pub(crate) fn read_tables(
    world: &World,
    found: &FoundProcess,
    wanted: impl Fn(TableKind) -> bool,
    most: u64,
) -> Result<Opened> {
    match &found.what {
        LedgerFile::Ledger { path, .. } => {
            let opened;
            let file = match (&found.file, &found.at) {
                (Some(file), _) => file,
                // Opens exactly the file that the survey saw.
                (None, Some(at)) => {
                    let owner = Owner::Only(Users::one(at.seen.owner));
                    opened = open::file_at(at.folder.dir(), Path::new(&at.name), path, owner)?;
                    &opened
                }
                (None, None) => {
                    let users = found.process.as_ref().map_or(Users::one(world.uid), |process| process.users);
                    opened = open::file(path, Owner::Only(users))?;
                    &opened
                }
            };
            let snapshot = open::read(file, path, wanted, most)?;
            Ok(Opened { snapshot, path: path.clone(), process: found.process.clone() })
        }
        LedgerFile::Unreadable { why, .. } => Err(why.clone()),
        LedgerFile::NoLedger { mapped, .. } => Err(no_ledger(found, mapped.driver)),
    }
}

fn no_ledger(found: &FoundProcess, driver: bool) -> Failure {
    let who = format!("pid {} ({})", found.pid, found.name());
    if driver {
        Failure::nothing(format!("{who} has loaded libgpumem.so and the driver, and has recorded nothing"))
            .fix(format!("it may not have used the GPU yet; gpumem doctor {} looks for the reason", found.pid))
    } else {
        Failure::nothing(format!("{who} has loaded libgpumem.so and has made no GPU call yet"))
            .fix("try again once it has")
    }
}

/// `file`: the same digits as a file name.
fn of_pid(world: &World, pid: u32, file: &Path) -> Result<Opened> {
    // A pid identifies a process, so its ledger may lie anywhere.
    let survey = find::survey(&world.wide());
    let wanted = |found: &&FoundProcess| {
        found.pid == pid || found.process.as_ref().is_none() && found.path().is_some_and(|path| named_for(path, pid))
    };
    // A running process first, then the one that died last.
    let best = survey
        .found
        .iter()
        .filter(wanted)
        .max_by_key(|found| (found.process.is_some(), found.status().map(|status| u64::MAX - status.ago_ns)));
    match best {
        Some(found) if found.process.is_some() => return read(world, found),
        // A ledger that a dead process left comes before a file that is not a ledger.
        _ if is_ledger(file) => return of_file(world, file),
        Some(found) => return read(world, found),
        None => {}
    }
    let Some(process) = Process::of(world, pid) else {
        if file.exists() {
            return of_file(world, file);
        }
        if let Some(failure) = world.without_proc() {
            return Err(failure);
        }
        return Err(Failure::nothing(format!("there is no process {pid}, and no ledger of such a process"))
            .fix("gpumem ps lists all processes"));
    };
    let who = format!("pid {pid} ({})", process.name);
    match process.mapped(world) {
        Ok(_) => Err(Failure::nothing(format!("{who} runs without libgpumem.so"))
            .fix("start it again with: gpumem run -- COMMAND")),
        Err(_) => Err(Failure::error(format!("{who} belongs to user {} and cannot be inspected", process.uid))
            .fix(crate::failure::as_root())),
    }
}

fn is_ledger(path: &Path) -> bool {
    open::file(path, Owner::Anyone).is_ok_and(|file| open::version(&file).is_some())
}

fn named_for(path: &Path, pid: u32) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(gpumem_wire::place::ProcessId::from_ledger_name).is_some_and(|id| id.pid == pid)
}

fn only_one(world: &World, asked: &TargetRequest) -> Result<Opened> {
    let survey = find::survey(world);
    let live: Vec<&FoundProcess> = survey.found.iter().filter(|found| found.is_live()).collect();
    let dead: Vec<&FoundProcess> =
        survey.found.iter().filter(|found| found.status().is_some() && !found.is_live()).collect();
    match (live.as_slice(), dead.as_slice()) {
        ([one], _) => read(world, one),
        ([], [_, ..]) if asked.live => {
            let left = match dead.len() as u64 {
                1 => "there is 1 ledger of an ended process".into(),
                n => format!("there are {} of ended processes", text::count(n, "ledger")),
            };
            Err(Failure::nothing(format!("no process with libgpumem.so is running; {left}"))
                .fix("this command needs a running process; start one with: gpumem run -- COMMAND"))
        }
        ([], [one]) => {
            tracing::info!("no process is running; this is what pid {} left", one.pid);
            read(world, one)
        }
        ([], []) => Err(nothing(world, &survey)),
        ([], several) | (several, _) => Err(name_one(several, asked)),
    }
}

fn nothing(world: &World, survey: &find::Survey) -> Failure {
    if let Some(failure) = world.without_proc().filter(|_| survey.found.is_empty()) {
        return failure;
    }
    for warning in &survey.warnings {
        tracing::warn!("{warning}");
    }
    // A running process says more than a ledger that another version of gpumem left.
    match survey.found.iter().find(|found| found.running().is_some()).or(survey.found.first()) {
        None => world.nothing_found(),
        Some(found) => match &found.what {
            LedgerFile::Unreadable { why, .. } => why.clone(),
            LedgerFile::NoLedger { mapped, .. } => no_ledger(found, mapped.driver),
            LedgerFile::Ledger { .. } => Failure::nothing("nothing to look at"),
        },
    }
}

/// Processes that are offered if several match.
const OFFERED: usize = 10;

fn name_one(several: &[&FoundProcess], asked: &TargetRequest) -> Failure {
    let typed: Vec<_> = several.iter().take(OFFERED).map(|found| (asked.retype)(found.pid)).collect();
    let width = typed.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let mut what = format!("{} processes fit; type one of", several.len());
    for (found, line) in several.iter().zip(&typed) {
        let status = found.status().map(super::liveness::Status::text).unwrap_or_default();
        what.push_str(&format!("\n  {line:<width$}  # {}, {status}", text::clean(&found.name())));
    }
    let more = several.len() - typed.len();
    if more > 0 {
        what.push_str(&format!("\n  … {more} more: gpumem ps"));
    }
    Failure::new(Code::Several, what)
}
