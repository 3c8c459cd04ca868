//! One limit for a group of processes: never above it, and no byte is lost, whatever becomes of members.

use gpumem_tests::group::{Plan, Watch, kill_at_random, member, tell};
use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{Program, artifacts};
use gpumem_wire::group::{Device, FILE_BYTES, SLOTS, Slot, slot_at};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A group in a directory of its own.
struct Group {
    dir: tempfile::TempDir,
    watch: Watch,
}

impl Group {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::new(dir.path(), 8);
        Self { dir, watch }
    }

    /// A member with this number, as the group is named there.
    fn program(&self, number: usize, group: &str) -> Program {
        member(self.dir.path(), group, &self.watch, number)
    }

    fn member(&self, number: usize) -> Running {
        self.program(number, "team:256MiB").waits().start(true)
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("team.group")
    }

    fn in_use(&self) -> u64 {
        self.watch.sum(|_| true).expect("nobody changes anything now") >> 20
    }
}

const FINE: &str = "0";
const FULL: &str = "2";

#[test]
fn members_that_are_killed_leave_nothing_and_the_limit_holds() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { members: 12, kills: 120, seed: 7, every: 0 };
    let outcome = kill_at_random(dir.path(), plan, |_| {}).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!((outcome.kills >= 120, outcome.whole), (true, 1), "{outcome:?}");
    assert!(outcome.looks > 1000 && outcome.most > 64 << 20, "the watcher saw something: {outcome:?}");
}

#[test]
fn two_members_share_what_there_is() {
    let group = Group::new();
    let (mut a, mut b) = (group.member(0), group.member(1));
    assert_eq!(tell(&mut a, "alloc 200"), FINE);
    assert_eq!(tell(&mut b, "alloc 64"), FULL);
    assert_eq!(tell(&mut b, "create 56"), FINE);
    assert_eq!(tell(&mut b, "async 2"), FULL);
    assert_eq!(tell(&mut b, "pitch 2"), FULL);
    assert_eq!((tell(&mut a, "info").as_str(), tell(&mut b, "info").as_str()), ("info 0 256", "info 0 256"));
    assert_eq!(group.in_use(), 256);
    assert_eq!(tell(&mut b, "drop"), FINE);
    assert_eq!(tell(&mut b, "info"), "info 56 256");
    // What goes with a context goes from the count.
    assert_eq!(tell(&mut a, "context"), FINE);
    assert_eq!(tell(&mut b, "alloc 256"), FINE);
    assert_eq!(tell(&mut a, "alloc 2"), FULL);
    a.ledger().sound();
}

/// Freed memory stays with the pool of its process; another member that needs it gets it.
#[test]
fn what_one_member_keeps_another_gets() {
    let group = Group::new();
    let keeps = group.program(0, "team:256MiB").env("GPUMEM_POOL_DECAY", "0").env("GPUMEM_POOL_MAX", "1GiB");
    let (mut a, mut b) = (keeps.waits().start(true), group.member(1));
    assert_eq!((tell(&mut a, "alloc 200"), tell(&mut a, "free")), (FINE.into(), FINE.into()));
    assert_eq!(group.in_use(), 200, "the pool keeps it");
    // A machine that is busy may let the other one answer late.
    wait_for("what the other keeps", || tell(&mut b, "alloc 250") == FINE);
    assert_eq!(group.in_use(), 250);
    assert_eq!(tell(&mut a, "info"), "info 6 256");
}

#[test]
fn a_killed_members_bytes_come_back_and_a_stopped_ones_do_not() {
    let group = Group::new();
    let (mut a, mut b) = (group.member(0), group.member(1));
    assert_eq!(tell(&mut a, "alloc 200"), FINE);
    a.signal_until(libc::SIGSTOP, 'T');
    assert_eq!(tell(&mut b, "alloc 200"), FULL);
    drop(a);
    assert_eq!(tell(&mut b, "alloc 256"), FINE);
}

