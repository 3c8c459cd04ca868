//! Runs a program on a terminal of its own. Tests read its screen and press keys.

use super::run::wait_for;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

/// A program that runs on a terminal. Dropped, it is killed.
pub struct Terminal {
    child: Child,
    keys: File,
    /// The program's side of the terminal. It is kept open, because it tells the terminal's settings even after the
    /// program has ended.
    own: File,
    before: Settings,
    shown: Arc<Mutex<Shown>>,
}

struct Shown {
    parser: vt100::Parser,
    /// How many bytes were written.
    bytes: usize,
}

/// Flags of a terminal: echo, line editing, signals from keys.
type Settings = [libc::tcflag_t; 4];

fn settings(terminal: &File) -> Settings {
    // SAFETY: zeroes are a valid termios.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: tcgetattr writes one termios, which is a local; `terminal` keeps its descriptor open.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
    [settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag]
}

impl Terminal {
    /// Starts a program on a terminal of this size.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: openpty writes two ints and reads one winsize, all of them locals. It accepts null for name and
        // termios.
        let answer = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(answer, 0, "a terminal");
        // SAFETY: openpty has just opened both descriptors, and no one else has their numbers.
        let (keys, own) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
        let before = settings(&own);
        let end = || own.try_clone().expect("a descriptor");
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: between fork and exec only setsid and ioctl are called, which take numbers and are safe there. The
        // program gets the terminal as its own, so that it hears of its end.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let number = |n| NonZeroU16::new(n).expect("a size");
        let parser = vt100::Parser::new(number(rows), number(columns), 0);
        let shown = Arc::new(Mutex::new(Shown { parser, bytes: 0 }));
        let (into, mut from) = (shown.clone(), keys.try_clone().expect("a descriptor"));
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                let mut shown = into.lock().expect("no panic while held");
                shown.parser.process(&piece[..n]);
                shown.bytes += n;
            }
        });
        Self { child, keys, own, before, shown }
    }

    fn look<T>(&self, at: impl FnOnce(&vt100::Screen) -> T) -> T {
        at(self.shown.lock().expect("no panic while held").parser.screen())
    }

    /// Returns the contents of the screen, a line each.
    pub fn text(&self) -> String {
        self.look(|screen| screen.contents())
    }

    /// Bytes that the program has written so far.
    pub fn written(&self) -> usize {
        self.shown.lock().expect("no panic while held").bytes
    }

    /// Waits until this is on the screen.
    pub fn shows(&self, what: &str) -> &Self {
        self.comes_to(what, |text| text.contains(what))
    }

    /// Waits until this is not on the screen.
    pub fn hides(&self, what: &str) -> &Self {
        self.comes_to(&format!("no {what}"), |text| !text.contains(what))
    }

    fn comes_to(&self, what: &str, is: impl Fn(&str) -> bool) -> &Self {
        let mut last = String::new();
        let came = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, || {
                last = self.text();
                is(&last)
            })
        }));
        assert!(came.is_ok(), "never on the screen: {what}\n{last}");
        self
    }

    /// True if anything on the screen has a colour.
    pub fn has_colours(&self) -> bool {
        self.look(|screen| {
            let (rows, columns) = screen.size();
            let all = (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column)));
            let plain = vt100::Color::Default;
            all.filter_map(|(row, column)| screen.cell(row, column))
                .any(|cell| cell.fgcolor() != plain || cell.bgcolor() != plain)
        })
    }

    /// Presses keys.
    pub fn press(&self, keys: &str) -> &Self {
        (&self.keys).write_all(keys.as_bytes()).expect("a terminal");
        self
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes two numbers. The child is ours and is not waited for yet, so no other process has its
        // number.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0, "kill {signal}");
    }

    /// True while the program has the whole screen.
    pub fn is_taken(&self) -> bool {
        self.look(|screen| screen.alternate_screen())
    }

    /// The settings that differ from those before the program took the screen.
    pub fn left(&self) -> Vec<&'static str> {
        let raw = settings(&self.own) != self.before;
        let mouse = |screen: &vt100::Screen| screen.mouse_protocol_mode() != vt100::MouseProtocolMode::None;
        let wrong = self.look(|screen| {
            [
                (raw, "echo and line editing"),
                (screen.alternate_screen(), "the screen"),
                (screen.hide_cursor(), "the cursor"),
                (screen.bracketed_paste(), "pasting"),
                (mouse(screen), "the mouse"),
            ]
        });
        wrong.iter().filter(|(wrong, _)| *wrong).map(|(_, what)| *what).collect()
    }

    /// Waits until the program has ended: its exit code, or 128 plus the signal.
    pub fn ended(&mut self) -> i32 {
        let mut status = None;
        wait_for("the program to end", || {
            status = self.child.try_wait().expect("a child to wait for");
            status.is_some()
        });
        let status = status.expect("it has ended");
        // The program's last output may not have arrived yet.
        wait_for("the screen to be given back", || !self.is_taken());
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
