//! `gpumem park` and `gpumem resume`: programs whose memory leaves the card and comes back, and those that cannot.

use gpumem_tests::group::tell;
use gpumem_tests::harness::artifacts::{artifacts, repository};
use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{self, Program, client};
use gpumem_tests::skipped::skipped;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A machine with one card of 1.5 GiB that all programs share, and with NVML.
pub(crate) struct Machine(TempDir);

impl Machine {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let source = repository().join("tests/sim/nvml.c");
        let library = dir.path().join("libnvidia-ml.so.1");
        let made = Command::new(cc).args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).status();
        assert!(made.expect("a C compiler").success());
        std::fs::create_dir(dir.path().join("driver")).expect("a directory");
        Self(dir)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    fn card(&self) -> PathBuf {
        self.dir().join("card")
    }

    pub(crate) fn ledgers(&self) -> PathBuf {
        self.dir().join("ledgers")
    }

    pub(crate) fn on(&self, program: Program) -> Program {
        let program = program.env("SIM_CHECKPOINT", self.dir().join("driver")).env("SIM_CARD", self.card());
        program.env("SIM_DEVICE_MEM", "1536M").env("SIM_CONTEXT_MEM", "64M").dir(self.ledgers()).waits()
    }

    fn start(&self, preloaded: bool) -> Running {
        let running = self.on(client("checkpoint")).start(preloaded);
        running.says("ready");
        running
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&artifacts().gpumem);
        let libraries = std::env::join_paths([self.dir(), &artifacts().stage]).expect("paths");
        command.args(["--dir"]).arg(self.ledgers()).args(words);
        command.env("LD_LIBRARY_PATH", libraries).env("NVML_CARD", self.card());
        command.env("SIM_CHECKPOINT", self.dir().join("driver")).env("SIM_DEVICE_MEM", "1536M").env_remove("SIM_CARD");
        command
    }

    pub(crate) fn gpumem(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("gpumem runs")
    }

    /// Returns the output of a command that succeeds.
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let output = self.gpumem(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Returns the words of a command that refuses.
    fn refuses(&self, words: &[&str]) -> String {
        let output = self.gpumem(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}{said}", String::from_utf8_lossy(&output.stdout));
        said
    }
}

fn pid(running: &Running) -> String {
    running.pid().to_string()
}

#[test]
fn programs_are_parked_and_come_back_with_and_without_the_shim() {
    let machine = Machine::new();
    for preloaded in [false, true] {
        let mut target = machine.start(preloaded);
        let name = pid(&target);
        assert_eq!(tell(&mut target, "alloc 64"), "0");
        let dry = machine.says(&["park", "--dry-run", &name]);
        assert!(dry.contains("would park pid") && dry.contains("128.0 MiB of GPU-"), "{dry}");
        let said: Value = serde_json::from_str(&machine.says(&["park", "--json", &name])).expect("JSON");
        assert_eq!(said["processes"][0]["pid"], target.pid(), "{said:#}");
        assert_eq!((&said["bytes"], &said["freed_bytes"]), (&said["freed_bytes"], &said["bytes"]), "{said:#}");
        assert_eq!(said["bytes"], 128 << 20, "{said:#}");
        target.tell("check");
        let again = machine.refuses(&["park", &name]);
        assert!(again.contains("it is parked"), "{again}");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(target.stdout().lines().count(), 2, "its call waits");
        let back = machine.says(&["resume"]);
        assert!(back.contains("128.0 MiB are back"), "{back}");
        target.says("check: 0");
        assert_eq!(machine.gpumem(&["resume"]).status.code(), Some(3), "nothing is parked");
        assert_eq!(tell(&mut target, "alloc 2"), "0");
    }
}

