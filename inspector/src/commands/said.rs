//! `gpumem mark`, `gpumem trim`, `gpumem check` and `gpumem off`: commands that send a running process one request.

use crate::args::{Asked, span};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::source::ask::{PATIENCE, ask, ask_patiently, longest_work_ms};
use crate::source::choose;
use crate::text;
use gpumem_wire::command::Request;
use serde::Serialize;
use std::time::Duration;

/// Give the memory that gpumem's pool keeps in a running process back to the driver
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TrimArgs {
    /// Also refuse one request of the call site that strands most, so that the program frees its stranded memory
    ///
    /// Only for programs that are known to free and retry when memory runs out: see
    /// GPUMEM_STRANDED_RETRIES.
    #[arg(long)]
    press: bool,
    #[command(flatten)]
    whom: Asked,
}

/// Look now for writes outside of allocations, and to freed memory, in a process with GPUMEM_GUARD
///
/// The process writes its findings to stderr; gpumem events also shows them. The guard finds writes to the first 512
/// bytes after the end of an allocation, and often to some bytes after those. With GPUMEM_GUARD=front it also finds
/// writes to the 512 bytes in front of an allocation. It finds writes to freed memory that was not used again. It finds
/// no reads, no writes farther away, and nothing in shared memory. The answer counts memory that could not be read in
/// time.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    whom: Asked,
    /// How long the command waits for the process at most
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    timeout: Duration,
}

/// Turn the pool and the graph cache off in a running process
///
/// Later allocations and graphs are the driver's own, and the memory that the pool keeps goes back to the driver.
/// What was allocated or instantiated before stays as it is. Recording goes on. To turn both on again: gpumem set
/// PID POOL=default GRAPH_CACHE=default.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OffArgs {
    #[command(flatten)]
    whom: Asked,
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    /// Of a trim.
    #[serde(skip_serializing_if = "Option::is_none")]
    press: Option<bool>,
    said: String,
}

impl TrimArgs {
    /// Runs `gpumem trim`.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        print(context, &self.whom, &Request::Trim { press: self.press }, PATIENCE, "")
    }
}

impl CheckArgs {
    /// Runs `gpumem check`.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it; also if it has no guard.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let longest_ms = longest_work_ms(self.timeout);
        print(context, &self.whom, &Request::Check { longest_ms }, self.timeout, "")
    }
}

impl OffArgs {
    /// Runs `gpumem off`.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        print(context, &self.whom, &Request::Off, PATIENCE, "pool and graph cache are off")
    }
}

/// Sends a request to a process, and prints its answer, or `if_nothing`.
fn print(context: &Context, whom: &Asked, request: &Request, patience: Duration, if_nothing: &str) -> Result<()> {
    let ledger = context.live_ledger(&whom.target())?;
    let press = if let Request::Trim { press } = request { Some(*press) } else { None };
    let report = Report { pid: ledger.pid(), press, said: ask_patiently(&ledger.whom(), request, patience)? };
    context.print(&report, |out, report| {
        let said = if report.said.is_empty() { if_nothing.into() } else { text::clean(&report.said) };
        writeln!(out, "pid {}: {said}", report.pid)
    })
}

/// Add a named mark to the events of a running process
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MarkArgs {
    /// The name of the mark
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    whom: Asked,
}

#[derive(Serialize)]
struct MarkReport {
    pid: u32,
    mark: String,
}

impl MarkArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        if self.name.trim().is_empty() {
            return Err(Failure::usage("a mark needs a name"));
        }
        let ledger = context.live_ledger(&self.whom.target()).map_err(|failure| self.hint(failure))?;
        if choose::pid(&self.name) == Some(ledger.pid()) {
            return Err(Failure::usage(format!("{} is the process; a mark needs a name, too", self.name))
                .fix(format!("type: gpumem mark NAME {}", self.name)));
        }
        ask(&ledger.whom(), &Request::Mark(self.name.clone()))?;
        let report = MarkReport { pid: ledger.pid(), mark: self.name.clone() };
        context.print(&report, |out, report| {
            writeln!(out, "marked {:?} in pid {}; gpumem events shows it", text::clean(&report.mark), report.pid)
        })
    }

    /// Adds a hint to a failure: a pid in place of the name looks like the wrong order.
    fn hint(&self, failure: Failure) -> Failure {
        match self.whom.target().target {
            Some(whom) if failure.code == Code::Nothing && choose::pid(&self.name).is_some() => {
                let (pid, name) = (&self.name, text::os_word(&whom));
                failure.fix(format!("the name of the mark comes first: gpumem mark {name} {pid}"))
            }
            _ => failure,
        }
    }
}
