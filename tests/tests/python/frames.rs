//! Call sites of Python programs are lines of Python: those that the interpreter itself tells.
//!
//! `TEST_PYTHONS=/a/python3.9:/b/python3.14` tries those instead of the machine's own `python3`.

use gpumem_tests::harness::{Program, Ran, artifacts, client, command};
use gpumem_tests::python::{interpreters, libraries};
use gpumem_tests::skipped::skipped;
use gpumem_wire::counters;
use gpumem_wire::layout::PythonFrame;
use gpumem_wire::read::{Snapshot, Stack};
use std::path::Path;
use std::process::Command;

/// Variable that names an interpreter with the abilities that this machine's lacks.
const OTHER_PYTHON: &str = "TEST_PYTHONS=interpreter";

/// The claim of `make proof`: random call shapes, in one thread and in several at once.
#[test]
fn frames_are_those_that_the_interpreter_tells() {
    if interpreters().is_empty() {
        return;
    }
    // The programs are staged by whoever comes first.
    let _ = artifacts();
    let args = ["--simulator", "python.frames_equal"];
    let done = Command::new(env!("CARGO_BIN_EXE_proof")).args(args).output().expect("proof runs");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let claim: serde_json::Value = serde_json::from_str(said.trim()).expect("a line");
    assert!(claim["native"].as_u64().is_some_and(|told| told >= 1000), "{claim}");
}

const LOAD: &str = "
import ctypes, os, sys, threading, time
rt = ctypes.CDLL('libcudart.so.13')
rt.cudaFree.argtypes = [ctypes.c_void_p]
def allocate(bytes):
    pointer = ctypes.c_void_p()
    assert rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(bytes)) == 0
    return pointer
";

fn inline(interpreter: &Path, text: &str) -> Program {
    command(interpreter).arg("-c").arg(format!("{LOAD}{text}")).env("GPUMEM_STACKS", "128")
}

/// Threads that allocate while the interpreter ends: it takes their states and frames away under them.
#[test]
fn daemon_threads_outlive_the_interpreter() {
    let text = "
done = []
def work():
    while True:
        rt.cudaFree(allocate(4096))
        done.append(0)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
while len(done) < 100:
    time.sleep(0.001)
";
    for interpreter in interpreters() {
        for _ in 0..5 {
            let ran = inline(&interpreter, text).preloaded().ok();
            assert!(ran.ledger().snapshot.codes.len() >= 3, "work, allocate and what runs threads");
        }
    }
}

/// Another thread than the process's first ends the interpreter, while the first one is in a call that allocates: the
/// states, frames and code of the first one are freed under it, get other contents or are unmapped.
#[test]
fn any_thread_may_end_the_interpreter() {
    let text = format!(
        "
ends = ctypes.CDLL({:?})
sys.setrecursionlimit(100000)
def deep(n):
    if n:
        deep(n - 1)
    else:
        ends.allocate_while_another_ends()
deep(400)
",
        artifacts().clients.join("libends.so")
    );
    for interpreter in interpreters() {
        let program = inline(&interpreter, &text);
        if program.native().out != "done\n" {
            skipped(format_args!("{} cannot be ended by another thread", interpreter.display()), OTHER_PYTHON);
            continue;
        }
        for _ in 0..3 {
            let ran = program.preloaded().ok();
            assert_eq!(ran.out, "done\n", "{interpreter:?}");
            assert!(functions(&ran).contains(&"deep".into()), "{interpreter:?}");
        }
    }
}

/// The names of the functions of Python that a run recorded.
fn functions(ran: &Ran) -> Vec<String> {
    let ledger = ran.ledger();
    let snapshot = &ledger.snapshot;
    snapshot.codes.values().map(|code| snapshot.text(code.name).into_owned()).collect()
}

/// A program that has an interpreter inside it, as `tests/programs/clients/embeds.c` does: it ends as natively, and what it
/// recorded of Python.
fn embedded(what: &str, check: impl Fn(&Ran)) {
    for library in libraries() {
        let program = client("embeds").arg(&library).arg(what).env("GPUMEM_STACKS", "128");
        if program.native().out != "done\n" {
            // 3.12.1 frees ctypes twice when it starts again.
            skipped(format_args!("{} does not do {what:?} by itself", library.display()), OTHER_PYTHON);
            continue;
        }
        for _ in 0..3 {
            let ran = program.preloaded().ok();
            assert_eq!(ran.out, "done\n", "{library:?} {what}");
            check(&ran);
        }
    }
}

