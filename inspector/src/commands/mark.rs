//! `gpumem mark NAME`: a named moment among the events of a running process.

use crate::args::Asked;
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::source::ask::ask;
use crate::source::choose;
use crate::text;
use gpumem_wire::command::Request;
use serde::Serialize;

/// Add a named mark to the events of a running process
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The name of the mark
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    whom: Asked,
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    mark: String,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing the process and of asking it.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        if self.name.trim().is_empty() {
            return Err(Failure::usage("a mark needs a name"));
        }
        let ledger = context.live_ledger(&self.whom.target()).map_err(|failure| self.hint(failure))?;
        ask(&ledger.whom(), &Request::Mark(self.name.clone()))?;
        let report = Report { pid: ledger.pid(), mark: self.name.clone() };
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
