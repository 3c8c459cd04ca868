//! Addresses become functions, files and lines, out of process; a dump carries them along.

mod common;
use common::growth::{dumped, leaking_at};
use common::*;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, StackSlot};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program with an inlined function, and the ELF address behind a call in that.
struct Program {
    path: PathBuf,
    /// Return address of the call in `leaf`, which is inlined into `middle`.
    inlined: u64,
    /// Return address of a call in `cudaMalloc`, a runtime linked statically.
    runtime: u64,
}

const SOURCE: &str = r#"
volatile int sink;
__attribute__((noinline)) void callee(void) { sink++; }
static inline __attribute__((always_inline)) void leaf(void) {
    callee();
    __asm__ volatile(".globl after_leaf\nafter_leaf:");
}
__attribute__((noinline)) void middle(void) {
    leaf();
    sink++;
}
__attribute__((noinline)) void cudaMalloc(void) {
    callee();
    __asm__ volatile(".globl after_runtime\nafter_runtime:");
    sink++;
}
int main(void) { middle(); cudaMalloc(); return 0; }
"#;

fn compile(source: &Path, path: &Path, more: &[&str]) {
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut cc = Command::new(cc);
    let status = cc.args(["-g", "-O1", "-pie", "-fPIE"]).args(more).arg("-o").arg(path).arg(source).status();
    assert!(status.expect("a C compiler is needed").success());
}

fn build(dir: &Path) -> Program {
    let source = dir.join("app.c");
    std::fs::write(&source, SOURCE).unwrap();
    let path = dir.join("app");
    compile(&source, &path, &[]);
    let nm = Command::new("nm").arg(&path).output().unwrap();
    let symbols = String::from_utf8(nm.stdout).unwrap();
    let address = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(name)).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    Program { inlined: address("after_leaf"), runtime: address("after_runtime"), path }
}

/// A ledger whose one allocation was made in `middle`, through a static runtime.
fn put(dir: &Dir, program: &Program) -> String {
    let id = me();
    let bias = 0x5555_0000_0000;
    let mut composer = begin(id);
    module(&mut composer, program.path.to_str().unwrap(), bias, 0x10_0000, bias);
    let stack = StackSlot { allocs: 1, alloc_bytes: MIB, ..Default::default() };
    composer.stack(0, stack, &[bias + program.runtime, bias + program.inlined]);
    composer.slots([AllocSlot { stack: 1, bytes: MIB, kind: AllocKind::Device as u8, ..Default::default() }]);
    dir.put(id, composer).to_str().unwrap().to_owned()
}

/// A call site of a stripped program has no name. The view says so, and what brings the name.
#[test]
fn a_stripped_program_is_said_to_have_no_symbols() {
    let (dir, place) = (dir(), tempfile::tempdir().unwrap());
    let program = build(place.path());
    let bias = 0x5555_0000_0000;
    let said = || {
        let mut composer = leaking_at(me(), 120, &[bias + program.inlined]);
        module(&mut composer, program.path.to_str().unwrap(), bias, 0x10_0000, bias);
        dir.ok(&["leaks", dir.put(me(), dumped(composer)).to_str().unwrap()])
    };
    let named = said();
    assert!(named.contains("  who    leaf app.c:") && !named.contains("no symbols"), "{named}");
    compile(&program.path.with_extension("c"), &program.path, &["-s"]);
    let bare = said();
    assert!(bare.contains("  who    app+0x") && bare.contains("  but    its file has no symbols: "), "{bare}");
}

#[test]
fn inlined_functions_lines_and_static_runtimes_are_seen() {
    let dir = dir();
    let program = build(dir.path());
    put(&dir, &program);
    let report = dir.json(&["allocs", "--stacks"]);
    let row = &report["rows"][0];
    // The static runtime's frame is no call site; the inlined function is the innermost frame.
    assert_eq!(row["site"]["function"], "leaf");
    assert_eq!(row["site"]["line"], 5, "{row:#}");
    assert!(row["site"]["file"].as_str().unwrap().ends_with("app.c"));
    let names: Vec<_> =
        row["stack"].as_array().unwrap().iter().map(|frame| frame["function"].as_str().unwrap()).collect();
    assert_eq!(names, ["cudaMalloc", "leaf", "middle"]);
    assert_eq!(row["stack"][2]["line"], 9, "the outer frame is where it was inlined: {row:#}");
    let text = dir.ok(&["allocs"]);
    assert!(text.ends_with("  leaf app.c:5\n"), "one site with that name needs no caller: {text}");
}

#[test]
fn a_dump_explains_itself_where_the_program_is_gone() {
    let dir = dir();
    let program = build(dir.path());
    put(&dir, &program);
    let dump = dir.path().join("x.gpumem");
    let dump = dump.to_str().unwrap();
    dir.ok(&["dump", "-o", dump]);
    let before = dir.json(&["allocs", "--stacks"]);
    std::fs::remove_file(&program.path).unwrap();
    for args in [&["allocs", dump, "--stacks"][..], &["allocs", "--file", dump, "--stacks"]] {
        let after = dir.json(args);
        assert_eq!(after["rows"][0]["stack"], before["rows"][0]["stack"]);
        assert_eq!(after["process"]["life"], "dump");
    }
}

#[test]
fn a_file_that_took_the_modules_name_is_not_believed() {
    let dir = dir();
    let program = build(dir.path());
    put(&dir, &program);
    // The ledger says another build id than the file has.
    let id = me();
    let mut composer = begin(id);
    let path = composer.text(program.path.to_str().unwrap());
    composer.slots([gpumem_wire::layout::ModuleSlot {
        path,
        bias: 0x5555_0000_0000,
        start: 0x5555_0000_0000,
        end: 0x5555_0010_0000,
        build_id: [7; 32],
        build_id_len: 20,
        ..Default::default()
    }]);
    composer.stack(0, StackSlot::default(), &[0x5555_0000_0000 + program.inlined]);
    composer.slots([AllocSlot { stack: 1, bytes: MIB, kind: 1, ..Default::default() }]);
    dir.put(id, composer);
    let unnamed = || {
        let report = dir.json(&["allocs"]);
        assert_eq!(report["rows"][0]["key"], format!("app+{:#x}", program.inlined));
    };
    unnamed();
    compile(&dir.path().join("app.c"), &program.path, &["-Wl,--build-id=none"]);
    unnamed();
}

#[test]
fn without_symbols_no_file_is_opened() {
    let dir = dir();
    let program = build(dir.path());
    put(&dir, &program);
    let report = dir.json(&["allocs", "--no-symbols"]);
    assert_eq!(report["rows"][0]["key"], format!("app+{:#x}", program.runtime));
}
