//! Others may leave any amount of data for a look around to find. The memory and the time of a look are bounded. It
//! leaves out what does not fit, and one line says so.

mod common;
use common::web::{Server, status};
use common::*;
use gpumem_wire::layout::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A look takes 2 s. Starting, printing, and a build that is not optimised, on a busy machine, come on top.
const IN_TIME: Duration = Duration::from_secs(12);
/// A look takes 64 MiB. What any command has come on top: its program, its threads' stacks.
const MOST_RESIDENT: u64 = 64 + 64;

struct Cost {
    took: Duration,
    resident_mib: u64,
}

/// An answer, with what it took.
fn measured(dir: &Dir, args: &[&str]) -> (Answer, Cost) {
    let mut command = Command::new("sh");
    let at = tempfile::NamedTempFile::new().unwrap();
    // The most memory that the command had, as the kernel tells it at its end.
    let program = gpumem().get_program().to_owned();
    command.args(["-c", "exec 3>\"$1\"; shift; exec \"$@\"", "sh"]).arg(at.path()).arg(program).args(args);
    command.env("GPUMEM_DIR", dir.path()).env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let child = command.spawn().unwrap();
    let pid = child.id();
    let watch = std::thread::spawn(move || {
        let mut most = 0;
        while let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/status")) {
            let Some(line) = text.lines().find_map(|line| line.strip_prefix("VmHWM:")) else { break };
            most = most.max(line.trim().split(' ').next().unwrap().parse::<u64>().unwrap());
            std::thread::sleep(Duration::from_millis(2));
        }
        most >> 10
    });
    let output = child.wait_with_output().unwrap();
    let took = begin.elapsed();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let answer = Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    (answer, Cost { took, resident_mib: watch.join().unwrap() })
}

fn in_budget(what: &str, cost: &Cost) {
    eprintln!("{what}: {:?}, {} MiB", cost.took, cost.resident_mib);
    assert!(cost.took < IN_TIME, "{what}: {:?}", cost.took);
    assert!(cost.resident_mib < MOST_RESIDENT, "{what}: {} MiB", cost.resident_mib);
}

/// A dead process's ledger with so many bytes of text.
fn put_long(dir: &Dir, number: u32, mib: usize) {
    let id = place(number);
    let mut ledger = begin(id);
    for n in 0..mib * 1024 / 60 {
        // A text that there is already would be there once.
        ledger.text(&format!("{n:0width$}", width = 60 << 10));
    }
    dir.put(id, ledger);
}

fn place(number: u32) -> gpumem_wire::place::ProcessId {
    gpumem_wire::place::ProcessId { pid: 0x3000_0000 + number, start_ticks: 1 }
}

#[test]
fn ledgers_of_any_size_are_looked_at_in_bounds() {
    let dir = dir();
    dir.put(me(), demo(me()));
    (0..12).for_each(|number| put_long(&dir, number, 16));
    (12..14).for_each(|number| put_long(&dir, number, 80));
    let (answer, cost) = measured(&dir, &["ps", "--json"]);
    in_budget("ps", &cost);
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let rows = report["processes"].as_array().unwrap();
    let live: Vec<_> = rows.iter().filter(|row| row["status"] == "running").collect();
    assert_eq!(live.len(), 1, "what runs is found: {report:#}");
    let large = rows.iter().filter(|row| row["status_text"].to_string().contains("too large to be read here"));
    assert_eq!(large.count(), 2, "{report:#}");
    // A page has the process that runs, and is there at once.
    let server = Server::start(&dir, &[]);
    let begin = Instant::now();
    let page = server.get("/metrics", "");
    assert!(begin.elapsed() < IN_TIME && page.contains(&format!("gpumem_up{{pid=\"{}\"", me().pid)), "{page}");
    assert!(server.resident_kib() >> 10 < MOST_RESIDENT, "{} KiB", server.resident_kib());
}

#[test]
fn names_without_number_are_looked_at_in_bounds() {
    let dir = dir();
    for number in 0..150_000 {
        File::create(dir.path().join(place(number).ledger_name())).unwrap();
    }
    let sleeper = Sleeper::start();
    dir.put(sleeper.id(), demo(sleeper.id()));
    for args in [&["ps"][..], &["doctor", "--all"], &["allocs"], &["clean", "--dry-run"]] {
        let (answer, cost) = measured(&dir, args);
        in_budget(&args.join(" "), &cost);
        assert!(!answer.err.contains("panicked"), "{args:?}: {}", answer.err);
        if args == ["ps"] {
            let said: Vec<_> = answer.err.lines().filter(|line| line.contains("left out")).collect();
            assert_eq!(said.len(), 1, "{:?}", answer.err);
            assert!(said[0].contains("because a look takes 64 MiB and 2 s at most"), "{said:?}");
            assert!(answer.out.contains("demo-server"), "what runs is shown");
        }
    }
    assert_eq!(dir.json(&["allocs"])["process"]["pid"], sleeper.id().pid);
    let server = Server::start(&dir, &[]);
    let begin = Instant::now();
    let page = server.get("/metrics", "");
    assert!(begin.elapsed() < IN_TIME && page.contains("gpumem_live_bytes{"), "{page}");
}

