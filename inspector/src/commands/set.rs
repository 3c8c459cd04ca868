//! `gpumem set [PID] VARIABLE=VALUE…`: changes variables of a running process. `gpumem get [PID] [VARIABLE…]`: the variables
//! of a process, and the origin of their values.

use crate::args::{Target, candidates};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::variables::{self, Source, Variable};
use crate::source::ask::ask;
use crate::text;
use crate::view::table::{DIM, Table};
use anstyle::Style;
use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use gpumem_wire::command::Request;
use gpumem_wire::settings::{self, PREFIX, Setting};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::Write;

/// Change variables of a running process: POOL, POOL_MAX, POOL_DECAY, LIMIT, STRANDED, GRAPH_CACHE, …
///
/// Every value is checked before the first one is set. The output has the old and the new value of each variable.
/// Processes that start later take the values of their environment.
#[derive(Clone, Debug, clap::Args)]
#[command(override_usage = "gpumem set [OPTIONS] [PID|NAME|FILE] <VARIABLE=VALUE>...")]
pub(crate) struct SetArgs {
    /// A pid, a process's name, or the path of its ledger; not needed if only one process runs
    #[arg(value_name = "PID|NAME|FILE", add = candidates::offer([candidates::running, candidates::assignments]))]
    target: Option<OsString>,
    /// VARIABLE=VALUE, with or without GPUMEM_, as in the environment. The value "default" restores the default
    #[arg(value_name = "VARIABLE=VALUE", value_parser = Offered(settings::live().collect()), add = candidates::offer([candidates::assignments]))]
    changes: Vec<OsString>,
    /// Set a GPUMEM_LIMIT that is below what is live
    #[arg(long)]
    force: bool,
}

/// Accepts any word; help and completions offer these variables.
#[derive(Clone)]
struct Offered(Vec<&'static Setting>);

impl TypedValueParser for Offered {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        word: &OsStr,
    ) -> std::result::Result<OsString, clap::Error> {
        OsStringValueParser::new().parse_ref(command, arg, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|setting| PossibleValue::new(&setting.name[PREFIX.len()..]))))
    }
}

/// True if a word is the name of a variable, or has the form of one.
fn names_one(word: &OsStr) -> bool {
    word.to_str().is_some_and(|word| settings::find(word).is_some() || word.to_ascii_uppercase().starts_with(PREFIX))
}

/// Returns the name and value of a word like `NAME=VALUE`; `None` for a path.
fn assignment(word: &OsStr) -> Option<(&str, &str)> {
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    word.to_str()?.split_once('=').filter(|(name, _)| is_name(name))
}

/// Names and values.
type Changes<'a> = Vec<(&'a str, &'a str)>;

/// Returns the target process, if given, and the changes.
///
/// # Errors
/// `Code::Usage`: says what is wrong, and with which word.
fn parsed(words: &[OsString]) -> Result<(Option<&OsString>, Changes<'_>)> {
    let is_change = |word: &OsString| assignment(word).is_some();
    // A process may have a variable's name.
    let is_process = |first| !is_change(first) && (!names_one(first) || words.get(1).is_some_and(is_change));
    let (target, words) = words.split_at(usize::from(words.first().is_some_and(is_process)));
    let (target, changes) = (target.first(), words.iter().map_while(|word| assignment(word)).collect::<Vec<_>>());
    let Some(odd) = words.get(changes.len()) else {
        let missing = || usage("a variable and its value are missing".into(), target);
        return if changes.is_empty() { Err(missing()) } else { Ok((target, changes)) };
    };
    let shown = odd.to_string_lossy();
    let what = match changes.last() {
        _ if names_one(odd) => format!("{shown} needs a value"),
        Some((name, value)) => format!("{shown:?} is no variable, and no part of {name}={value}"),
        None => format!("{shown:?} is no variable"),
    };
    match words.split_last() {
        Some((last, before)) if target.is_none() && !names_one(odd) && before.len() == changes.len() => {
            let words: Vec<String> = [last].into_iter().chain(before).map(|word| text::os_word(word)).collect();
            Err(Failure::usage(what).fix(format!("the process comes first: gpumem set {}", words.join(" "))))
        }
        _ => Err(usage(what, target)),
    }
}

