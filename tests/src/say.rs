//! What the programs of this crate say on stdout. Whoever reads it may go before its end, as `head` does: `println!`
//! panics then.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to stdout. Where nobody reads any more the program ends as one does that SIGPIPE kills, and says nothing. The
/// signal itself stays ignored: a child that has died is seen by a write that fails.
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

/// As `print!`, where the reader may go.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::to_stdout(format_args!($($text)*)) };
}

/// As `println!`, where the reader may go.
#[macro_export]
macro_rules! say_line {
    () => { $crate::say!("\n") };
    ($($text:tt)*) => {{
        $crate::say!($($text)*);
        $crate::say!("\n");
    }};
}
