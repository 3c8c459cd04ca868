//! The real libamdhip64, of whatever release is installed, on a machine without a GPU: the preload takes its versioned
//! names, does not recurse, passes its errors on, and leaves nothing.

use gpumem_tests::harness::hip;

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, command};
use gpumem_tests::skipped;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const SONAMES: [&str; 3] = ["libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7"];

/// Says something even where a test's output is kept back: that it passed is not all there is to know.
fn say(what: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "hip_real: {what}");
}

/// One release, where the loader finds it.
struct Library {
    soname: &'static str,
    path: PathBuf,
}

/// Every release that is installed; says so when there is none.
fn installed() -> Vec<Library> {
    let dirs = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/opt/rocm/lib"];
    let at = |soname: &'static str| {
        let path = dirs.iter().map(|dir| Path::new(dir).join(soname)).find(|path| path.exists())?;
        Some(Library { soname, path })
    };
    let found: Vec<Library> = SONAMES.into_iter().filter_map(at).collect();
    if found.is_empty() {
        skipped::skipped("libamdhip64.so.5, .6 or .7 is not installed", "package libamdhip64-5");
    }
    found
}

impl Library {
    fn dir(&self) -> &Path {
        self.path.parent().expect("a folder")
    }

    /// A program linked to it, in a folder that goes with the test.
    fn linked(&self, folder: &Scratch, source: &Path) -> Program {
        let out = folder.path().join(source.file_stem().expect("a name"));
        let (dir, name) = (format!("-L{}", self.dir().display()), format!("-l:{}", self.soname));
        hip::compile(source, &out, &[&dir, &name, "-Wl,--allow-shlib-undefined", "-ldl"]);
        command(out).env("LD_LIBRARY_PATH", self.dir())
    }

    /// Each symbol that it exports, with its version.
    fn symbols(&self) -> Vec<(String, String)> {
        let said = Command::new("nm").args(["-D", "--defined-only"]).arg(&self.path).output().expect("nm runs");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let names = said.lines().filter_map(|line| line.rsplit(' ').next()?.split_once("@@"));
        names.filter(|(_, version)| version.starts_with("hip_")).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
    }
}

fn source(name: &str) -> PathBuf {
    repository().join("tests/programs/hip").join(name)
}

/// Names that are ours under the preload.
fn ours() -> Vec<&'static str> {
    let mut all = Vec::new();
    macro_rules! hooks {
        ($($name:ident => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => { all.extend([$(stringify!($name)),*]); };
    }
    gpumem_abi::hip_functions!(hooks);
    macro_rules! thunks {
        ($($name:ident ($($arg:ident),*);)*) => { all.extend([$(stringify!($name)),*]); };
    }
    gpumem_abi::hip_graph_thunks!(thunks);
    all
}

/// Each reference of the program names its version: hipMalloc@hip_4.2.
#[test]
fn programs_refer_to_versioned_names() {
    for library in installed() {
        let folder = Scratch::new();
        library.linked(&folder, &source("codes.c")).native().ok();
        let names = Command::new("nm").arg("-D").arg(folder.path().join("codes")).output().expect("nm runs");
        let names = String::from_utf8_lossy(&names.stdout);
        for name in ["hipMalloc@hip_4.2", "hipGraphInstantiate@hip_4.3", "hipMallocAsync@hip_5.1"] {
            assert!(names.contains(name), "{name} in {names}");
        }
    }
}

/// Every symbol of the library, by name and by version: the hook if there is a row, and the library's own otherwise.
#[test]
fn every_symbol_is_ours_or_its_own() {
    for library in installed() {
        let folder = Scratch::new();
        let symbols = library.symbols();
        assert!(symbols.len() > 400, "{}: {} symbols", library.soname, symbols.len());
        let asked: String = symbols.iter().map(|(name, version)| format!("{name} {version}\n")).collect();
        let out = folder.path().join("symbols");
        hip::compile(&source("symbols.c"), &out, &["-ldl"]);
        let run = command(out).arg(&library.path).env("LD_LIBRARY_PATH", library.dir()).input(asked);
        let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
        let ours = ours();
        let mut taken = 0;
        for ((name, _), (before, after)) in symbols.iter().zip(native.out.lines().zip(preloaded.out.lines())) {
            assert_eq!(before.split(' ').filter(|word| word.starts_with("libamdhip64.so")).count(), 2, "{before}");
            let is_ours = ours.contains(&name.as_str());
            let expected = if is_ours { format!("{name} libgpumem.so libgpumem.so") } else { before.to_owned() };
            assert_eq!(after, expected, "{}", library.soname);
            taken += usize::from(is_ours);
        }
        assert_eq!(preloaded.out.lines().count(), symbols.len());
        assert!(taken > 100, "{taken}");
        say(&format!("{}: {taken} of {} symbols are ours", library.path.display(), symbols.len()));
    }
}

/// The way and the code of an answer of `entry.c`.
fn answer(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.nth(2)?))
}

