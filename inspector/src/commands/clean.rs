//! `gpumem clean`: removes ledgers of dead processes.

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::source::ask::answers;
use crate::source::find::{self, At, FoundProcess, LedgerFile};
use crate::source::folder::{FileIdentity, Folder};
use crate::source::liveness::Life;
use crate::source::process::Process;
use crate::text;
use crate::text::units;
use gpumem_wire::place::ProcessId;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Remove the ledgers and sockets of dead processes
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Also remove what was left less than a day ago
    #[arg(long)]
    all: bool,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Ledgers of processes that ended recently are kept, since a user may want to look at them.
const KEEP_NS: u64 = 24 * 3600 * 1_000_000_000;

#[derive(Serialize)]
struct Report {
    removed: Vec<LedgerRow>,
    kept: Vec<LedgerRow>,
    dry_run: bool,
}

#[derive(Serialize)]
struct LedgerRow {
    #[serde(serialize_with = "crate::text::serialize_path")]
    file: PathBuf,
    bytes: u64,
    why: String,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let survey = find::survey(&context.world);
        let mut report = Report { removed: Vec::new(), kept: Vec::new(), dry_run: self.dry_run };
        let mut failed = Vec::new();
        for found in &survey.found {
            let (Some(path), Some(at)) = (found.path(), &found.at) else { continue };
            match verdict(found, at, self.all) {
                Err(why) => report.kept.push(row(path, &at.seen, why)),
                Ok(why) => {
                    let row = row(path, &at.seen, why);
                    match if self.dry_run { Ok(()) } else { remove(at) } {
                        Ok(()) => report.removed.push(row),
                        Err(error) => failed.push(Failure::io(path.display(), &error).to_string()),
                    }
                }
            }
        }
        if let Ok(folder) = Folder::open(&context.world.own_dir, context.world.narrow) {
            for (name, seen) in stray_sockets(context, &folder) {
                if self.dry_run || folder.remove(&name, &seen).is_ok() {
                    let why = "the socket of a process that has ended".into();
                    report.removed.push(row(&folder.path.join(&name), &seen, why));
                }
            }
        }
        context.print(&report, print)?;
        if failed.is_empty() { Ok(()) } else { Err(Failure::error(failed.join("\n"))) }
    }
}

/// Returns the reason why a ledger may be removed, or why it stays.
fn verdict(found: &FoundProcess, at: &At, all: bool) -> std::result::Result<String, String> {
    match &found.what {
        LedgerFile::NoLedger { .. } => Err("no ledger".into()),
        LedgerFile::Unreadable { other_version: Some(version), .. } if found.process.is_none() => {
            of_other_version(at, *version, all)
        }
        // The ledger's process is unknown, so its name decides: pid and start time.
        LedgerFile::Unreadable { why, .. } if found.process.is_none() && all => Ok(why.what.clone()),
        LedgerFile::Unreadable { why, .. } if found.process.is_none() => Err(format!("{}; --all removes it", why.what)),
        LedgerFile::Unreadable { .. } => Err("its process is running".into()),
        LedgerFile::Ledger { status, .. } => match status.life {
            Life::Dump => Err("it is a dump".into()),
            life if !life.is_over() => Err("its process is running".into()),
            _ if status.other_boot => Ok(format!("{}, before this boot", status.text())),
            _ if all || status.ago_ns >= KEEP_NS => Ok(status.text()),
            _ => Err(format!("{}: kept for a day; --all removes it", status.text())),
        },
    }
}

/// The times in the ledger cannot be read, so the file's own time of last write is used.
fn of_other_version(at: &At, version: u32, all: bool) -> std::result::Result<String, String> {
    // A process that cannot be seen, in a container that shares the directory, may still run.
    if answers(&at.folder, socket_of(&at.name).as_os_str()) {
        return Err("its process is running".into());
    }
    let age = at.seen.written.elapsed().unwrap_or_default();
    let age_text = units::span(age.as_nanos() as u64);
    let written = format!("layout version {version}, its process has ended, written {age_text} ago");
    match all || age.as_nanos() >= u128::from(KEEP_NS) {
        true => Ok(written),
        false => Err(format!("{written}: kept for a day; --all removes it")),
    }
}

fn row(path: &Path, seen: &FileIdentity, why: String) -> LedgerRow {
    // The message of an unreadable file begins with its path, which the row has already.
    let why = why.strip_prefix(&format!("{} ", path.display())).map(str::to_owned).unwrap_or(why);
    // Blocks, not length: ledgers are sparse.
    LedgerRow { file: path.to_owned(), bytes: seen.blocks * 512, why }
}

/// Removes a ledger from the directory that it was seen in, if it is still the same file. Also removes its socket,
/// which is useless without it.
fn remove(at: &At) -> std::io::Result<()> {
    at.folder.remove(&at.name, &at.seen)?;
    let socket = socket_of(&at.name);
    if let Ok(seen) = at.folder.look(socket.as_os_str())
        && seen.is_socket()
        && seen.owner == at.seen.owner
    {
        let _ = at.folder.remove(socket.as_os_str(), &seen);
    }
    Ok(())
}

fn socket_of(ledger: &OsStr) -> PathBuf {
    Path::new(ledger).with_extension("sock")
}

/// Most names that are searched for sockets; the next run reaches others.
const MOST_NAMES: usize = 100_000;

/// Returns the sockets without a ledger whose process does not run. No process listens on them; a process that cannot
/// be seen would.
fn stray_sockets(context: &Context, folder: &Folder) -> Vec<(OsString, FileIdentity)> {
    let stray = |name: &OsString| {
        let id = ProcessId::from_socket_name(name.to_str()?)?;
        let runs = Process::of(&context.world, id.pid).is_some_and(|process| process.start_ticks == id.start_ticks);
        let seen = folder.look(name).ok().filter(FileIdentity::is_socket)?;
        let stray = !runs && folder.look(OsStr::new(&id.ledger_name())).is_err() && !answers(folder, name);
        stray.then_some(seen)
    };
    let names = folder.names().into_iter().flatten();
    names.take(MOST_NAMES).filter_map(|name| stray(&name).map(|seen| (name, seen))).collect()
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let verb = if report.dry_run { "would remove" } else { "removed" };
    for row in &report.removed {
        writeln!(out, "{verb} {} ({}): {}", text::path(&row.file), units::bytes(row.bytes), text::clean(&row.why))?;
    }
    for row in &report.kept {
        writeln!(out, "kept {}: {}", text::path(&row.file), text::clean(&row.why))?;
    }
    if report.removed.is_empty() && report.kept.is_empty() {
        writeln!(out, "there are no ledgers")?;
    }
    Ok(())
}
