//! Which process is meant where a name, a pid and a file could all be, and what to type where several are.

mod common;
use common::*;
use gpumem_wire::place::ProcessId;
use std::path::Path;

/// `gpumem ARGS` in this directory.
fn at(dir: &Dir, place: &Path, args: &[&str]) -> Answer {
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).current_dir(place).args(args);
    answer(command)
}

/// The pid of the process that is shown.
fn shown(answer: &Answer) -> u64 {
    assert_eq!(answer.code, 0, "{}", answer.err);
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    report["process"]["pid"].as_u64().unwrap()
}

#[test]
fn a_running_process_is_meant_before_a_file_of_its_name() {
    let (dir, place) = (dir(), tempfile::tempdir().unwrap());
    dir.put(me(), demo(me()));
    let other = gone();
    let pid = me().pid.to_string();
    for name in ["demo-server", pid.as_str()] {
        std::fs::write(place.path().join(name), "no ledger").unwrap();
        assert_eq!(shown(&at(&dir, place.path(), &["allocs", "--json", name])), u64::from(me().pid), "{name}");
        // Not even a ledger comes first; with a slash it is meant.
        std::fs::write(place.path().join(name), demo(other).finish()).unwrap();
        assert_eq!(shown(&at(&dir, place.path(), &["allocs", "--json", name])), u64::from(me().pid), "{name}");
        let path = format!("./{name}");
        assert_eq!(shown(&at(&dir, place.path(), &["allocs", "--json", &path])), u64::from(other.pid), "{name}");
        assert_eq!(
            shown(&at(&dir, place.path(), &["allocs", "--json", "--file", name])),
            u64::from(other.pid),
            "{name}"
        );
    }
}

#[test]
fn a_file_is_meant_where_nothing_of_its_name_runs() {
    let (dir, place) = (dir(), tempfile::tempdir().unwrap());
    let (dead, other) = (gone(), gone());
    dir.put(dead, demo(dead));
    let pid = dead.pid.to_string();
    for name in ["demo-server", "anything", pid.as_str()] {
        std::fs::write(place.path().join(name), demo(other).finish()).unwrap();
        assert_eq!(shown(&at(&dir, place.path(), &["allocs", "--json", name])), u64::from(other.pid), "{name}");
    }
    // What the dead one left is meant before a file that is no ledger.
    std::fs::write(place.path().join(&pid), "no ledger").unwrap();
    assert_eq!(shown(&at(&dir, place.path(), &["allocs", "--json", &pid])), u64::from(dead.pid));
    std::fs::write(place.path().join("anything"), "no ledger").unwrap();
    std::fs::write(place.path().join("4194304"), "no ledger").unwrap();
    for name in ["anything", "4194304"] {
        let answer = at(&dir, place.path(), &["allocs", name]);
        assert_eq!(answer.code, 1);
        assert!(answer.err.contains("9 bytes are too few for a ledger"), "{}", answer.err);
    }
}

/// Returns the command that the answer offers for one pid.
fn advice(dir: &Dir, args: &[&str], pid: u32) -> String {
    let answer = dir.gpumem(args);
    assert_eq!(answer.code, 4, "{args:?}: {}", answer.err);
    let pid = pid.to_string();
    let line = answer.err.lines().find(|line| line.contains(&pid)).unwrap_or_else(|| panic!("{}", answer.err));
    line.split('#').next().unwrap().trim().to_owned()
}