fn usage(what: String, target: Option<&OsString>) -> Failure {
    let target = target.map(|target| text::os_word(target) + " ").unwrap_or_default();
    Failure::usage(what).fix(format!("type: gpumem set {target}VARIABLE=VALUE"))
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    /// A single change is repeated here.
    #[serde(flatten)]
    only: Option<VariableChange>,
    changes: Vec<VariableChange>,
}

#[derive(Clone, Serialize)]
struct VariableChange {
    variable: &'static str,
    /// Empty: unset.
    old: String,
    value: String,
    said: String,
}

impl SetArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// `Code::Usage` for a value that the variable does not allow; those of choosing the process and
    /// of asking it.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let words: Vec<OsString> = self.target.iter().chain(&self.changes).cloned().collect();
        let (target, wanted) = parsed(&words)?;
        let mut checked: Vec<(&'static Setting, &str)> = Vec::new();
        for (name, value) in wanted {
            let (setting, _) = settings::change(name, value).map_err(Failure::usage)?;
            if checked.iter().any(|(known, _)| known.name == setting.name) {
                return Err(Failure::usage(format!("{name} has two values, the second is {value:?}")));
            }
            checked.push((setting, value));
        }
        let ledger = context.live_ledger(&Target { target: target.cloned(), ..Target::default() })?;
        let before = variables::of(&ledger);
        let mut report = Report { pid: ledger.pid(), only: None, changes: Vec::new() };
        let mut refused = None;
        for (setting, value) in checked {
            let value = if value.trim().is_empty() { "default" } else { value };
            let request = Request::Set { name: setting.name.into(), value: value.into(), force: self.force };
            match ask(&ledger.whom(), &request) {
                Ok(said) => report.changes.push(change(setting, value, &before, said)),
                Err(failure) => {
                    let what = format!("{} is not changed: {}", setting.name, failure.what);
                    refused = Some(Failure { what, ..failure });
                    break;
                }
            }
        }
        if let [only] = report.changes.as_slice() {
            report.only = Some(only.clone());
        }
        if refused.is_none() || !report.changes.is_empty() {
            context.print(&report, print)?;
        }
        refused.map_or(Ok(()), Err)
    }
}

fn change(setting: &'static Setting, value: &str, before: &[Variable], said: String) -> VariableChange {
    let old = before.iter().find(|variable| variable.name == setting.name);
    let is_default = value.trim().eq_ignore_ascii_case("default");
    VariableChange {
        variable: setting.name,
        old: old.map(|variable| variable.value.clone()).unwrap_or_default(),
        value: if is_default { setting.default } else { value.trim() }.to_owned(),
        said,
    }
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let shown = |value: &str| if value.is_empty() { "unset".into() } else { text::clean(value).into_owned() };
    for change in &report.changes {
        let said = if change.said.is_empty() { String::new() } else { format!(": {}", text::clean(&change.said)) };
        let (old, new) = (shown(&change.old), shown(&change.value));
        writeln!(out, "pid {}: {} {old} → {new}{said}", report.pid, change.variable)?;
    }
    Ok(())
}

/// Show the variables of a process: each value in force, and whether it was set, came from the environment, or is the default
///
/// `gpumem set` accepts the lines of the output. The process may have ended. A dump also works.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GetArgs {
    /// A pid, a process's name, or the path of a dump or a ledger; not needed if only one process fits. The name of a
    /// variable always means the variable
    #[arg(value_name = "PID|NAME|FILE", add = candidates::offer([candidates::recorded, candidates::variables]))]
    target: Option<OsString>,
    /// Only these variables, with or without GPUMEM_ [default: all]
    #[arg(value_name = "VARIABLE", value_parser = Offered(settings::ALL.iter().collect()), add = candidates::offer([candidates::variables]))]
    variables: Vec<OsString>,
}

#[derive(Serialize)]
struct VariablesReport {
    pid: u32,
    variables: Vec<Variable>,
}

