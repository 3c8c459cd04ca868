//! Variables of other projects that stand for ours.

use super::{Setting, parse_bool};
use std::ffi::{OsStr, OsString};

/// A variable of another project that stands for one of ours.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    pub name: &'static str,
    /// The variable that it stands for, and the value that it stands for.
    pub setting: &'static str,
    pub value: &'static str,
    pub doc: &'static str,
}

/// Names that users know from elsewhere. 0, no, false and off turn them off, and any other text turns them on. If our
/// variable is set as well, ours has precedence.
pub const ALIASES: &[Alias] = &[
    Alias {
        name: "GGML_CUDA_POOL_USE_MANAGED",
        setting: "GPUMEM_POOL_MANAGED",
        value: "1",
        doc: "a variable from llama.cpp's pull request 22158; it means GPUMEM_POOL_MANAGED=1",
    },
    Alias {
        name: "GGML_CUDA_ALLOC_FALLBACK_MANAGED",
        setting: "GPUMEM_OOM_FALLBACK",
        value: "managed",
        doc: "a variable from llama.cpp's pull request 22158; it means GPUMEM_OOM_FALLBACK=managed",
    },
];

impl Alias {
    /// True if this value switches it on.
    pub fn is_on(&self, value: &OsStr) -> bool {
        !value.is_empty() && value.to_str().and_then(parse_bool) != Some(false)
    }
}

/// Returns the alias that decides `setting`, if there is one.
pub(super) fn aliased(setting: &Setting, environment: &[(OsString, OsString)]) -> Option<&'static Alias> {
    ALIASES
        .iter()
        .filter(|alias| alias.setting == setting.name)
        .find(|alias| environment.iter().any(|(name, value)| name == alias.name && alias.is_on(value)))
}

/// Returns the aliases in force in an environment: those that are on and whose variable is not set.
pub fn aliases_in_force(environment: &[(OsString, OsString)]) -> Vec<&'static Alias> {
    let set = |alias: &Alias| environment.iter().any(|(name, value)| name == alias.setting && !value.is_empty());
    let on = |alias: &Alias| environment.iter().any(|(name, value)| name == alias.name && alias.is_on(value));
    ALIASES.iter().filter(|alias| on(alias) && !set(alias)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{ALL, OomFallback, PREFIX, Settings};

    fn read(pairs: &[(&str, &str)]) -> (Settings, usize) {
        let (settings, complaints) = Settings::read(pairs.iter().map(|&(name, value)| (name.into(), value.into())));
        (settings, complaints.len())
    }

    #[test]
    fn an_alias_counts_unless_it_says_no_or_ours_is_set() {
        let (pool, fallback) = ("GGML_CUDA_POOL_USE_MANAGED", "GGML_CUDA_ALLOC_FALLBACK_MANAGED");
        let both = |settings: &Settings| (settings.pool_managed, settings.oom_fallback);
        let is = |pairs: &[(&str, &str)], expected| {
            let (settings, complaints) = read(pairs);
            assert_eq!((both(&settings), complaints), (expected, 0), "{pairs:?}");
        };
        is(&[(pool, "1")], (true, OomFallback::None));
        is(&[(fallback, "1")], (false, OomFallback::Managed));
        is(&[(pool, "on"), (fallback, "yes please")], (true, OomFallback::Managed));
        is(&[(pool, "0"), (fallback, "off")], (false, OomFallback::None));
        is(&[(pool, ""), (fallback, "")], (false, OomFallback::None));
        is(&[(pool, "1"), ("GPUMEM_POOL_MANAGED", "0")], (false, OomFallback::None));
        is(&[(fallback, "1"), ("GPUMEM_OOM_FALLBACK", "host")], (false, OomFallback::Host));
        is(&[(fallback, "1"), ("GPUMEM_OOM_FALLBACK", "")], (false, OomFallback::Managed));
        // A refused value leads to the default, as the complaint says, and not to the alias.
        let (settings, complaints) = read(&[(fallback, "1"), ("GPUMEM_OOM_FALLBACK", "disk")]);
        assert_eq!((settings.oom_fallback, complaints), (OomFallback::None, 1));
        for alias in ALIASES {
            let setting = ALL.iter().find(|setting| setting.name == alias.setting).unwrap();
            assert!(setting.parse(OsStr::new(alias.value)).is_ok() && !alias.name.starts_with(PREFIX));
            let mut environment = vec![(alias.name.into(), "1".into())];
            assert_eq!(aliases_in_force(&environment)[0].name, alias.name);
            environment.push((alias.setting.into(), alias.value.into()));
            assert!(aliases_in_force(&environment).is_empty());
        }
    }
}
