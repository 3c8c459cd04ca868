//! A process that shares a card (`GPUMEM_SHARE`), and a service that is made up here: what the process asks, and when.

use super::control::asked;
use gpumem_abi::known::FUNCTIONS;
use gpumem_tests::group::tell;
use gpumem_tests::harness::run::{Running, wait_for};
use gpumem_tests::harness::{Program, client};
use gpumem_wire::share::{Answer, Ask, socket};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NAME: &str = "team-a";
/// The call's number among those of its function, and its answer: there is no memory.
const SHORT_OF_MEMORY: &str =
    "cuMemAlloc_v2:2=2,cuMemAlloc_v2:3=2,cuMemAlloc_v2:4=2,cuMemAlloc_v2:5=2,cuMemAlloc_v2:6=2";

/// A service of a process, with all that it was asked.
#[derive(Clone, Default)]
struct Service(Arc<Mutex<Vec<Ask>>>);

impl Service {
    /// Answers each request by `answer`, one after another.
    fn start(member: &Running, mut answer: impl FnMut(Ask, &mut UnixStream) + Send + 'static) -> Self {
        let service = Self::default();
        let asked = service.0.clone();
        let listener = Self::listener(member);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                let ask = Ask::parse(line.trim_end_matches('\n')).unwrap();
                asked.lock().unwrap().push(ask);
                answer(ask, &mut stream);
            }
        });
        service
    }

    fn listener(member: &Running) -> UnixListener {
        let dir = member.ledger().path.parent().unwrap().to_owned();
        UnixListener::bind(socket(&dir, NAME)).unwrap()
    }

    fn asked(&self) -> Vec<Ask> {
        self.0.lock().unwrap().clone()
    }
}

fn say(stream: &mut UnixStream, answer: &Answer) {
    // A member that has its memory hangs up.
    let _ = stream.write_all(answer.line().as_bytes());
}

/// A member with 1 GiB of device memory.
fn member(program: Program) -> Program {
    program.env("GPUMEM_SHARE", NAME).waits()
}

fn started(program: &Program) -> Running {
    let running = program.start(true);
    running.says("ready");
    wait_for("its socket", || running.ledger().path.with_extension("sock").exists());
    running
}

/// A member whose second allocation finds no memory for five calls of the driver.
fn short(settings: &[(&str, &str)]) -> Running {
    let mut running = started(&member(client("checkpoint")).env("SIM_FAULT", SHORT_OF_MEMORY).envs(settings));
    assert_eq!(tell(&mut running, "alloc 4"), "0");
    running
}

fn control(running: &Running, line: &str) {
    let reply = asked(running, format!("{line}\n").as_bytes());
    assert!(reply.starts_with("ok"), "{line}: {reply}");
}

#[test]
fn a_request_that_ran_out_is_made_again_while_the_service_frees_memory() {
    let mut running = short(&[]);
    let service = Service::start(&running, |_, stream| {
        say(stream, &Answer::Wait("parking 12".into()));
        std::thread::sleep(Duration::from_millis(100));
        say(stream, &Answer::Again);
    });
    assert_eq!(tell(&mut running, "alloc 64"), "0");
    let asked = service.asked();
    let Some(Ask::Short { pid, uuid, bytes }) = asked.first().copied() else { panic!("{asked:?}") };
    assert_eq!((pid, bytes), (running.pid(), 64 << 20));
    assert!(running.ledger().snapshot.contexts.values().any(|context| context.uuid == uuid));
    assert_eq!(tell(&mut running, "check"), "0");
}

#[test]
fn a_request_goes_to_the_next_service_if_its_own_ends() {
    let mut running = short(&[]);
    let mut times = 0;
    let service = Service::start(&running, move |_, stream| {
        times += 1;
        say(stream, &if times == 1 { Answer::Wait("parking 12".into()) } else { Answer::Again });
    });
    assert_eq!(tell(&mut running, "alloc 64"), "0");
    assert!(service.asked().len() > 1);
}

#[test]
fn the_program_gets_the_drivers_answer_if_the_service_does_not_help() {
    // It refuses.
    let mut running = short(&[]);
    let service = Service::start(&running, |_, stream| say(stream, &Answer::No("everybody is busy".into())));
    assert_eq!(tell(&mut running, "alloc 64"), "2");
    assert_eq!(service.asked().len(), 1);
    let said = running.finish();
    assert_eq!(said.ours().iter().filter(|line| line.contains("everybody is busy")).count(), 1, "{:?}", said.ours());

    // It is not there, or says nothing.
    let took = |settings: &[(&str, &str)], begin: &dyn Fn(&Running) -> Option<UnixListener>| {
        let mut running = short(settings);
        let _service = begin(&running);
        let start = Instant::now();
        assert_eq!(tell(&mut running, "alloc 64"), "2");
        let said = running.finish();
        assert!(said.ours().iter().any(|line| line.contains("gpumem share team-a")), "{:?}", said.ours());
        start.elapsed()
    };
    took(&[], &|_| None);
    let hung = took(&[("GPUMEM_SHARE_WAIT", "500ms")], &|running| Some(Service::listener(running)));
    assert!(hung >= Duration::from_millis(500), "{hung:?}");
}

