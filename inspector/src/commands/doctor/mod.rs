//! `gpumem doctor`: checks, each with an id, a finding and a fix.
//!
//! * [`system`]: this machine and this shell: the library, variables, directory, driver.
//! * [`process`]: one process: is everything recorded, and if not, why.
//! * [`memory`]: of one process: the pool, what ran out, what is stranded.
//! * [`trust`]: of one process: what decided whether more is done than to record.
//! * [`preload`]: whether the loader takes libgpumem.so.
//! * [`finding`]: the list of checks, and what one finds.

mod finding;
mod memory;
mod preload;
mod process;
mod system;
mod trust;

pub use finding::CHECKS;

use crate::context::{Command, Context};
use crate::failure::{Code, Failure, Result};
use crate::source::process::Process;
use crate::source::{choose, find};
use crate::text;
use crate::view::table::{BAD, DIM, GOOD, HEAD, WARN, paint};
use anstyle::Style;
use finding::{Finding, Severity};
use serde::Serialize;
use std::io::Write;

/// Check this machine and the processes with the shim: each finding with what to do about it
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Check this process, with or without the shim [default: every process that has the shim]
    #[arg(value_name = "PID", value_parser = pid)]
    pid: Option<u32>,
    /// Also show the checks that are in order
    #[arg(long)]
    all: bool,
}

fn pid(text: &str) -> std::result::Result<u32, String> {
    choose::pid(text).ok_or_else(|| "a pid is a number: gpumem ps lists them".into())
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
    /// [`Code::Error`] when a finding has severity error, [`Code::Nothing`] for a pid that is none.
    fn run(&self, context: &Context) -> Result<()> {
        let survey = match self.pid {
            Some(_) => find::survey(&context.world.wide()),
            None => find::survey(&context.world),
        };
        let mut findings = system::check(&context.world, &survey);
        for found in survey.found.iter().filter(|found| self.pid.is_none_or(|pid| found.pid == pid)) {
            findings.extend(process::check(&context.world, found, self.pid.is_some()));
        }
        if let Some(pid) = self.pid
            && !survey.found.iter().any(|found| found.pid == pid)
        {
            let process = Process::of(&context.world, pid).ok_or_else(|| {
                Failure::nothing(format!("there is no process {pid}")).fix("gpumem ps lists those with the shim")
            })?;
            findings.push(process::without_shim(&context.world, &process));
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

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for finding in &report.findings {
        let (style, word) = match finding.severity {
            Severity::Ok => (GOOD, "ok"),
            Severity::Info => (Style::new(), "info"),
            Severity::Warning => (WARN, "warning"),
            Severity::Error => (BAD, "error"),
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
        if !finding.fix.is_empty() {
            writeln!(out, "{:23}{} {}", "", paint(DIM, "fix:"), text::clean(&finding.fix))?;
        }
    }
    writeln!(out, "{} in order", text::count(report.checks_ok as u64, "check"))
}
