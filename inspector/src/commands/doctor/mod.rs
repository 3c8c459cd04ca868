//! `gpumem doctor`: checks, each with an id, a finding and a fix.
//!
//! * [`system`]: this machine and this shell: the library, variables, directory, driver.
//! * [`process`]: one process: is everything recorded, and if not, why.
//! * [`without_shim`]: one process that has no shim: why, and what stands in the way.
//! * [`memory`]: of one process: the pool, what ran out, what is stranded, limits, idle memory.
//! * [`graphs`]: of one process: the graph cache, and what is parked in it.
//! * [`freed_graphs`]: of one process: graphs that were launched after their memory was freed.
//! * [`growth`]: of one process: whether it grows. [`shared`]: what is freed in one process and open in another.
//! * [`trust`]: of one process: what decided whether more is done than to record.
//! * [`preload`]: whether the loader takes libgpumem.so.
//! * [`finding`]: the list of checks, and what one finds.

mod finding;
mod freed_graphs;
mod graphs;
mod growth;
mod memory;
mod preload;
mod process;
mod reading;
mod shared;
mod system;
mod trust;
mod without_shim;

pub use finding::CHECKS;

use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::{Code, Failure, Result};
use crate::model::Ledger;
use crate::source::find::Survey;
use crate::source::process::Process;
use crate::source::{choose, find};
use crate::text;
use crate::view::table::{BAD, DIM, GOOD, HEAD, WARN, paint};
use anstyle::Style;
pub(super) use finding::{Finding, Severity};
use reading::Reading;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::Write;

/// Check this machine and the processes with the shim: each finding with what to do about it
///
/// If you name a process, doctor says what to set for it. Findings that concern most bytes come first, each with a
/// command to paste.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Check this process, with or without the shim: its pid, its name, or the path of a dump or a ledger [default: every
    /// process that has the shim]
    #[arg(value_name = "PID|NAME|FILE", add = crate::args::candidates::targets())]
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

impl Command for Args {
    const NAME: &'static str = "doctor";
    const READS_LEDGERS: bool = false;

    /// Runs the command.
    ///
    /// # Errors
    /// [`Code::Error`] when a finding has severity error; those of choosing a process.
    fn run(&self, context: &Context) -> Result<()> {
        let world = &context.world;
        let survey = match self.target {
            Some(_) => find::survey(&world.wide()),
            None => find::survey(world),
        };
        let mut findings = system::check(world, &survey);
        match &self.target {
            None => {
                let reading = Reading::of_all(&survey.found);
                let of_all = survey.found.iter().flat_map(|found| process::check(world, found, &reading));
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
            Severity::Error => Err(Failure::new(Code::Error, "a check found an error")),
            _ => Ok(()),
        }
    }
}

impl Args {
    fn of_one(&self, context: &Context, survey: &Survey, target: &OsStr) -> Result<Vec<Finding>> {
        let world = &context.world;
        let named = target.to_str().and_then(choose::pid).or_else(|| without_ledger(context, survey, target));
        let Some(pid) = named else {
            let ledger = context.ledger(&Target { target: Some(target.to_owned()), ..Target::default() })?;
            let is_its = |found: &&find::FoundProcess| found.pid == ledger.pid();
            let running = survey.found.iter().filter(is_its).find(|found| found.is_live() && ledger.status.running());
            let itself = || survey.found.iter().filter(is_its).find(|found| found.path() == Some(&ledger.path));
            return Ok(match running.or_else(itself) {
                Some(found) => process::check(world, found, &Reading::of_one(&survey.found)),
                None => process::of_file(&ledger),
            });
        };
        let mut findings = Vec::new();
        for found in survey.found.iter().filter(|found| found.pid == pid) {
            findings.extend(process::check(world, found, &Reading::of_one(&survey.found)));
        }
        if !survey.found.iter().any(|found| found.pid == pid) {
            let process = Process::of(world, pid).ok_or_else(|| {
                let none = || {
                    Failure::nothing(format!("there is no process {pid}")).fix("gpumem ps lists those with the shim")
                };
                world.without_proc().unwrap_or_else(none)
            })?;
            findings.extend(without_shim::check(world, &process));
        }
        Ok(findings)
    }
}

/// The findings of all checks that need only a ledger: first what is broken, then what takes most memory.
pub(super) fn of_ledger(ledger: &Ledger) -> Vec<Finding> {
    let mut findings = process::of_file(ledger);
    sort(&mut findings);
    findings
}

/// First what is broken, then what takes most memory.
fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| (finding.severity != Severity::Error, std::cmp::Reverse(finding.bytes)));
}

/// The only process of this name, if it has no ledger, and no process with a ledger and no file has the name. Other
/// commands can show nothing of it, and this one can say why.
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
    print_findings(out, &report.findings)?;
    writeln!(out, "{} in order", text::count(report.checks_ok as u64, "check"))
}

fn print_findings(out: &mut dyn Write, findings: &[Finding]) -> std::io::Result<()> {
    for finding in findings {
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
            let word = if finding.paste.is_empty() { "fix:" } else { "or: " };
            writeln!(out, "{:23}{} {}", "", paint(DIM, word), text::clean(&finding.fix))?;
        }
    }
    Ok(())
}
