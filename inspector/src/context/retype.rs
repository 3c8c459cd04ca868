//! The command line again with another target: what to type where several processes fit.

use crate::text::os_word;
use std::ffi::{OsStr, OsString};

/// Arguments that name a process or a file.
const TARGETS: [&str; 3] = ["target", "before", "after"];
/// No word that anybody types.
const MARK: &str = "\u{1}target";

/// The words of a command line of `root` (the program's name first), with this target instead of the one that was
/// `asked` for, or at its end. Quoted as a shell wants them.
pub(super) fn with_target(root: clap::Command, words: &[OsString], asked: Option<&OsStr>, target: &str) -> String {
    let mut words = words.to_vec();
    // The same word may be an option's value or a mark's name: the parser knows which is the target.
    let place = |at: &usize| {
        let mut tried = words.clone();
        tried[*at] = MARK.into();
        is_target(&root, &tried)
    };
    match (1..words.len()).filter(|&at| Some(words[at].as_os_str()) == asked).find(place) {
        Some(at) => words[at] = target.into(),
        // As far back as a target may stand. If none was typed, words of the user's may stand behind it.
        None => {
            let place = |at: &usize| {
                let mut tried = words.clone();
                tried.insert(*at, MARK.into());
                is_target(&root, &tried)
            };
            let at = (1..=words.len()).rev().find(place).unwrap_or(words.len());
            words.insert(at, target.into());
        }
    }
    let typed = words.iter().skip(1).map(|word| os_word(word));
    std::iter::once("gpumem".to_owned()).chain(typed).collect::<Vec<_>>().join(" ")
}

/// True if the mark is where a target is.
fn is_target(root: &clap::Command, words: &[OsString]) -> bool {
    let Ok(matches) = root.clone().try_get_matches_from(words) else { return false };
    let Some((_, of_command)) = matches.subcommand() else { return false };
    let mut ids = of_command.ids().map(clap::Id::as_str).filter(|id| TARGETS.contains(id));
    ids.any(|id| of_command.get_raw(id).is_some_and(|mut values| values.any(|value| value == MARK)))
}
