//! The variables in force in a process, and their origin.

use super::Ledger;
use gpumem_wire::kinds::EventKind;
use gpumem_wire::settings::{self, ALIASES, Setting, When};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt;

/// Origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    Default,
    /// The environment at the start of the process.
    Environment,
    /// `gpumem set` while it ran.
    Set,
}

/// As in JSON.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Variable {
    #[serde(rename = "variable")]
    pub name: &'static str,
    /// In the form that users write; empty: unset.
    pub value: String,
    pub source: Source,
    /// The variable of another project that set this one, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<&'static str>,
    /// The value in the environment, if it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// True if `gpumem set` can change it.
    pub live: bool,
}

/// Returns all variables, in the order of the help.
pub(crate) fn of(ledger: &Ledger) -> Vec<Variable> {
    let (given, changes) = (ledger.started_with(), ledger.changes());
    settings::ALL.iter().map(|setting| variable(setting, &given, &changes)).collect()
}

/// True if `gpumem set` changed a variable since a moment, according to the events in the ring.
pub(crate) fn were_set_since(ledger: &Ledger, name: &str, since_ns: u64) -> bool {
    let change = format!("gpumem set {name}=");
    let later = ledger.snapshot.events.iter().filter(|event| event.time_ns > since_ns);
    later
        .filter(|event| event.kind == EventKind::Message as u8)
        .any(|event| ledger.snapshot.text(event.text).starts_with(&change))
}

fn variable(setting: &'static Setting, given: &[(String, String)], changes: &[(String, String)]) -> Variable {
    let find = |name: &str| {
        given.iter().find(|(known, value)| known == name && !value.is_empty()).map(|(_, value)| value.clone())
    };
    let is_fine = |value: &String| setting.parse(OsStr::new(value)).is_ok();
    let mut variable = Variable {
        name: setting.name,
        value: setting.default.to_owned(),
        source: Source::Default,
        alias: None,
        refused: None,
        live: setting.when == When::Live,
    };
    match find(setting.name) {
        Some(value) if is_fine(&value) => (variable.value, variable.source) = (value, Source::Environment),
        Some(value) => variable.refused = Some(value),
        None => {
            let alias = ALIASES.iter().filter(|alias| alias.setting == setting.name);
            let alias =
                alias.clone().find(|alias| find(alias.name).is_some_and(|value| alias.is_on(OsStr::new(&value))));
            if let Some(alias) = alias {
                (variable.value, variable.source) = (alias.value.to_owned(), Source::Environment);
                variable.alias = Some(alias.name);
            }
        }
    }
    // An empty value, or the word `default`, means the default.
    if let Some((_, value)) = changes.iter().find(|(known, _)| known == setting.name) {
        let value = value.clone();
        variable.value = if is_fine(&value) { value } else { setting.default.to_owned() };
        variable.source = Source::Set;
    }
    variable
}