/// The kernel's lock is not the child's, nor its descriptor's, nor the next image's.
#[test]
fn a_member_ends_with_its_image_and_not_with_its_children() {
    let group = Group::new();
    let (mut a, mut b) = (group.member(0), group.member(1));
    assert_eq!(tell(&mut a, "alloc 100"), FINE);
    // Whoever closes what it did not open does not leave.
    assert_eq!(tell(&mut a, "close"), FINE);
    assert_eq!(tell(&mut b, "create 200"), FULL);
    // A child that lives on has nothing of it.
    assert_eq!(tell(&mut a, "fork"), FINE);
    let ready = |running: &Running| running.stdout().matches("ready").count();
    assert_eq!(ready(&a), 1);
    a.tell("exec");
    wait_for("the next image", || ready(&a) == 2);
    assert_eq!(tell(&mut b, "create 254"), FINE);
    assert_eq!(tell(&mut a, "alloc 4"), FULL);
    assert_eq!(tell(&mut a, "alloc 2"), FINE);
}

/// A child that another thread forks while a seat is taken has neither the lock's descriptor nor its mapping.
#[test]
fn a_child_of_the_moment_in_which_a_member_joins_keeps_nothing() {
    for moment in ["lock", "map"] {
        let group = Group::new();
        let forking = artifacts().clients.join("libforking.so");
        let both = [artifacts().shim.as_os_str(), forking.as_os_str()].join(OsStr::new(":"));
        let joins = group.program(0, "team:256MiB").env("FORKING", moment).env("LD_PRELOAD", both);
        let (mut a, mut b) = (joins.waits().start(true), group.member(1));
        assert_eq!((tell(&mut a, "alloc 200"), tell(&mut b, "alloc 200")), (FINE.into(), FULL.into()), "{moment}");
        drop(a);
        assert_eq!(tell(&mut b, "alloc 256"), FINE, "{moment}");
    }
}

#[test]
fn of_two_limits_the_smaller_counts_and_ones_own_limit_holds_too() {
    let group = Group::new();
    let mut large = group.member(0);
    assert_eq!(tell(&mut large, "alloc 100"), FINE);
    let mut small = group.program(1, "team:128MiB").waits().start(true);
    assert_eq!(tell(&mut small, "alloc 30"), FULL);
    assert_eq!(tell(&mut small, "alloc 28"), FINE);
    assert_eq!(tell(&mut large, "alloc 2"), FULL);
    assert_eq!(tell(&mut large, "info"), "info 0 128");
    drop(small);
    assert_eq!(tell(&mut large, "alloc 156"), FINE);
    drop(large);
    let mut both = group.program(2, "team:256MiB").env("GPUMEM_LIMIT", "64MiB").waits().start(true);
    assert_eq!(tell(&mut both, "alloc 66"), FULL);
    assert_eq!(tell(&mut both, "info"), "info 64 64");
    assert_eq!(tell(&mut both, "alloc 64"), FINE);
    // Neither the pool nor the records of blocks are needed.
    let mut plain = group.program(3, "team:256MiB").env("GPUMEM_POOL", "0").waits().start(true);
    assert_eq!(tell(&mut plain, "alloc 194"), FULL);
    assert_eq!(tell(&mut plain, "alloc 192"), FINE);
    assert_eq!(tell(&mut plain, "free"), FINE);
    assert_eq!(tell(&mut plain, "alloc 192"), FINE);
}

/// A process with a limit of its own as well is refused as fast: its request does not wait for itself.
#[test]
fn a_request_does_not_wait_for_itself() {
    let group = Group::new();
    let requests = "alloc 200\n".to_owned() + &"alloc 100\n".repeat(6);
    let time = |number: usize, own: &[(&str, &str)]| {
        let program = group.program(number, "team:256MiB").envs(own).input(requests.clone());
        let start = Instant::now();
        let ran = program.preloaded().ok();
        assert_eq!(ran.out, "ready\nalloc 200: 0\n".to_owned() + &"alloc 100: 2\n".repeat(6));
        start.elapsed()
    };
    let (with, without) = (time(0, &[("GPUMEM_LIMIT", "16GiB")]), time(1, &[]));
    assert!(with < 10 * without, "{with:?}, without a limit of its own {without:?}");
}

