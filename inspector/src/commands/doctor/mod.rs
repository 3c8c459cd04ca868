//! `gpumem doctor`: checks, each with an id, a finding and a fix.
//!
//! * [`system`]: this machine and this shell: the library, variables, directory, driver.
//! * [`process`]: one process: is everything recorded, and if not, why.
//! * [`memory`]: of one process: the pool, what ran out, what is stranded.
//! * [`preload`]: whether the loader takes libgpumem.so.
//! * [`elf`]: whether a preload reaches a program at all.

pub mod elf;
pub mod memory;
pub mod preload;
pub mod process;
pub mod system;

pub use elf::{beyond_reach, comes_first, first_of};

use super::Context;
use crate::failure::{Code, Failure, Result};
use crate::source::process::Process;
use crate::source::{choose, find};
use crate::view::table::{BAD, DIM, GOOD, HEAD, WARN, paint};
use crate::view::text;
use anstyle::Style;
use serde::Serialize;
use std::io::Write;

/// Check this machine and the processes with the shim: each finding with what to do about it
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Look at this process too, with or without the shim; by default at every one that has it
    #[arg(value_name = "PID", value_parser = pid)]
    pid: Option<u32>,
    /// Also what is as it should be
    #[arg(long)]
    all: bool,
}

fn pid(text: &str) -> std::result::Result<u32, String> {
    choose::pid(text).ok_or_else(|| "a pid is wanted, a number: gpumem ps lists them".into())
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    Ok,
    Info,
    Warning,
    Error,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check: stays the same between releases.
    pub id: &'static str,
    pub severity: Severity,
    /// The process, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub finding: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// Every check, with what it looks at: what docs/cli.md lists.
pub const CHECKS: &[(&str, &str)] = &[
    ("library", "libgpumem.so is found and loads into a program"),
    ("preload", "each libgpumem.so that LD_PRELOAD of this shell names can be loaded"),
    (
        "variables",
        "every GPUMEM_ variable of this shell is known and has an allowed value, and none of another project stands for one",
    ),
    (
        "directory",
        "the directory of the ledgers can be written and has space, and others cannot write there: one that GPUMEM_DIR or --dir names may be shared on purpose",
    ),
    ("driver", "a GPU driver is installed, and which"),
    ("runtimes", "CUDA and HIP runtimes that programs here would load"),
    ("devices", "the device files can be opened"),
    ("nvml", "the driver's own books on memory can be read"),
    ("proc", "processes of this user can be looked at"),
    ("stale-ledgers", "dead processes have left no ledgers"),
    ("reach", "a preload reaches the program"),
    ("ledger", "the process has written a readable ledger"),
    ("interception", "every call of the process is recorded"),
    ("mode", "the shim does more than record, where it may"),
    ("pool", "freed memory is kept for the next allocation, in every context"),
    ("memory", "no allocation ran out of memory"),
    ("stranded", "no call site asks for more and more while its older buffers lie unused"),
    ("graph-cache", "graph execs are under the graph cache, and its bounds are wide enough"),
    ("recording", "recording goes on"),
    ("left", "a process that is gone had freed its memory (doctor PID)"),
    ("dropped", "every record fitted into the ledger"),
    ("stacks", "every recorded call has a call stack"),
    ("complaints", "the process was started with settings that are known and allowed"),
    ("aliases", "no variable of another project decides what gpumem does"),
    ("heartbeat", "the control thread of the process is alive"),
    ("control", "the process answers on its control socket"),
    ("tools", "no other tool watches the GPU in the process"),
    ("version", "shim and gpumem are of the same release"),
];

#[derive(Serialize)]
struct Report {
    worst: Severity,
    findings: Vec<Finding>,
    checks_ok: usize,
}

impl Finding {
    /// A finding about this machine.
    pub fn new(id: &'static str, severity: Severity, finding: impl Into<String>) -> Self {
        debug_assert!(CHECKS.iter().any(|(known, _)| *known == id), "{id} is not in the list of checks");
        Self { id, severity, pid: None, finding: finding.into(), fix: String::new() }
    }

    /// With what to do.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// About a process.
    pub fn of(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }
}

/// Runs the command.
///
/// # Errors
/// [`Code::Error`] when a finding has severity error, [`Code::Nothing`] for a pid that is none.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let survey = match args.pid {
        Some(_) => find::survey(&context.world.wide()),
        None => find::survey(&context.world),
    };
    let mut findings = system::check(&context.world, &survey);
    for found in survey.found.iter().filter(|found| args.pid.is_none_or(|pid| found.pid == pid)) {
        findings.extend(process::check(&context.world, found, args.pid.is_some()));
    }
    if let Some(pid) = args.pid
        && !survey.found.iter().any(|found| found.pid == pid)
    {
        let process = Process::of(&context.world, pid).ok_or_else(|| {
            Failure::nothing(format!("there is no process {pid}")).fix("gpumem ps lists those with the shim")
        })?;
        findings.push(process::without_shim(&context.world, &process));
    }
    let checks_ok = findings.iter().filter(|finding| finding.severity == Severity::Ok).count();
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
    if !args.all && !context.global.json {
        findings.retain(|finding| finding.severity != Severity::Ok);
    }
    let report = Report { worst, findings, checks_ok };
    context.print(&report, print)?;
    match worst {
        Severity::Error => Err(Failure::new(Code::Error, "a check found an error")),
        _ => Ok(()),
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