#[test]
fn an_embedded_interpreter_that_another_thread_ends_is_no_fault() {
    embedded("ends", |ran| assert!(functions(ran).contains(&"deep".into())));
}

/// Each time that it starts, its frames are read again.
#[test]
fn an_interpreter_may_start_again() {
    for (what, rounds) in [("again", 5), ("at once", 60)] {
        embedded(what, |ran| {
            let functions = functions(ran);
            for round in 0..rounds {
                assert!(functions.contains(&format!("round_{round}")), "{what}: {functions:?}");
            }
        });
    }
}

#[test]
fn sub_interpreters_may_end_on_any_thread() {
    for what in ["parts", "states"] {
        embedded(what, |ran| assert!(functions(ran).contains(&"deep".into()), "{what}"));
    }
    embedded("many", |ran| assert!(functions(ran).contains(&"run".into())));
}

/// Code that is made and forgotten in a loop: each piece may lie where the one before did.
#[test]
fn code_that_takes_the_place_of_other_code_has_its_own_name() {
    let text = "
for round in range(600):
    space = {'allocate': allocate, 'free': rt.cudaFree}
    exec(f'def made_{round:03}(): free(allocate(4096))', space)
    space[f'made_{round:03}']()
    del space
print('done')
";
    for interpreter in interpreters() {
        let ran = inline(&interpreter, text).preloaded().ok();
        assert_eq!(ran.out, "done\n");
        let functions = functions(&ran);
        let missing: Vec<_> =
            (0..600).map(|round| format!("made_{round:03}")).filter(|name| !functions.contains(name)).collect();
        assert!(missing.is_empty(), "{interpreter:?}: {missing:?}");
    }
}

/// A child of a fork has a ledger of its own, with the code in it.
#[test]
fn a_forked_child_tells_its_frames() {
    let text = "
def in_child():
    allocate(2000)
child = os.fork()
if child == 0:
    in_child()
    os._exit(0)
allocate(1000)
assert os.waitpid(child, 0)[1] == 0
";
    for interpreter in interpreters() {
        let ran = inline(&interpreter, text).preloaded().ok();
        let names = |ledger: &Snapshot| -> Vec<String> {
            ledger.codes.values().map(|code| ledger.text(code.name).into_owned()).collect()
        };
        let of_child: Vec<_> = ran.ledgers().into_iter().filter(|ledger| ledger.id.pid != ran.pid).collect();
        let names = names(&of_child.first().expect("the child's ledger").snapshot);
        assert!(names.iter().any(|name| name == "in_child"), "{names:?}");
    }
}

/// A program that has more functions than there is room for: those that were first have their frames, stacks end at the
/// first function of the others, and it is said that something is missing.
#[test]
fn more_functions_than_there_is_room_for_cost_their_frames_alone() {
    let text = "
for group in range(12):
    chain = []
    define = f'def f{group}(at, chain): return chain[at + 1](at + 1, chain) if at + 1 < len(chain) else allocate(4096)'
    for line in range(90):
        space = {'allocate': allocate}
        exec('\\n' * line + define, space)
        chain.append(space[f'f{group}'])
    rt.cudaFree(chain[0](0, chain))
print('done')
";
    for interpreter in interpreters() {
        // 327 functions fit.
        let ran = inline(&interpreter, text).env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
        assert_eq!(ran.out, "done\n");
        let ledger = ran.ledger();
        let snapshot = &ledger.snapshot;
        assert!((200..500).contains(&snapshot.codes.len()), "{} functions", snapshot.codes.len());
        // A stack ends where its first function has no room.
        assert!(ledger.counter(counters::DROPPED_RECORDS) >= 8, "eight groups did not fit");
        let of_python = |stack: &Stack| -> Vec<u32> {
            let frames = snapshot.frames(stack).iter().filter_map(|&frame| PythonFrame::of(frame));
            frames.map(|frame| frame.code).collect()
        };
        let mut deep: Vec<Vec<u32>> = snapshot.stacks.values().map(of_python).collect();
        assert!(deep.iter().flatten().all(|code| snapshot.codes.contains_key(code)), "{deep:?}");
        deep.sort_by_key(Vec::len);
        let [least, most] = [deep.first(), deep.last()].map(|stack| stack.map_or(0, Vec::len));
        assert!(least < 10 && most > 90, "the first are whole, of the last there is little: {deep:?}");
        assert!(snapshot.allocs.iter().all(|alloc| alloc.stack != 0), "native frames in any case");
        let said = ledger.gpumem("allocs", &["--freed"]);
        assert!(said["process"]["dropped_records"].as_u64() >= Some(8), "{said:#}");
    }
}

