//! docs/guides/examples.md: a user who types its commands sees the output that the guide shows. The commands that `doctor`
//! prints make the memory flat when they are pasted.
//!
//! The words without digits of each line of the guide have to stand in one line of the answer, in the same order.

use gpumem_tests::harness::run::{Running, Scratch, wait_for};
use gpumem_tests::harness::{artifacts, command, program};
use gpumem_tests::python::interpreters;
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command of the guide, and the lines below it.
struct Typed {
    line: String,
    says: Vec<String>,
}

/// The commands of the part of the guide that begins with this heading.
fn commands(heading: &str) -> Vec<Typed> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("docs/guides/examples.md")).expect("the guide");
    let (_, part) = text.split_once(&format!("\n## {heading}")).unwrap_or_else(|| panic!("no part {heading}"));
    let part = part.split("\n## ").next().unwrap_or_default();
    let mut all: Vec<Typed> = Vec::new();
    for block in part.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap_or_default().lines() {
            match line.strip_prefix("$ ") {
                Some(line) => all.push(Typed { line: line.to_owned(), says: Vec::new() }),
                None => all.last_mut().expect("a command first").says.push(line.to_owned()),
            }
        }
    }
    assert!((2..=3).contains(&all.len()), "{heading}: {} commands", all.len());
    all
}

/// The files on the reader's disk: the programs of the guide, under the guide's names.
struct Reader {
    home: Scratch,
}

impl Reader {
    fn new() -> Self {
        let home = Scratch::new();
        let clients = &artifacts().clients;
        let programs = [
            ("gpumem", artifacts().gpumem.clone()),
            ("leak", clients.join("leak")),
            ("prefill", artifacts().programs.join("stranded_pool")),
            ("train.py", Path::new(env!("CARGO_MANIFEST_DIR")).join("python/train.py")),
        ];
        for (name, file) in programs {
            symlink(file, home.path().join(name)).expect("a link");
        }
        let script = |name: &str, text: String| {
            let path = home.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, all).expect("its mode");
        };
        script("server", format!("exec '{}' graphs", clients.join("leak").display()));
        if let Some(python) = interpreters().first() {
            script("python", format!("exec '{}' \"$@\"", python.display()));
        }
        Self { home }
    }

    /// The line that starts a program, as it stands.
    fn starts(&self, line: &str) -> Running {
        assert!(line.starts_with("gpumem run "), "{line}");
        let home = self.home.path();
        let path = format!("{}:{}", home.display(), std::env::var("PATH").unwrap_or_default());
        let shell = command("sh").args(["-c".into(), format!("cd '{}' && exec {line}", home.display())]);
        let shell = shell.dir(home.join("ledgers")).env("GPUMEM_DIR", home.join("ledgers")).env("PATH", path);
        // A sample each 20 ms, so that a second is enough.
        let shell =
            shell.env("GPUMEM_GROWTH_INTERVAL", "20ms").env("BACKWARD", artifacts().clients.join("libbackward.so"));
        shell.waits().start(false)
    }

    /// Types a line, with the number of the process in place of PID. Returns the answer.
    fn types(&self, line: &str, running: &Running) -> String {
        let mut shell = Command::new("sh");
        let path = format!("{}:{}", self.home.path().display(), std::env::var("PATH").unwrap_or_default());
        shell.args(["-c", &line.replace("PID", &running.pid().to_string())]).env("PATH", path);
        shell.env_remove("LD_PRELOAD").env("GPUMEM_DIR", &running.dir);
        let done = shell.output().expect("a shell");
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
    }

    /// Types a command until all is said that the guide shows: how many samples there are depends on the machine.
    fn follows(&self, typed: &Typed, running: &Running) -> String {
        let mut said = String::new();
        for _ in 0..200 {
            said = self.types(&typed.line, running);
            if typed.says.iter().all(|line| says(&said, line)) {
                return said;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        let missing: Vec<_> = typed.says.iter().filter(|line| !says(&said, line)).collect();
        panic!("{}\nlacks {missing:#?}:\n{said}", typed.line);
    }
}

/// True if a line of an answer has the words of a line of the guide.
fn says(answer: &str, line: &str) -> bool {
    let counts = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit()) && *word != "PID";
    let words: Vec<&str> = line.split_whitespace().filter(counts).collect();
    answer.lines().any(|said| {
        let mut rest = said.split_whitespace();
        words.iter().all(|word| rest.any(|other| other == *word))
    })
}

#[test]
fn words_are_found_in_one_line_and_in_order() {
    let answer = "  who    block leak.c:13 ← remember leak.c:18\n  next   gpumem allocs 17 --by stack";
    assert!(
        says(answer, "who block leak.c:99 ← remember leak.c:1") && says(answer, "next gpumem allocs PID --by stack")
    );
    assert!(!says(answer, "who remember ← block") && !says(answer, "who next"));
}