#[test]
fn a_parked_process_is_resumed_by_its_next_call() {
    let dir = TempDir::new().unwrap();
    let program = || client("checkpoint").env("SIM_CHECKPOINT", dir.path());
    let mut caller = program().waits().start(false);
    caller.says("ready");
    let mut running = started(&member(program()));
    let pid = running.pid();
    assert_eq!(tell(&mut running, "alloc 16"), "0");
    control(&running, "park");
    for step in ["lock", "checkpoint"] {
        assert_eq!(tell(&mut caller, &format!("{step} {pid} 2000")), "0");
    }
    control(&running, "parked 16777216");
    let ledger = running.ledger().path;
    let service = Service::start(&running, move |_, stream| {
        say(stream, &Answer::Wait("restoring".into()));
        for step in ["restore", "unlock"] {
            assert_eq!(tell(&mut caller, &format!("{step} {pid} 2000")), "0");
        }
        let mut socket = UnixStream::connect(ledger.with_extension("sock")).unwrap();
        socket.write_all(b"resumed\n").unwrap();
        BufReader::new(socket).read_line(&mut String::new()).unwrap();
        say(stream, &Answer::Awake);
    });
    assert_eq!(tell(&mut running, "check"), "0");
    assert_eq!(service.asked(), [Ask::Wake { pid }]);
}

#[test]
fn a_call_waits_until_parking_is_given_up_or_another_tool_has_resumed_the_process() {
    let dir = TempDir::new().unwrap();
    let program = || client("checkpoint").env("SIM_CHECKPOINT", dir.path());
    let mut running = started(&member(program()));
    control(&running, "park");
    running.tell("alloc 4");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!running.stdout().contains("alloc"), "a call that came after park waits");
    control(&running, "resumed");
    running.says("alloc 4: 0");
    // It runs, whatever the shim was told.
    control(&running, "park");
    control(&running, "parked 1");
    assert_eq!(tell(&mut running, "alloc 5"), "0");
    assert_eq!(running.ledger().snapshot.header.parking, 0);
}

/// Names of functions that a driver may have.
fn names() -> Vec<String> {
    let mut names = Vec::new();
    for (base, _, newest) in FUNCTIONS {
        for form in 1..=*newest {
            let form = if form == 1 { String::new() } else { format!("_v{form}") };
            names.extend(["", "_ptsz", "_ptds"].map(|flavour| format!("{base}{form}{flavour}")));
        }
    }
    names
}

#[test]
fn every_function_of_the_driver_waits_while_the_process_is_parked() {
    let mut running = started(&member(client("any_call")));
    let service = Service::start(&running, |_, stream| say(stream, &Answer::No("not now".into())));
    control(&running, "park");
    control(&running, "parked 1");
    for name in names() {
        running.tell(&format!("call {name}"));
    }
    std::thread::sleep(Duration::from_millis(500));
    running.tell("returned");
    running.says("returned.");
    let said = running.stdout();
    let mut lines = said.lines().skip_while(|line| !line.starts_with("found "));
    let found: usize = lines.next().unwrap().trim_start_matches("found ").parse().unwrap();
    assert!(found > 600, "{found}");
    let passed = ["cuDriverGetVersion", "cuGetError", "cuGetProcAddress", "cuCheckpoint"];
    let returned: Vec<_> = lines.filter(|line| !passed.iter().any(|name| line.starts_with(name))).collect();
    assert_eq!(returned, ["returned."], "calls that have not waited");
    let asked = service.asked();
    assert!(!asked.is_empty() && asked.iter().all(|ask| *ask == Ask::Wake { pid: running.pid() }), "{asked:?}");
    running.tell("end");
}

#[test]
fn a_process_that_shares_no_card_is_given_the_drivers_own_functions() {
    let mut plain = client("any_call").waits().start(true);
    let mut sharing = started(&member(client("any_call")));
    for name in ["cuDeviceGetName", "cuCtxGetStreamPriorityRange"] {
        for (running, place) in [(&mut plain, "driver"), (&mut sharing, "gpumem")] {
            running.tell(&format!("where {name}"));
            running.says(&format!("{name} {place}"));
        }
    }
}

#[test]
fn the_ledger_says_since_when_a_process_is_idle_and_why_it_cannot_be_parked() {
    let dir = TempDir::new().unwrap();
    let mut running = started(&member(client("checkpoint")).env("SIM_CHECKPOINT", dir.path()));
    let header = |running: &Running| running.ledger().snapshot.header;
    let share = |running: &Running| {
        let snapshot = running.ledger().snapshot;
        snapshot.text(snapshot.header.share).into_owned()
    };
    wait_for("idleness", || header(&running).idle_since_ns != 0);
    assert_eq!(share(&running), NAME);
    assert_eq!(tell(&mut running, "work 3000"), "0");
    wait_for("work", || header(&running).idle_since_ns == 0);
    wait_for("idleness", || header(&running).idle_since_ns != 0);
    control(&running, "park");
    let since = header(&running).idle_since_ns;
    control(&running, "parked 1");
    std::thread::sleep(Duration::from_millis(1200));
    assert!(since != 0 && header(&running).idle_since_ns == since);
    control(&running, "resumed");
    assert_eq!(tell(&mut running, "managed 2"), "0");
    wait_for("a reason", || share(&running).starts_with("team-a\nit has managed memory"));
}
