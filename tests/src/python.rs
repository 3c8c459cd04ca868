//! Programs in Python: finds the interpreters, and compares the frames that they report with those of a ledger.

use crate::skipped::skipped;
use gpumem_wire::layout::PythonFrame;
use gpumem_wire::read::Snapshot;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Interpreters to try instead of the one on PATH, separated by colons.
const VARIABLE: &str = "TEST_PYTHONS";

/// Interpreters whose frames can be read. Where there is none, the list is empty and a line goes to stderr.
pub fn interpreters() -> Vec<PathBuf> {
    let named = std::env::var_os(VARIABLE).unwrap_or_else(|| "python3".into());
    let all = std::env::split_paths(&named).collect::<Vec<_>>();
    let usable: Vec<_> = all.iter().filter(|python| can_be_read(python)).cloned().collect();
    if usable.is_empty() {
        let why = "CPython 3.9 to 3.14 with ctypes and the GIL is not installed";
        skipped(why, &format!("package python3, or {VARIABLE}=interpreter"));
    }
    usable
}

/// The libraries of those interpreters, for programs that have one inside. Where one has none, a line goes to stderr.
pub fn libraries() -> Vec<PathBuf> {
    let script = "import os, sysconfig
print(os.path.join(*(sysconfig.get_config_var(of) or '' for of in ('LIBDIR', 'INSTSONAME'))))";
    let of = |python: &PathBuf| {
        let done = Command::new(python).args(["-c", script]).output().expect("it ran before");
        let path = PathBuf::from(String::from_utf8_lossy(&done.stdout).trim());
        let is_shared = path.to_string_lossy().contains(".so") && path.exists();
        if !is_shared {
            skipped(format_args!("{} has no shared library", python.display()), "package libpython3-dev");
        }
        is_shared.then_some(path)
    };
    interpreters().iter().filter_map(of).collect()
}

/// True if there is an interpreter, of a version that gpumem reads.
fn can_be_read(python: &Path) -> bool {
    let script = "import ctypes, sys, sysconfig
known = (3, 9) <= sys.version_info[:2] <= (3, 14) and sys.implementation.name == 'cpython'
sys.exit(not known or bool(sysconfig.get_config_var('Py_GIL_DISABLED')))";
    let mut command = Command::new(python);
    let done = command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// A frame as the interpreter reports it: name, file, line.
type Frame = (String, String, u32);

/// How many allocations `tests/python/frames.py` told of, and what is wrong with each whose frames in the ledger are not
/// those that it told. Frames are compared as deep as they are recorded.
///
/// # Panics
/// When it told nothing.
pub fn compare(told: &Value, ledger: &Snapshot) -> (usize, Vec<String>) {
    let allocations = told["allocations"].as_object().expect("allocations, by their sizes");
    let depth = ledger.header.stack_depth as usize;
    let mut wrong = Vec::new();
    for (bytes, frames) in allocations {
        let mut frames: Vec<Frame> = serde_json::from_value(frames.clone()).expect("frames");
        frames.truncate(depth);
        let found = recorded(ledger, bytes.parse().expect("a size"));
        if found.as_ref() != Some(&frames) {
            let at = found.iter().flatten().zip(&frames).take_while(|(found, told)| found == told).count();
            let found = found.as_ref().map(|found| found.get(at));
            wrong.push(format!("{bytes} bytes, frame {at}: {:?} is {found:?} in the ledger", frames.get(at)));
        }
    }
    (allocations.len(), wrong)
}

/// The Python frames of the ledger's allocation of this size.
fn recorded(ledger: &Snapshot, bytes: u64) -> Option<Vec<Frame>> {
    let alloc = ledger.allocs.iter().find(|alloc| alloc.bytes == bytes)?;
    let stack = ledger.stacks.get(&alloc.stack)?;
    let frames = ledger.frames(stack).iter().filter_map(|&frame| PythonFrame::of(frame));
    let told = frames.map(|frame| {
        let code = ledger.codes.get(&frame.code)?;
        // Since 3.11 names in code objects are qualified. The interpreter's own report has the last part only.
        let name = ledger.text(code.name);
        let name = name.rsplit('.').next().unwrap_or_default().to_owned();
        Some((name, ledger.text(code.file).into_owned(), frame.line))
    });
    told.collect()
}
