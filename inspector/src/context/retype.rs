//! The command line with another target: the commands that are offered if several processes match.

use crate::text::os_word;
use std::ffi::{OsStr, OsString};

/// Arguments that name a process or a file.
const TARGETS: [&str; 3] = ["target", "before", "after"];
/// A word that no user types.
const MARK: &str = "\u{1}target";

/// Returns the words of a command line of `root` (the program's name first), with this target in place of the word that
/// was `asked` for, or at the end. Quoted for a shell.
pub(super) fn with_target(root: clap::Command, words: &[OsString], asked: Option<&OsStr>, target: &str) -> String {
    let mut words = words.to_vec();
    // The same word may be an option's value or a mark's name: the parser knows which one is the target.
    let place = |at: &usize| {
        let mut tried = words.clone();
        tried[*at] = MARK.into();
        is_target(&root, &tried)
    };
    match (1..words.len()).filter(|&at| Some(words[at].as_os_str()) == asked).find(place) {
        Some(at) => words[at] = target.into(),
        // Insert at the last position that the parser accepts as a target: words of the user's command may follow.
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

/// True if the mark is in the position of a target.
fn is_target(root: &clap::Command, words: &[OsString]) -> bool {
    let Ok(matches) = root.clone().try_get_matches_from(words) else { return false };
    let Some((_, of_command)) = matches.subcommand() else { return false };
    let mut ids = of_command.ids().map(clap::Id::as_str).filter(|id| TARGETS.contains(id));
    ids.any(|id| of_command.get_raw(id).is_some_and(|mut values| values.any(|value| value == MARK)))
}
