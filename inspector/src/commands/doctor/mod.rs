//! `gpumem doctor`: checks, each with an id, a finding and a fix.
//!
//! * [`checks`]: the table of all checks, and the code that runs them. The checks are in these modules:
//! * [`system`]: this machine and this shell: variables, directory, driver. [`preload`]: the library; a process without
//!   the shim: the reason, and obstacles to a preload.
//! * [`process`]: a process: completeness of its records; does gpumem do more than record.
//! * [`memory`]: the process's pool, failed allocations, stranded memory, limits, idle and shared memory.
//! * [`graphs`]: the graph cache, its parked execs, launches after memory was freed. [`growth`]: growth of a process.
//! * [`subject`]: subjects of checks, and how their ledgers are read. [`finding`]: findings.

mod checks;
mod finding;
mod graphs;
mod growth;
mod memory;
mod preload;
mod process;
mod subject;
mod system;

pub use checks::check_list;

use crate::args::{Target, candidates};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::Ledger;
use crate::source::find::{FoundProcess, LedgerFile, Survey};
use crate::source::process::Process;
use crate::source::world::World;
use crate::source::{choose, find};
use crate::text;
use crate::view::table::{BAD, DIM, GOOD, HEAD, WARN, paint};
use anstyle::Style;
pub(super) use finding::{Finding, Severity};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use subject::{Machine, Reading, Subject, WithoutShim};

/// Check this machine and the processes with the shim: each finding with what to do about it
///
/// If you name a process, doctor says what to set for it. Findings about the most bytes come first, each with a
/// command to paste.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Check this process, with or without the shim: its pid, its name, or the path of a dump or a ledger [default: every
    /// process that has the shim]
    #[arg(value_name = "PID|NAME|FILE", add = candidates::offer([candidates::recorded, candidates::files]))]
    target: Option<OsString>,
    /// Also show the checks that are in order
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Report {
    worst: Severity,
    findings: Vec<Finding>,
    checks_ok: usize,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// `Code::Error` if a finding has severity error; those of choosing a process.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let world = &context.world;
        let survey = match self.target {
            Some(_) => find::survey(&world.wide()),
            None => find::survey(world),
        };
        let mut findings = checks::of_machine(&Machine { world, survey: &survey });
        match &self.target {
            None => {
                let reading = Reading::of_all(&survey.found);
                let of_all = survey.found.iter().flat_map(|found| of_found(world, found, &reading));
                findings.extend(of_all);
            }
            Some(target) => {
                findings.extend(self.of_one(context, &survey, target)?);
                sort(&mut findings);
            }
        }
        let checks_ok = findings.iter().filter(|finding| finding.severity == Severity::Ok).count();
        let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
        if !self.all && !context.global.json {
            findings.retain(|finding| finding.severity != Severity::Ok);
        }
        let report = Report { worst, findings, checks_ok };
        context.print(&report, print)?;
        match worst {
            Severity::Error => Err(Failure::error("a check found an error")),
            _ => Ok(()),
        }
    }

    fn of_one(&self, context: &Context, survey: &Survey, target: &OsStr) -> Result<Vec<Finding>> {
        let world = &context.world;
        let named = target.to_str().and_then(choose::pid).or_else(|| without_ledger(context, survey, target));
        let Some(pid) = named else {
            let ledger = context.ledger(&Target { target: Some(target.to_owned()), ..Target::default() })?;
            let is_its = |found: &&find::FoundProcess| found.pid == ledger.pid();
            let running = survey.found.iter().filter(is_its).find(|found| found.is_live() && ledger.status.running());
            let itself = || survey.found.iter().filter(is_its).find(|found| found.path() == Some(&ledger.path));
            return Ok(match running.or_else(itself) {
                Some(found) => of_found(world, found, &Reading::of_one(&survey.found)),
                None => of_file(&ledger),
            });
        };
        let reading = Reading::of_one(&survey.found);
        let its: Vec<_> = survey.found.iter().filter(|found| found.pid == pid).collect();
        if !its.is_empty() {
            let is_over = its.iter().all(|found| found.running().is_none());
            let replaced = its.iter().find_map(|found| found.process.as_ref()).filter(|_| is_over);
            let now = replaced.map(|process| about(pid, checks::without_shim(&WithoutShim { world, process })));
            let of_its = its.into_iter().flat_map(|found| of_found(world, found, &reading));
            return Ok(of_its.chain(now.unwrap_or_default()).collect());
        }
        let process = Process::of(world, pid).ok_or_else(|| {
            let none = || {
                Failure::nothing(format!("there is no process {pid}")).fix("gpumem ps lists the processes under gpumem")
            };
            world.without_proc().unwrap_or_else(none)
        })?;
        Ok(about(pid, checks::without_shim(&WithoutShim { world, process: &process })))
    }
}

