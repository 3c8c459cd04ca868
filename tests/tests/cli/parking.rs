//! A process that is told that it is parked: it makes no driver call of its own, answers, and says so everywhere.

use super::control::asked;
use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{Program, client};
use gpumem_wire::kinds::Parking;
use std::time::{Duration, Instant};

/// The pool keeps idle memory for long, and once the test says so gives it back within a second or two.
const AT_FIRST: &str = "100s";
const SOON: &str = "set POOL_DECAY 1s";

/// Bytes that the program holds.
const HELD: u64 = 64 << 20;

/// The program, with the number of lines that it was told.
struct Parked(Running, u32);

impl Parked {
    fn start() -> Self {
        Self::of(&client("parked").env("GPUMEM_POOL_DECAY", AT_FIRST).waits())
    }

    fn of(program: &Program) -> Self {
        let running = program.start(true);
        running.says("held");
        wait_for("its socket", || running.ledger().path.with_extension("sock").exists());
        Self(running, 0)
    }

    /// Tells it a line. Returns its driver calls so far.
    fn calls(&mut self, line: &str) -> u64 {
        let Self(running, told) = self;
        *told += 1;
        running.tell(line);
        let answer = format!("line {told}: ");
        running.says(&answer);
        let said = running.stdout();
        let calls = said.lines().find_map(|line| line.strip_prefix(&answer)).expect("it has said so");
        calls.trim_end_matches(" calls").parse().expect("a number")
    }

    /// Asks its control thread, which answers at once.
    fn asked(&self, line: &str) -> String {
        let start = Instant::now();
        let reply = asked(&self.0, format!("{line}\n").as_bytes());
        assert!(start.elapsed() < Duration::from_secs(5), "{line}: {:?}", start.elapsed());
        reply
    }

    fn header(&self) -> gpumem_wire::layout::Header {
        self.0.ledger().snapshot.header
    }
}

#[test]
fn a_quiet_process_makes_no_driver_call_of_its_own_and_answers() {
    let mut parked = Parked::start();
    let reply = parked.asked("park");
    assert!(reply.starts_with("ok 256.0 MiB given back"), "{reply}");
    assert_eq!(parked.header().parking, Parking::Quiet as u64);
    // What is idle now would go back soon.
    assert!(parked.asked(SOON).starts_with("ok"));
    let before = parked.calls("free");
    let beat = parked.header().heartbeat_ns;
    wait_for("beats", || parked.header().heartbeat_ns > beat + 4_000_000_000);
    assert_eq!(parked.calls("count"), before, "quiet");
    assert_eq!(parked.asked("parked 67108864"), "ok\n");
    for refused in ["trim", "check", "references 100", "set POOL 0", "off", "set GRAPH_CACHE_BYTES 1GiB", "park"] {
        let reply = parked.asked(refused);
        assert!(reply.starts_with("error ") && reply.contains("is parked"), "{refused}: {reply}");
    }
    for answered in ["ping", "mark here"] {
        assert!(parked.asked(answered).starts_with("ok"), "{answered}");
    }
    let header = parked.header();
    assert_eq!((header.parking, header.parked_bytes), (Parking::Parked as u64, HELD));
    let beat = header.heartbeat_ns;
    wait_for("beats", || parked.header().heartbeat_ns > beat + 2_000_000_000);
    assert_eq!(parked.calls("count"), before, "parked");
    assert_eq!(parked.asked("resumed"), "ok\n");
    wait_for("idle memory to go back", || parked.calls("count") > before);
    let header = parked.header();
    assert_eq!((header.parking, header.parked_bytes), (Parking::Running as u64, 0));
    assert!(header.parked_total_ns > 4_000_000_000, "{}", header.parked_total_ns);
    let events = parked.0.gpumem(&["events", &parked.0.pid().to_string()]).to_string();
    assert!(events.contains("64.0 MiB of device memory were moved to the host"), "{events}");
    assert!(events.contains("64.0 MiB of device memory are back on the device after "), "{events}");
    parked.0.finish().ok();
}

/// Parking that was given up is no parking: nothing is counted, and the process is as before.
#[test]
fn parking_that_is_given_up_leaves_no_trace() {
    let mut parked = Parked::start();
    assert!(parked.asked("park").starts_with("ok"));
    // Another asker may try again, after the first one died.
    assert!(parked.asked("park").starts_with("ok"));
    assert_eq!(parked.asked("resumed"), "ok\n");
    let header = parked.header();
    assert_eq!((header.parking, header.parked_bytes, header.parked_total_ns), (0, 0, 0));
    assert!(parked.asked(SOON).starts_with("ok"));
    let before = parked.calls("free");
    wait_for("idle memory to go back", || parked.calls("count") > before);
    let events = parked.0.gpumem(&["events", &parked.0.pid().to_string()]).to_string();
    assert!(!events.contains("moved to the host"), "{events}");
    parked.0.finish().ok();
}
