//! Output of this crate's programs on stdout. The reader may end before the output does, as `head` does, and `println!`
//! panics then.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to stdout. If nobody reads any more, the program ends with the status of a program that SIGPIPE killed, and
/// prints nothing. SIGPIPE itself stays ignored, because these programs notice a dead child by a failed write.
pub fn to_stdout(text: Arguments<'_>) {
    match std::io::stdout().write_fmt(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(128 + libc::SIGPIPE),
        Err(error) => {
            eprintln!("stdout: {error}");
            std::process::exit(1);
        }
        Ok(()) => {}
    }
}

/// Like `print!`, but the reader may have gone.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::to_stdout(format_args!($($text)*)) };
}

/// Like `println!`, but the reader may have gone.
#[macro_export]
macro_rules! say_line {
    () => { $crate::say!("\n") };
    ($($text:tt)*) => {{
        $crate::say!($($text)*);
        $crate::say!("\n");
    }};
}
