//! Variables that can change while the process runs.

use super::{ALL, PREFIX, Setting, Value, When};
use std::ffi::OsStr;

/// Iterates over the variables that `gpumem set` changes while the process runs.
pub fn live() -> impl Iterator<Item = &'static Setting> {
    ALL.iter().filter(|setting| setting.when == When::Live)
}

/// Returns the variable of this name, which may lack its prefix, in upper or lower case.
pub fn find(name: &str) -> Option<&'static Setting> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix(PREFIX).unwrap_or(&upper);
    ALL.iter().find(|setting| &setting.name[PREFIX.len()..] == bare)
}

/// Parses a change at run time into the variable and the value. The name may lack its prefix; the value `default`
/// restores the default, which is `None` if that is "unset".
///
/// # Errors
/// A sentence that says what is allowed.
pub fn change(name: &str, value: &str) -> Result<(&'static Setting, Option<Value>), String> {
    let names = || live().map(|setting| &setting.name[PREFIX.len()..]).collect::<Vec<_>>().join(", ");
    let setting = match find(name) {
        Some(setting) if setting.when == When::Live => setting,
        Some(setting) => {
            return Err(format!(
                "{} is read once, when the process starts; gpumem set changes {}",
                setting.name,
                names()
            ));
        }
        None => return Err(format!("unknown variable {name}; gpumem set changes {}", names())),
    };
    let text = if value.trim().eq_ignore_ascii_case("default") { setting.default } else { value.trim() };
    match setting.parse(OsStr::new(text)) {
        _ if text.is_empty() && setting.default.is_empty() => Ok((setting, None)),
        Ok(value) => Ok((setting, Some(value))),
        Err(_) => Err(format!("{} cannot be {value:?}: allowed is {}, or default", setting.name, setting.kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Stranded};

    #[test]
    fn what_changes_at_run_time_is_checked_as_at_the_start() {
        let value = |name, value| change(name, value).map(|(setting, value)| (setting.name, value));
        assert_eq!(value("POOL_MAX", "1GiB"), Ok(("GPUMEM_POOL_MAX", Some(Value::Number(1 << 30)))));
        assert_eq!(value("gpumem_limit", "default"), Ok(("GPUMEM_LIMIT", None)));
        assert_eq!(value("pool_decay", "default"), Ok(("GPUMEM_POOL_DECAY", None)));
        assert_eq!(value("STRANDED", "off"), Ok(("GPUMEM_STRANDED", Some(Value::Choice(1)))));
        for (name, text, says) in [
            ("LIMIT", "1KB", "allowed is 1MiB or more"),
            ("POOL_DECAY", "fast", "allowed is seconds, or a time"),
            ("GRAPH_IDLE", "", "allowed is seconds"),
            ("EVENTS", "300", "GPUMEM_EVENTS is read once"),
            ("POOL_MIN", "3", "unknown variable"),
            ("GPUMEM_GPUMEM_LIMIT", "1G", "unknown variable"),
            ("", "3", "unknown variable"),
        ] {
            let why = change(name, text).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    /// For each variable that can change, a change means the same as a start with that value.
    #[test]
    fn a_change_is_what_a_start_with_that_value_is() {
        for setting in live() {
            let text = match setting.kind {
                crate::settings::Kind::Bool if setting.default == "1" => "0",
                crate::settings::Kind::Bool => "1",
                crate::settings::Kind::Choice(words) => words[words.len() - 1],
                crate::settings::Kind::Time => "7s",
                crate::settings::Kind::Count { .. } => "7",
                crate::settings::Kind::Size { .. } => "7MiB",
                crate::settings::Kind::Group => "seven:7MiB",
                crate::settings::Kind::Text | crate::settings::Kind::Name | crate::settings::Kind::Path => "/seven",
            };
            let (mut now, _) = Settings::read(std::iter::empty());
            let before = now.clone();
            now.put(setting, change(setting.name, text).unwrap().1);
            assert_ne!(now, before, "{}", setting.name);
            let given = [(setting.name.into(), text.into())];
            assert_eq!(now, Settings::read(given.into_iter()).0, "{}", setting.name);
            now.put(setting, change(setting.name, "default").unwrap().1);
            assert_eq!(now, before, "{}", setting.name);
        }
        let mut now = Settings::read(std::iter::empty()).0;
        now.put(find("stranded").unwrap(), None);
        assert_eq!(now.stranded, Stranded::Report);
    }
}
