//! The name of a process: the name of its program, or of its script for Python.

use super::process::Process;
use super::standing::command_line;
use super::world::World;
use crate::text::file_name;
use gpumem_wire::read::Snapshot;

/// Returns the name of a process, from the path of its program and its command line, whose words are separated by
/// spaces.
fn called(exe: &str, cmdline: &str) -> String {
    let exe = file_name(exe.trim_end_matches(" (deleted)"));
    if is_python(&exe) { script(cmdline).unwrap_or(exe) } else { exe }
}

/// Returns the name of the process of a ledger: from the ledger, else from /proc. A damaged ledger has lost its texts.
pub(crate) fn name_of(snapshot: &Snapshot, process: Option<&Process>) -> String {
    let (exe, cmdline) = (snapshot.text(snapshot.header.exe), snapshot.text(snapshot.header.cmdline));
    match process {
        _ if !exe.is_empty() => called(&exe, &cmdline),
        Some(process) => process.name.clone(),
        None => "?".into(),
    }
}

/// Returns the name of a process without a ledger, from /proc.
pub(crate) fn of_process(world: &World, process: &Process) -> String {
    let exe = std::fs::read_link(world.proc.join(process.pid.to_string()).join("exe"));
    match exe {
        Ok(exe) => called(&exe.to_string_lossy(), &command_line(world, process).join(" ")),
        Err(_) => process.name.clone(),
    }
}

/// Returns the name of its program, also if it runs Python.
pub(crate) fn program_of(snapshot: &Snapshot, process: Option<&Process>) -> String {
    match snapshot.text(snapshot.header.exe) {
        exe if !exe.is_empty() => called(&exe, ""),
        _ => name_of(snapshot, process),
    }
}

/// True for `python`, `python3`, `python3.12` and their like.
fn is_python(exe: &str) -> bool {
    exe.strip_prefix("python").is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

/// Returns the script or module on an interpreter's command line. `None` for code given on the command line or typed
/// in.
fn script(cmdline: &str) -> Option<String> {
    let mut words = cmdline.split(' ').skip(1);
    while let Some(word) = words.next() {
        match word {
            "-m" => return words.next().map(str::to_owned),
            "-c" | "-" => return None,
            "-W" | "-X" | "--check-hash-based-pycs" => drop(words.next()),
            option if option.starts_with('-') => {}
            script => return Some(file_name(script)).filter(|name| !name.is_empty()),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_python_is_called_by_its_script() {
        for (exe, cmdline, name) in [
            ("/usr/bin/llama-server", "llama-server -m x.gguf", "llama-server"),
            ("/usr/bin/python3.12", "python3 -u -X dev /home/me/train.py --lr 1", "train.py"),
            ("/usr/bin/python3", "python -W error -m vllm.entrypoints.api", "vllm.entrypoints.api"),
            ("/usr/bin/python3.12", "python3 -c import torch", "python3.12"),
            ("/usr/bin/python3.12", "python3", "python3.12"),
            ("/usr/bin/python3.12 (deleted)", "", "python3.12"),
            ("/usr/bin/pythonish", "pythonish a.py", "pythonish"),
        ] {
            assert_eq!(called(exe, cmdline), name, "{cmdline}");
        }
    }
}