/// Every symbol once more, and a name that is none, by each function of the library that hands out others, with each flag:
/// the same answer as natively, and the hook in place of a function that has one.
#[test]
fn every_lookup_by_the_library_is_ours_or_its_own() {
    for library in installed() {
        let folder = Scratch::new();
        let symbols = library.symbols();
        let asked: String = symbols.iter().map(|(name, _)| format!("{name}\n")).collect();
        let out = folder.path().join("entry");
        hip::compile(&source("entry.c"), &out, &["-ldl"]);
        let run = command(out).arg(&library.path).env("LD_LIBRARY_PATH", library.dir());
        let run = run.input(asked + "hipNoSuchFunction\n");
        let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
        let ours = ours();
        let mut taken = 0;
        let expected: Vec<String> = native
            .out
            .lines()
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let [way, flags, name, code, file, function] = words[..] else { panic!("{line}") };
                let is_ours = file.starts_with("libamdhip64.so") && ours.contains(&function);
                taken += usize::from(is_ours);
                let file = if is_ours { "libgpumem.so" } else { file };
                format!("{way} {flags} {name} {code} {file} {function}")
            })
            .collect();
        for (found, expected) in preloaded.out.lines().zip(&expected) {
            assert_eq!(found, expected, "{}", library.soname);
        }
        assert_eq!(preloaded.out.lines().count(), expected.len());
        // Without a card the library refuses each of them.
        let answers: BTreeSet<(&str, &str)> = native.out.lines().filter_map(answer).collect();
        say(&format!("{}: {answers:?}, {} lookups, {taken} of them ours", library.soname, expected.len()));
    }
}

/// The versioned names are ours under the preload, and every answer is the library's own.
#[test]
fn errors_come_through_unchanged() {
    for library in installed() {
        let folder = Scratch::new();
        let run = library.linked(&folder, &source("codes.c"));
        let native = run.clone().arg(library.soname).native().ok();
        let preloaded = run.arg("libgpumem.so").preloaded().ok();
        assert_eq!((&native.out, &native.err), (&preloaded.out, &preloaded.err));
        if native.out.starts_with("hipGetDeviceCount(&n): 100 ") {
            let codes = ["101 hipErrorInvalidDevice", "100 hipErrorNoDevice"];
            let answers = codes.map(|code| format!("hipMalloc(&p, 64): {code} 0x5ca1ab1e\n"));
            assert!(answers.iter().any(|answer| native.out.contains(answer)), "{}", native.out);
            assert!(!preloaded.dir.exists(), "no GPU, no ledger: {:?}", preloaded.dir);
        } else {
            say("this machine has a GPU that HIP can use: what it left is not checked here");
        }
    }
}

