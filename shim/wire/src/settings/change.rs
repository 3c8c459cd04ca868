//! Variables that can change while the process runs.

use super::{ALL, PREFIX, Setting, Value};
use std::ffi::OsStr;

/// Variables that `gpumem set` changes while the process runs.
pub const AT_RUN_TIME: &[&str] = &[
    "GPUMEM_POOL",
    "GPUMEM_POOL_MAX",
    "GPUMEM_POOL_DECAY",
    "GPUMEM_LIMIT",
    "GPUMEM_STRANDED",
    "GPUMEM_GRAPH_CACHE",
    "GPUMEM_GRAPH_CACHE_BYTES",
    "GPUMEM_GRAPH_IDLE",
];

/// The variable and the value that a change at run time means. The name may lack its prefix; the
/// value `default` goes back to the default, which is `None` where that is "unset".
///
/// # Errors
/// A sentence that says what is allowed.
pub fn change(name: &str, value: &str) -> Result<(&'static Setting, Option<Value>), String> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.trim_start_matches(PREFIX);
    let changeable = |setting: &&Setting| AT_RUN_TIME.contains(&setting.name);
    let Some(setting) = ALL.iter().filter(changeable).find(|setting| &setting.name[PREFIX.len()..] == bare) else {
        let names: Vec<_> = AT_RUN_TIME.iter().map(|name| &name[PREFIX.len()..]).collect();
        let why = match ALL.iter().any(|setting| &setting.name[PREFIX.len()..] == bare) {
            true => format!("{PREFIX}{bare} is read once, when the process starts"),
            false => format!("unknown variable {name}"),
        };
        return Err(format!("{why}; gpumem set changes {}", names.join(", ")));
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

    #[test]
    fn what_changes_at_run_time_is_checked_as_at_the_start() {
        let value = |name, value| change(name, value).map(|(setting, value)| (setting.name, value));
        assert_eq!(value("POOL_MAX", "1GiB"), Ok(("GPUMEM_POOL_MAX", Some(Value::Number(1 << 30)))));
        assert_eq!(value("gpumem_limit", "default"), Ok(("GPUMEM_LIMIT", None)));
        assert_eq!(value("pool_decay", "default"), Ok(("GPUMEM_POOL_DECAY", Some(Value::Number(10_000_000_000)))));
        assert_eq!(value("STRANDED", "off"), Ok(("GPUMEM_STRANDED", Some(Value::Choice(1)))));
        for (name, text, says) in [
            ("LIMIT", "1KB", "allowed is bytes"),
            ("POOL_DECAY", "5", "allowed is a time"),
            ("POOL_DECAY", "", "allowed is a time"),
            ("STACKS", "3", "read once"),
            ("POOL_MIN", "3", "unknown variable"),
            ("", "3", "unknown variable"),
        ] {
            let why = change(name, text).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        assert!(AT_RUN_TIME.iter().all(|name| ALL.iter().any(|setting| setting.name == *name)));
    }
}