/// Maps a file of a long path tens of thousands of times, then waits.
const MAPPER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int n, char **words) {
    int file = open(words[1], O_RDWR);
    long most = atol(words[2]);
    for (long at = 0; at < most; at++)
        if (mmap(0, 4096, at % 2 ? PROT_READ : PROT_NONE, MAP_SHARED, file, 0) == MAP_FAILED) return 1;
    puts("ready");
    fflush(stdout);
    pause();
}
"#;

fn mapper(dir: &Path) -> std::path::PathBuf {
    let (source, program) = (dir.join("mapper.c"), dir.join("mapper"));
    std::fs::write(&source, MAPPER).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc).arg("-o").arg(&program).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success());
    program
}

/// A process whose ledger would lie in `dir`.
fn mapping(program: &Path, dir: &Path, file: &Path, mappings: u64, library: Option<&Path>) -> Sleeper {
    let mut command = Command::new(program);
    command.arg(file).arg(mappings.to_string()).stdout(Stdio::piped()).env("GPUMEM_DIR", dir);
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    Sleeper(child)
}

/// A file whose path is as long as one may be.
fn deep_file(dir: &Path) -> std::path::PathBuf {
    let deep = dir.join(["d".repeat(250).as_str(); 13].join("/"));
    std::fs::create_dir_all(&deep).unwrap();
    let file = deep.join("f".repeat(250));
    File::create(&file).unwrap().set_len(4096).unwrap();
    file
}

#[test]
fn a_process_with_a_ledger_is_found_without_its_mappings() {
    let (elsewhere, files) = (dir(), tempfile::tempdir().unwrap());
    let (program, file) = (mapper(files.path()), deep_file(files.path()));
    let many = mapping(&program, elsewhere.path(), &file, 60_000, None);
    elsewhere.put(many.id(), demo(many.id()));
    let mut command = gpumem();
    command.args(["ps", "--json"]).env_remove("GPUMEM_DIR");
    let report: serde_json::Value = serde_json::from_str(&answer(command).out).unwrap();
    let rows = report["processes"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["pid"] == many.id().pid && row["status"] == "running"), "{report:#}");
    assert!(!report["warnings"].to_string().contains("mappings of"), "{report:#}");
}

#[test]
fn mappings_without_number_are_looked_at_in_bounds() {
    let (dir, files) = (dir(), tempfile::tempdir().unwrap());
    let program = mapper(files.path());
    let file = deep_file(files.path());
    let hostile: Vec<_> = (0..4).map(|_| mapping(&program, dir.path(), &file, 60_000, None)).collect();
    // One with the library and many mappings, whose paths are as they usually are.
    let library = library(files.path());
    let short = files.path().join("short");
    File::create(&short).unwrap().set_len(4096).unwrap();
    let honest = mapping(&program, dir.path(), &short, 15_000, Some(&library));
    let mut last = serde_json::Value::Null;
    // A machine with much to do may not get to it in time.
    let is_found = (0..10).any(|_| {
        let (answer, cost) = measured(&dir, &["ps", "--json"]);
        in_budget("ps", &cost);
        last = serde_json::from_str(&answer.out).unwrap();
        let rows = last["processes"].as_array().unwrap();
        let said = last["warnings"].to_string();
        assert!(said.contains("the mappings of 4 processes left out") || rows.is_empty(), "{said}");
        rows.iter().any(|row| row["pid"] == honest.id().pid && row["status"] == "no-gpu-call")
    });
    assert!(is_found && hostile.len() == 4, "{last:#}");
}

