//! Ledgers and sockets that somebody else put there: they are believed of nobody but their owner, and what is
//! removed is what was looked at. Another user's files can only be made by root: elsewhere these tests say so.

mod common;
use common::skipped::skipped;
use common::*;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// A user who is nobody here.
const OTHER: u32 = 54_321;

/// False, and said, where files cannot be given away.
fn give(path: &Path) -> bool {
    match std::os::unix::fs::chown(path, Some(OTHER), Some(OTHER)) {
        Ok(()) => true,
        Err(error) => {
            skipped(format_args!("{}: {error}", path.display()));
            false
        }
    }
}

#[test]
fn a_ledger_that_is_not_the_processs_is_left_out() {
    let dir = dir();
    let forged = dir.put(me(), demo(me()));
    if !give(&forged) {
        return;
    }
    let answer = dir.gpumem(&["ps"]);
    assert_eq!(answer.code, 3, "{}", answer.out);
    assert!(answer.err.contains("belongs to user 54321: it is ignored"), "{}", answer.err);
    let pid = me().pid.to_string();
    let answer = dir.gpumem(&["allocs", &pid]);
    assert!(answer.err.contains("runs without libgpumem.so"), "{}", answer.err);
    // Beside an honest one, that one is meant.
    let other = Sleeper::start();
    dir.put(other.id(), demo(other.id()));
    let report = dir.json(&["ps"]);
    assert_eq!(report["processes"].as_array().unwrap().len(), 1, "{report:#}");
    assert!(report["warnings"][0].as_str().unwrap().contains("is named after pid"), "{report:#}");
    assert_eq!(dir.json(&["allocs"])["process"]["pid"], other.id().pid);
    assert_eq!(dir.gpumem(&["clean", "--all"]).code, 0);
    assert!(forged.exists(), "it is none, so it is not cleaned either");
}

#[test]
fn a_named_file_of_another_user_claims_no_process() {
    let dir = dir();
    let file = dir.path().join("claims.ledger");
    std::fs::write(&file, demo(me()).finish()).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(dir.json(&["allocs", file])["process"]["life"], "running", "one's own copy does");
    if !give(Path::new(file)) {
        return;
    }
    assert_eq!(dir.json(&["allocs", file])["process"]["life"], "killed");
    let answer = dir.gpumem(&["trim", file]);
    assert!(answer.err.contains("is not running"), "{}", answer.err);
}

#[test]
fn clean_removes_sockets_of_the_dead_and_nothing_else() {
    let dir = dir();
    let named = |name: String| dir.path().join(name);
    let (dead, gone_too) = (gone(), gone());
    dir.put(dead, demo(dead));
    let socket = named(dead.socket_name());
    drop(UnixListener::bind(&socket).unwrap());
    // Named as a socket, and none.
    let file = named(gone_too.socket_name());
    std::fs::write(&file, "mine").unwrap();
    let odd = named("+5-+6.ledger".into());
    std::fs::write(&odd, "mine").unwrap();
    let stray = named(gone().socket_name());
    drop(UnixListener::bind(&stray).unwrap());
    dir.ok(&["clean", "--all"]);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.contains(&file), "{left:?}");
    assert!(!left.contains(&socket) && !left.contains(&stray), "{left:?}");
}

#[test]
fn clean_leaves_a_socket_that_is_another_users() {
    let dir = dir();
    let dead = gone();
    let ledger = dir.put(dead, demo(dead));
    let socket = dir.path().join(dead.socket_name());
    let _listener = UnixListener::bind(&socket).unwrap();
    if !give(&socket) {
        return;
    }
    dir.ok(&["clean", "--all"]);
    assert!(!ledger.exists() && socket.exists());
}
