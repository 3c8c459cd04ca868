//! Ledgers and sockets that somebody else put there: they are believed of nobody but their owner, and what is
//! removed is what was looked at. Another user's files can only be made by root: elsewhere these tests say so.

mod common;
use common::skipped::{ROOT, skipped};
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
            skipped(format_args!("files cannot be given away: {error}"), ROOT);
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

/// A ledger of a process in another pid namespace bears a number that may be a process's here. Whoever may have made it is
/// one of that process's users, or root.
#[test]
fn a_claim_of_another_namespace_is_the_processs_own_or_none() {
    let dir = dir();
    let victim = Sleeper::start();
    dir.put(victim.id(), demo(victim.id()));
    let claim = |bytes: u64| {
        let id = gpumem_wire::place::ProcessId { pid: victim.id().pid, start_ticks: 1 };
        let mut forged = begin(id);
        forged.header.pid_ns = 1;
        forged.header.heartbeat_ns = monotonic_ns();
        forged.slots([gpumem_wire::layout::ContextSlot { live_bytes: bytes, ..Default::default() }]);
        let slot = gpumem_wire::layout::AllocSlot { bytes, kind: 1, context: 1, ..Default::default() };
        forged.slots([slot]);
        let mut counters = vec![0; gpumem_wire::counters::PER_SHARD];
        counters[gpumem_wire::counters::allocs(gpumem_wire::kinds::AllocKind::Device)] = 1;
        counters[gpumem_wire::counters::alloc_bytes(gpumem_wire::kinds::AllocKind::Device)] = bytes;
        forged.words(gpumem_wire::layout::TableKind::Counters, &counters);
        dir.put(id, forged)
    };
    let forged = claim(320 * MIB);
    if !give(&forged) {
        return;
    }
    let report = dir.json(&["ps"]);
    assert_eq!(report["processes"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(report["processes"][0]["status"], "running");
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.contains("but belongs to user 54321: it is ignored"), "{warning}");
    let page = dir.ok(&["export", "--to", "prometheus"]);
    assert!(!page.contains(&(320 * MIB).to_string()) && page.contains(&(96 * MIB).to_string()), "{page}");
    assert_eq!(dir.json(&["allocs"])["process"]["life"], "running");
    assert!(forged.exists());
    // Root's own claim is believed, and still is not told in place of the process that can be seen.
    claim(320 * MIB);
    std::os::unix::fs::chown(&forged, Some(0), Some(0)).unwrap();
    assert_eq!(dir.json(&["ps"])["processes"].as_array().unwrap().len(), 2);
    let page = dir.ok(&["export", "--to", "prometheus"]);
    assert!(!page.contains(&(320 * MIB).to_string()) && page.contains(&(96 * MIB).to_string()), "{page}");
}

/// A process that changed its user: what it made under any of those that it is is its own.
#[test]
fn each_user_that_a_process_is_may_have_made_its_ledger() {
    let ids = OTHER.to_string();
    for (option, name) in [("--ruid", "real"), ("--euid", "effective"), ("--reuid", "both")] {
        let mut command = std::process::Command::new("setpriv");
        command.args([option, &ids, "--clear-groups", "sleep", "600"]);
        let Ok(child) = command.stderr(std::process::Stdio::null()).spawn() else {
            return skipped("setpriv is not installed", "package util-linux");
        };
        let process = Sleeper(child);
        // Until it is what it will be.
        let status = || std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap_or_default();
        if !(0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let status = status();
            status.starts_with("Name:\tsleep")
                && status.lines().any(|line| line.starts_with("Uid:") && line.contains(&ids))
        }) {
            return skipped("no user can be changed here", ROOT);
        }
        let dir = dir();
        let ledger = dir.put(process.id(), demo(process.id()));
        assert!(give(&ledger));
        assert_eq!(dir.json(&["ps"])["processes"][0]["status"], "running", "{name}: {}", status());
        assert_eq!(dir.json(&["allocs"])["process"]["life"], "running", "{name}");
        std::os::unix::fs::chown(&ledger, Some(OTHER + 1), None).unwrap();
        let answer = dir.gpumem(&["ps"]);
        assert!(answer.err.contains("belongs to user 54322: it is ignored"), "{name}: {}", answer.err);
    }
}
