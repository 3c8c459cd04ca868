//! The simulated driver's checkpoints between processes, and the card that they share.

use gpumem_tests::group::tell;
use gpumem_tests::harness::artifacts::{artifacts, repository};
use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{Program, client};
use std::path::PathBuf;
use std::process::Command;
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

    /// The file of the card.
    fn card(&self) -> PathBuf {
        self.0.path().join("card")
    }

    /// A program that uses the card, which has 128 MiB.
    fn with_card(&self, program: Program) -> Program {
        program.envs(&[("SIM_DEVICE_MEM", "128M"), ("SIM_CONTEXT_MEM", "0")]).env("SIM_CARD", self.card())
    }

    fn share(&self) -> Running {
        let running = self.with_card(self.program()).start(false);
        running.says("ready");
        running
    }

    /// The most bytes of the card that were ever in use.
    fn most(&self) -> u64 {
        let bytes = std::fs::read(self.card()).unwrap();
        u64::from_le_bytes(bytes[8..16].try_into().unwrap())
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

/// The answers for a process without a driver, and for a number that no process has.
const NO_DRIVER: &str = "3";
const NO_PROCESS: &str = "304";

#[test]
fn a_process_is_parked_and_goes_on_where_it_was() {
    let machine = Machine::new();
    let (mut target, mut caller) = (machine.start(), machine.start());
    let pid = target.pid();
    assert_eq!(tell(&mut target, "alloc 16"), "0");
    assert_eq!(steps(&mut caller, pid, &["lock"]), ["0"]);
    assert!(tell(&mut target, "info").ends_with(" 16384"), "a question is answered");
    assert_eq!(tell(&mut target, &format!("state {pid}")), "0 1");
    assert_eq!(steps(&mut caller, pid, &["checkpoint", "state"]), ["0", "0 2"]);
    assert_eq!(tell(&mut target, &format!("state {pid}")), "0 2");
    assert_eq!(tell(&mut target, "info"), "304", "its memory is gone");
    target.tell("check");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(target.stdout().lines().count(), 6, "a call waits");
    assert_eq!(steps(&mut caller, pid, &["checkpoint", "unlock", "restore", "state"]), ["401", "401", "0", "0 1"]);
    assert_eq!(steps(&mut caller, pid, &["unlock", "state"]), ["0", "0 0"]);
    target.says("check: 0");
    let thread = tell(&mut caller, &format!("thread {pid}"));
    let thread = thread.strip_prefix("0 ").expect("a thread");
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap();
    assert_eq!(name, "sim-checkpoint\n");
    assert_eq!(tell(&mut target, "state 1"), NO_DRIVER);
}

#[test]
fn a_parked_process_that_asks_about_a_stream_dies() {
    let machine = Machine::new();
    let (mut target, mut caller) = (machine.start(), machine.start());
    let pid = target.pid();
    assert_eq!(tell(&mut target, "query"), "0");
    assert_eq!(steps(&mut caller, pid, &["lock"]), ["0"]);
    assert_eq!(tell(&mut target, "query"), "0");
    assert_eq!(steps(&mut caller, pid, &["checkpoint"]), ["0"]);
    target.tell("query");
    assert_eq!(target.finish().code, 128 + libc::SIGSEGV);
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
    assert_eq!(steps(&mut caller, pid, &["lock"]), [NO_PROCESS]);
    assert_eq!(steps(&mut caller, std::process::id(), &["lock"]), [NO_DRIVER]);
}

#[test]
fn whoever_ends_in_mid_call_is_missed() {
    let machine = Machine::new();
    let slow = || machine.program().env("SIM_CHECKPOINT_US", "60000000").start(false);
    let (mut target, mut caller, mut other) = (slow(), machine.start(), machine.start());
    let pid = target.says("ready").pid();
    assert_eq!(steps(&mut caller, pid, &["lock"]), ["0"]);
    caller.tell(&format!("checkpoint {pid}"));
    std::thread::sleep(Duration::from_millis(50));
    caller.signal(libc::SIGKILL);
    let state_and_step = steps(&mut other, pid, &["state", "restore", "unlock"]);
    assert_eq!(state_and_step, ["0 3", "304", "304"], "the target has failed");
    target.tell("sync");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(target.stdout().lines().count(), 1, "and its calls never return");
    // The target ends.
    let target = slow();
    let pid = target.says("ready").pid();
    assert_eq!(steps(&mut other, pid, &["lock"]), ["0"]);
    other.tell(&format!("checkpoint {pid}"));
    std::thread::sleep(Duration::from_millis(50));
    target.signal(libc::SIGKILL);
    // 3 before it is waited for.
    other.says(&format!("checkpoint {pid}: 3"));
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

#[test]
fn processes_share_a_card_and_the_dead_have_nothing_of_it() {
    let machine = Machine::new();
    let (mut one, mut two) = (machine.share(), machine.share());
    assert_eq!(tell(&mut one, "alloc 64"), "0");
    assert_eq!((tell(&mut two, "alloc 66"), tell(&mut two, "alloc 64")), ("2".into(), "0".into()));
    assert_eq!(tell(&mut one, "info"), "0 128");
    assert_eq!(tell(&mut one, "fork"), "0");
    one.signal(libc::SIGKILL);
    wait_for("its end", || one.reap());
    assert_eq!(tell(&mut two, "info"), "64 128");
    assert_eq!(
        (tell(&mut two, "alloc 64"), tell(&mut two, "alloc 2"), tell(&mut two, "check")),
        ("0".into(), "2".into(), "0".into())
    );
    assert_eq!(machine.most(), 128 << 20);
}

#[test]
fn a_parked_process_leaves_its_room_and_may_not_get_it_back() {
    let machine = Machine::new();
    let (mut one, mut two) = (machine.share(), machine.share());
    let pid = one.pid();
    assert_eq!(tell(&mut one, "alloc 64"), "0");
    assert_eq!(steps(&mut two, pid, &["lock", "checkpoint"]), ["0", "0"]);
    assert_eq!((tell(&mut two, "info"), tell(&mut two, "alloc 64")), ("128 128".into(), "0".into()));
    assert_eq!(steps(&mut two, pid, &["restore", "unlock"]), ["0", "0"], "there is room for both");
    assert_eq!((tell(&mut one, "check"), tell(&mut two, "check")), ("0".into(), "0".into()));
    assert_eq!(steps(&mut two, pid, &["lock", "checkpoint"]), ["0", "0"]);
    assert_eq!(tell(&mut two, "alloc 2"), "0");
    assert_eq!(steps(&mut two, pid, &["restore", "state", "restore"]), ["2", "0 2", "304"]);
    assert_eq!(tell(&mut two, "free"), "0");
    assert_eq!(steps(&mut two, pid, &["restore"]), ["304"], "for ever");
    assert_eq!((tell(&mut two, "info"), machine.most()), ("64 128".into(), 128 << 20));
}

#[test]
fn a_card_is_never_above_its_size_whoever_is_killed() {
    let machine = Machine::new();
    let churn = |seed: usize| {
        let program = machine.with_card(client("group")).args(["churn", &seed.to_string()]);
        program.start(false)
    };
    let mut members: Vec<Running> = (0..8).map(churn).collect();
    for round in 0..40 {
        std::thread::sleep(Duration::from_millis(5));
        let member = &mut members[round % 8];
        member.signal(libc::SIGKILL);
        wait_for("its end", || member.reap());
        *member = churn(round);
    }
    members.clear();
    let mut whole = machine.share();
    assert_eq!((tell(&mut whole, "alloc 128"), tell(&mut whole, "alloc 2")), ("0".into(), "2".into()));
    assert_eq!(machine.most(), 128 << 20);
}

#[test]
fn nvml_counts_what_is_on_the_card_and_lists_no_parked_process() {
    let machine = Machine::new();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let library = machine.0.path().join("libnvidia-ml.so.1");
    let built = Command::new(cc)
        .args(["-shared", "-fPIC", "-o"])
        .arg(library)
        .arg(repository().join("tests/sim/nvml.c"))
        .status();
    assert!(built.expect("a C compiler").success());
    let libraries = format!("{}:{}", artifacts().stage.display(), machine.0.path().display());
    let asks = machine.with_card(machine.program()).env("LD_LIBRARY_PATH", libraries).env("NVML_CARD", machine.card());
    let (mut one, mut asks) = (machine.share(), asks.start(false));
    let (pid, own) = (one.pid(), asks.pid());
    assert_eq!((tell(&mut one, "alloc 16"), tell(&mut asks, "alloc 8")), ("0".into(), "0".into()));
    assert_eq!(tell(&mut asks, "nvml"), format!("24 {pid}=16 {own}=8"));
    assert_eq!(steps(&mut asks, pid, &["lock", "checkpoint"]), ["0", "0"]);
    assert_eq!(tell(&mut asks, "nvml"), format!("8 {own}=8"));
    assert_eq!(steps(&mut asks, pid, &["restore", "unlock"]), ["0", "0"]);
    one.signal(libc::SIGKILL);
    wait_for("its end", || one.reap());
    assert_eq!(tell(&mut asks, "nvml"), format!("8 {own}=8"));
}