/// Whoever runs out is told that it is the group, and who of it holds what.
#[test]
fn who_runs_out_at_the_groups_limit_is_told_who_holds_it() {
    let group = Group::new();
    let mut holds = group.member(0);
    assert_eq!(tell(&mut holds, "alloc 200"), FINE);
    let short = group.program(1, "team:256MiB").env("GPUMEM_OOM_REPORT", "1").input("alloc 20\nalloc 40\n");
    let ran = short.preloaded().ok();
    assert_eq!(ran.out, "ready\nalloc 20: 0\nalloc 40: 2\n");
    let said = ran.ours().join("\n");
    assert!(said.contains("group team has 220.0 MiB of 256.0 MiB"), "{said}");
    assert!(said.contains(&format!("group team: 200.0 MiB, 0 B of them idle: group (pid {})", holds.pid())), "{said}");
    let report = gpumem_tests::harness::ledger::gpumem(group.dir.path(), &["doctor", &ran.pid.to_string()]);
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["id"] == "memory").unwrap()["finding"].as_str().unwrap();
    assert!(found.starts_with("an allocation of 40.0 MiB failed at GPUMEM_LIMIT_GROUP=team:256MiB"), "{found}");
    assert!(found.contains(&format!("(pid {})", holds.pid())), "{found}");
}

/// If a process cannot be counted with others, the limit holds for that process alone, and that is said.
#[test]
fn a_file_that_is_not_to_be_trusted_is_left_alone() {
    let group = Group::new();
    let other = group.dir.path().join("other");
    /// Makes something that is no file of a group.
    type Wrong<'a> = &'a dyn Fn(&Path);
    let wrong: [(&str, Wrong); 6] = [
        ("not the file of a group", &|path| std::fs::write(path, vec![1; FILE_BYTES]).unwrap()),
        ("too short", &|path| std::fs::write(path, "x").unwrap()),
        ("others than its owner may write", &|path| {
            std::fs::write(path, "x").unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
        }),
        ("symbolic links", &|path| symlink(&other, path).unwrap()),
        ("directory", &|path| std::fs::create_dir(path).unwrap()),
        ("not a regular file", &|path| {
            let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: `name` ends in NUL and lives until mkfifo returns.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        }),
    ];
    for (number, (why, make)) in wrong.into_iter().enumerate() {
        let path = group.dir.path().join(format!("wrong-{number}.group"));
        make(&path);
        let name = format!("wrong-{number}:256MiB");
        let ran = group.program(0, &name).input("alloc 258\nalloc 256\ncreate 2\ninfo\n").preloaded().ok();
        assert_eq!(ran.out, "ready\nalloc 258: 2\nalloc 256: 0\ncreate 2: 2\ninfo 0 256\ninfo 0: 0\n", "{why}");
        let said = ran.ours().join("\n");
        assert!(said.contains(why) && said.contains("holds for this process alone"), "{why}: {said}");
        assert!(said.contains(path.to_str().unwrap()), "{said}");
    }
    assert!(!other.exists());
    // A path whose directory is not there.
    let ran = group.program(0, "/nowhere/at/all:256MiB").input("alloc 258\nalloc 256\n").preloaded().ok();
    assert_eq!(ran.out, "ready\nalloc 258: 2\nalloc 256: 0\n");
    assert!(ran.ours().join("\n").contains("/nowhere/at/all: No such file"), "{:?}", ran.ours());
    // What is no group at all is refused as any variable's value is.
    let ran = group.program(0, "team").input("alloc 300\n").preloaded().ok();
    assert_eq!(ran.out, "ready\nalloc 300: 0\n");
    let said = ran.ours().join("\n");
    assert!(said.contains("GPUMEM_LIMIT_GROUP=\"team\" is refused: allowed is NAME:SIZE"), "{said}");
}

#[test]
fn a_file_that_is_removed_or_written_over_is_put_right() {
    let group = Group::new();
    let (mut a, mut b) = (group.member(0), group.member(1));
    assert_eq!((tell(&mut a, "alloc 100"), tell(&mut b, "alloc 100")), (FINE.into(), FINE.into()));
    std::fs::remove_file(group.file()).unwrap();
    // Each takes a seat in a new one, and says what it has.
    let has_both = || {
        let file = File::open(group.file()).ok()?;
        let slots = gpumem_wire::group::slots(&file, FILE_BYTES as u64).ok()?;
        Some(
            slots.iter().filter(|(_, slot)| slot.devices().iter().any(|device| device.taken == 100 << 20)).count() == 2,
        )
    };
    wait_for("both to be counted", || has_both() == Some(true));
    assert_eq!(tell(&mut a, "alloc 58"), FULL);
    // Numbers that are no member's own.
    let file = OpenOptions::new().write(true).open(group.file()).unwrap();
    for index in 0..SLOTS {
        file.write_all_at(&[0xff; 1024], slot_at(index) as u64).unwrap();
    }
    wait_for("their own numbers", || tell(&mut a, "alloc 56") == FINE);
    assert_eq!(group.in_use(), 256);
    assert_eq!(tell(&mut b, "alloc 2"), FULL);
}

