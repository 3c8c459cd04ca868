//! `gpumem get [PID] [VARIABLE…]`: the variables of a process, and the origin of their values.

use super::set::names_one;
use crate::args::{Target, candidates};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::variables::{self, Source, Variable};
use crate::view::table::{DIM, Table};
use anstyle::Style;
use gpumem_wire::settings;
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;

/// Show the variables of a process: each value in force, and whether it was set, came from the environment, or is the default
///
/// `gpumem set` accepts the lines of the output. The process may have ended. A dump also works.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A pid, a process's name, or the path of a dump or a ledger; not needed if only one process fits. The name of a
    /// variable always means the variable
    #[arg(value_name = "PID|NAME|FILE", add = candidates::offer([candidates::recorded, candidates::variables]))]
    target: Option<OsString>,
    /// Only these variables, with or without GPUMEM_ [default: all]
    #[arg(value_name = "VARIABLE", value_parser = super::set::any_variable(), add = candidates::offer([candidates::variables]))]
    variables: Vec<OsString>,
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    variables: Vec<Variable>,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// `Code::Usage` for an unknown variable; those of choosing and reading the ledger.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let (mut target, mut names) = (self.target.clone(), self.variables.clone());
        if let Some(first) = target.take_if(|first| names_one(first)) {
            names.insert(0, first);
        }
        let wanted: Vec<_> = names.iter().map(|name| find(&name.to_string_lossy())).collect::<Result<_>>()?;
        let ledger = context.ledger(&Target { target, ..Target::default() })?;
        let mut variables = variables::of(&ledger);
        if !wanted.is_empty() {
            let place = |variable: &Variable| wanted.iter().position(|name| *name == variable.name);
            variables.retain(|variable| place(variable).is_some());
            variables.sort_by_key(place);
        }
        context.print(&Report { pid: ledger.pid(), variables }, |out, report| print(out, &report.variables))
    }
}

fn find(name: &str) -> Result<&'static str> {
    settings::find(name)
        .map(|setting| setting.name)
        .ok_or_else(|| Failure::usage(format!("there is no variable {name}")).fix("gpumem get lists the variables"))
}

fn print(out: &mut dyn Write, variables: &[Variable]) -> std::io::Result<()> {
    let style = |variable: &Variable| if variable.source == Source::Default { DIM } else { Style::new() };
    let from = |variable: &Variable| match (&variable.refused, variable.alias) {
        (Some(refused), _) => format!("{}; {refused:?} of the environment is refused", variable.source.name()),
        (None, Some(alias)) if variable.source == Source::Environment => format!("environment: {alias}"),
        _ if variable.value.is_empty() => format!("{}: unset", variable.source.name()),
        _ => variable.source.name().to_owned(),
    };
    let can_change = |variable: &Variable| if variable.live { "while it runs" } else { "at the start" };
    let table = Table::<Variable>::new()
        .left("variable", 0, |variable| (format!("{}={}", variable.name, variable.value), style(variable)))
        .left("from", 0, |variable| (from(variable), style(variable)))
        .left("can change", 0, |variable| (can_change(variable).to_owned(), DIM));
    table.print(out, || variables.iter())
}
