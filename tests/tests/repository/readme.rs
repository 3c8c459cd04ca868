//! README.md and the guides say what is so: their commands run, their links lead somewhere.
//!
//! A block that is fenced as `sh tested` is run as it stands, by one shell per block, in order;
//! `sh tested background` goes on while the next blocks run; of `sh dry`, make only says what it
//! would do. `llama-server`, `python` and `sd` are scripts that start the demo.

use gpumem_tests::stage::Stage;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// The blocks of the README whose fence begins with this word: the rest of the fence, and the text.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            blocks.push((info.to_owned(), body.join("\n")));
        }
    }
    blocks
}

/// The documents at the top, and every one under docs/.
fn documents() -> Vec<PathBuf> {
    let at_the_top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    let mut documents: Vec<PathBuf> = at_the_top.iter().map(|name| root().join(name)).collect();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                documents.push(path);
            }
        }
    }
    documents
}

/// The names by which links lead to the headings of a document, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let outside = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | ' ');
    let anchor = |heading: &str| heading.chars().filter(kept).flat_map(char::to_lowercase).collect::<String>();
    outside.map(|line| anchor(line.trim_start_matches('#').trim()).replace(' ', "-")).collect()
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    assert!(documents.len() > 10, "{documents:?}");
    for path in documents {
        let text = std::fs::read_to_string(&path).unwrap();
        let local = |target: &&str| !target.starts_with("https://");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(local) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(to.exists(), "{} links to {target}", path.display());
            let known = || anchors(&std::fs::read_to_string(&to).unwrap());
            assert!(heading.is_empty() || known().iter().any(|it| it == heading), "{}: {target}", path.display());
        }
    }
}

/// The files of the source that a text names, with a folder, as `pool/free.rs`; `NOUN.rs` stands for several.
fn source_files(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || "/_.-".contains(letter)));
    let is_one = |word: &&str| word.ends_with(".rs") && word.contains('/') && !word.ends_with("/NOUN.rs");
    words.map(|word| word.trim_end_matches('.')).filter(is_one)
}

/// The drawings lead through files of the shim, whose folder they leave out.
#[test]
fn documents_name_files_that_exist() {
    let mut named = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for file in source_files(&text) {
            let exists = ["", "shim", "shim/src"].iter().any(|folder| root().join(folder).join(file).exists());
            assert!(exists, "{} names {file}, which there is not", path.display());
            named += 1;
        }
    }
    assert!(named > 50, "only {named} files are named");
}

/// All Rust sources below a folder, by their names.
fn sources(folder: PathBuf, all: &mut Vec<(String, String)>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(path, all);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            all.push((name, std::fs::read_to_string(path).unwrap()));
        }
    }
}

/// The names in the columns of tests of docs/reliability.md exist: functions, of which `…` stands for the rest of the
/// name, files of tests, claims and goals of make.
#[test]
fn what_was_tried_names_tests_that_exist() {
    let mut all = Vec::new();
    ["shim", "inspector", "kernels", "tests"].into_iter().for_each(|folder| sources(root().join(folder), &mut all));
    let claims = gpumem_tests::proof::CLAIMS;
    let exists = |name: &str| match name.strip_suffix('…') {
        _ if name.starts_with("make ") || name.contains('.') && claims.iter().any(|claim| claim.name == name) => true,
        _ if name.ends_with(".rs") => all.iter().any(|(file, _)| file == name),
        Some(begin) => all.iter().any(|(_, text)| text.contains(&format!("fn {begin}"))),
        None => all.iter().any(|(_, text)| text.contains(&format!("fn {name}("))),
    };
    let text = std::fs::read_to_string(root().join("docs/reliability.md")).unwrap();
    let (mut is_of_tests, mut named) = (false, 0);
    for line in text.lines() {
        let last = line.strip_suffix('|').and_then(|line| line.rsplit('|').next()).map(str::trim);
        is_of_tests = last.is_some_and(|last| is_of_tests || last == "test");
        for name in last.filter(|_| is_of_tests).unwrap_or_default().split('`').skip(1).step_by(2) {
            assert!(exists(name), "docs/reliability.md names {name}, which is no test");
            named += 1;
        }
    }
    assert!(named > 80, "only {named} tests are named");
}

/// A home, a PATH with `llama-server` and others in it, and the build that is being tested.
struct Reader {
    home: PathBuf,
    stage: Stage,
    running: Vec<Child>,
}

