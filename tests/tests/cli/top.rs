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
    top.shows("1 Overview").shows("device live").shows("held");
    assert!(top.is_taken());
    top.press("2").shows("by site").shows("1 of ");
    top.press("g").shows("by stack");
    top.press("\r").shows("Esc: back").shows("main held.c");
    top.press("\x1b").shows("by stack");
    top.press("3").shows("resident").shows("1 of 2");
    top.press("g").shows("by stack");
    top.press("4").shows("peak-grew");
    top.press(" ").shows("paused").press(" ").hides("paused");
    top.press("?").shows("show these keys");
    top.press("?").hides("show these keys");
    top.press("1").shows("device live");
    top.press("q");
    assert_eq!((top.ended(), top.left()), (0, vec![]));
    running.finish().ok();
}

#[test]
fn signals_end_it_and_the_terminal_is_as_before() {
    let running = held();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let mut top = top(&running, 80, 24, &[]);
        top.shows("device live");
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
    top.shows("killed").shows("21 allocations live");
    top.press("q");
    assert_eq!((top.ended(), top.left()), (0, vec![]));
}

/// Two processes: a row for each, and one of them closely.
#[test]
fn all_processes_are_listed_and_one_is_gone_into() {
    let first = held();
    let second = client("held").waits().dir(&first.dir).start(true);
    second.says("held");
    gpumem_tests::harness::run::wait_for("its ledger", || {
        gpumem_tests::harness::Ledger::of_pid(&first.dir, second.pid()).is_some()
    });
    let mut top = top(&first, 80, 24, &["-d", "0.2"]);
    top.shows("2 processes").shows(&first.pid().to_string()).shows(&second.pid().to_string()).shows("running");
    top.press("j\r").shows("1 Overview").shows("device live");
    top.press("\x1b").shows("2 processes");
    top.press("q");
    assert_eq!((top.ended(), top.left()), (0, vec![]));
    second.finish().ok();
    first.finish().ok();
}

/// Neither colours nor characters beyond ASCII reach a terminal that has none.
#[test]
fn a_poor_terminal_gets_what_it_can_show() {
    let running = held();
    let mut command = Command::new(&artifacts().gpumem);
    command.args(["top", "-d", "0.2"]).env("GPUMEM_DIR", &running.dir).env("TERM", "vt100");
    command.env("NO_COLOR", "1").env("LC_ALL", "C").env_remove("LD_PRELOAD");
    let mut top = Terminal::start(command, 60, 20);
    top.shows("device live").shows("per minute");
    top.press("2").shows("by site");
    assert!(top.text().is_ascii() && !top.has_colours(), "{}", top.text());
    top.press("q");
    assert_eq!((top.ended(), top.left()), (0, vec![]));
    running.finish().ok();
}