impl GetArgs {
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
        context.print(&VariablesReport { pid: ledger.pid(), variables }, |out, report| {
            print_variables(out, &report.variables)
        })
    }
}

fn find(name: &str) -> Result<&'static str> {
    settings::find(name)
        .map(|setting| setting.name)
        .ok_or_else(|| Failure::usage(format!("there is no variable {name}")).fix("gpumem get lists the variables"))
}

fn print_variables(out: &mut dyn Write, variables: &[Variable]) -> std::io::Result<()> {
    let style = |variable: &Variable| if variable.source == Source::Default { DIM } else { Style::new() };
    let from = |variable: &Variable| match (&variable.refused, variable.alias) {
        (Some(refused), _) => format!("{}; {refused:?} of the environment is refused", variable.source),
        (None, Some(alias)) if variable.source == Source::Environment => format!("environment: {alias}"),
        _ if variable.value.is_empty() => format!("{}: unset", variable.source),
        _ => variable.source.to_string(),
    };
    let can_change = |variable: &Variable| if variable.live { "while it runs" } else { "at the start" };
    let table = Table::<Variable>::new()
        .left("variable", 0, |variable| (format!("{}={}", variable.name, variable.value), style(variable)))
        .left("from", 0, |variable| (from(variable), style(variable)))
        .left("can change", 0, |variable| (can_change(variable).to_owned(), DIM));
    table.print(out, || variables.iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the process and the changes on a command line, or the error.
    fn parsed(line: &str) -> std::result::Result<String, String> {
        let words: Vec<OsString> = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect();
        let parsed = super::parsed(&words)
            .map_err(|failure| format!("{}; {}", failure.what, failure.fix.unwrap_or_default()))?;
        let target = parsed.0.map(|target| format!("[{}]", target.display())).unwrap_or_default();
        Ok(parsed.1.iter().fold(target, |text, (name, value)| format!("{text} {name}:{value}")))
    }

    #[test]
    fn a_process_need_not_be_named_and_several_variables_may_be() {
        for (line, means) in [
            ("LIMIT=1G", " LIMIT:1G"),
            ("GPUMEM_LIMIT=1G pool_max=0", " GPUMEM_LIMIT:1G pool_max:0"),
            ("limit=1G POOL_MAX=0 STRANDED=off", " limit:1G POOL_MAX:0 STRANDED:off"),
            ("27793 LIMIT=1G", "[27793] LIMIT:1G"),
            ("server LIMIT=1G POOL=0", "[server] LIMIT:1G POOL:0"),
            ("/tmp/a=b/1-2.ledger LIMIT=1G", "[/tmp/a=b/1-2.ledger] LIMIT:1G"),
            // A process may have a variable's name.
            ("pool LIMIT=1G", "[pool] LIMIT:1G"),
            ("LIMIT=", " LIMIT:"),
            ("TAG=a=b", " TAG:a=b"),
            // An unknown name is refused later.
            ("FOO=1", " FOO:1"),
        ] {
            assert_eq!(parsed(line).as_deref(), Ok(means), "{line}");
        }
        for (line, says) in [
            ("", "a variable and its value are missing"),
            ("27793", "are missing"),
            ("LIMIT", "LIMIT needs a value"),
            ("27793 LIMIT", "LIMIT needs a value"),
            ("LIMIT=1G 5", "\"5\" is no variable, and no part of LIMIT=1G"),
            ("LIMIT=1G TAG=a 5", "the process comes first: gpumem set 5 LIMIT=1G TAG=a"),
            ("27793 LIMIT=1G 5", "\"5\" is no variable, and no part of LIMIT=1G"),
            ("27793 LIMT 5", "\"LIMT\" is no variable"),
            ("LIMIT 1G", "LIMIT needs a value; type: gpumem set VARIABLE=VALUE"),
            ("27793 LIMIT=1G POOL 0", "POOL needs a value; type: gpumem set 27793 VARIABLE=VALUE"),
        ] {
            let why = parsed(line).unwrap_err();
            assert!(why.contains(says), "{line}: {why}");
        }
    }
}
