//! The real libamdhip64 of Debian 12 (ROCm 5.2.3), which loads on a machine without a GPU: the
//! preload takes its versioned names, does not recurse, passes its errors on, and leaves nothing.

#[path = "hip/support.rs"]
#[allow(dead_code)] // The simulated one is for the other tests.
mod support;

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, command};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const SONAME: &str = "libamdhip64.so.5";

/// Says something even where a test's output is kept back: that it passed is not all there is to know.
fn say(what: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "hip_real: {what}");
}

/// Where the loader finds the library; says so when it is not there.
fn installed() -> Option<PathBuf> {
    let dirs = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/opt/rocm/lib"];
    let found = dirs.iter().map(|dir| Path::new(dir).join(SONAME)).find(|path| path.exists());
    if found.is_none() {
        say(&format!("skipped: {SONAME} not installed"));
    }
    found
}

/// A program linked to the real library, in a folder that goes with the test.
fn linked(library: &Path, folder: &Scratch, source: &Path) -> Program {
    let out = folder.path().join(source.file_stem().expect("a name"));
    let dir = format!("-L{}", library.parent().expect("a folder").display());
    support::compile(source, &out, &[&dir, &format!("-l:{SONAME}"), "-Wl,--allow-shlib-undefined", "-ldl"]);
    command(out).env("LD_LIBRARY_PATH", library.parent().expect("a folder"))
}

fn codes() -> PathBuf {
    repository().join("tests/tests/hip/codes.c")
}

/// Each reference of the program names its version: hipMalloc@hip_4.2.
#[test]
fn programs_refer_to_versioned_names() {
    let Some(library) = installed() else { return };
    let folder = Scratch::new();
    linked(&library, &folder, &codes()).native().ok();
    let names = Command::new("nm").arg("-D").arg(folder.path().join("codes")).output().expect("nm runs");
    let names = String::from_utf8_lossy(&names.stdout);
    for name in ["hipMalloc@hip_4.2", "hipGraphInstantiate@hip_4.3", "hipMallocAsync@hip_5.1"] {
        assert!(names.contains(name), "{name} in {names}");
    }
}

/// The versioned names are ours under the preload, and every answer is the library's own.
#[test]
fn errors_come_through_unchanged() {
    let Some(library) = installed() else { return };
    let folder = Scratch::new();
    let run = linked(&library, &folder, &codes());
    let native = run.clone().arg(SONAME).native().ok();
    let preloaded = run.arg("libgpumem.so").preloaded().ok();
    assert_eq!((&native.out, &native.err), (&preloaded.out, &preloaded.err));
    if native.out.starts_with("hipGetDeviceCount(&n): 100 ") {
        assert!(native.out.contains("hipMalloc(&p, 64): 101 hipErrorInvalidDevice 0x5ca1ab1e\n"), "{}", native.out);
        assert!(!preloaded.dir.exists(), "no GPU, no ledger: {:?}", preloaded.dir);
    } else {
        say("this machine has a GPU that HIP can use: what it left is not checked here");
    }
}

/// Programs that were made for a device say that there is none, and leave nothing.
#[test]
fn programs_end_as_without_the_preload() {
    let Some(library) = installed() else { return };
    let folder = Scratch::new();
    for name in ["hip_basic.c", "hip_graphs.c"] {
        let run = linked(&library, &folder, &repository().join("tests/programs").join(name));
        let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
        assert_eq!((native.json(), &native.err), (preloaded.json(), &preloaded.err));
        if native.json()["device"] == false {
            assert!(!preloaded.dir.exists(), "{name} left {:?}", preloaded.dir);
        }
    }
}
