//! `gpumem set PID NAME VALUE`: changes a variable of a running process.

use super::Context;
use crate::args::Target;
use crate::failure::{Code, Failure, Result};
use crate::source::ask::ask;
use crate::view::text;
use clap::builder::{PossibleValue, PossibleValuesParser};
use gpumem_wire::command::Request;
use gpumem_wire::settings;
use serde::Serialize;

/// Change a variable of a running process: POOL_MAX, POOL_DECAY, LIMIT, STRANDED, GRAPH_CACHE, …
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A pid, a process's name, or the path of its ledger
    #[arg(value_name = "PID|NAME|FILE")]
    target: String,
    /// The variable, with or without GPUMEM_
    #[arg(value_name = "VARIABLE", value_parser = variables(), ignore_case = true)]
    name: String,
    /// Its value as in the environment, or default
    #[arg(value_name = "VALUE")]
    value: String,
}

/// The variables, offered by help and completions; their prefix may be there.
fn variables() -> PossibleValuesParser {
    settings::AT_RUN_TIME
        .iter()
        .map(|name| PossibleValue::new(&name[settings::PREFIX.len()..]).alias(name))
        .collect::<Vec<_>>()
        .into()
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    variable: &'static str,
    value: String,
    said: String,
}

/// Runs the command.
///
/// # Errors
/// [`Code::Usage`] for a value that the variable does not allow; those of choosing the process and
/// of asking it.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let (setting, _) = settings::change(&args.name, &args.value).map_err(|why| Failure::new(Code::Usage, why))?;
    let ledger = context.live_ledger(&Target { target: Some(args.target.clone()), ..Target::default() })?;
    let said = ask(&ledger, &Request::Set(args.name.clone(), args.value.clone()))?;
    let report = Report { pid: ledger.head().pid, variable: setting.name, value: args.value.clone(), said };
    context.print(&report, |out, report| {
        let said = if report.said.is_empty() { String::new() } else { format!(": {}", text::clean(&report.said)) };
        writeln!(out, "pid {}: {}={}{said}", report.pid, report.variable, text::clean(&report.value))
    })
}