fn about(pid: u32, findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().map(|finding| Finding { pid: Some(pid), ..finding }).collect()
}

/// Returns the findings about a process that has or had the shim.
fn of_found(world: &World, found: &FoundProcess, reading: &Reading) -> Vec<Finding> {
    let findings = process::without_ledger(world, found, reading).unwrap_or_else(|| match &found.what {
        // A dead process needs no remedy. stale-ledgers counts it.
        LedgerFile::Ledger { summary, status, .. } if status.running() || reading.is_named() => {
            let read = reading.read(world, found);
            checks::of_subject(&Subject::found(world, found, (summary, status), &read, reading))
        }
        _ => Vec::new(),
    });
    about(found.pid, findings)
}

/// Returns the findings of a dump or of a ledger elsewhere.
fn of_file(ledger: &Ledger) -> Vec<Finding> {
    about(ledger.pid(), checks::of_subject(&Subject::file(ledger)))
}

/// Returns the findings of all checks that need only a ledger, in the order of [`sort`].
pub(super) fn of_ledger(ledger: &Ledger) -> Vec<Finding> {
    let mut findings = of_file(ledger);
    sort(&mut findings);
    findings
}

/// Sorts: most severe first, then most memory first.
fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| (finding.severity != Severity::Error, std::cmp::Reverse(finding.bytes)));
}

/// Returns the only process of this name, if it has no ledger and the name fits no process with a ledger and no file.
/// Other commands can show nothing of it, and this one can say why.
fn without_ledger(context: &Context, survey: &Survey, target: &OsStr) -> Option<u32> {
    let is_path = target.as_encoded_bytes().contains(&b'/') || std::path::Path::new(target).exists();
    let name = target.to_string_lossy();
    if is_path || survey.found.iter().any(|found| found.is_live() && found.is_called(&name)) {
        return None;
    }
    let mut all = Process::all(&context.world).into_iter().filter(|process| process.name == name);
    all.next().filter(|_| all.next().is_none()).map(|process| process.pid)
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for finding in &report.findings {
        let word = finding.severity.name();
        let style = match finding.severity {
            Severity::Ok => GOOD,
            Severity::Info => Style::new(),
            Severity::Warning => WARN,
            Severity::Error => BAD,
        };
        let pid = finding.pid.map(|pid| format!("pid {pid}: ")).unwrap_or_default();
        let id = paint(HEAD, format!("{:<13}", finding.id));
        writeln!(
            out,
            "{}{} {id} {pid}{}",
            paint(style, word),
            " ".repeat(8 - word.len()),
            text::clean(&finding.finding)
        )?;
        if !finding.paste.is_empty() {
            writeln!(out, "{:23}{} {}", "", paint(DIM, "run:"), text::clean(&finding.paste))?;
        }
        if !finding.fix.is_empty() {
            let word = if finding.paste.is_empty() { "fix:" } else { "note:" };
            writeln!(out, "{:23}{} {}", "", paint(DIM, word), text::clean(&finding.fix))?;
        }
    }
    writeln!(out, "{} in order", text::count(report.checks_ok as u64, "check"))
}
