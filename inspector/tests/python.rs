//! Call stacks with frames of Python: which are shown, in which order, and which one is the call site.

mod common;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, CodeSlot, PythonFrame, StackSlot};
use serde_json::Value;

const PYTHON: u64 = 0x6000_0000_0000;
const TORCH: u64 = APP;
const SITE_PACKAGES: &str = "/v/lib/python3.11/site-packages";

/// Addresses in the interpreter: what runs frames, and what does not.
const RUN: u64 = PYTHON + 0x101;
const CALL: u64 = PYTHON + 0x201;

/// A frame of the code with this number; `entry`: native code called it.
fn frame(code: u32, line: u32, entry: bool) -> u64 {
    PythonFrame { code, line, entry }.word()
}

/// The code of the frames below: name and file.
fn codes() -> [(&'static str, String); 6] {
    [
        ("Linear.forward", format!("{SITE_PACKAGES}/torch/nn/modules/linear.py")),
        ("Attention.forward", format!("{SITE_PACKAGES}/transformers/modeling.py")),
        ("train", "/home/me/train.py".into()),
        ("<module>", "/home/me/train.py".into()),
        ("Thread.run", "/usr/lib/python3.11/threading.py".into()),
        ("evaluate", "/home/me/train.py".into()),
    ]
}

/// A ledger with one allocation for each of these stacks, each with the frames of Python behind the native ones.
fn ledger(stacks: &[&[u64]]) -> Composer {
    let mut composer = begin(me());
    module(&mut composer, "/opt/torch/libc10.so", TORCH, 0x10_0000, TORCH);
    module(&mut composer, "/usr/bin/python3.11", PYTHON, 0x10_0000, PYTHON);
    module(&mut composer, "/usr/lib/libcudart.so.12", CUDA, 0x10_0000, CUDA);
    composer.symbol(RUN, 0, "_PyEval_EvalFrameDefault", "ceval.c", 10, "/usr/bin/python3.11");
    composer.symbol(CALL, 0, "cfunction_call", "call.c", 20, "/usr/bin/python3.11");
    composer.header.python = composer.text("CPython 3.11.7");
    let codes = codes().map(|(name, file)| CodeSlot {
        name: composer.text(name),
        file: composer.text(&file),
        first_line: 1,
        ..Default::default()
    });
    composer.slots(codes);
    for (index, frames) in stacks.iter().enumerate() {
        let totals = StackSlot { hash: index as u64, allocs: 1, alloc_bytes: MIB, ..Default::default() };
        composer.stack(index, totals, frames);
        composer.slots([AllocSlot {
            stack: index as u32 + 1,
            serial: index as u64,
            addr: index as u64 + 1,
            bytes: MIB << (stacks.len() - index),
            kind: AllocKind::Device as u8,
            ..Default::default()
        }]);
    }
    composer
}

/// torch called from a package, called from the user's file; the package calls back through native code.
const DEEP: &[u64] = &[CUDA + 0x10, TORCH + 0x101, CALL, RUN, CALL, TORCH + 0x201, RUN, PYTHON + 0x301];

fn deep() -> Vec<u64> {
    let python = [frame(0, 114, false), frame(1, 230, true), frame(2, 42, false), frame(3, 90, true)];
    [DEEP, &python].concat()
}

/// The names of a row's frames.
fn names(row: &Value) -> Vec<String> {
    let name = |frame: &Value| match (frame["function"].as_str(), frame["module_address"].as_u64()) {
        (Some(function), _) => function.to_owned(),
        (None, address) => format!("{:#x}", address.unwrap_or(0)),
    };
    row["stack"].as_array().unwrap().iter().map(name).collect()
}

fn keys(report: &Value) -> Vec<String> {
    report["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
}

const IN_PYTHON: [&str; 4] = ["Linear.forward", "Attention.forward", "train", "<module>"];

#[test]
fn frames_of_python_stand_where_they_ran() {
    let dir = dir();
    dir.put(me(), ledger(&[&deep()]));
    let row = |args: &[&str]| dir.json(&[&["allocs", "--stacks"], args].concat())["rows"][0].clone();
    let mixed = row(&[]);
    // What native code called ends at its entry; the interpreter's own frames are left out.
    let [linear, attention, train, module] = IN_PYTHON;
    assert_eq!(names(&mixed), ["0x10", "0x101", linear, attention, "0x201", train, module]);
    assert_eq!(names(&row(&["--stack", "mixed"])), names(&mixed));
    assert_eq!(names(&row(&["--stack", "python"])), IN_PYTHON);
    let native = row(&["--stack", "native"]);
    assert_eq!(names(&native).len(), DEEP.len());
    assert_eq!(native["key"], "libc10.so+0x101");
    let frame = &mixed["stack"][4 - 2];
    assert_eq!((&frame["python"], &frame["line"], &frame["address"]), (&true.into(), &114.into(), &0.into()));
    assert!(frame["file"].as_str().unwrap().ends_with("linear.py"));
}

/// The innermost line that is no framework's, with the user's own where that is another.
#[test]
fn the_call_site_is_a_line_of_the_program() {
    let dir = dir();
    let direct = [&DEEP[..4], &[frame(0, 114, false), frame(2, 42, false), frame(3, 90, true)]].concat();
    let elsewhere = [&DEEP[..4], &[frame(0, 114, false), frame(5, 50, false), frame(3, 91, true)]].concat();
    let in_thread = [&DEEP[..4], &[frame(0, 114, false), frame(4, 982, true)]].concat();
    let native: &[u64] = &[CUDA + 0x10, TORCH + 0x501];
    dir.put(me(), ledger(&[&deep(), &direct, &elsewhere, &in_thread, native]));
    let report = dir.json(&["allocs"]);
    assert_eq!(
        keys(&report),
        [
            "Attention.forward modeling.py:230 ← train train.py:42",
            "train train.py:42",
            "evaluate train.py:50",
            "Linear.forward linear.py:114",
            "libc10.so+0x501",
        ]
    );
    assert_eq!(report["rows"][1]["site"]["file"], "/home/me/train.py");
    // Others of the same line are told apart by their callers.
    let again = [&DEEP[..4], &[frame(0, 114, false), frame(2, 42, false), frame(5, 51, true)]].concat();
    dir.put(me(), ledger(&[&direct, &again]));
    let callers = ["train train.py:42 ← <module> train.py:90", "train train.py:42 ← evaluate train.py:51"];
    assert_eq!(keys(&dir.json(&["allocs"])), callers);
}

/// Native frames that were cut off before they reached the interpreter, and an interpreter without names.
#[test]
fn frames_are_shown_where_the_interpreter_is_not_known() {
    let dir = dir();
    let python = [frame(2, 42, false), frame(3, 90, true)];
    let cut = [&DEEP[..2], &python].concat();
    let nameless = [&[CUDA + 0x10, PYTHON + 0x701, PYTHON + 0x801, TORCH + 0x901], &python[..]].concat();
    dir.put(me(), ledger(&[&cut, &nameless]));
    let report = dir.json(&["allocs", "--all", "--stacks"]);
    assert_eq!(names(&report["rows"][0]), ["0x10", "0x101", "train", "<module>"]);
    assert_eq!(names(&report["rows"][1]), ["0x10", "train", "<module>", "0x901"]);
}

/// A dump has the code with it, and a comparison finds the same lines in processes of different code numbers.
#[test]
fn dumps_and_comparisons_know_lines_of_python() {
    let dir = dir();
    dir.put(me(), ledger(&[&deep()]));
    let dump = dir.path().join("dump");
    dir.ok(&["dump", "-o", dump.to_str().unwrap()]);
    let of_dump = dir.json(&["allocs", "--stacks", dump.to_str().unwrap()]);
    assert_eq!(names(&of_dump["rows"][0]), names(&dir.json(&["allocs", "--stacks"])["rows"][0]));
    let mut after = ledger(&[&deep(), &[&DEEP[..4], &[frame(5, 51, true)]].concat()]);
    // The same code by other numbers: an unrelated one lies before it.
    after.header.dumped_ns = 1;
    let after_file = dir.path().join("after");
    std::fs::write(&after_file, after.finish()).unwrap();
    for by in ["address", "function"] {
        let args = ["diff", dump.to_str().unwrap(), after_file.to_str().unwrap(), "--match-by", by];
        let sites = dir.json(&args)["allocs"].clone();
        let sites: Vec<_> = sites.as_array().unwrap().iter().map(|row| row["site"].as_str().unwrap()).collect();
        assert!(sites.iter().any(|site| site.starts_with("evaluate")), "{by}: {sites:?}");
    }
}

/// Frames that point to code that is not there, and damaged texts, are shown as far as they are known.
#[test]
fn code_that_is_not_there_is_said_to_be_unknown() {
    let dir = dir();
    let mut lies = ledger(&[&[&DEEP[..4], &[frame(77, 5, true), frame(6, 9, true)]].concat()]);
    lies.slots([CodeSlot { name: u32::MAX, file: 3, first_line: 0, ..Default::default() }]);
    dir.put(me(), lies);
    let report = dir.json(&["allocs", "--stacks"]);
    assert_eq!(names(&report["rows"][0])[2], "?");
}

#[test]
fn doctor_says_why_there_are_no_frames_of_python() {
    let dir = dir();
    let python = |text: &str| {
        let mut ledger = demo(me());
        ledger.header.python = ledger.text(text);
        dir.put(me(), ledger);
        let out = dir.gpumem(&["doctor", "--all", &me().pid.to_string()]).out;
        squeeze(&out).lines().filter(|line| line.contains(" python ")).collect::<Vec<_>>().join("\n")
    };
    assert!(!python("").contains("frames of"), "no Python, nothing said");
    assert!(python("CPython 3.11.7").ends_with("frames of CPython 3.11.7 are read"));
    let refused = python("CPython 3.15.0\nthis release reads the frames of 3.9 to 3.14");
    assert!(refused.starts_with("info"), "{refused}");
    assert!(
        refused.ends_with("no frames of CPython 3.15.0: this release reads the frames of 3.9 to 3.14"),
        "{refused}"
    );
}