/// The user's own line is the call site by default; the native frames are there as well, alone if that is asked for.
#[test]
fn views_show_the_line_of_the_program() {
    let text = "
class Model:
    def forward(self):
        return allocate(1 << 20)
def train():
    Model().forward()
train()
";
    for interpreter in interpreters() {
        let ran = inline(&interpreter, text).preloaded().ok();
        let rows = |args: &[&str]| gpumem_tests::harness::ledger::gpumem(&ran.dir, args)["rows"][0].clone();
        let pid = ran.pid.to_string();
        let functions = |row: &serde_json::Value| -> Vec<String> {
            let stack = row["stack"].as_array().into_iter().flatten();
            stack.map(|frame| frame["function"].as_str().unwrap_or("?").to_owned()).collect()
        };
        let lines = ["allocate", "forward", "train", "<module>"];
        let is_line = |name: &String| lines.contains(&name.rsplit('.').next().unwrap_or_default());
        let python = rows(&["allocs", &pid, "--stacks", "--stack", "python"]);
        let named = functions(&python);
        assert!(named.len() == 4 && named.iter().all(is_line), "{named:?}");
        let mixed = rows(&["allocs", &pid, "--stacks"]);
        let all = functions(&mixed);
        assert!(all.len() > 4 && all.iter().any(|name| name.contains("cudaMalloc")), "{all:?}");
        assert_eq!(all.iter().filter(|name| is_line(name)).collect::<Vec<_>>(), named.iter().collect::<Vec<_>>());
        assert!(!all.iter().any(|name| name.contains("_PyEval")), "{all:?}");
        assert!(mixed["key"].as_str().is_some_and(|key| key.starts_with("allocate <string>:7")), "{mixed}");
        let native = rows(&["allocs", &pid, "--stacks", "--stack", "native"]);
        assert!(!functions(&native).iter().any(is_line), "{native}");
    }
}

/// Runs a process with a false interpreter. Returns the name that the ledger gives the interpreter, and the number of
/// Python frames that the process recorded.
fn pretends(what: &str) -> (String, usize) {
    let ran = client("pretender").arg(what).preloaded().ok();
    assert_eq!(ran.out, "done\n");
    let ledger = ran.ledger();
    let snapshot = &ledger.snapshot;
    let frames = snapshot.stacks.values().flat_map(|stack| snapshot.frames(stack));
    let of_python = frames.filter(|&&frame| PythonFrame::of(frame).is_some()).count();
    assert!(snapshot.allocs.iter().all(|alloc| alloc.stack != 0), "native frames in any case");
    (snapshot.text(snapshot.header.python).into_owned(), of_python)
}

#[test]
fn an_interpreter_that_is_not_known_costs_only_its_frames() {
    let known = "this release reads the frames of 3.9 to 3.14";
    assert_eq!(pretends("newer"), (format!("CPython 3.15.0\n{known}"), 0));
    let (said, frames) = pretends("free-threaded");
    assert!(said.contains("a free-threaded build") && frames == 0, "{said}");
    assert_eq!(pretends("mute"), ("CPython 3.13.1\nit does not publish its offsets".into(), 0));
    assert_eq!(pretends("idle"), ("CPython 3.11.7".into(), 0));
}

/// Addresses that are said to be the interpreter's are tried before they are believed, by reads that cannot fault.
#[test]
fn frames_that_lead_nowhere_are_not_followed() {
    assert_eq!(pretends("garbled"), ("CPython 3.11.7\na frame is not there".into(), 0));
    assert_eq!(pretends("foreign"), ("CPython 3.11.7\na frame leads to no code object".into(), 0));
}

/// Whoever ends an interpreter takes the frames of other threads away: that costs the frames of later stacks.
#[test]
fn frames_that_are_taken_away_are_no_fault() {
    // Of the first two of three allocations.
    assert_eq!(pretends("torn"), ("CPython 3.11.7".into(), 2));
}
