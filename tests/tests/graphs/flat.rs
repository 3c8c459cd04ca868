//! The graph cache keeps as much for later as the program lately needed, and gives it up when it is told to.

use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{Program, client};
use gpumem_wire::counters::{HANDLES_MADE, OOM_RETRIES, RETARGETS};
use gpumem_wire::kinds::EventKind;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A client that does as it is told, and how many lines it was told.
struct Talk(Running, usize);

impl Talk {
    fn start(settings: &[(&str, &str)]) -> Self {
        Self(client("graph_talks").envs(settings).waits().start(true), 0)
    }

    /// Has it do something, and waits until it has.
    fn tell(&mut self, line: &str) -> &mut Self {
        self.1 += 1;
        self.0.tell(line);
        self.0.says(&format!("did {}", self.1));
        self
    }

    /// Real execs of the driver, by its own count.
    fn live(&mut self) -> u64 {
        self.tell("live").said("live ")
    }

    /// The number that it said last under a name.
    fn said(&self, name: &str) -> u64 {
        let out = self.0.stdout();
        out.lines().rev().find_map(|line| line.strip_prefix(name)).and_then(|n| n.parse().ok()).expect("a number")
    }

    fn counter(&self, of: usize) -> u64 {
        self.0.ledger().counter(of)
    }

