//! The simulated HIP runtime, staged, and the programs that are linked to it.

use super::artifacts::repository;
use super::{Program, artifacts, command};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Paths of the library and the programs of the HIP tests.
pub struct Hip {
    /// libamdhip64.so.6, for LD_LIBRARY_PATH.
    pub stage: PathBuf,
    programs: PathBuf,
    /// Programs of these tests alone; one may have the name of one in `programs`.
    pub clients: PathBuf,
}

/// Everything, built if it was not, or is older than what it is made of.
///
/// # Panics
/// With the compiler's output when something cannot be built.
pub fn hip() -> &'static Hip {
    static HIP: OnceLock<Hip> = OnceLock::new();
    HIP.get_or_init(|| {
        let profile = artifacts().shim.parent().expect("target/PROFILE").to_owned();
        let own = profile.join("suite").join("hip");
        fs::create_dir_all(&own).expect("a folder beside the test");
        let lock = File::create(own.join("lock")).expect("a lock beside the test");
        // SAFETY: flock takes two numbers, and `lock` keeps the descriptor open. Closing the
        // descriptor gives the lock back.
        assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0, "the lock");
        let archive = profile.join("libamdhip64.a");
        if !archive.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "-p", "gpumem-sim-hip"]).current_dir(repository());
            cargo.env("CARGO_TARGET_DIR", profile.parent().expect("target"));
            match profile.file_name().and_then(OsStr::to_str) {
                Some("debug") | None => &mut cargo,
                Some(name) => cargo.args(["--profile", name]),
            };
            must(&mut cargo);
        }
        let stage = own.join("stage");
        fs::create_dir_all(&stage).expect("a folder for the library");
        let library = stage.join("libamdhip64.so.6");
        let (script, map) = (repository().join("tests/sim/hip/link.sh"), repository().join("tests/sim/hip/hip.map"));
        if [&archive, &script, &map].iter().any(|input| newer(input, &library)) {
            must(Command::new("sh").arg(script).arg(&archive).arg(&library));
        }
        let programs = own.join("programs");
        let set = |name: &str, path: &Path| format!("{name}={}", path.display());
        let mut make = Command::new("make");
        for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
            make.env_remove(name);
        }
        make.arg("-C").arg(repository().join("tests/programs")).args([
            set("OUT", &programs),
            set("HIP_LIBDIR", &stage),
            "HIP=libamdhip64.so.6".to_owned(),
        ]);
        must(&mut make);
        let (sources, clients) = (repository().join("tests/programs/hip"), own.join("clients"));
        fs::create_dir_all(&clients).expect("a folder for the programs");
        let (linked, beside) = (format!("-L{}", stage.display()), format!("-L{}", clients.display()));
        compile(&sources.join("libhipstub.c"), &clients.join("libhipstub.so"), &["-fPIC", "-shared"]);
        for name in [
            "librocprofiler-register.so.0",
            "librocprofiler-sdk-roctx.so.1",
            "librocprofiler-sdk.so.1",
            "librocprofiler-sdk-tool.so",
        ] {
            compile(&sources.join("libprofiler.c"), &clients.join(name), &["-fPIC", "-shared"]);
        }
        compile(&sources.join("libprofiler.c"), &clients.join("libtracer.so"), &["-fPIC", "-shared", "-DCONFIGURE"]);
        let plugin = clients.join("libhipplugin.so");
        compile(&sources.join("libhipplugin.c"), &plugin, &["-fPIC", "-shared", &linked, "-l:libamdhip64.so.6"]);
        for (name, flags) in [
            ("lookup", &["-ldl"][..]),
            ("plugin", &["-ldl"]),
            ("entry", &["-ldl"]),
            ("barrier", &[&linked, "-l:libamdhip64.so.6"]),
            ("ipc", &[&linked, "-l:libamdhip64.so.6"]),
            ("waits", &[&linked, "-l:libamdhip64.so.6", "-ldl"]),
            ("threads", &[&linked, "-l:libamdhip64.so.6"]),
            ("both", &[&linked, "-l:libamdhip64.so.6", "-ldl"]),
            ("reset", &[&linked, "-l:libamdhip64.so.6"]),
            ("newer", &[&linked, "-l:libamdhip64.so.6"]),
            ("execs", &[&linked, "-l:libamdhip64.so.6", "-ldl"]),
            ("handles", &["-rdynamic", &linked, "-l:libamdhip64.so.6", "-ldl"]),
            ("codes", &[&linked, "-l:libamdhip64.so.6", "-ldl"]),
            ("reenter", &["-rdynamic", &linked, "-l:libamdhip64.so.6", "-ldl"]),
            (
                "stubbed",
                &[
                    "-Wl,--no-as-needed",
                    "-Wl,-rpath,$ORIGIN",
                    &beside,
                    "-l:libhipstub.so",
                    &linked,
                    "-l:libamdhip64.so.6",
                ],
            ),
        ] {
            compile(&sources.join(name).with_extension("c"), &clients.join(name), flags);
        }
        Hip { stage, programs, clients }
    })
}

/// A program linked to the simulated HIP runtime.
pub fn program(name: &str) -> Program {
    let client = hip().clients.join(name);
    let path = if client.exists() { client } else { hip().programs.join(name) };
    command(path).env("LD_LIBRARY_PATH", &hip().stage)
}

/// Compiles a C program, if its source or the declarations are newer than it.
pub fn compile(source: &Path, out: &Path, flags: &[&str]) {
    let declarations = repository().join("tests/programs");
    let shared = repository().join("tests/programs/hip/execs.h");
    let inputs = [source, &declarations.join("hip_min.h"), &declarations.join("count.h"), &shared];
    if !inputs.iter().any(|input| newer(input, out)) {
        return;
    }
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fno-omit-frame-pointer"]);
    must(cc.arg("-I").arg(&declarations).arg("-o").arg(out).arg(source).args(flags).arg("-pthread"));
}

fn newer(input: &Path, output: &Path) -> bool {
    let when = |path: &Path| fs::metadata(path).and_then(|what| what.modified()).ok();
    when(input).expect("an input") >= when(output).unwrap_or(std::time::UNIX_EPOCH)
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
}
