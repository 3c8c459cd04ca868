//! The simulated driver's checkpoints between processes.

use gpumem_tests::group::tell;
use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{Program, client};
use std::time::Duration;
use tempfile::TempDir;

/// Processes that can ask each other for checkpoints.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn program(&self) -> Program {
        client("checkpoint").env("SIM_CHECKPOINT", self.0.path()).waits()
    }

    fn start(&self) -> Running {
        let running = self.program().start(false);
        running.says("ready");
        running
    }
}

/// Takes steps (`lock`, `checkpoint`, …) with a process; their answers.
fn steps(caller: &mut Running, pid: u32, words: &[&str]) -> Vec<String> {
    words.iter().map(|word| tell(caller, &format!("{word} {pid} 2000"))).collect()
}

const OF_NO_PROCESS: &str = "304";

#[test]
fn a_process_is_parked_and_goes_on_where_it_was() {
    let machine = Machine::new();
    let (mut target, mut caller) = (machine.start(), machine.start());
    let pid = target.pid();
    assert_eq!(tell(&mut target, "alloc 16"), "0");
    assert_eq!(steps(&mut caller, pid, &["lock", "checkpoint", "state"]), ["0", "0", "0 2"]);
    target.tell("check");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(target.stdout().lines().count(), 2, "a call waits");
    assert_eq!(steps(&mut caller, pid, &["checkpoint", "unlock", "restore", "state"]), ["401", "401", "0", "0 1"]);
    assert_eq!(steps(&mut caller, pid, &["unlock", "state"]), ["0", "0 0"]);
    target.says("check: 0");
    let thread = tell(&mut caller, &format!("thread {pid}"));
    let thread = thread.strip_prefix("0 ").expect("a thread");
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap();
    assert_eq!(name, "sim-checkpoint\n");
    assert_eq!(tell(&mut target, "state 1"), OF_NO_PROCESS);
}

#[test]
fn a_lock_waits_for_work_and_gives_up_at_its_limit() {
    let machine = Machine::new();
    let (mut target, mut caller) = (machine.start(), machine.start());
    let pid = target.pid();
    assert_eq!(tell(&mut target, "work 400"), "0");
    assert_eq!(tell(&mut caller, &format!("lock {pid} 20")), "600");
    assert_eq!(tell(&mut target, "alloc 2"), "0", "it goes on");
    assert_eq!(tell(&mut caller, &format!("lock {pid} 0")), "0");
    assert_eq!(steps(&mut caller, pid, &["unlock"]), ["0"]);
    // Work is over that the program never waited for.
    assert_eq!(tell(&mut target, "managed 2"), "0");
    assert_eq!(steps(&mut caller, pid, &["lock", "checkpoint", "state", "unlock"]), ["0", "801", "0 1", "0"]);
}

#[test]
fn a_process_that_has_ended_is_none_and_its_children_are_not_it() {
    let machine = Machine::new();
    let (mut target, mut caller) = (machine.start(), machine.start());
    let pid = target.pid();
    assert_eq!(tell(&mut target, "fork"), "0");
    assert_eq!(steps(&mut caller, pid, &["state"]), ["0 0"]);
    target.signal(libc::SIGKILL);
    wait_for("its end", || target.reap());
    assert_eq!(steps(&mut caller, pid, &["lock"]), [OF_NO_PROCESS]);
    assert_eq!(steps(&mut caller, std::process::id(), &["lock"]), [OF_NO_PROCESS], "a process without a driver");
}

#[test]
fn whoever_ends_in_mid_call_is_missed() {
    let machine = Machine::new();
    let slow = || machine.program().env("SIM_CHECKPOINT_US", "60000000").start(false);
    let (mut target, mut caller, mut other) = (slow(), machine.start(), machine.start());
    let pid = target.pid();
    assert_eq!(steps(&mut caller, pid, &["lock"]), ["0"]);
    caller.tell(&format!("checkpoint {pid}"));
    std::thread::sleep(Duration::from_millis(50));
    caller.signal(libc::SIGKILL);
    let state_and_step = steps(&mut other, pid, &["state", "restore", "unlock"]);
    assert_eq!(state_and_step, ["0 3", "304", "304"], "the target has failed");
    target.tell("info");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(target.stdout().lines().count(), 1, "and its calls never return");
    // The target ends.
    let mut target = slow();
    let pid = target.says("ready").pid();
    assert_eq!(steps(&mut other, pid, &["lock"]), ["0"]);
    other.tell(&format!("checkpoint {pid}"));
    std::thread::sleep(Duration::from_millis(50));
    target.signal(libc::SIGKILL);
    wait_for("its end", || target.reap());
    other.says(&format!("checkpoint {pid}: {OF_NO_PROCESS}"));
}

#[test]
fn drivers_without_checkpoints_say_so_or_have_no_such_function() {
    let machine = Machine::new();
    let answers = |value: Option<&str>| {
        let program = client("checkpoint").waits();
        let mut running = value.map_or(program.clone(), |value| program.env("SIM_CHECKPOINT", value)).start(false);
        let pid = running.pid();
        steps(&mut running, pid, &["lock", "state"])
    };
    assert_eq!(answers(None), ["801", "801"]);
    assert_eq!(answers(Some("none")), ["-1", "-1"]);
    let mut target = machine.start();
    let mut caller = machine.program().env("SIM_FAULT", "cuCheckpointProcessCheckpoint:1=304").start(false);
    let pid = target.pid();
    assert_eq!(steps(&mut caller, pid, &["lock", "checkpoint", "state", "unlock"]), ["0", "304", "0 1", "0"]);
    assert_eq!(tell(&mut target, "alloc 2"), "0");
}
