//! Completions that shells offer while a command line is typed. The shells themselves are asked.

mod common;
use common::skipped::installed;
use common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with two processes that run, one that is gone, and files of several kinds.
struct Place {
    dir: Dir,
    running: Sleeper,
    gone: u32,
    work: tempfile::TempDir,
}

fn place() -> Place {
    let (dir, running, gone) = (dir(), Sleeper::start(), gone());
    dir.put(running.id(), demo(running.id()));
    dir.put(gone, demo(gone));
    let work = tempfile::tempdir().unwrap();
    for name in ["before.gpumem", "notes.txt"] {
        std::fs::write(work.path().join(name), "").unwrap();
    }
    Place { dir, running, gone: gone.pid, work }
}

/// A shell in which gpumem is found.
fn shell(shell: PathBuf, place: &Place) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_gpumem")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = Command::new(shell);
    let dirs = std::iter::once(program).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(dirs).unwrap()).env("GPUMEM_DIR", place.dir.path());
    command.env("HOME", place.work.path()).current_dir(place.work.path()).env_remove("XDG_RUNTIME_DIR");
    command
}

fn offered(mut command: Command) -> Vec<String> {
    let answer = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
    assert!(answer.status.success(), "{err}");
    out.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

/// Returns bash's offers for the last of these words.
fn bash(place: &Place, words: &[&str]) -> Option<Vec<String>> {
    let mut command = shell(installed("bash")?, place);
    let script = "source <(gpumem completions bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
        _clap_complete_gpumem gpumem \"${COMP_WORDS[COMP_CWORD]}\" \"\" 2>/dev/null; printf '%s\\n' \"${COMPREPLY[@]}\"";
    command.args(["--norc", "-c", script, "bash"]).args(words);
    Some(offered(command).into_iter().map(|word| word.trim_end().to_owned()).collect())
}

/// Returns fish's offers for this line, without their descriptions.
fn fish(place: &Place, line: &str) -> Option<Vec<String>> {
    let mut command = shell(installed("fish")?, place);
    let script = "gpumem completions fish | source; complete -C $argv[1]";
    command.args(["--no-config", "-c", script, line]);
    Some(offered(command).into_iter().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect())
}

/// Returns the words that zsh hands to its own completion for the last of these words. Calls the script's function with
/// a `_describe` that prints its words.
fn zsh(place: &Place, words: &[&str]) -> Option<Vec<String>> {
    let mut command = shell(installed("zsh")?, place);
    let script = "compdef() { :; }; _describe() { print -rl -- \"${(@P)${@[-1]}}\"; }
        source <(gpumem completions zsh); words=(\"$@\"); CURRENT=$#; ${functions[(I)_clap_dynamic_completer_*]}";
    command.args(["-f", "-c", script, "zsh"]).args(words);
    Some(offered(command).into_iter().map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect())
}

/// Lines with what has to be among what is offered, and what must not.
fn cases(place: &Place) -> Vec<(Vec<&'static str>, Vec<String>, Vec<String>)> {
    let (running, gone) = (place.running.id().pid.to_string(), place.gone.to_string());
    let own = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    vec![
        (vec!["gpumem", "al"], own(&["allocs"]), own(&["notes.txt"])),
        // Processes, what the dead left, and files that gpumem wrote.
        (
            vec!["gpumem", "allocs", ""],
            vec![running.clone(), gone.clone(), "before.gpumem".into()],
            own(&["notes.txt", "LIMIT="]),
        ),
        (vec!["gpumem", "allocs", "no"], own(&["notes.txt"]), vec![running.clone(), gone.clone()]),
        (vec!["gpumem", "allocs", "--by", ""], own(&["site", "tag"]), vec![running.clone(), "notes.txt".into()]),
        (
            vec!["gpumem", "allocs", "--min-size", ""],
            vec![],
            vec![running.clone(), "notes.txt".into(), "before.gpumem".into()],
        ),
        (vec!["gpumem", "stats", "--file", "n"], own(&["notes.txt"]), vec![running.clone()]),
        (vec!["gpumem", "export", "-o", "n"], own(&["notes.txt"]), vec![running.clone()]),
        // What is asked of the process itself is not asked of the dead.
        (
            vec!["gpumem", "set", ""],
            vec![running.clone(), "LIMIT=".into(), "STRANDED=".into()],
            vec![gone.clone(), "notes.txt".into()],
        ),
        (vec!["gpumem", "set", "LI"], own(&["LIMIT="]), vec![running.clone(), "STRANDED=".into()]),
        (vec!["gpumem", "get", "GPUMEM_POO"], own(&["GPUMEM_POOL", "GPUMEM_POOL_MAX"]), own(&["LIMIT"])),
        (vec!["gpumem", "record", ""], vec![running.clone()], vec![gone.clone(), "notes.txt".into()]),
        // Behind the dashes a command, and then its files.
        (vec!["gpumem", "run", "--", "tou"], own(&["touch"]), vec![running.clone()]),
        (vec!["gpumem", "run", "--", "touch", "no"], own(&["notes.txt"]), vec![running.clone()]),
        (vec!["gpumem", "record", "--", "tou"], own(&["touch"]), vec![running.clone()]),
        (vec!["gpumem", "record", "--", "touch", "no"], own(&["notes.txt"]), own(&["nohup"])),
    ]
}

fn hold(place: &Place, ask: impl Fn(&[&str]) -> Option<Vec<String>>) {
    for (words, wanted, unwanted) in cases(place) {
        let Some(offered) = ask(&words) else { return };
        for word in &wanted {
            assert!(offered.contains(word), "{words:?}: {word} is not offered: {offered:?}");
        }
        for word in &unwanted {
            assert!(!offered.contains(word), "{words:?}: {word} is offered: {offered:?}");
        }
    }
}

#[test]
fn bash_offers_what_fits() {
    let place = place();
    hold(&place, |words| bash(&place, words));
}

#[test]
fn fish_offers_what_fits() {
    let place = place();
    hold(&place, |words| fish(&place, &words.join(" ")));
}

#[test]
fn zsh_offers_what_fits() {
    let place = place();
    hold(&place, |words| zsh(&place, words));
}

/// A process may be called what would steer a terminal, or end a line that a shell reads.
#[test]
fn names_of_processes_are_cleaned() {
    let place = place();
    let mut ledger = demo(me());
    ledger.header.exe = ledger.text("/opt/a\x1b[31mb\nc");
    place.dir.put(me(), ledger);
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
    command.env("GPUMEM_DIR", place.dir.path()).env("_GPUMEM_COMPLETE", "fish").env_remove("XDG_RUNTIME_DIR");
    command.args(["--", "gpumem", "allocs", ""]);
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(said.contains(&me().pid.to_string()), "{said}");
    assert!(!said.contains('\x1b') && said.contains("a\\x1b[31mb\\nc"), "{said}");
}

#[test]
fn guides_and_commands_are_offered_to_help() {
    let Some(offered) = bash(&place(), &["gpumem", "help", "py"]) else { return };
    assert_eq!(offered, ["pytorch"]);
    let Some(offered) = bash(&place(), &["gpumem", "help", "lea"]) else { return };
    assert_eq!(offered, ["leaks"]);
}
