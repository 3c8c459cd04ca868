//! Output of the demo. Its reader may end before it does, as `head` does.

use std::io::{ErrorKind, IsTerminal, Write};

/// Prints to stdout at once. Ends this program as SIGPIPE would if the reader is gone.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("demo: stdout: {error}");
        }
        std::process::exit(1);
    }
}

macro_rules! say {
    ($($text:tt)*) => { $crate::screen::print(&format!($($text)*)) };
}
pub(crate) use say;

pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// A progress line, rewritten on a terminal; elsewhere one line for each quarter.
#[derive(Default)]
pub struct Screen {
    said: Option<u64>,
}

impl Screen {
    pub fn progress(&mut self, done: u64, whole: u64) {
        let step = if is_terminal() { 1 } else { (whole / 4).max(1) };
        if self.said.is_some_and(|said| done / step <= said / step) {
            return;
        }
        self.said = Some(done);
        let (begin, end) = if is_terminal() { ("\r", "") } else { ("", "\n") };
        say!("{begin}sampling: {done} of the {whole} samples that a verdict needs{end}");
    }

    pub fn done(&self) {
        if is_terminal() {
            say!("\n");
        }
    }
}
