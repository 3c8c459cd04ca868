//! The control socket: which commands are carried out, and which are not.

use gpumem_tests::harness::client;
use gpumem_tests::harness::run::Running;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The control socket of a process.
fn socket(running: &Running) -> UnixStream {
    let path = running.ledger().path.with_extension("sock");
    let stream = UnixStream::connect(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
    stream
}

pub(super) fn asked(running: &Running, said: &[u8]) -> String {
    let mut stream = socket(running);
    // The process does not read a refused line to its end.
    let _ = stream.write_all(said);
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).expect("an answer");
    reply
}

fn held() -> Running {
    let running = client("held").waits().start(true);
    running.says("held");
    gpumem_tests::harness::run::wait_for("its socket", || running.ledger().path.with_extension("sock").exists());
    running
}

fn marks(running: &Running) -> String {
    let events: Value = running.gpumem(&["events", &running.pid().to_string()]);
    events.to_string()
}

/// A stopped process goes on after the sender of a command has hung up. The command is not carried out.
#[test]
fn what_its_sender_gave_up_does_not_happen_later() {
    let running = held();
    running.signal_until(libc::SIGSTOP, 'T');
    for _ in 0..20 {
        socket(&running).write_all(b"mark given-up\n").expect("a socket holds that much");
    }
    let mut waits = socket(&running);
    waits.write_all(b"mark waited-for\n").expect("a socket holds that much");
    running.signal(libc::SIGCONT);
    let mut reply = String::new();
    waits.read_to_string(&mut reply).expect("an answer");
    assert_eq!(reply, "ok\n");
    let said = marks(&running);
    assert!(said.contains("waited-for") && !said.contains("given-up"), "{said}");
    running.finish().ok();
}

/// A line that is too long, or has no end, is refused: half a command is another command.
#[test]
fn a_line_is_carried_out_whole_or_not_at_all() {
    let running = held();
    let long = [b"mark ".as_slice(), &[b'x'; 2000], b"\n"].concat();
    let reply = asked(&running, &long);
    assert!(reply.starts_with("error ") && reply.contains("1024 bytes"), "{reply}");
    let reply = asked(&running, b"mark half");
    assert!(reply.starts_with("error ") && reply.contains("no whole line"), "{reply}");
    assert_eq!(asked(&running, b"mark whole\n"), "ok\n");
    let said = marks(&running);
    assert!(said.contains("whole") && !said.contains("xxx") && !said.contains("half"), "{said}");
    let name = "x".repeat(2000);
    let refused = running.refused(&["mark", &name]);
    assert!(refused.contains("1024"), "{refused}");
    running.finish().ok();
}

/// Clients that say nothing hold up neither samples nor others.
#[test]
fn silent_clients_hold_nobody_up() {
    let running = held();
    let silent: Vec<UnixStream> = (0..5).map(|_| socket(&running)).collect();
    assert_eq!(asked(&running, b"mark heard\n"), "ok\n");
    drop(silent);
    assert!(marks(&running).contains("heard"));
    running.finish().ok();
}
