//! Every way by which a program finds a function: whose function it is given, natively, preloaded
//! and with the preload disabled.

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, artifacts, client, command, program};
use gpumem_tests::skipped::{installed, skipped};
use std::collections::BTreeMap;
use std::fmt::Write;

/// One row of the table: symbol, base name, first version, flavour.
type Row = (&'static str, &'static str, u32, &'static str);

macro_rules! hooks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const HOOKS: &[Row] = &[$((stringify!($name), $base, $since, stringify!($flavour)),)*];
    };
}
gpumem_abi::driver_functions!(hooks);
macro_rules! thunks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        const THUNKS: &[Row] = &[$((stringify!($name), $base, $since, stringify!($flavour)),)*];
    };
}
gpumem_abi::graph_thunks!(thunks);

fn rows() -> impl Iterator<Item = &'static Row> {
    HOOKS.iter().chain(THUNKS)
}

const OURS: &str = "libgpumem.so";
const DRIVER: &str = "libcuda.so.1";

/// Answer of a lookup: status, query status, file, symbol.
type Answer = (i32, i32, String, String);

/// Returns the answer to each question.
fn answers(text: &str) -> BTreeMap<String, Answer> {
    let parse = |line: &str| {
        let (asked, given) = line.split_once(": ")?;
        let words: Vec<&str> = given.split(' ').collect();
        let answer = (words[0].parse().ok()?, words[1].parse().ok()?, words[2].to_owned(), words[3].to_owned());
        Some((asked.to_owned(), answer))
    };
    text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

fn is_ours(symbol: &str) -> bool {
    rows().any(|row| row.0 == symbol)
}

/// Asks natively and preloaded. Preloaded, each answer that is a function of the table is ours and
/// is the same function; all others are what they were. Returns how many were ours.
#[track_caller]
fn asked(questions: &str, env: &[(&str, &str)]) -> usize {
    let lookup = env.iter().fold(client("lookup").input(questions), |run, &(name, value)| run.env(name, value));
    let native = answers(&lookup.native().ok().out);
    let preloaded = answers(&lookup.preloaded().ok().out);
    assert!(!native.is_empty());
    assert_eq!(native.keys().collect::<Vec<_>>(), preloaded.keys().collect::<Vec<_>>());
    let mut ours = 0;
    for (asked, (rc, status, file, symbol)) in &native {
        let expected = if file == DRIVER && is_ours(symbol) { OURS } else { file };
        ours += usize::from(expected == OURS);
        let expected = (*rc, *status, expected.to_owned(), symbol.clone());
        assert_eq!(preloaded[asked], expected, "{asked}; natively {file} {symbol}");
    }
    ours
}

/// Versions at which anything about a base name changes, and those around them.
fn versions(base: &str) -> Vec<u32> {
    let since = rows().filter(|row| row.1 == base).map(|row| row.2);
    let mut versions: Vec<u32> = since.flat_map(|since| [since - 1, since, since + 10]).collect();
    versions.extend([0, 2000, 10000, 11000, 11040, 12000, 12080, 13000]);
    versions.sort_unstable();
    versions.dedup();
    versions
}

fn every_question(how: char) -> String {
    let mut questions = String::new();
    for base in rows().map(|row| row.1).collect::<std::collections::BTreeSet<_>>() {
        for version in versions(base) {
            for flags in 0..3 {
                writeln!(questions, "{how} {base} {version} {flags}").expect("a String");
            }
        }
    }
    questions
}

/// Every function of the table, at every version at which it changes, for every flag.
#[test]
fn every_row_at_every_version_and_flag() {
    let ours = asked(&every_question('g'), &[]);
    assert!(ours > 1000, "only {ours} answers were ours");
}

/// The same through the form of CUDA 11.3.
#[test]
fn every_row_through_the_old_get_proc_address() {
    assert!(asked(&every_question('o'), &[]) > 1000);
}

/// Each name of the table that the driver has, by dlsym in its handle and in the default scope.
#[test]
fn every_row_by_name() {
    let mut questions = String::new();
    for (name, ..) in rows() {
        writeln!(questions, "h {name}\nd {name}").expect("a String");
    }
    assert!(asked(&questions, &[]) > rows().count());
}

/// Names and versions that nobody knows yet fall through to the driver's own answer.
#[test]
fn unknown_names_and_versions_fall_through() {
    let mut questions = String::new();
    for base in ["cuMemAlloc", "cuGraphLaunch", "cuGraphFutureThing", "cuGetProcAddress", "cuInit", "cuMemAlloc_v9"] {
        for version in [-1, 1, 13010, 13999, 14001, 99000, i32::MAX] {
            for flags in [0, 1, 2, 3, 4, 1 << 30] {
                writeln!(questions, "g {base} {version} {flags}\no {base} {version} {flags}").expect("a String");
            }
        }
    }
    for name in
        ["cuMemAlloc_v9", "cuGraphFutureThing", "cuMemAlloc", "cu", "c", "cuda", "hip", "cuGraphLaunch_ptsz_ptsz"]
    {
        writeln!(questions, "h {name}\nd {name}\nn {name}").expect("a String");
    }
    asked(&questions, &[]);
    asked(&questions, &[("SIM_DRIVER_VERSION", "15000")]);
}

/// Names that only begin as the driver's do pass through dlsym untouched; so do all others.
#[test]
fn names_that_only_begin_with_cu() {
    let mut questions = String::new();
    for name in
        ["cudnnCreate", "cublasCreate_v2", "curl_easy_init", "cuserid", "cuddle", "high", "hippo", "strlen", "dlsym"]
    {
        for how in ["h", "d", "n"] {
            writeln!(questions, "{how} {name}").expect("a String");
        }
    }
    let lookup = client("lookup").input(questions);
    let (native, preloaded) = (lookup.native().ok(), lookup.preloaded().ok());
    // dlsym itself is ours, for whoever asks the default scope for it.
    let others =
        |text: &str| text.lines().filter(|line| !line.contains("dlsym")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(others(&preloaded.out), others(&native.out));
}

/// A library of the vendor finds the driver's own functions, the program finds ours.
#[test]
fn the_drivers_own_lookups_get_real_symbols() {
    let clients = artifacts().clients.display();
    let vendor = client("vendor").env("LD_LIBRARY_PATH", format!("{}:{clients}", artifacts().stage.display()));
    assert_eq!(vendor.native().ok().out, "libcuda.so.1 libcuda.so.1 libcuda.so.1 libcuda.so.1\n");
    assert_eq!(vendor.preloaded().ok().out, "libgpumem.so libgpumem.so libcuda.so.1 libcuda.so.1\n");
}

/// A bystander that interposes with dlsym(RTLD_NEXT) behaves as without the preload.
#[test]
fn bystander_dlsym_rtld_next() {
    let bystander = program("bystander");
    let (native, preloaded) = (bystander.native().ok(), bystander.preloaded().ok());
    assert_eq!((preloaded.out.as_str(), preloaded.err.as_str()), (native.out.as_str(), ""));
    assert!(!preloaded.dir.exists(), "no directory, no ledger");
}

/// Complete, and through which doors.
#[test]
fn complete_interception_names_its_doors() {
    let doors = |program: Program| {
        program.preloaded().ok().ledger().complete().gpumem("stats", &[])["process"]["doors"].clone()
    };
    assert_eq!(doors(program("driver_dlopen")), serde_json::json!(["dlsym", "proc-address"]));
    assert_eq!(doors(program("plugin")).as_array().expect("a list").last(), Some(&"runtime-export".into()));
    assert!(doors(program("driver")).to_string().contains("driver-export"));
}

/// Python that loads a runtime with ctypes, which is RTLD_LOCAL, and calls it.
#[test]
fn python_ctypes() {
    if installed("python3").is_none() {
        return;
    }
    let script = r#"
import ctypes, json
rt = ctypes.CDLL("libcudart.so.13")
rt.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
rt.cudaFree.argtypes = [ctypes.c_void_p]
held = []
for i in range(50):
    p = ctypes.c_void_p()
    assert rt.cudaMalloc(ctypes.byref(p), 1000 + i) == 0
    held.append(p)
assert rt.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 1 << 50) == 2
for p in held: assert rt.cudaFree(p) == 0
sizes = sum(1000 + i for i in range(50))
print(json.dumps({"kinds": {"device": {"allocs": 50, "frees": 50, "bytes": sizes}}}))
"#;
    let python = command("python3").args(["-c", script]);
    let (native, preloaded) = (python.native().ok(), python.preloaded().ok());
    assert_eq!((&preloaded.out, &preloaded.err), (&native.out, &native.err));
    preloaded.ledger().agrees_with(&preloaded.json()).complete().balanced();
}

/// A stub that exports cudaMalloc is called where it would be natively.
#[test]
fn stub_libraries_keep_their_place() {
    let stubbed = client("stubbed");
    let (native, preloaded) = (stubbed.native().ok(), stubbed.preloaded().ok());
    assert_eq!(native.out, "7777 0 0x5700b 0 0 1 calls 2\n");
    assert_eq!(preloaded.out, native.out);
    preloaded.ledger().sound().balanced();
}

/// A library is closed while another thread looks symbols up: the lookups have the answers they have natively,
/// disabled too, and nothing is read of what is there no more.
#[test]
fn a_library_closed_beside_lookups() {
    let clients = &artifacts().clients;
    let comes_and_goes = ["libtable.so", "libwrap.so", "libstub.so", "libnvidia-ask.so"].map(|lib| clients.join(lib));
    let closing = client("closing").arg("150").arg(clients.join("libcaller.so")).args(comes_and_goes);
    let native = closing.native().ok();
    for _ in 0..3 {
        assert_eq!(closing.clone().env("GPUMEM_DISABLE", "1").preloaded().ok().out, native.out);
    }
    for _ in 0..2 {
        assert_eq!(closing.preloaded().ok().out, native.out);
    }
}

/// The same under ThreadSanitizer, whose functions stand in for the C library's, in ours too: they are called by
/// nothing that runs while the loader's list is locked. Says so where the compiler has no such checker.
#[test]
fn a_library_closed_beside_lookups_under_a_thread_checker() {
    let scratch = Scratch::new();
    let (checked, clients) = (scratch.path().join("closing"), &artifacts().clients);
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/clients/closing.c");
    let mut compile = std::process::Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-fsanitize=thread", "-std=gnu11", "-O1", "-I", concat!(env!("CARGO_MANIFEST_DIR"), "/programs")]);
    let built = compile.arg("-o").arg(&checked).arg(tests).args(["-pthread", "-ldl"]).output();
    let libraries = ["libcaller.so", "libtable.so", "libwrap.so"].map(|lib| clients.join(lib));
    // The checker cannot see how code that it did not compile keeps its threads apart.
    let closing = command(&checked).arg("60").args(libraries).env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1");
    if !built.is_ok_and(|built| built.status.success()) || closing.native().code != 0 {
        return skipped("ThreadSanitizer is not installed", "package libtsan2");
    }
    // In one directory: the second has the first's ledger to look at.
    let closing = closing.dir(scratch.path().join("ledgers"));
    for _ in 0..3 {
        let ran = closing.preloaded().ok();
        assert_eq!((ran.out.as_str(), ran.err.as_str()), ("0 failed\n", ""));
    }
}

/// So it does in a constructor that runs before anything of the preload has.
#[test]
fn stub_libraries_keep_their_place_in_constructors() {
    let stubbed = client("ctor_stubbed");
    let (native, preloaded) = (stubbed.native().ok(), stubbed.preloaded().ok());
    assert_eq!(native.out, "calls 1 failed 0\n");
    assert_eq!(preloaded.out, native.out);
}

/// Disabled, programs that were linked to the exported names run as natively and leave nothing.
#[test]
fn disabled_programs_leave_nothing() {
    for name in ["driver", "graphs", "captures", "plugin", "firstuse"] {
        let disabled = program(name).env("GPUMEM_DISABLE", "1").preloaded().ok();
        assert_eq!(disabled.json()["failures"], 0);
        assert_eq!(disabled.ours(), [""; 0]);
        assert!(!disabled.dir.exists(), "{name} left something");
    }
}
