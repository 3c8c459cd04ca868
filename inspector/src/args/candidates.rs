//! Shell completion: processes and their ledgers, variables, files, commands.

use crate::source::find::{self, FoundProcess};
use crate::source::world::World;
use crate::text::clean;
use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use gpumem_wire::settings::{self, Kind, PREFIX, Setting};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Variable that a shell sets to request completions.
pub(crate) const COMPLETE: &str = "_GPUMEM_COMPLETE";

/// Endings of files that gpumem writes: offered before a letter is typed.
const ENDINGS: [&str; 4] = [".gpumem", ".ledger", ".rec.gz", ".trace"];

/// Words that continue what was typed.
type Words = fn(&OsStr) -> Vec<CompletionCandidate>;

/// Completes by words of these kinds, in this order.
pub(crate) fn offer<const N: usize>(kinds: [Words; N]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |word: &OsStr| kinds.iter().flat_map(|words| words(word)).collect::<Vec<_>>())
}

/// Returns running processes.
pub(crate) fn running(word: &OsStr) -> Vec<CompletionCandidate> {
    found(word, true)
}

/// Returns processes, and ledgers of dead ones.
pub(crate) fn recorded(word: &OsStr) -> Vec<CompletionCandidate> {
    found(word, false)
}

/// Returns the command line for completion. A command and its arguments follow `--`, but clap's engine would offer
/// values of the first positional argument there.
pub(crate) fn behind_dashes(root: Command) -> Command {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let typed = words.split_last().map_or(&[][..], |(_, typed)| typed);
    let Some(at) = typed.iter().position(|word| word == "--") else { return root };
    let is_first = at + 1 == typed.len();
    let offer = || offer([if is_first { command } else { files }]);
    root.mut_subcommand("run", |run| run.mut_arg("command", |arg| arg.add(offer())))
        .mut_subcommand("record", |record| {
            record.mut_arg("target", |arg| arg.add(offer())).mut_arg("command", |arg| arg.add(offer()))
        })
}

/// Returns processes by pid, or by name if the beginning of a name was typed.
fn found(word: &OsStr, live: bool) -> Vec<CompletionCandidate> {
    let Some(typed) = word.to_str().filter(|typed| !typed.contains('/')) else { return Vec::new() };
    let fits = |found: &FoundProcess| found.is_live() || !live && found.status().is_some();
    let one = |found: FoundProcess| {
        let (pid, name) = (found.pid.to_string(), clean(&found.name()).into_owned());
        let status = found.status().filter(|status| !status.running()).map(|status| format!(", {}", status.short()));
        let status = status.unwrap_or_default();
        if pid.starts_with(typed) {
            return Some(candidate(pid, &format!("{name}{status}")));
        }
        (!typed.is_empty() && name.starts_with(typed)).then(|| candidate(name, &format!("pid {pid}{status}")))
    };
    find::survey(&World::here(None)).found.into_iter().filter(fits).filter_map(one).collect()
}

fn candidate(word: String, what: &str) -> CompletionCandidate {
    CompletionCandidate::new(word).help(Some(clean(what).into_owned().into()))
}

/// Returns the files; before a letter is typed only those that gpumem writes.
pub(crate) fn files(word: &OsStr) -> Vec<CompletionCandidate> {
    let ours = |path: &Path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        path.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending))
    };
    match word.is_empty() {
        true => PathCompleter::any().filter(ours).complete(word).into_iter().filter(|one| !is_folder(one)).collect(),
        false => PathCompleter::any().complete(word),
    }
}

fn is_folder(one: &CompletionCandidate) -> bool {
    one.get_value().as_encoded_bytes().ends_with(b"/")
}

/// Returns all variables.
pub(crate) fn variables(word: &OsStr) -> Vec<CompletionCandidate> {
    named(word, settings::ALL.iter(), "")
}

/// Returns variables that can change, each with `=`; behind `=`, the allowed words.
pub(crate) fn assignments(word: &OsStr) -> Vec<CompletionCandidate> {
    let typed = word.to_str().unwrap_or_default();
    let Some((name, value)) = typed.split_once('=') else { return named(word, settings::live(), "=") };
    let Some(setting) = settings::find(name) else { return Vec::new() };
    let allowed: Vec<&str> = match setting.kind {
        Kind::Bool => vec!["0", "1"],
        Kind::Choice(words) => words.to_vec(),
        _ => Vec::new(),
    };
    let fitting = allowed.into_iter().chain(["default"]).filter(|word| word.starts_with(value));
    fitting.map(|word| CompletionCandidate::new(format!("{name}={word}"))).collect()
}

/// Returns variables whose name begins with a word, with or without the common prefix.
fn named<'a>(word: &OsStr, all: impl Iterator<Item = &'a Setting>, end: &str) -> Vec<CompletionCandidate> {
    let typed = word.to_str().unwrap_or_default().to_ascii_uppercase();
    let one = |setting: &Setting| {
        let short = &setting.name[PREFIX.len()..];
        let name = [short, setting.name].into_iter().find(|name| name.starts_with(&typed))?;
        Some(candidate(format!("{name}{end}"), setting.doc.trim()))
    };
    all.filter_map(one).collect()
}

/// Returns programs in PATH, once a letter is typed; before that there are too many. Behind a slash, returns files.
pub(crate) fn command(word: &OsStr) -> Vec<CompletionCandidate> {
    if word.is_empty() {
        return Vec::new();
    }
    if word.as_encoded_bytes().contains(&b'/') {
        return PathCompleter::any().complete(word);
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let mut names = BTreeSet::new();
    for entry in std::env::split_paths(&dirs).filter_map(|dir| dir.read_dir().ok()).flatten().flatten() {
        let begins = entry.file_name().as_encoded_bytes().starts_with(word.as_encoded_bytes());
        let runs = || {
            std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        if begins && runs() {
            names.insert(entry.file_name());
        }
    }
    names.into_iter().map(CompletionCandidate::new).collect()
}