impl Reader {
    /// gpumem is installed in the home, as README.md's own command puts it there.
    fn new() -> Self {
        let stage = Stage::simulator().unwrap();
        static READERS: AtomicU32 = AtomicU32::new(0);
        let number = READERS.fetch_add(1, Relaxed);
        let home = stage.kit.join(format!("readme.{}.{number}", std::process::id()));
        for (folder, file) in [("bin", "gpumem"), ("lib", "libgpumem.so")] {
            let folder = home.join(".local").join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            symlink(stage.kit.join(file), folder.join(file)).unwrap();
        }
        std::fs::create_dir_all(home.join("bin")).unwrap();
        std::fs::DirBuilder::new().mode(0o700).create(home.join("ledgers")).unwrap();
        let libraries = stage.kit.join("stage");
        let script = |program: &str, args: &str| {
            let program = stage.program(program).unwrap();
            let (libraries, program) = (libraries.display(), program.display());
            format!("#!/bin/sh\nexport LD_LIBRARY_PATH='{libraries}'\nexec '{program}' {args}\n")
        };
        let demo = || script("demo", "--seconds 1 --hold 600");
        for (name, script) in
            [("llama-server", demo()), ("python", demo()), ("sd", demo()), ("server", script("server", "\"$@\""))]
        {
            let server = home.join("bin").join(name);
            std::fs::write(&server, script).unwrap();
            std::fs::set_permissions(&server, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { home, stage, running: Vec::new() }
    }

    fn shell(&self, script: &str) -> Command {
        let mut shell = Command::new("sh");
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            // This is a reader's shell: not cargo's, not make's, and with no settings of ours.
            let cargos = name.starts_with("CARGO") && name != "CARGO_HOME";
            if cargos || name.starts_with("GPUMEM_") || name.starts_with("MAKE") || name == "LD_LIBRARY_PATH" {
                shell.env_remove(&*name);
            }
        }
        let target = self.stage.kit.parent().unwrap();
        let profile = self.stage.kit.file_name().unwrap().to_string_lossy().into_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let (home, bin) = (self.home.display(), self.home.join("bin"));
        shell
            .args(["-e", "-c", script])
            .current_dir(if script.contains("make ") { root() } else { self.home.clone() })
            .stdin(Stdio::null())
            .env_remove("LD_PRELOAD")
            .env("HOME", &self.home)
            // Only this reader's servers are looked at, whatever else runs here under a preload.
            .env("GPUMEM_DIR", self.home.join("ledgers"))
            .env("PATH", format!("{home}/.local/bin:{}:{path}", bin.display()))
            // What is tested is what is built: make builds nothing here.
            .env("MAKEFLAGS", format!("PROFILE={profile} NO_BUILD=1 TARGET={}", target.display()));
        shell
    }

    fn run(&mut self, info: &str, script: &str) {
        let words: Vec<&str> = info.split_whitespace().collect();
        match words[..] {
            ["sh", "dry"] => {
                let dry = script.replace("make ", "make -n ");
                let said = self.shell(&dry).output().unwrap();
                assert!(
                    said.status.success() && !said.stdout.is_empty(),
                    "{dry}: {}",
                    String::from_utf8_lossy(&said.stderr)
                );
            }
            ["sh", "tested", "background"] => {
                // exec: what is killed at the end is the program, not a shell around it.
                let script = match script.split_once(' ') {
                    Some((first, rest)) if first.contains('=') => format!("export {first}\nexec {rest}"),
                    _ => format!("exec {script}"),
                };
                let log = std::fs::File::create(self.home.join("log")).unwrap();
                let child = self.shell(&script).stdout(log).stderr(Stdio::inherit()).spawn().unwrap();
                self.running.push(child);
                self.wait_for_ledger();
            }
            ["sh", "tested"] => {
                // With several servers, a command without a pid could mean each of them.
                let several = self.running.len().saturating_sub(1);
                for mut server in self.running.drain(..several) {
                    let _ = server.kill();
                    let _ = server.wait();
                }
                let mut said = self.shell(script).output().unwrap();
                // Other tests may take all processors for some seconds. A reader would ask again, too.
                let why = String::from_utf8_lossy(&said.stderr);
                if ["starved of processor time", "is under way: ask again"].iter().any(|text| why.contains(text)) {
                    std::thread::sleep(Duration::from_secs(5));
                    said = self.shell(script).output().unwrap();
                }
                let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
                assert!(said.status.success(), "the document's\n{script}\ngives {}:\n{out}{err}", said.status);
                assert!(!out.trim().is_empty(), "the document's\n{script}\nprints nothing");
            }
            _ => {}
        }
    }

    /// Until the server that was started last has printed its counts: it holds all it ever will.
    fn wait_for_ledger(&mut self) {
        let begin = Instant::now();
        while !std::fs::read_to_string(self.home.join("log")).unwrap().contains("holding") {
            let ended = self.running.last_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "the server ended by itself: {ended:?}");
            assert!(begin.elapsed() < Duration::from_secs(120), "the server holds nothing after two minutes");
            std::thread::sleep(Duration::from_millis(50));
        }
        let ledgers = std::fs::read_dir(self.home.join("ledgers")).map_or(0, Iterator::count);
        assert!(ledgers >= 1, "the server under the preload has no ledger");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for server in &mut self.running {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

#[test]
fn the_commands_run() {
    let text = readme();
    let blocks = blocks(&text);
    let tested = |word: &str| blocks.iter().filter(|(info, _)| info.split_whitespace().any(|it| it == word)).count();
    assert!(tested("tested") >= 4 && tested("dry") >= 1, "README.md has lost its tested blocks");
    let mut reader = Reader::new();
    for (info, script) in &blocks {
        reader.run(info, script);
    }
}

/// The commands of make that CONTRIBUTING.md tells people to type exist.
#[test]
fn the_commands_for_contributors_are_there() {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let dry: Vec<_> = blocks(&text).into_iter().filter(|(info, _)| info == "sh dry").collect();
    assert!(!dry.is_empty(), "CONTRIBUTING.md has lost its dry block");
    let mut reader = Reader::new();
    dry.iter().for_each(|(info, script)| reader.run(info, script));
}

/// Each guide's commands, with a home of its own. Most of the time they wait, so all guides are read at once.
#[test]
fn the_commands_of_the_guides_run() {
    let guides: Vec<_> = documents().into_iter().filter(|path| path.parent().unwrap().ends_with("guides")).collect();
    assert!(guides.len() >= 8, "{guides:?}");
    let texts = guides.iter().map(|guide| std::fs::read_to_string(guide).unwrap());
    let tested: Vec<_> = texts
        .map(|text| blocks(&text))
        .filter(|blocks| blocks.iter().any(|(info, _)| info.contains("tested")))
        .collect();
    assert!(tested.len() >= 4, "{} guides have commands", tested.len());
    std::thread::scope(|scope| {
        for blocks in &tested {
            scope.spawn(|| {
                let mut reader = Reader::new();
                blocks.iter().for_each(|(info, script)| reader.run(info, script));
            });
        }
    });
}
