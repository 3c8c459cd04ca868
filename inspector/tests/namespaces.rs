//! Containers and services with a /tmp of their own: seen from outside through /proc. And places without one.

mod common;
use common::skipped::{ROOT, skipped};
use common::*;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// In new pid and mount namespaces: a private /tmp, the ledger in it under the name that a shim in
/// there would give it, and a process with the library that stays.
const INSIDE: &str = r#"
mount -t tmpfs tmpfs /tmp && mkdir -m 700 /tmp/gpumem-$(id -u) || exit 1
start=$(sed 's/.*) //' /proc/$$/stat | cut -d ' ' -f 20)
cp "$1" /tmp/gpumem-$(id -u)/$$-$start.ledger
LD_PRELOAD="$2" exec sleep 600
"#;

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..500 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not come to be in 5 s");
}

fn allowed() -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--pid", "--fork", "--mount", "--mount-proc", "mount", "-t", "tmpfs", "x", "/tmp"]);
    probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn a_container_with_its_own_tmp_is_seen_from_outside() {
    if !allowed() {
        skipped("no namespaces can be made here", ROOT);
        return;
    }
    // Not under /tmp, which the process in there does not share; a checkout may lie there.
    let places = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp"];
    let place = places.into_iter().find(|place| !Path::new(place).starts_with("/tmp")).unwrap();
    let dir = tempfile::tempdir_in(place).unwrap();
    let (ledger, library) = (dir.path().join("ledger"), dir.path().join("libgpumem.so"));
    let mut composer = demo(gone());
    composer.header.pid_ns = 1;
    std::fs::write(&ledger, composer.finish()).unwrap();
    compile(&library);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", INSIDE, "sh"]);
    let outer = Sleeper(
        command.arg(&ledger).arg(&library).env_remove("GPUMEM_DIR").env_remove("XDG_RUNTIME_DIR").spawn().unwrap(),
    );
    let children = format!("/proc/{0}/task/{0}/children", outer.0.id());
    let pid = wait_for("the process", || {
        let pid = std::fs::read_to_string(&children).ok()?.split_whitespace().next()?.to_owned();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        maps.contains("libgpumem.so").then_some(pid)
    });
    let mut command = gpumem();
    command.args(["allocs", "--json", &pid]);
    let answer = answer(command);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(report["process"]["life"], "running");
    assert_eq!(report["process"]["pid"].to_string(), pid, "the pid is the one out here");
    assert_eq!(report["bytes"], 112 * MIB);
}

fn compile(library: &Path) {
    let source = library.with_extension("c");
    std::fs::write(&source, "int gpumem_test_library;\n").unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc).args(["-shared", "-fPIC", "-o"]).arg(library).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success());
}

/// Without /proc no process can be seen. Each command says that, and blames nothing else.
#[test]
fn without_proc_it_is_said_that_there_is_none() {
    let probe = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "x", "/proc"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        skipped("no namespaces can be made here", ROOT);
        return;
    }
    let dir = dir();
    let library = dir.path().join("libgpumem.so");
    compile(&library);
    let run = |args: &[&str]| {
        let mut command = gpumem();
        let program = command.get_program().to_owned();
        command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount -t tmpfs x /proc && exec \"$@\"", "sh"]).arg(program).args(args);
        command.env("GPUMEM_DIR", dir.path()).env("GPUMEM_LIB", &library).env_remove("LD_PRELOAD");
        command.stdin(Stdio::null());
        command
    };
    let said = "/proc is not mounted here";
    let ps = answer(run(&["ps"]));
    assert_eq!(ps.code, 3, "{}", ps.err);
    assert!(ps.err.contains(said) && !ps.err.contains("was found"), "{}", ps.err);
    let doctor = answer(run(&["doctor"]));
    assert!(doctor.out.contains(said) && !doctor.out.contains("does not load"), "{}", doctor.out);
    let of_one = answer(run(&["doctor", "1"]));
    assert!(of_one.err.contains(said) || of_one.out.contains(said), "{}{}", of_one.out, of_one.err);
    let allocs = answer(run(&["allocs", "1"]));
    assert!(allocs.err.contains(said), "{}", allocs.err);
    let mut serve = run(&["serve", "--listen", "127.0.0.1:0"]);
    let mut serve = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(serve.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    serve.kill().unwrap();
    let mut err = String::new();
    std::io::Read::read_to_string(&mut serve.stderr.take().unwrap(), &mut err).unwrap();
    serve.wait().unwrap();
    assert!(line.starts_with("serving ") && err.contains(said), "{line}{err}");
}
