//! `gpumem off`: makes gpumem step aside in a running process.

use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::source::ask::ask;
use crate::text;
use gpumem_wire::command::Request;
use serde::Serialize;

/// Make gpumem step aside in a running process: pool and graph cache are off from then on
///
/// What comes from then on is the driver's own, and what the pool keeps goes back to it. What was allocated and
/// instantiated before stays as it is. Recording goes on. The way back: gpumem set PID POOL=1, and GRAPH_CACHE=1.
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
