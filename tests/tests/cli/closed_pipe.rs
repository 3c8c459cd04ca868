//! Programs whose reader goes before they have said all, as in `differ gen | head`: they end, and do not complain.

use gpumem_tests::harness::artifacts;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a program whose stdout no one reads. Returns its words on stderr, and its exit status.
fn unread(program: &Path, args: &[&str]) -> (String, i32) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(program);
    let ran = command.args(args).stdout(writer).stderr(Stdio::piped()).output().expect("it starts");
    let ended = ran.status.code().or(ran.status.signal().map(|signal| 128 + signal));
    (String::from_utf8_lossy(&ran.stderr).into_owned(), ended.expect("it ends"))
}

#[test]
fn nobody_hears_of_a_reader_that_went() {
    let programs: [(&Path, &[&str]); 6] = [
        (env!("CARGO_BIN_EXE_differ").as_ref(), &["gen", "--seed", "1"]),
        (env!("CARGO_BIN_EXE_differ").as_ref(), &["--help"]),
        (env!("CARGO_BIN_EXE_pooler").as_ref(), &["gen", "--seed", "1"]),
        (env!("CARGO_BIN_EXE_conformance").as_ref(), &["--list"]),
        (env!("CARGO_BIN_EXE_proof").as_ref(), &["--list"]),
        (&artifacts().gpumem, &["help", "views"]),
    ];
    for (program, args) in programs {
        assert_eq!(unread(program, args), (String::new(), 128 + libc::SIGPIPE), "{} {args:?}", program.display());
    }
}