/// A program whose table of symbols claims so many entries, stored as a hole.
fn claims(dir: &Path, entries: u64) -> String {
    let (source, program) = (dir.join("app.c"), dir.join(format!("app-{entries}")));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc).arg("-o").arg(&program).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success());
    let file = File::options().read(true).write(true).open(&program).unwrap();
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).unwrap();
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let (sections, count) = (word(&head[40..48]), u16::from_le_bytes([head[60], head[61]]));
    let end = file.metadata().unwrap().len().next_multiple_of(4096);
    for at in (0..u64::from(count)).map(|index| sections + index * 64) {
        let mut section = [0; 64];
        file.read_exact_at(&mut section, at).unwrap();
        // SHT_SYMTAB.
        if section[4..8] == [2, 0, 0, 0] {
            file.write_all_at(&end.to_le_bytes(), at + 24).unwrap();
            file.write_all_at(&(entries * 24).to_le_bytes(), at + 32).unwrap();
        }
    }
    file.set_len(end + entries * 24).unwrap();
    program.to_str().unwrap().to_owned()
}

fn put_module(dir: &Dir, id: gpumem_wire::place::ProcessId, path: &str, address: u64) {
    let bias = 0x5555_0000_0000;
    let mut ledger = begin(id);
    module(&mut ledger, path, bias, 0x1000_0000, bias);
    ledger.stack(0, StackSlot { allocs: 1, alloc_bytes: MIB, ..Default::default() }, &[bias + address]);
    ledger.slots([AllocSlot { stack: 1, bytes: MIB, kind: 1, context: 1, ..Default::default() }]);
    dir.put(id, ledger);
}

#[test]
fn a_table_of_symbols_without_end_costs_memory_to_a_bound_and_is_told() {
    let (dir, files) = (dir(), tempfile::tempdir().unwrap());
    put_module(&dir, me(), &claims(files.path(), 80_000_000), 0x1200);
    let (answer, cost) = measured(&dir, &["allocs"]);
    in_budget("allocs", &cost);
    assert!(answer.out.contains("app-80000000+0x"), "{}", answer.out);
    assert!(answer.err.contains("cannot be read") && answer.err.contains("app-80000000"), "{}", answer.err);
}

/// While one program's symbols are read that take long, pages come at once, and other programs get their names.
#[test]
fn a_page_waits_for_no_symbol() {
    let (dir, files) = (dir(), tempfile::tempdir().unwrap());
    let others = [Sleeper::start(), Sleeper::start()];
    put_module(&dir, others[0].id(), &claims(files.path(), 60_000_000), 0x1200);
    put_module(&dir, others[1].id(), "/proc/self/none", 0x1200);
    let server = Server::start(&dir, &[]);
    let mut longest = Duration::ZERO;
    for _ in 0..12 {
        let begin = Instant::now();
        let page = server.get("/metrics", "");
        assert_eq!(status(&page), 200);
        longest = longest.max(begin.elapsed());
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    let page = server.named();
    assert!(page.contains("site=\"none+0x1200\"") && page.contains("site=\"app-60000000+0x1200\""), "{page}");
}

/// An unstripped library with as many symbols as the largest have, each of which is found.
#[test]
fn every_name_of_a_large_table_is_found() {
    let (dir, files) = (dir(), tempfile::tempdir().unwrap());
    const FUNCTIONS: usize = 400_000;
    let (source, library) = (files.path().join("many.s"), files.path().join("libmany.so"));
    let mut text = String::from(".text\n");
    for n in 0..FUNCTIONS {
        use std::fmt::Write;
        writeln!(text, ".globl _ZN4many8function{0}{n}Ev\n.type _ZN4many8function{0}{n}Ev,@function\n_ZN4many8function{0}{n}Ev: .zero 16\n.size _ZN4many8function{0}{n}Ev,16", "").unwrap();
    }
    std::fs::write(&source, text.replace("8function", "14function")).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc).args(["-shared", "-nostdlib", "-o"]).arg(&library).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success());
    let nm = Command::new("nm").arg(&library).output().expect("nm is needed");
    let nm = String::from_utf8(nm.stdout).unwrap();
    let address = |n: usize| {
        let name = format!("function{n}Ev");
        let line = nm.lines().find(|line| line.ends_with(&name)).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let id = me();
    let (bias, mut ledger) = (0x5555_0000_0000, begin(id));
    module(&mut ledger, library.to_str().unwrap(), bias, 0x1000_0000, bias);
    let numbers = [100_000, 123_456, 234_567, 399_999];
    for (at, n) in numbers.into_iter().enumerate() {
        ledger.stack(at, StackSlot { allocs: 1, alloc_bytes: MIB, ..Default::default() }, &[bias + address(n) + 8]);
        ledger.slots([AllocSlot { stack: at as u32 + 1, bytes: MIB, kind: 1, ..Default::default() }]);
    }
    dir.put(id, ledger);
    let text = dir.ok(&["allocs"]);
    for n in numbers {
        assert!(text.contains(&format!("many::function{n} (libmany.so)")), "{n}: {text}");
    }
}