#[test]
fn what_cannot_be_parked_is_refused_by_name_and_runs_on() {
    let machine = Machine::new();
    let mut managed = machine.start(true);
    assert_eq!(tell(&mut managed, "managed 2"), "0");
    let refused = machine.refuses(&["park", &pid(&managed)]);
    assert!(refused.contains("nothing was parked") && refused.contains("2.0 MiB of managed memory"), "{refused}");
    // Without the shim the driver says so, and the program is let go.
    let mut unseen = machine.start(false);
    assert_eq!(tell(&mut unseen, "managed 2"), "0");
    let refused = machine.refuses(&["park", &pid(&unseen)]);
    assert!(refused.contains("parking of pid") && refused.contains("error 801"), "{refused}");
    for running in [&mut managed, &mut unseen] {
        assert_eq!(tell(running, "check"), "0");
    }
    // Work that takes longer than it may.
    let mut busy = machine.start(false);
    assert_eq!(tell(&mut busy, "work 3000"), "0");
    let refused = machine.refuses(&["park", "--lock-time", "50ms", &pid(&busy)]);
    assert!(refused.contains("error 600") && refused.contains("--lock-time"), "{refused}");
    assert_eq!(tell(&mut busy, "alloc 2"), "0");
    // Processes without CUDA, and none at all.
    let none = machine.gpumem(&["park", &std::process::id().to_string(), "--alone"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("does not use CUDA, says the NVIDIA driver"), "{none:?}");
    assert_eq!(none.status.code(), Some(3));
    let stopped = machine.start(false);
    stopped.signal(libc::SIGSTOP);
    wait_for("the stop", || {
        machine.gpumem(&["park", "--dry-run", &pid(&stopped)]).stdout.windows(10).any(|part| part == b"is stopped")
    });
    stopped.signal(libc::SIGCONT);
}

#[test]
fn another_users_process_is_named_as_such() {
    let machine = Machine::new();
    let mut command = machine.command(&["park", "1"]);
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65534);
    }
    let refused = match command.output() {
        Ok(refused) => refused,
        Err(why) => {
            return skipped(format_args!("user 65534 cannot start gpumem: {why}"), "a folder that all may read");
        }
    };
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("pid 1: it belongs to user 0: only that user and root may park it"), "{refused:?}");
}

#[test]
fn a_descendant_that_begins_to_use_the_gpu_meanwhile_is_parked_with_the_others() {
    let machine = Machine::new();
    let script = "sleep 60 | \"$0\" & read line; sleep 60 | \"$0\" & read line";
    let member = artifacts().clients.join("checkpoint");
    let parent = machine.on(harness::command("sh").args(["-c", script]).arg(member));
    let mut parent = parent.env("SIM_CHECKPOINT_US", "1000000").start(false);
    parent.says("ready");
    let mut park = machine.command(&["park", &pid(&parent)]);
    let park = park.stdout(Stdio::piped()).spawn().expect("gpumem starts");
    let is_note = |name: &str| name.ends_with(".parked");
    wait_for("a note", || {
        let notes = std::fs::read_dir(machine.ledgers());
        notes.is_ok_and(|mut all| all.any(|entry| is_note(&entry.unwrap().file_name().to_string_lossy())))
    });
    parent.tell("go");
    let parked = park.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&parked.stdout);
    assert!(said.contains("to bring 2 processes back"), "{parked:?}");
    let back = machine.says(&["resume"]);
    assert_eq!(back.matches("resumed pid").count(), 2, "{back}");
}