#[test]
fn what_to_type_is_what_was_typed() {
    let dir = dir();
    let (a, b) = (Sleeper::start(), Sleeper::start());
    for id in [a.id(), b.id()] {
        dir.put(id, demo(id));
    }
    let pid = a.id().pid;
    for (typed, wanted) in [
        (&["mark", "hello"][..], "gpumem mark hello PID"),
        (&["mark", "it's here"], "gpumem mark 'it'\\''s here' PID"),
        (&["mark", "demo-server", "demo-server"], "gpumem mark demo-server PID"),
        (&["trim", "--press"], "gpumem trim --press PID"),
        (&["set", "LIMIT=1G"], "gpumem set PID LIMIT=1G"),
        (&["set", "LIMIT=1G", "--force", "POOL_MAX=0"], "gpumem set PID LIMIT=1G --force POOL_MAX=0"),
        (&["--json", "get"], "gpumem --json get PID"),
        (&["get", "LIMIT", "POOL"], "gpumem get PID LIMIT POOL"),
        (&["set", "demo-server", "LIMIT=1G"], "gpumem set PID LIMIT=1G"),
        (&["set", "--color", "never", "demo-server", "limit=1G"], "gpumem set --color never PID limit=1G"),
        (&["dump", "-o", "demo-server"], "gpumem dump -o demo-server PID"),
        (&["dump", "-o", "demo-server", "demo-server"], "gpumem dump -o demo-server PID"),
        (&["dump", "demo-server", "-odemo-server"], "gpumem dump PID -odemo-server"),
        (&["export", "--format", "csv", "demo-server"], "gpumem export --format csv PID"),
        (&["allocs", "--by", "tag", "-n", "3"], "gpumem allocs --by tag -n 3 PID"),
        (&["--json", "allocs", "demo-server", "--by=tag"], "gpumem --json allocs PID --by=tag"),
    ] {
        assert_eq!(advice(&dir, typed, pid), wanted.replace("PID", &pid.to_string()), "{typed:?}");
    }
    let pid_b = b.id().pid.to_string();
    assert_eq!(advice(&dir, &["diff", &pid_b, "demo-server"], pid), format!("gpumem diff {pid_b} {pid}"));
    assert_eq!(advice(&dir, &["diff", "demo-server", &pid_b], pid), format!("gpumem diff {pid} {pid_b}"));
}

#[test]
fn the_dead_are_not_offered_to_commands_that_need_the_living() {
    let dir = dir();
    let dead = [gone(), gone()];
    for id in dead {
        dir.put(id, demo(id));
    }
    for args in [&["mark", "x"][..], &["trim"]] {
        let answer = dir.gpumem(args);
        assert_eq!(answer.code, 3, "{args:?}: {}", answer.err);
        assert!(answer.err.contains("no process with libgpumem.so is running"), "{}", answer.err);
        assert!(answer.err.contains("2 ledgers"), "{}", answer.err);
    }
    assert!(advice(&dir, &["stats"], dead[0].pid).starts_with("gpumem stats "));
    let alive = [Sleeper::start(), Sleeper::start()];
    for sleeper in &alive {
        dir.put(sleeper.id(), demo(sleeper.id()));
    }
    let answer = dir.gpumem(&["mark", "x"]);
    assert!(answer.err.contains("2 processes fit"), "{}", answer.err);
}

#[test]
fn a_dead_one_is_told_by_its_pid() {
    let dir = dir();
    let dead = |pid| ProcessId { pid, start_ticks: 1 };
    dir.put(dead(999_991), demo(dead(999_991)));
    let answer = dir.gpumem(&["allocs", "--kind", "device", "demo-server"]);
    assert_eq!(answer.code, 3);
    assert!(answer.err.contains("no process demo-server is running; pid 999991 "), "{}", answer.err);
    assert!(answer.err.ends_with("to see what it left, type: gpumem allocs --kind device 999991\n"), "{}", answer.err);
    // The program's own file is no ledger, and has its name.
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("demo-server"), "\x7fELF").unwrap();
    let beside_it = at(&dir, place.path(), &["allocs", "demo-server"]);
    assert!(beside_it.err.contains("no process demo-server is running; pid 999991 "), "{}", beside_it.err);
    let answer = dir.gpumem(&["trim"]);
    assert!(answer.err.contains("is running; there is 1 ledger of an ended process; this command"), "{}", answer.err);
    dir.put(dead(999_992), demo(dead(999_992)));
    let answer = dir.gpumem(&["trim"]);
    assert!(answer.err.contains("is running; there are 2 ledgers of ended processes; this command"), "{}", answer.err);
    let answer = dir.gpumem(&["trim", "demo-server"]);
    assert!(answer.err.contains(", the last of 2; this command needs a running process\n"), "{}", answer.err);
}
