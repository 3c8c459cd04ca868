//! Programs that a preload does not reach, or would end: they run as they were, and `gpumem run` says why.

mod common;
use common::skipped::{ROOT, installed, skipped};
use common::*;
use gpumem_wire::processor;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
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
        skipped("the static C library is not installed", "package libc6-dev");
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

/// A library that says that it was built to use this feature, and ends every program that it is loaded into.
fn library_that_needs(dir: &Path, bit: usize) -> PathBuf {
    let (source, library) = (dir.join("needs.c"), dir.join("libgpumem.so"));
    let text = "#include <stdlib.h>\n\
                const unsigned long long needs __attribute__((used, section(\"SECTION\"))) = 1ULL << BIT;\n\
                __attribute__((constructor)) static void begin(void) { abort(); }\n";
    let text = text.replace("SECTION", processor::SECTION).replace("BIT", &bit.to_string());
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// A library that was built for another processor ends a program by SIGILL: the program gets none.
#[test]
fn a_library_for_another_processor_is_not_preloaded() {
    let dir = dir();
    let Some(missing) = processor::lacking_here(u64::MAX) else {
        skipped("the processor has every feature that a compiler can be told to use", "an older processor");
        return;
    };
    let bit = |name: &str| processor::FEATURES.iter().position(|feature| feature.name == name).unwrap();
    let lib = library_that_needs(dir.path(), bit(missing));
    let answer = run(&lib, &["--", "sh", "-c", "exit 3"]);
    assert_eq!(answer.code, 3, "{}", answer.err);
    let said =
        format!("was built to use {missing}, which this processor does not have; the command runs without gpumem");
    assert!(answer.err.contains(&said), "{}", answer.err);
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).env("GPUMEM_LIB", &lib).arg("doctor");
    let answer = common::answer(command);
    assert_eq!(answer.code, 1, "{}", answer.out);
    let said = format!("does not load: it was built to use {missing}, which this processor does not have");
    assert!(answer.out.contains(&said), "{}", answer.out);
    // What the processor has, it has for this library, too; then the loader begins it.
    let has = processor::FEATURES.iter().find(|feature| processor::lacking_here(1 << bit(feature.name)).is_none());
    if let Some(has) = has {
        let lib = library_that_needs(dir.path(), bit(has.name));
        assert_eq!(run(&lib, &["--", "sh", "-c", "exit 3"]).code, 128 + libc::SIGABRT);
    }
}

fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A program that ends with 3 if it has more rights than whoever starts it, else with 4.
fn privileged(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("p.c"), dir.join("privileged"));
    std::fs::write(&source, "#include <sys/auxv.h>\nint main(void) { return getauxval(AT_SECURE) ? 3 : 4; }\n")
        .unwrap();
    let built = Command::new("cc").arg("-o").arg(&program).arg(&source).status();
    assert!(built.expect("a C compiler is needed").success());
    program
}

/// A library that ends each program that it is loaded into.
fn library_that_aborts(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("a.c"), dir.join("libgpumem.so"));
    let text = "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { abort(); }\n";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.expect("a C compiler is needed").success());
    library
}

#[test]
fn a_setuid_program_runs_as_it_was() {
    if !is_root() {
        skipped("only root can give a program to another user", ROOT);
        return;
    }
    let dir = dir();
    let (program, lib) = (privileged(dir.path()), library_that_aborts(dir.path()));
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).unwrap();
    for bits in [0o4755, 0o2755] {
        std::fs::set_permissions(&program, PermissionsExt::from_mode(bits)).unwrap();
        if Command::new(&program).status().unwrap().code() != Some(3) {
            skipped("the temporary folder gives no such rights (nosuid)", "TMPDIR elsewhere");
            return;
        }
        let answer = run(&lib, &["--", program.to_str().unwrap()]);
        assert_eq!(answer.code, 3, "{}", answer.err);
        assert!(answer.err.contains("setuid") && answer.err.contains("it runs without gpumem"), "{}", answer.err);
    }
}

/// The kernel's list of what a file may: one capability, CAP_CHOWN.
fn give_capability(program: &Path) -> bool {
    let bytes = [0x0200_0000_u32, 1, 0, 0, 0].map(u32::to_le_bytes).concat();
    let path = std::ffi::CString::new(program.to_str().unwrap()).unwrap();
    // SAFETY: both names are C strings, and the value has as many bytes as the call is told.
    unsafe {
        libc::setxattr(path.as_ptr(), c"security.capability".as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0) == 0
    }
}

#[test]
fn a_program_with_capabilities_of_its_file_runs_as_it_was() {
    let dir = dir();
    let (program, lib) = (privileged(dir.path()), library_that_aborts(dir.path()));
    if !is_root() || !give_capability(&program) {
        skipped("only root can give a file capabilities", ROOT);
        return;
    }
    // Root has all of them anyway, and the loader preloads for root.
    let answer = run(&lib, &["--", program.to_str().unwrap()]);
    assert_eq!((answer.code, answer.err.as_str()), (128 + libc::SIGABRT, ""));
    // Somebody else, who may read the folder and gpumem.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let gpumem = dir.path().join("gpumem");
    std::fs::hard_link(env!("CARGO_BIN_EXE_gpumem"), &gpumem)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_gpumem"), &gpumem).map(drop))
        .unwrap();
    if Command::new(&program).uid(65534).gid(65534).status().unwrap().code() != Some(3) {
        skipped("the temporary folder gives no such rights (nosuid)", "TMPDIR elsewhere");
        return;
    }
    let mut command = Command::new(&gpumem);
    command.uid(65534).gid(65534).env("GPUMEM_LIB", &lib).env_remove("LD_PRELOAD").args(["run", "--"]).arg(&program);
    let answer = common::answer(command);
    assert_eq!(answer.code, 3, "{}", answer.err);
    assert!(
        answer.err.contains("file capabilities") && answer.err.contains("it runs without gpumem"),
        "{}",
        answer.err
    );
}

/// A whole program of 32 bits: the header of a file, that of its one segment, and in a gap of the first what ends it
/// with 3.
fn program_of_32_bits() -> Vec<u8> {
    let mut file = b"\x7fELF\x01\x01\x01\0\0".to_vec();
    // mov bl, 3; xor eax, eax; inc eax; int 0x80: exit(3)
    file.extend(b"\xb3\x03\x31\xc0\x40\xcd\x80");
    const START: u32 = 0x0804_8000;
    let halves = |halves: &[u16]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    // An executable of an i386, of version 1: its entry, where its segments are, no sections, no flags.
    file.extend([halves(&[2, 3]), words(&[1, START + 9, 52, 0, 0]), halves(&[52, 32, 1, 0, 0, 0])].concat());
    // All of the file, to be read and executed.
    file.extend(words(&[1, 0, START, START, 84, 84, 5, 4096]));
    file
}

#[test]
fn a_program_of_32_bits_runs_as_it_was() {
    let dir = dir();
    let (program, lib) = (dir.path().join("small"), library_that_aborts(dir.path()));
    let bytes = program_of_32_bits();
    assert_eq!(bytes.len(), 84);
    std::fs::write(&program, bytes).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    if !Command::new(&program).status().is_ok_and(|status| status.code() == Some(3)) {
        skipped("this system runs no programs of an i386", "a kernel with IA32 emulation");
        return;
    }
    let answer = run(&lib, &["--", program.to_str().unwrap()]);
    assert_eq!(answer.code, 3, "{}", answer.err);
    assert!(answer.err.contains("32-bit") && answer.err.contains("it runs without gpumem"), "{}", answer.err);
}
