//! The long run, shortened: each kind of traffic stays flat and is counted.

use std::process::Command;

#[test]
fn every_kind_of_traffic_stays_flat_and_is_counted() {
    let done = Command::new(env!("CARGO_BIN_EXE_long_run")).args(["--calls", "60000"]).output().expect("it starts");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert_eq!((done.status.code(), out.lines().count()), (Some(0), 6), "{out}{err}");
}

#[test]
fn wrong_arguments_are_refused() {
    for args in [&["nonsense"][..], &["--calls"], &["--calls", "0"], &["--calls", "many"]] {
        let done = Command::new(env!("CARGO_BIN_EXE_long_run")).args(args).output().expect("it starts");
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(!done.stderr.is_empty() && done.stdout.is_empty(), "{args:?}");
    }
}