#[test]
fn a_resume_that_may_find_no_room_is_not_tried() {
    let machine = Machine::new();
    let (mut first, mut second) = (machine.start(true), machine.start(false));
    assert_eq!(tell(&mut first, "alloc 200"), "0");
    machine.says(&["park", &pid(&first)]);
    assert_eq!(tell(&mut second, "alloc 200"), "0", "there is room now");
    let refused = machine.refuses(&["resume", &pid(&first)]);
    assert!(refused.contains("nothing was resumed") && refused.contains("a margin of 1.0 GiB"), "{refused}");
    machine.says(&["park", &pid(&second)]);
    machine.says(&["resume", &pid(&first)]);
    assert_eq!(tell(&mut first, "check"), "0");
    let several = machine.start(false);
    machine.says(&["park", &pid(&several)]);
    assert_eq!(machine.gpumem(&["resume"]).status.code(), Some(4), "two jobs are parked");
    // One that is killed while it is parked leaves nothing.
    several.signal(libc::SIGKILL);
    let mut several = several;
    wait_for("its end", || several.reap());
    first.signal(libc::SIGKILL);
    wait_for("its end", || first.reap());
    machine.says(&["resume"]);
    assert_eq!(tell(&mut second, "check"), "0");
    let left = std::fs::read_dir(machine.ledgers()).expect("ledgers").flatten();
    let left: Vec<_> = left.filter(|entry| entry.path().extension().is_some_and(|end| end == "parked")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The driver ends a parked process that asks if work is done. With libgpumem.so such a call waits, too.
#[test]
fn a_program_that_polls_outlives_its_park_with_the_shim() {
    let machine = Machine::new();
    for preloaded in [false, true] {
        let mut target = machine.start(preloaded);
        assert_eq!(tell(&mut target, "alloc 16"), "0");
        machine.says(&["park", &pid(&target)]);
        target.tell("query");
        if !preloaded {
            wait_for("its end", || target.reap());
            continue;
        }
        std::thread::sleep(Duration::from_millis(300));
        machine.says(&["resume", &pid(&target)]);
        target.says("query: 0");
        assert_eq!(tell(&mut target, "check"), "0");
    }
}

/// One of them parks it; the other changes nothing, neither its note nor what the shim knows.
#[test]
fn of_two_parks_at_once_one_is_refused_and_the_program_comes_back() {
    let machine = Machine::new();
    for preloaded in [false, true] {
        let mut target = machine.start(preloaded);
        assert_eq!(tell(&mut target, "alloc 16"), "0");
        let askers = [(); 2].map(|()| machine.command(&["park", &pid(&target)]).spawn().expect("gpumem starts"));
        let codes = askers.map(|mut asker| asker.wait().expect("it ends").code());
        assert!(codes.contains(&Some(0)) && codes.contains(&Some(1)), "{codes:?}");
        let back = machine.says(&["resume"]);
        assert!(back.contains("80.0 MiB are back"), "{back}");
        assert_eq!(tell(&mut target, "check"), "0");
    }
}

/// A shell parks itself: gpumem below it is no program to be parked.
#[test]
fn the_asker_itself_is_not_parked() {
    let machine = Machine::new();
    let mut target = machine.start(false);
    assert_eq!(tell(&mut target, "alloc 16"), "0");
    let dry = machine.says(&["park", "--dry-run", &std::process::id().to_string()]);
    assert_eq!(dry.lines().count(), 1, "{dry}");
    let said = machine.says(&["park", &std::process::id().to_string()]);
    assert!(said.contains(&format!("parked pid {}", target.pid())), "{said}");
    machine.says(&["resume"]);
    assert_eq!(tell(&mut target, "check"), "0");
}

/// Whoever asked may end at any moment: the process that makes the calls finishes what it began.
#[test]
fn an_asker_that_is_killed_leaves_the_program_usable() {
    let machine = Machine::new();
    let target = machine.on(client("checkpoint")).env("SIM_CHECKPOINT_US", "2000000").start(false);
    let mut target = target;
    target.says("ready");
    assert_eq!(tell(&mut target, "alloc 64"), "0");
    let mut asker = machine.command(&["park", &pid(&target)]).spawn().expect("gpumem starts");
    let noted = || std::fs::read_dir(machine.ledgers()).is_ok_and(|all| all.flatten().count() > 0);
    wait_for("the note", noted);
    std::thread::sleep(Duration::from_millis(300));
    asker.kill().expect("it runs");
    let _ = asker.wait();
    let begin = Instant::now();
    loop {
        let output = machine.gpumem(&["resume", &pid(&target)]);
        if output.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(begin.elapsed() < Duration::from_secs(30), "{said}");
    }
    assert_eq!(tell(&mut target, "check"), "0");
}
