//! `gpumem top` on a terminal, beside a process on the simulated driver.

use gpumem_tests::harness::run::Running;
use gpumem_tests::harness::terminal::Terminal;
use gpumem_tests::harness::{artifacts, client};
use std::process::Command;

fn held() -> Running {
    let running = client("held").waits().start(true);
    running.says("held");
    gpumem_tests::harness::run::wait_for("its socket", || running.ledger().path.with_extension("sock").exists());
    running
}

/// `gpumem top` of a process.
fn top(running: &Running, columns: u16, rows: u16, args: &[&str]) -> Terminal {
    let mut command = Command::new(&artifacts().gpumem);
    command.arg("top").args(args).env("GPUMEM_DIR", &running.dir).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    command.env_remove("NO_COLOR").env_remove("LD_PRELOAD");
    Terminal::start(command, columns, rows)
}

#[test]
fn keys_work_and_the_terminal_is_as_before() {
    let running = held();
    let mut top = top(&running, 80, 24, &["-d", "0.2"]);
    top.shows("1 Overview").shows("device memory, live").shows("held");
    assert!(top.is_taken());
    top.press("2").shows("by site").shows("1 of ");
    top.press("g").shows("by stack");
    top.press("\r").shows("allocation");
    top.press("\x1b").shows("by stack");
    top.press("?").shows("show these keys");
    top.press("?").hides("show these keys");
    top.press("1").shows("device memory, live");
    top.press("q");
    assert_eq!((top.ended(), top.left()), (0, vec![]));
    running.finish().ok();
}

#[test]
fn signals_end_it_and_the_terminal_is_as_before() {
    let running = held();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let mut top = top(&running, 80, 24, &[]);
        top.shows("device memory, live");
        top.signal(signal);
        assert_eq!((top.ended(), top.left()), (128 + signal, vec![]));
    }
    running.finish().ok();
}

/// The process that is looked at ends: what it left stays on the screen.
#[test]
fn a_process_that_is_killed_stays_to_be_looked_at() {
    let running = held();
    let pid = running.pid().to_string();
    let mut top = top(&running, 80, 24, &["-d", "0.2", &pid]);
    top.shows("recorded for");
    running.signal_until(libc::SIGKILL, 'Z');
    top.shows("killed").shows("device memory, live");
    top.press("m").shows("only running processes take commands");
    top.press("q");
    assert_eq!((top.ended(), top.left()), (0, vec![]));
}
