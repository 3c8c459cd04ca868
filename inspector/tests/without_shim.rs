//! Running processes that have no shim: what `gpumem doctor PID` says of them. The processes stay as they were.

mod common;
use common::skipped::{ROOT, skipped};
use common::*;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The line of /proc/PID/status with this name.
fn status(pid: u32, name: &str) -> String {
    let status = std::fs::read(format!("/proc/{pid}/status")).unwrap();
    let status = String::from_utf8_lossy(&status).into_owned();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("waited for {what}");
}

/// Findings of this process, by id.
fn findings(pid: u32) -> Vec<(String, String)> {
    let dir = dir();
    let answer = dir.gpumem(&["doctor", "--json", &pid.to_string()]);
    let report: Value = serde_json::from_str(&answer.out).unwrap_or_else(|_| panic!("{}", answer.err));
    let of_it = report["findings"].as_array().unwrap().iter().filter(|finding| finding["pid"] == pid);
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    of_it.map(|finding| (text(finding, "id"), text(finding, "finding"))).collect()
}

#[track_caller]
fn says(pid: u32, id: &str, what: &str) {
    let all = findings(pid);
    assert!(all.iter().any(|(its, said)| its == id && said.contains(what)), "{id}: {what}: {all:?}");
}

/// A C program that waits until it is killed.
fn waits(dir: &Path, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (dir.join("w.c"), dir.join("waits"));
    std::fs::write(&source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n").unwrap();
    let built = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).output();
    built.is_ok_and(|built| built.status.success()).then_some(program)
}

#[test]
fn a_stopped_process_is_told_and_stays_stopped() {
    let sleeper = Sleeper::start();
    let pid = sleeper.id().pid;
    says(pid, "state", "neither stopped nor traced");
    // SAFETY: kill takes two numbers, and the child is this test's own.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGSTOP) }, 0);
    until("a stopped child", || status(pid, "State:").starts_with('T'));
    says(pid, "state", "it is stopped by a signal");
    says(pid, "reach", "was started without libgpumem.so");
    assert!(status(pid, "State:").starts_with('T'));
    assert_eq!(status(pid, "TracerPid:"), "0");
}

#[test]
fn whoever_traces_a_process_is_named() {
    let sleeper = Sleeper::start();
    let pid = sleeper.id().pid;
    // SAFETY: PTRACE_SEIZE takes numbers, and the child is this test's own. It runs on, and is let go with this thread.
    if unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid as i32, 0, 0) } != 0 {
        skipped("this system lets no process trace its child", "sysctl kernel.yama.ptrace_scope=1");
        return;
    }
    let me = me().pid;
    says(pid, "state", &format!("it is traced by pid {me} ("));
    assert!(status(pid, "State:").starts_with('S'));
    // SAFETY: PTRACE_INTERRUPT takes numbers, and this thread traces the child.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, pid as i32, 0, 0) }, 0);
    until("a child in a tracing stop", || status(pid, "State:").starts_with('t'));
    says(pid, "state", ", and is stopped");
}

#[test]
fn a_process_with_more_rights_than_its_user_is_told() {
    // SAFETY: geteuid takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skipped("only root can make a setuid program and start it as another user", ROOT);
        return;
    }
    let dir = dir();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = waits(dir.path(), &[]).expect("a C compiler");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let child = Sleeper(Command::new(&program).uid(65534).gid(65534).spawn().unwrap());
    let pid = child.0.id();
    until("a program", || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program));
    if status(pid, "Uid:").split_whitespace().take(2).collect::<Vec<_>>() != ["65534", "0"] {
        skipped("the temporary folder gives no such rights (nosuid)", "TMPDIR elsewhere");
        return;
    }
    says(pid, "reach", "it is setuid or setgid or has file capabilities");
    let answer = dir.gpumem(&["doctor", &pid.to_string()]);
    assert!(answer.code == 1 && !answer.out.contains("gpumem run -- "), "{}", answer.out);
}

#[test]
fn a_static_process_is_told() {
    let dir = dir();
    let Some(program) = waits(dir.path(), &["-static"]) else {
        skipped("the static C library is not installed", "package libc6-dev");
        return;
    };
    let child = Sleeper(Command::new(&program).spawn().unwrap());
    let pid = child.0.id();
    until("a program", || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program));
    says(pid, "reach", "it is statically linked");
    let answer = dir.gpumem(&["doctor", &pid.to_string()]);
    assert!(answer.code == 1 && !answer.out.contains("gpumem run -- "), "{}", answer.out);
}

#[test]
fn it_is_told_that_gpumem_does_not_attach_and_what_to_type_instead() {
    let dir = dir();
    // It waits for what nobody writes.
    let cat = Command::new("cat").args(["-", "it's 3"]).stdin(Stdio::piped()).spawn().unwrap();
    let child = Sleeper(cat);
    let pid = child.0.id();
    until("cat", || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"cat\0")));
    says(pid, "reach", "gpumem does not attach to a running process");
    let answer = dir.gpumem(&["doctor", &pid.to_string()]);
    let instead = "gpumem run -- cat - 'it'\\''s 3'";
    assert!(squeeze(&answer.out).replace('\n', " ").contains(instead), "{}", answer.out);
    assert_eq!(dir.gpumem(&["doctor", &gone().pid.to_string()]).code, 3);
}
