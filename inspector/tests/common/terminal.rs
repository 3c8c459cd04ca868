//! `gpumem` on a terminal of some size.

use super::{Dir, gpumem};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::process::Child;

/// A terminal of this size; what its master end gives is what is written on it.
fn open(columns: u16, rows: u16) -> (File, File) {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: openpty writes two ints and reads one winsize, all of them locals. It accepts null
    // for name and termios.
    let answer = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(answer, 0);
    // SAFETY: openpty has just opened both descriptors, and no one else has their numbers.
    unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) }
}

/// Runs a command that succeeds. Returns what it writes on a terminal, as the bytes came.
pub fn ok(dir: &Dir, columns: u16, rows: u16, args: &[&str]) -> String {
    let (mut master, slave) = open(columns, rows);
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).env("TERM", "xterm").stdout(slave);
    let mut child = command.args(args).spawn().unwrap();
    drop(command);
    // Reading fails (EIO) when the last writer is gone.
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = master.read(&mut piece) {
        said.extend_from_slice(&piece[..n]);
    }
    assert!(child.wait().unwrap().success(), "gpumem {args:?}");
    String::from_utf8(said).unwrap()
}

/// The lines that a command writes on a terminal, without their styles.
pub fn lines(dir: &Dir, columns: u16, args: &[&str]) -> Vec<String> {
    let plain = anstream::adapter::strip_str(&ok(dir, columns, 50, args)).to_string();
    plain.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

/// A command that goes on until a key ends it.
pub struct Running {
    child: Child,
    keys: File,
}

impl Running {
    /// Starts it on a terminal of 120 columns; what it says besides goes into a file.
    pub fn start(dir: &Dir, args: &[&str], log: &Path) -> Self {
        Self::sized(dir, 120, 40, args, log)
    }

    /// The same on a terminal of this size.
    pub fn sized(dir: &Dir, columns: u16, rows: u16, args: &[&str], log: &Path) -> Self {
        let (mut master, slave) = open(columns, rows);
        let keys = master.try_clone().unwrap();
        let mut command = gpumem();
        command.env("GPUMEM_DIR", dir.path()).env("TERM", "xterm").args(args);
        command.stdin(slave.try_clone().unwrap()).stdout(slave).stderr(File::create(log).unwrap());
        let child = command.spawn().unwrap();
        // Nobody looks; it must not wait for that.
        std::thread::spawn(move || while matches!(master.read(&mut [0; 4096]), Ok(1..)) {});
        Self { child, keys }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Changes the terminal's size, and says so as a terminal does.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the ioctl reads one winsize, a local, and the descriptor is open. The child was not waited for yet, so
        // no other process can have its number.
        unsafe {
            assert_eq!(libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ, &size), 0);
            libc::kill(self.child.id() as libc::pid_t, libc::SIGWINCH);
        }
    }

    pub fn press(&mut self, key: &str) {
        self.keys.write_all(key.as_bytes()).unwrap();
    }

    pub fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}
