use super::*;
use std::fs::File;
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// Variable that marks the child process.
const CHILD: &str = "GPUMEM_TEST_OF_SCREEN";

fn flags(terminal: &File) -> [libc::tcflag_t; 3] {
    // SAFETY: zeroes are a valid termios.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: tcgetattr writes one termios, which is a local; `terminal` keeps its descriptor open.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
    [settings.c_iflag, settings.c_oflag, settings.c_lflag]
}

/// Runs a test of this file as a child on a terminal; returns its exit status and the screen's contents.
fn on_a_terminal(test: &str) -> (ExitStatus, vt100::Parser) {
    let (mut master, mut slave) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: openpty writes two ints and reads one winsize, all of them locals. It accepts null for name and
    // termios.
    let answer = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(answer, 0);
    // SAFETY: openpty has just opened both descriptors, and no one else has their numbers.
    let (mut master, slave) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
    let before = flags(&slave);
    let end = || slave.try_clone().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "--nocapture", &format!("view::screen::tests::{test}")])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0");
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop(command);
    let reads = std::thread::spawn(move || {
        let mut parser = vt100::Parser::new(NonZeroU16::new(24).unwrap(), NonZeroU16::new(80).unwrap(), 0);
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = master.read(&mut piece) {
            parser.process(&piece[..n]);
        }
        parser
    });
    let status = child.wait().unwrap();
    assert_eq!(flags(&slave), before, "echo and line editing");
    // Reading fails (EIO) when the last writer is gone.
    drop(slave);
    (status, reads.join().unwrap())
}

fn given_back(parser: &vt100::Parser) -> String {
    let screen = parser.screen();
    assert!(!screen.alternate_screen() && !screen.hide_cursor() && !screen.bracketed_paste());
    screen.contents()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn drawn() -> Screen {
    let mut screen = Screen::open(Means { colour: true, ascii: false }).unwrap();
    screen.draw(|buffer| buffer.set_string(0, 0, "drawn", ratatui::style::Style::new())).unwrap();
    screen
}

#[test]
#[ignore = "a child of the tests below"]
fn panics() {
    if is_child() {
        let _screen = drawn();
        panic!("something is wrong");
    }
}

#[test]
#[ignore = "a child of the tests below"]
fn panics_elsewhere() {
    if is_child() {
        let mut screen = drawn();
        let waker = screen.waker();
        let thread = std::thread::spawn(move || {
            Stderr.write_all(b"said meanwhile\n").unwrap();
            waker.wake();
            panic!("something is wrong");
        });
        assert!(screen.wait().unwrap().ended_by.is_none());
        assert!(thread.join().is_err());
        screen.draw(|buffer| buffer.set_string(0, 1, "too late", ratatui::style::Style::new())).unwrap();
    }
}

#[test]
#[ignore = "a child of the tests below"]
fn ends_by_a_signal() {
    if is_child() {
        let mut screen = drawn();
        low_level::raise(SIGTERM).unwrap();
        let signal = screen.wait().unwrap().ended_by.unwrap();
        screen.end_by(signal);
    }
}

#[test]
fn a_panic_gives_the_screen_back_and_is_read_on_it() {
    let (status, parser) = on_a_terminal("panics");
    let text = given_back(&parser);
    assert!(!status.success() && text.contains("something is wrong") && !text.contains("drawn"), "{text}");
}

#[test]
fn a_panic_of_another_thread_does_too_and_nothing_is_drawn_after_it() {
    let (status, parser) = on_a_terminal("panics_elsewhere");
    let text = given_back(&parser);
    assert!(status.success() && text.contains("something is wrong") && text.contains("said meanwhile"), "{text}");
    assert!(!text.contains("too late") && !text.contains("drawn"), "{text}");
}

#[test]
fn a_signal_gives_the_screen_back_and_ends_the_program_as_ever() {
    let (status, parser) = on_a_terminal("ends_by_a_signal");
    assert_eq!(status.signal(), Some(SIGTERM), "{}", given_back(&parser));
}
