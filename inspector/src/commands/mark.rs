//! `gpumem mark NAME`: a named moment among the events of a running process.

use super::Context;
use crate::args::Target;
use crate::failure::{Code, Failure, Result};
use crate::source::ask::ask;
use crate::view::text;
use gpumem_wire::command::Request;
use serde::Serialize;

/// Put a named moment among the events of a running process
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to call the moment
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: Target,
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    mark: String,
}

/// Runs the command.
///
/// # Errors
/// Those of choosing the process and of asking it.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    if args.name.trim().is_empty() {
        return Err(Failure::new(Code::Usage, "a mark needs a name"));
    }
    let ledger = context.live_ledger(&args.target)?;
    ask(&ledger, &Request::Mark(args.name.clone()))?;
    let report = Report { pid: ledger.head().pid, mark: args.name.clone() };
    context.print(&report, |out, report| {
        writeln!(out, "marked {:?} in pid {}; gpumem events shows it", text::clean(&report.mark), report.pid)
    })
}