/// The command behind `run:`, in the finding with these words.
fn cure(doctor: &str, finding: &str) -> String {
    let mut lines = doctor.lines().skip_while(|line| !line.contains(finding)).skip(1);
    let next = lines.next().unwrap_or_else(|| panic!("no finding {finding}: {doctor}"));
    next.trim().strip_prefix("run: ").unwrap_or_else(|| panic!("no command: {doctor}")).to_owned()
}

/// The README leads here: it has the first two commands, and names the guide.
#[test]
fn the_readme_has_the_first_commands() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("the README");
    for part in ["\ngpumem run -- ", "\ngpumem leaks\n", "gpumem doctor PID", "docs/guides/examples.md"] {
        assert!(readme.contains(part), "README.md has lost {part:?}");
    }
}

#[test]
fn a_c_program() {
    let reader = Reader::new();
    let [run, rest @ ..] = &commands("A C program")[..] else { panic!("commands") };
    let running = reader.starts(&run.line);
    running.says("serving");
    rest.iter().for_each(|typed| drop(reader.follows(typed, &running)));
    running.finish().ok();
}

#[test]
fn a_pytorch_program_and_its_backward_pass() {
    if interpreters().is_empty() {
        return;
    }
    let reader = Reader::new();
    let [run, rest @ ..] = &commands("A PyTorch program")[..] else { panic!("commands") };
    let running = reader.starts(&run.line);
    running.says("training");
    for typed in rest {
        let said = reader.follows(typed, &running);
        // No line of Python is blamed for what the backward pass keeps.
        let gradient = said.lines().filter(|line| line.contains("keep_gradient"));
        assert!(gradient.clone().count() > 0 && gradient.clone().all(|line| !line.contains("train.py")), "{said}");
    }
    running.finish().ok();
}

fn stats(running: &Running) -> Value {
    running.gpumem(&["stats", &running.pid().to_string()])
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("no number: {of}"))
}

#[test]
fn a_server_whose_graphs_grow_is_flat_after_the_cure() {
    let reader = Reader::new();
    let [run, doctor, set] = &commands("A server whose graphs grow")[..] else { panic!("commands") };
    let running = reader.starts(&run.line);
    running.says("serving");
    let line = cure(&reader.follows(doctor, &running), "graphs of remember_graph");
    assert_eq!(line, set.line.replace("PID", &running.pid().to_string()));
    // Its graphs grow beyond the bound of the cure; natively there is one for each request.
    wait_for("many graphs", || number(&stats(&running)["cache"]["real_execs"]) > 520);
    assert!(says(&reader.types(&line, &running), &set.says[0]));
    wait_for("the bound", || number(&stats(&running)["cache"]["real_execs"]) <= 512);
    let first = stats(&running);
    let came = |now: &Value| number(&now["cache"]["handles"]) - number(&first["cache"]["handles"]);
    wait_for("more graphs", || came(&stats(&running)) >= 100);
    let last = stats(&running);
    let cache = &last["cache"];
    assert!(number(&cache["real_execs"]) <= 512, "{cache:#}");
    let grown = |name: &str| number(&cache[name]).saturating_sub(number(&first["cache"][name]));
    let each = number(&first["cache"]["real_bytes_estimated"]) / 512;
    assert!(grown("real_bytes_estimated") < 2 * each, "real execs are no more than they were: {cache:#}");
    assert!(grown("source_bytes") < each * came(&last) / 5, "what stands for the others is little: {cache:#}");
    running.finish().ok();
}

#[test]
fn a_pool_that_strands_is_flat_after_the_cure() {
    let reader = Reader::new();
    let [run, doctor, set] = &commands("A pool that strands")[..] else { panic!("commands") };
    let running = reader.starts(&format!("{} 48 wait", run.line));
    running.says("half");
    let line = cure(&reader.follows(doctor, &running), "stranded");
    assert_eq!(line, set.line.replace("PID", &running.pid().to_string()));
    assert!(says(&reader.types(&line, &running), &set.says[0]));
    let half = number(&stats(&running)["devices"][0]["tracked_bytes"]);
    let ran = running.finish().ok();
    let device = &ran.ledger().gpumem("stats", &[])["devices"][0];
    let largest = number(&ran.json()["largest"]);
    let natively = program("stranded_pool").args(["48", "plain"]).native().ok();
    assert!(number(&natively.json()["pool_peak"]) > 2 * half, "natively it doubles: {}", natively.out);
    // A buffer of the program's own is replaced by a larger one meanwhile.
    assert!(number(&device["peak_bytes"]) <= half + 2 * largest, "half {half}: {device:#}");
}
