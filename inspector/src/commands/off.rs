//! `gpumem off`: makes gpumem step aside in a running process.

use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::source::ask::ask;
use crate::text;
use gpumem_wire::command::Request;
use serde::Serialize;

/// Turn the pool and the graph cache off in a running process
///
/// Later allocations and graphs are the driver's own, and the memory that the pool keeps goes back to the driver.
/// What was allocated or instantiated before stays as it is. Recording goes on. To turn both on again: gpumem set
/// PID POOL=default GRAPH_CACHE=default.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    said: String,
}

impl Command for Args {
    const NAME: &'static str = "off";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it.
    fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.live_ledger(&self.target)?;
        let report = Report { pid: ledger.pid(), said: ask(&ledger.whom(), &Request::Off)? };
        context.print(&report, |out, report| {
            let said =
                if report.said.is_empty() { "pool and graph cache are off".into() } else { text::clean(&report.said) };
            writeln!(out, "pid {}: {said}", report.pid)
        })
    }
}