    /// Returns the shim's answer to a line over its socket.
    fn asked(&self, line: &str) -> String {
        let socket = self.0.ledger().path.with_extension("sock");
        let mut stream = UnixStream::connect(&socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        stream.write_all(format!("{line}\n").as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

/// From then on what is new is the driver's own; what was there before goes on.
#[test]
fn a_running_process_can_be_told_to_leave_graphs_alone() {
    for line in ["set GRAPH_CACHE 0", "off"] {
        let mut talk = Talk::start(&[]);
        talk.tell("make 4").tell("launch");
        assert_eq!(talk.counter(HANDLES_MADE), 4);
        let said = talk.asked(line);
        assert!(said.starts_with("ok ") && said.contains("new graphs are the driver's own"), "{said}");
        talk.tell("make 3").tell("launch");
        assert_eq!(talk.counter(HANDLES_MADE), 4, "none is ours any more");
        assert_eq!(talk.asked("set GRAPH_CACHE 64"), "ok \n");
        talk.tell("make 2").tell("launch");
        assert_eq!(talk.counter(HANDLES_MADE), 6, "and again");
        talk.tell("end");
        let ran = talk.0.finish().ok();
        assert_eq!(ran.violations(), [""; 0]);
        ran.ledger().agrees_with(&ran.json()).complete();
    }
}

/// Threads capture all the time, so that hardly ever nothing captures: what a graph leaves behind is known to be over
/// all the same, and serves the next.
#[test]
fn execs_of_destroyed_graphs_stay_few_beside_captures() {
    let mut talk = Talk::start(&[]);
    talk.tell("overlap 4");
    // Each has one graph, and the one before it: a few more stay for others.
    let mut most = 0;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(100));
        most = most.max(talk.live());
    }
    talk.tell("stop");
    let ran = talk.0.finish().ok();
    assert_eq!(ran.violations(), [""; 0]);
    let ledger = ran.ledger();
    assert!(ledger.counter(HANDLES_MADE) > 400, "{}", ledger.counter(HANDLES_MADE));
    assert!(most <= 8 + 12, "{most} real execs for 8 handles");
}

/// They go with time, whether the process works or rests.
#[test]
fn parked_execs_go_with_time() {
    for works in [false, true] {
        let mut talk = Talk::start(&[("GPUMEM_GRAPH_IDLE", "100ms")]);
        if works {
            talk.tell("overlap 1");
        }
        talk.tell("make 100").tell("launch").tell("end");
        wait_for("parked execs to go", || talk.live() <= 2 + 12);
        talk.tell("stop");
        wait_for("the last to go", || talk.live() == 0);
        let ran = talk.0.finish().ok();
        assert_eq!(ran.violations(), [""; 0]);
    }
}

#[test]
fn trim_destroys_what_is_parked() {
    let mut talk = Talk::start(&[]);
    talk.tell("make 40").tell("launch").tell("end").tell("make 3").tell("launch");
    assert_eq!(talk.live(), 40);
    let said = talk.asked("trim");
    assert!(said.starts_with("ok ") && said.contains("37 idle graph execs destroyed"), "{said}");
    assert_eq!(talk.live(), 3);
    talk.tell("launch").tell("end");
    assert_eq!(talk.0.finish().ok().violations(), [""; 0]);
}

/// Work that waits for the program begins when an exec is about to be destroyed, which then waits for that work.
fn destroy_races(mode: &str) -> Program {
    let slow = client("graph_roots").arg(mode).env("SIM_DESTROY_WAITS", "1").env("GPUMEM_GRAPH_IDLE", "10ms");
    slow.env("SIM_FAULT", "cuGraphExecDestroy:1+400000")
}

/// Only the thread that looks after execs waits then: commands are carried out, and the heart beats.
#[test]
fn a_destruction_that_waits_holds_nobody_up() {
    let running = destroy_races("raced").waits().start(true);
    running.says("begun").says("went on");
    let talk = Talk(running, 0);
    let beat = || talk.0.ledger().snapshot.header.heartbeat_ns;
    for _ in 0..2 {
        let before = beat();
        wait_for("the next heartbeat", || beat() > before);
        let said = talk.asked("trim");
        assert!(said.starts_with("ok "), "{said}");
    }
    let ran = talk.0.finish().ok();
    assert!(ran.err.contains("waits 1"), "it waited: {}", ran.err);
    assert_eq!(ran.violations(), [""; 0]);
}

/// The process ends as natively, though a thread of ours waits in the driver: by exit, and with its last thread.
#[test]
fn a_process_ends_beside_a_destruction_that_waits() {
    let never = ("SIM_FAULT", "cuGraphExecDestroy:1+600000000");
    for ending in [destroy_races("left"), destroy_races("main").env(never.0, never.1)] {
        assert_eq!(ending.preloaded().ok().violations(), [""; 0]);
    }
}

/// Nor does the launch wait for which the exec had to make way.
#[test]
fn a_launch_does_not_wait_for_what_makes_way_for_it() {
    let ran = destroy_races("evicted").env("GPUMEM_GRAPH_CACHE", "1").env("GPUMEM_GRAPH_IDLE", "1h").preloaded().ok();
    assert!(ran.err.contains("waits 1"), "it waited: {}", ran.err);
    assert_eq!(ran.violations(), [""; 0]);
}

/// Nothing is launched that would go by the new bound: it holds all the same.
#[test]
fn a_lower_bound_holds_in_an_idle_process() {
    let mut talk = Talk::start(&[]);
    talk.tell("make 40").tell("launch");
    assert_eq!(talk.live(), 40);
    assert_eq!(talk.asked("set GRAPH_CACHE 6"), "ok \n");
    wait_for("the bound", || talk.live() <= 6);
    talk.tell("launch").tell("end");
    assert_eq!(talk.0.finish().ok().violations(), [""; 0]);
}

/// Of handles that come round less often than GPUMEM_GRAPH_IDLE the first ones lose their execs to the next; when they
/// come back there is room for one of their own, and they keep it from then on.
#[test]
fn a_handle_that_comes_back_gets_an_exec_of_its_own() {
    let rounds = |settings: &[(&str, &str)]| {
        let mut talk = Talk::start(settings);
        let mut retargets = Vec::new();
        for round in 0..4 {
            for handle in 0..3 {
                if round == 0 {
                    talk.tell("make 1");
                }
                // The exec of the one before is cold by then.
                talk.tell(&format!("one {handle}"));
                std::thread::sleep(Duration::from_millis(60));
            }
            retargets.push(talk.counter(RETARGETS));
        }
        let live = talk.live();
        talk.tell("end");
        assert_eq!(talk.0.finish().ok().violations(), [""; 0]);
        (retargets, live)
    };
    let (retargets, live) = rounds(&[("GPUMEM_GRAPH_IDLE", "20ms")]);
    assert!(retargets[0] >= 1 && retargets[1] == retargets[3] && live == 3, "{retargets:?}, {live} real");
    let (retargets, live) = rounds(&[("GPUMEM_GRAPH_IDLE", "20ms"), ("GPUMEM_GRAPH_CACHE", "1")]);
    assert!(retargets[3] > retargets[1] && live == 1, "within the bounds: {retargets:?}, {live} real");
}

/// At the bound a program goes on with graphs of another class. Execs of the old class that were not launched for long
/// make way one after the other, so that the new graphs do not all share one exec.
#[test]
fn a_class_that_is_used_gets_the_room_of_one_that_is_not() {
    let mut talk = Talk::start(&[("GPUMEM_GRAPH_CACHE", "8"), ("GPUMEM_GRAPH_IDLE", "100ms")]);
    talk.tell("make 8").tell("launch");
    // More than ten times as long as makes an exec idle.
    std::thread::sleep(Duration::from_millis(1200));
    talk.tell("single 8").tell("last 8").tell("turns 100");
    let retargets = talk.counter(RETARGETS);
    assert_eq!(talk.live(), 8);
    talk.tell("end");
    assert_eq!(talk.0.finish().ok().violations(), [""; 0]);
    assert!(retargets < 500, "{retargets} of 800 launches found no exec of their own");
}

/// The same below the bound: before one more exec is made, one goes that was not launched for long.
#[test]
fn unused_execs_go_before_there_are_more() {
    let mut talk = Talk::start(&[("GPUMEM_GRAPH_IDLE", "20ms")]);
    talk.tell("make 8").tell("launch");
    std::thread::sleep(Duration::from_millis(300));
    talk.tell("single 8");
    for handle in 8..16 {
        talk.tell(&format!("one {handle}"));
    }
    let live = talk.live();
    talk.tell("end");
    assert_eq!(talk.0.finish().ok().violations(), [""; 0]);
    assert!(live <= 9, "{live} real execs for 8 graphs that are used");
}

/// At the bound a program goes on with other graphs of the same class, and no time counts as idle. Its graphs come to
/// have an exec each, and no longer share one.
#[test]
fn graphs_that_are_used_get_the_execs_of_those_that_are_not() {
    let mut talk = Talk::start(&[("GPUMEM_GRAPH_CACHE", "4"), ("GPUMEM_GRAPH_IDLE", "0")]);
    talk.tell("make 4").tell("launch").tell("make 4");
    for turn in 0..240 {
        talk.tell(&format!("one {}", 4 + turn % 4));
        // Each launch has a time of its own, by the clock that ticks every four milliseconds.
        std::thread::sleep(Duration::from_millis(5));
    }
    let retargets = talk.counter(RETARGETS);
    talk.tell("end");
    assert_eq!(talk.0.finish().ok().violations(), [""; 0]);
    assert!(retargets < 180, "{retargets} of 240 launches found no exec of their own");
}

/// A launch that finds no exec asks a few of those there are, however many these are, and however many handles.
#[test]
fn a_launch_without_an_exec_costs_the_same_among_many() {
    let took = |handles: u64, execs: &str| {
        let mut talk = Talk::start(&[("GPUMEM_GRAPH_CACHE", execs), ("GPUMEM_GRAPH_IDLE", "0")]);
        // Of each about as many launches, but of the most handles.
        talk.tell(&format!("make {handles}")).tell("launch").tell(&format!("turns {}", (8000 / handles).max(2)));
        let took = talk.said("took ");
        assert!(talk.counter(RETARGETS) > 1000, "they find none");
        took
    };
    let (few, many_handles, many) = (took(500, "32"), took(10_000, "32"), took(4000, "1024"));
    eprintln!("{few} ns with 500 handles and 32 execs, {many_handles} with 10000, {many} with 4000 and 1024 execs");
    assert!(many_handles < 3 * few, "{few} ns with 500 handles, {many_handles} with 10000");
    assert!(many < 5 * few, "{few} ns with 32 execs, {many} with 1024");
}

/// If memory of one device runs out, nothing is taken from another device.
#[test]
fn a_launch_that_runs_out_takes_nothing_from_another_device() {
    let settings = [("SIM_DEVICES", "2"), ("SIM_FAULT", "cuGraphLaunch:5=2")];
    let mut talk = Talk::start(&settings);
    talk.tell("make 3").tell("launch").tell("end").tell("device 1").tell("make 2").tell("launch");
    assert_eq!(talk.counter(OOM_RETRIES), 1, "it ran out");
    assert!(talk.live() > 3, "{} real execs", talk.live());
    let ran = talk.0.finish().ok();
    assert_eq!(ran.violations(), [""; 0]);
    // That the launch was made again is told, and that it succeeded.
    let retries: Vec<_> =
        ran.ledger().snapshot.events.into_iter().filter(|event| event.kind == EventKind::OomRetry as u8).collect();
    assert_eq!(retries.iter().map(|event| event.code).collect::<Vec<_>>(), [0]);
}