/// The library's references to names of its own, as the loader binds them: the name, and the file that it was bound to.
fn own_bindings(run: &Program, folder: &Scratch, preload: bool) -> BTreeSet<(String, String)> {
    let output = folder.path().join(if preload { "preloaded" } else { "native" });
    let run = run.clone().env("LD_BIND_NOW", "1").env("LD_DEBUG", "bindings").env("LD_DEBUG_OUTPUT", &output);
    let pid = run.start(preload).finish().ok().pid;
    let said = std::fs::read(format!("{}.{pid}", output.display())).expect("the loader says what it binds");
    let name_of = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let bound = |line: &str| {
        let (from, rest) = line.split_once("binding file ")?.1.split_once(" [0] to ")?;
        let (to, symbol) = rest.split_once(" [0]: normal symbol `")?;
        let symbol = symbol.split_once('\'')?.0;
        (name_of(from).starts_with("libamdhip64.so") && symbol.starts_with("hip"))
            .then(|| (symbol.to_owned(), name_of(to)))
    };
    String::from_utf8_lossy(&said).lines().filter_map(bound).collect()
}

/// The library refers to a few of its own functions by name. Those that have a hook come to the hook, which passes on what
/// the library itself calls (`calls_out_of_the_runtime_itself_are_not_the_programs`): the program's answers are those that
/// it has natively. All others stay in the library.
#[test]
fn the_librarys_references_to_itself_go_to_hooks_or_stay() {
    for library in installed() {
        let folder = Scratch::new();
        let run = library.linked(&folder, &source("codes.c")).arg(library.soname);
        let native = own_bindings(&run, &folder, false);
        assert!(!native.is_empty() && native.iter().all(|(_, file)| file.starts_with("libamdhip64.so")), "{native:?}");
        let run = library.linked(&folder, &source("codes.c")).arg("libgpumem.so");
        let ours = ours();
        let expected = native.iter().cloned().map(|(name, file)| {
            let file = if ours.contains(&name.as_str()) { "libgpumem.so".to_owned() } else { file };
            (name, file)
        });
        let preloaded = own_bindings(&run, &folder, true);
        assert_eq!(preloaded, expected.collect());
        let to_us: Vec<_> = preloaded.iter().filter(|(_, file)| file == "libgpumem.so").map(|(name, _)| name).collect();
        say(&format!("{}: {} of its own references, to hooks: {to_us:?}", library.path.display(), native.len()));
    }
}

/// Programs that were made for a device say that there is none, and leave nothing.
#[test]
fn programs_end_as_without_the_preload() {
    for library in installed() {
        let folder = Scratch::new();
        for name in ["hip_basic.c", "hip_graphs.c"] {
            let run = library.linked(&folder, &repository().join("tests/programs").join(name));
            let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
            assert_eq!((native.json(), &native.err), (preloaded.json(), &preloaded.err));
            if native.json()["device"] == false {
                assert!(!preloaded.dir.exists(), "{name} left {:?}", preloaded.dir);
            }
        }
    }
}

/// A program that hipcc compiled registers its device code before main begins, and ends as it does natively.
#[test]
fn compiled_programs_register_their_code() {
    let libraries = installed();
    let Some(library) = libraries.first() else { return };
    let folder = Scratch::new();
    let out = folder.path().join("fat");
    let Some(hipcc) = skipped::installed("hipcc") else { return };
    let said = Command::new(hipcc).args(["--offload-arch=gfx90a", "-o"]).arg(&out).arg(source("fat.hip")).output();
    let said = said.expect("hipcc runs");
    assert!(said.status.success(), "hipcc: {}", String::from_utf8_lossy(&said.stderr));
    let names = Command::new("nm").arg("-D").arg(&out).output().expect("nm runs");
    assert!(String::from_utf8_lossy(&names.stdout).contains("__hipRegisterFatBinary@hip_4.2"));
    let run = command(&out).env("LD_LIBRARY_PATH", library.dir());
    let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
    assert_eq!((&native.out, &native.err), (&preloaded.out, &preloaded.err));
    if native.out.starts_with("count 100 ") {
        assert!(!preloaded.dir.exists(), "no GPU, no ledger: {:?}", preloaded.dir);
    } else {
        preloaded.ledger().sound().complete();
    }
}
