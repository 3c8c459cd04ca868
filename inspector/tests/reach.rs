//! Programs that a preload does not reach, or would end: they run as they were, and `gpumem run` says why.

mod common;
use common::skipped::{installed, skipped};
use common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn run_warns_where_no_preload_reaches() {
    let dir = dir();
    let lib = library(dir.path());
    let (source, program) = (dir.path().join("s.c"), dir.path().join("static"));
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let built = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).output();
    if !built.is_ok_and(|built| built.status.success()) {
        skipped("the static C library is not installed");
        return;
    }
    let answer = run(&lib, &["--", program.to_str().unwrap()]);
    assert_eq!(answer.code, 3);
    assert!(answer.err.contains("statically linked"), "{}", answer.err);
}

/// Musl's loader ends a program for whose preload it lacks a library: such a program gets none.
#[test]
fn a_program_of_musls_runs_as_it_was() {
    let dir = dir();
    let lib = library(dir.path());
    let (source, program) = (dir.path().join("s.c"), dir.path().join("other"));
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    // A loader by musl's name, which is the machine's own.
    let (ours, loader) = (own_loader(), dir.path().join("ld-musl-x86_64.so.1"));
    std::os::unix::fs::symlink(ours, &loader).unwrap();
    let named = format!("-Wl,--dynamic-linker={}", loader.display());
    let built = Command::new("cc").arg(named).arg("-o").arg(&program).arg(&source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let answer = run(&lib, &["--", program.to_str().unwrap()]);
    assert_eq!(answer.code, 3, "{}", answer.err);
    assert!(answer.err.contains("musl") && answer.err.contains("it runs without gpumem"), "{}", answer.err);
    let shown = run(&lib, &["--print-env", "--", program.to_str().unwrap()]);
    assert!(!shown.out.contains("LD_PRELOAD"), "{}", shown.out);
    // Real ones, where there is a compiler for them.
    if let Some(cc) = installed("musl-gcc") {
        assert!(Command::new(cc).arg("-o").arg(&program).arg(&source).status().unwrap().success());
        let answer = run(&lib, &["--", program.to_str().unwrap()]);
        assert_eq!(answer.code, 3, "{}", answer.err);
    }
}

/// The loader of this machine's programs, which this test has, too.
fn own_loader() -> String {
    let said = Command::new("readelf").args(["-l", "-W"]).arg(std::env::current_exe().unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.split("interpreter: ").nth(1).and_then(|rest| rest.split(']').next()).expect("a loader").to_owned()
}

/// A library that asks for a C library of the future, as ours does where a program's is too old.
fn library_of_the_future(dir: &Path) -> PathBuf {
    let build = |arguments: &[&str]| {
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let built = Command::new(cc).current_dir(dir).args(["-shared", "-fPIC"]).args(arguments).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    };
    std::fs::write(dir.join("later.c"), "int later(void) { return 0; }\n").unwrap();
    std::fs::write(dir.join("later.map"), "GLIBC_2.99 { later; };\n").unwrap();
    std::fs::write(dir.join("lib.c"), "int later(void); int asks(void) { return later(); }\n").unwrap();
    build(&["-nostdlib", "-Wl,-soname,libc.so.6,--version-script=later.map", "-o", "later.so", "later.c"]);
    build(&["-o", "libgpumem.so", "lib.c", "later.so"]);
    dir.join("libgpumem.so")
}

/// The loader ends a program whose C library is older than what is preloaded: such a program gets none.
#[test]
fn a_program_with_an_old_c_library_runs_as_it_was() {
    let dir = dir();
    let lib = library_of_the_future(dir.path());
    let dies = Command::new("sh").args(["-c", "exit 3"]).env("LD_PRELOAD", &lib).output().unwrap();
    assert_eq!(dies.status.code(), Some(1), "the loader has changed");

    let answer = run(&lib, &["--", "sh", "-c", "exit 3"]);
    assert_eq!(answer.code, 3, "{}", answer.err);
    assert!(answer.err.contains("GLIBC_2.99") && answer.err.contains("it runs without gpumem"), "{}", answer.err);
    let shown = run(&lib, &["--print-env", "--", "sh"]);
    assert!(!shown.out.contains("LD_PRELOAD"), "{}", shown.out);
    // With a library that fits nothing is said.
    let fits = run(&library(dir.path()), &["--", "sh", "-c", "exit 3"]);
    assert_eq!((fits.code, fits.err.as_str()), (3, ""));
}

#[test]
fn doctor_names_what_the_c_library_lacks() {
    let dir = dir();
    let lib = library_of_the_future(dir.path());
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).env("GPUMEM_LIB", &lib).arg("doctor");
    let answer = answer(command);
    assert_eq!(answer.code, 1, "{}", answer.out);
    assert!(answer.out.contains("GLIBC_2.99") && answer.out.contains("built for this machine"), "{}", answer.out);
}