/// Whoever takes a dead member out, or comes to its slot, may be killed on the way: whatever is left there goes.
#[test]
fn a_slot_that_is_half_cleared_holds_nothing_back() {
    let group = Group::new();
    let mut here = group.member(0);
    here.says("ready");
    let file = OpenOptions::new().write(true).open(group.file()).unwrap();
    let write = |slot: usize, at: usize, bytes: &[u8]| file.write_all_at(bytes, (slot_at(slot) + at) as u64).unwrap();
    // Without a limit, as of nobody.
    let (one, most): (u64, u64) = (1, 200 << 20);
    write(5, offset_of!(Slot, devices) + offset_of!(Device, taken), &most.to_ne_bytes());
    write(5, offset_of!(Slot, devices) + offset_of!(Device, uuid), b"SIMULATED-GPU-\0\0");
    write(5, offset_of!(Slot, devices_len), &one.to_ne_bytes());
    // Without devices, and with a limit.
    write(6, offset_of!(Slot, limit), &(64_u64 << 20).to_ne_bytes());
    assert_eq!(tell(&mut here, "alloc 256"), FINE);
}

/// A page of a mapping that the file does not have any more is a SIGBUS for whoever touches it.
#[test]
fn a_file_that_is_cut_short_ends_nobody() {
    let group = Group::new();
    let (mut a, mut b) = (group.member(0), group.member(1));
    assert_eq!((tell(&mut a, "alloc 100"), tell(&mut b, "alloc 100")), (FINE.into(), FINE.into()));
    OpenOptions::new().write(true).open(group.file()).unwrap().set_len(0).unwrap();
    // Each by itself, until the file is one of a group's again.
    assert_eq!((tell(&mut a, "alloc 100"), tell(&mut b, "create 158")), (FINE.into(), FULL.into()));
    wait_for("what is said of it", || {
        let events = gpumem_tests::harness::ledger::gpumem(group.dir.path(), &["events", &a.pid().to_string()]);
        events.to_string().contains("holds for this process alone")
    });
    std::fs::remove_file(group.file()).unwrap();
    wait_for("a file", || group.file().exists());
    wait_for("what the other one has", || tell(&mut b, "info").starts_with("info 0"));
    assert_eq!(tell(&mut b, "alloc 2"), FULL);
}

/// A context that finds no room in the ledger cannot be counted, and gets no memory then.
#[test]
fn contexts_without_a_record_are_no_way_round_the_limit() {
    let group = Group::new();
    let few = group.program(0, "team:256MiB").env("GPUMEM_LEDGER_MAX", "1MiB").input("contexts 2000\nalloc 300\n");
    let ran = few.preloaded().ok();
    assert_eq!(ran.out, "ready\ncontexts 2000: 0\nalloc 300: 2\n");
}

/// Whoever finds no seat cannot be counted, and gets nothing until there is one.
#[test]
fn a_group_without_a_seat_left_gives_nothing() {
    let group = Group::new();
    let first = group.member(0);
    first.says("ready");
    drop(first);
    let file = OpenOptions::new().write(true).open(group.file()).unwrap();
    // SAFETY: zeroes are a valid flock.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    (all.l_type, all.l_start) = (libc::F_WRLCK as _, slot_at(0) as _);
    // SAFETY: `file` keeps the descriptor open, and `all` lives until fcntl returns.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut all) }, 0);
    let mut late = group.member(1);
    assert_eq!(tell(&mut late, "alloc 2"), FULL);
    drop(file);
    wait_for("a seat", || tell(&mut late, "alloc 256") == FINE);
}
