//! `gpumem clean`: removes what dead processes left.

use super::Context;
use crate::failure::{Code, Failure, Result};
use crate::source::ask::answers;
use crate::source::find::{self, Found, What};
use crate::source::life::Life;
use crate::source::process::Process;
use crate::view::text;
use crate::view::units;
use gpumem_wire::place::ProcessId;
use serde::Serialize;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Remove the ledgers and sockets of dead processes
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Also those that died less than a day ago
    #[arg(long)]
    all: bool,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// Ledgers of the recently dead are what one wants to look at.
const KEEP_NS: u64 = 24 * 3600 * 1_000_000_000;

#[derive(Serialize)]
struct Report {
    removed: Vec<Row>,
    kept: Vec<Row>,
    dry_run: bool,
}

#[derive(Serialize)]
struct Row {
    file: PathBuf,
    bytes: u64,
    why: String,
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be removed.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let survey = find::survey(&context.world);
    let mut report = Report { removed: Vec::new(), kept: Vec::new(), dry_run: args.dry_run };
    let mut failed = Vec::new();
    for found in &survey.found {
        let Some(path) = found.path() else { continue };
        match verdict(found, args.all) {
            Err(why) => report.kept.push(row(path, why)),
            Ok(why) => {
                let row = row(path, why);
                match if args.dry_run { Ok(()) } else { remove(path) } {
                    Ok(()) => report.removed.push(row),
                    Err(error) => failed.push(Failure::io(path.display(), &error).to_string()),
                }
            }
        }
    }
    for socket in stray_sockets(context) {
        if args.dry_run || std::fs::remove_file(&socket).is_ok() {
            report.removed.push(row(&socket, "the socket of a process that is gone".into()));
        }
    }
    context.print(&report, print)?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(Code::Error, failed.join("\n"))),
    }
}

/// Why a ledger may go, or why it stays.
fn verdict(found: &Found, all: bool) -> std::result::Result<String, String> {
    match &found.what {
        What::NoLedger { .. } => Err("no ledger".into()),
        What::Unreadable { path, other_version: Some(version), .. } if found.process.is_none() => {
            of_other_version(path, *version, all)
        }
        // Whose it is cannot be told, so it goes by its name: pid and start time.
        What::Unreadable { why, .. } if found.process.is_none() && all => Ok(why.what.clone()),
        What::Unreadable { why, .. } if found.process.is_none() => Err(format!("{}; --all removes it", why.what)),
        What::Unreadable { .. } => Err("its process runs".into()),
        What::Ledger { status, .. } => match status.life {
            Life::Running | Life::Elsewhere => Err("its process runs".into()),
            Life::Dump => Err("it is a dump".into()),
            Life::Exited | Life::Killed if status.other_boot => Ok(format!("{}, before this boot", status.text())),
            Life::Exited | Life::Killed if all || status.ago_ns >= KEEP_NS => Ok(status.text()),
            Life::Exited | Life::Killed => Err(format!("{}: kept for a day; --all removes it", status.text())),
        },
    }
}

/// Its times cannot be read: the file's own say when it was last written.
fn of_other_version(path: &Path, version: u32, all: bool) -> std::result::Result<String, String> {
    // A process that is out of sight, in a container that shares the directory, may still run.
    if answers(path) {
        return Err("its process runs".into());
    }
    let written = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
    let age = written.ok().and_then(|written| written.elapsed().ok()).unwrap_or_default();
    let age_text = units::span(age.as_nanos() as u64);
    let written = format!("of layout version {version}, its process is gone, written {age_text} ago");
    match all || age.as_nanos() >= u128::from(KEEP_NS) {
        true => Ok(written),
        false => Err(format!("{written}: kept for a day; --all removes it")),
    }
}

fn row(path: &Path, why: String) -> Row {
    // What cannot be read says so with its path, which is shown already.
    let why = why.strip_prefix(&format!("{} ", path.display())).map(str::to_owned).unwrap_or(why);
    // Blocks, not length: ledgers are sparse.
    let bytes = std::fs::symlink_metadata(path).map_or(0, |meta| meta.blocks() * 512);
    Row { file: path.to_owned(), bytes, why }
}

fn remove(ledger: &Path) -> std::io::Result<()> {
    std::fs::remove_file(ledger)?;
    // Its socket is of no use without it.
    let _ = std::fs::remove_file(ledger.with_extension("sock"));
    Ok(())
}

/// Sockets whose ledger is gone already and whose process does not run.
fn stray_sockets(context: &Context) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&context.world.own_dir).into_iter().flatten().flatten();
    let stray = |path: &PathBuf| {
        let id = ProcessId::from_socket_name(path.file_name()?.to_str()?)?;
        let runs = Process::of(&context.world, id.pid).is_some_and(|process| process.start_ticks == id.start_ticks);
        (!runs && !path.with_extension("ledger").exists()).then_some(())
    };
    entries.map(|entry| entry.path()).filter(|path| stray(path).is_some()).collect()
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let verb = if report.dry_run { "would remove" } else { "removed" };
    for row in &report.removed {
        writeln!(
            out,
            "{verb} {} ({}): {}",
            text::clean(&row.file.to_string_lossy()),
            units::bytes(row.bytes),
            text::clean(&row.why)
        )?;
    }
    for row in &report.kept {
        writeln!(out, "kept {}: {}", text::clean(&row.file.to_string_lossy()), text::clean(&row.why))?;
    }
    if report.removed.is_empty() && report.kept.is_empty() {
        writeln!(out, "there are no ledgers")?;
    }
    Ok(())
}
