//! `gpumem attach PID`: says that gpumem does not attach, what is known of the process, and what to do instead.

use super::doctor::without_shim;
use super::doctor::{self, Finding};
use crate::context::{Command, Context};
use crate::failure::{Code, Failure, Result};
use crate::source::process::Process;
use crate::source::standing::command_line;
use crate::source::{choose, find};
use crate::text::{self, shell_word};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;

/// Say why gpumem does not attach to a running process, and how to start this one under gpumem instead
///
/// It attaches to no process, and changes nothing of this one. The exit code is 1. If the process has gpumem already, it
/// is 0.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The process: its pid, or its name
    #[arg(value_name = "PID|NAME")]
    target: OsString,
}

/// In short; docs/decisions/attach.md has what was tried.
const WHY: &str = "gpumem does not attach to a running process: what it allocated before is not known, and the driver's code \
                   would have to be changed in memory";

#[derive(Serialize)]
struct Report {
    pid: u32,
    name: String,
    /// The process was started under gpumem.
    has_gpumem: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    why: &'static str,
    findings: Vec<Finding>,
    /// The command to type instead; empty if none helps.
    instead: String,
}

impl Command for Args {
    const NAME: &'static str = "attach";
    const READS_LEDGERS: bool = false;

    /// Runs the command.
    ///
    /// # Errors
    /// [`Code::Error`], since nothing is attached to; [`Code::Nothing`] if there is no such process.
    fn run(&self, context: &Context) -> Result<()> {
        let world = &context.world;
        let survey = find::survey(&world.wide());
        let with_gpumem = |pid: u32| survey.found.iter().any(|found| found.pid == pid && found.process.is_some());
        let named = |name: &str| {
            let mut found = survey.found.iter().filter(|found| found.process.is_some() && found.name() == name);
            found.next().filter(|_| found.next().is_none()).map(|found| found.pid)
        };
        let text = self.target.to_string_lossy();
        let pid = choose::pid(&text).or_else(|| doctor::without_ledger(context, &survey, &self.target));
        let process = pid.or_else(|| named(&text)).and_then(|pid| Process::of(world, pid));
        let Some(process) = process else {
            let none = || Failure::nothing(format!("there is no process {text}, or several of that name"));
            return Err(world.without_proc().unwrap_or_else(none));
        };
        let (pid, name) = (process.pid, process.name.clone());
        if with_gpumem(pid) {
            let instead = format!("gpumem stats {pid}");
            let report = Report { pid, name, has_gpumem: true, why: "", findings: Vec::new(), instead };
            return context.print(&report, print);
        }
        let findings = without_shim::check(world, &process);
        let words: Vec<String> = command_line(world, &process).iter().map(|word| shell_word(word)).collect();
        let instead = match words.as_slice() {
            _ if without_shim::are_beyond_reach(&findings) => String::new(),
            [] => String::new(),
            words => format!("gpumem run -- {}", words.join(" ")),
        };
        context.print(&Report { pid, name, has_gpumem: false, why: WHY, findings, instead }, print)?;
        Err(Failure::new(Code::Error, "nothing was attached to"))
    }
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let (pid, name) = (report.pid, text::clean(&report.name));
    if report.has_gpumem {
        writeln!(out, "pid {pid} ({name}) was started under gpumem: there is nothing to attach")?;
    } else {
        writeln!(out, "{}", report.why)?;
        doctor::print_findings(out, &report.findings)?;
    }
    match report.instead.as_str() {
        "" => Ok(()),
        line if report.has_gpumem => writeln!(out, "see: {}", text::clean(line)),
        line => writeln!(out, "end it and start it again: {}", text::clean(line)),
    }
}
