//! `gpumem mark`: what is said to the control socket, and what is made of the answer.

mod common;
use common::*;
use gpumem_wire::place::ProcessId;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

/// A control socket that answers one request with this line, and tells what it was asked.
fn socket(dir: &Dir, id: ProcessId, answer: &'static str) -> JoinHandle<String> {
    let listener = UnixListener::bind(dir.path().join(id.socket_name())).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        let _ = stream.write_all(answer.as_bytes());
        line
    })
}

#[test]
fn a_mark_is_one_line_whatever_its_name() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let asked = socket(&dir, me(), "ok\n");
    assert_eq!(dir.json(&["mark", "before\nmark the upload"])["pid"], me().pid);
    assert_eq!(asked.join().unwrap(), "mark before mark the upload\n");
}

#[test]
fn refusals_and_strangers_are_reported() {
    for (answer, said) in [
        ("error no room\n", "the process refuses it: no room"),
        ("HTTP/1.1 400\n", "the answer did not come from a libgpumem.so"),
        ("", "did not answer the request"),
        ("error \x1b[31m\n", "the process refuses it: \\x1b[31m"),
    ] {
        let dir = dir();
        dir.put(me(), demo(me()));
        let asked = socket(&dir, me(), answer);
        let got = dir.gpumem(&["mark", "x"]);
        asked.join().unwrap();
        assert_eq!(got.code, 1);
        assert!(got.err.contains(said), "{answer:?}: {}", got.err);
    }
}

#[test]
fn where_no_command_can_go_it_says_why() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let none = dir.gpumem(&["mark", "x"]);
    assert_eq!(none.code, 1);
    assert!(none.err.contains("there is no control socket") && none.err.contains("GPUMEM_CONTROL=0"), "{}", none.err);
    // A file that took its place is not written to.
    let path = dir.path().join(me().socket_name());
    std::fs::write(&path, "mine").unwrap();
    assert!(dir.gpumem(&["mark", "x"]).err.contains("is not the socket of"));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    // What is dead takes none.
    let dead = gone();
    dir.put(dead, demo(dead));
    let got = dir.gpumem(&["mark", "x", &dead.pid.to_string()]);
    assert_eq!(got.code, 3);
    assert!(got.err.contains("is not running: ended without exit handlers (killed or _exit) "), "{}", got.err);
    assert_eq!(dir.gpumem(&["mark", " "]).code, 2);
}

#[test]
fn a_process_that_does_not_answer_is_given_up_on() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let _listener = UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    let got = dir.gpumem(&["mark", "x"]);
    assert_eq!(got.code, 1);
    assert!(got.err.contains("did not answer in 3 s"), "{}", got.err);
}

#[test]
fn a_pid_before_the_name_is_told() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let pid = me().pid.to_string();
    let answer = dir.gpumem(&["mark", &pid, "warm up"]);
    assert_eq!(answer.code, 3);
    let order = format!("the name of the mark comes first: gpumem mark 'warm up' {pid}");
    assert!(answer.err.contains(&order), "{}", answer.err);
    let without_name = dir.gpumem(&["mark", &pid]);
    assert_eq!(without_name.code, 2);
    assert!(without_name.err.contains(&format!("type: gpumem mark NAME {pid}")), "{}", without_name.err);
}

#[test]
fn what_asks_a_process_has_no_options_of_views() {
    let dir = dir();
    dir.put(me(), demo(me()));
    for command in ["trim", "off", "check"] {
        for option in ["--no-symbols", "--stack=native"] {
            assert_eq!(dir.gpumem(&[command, option]).code, 2, "{command} {option}");
        }
    }
}
