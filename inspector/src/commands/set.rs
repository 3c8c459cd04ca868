//! `gpumem set PID NAME=VALUE`: changes a variable of a running process.

use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::{Code, Failure, Result};
use crate::source::ask::ask;
use crate::text;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gpumem_wire::command::Request;
use gpumem_wire::settings;
use serde::Serialize;
use std::ffi::{OsStr, OsString};

/// Change a variable of a running process: POOL, POOL_MAX, POOL_DECAY, LIMIT, STRANDED, GRAPH_CACHE, …
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A pid, a process's name, or the path of its ledger
    #[arg(value_name = "PID|NAME|FILE", value_hint = clap::ValueHint::AnyPath)]
    target: OsString,
    /// The variable, with or without GPUMEM_; VARIABLE=VALUE in one word works too
    #[arg(value_name = "VARIABLE", value_parser = Variable::new(), ignore_case = true)]
    name: String,
    /// Its value, as in the environment; default goes back to the default
    #[arg(value_name = "VALUE")]
    value: Option<String>,
}

/// The variables, offered by help and completions; their prefix may be there, and a value behind a `=`.
#[derive(Clone)]
struct Variable(PossibleValuesParser);

impl Variable {
    fn new() -> Self {
        let names = settings::AT_RUN_TIME.iter();
        let names = names.map(|name| PossibleValue::new(&name[settings::PREFIX.len()..]).alias(name));
        Self(names.collect::<Vec<_>>().into())
    }
}

impl TypedValueParser for Variable {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        word: &OsStr,
    ) -> std::result::Result<String, clap::Error> {
        let text = word.to_string_lossy();
        let (name, value) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
        let name = self.0.parse_ref(command, arg, OsStr::new(name))?;
        Ok(value.map_or(name.clone(), |value| format!("{name}={value}")))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

impl Args {
    /// Name and value, in one word or in two.
    fn change(&self) -> Result<(&str, &str)> {
        let usage = |what: String| Err(Failure::new(Code::Usage, what));
        match (self.name.split_once('='), self.value.as_deref()) {
            (Some(change), None) => Ok(change),
            (None, Some(value)) => Ok((self.name.as_str(), value)),
            (Some((name, _)), Some(value)) => usage(format!("{name} has two values, the second is {value:?}")),
            (None, None) => usage(format!("{} needs a value", self.name)),
        }
        .map_err(|failure| failure.fix(format!("type: gpumem set {} VARIABLE=VALUE", text::os_word(&self.target))))
    }
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    variable: &'static str,
    value: String,
    said: String,
}

impl Command for Args {
    const NAME: &'static str = "set";

    /// Runs the command.
    ///
    /// # Errors
    /// [`Code::Usage`] for a value that the variable does not allow; those of choosing the process and
    /// of asking it.
    fn run(&self, context: &Context) -> Result<()> {
        let (name, value) = self.change()?;
        let (setting, _) = settings::change(name, value).map_err(|why| Failure::new(Code::Usage, why))?;
        let ledger = context.live_ledger(&Target { target: Some(self.target.clone()), ..Target::default() })?;
        let said = ask(&ledger.whom(), &Request::Set(name.to_owned(), value.to_owned()))?;
        let report = Report { pid: ledger.pid(), variable: setting.name, value: value.to_owned(), said };
        context.print(&report, |out, report| {
            let said = if report.said.is_empty() { String::new() } else { format!(": {}", text::clean(&report.said)) };
            writeln!(out, "pid {}: {}={}{said}", report.pid, report.variable, text::clean(&report.value))
        })
    }
}
