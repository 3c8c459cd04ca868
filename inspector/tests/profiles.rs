//! Profiles that `gpumem serve` has for those who come by for them, and the list of processes that have one.

mod common;
use common::pprof::Profile;
use common::web::{Server, status};
use common::*;
use gpumem_wire::layout::*;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The profile of a process once it is given, and the head of the answer. A first answer may say that names are looked up.
fn profile(server: &Server, pid: u32) -> (String, Profile) {
    let begin = Instant::now();
    loop {
        let (head, body) = server.fetch(&format!("/debug/pprof/gpu?pid={pid}"));
        match status(&head) {
            200 => return (head, Profile::read(&body)),
            503 if begin.elapsed() < Duration::from_secs(60) => std::thread::sleep(Duration::from_millis(200)),
            _ => panic!("{head}{}", String::from_utf8_lossy(&body)),
        }
    }
}

/// Live bytes of memory as `gpumem ps` and `gpumem allocs` have them.
const LIVE: u64 = (96 + 16) * MIB;

#[test]
fn a_profile_is_what_the_views_show() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let server = Server::start(&dir, &[]);
    let (head, served) = profile(&server, me().pid);
    assert!(head.contains("content-type: application/octet-stream"), "{head}");
    assert_eq!(served.types[4], "space bytes", "the type of the period, of which some readers make the profile's name");
    let sums = served.sums();
    assert_eq!((sums[2], sums[3]), (3, LIVE));
    assert_eq!((sums[0], sums[1]), (9, 165 * MIB), "what the call stacks ever allocated");
    let labels = |mib: u64| {
        let of = served.samples.iter().find(|sample| sample.values[3] == mib * MIB).unwrap();
        of.labels.iter().map(|(key, text)| format!("{key}={text}")).collect::<Vec<_>>()
    };
    let device = "device=30313233-3435-3637-3839-616263646566";
    assert_eq!(labels(64), [device, "kind=device", "process=demo-server", "tag=weights"]);
    assert_eq!(labels(32), [device, "kind=device", "process=demo-server"]);
    assert_eq!(labels(16), ["kind=host-pinned", "process=demo-server"], "on no device");
    let named = served.samples.iter().flat_map(|sample| &sample.stack).any(|step| step.starts_with("demo-server+0x"));
    assert!(named, "the program's file is not there, so its frames are places in it");

    // As the file that is written by hand, to the number.
    let file = dir.path().join("a.pb.gz");
    dir.ok(&["export", "-o", file.to_str().unwrap()]);
    let written = Profile::read(&std::fs::read(file).unwrap());
    assert_eq!((written.sums(), written.samples.len()), (sums, served.samples.len()));
}

/// A script of Python is what people call the process; its program is another label.
#[test]
fn a_script_is_told_from_its_interpreter() {
    let dir = dir();
    let mut composer = demo(me());
    composer.header.exe = composer.text("/usr/bin/python3.12");
    composer.header.cmdline = composer.text("python3.12 /srv/train.py --all");
    dir.put(me(), composer);
    let server = Server::start(&dir, &[]);
    let (_, served) = profile(&server, me().pid);
    for sample in &served.samples {
        assert_eq!((&*sample.labels["process"], &*sample.labels["script"]), ("python3.12", "train.py"));
    }
}

#[test]
fn targets_are_what_service_discovery_takes() {
    let dir = dir();
    let sleeper = Sleeper::start();
    dir.put(me(), demo(me()));
    dir.put(sleeper.id(), demo(sleeper.id()));
    dir.put(gone(), demo(gone()));
    let server = Server::start(&dir, &[]);
    let (head, body) = server.fetch("/targets");
    assert!(status(&head) == 200 && head.contains("content-type: application/json"), "{head}");
    let targets: Vec<Value> = serde_json::from_slice(&body).unwrap();
    let mut pids: Vec<String> = Vec::new();
    for target in &targets {
        assert_eq!(target["targets"], serde_json::json!([server.at]), "{target}");
        let label = |name: &str| target["labels"][name].as_str().unwrap_or_default().to_owned();
        assert_eq!((label("__param_pid"), label("service_name")), (label("pid"), "demo-server".into()));
        assert!(!label("start").is_empty() && label("__scheme__").is_empty(), "{target}");
        pids.push(label("pid"));
    }
    pids.sort();
    let mut expected = [me().pid, sleeper.id().pid].map(|pid| pid.to_string());
    expected.sort();
    assert_eq!(pids, expected, "the dead have no profile");
}

#[test]
fn what_has_no_profile_has_a_status() {
    let dir = dir();
    dir.put(me(), demo(me()));
    dir.put(gone(), demo(gone()));
    let sleeper = Sleeper::start();
    std::fs::write(dir.path().join(sleeper.id().ledger_name()), b"no ledger").unwrap();
    let mut server = Server::start(&dir, &[]);
    for (query, wanted, says) in [
        ("", 400, "?pid=PID"),
        ("?pid=", 400, "?pid=PID"),
        ("?pid=me", 400, "?pid=PID"),
        ("?pid=-1", 400, "?pid=PID"),
        ("?pid=99999999999", 400, "?pid=PID"),
        ("?seconds=5", 400, "?pid=PID"),
        ("?pid=1", 404, "/targets"),
        (&*format!("?pid={}", gone().pid), 404, "/targets"),
        (&*format!("?pid={}", sleeper.id().pid), 403, "ledger"),
    ] {
        let (head, body) = server.fetch(&format!("/debug/pprof/gpu{query}"));
        let body = String::from_utf8_lossy(&body);
        assert_eq!((status(&head), body.contains(says)), (wanted, true), "{query}: {head}{body}");
    }
    let (head, _) = server.fetch("/debug/pprof/heap");
    assert_eq!(status(&head), 404);
    assert!(server.is_well());
}

/// The pages that the configurations in deploy/ fetch are there.
#[test]
fn the_configurations_name_pages_that_there_are() {
    let dir = dir();
    let server = Server::start(&dir, &[]);
    let text = |file: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
        std::fs::read_to_string(path).unwrap()
    };
    for file in ["profiles/config.alloy", "profiles/parca.yaml", "kubernetes/profiles.yaml"] {
        let text = text(file);
        assert!(text.contains("127.0.0.1:9849/targets") && text.contains("/debug/pprof/gpu"), "{file}");
    }
    // The cluster's configuration is the machine's, but for the store.
    let cluster = text("kubernetes/profiles.yaml");
    let scrape = text("profiles/config.alloy");
    let scrape = scrape.split_once('\n').unwrap().1.split("pyroscope.write").next().unwrap();
    let indented = scrape.lines().map(|line| if line.is_empty() { line.into() } else { format!("    {line}") });
    assert!(cluster.contains(&indented.collect::<Vec<String>>().join("\n")), "{cluster}");
    // A collector listens where the guides push to.
    assert!(text("profiles/otel-collector.yaml").contains("endpoint: \"127.0.0.1:4318\""));
    assert_eq!(status(&server.fetch("/targets").0), 200);
    assert_eq!(status(&server.fetch("/debug/pprof/gpu").0), 400);
}

/// A process that ends has no profile any more, and one that begins has one within a second.
#[test]
fn processes_come_and_go() {
    let dir = dir();
    let server = Server::start(&dir, &[]);
    let first = Sleeper::start();
    dir.put(first.id(), demo(first.id()));
    assert_eq!(profile(&server, first.id().pid).1.sums()[3], LIVE);
    let second = Sleeper::start();
    dir.put(second.id(), demo(second.id()));
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(profile(&server, second.id().pid).1.sums()[3], LIVE);
    let pid = first.id().pid;
    drop(first);
    std::thread::sleep(Duration::from_millis(1100));
    let (head, _) = server.fetch(&format!("/debug/pprof/gpu?pid={pid}"));
    assert_eq!(status(&head), 404, "{head}");
}

/// A process that holds so many MiB more than the usual one, and allocated them, too.
struct Member {
    sleeper: Sleeper,
    more: u64,
}

impl Member {
    fn start(dir: &Dir, more: u64) -> Self {
        let member = Self { sleeper: Sleeper::start(), more };
        member.put(dir);
        member
    }

    fn pid(&self) -> u32 {
        self.sleeper.id().pid
    }

    /// Puts its ledger there, never a half-written one.
    fn put(&self, dir: &Dir) {
        let id = self.sleeper.id();
        let mut composer = demo(id);
        let stack = StackSlot { allocs: self.more, alloc_bytes: self.more * MIB, hash: 99, ..Default::default() };
        composer.stack(9, stack, &[CUDA + 0x10, APP + 0x501, APP + 0x901]);
        let more = AllocSlot {
            stack: 10,
            addr: 0x6000_0000_0000,
            bytes: self.more * MIB,
            time_ns: composer.header.created_ns,
            serial: 9,
            context: 1,
            kind: gpumem_wire::kinds::AllocKind::Device as u8,
            ..Default::default()
        };
        composer.slots([more]);
        let next = dir.path().join("next");
        std::fs::write(&next, composer.finish()).unwrap();
        std::fs::rename(next, dir.path().join(id.ledger_name())).unwrap();
    }

    /// Memory ever allocated, and live memory.
    fn sums(&self) -> (u64, u64) {
        ((165 + self.more) * MIB, LIVE + self.more * MIB)
    }

    /// Checks its profile. After a slow round it may be that of the round before, which is served for a second.
    fn check(&self, server: &Server, round: u64) {
        let sums = || {
            let sums = profile(server, self.pid()).1.sums();
            (sums[1], sums[3])
        };
        if sums() != self.sums() {
            std::thread::sleep(ROUND);
            assert_eq!(sums(), self.sums(), "pid {} in round {round}", self.pid());
        }
    }
}

/// Rounds are so far apart that answers are made anew, and processes listed anew.
const ROUND: Duration = Duration::from_millis(1100);
/// Number of steps between two rounds. In a step one process allocates or, one time in ten, ends and another one
/// begins.
const STEPS: usize = 20;
/// Ledgers of ended processes that stay, as many as libgpumem.so keeps.
const KEPT: usize = 8;

/// A hundred processes, each asked for by two stores, round after round: each sum is its process's own while processes
/// allocate, end and begin, and the server does not grow. `GPUMEM_CASES` says how many rounds; a day of steps of
/// 15 s has 288.
#[test]
fn a_hundred_processes_are_served_without_growth() {
    let rounds: u64 = std::env::var("GPUMEM_CASES").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(12);
    let dir = dir();
    let mut all: Vec<Member> = (0..100).map(|number| Member::start(&dir, number)).collect();
    let server = Server::start(&dir, &[]);
    let (mut slowest, mut resident, mut ended) = (Duration::ZERO, Vec::new(), VecDeque::new());
    let begin = Instant::now();
    for round in 0..rounds {
        let (_, body) = server.fetch("/targets");
        assert_eq!(serde_json::from_slice::<Vec<Value>>(&body).unwrap().len(), all.len(), "round {round}");
        for member in &all {
            member.check(&server, round);
            let begin = Instant::now();
            member.check(&server, round);
            slowest = slowest.max(begin.elapsed());
        }
        resident.push(server.resident_kib());
        for step in 0..STEPS {
            let member = &mut all[(round as usize * STEPS + step) % 100];
            if step % 10 == 9 {
                ended.push_back(dir.path().join(member.sleeper.id().ledger_name()));
                *member = Member::start(&dir, round % 64);
                if ended.len() > KEPT {
                    std::fs::remove_file(ended.pop_front().unwrap()).unwrap();
                }
            } else {
                member.more += 1;
                member.put(&dir);
            }
        }
        std::thread::sleep(ROUND);
    }
    // Of a day an hour each, of a short run the first round and the last ones.
    let hour = if rounds >= 48 { 24 } else { 1 };
    let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0);
    let (first, last) = (most(&resident[..hour]), most(&resident[resident.len() - hour..]));
    println!("{rounds} rounds in {:?}: {first} KiB, at last {last} KiB; slowest again {slowest:?}", begin.elapsed());
    assert!(last < first + 4096, "{first} KiB at first, {last} KiB at last");
    let few = if rounds >= 48 { all.len() } else { 5 };
    for member in all.iter().take(few) {
        let bytes = dir.json(&["allocs", &member.pid().to_string()])["bytes"].as_u64().unwrap();
        assert_eq!(bytes, member.sums().1, "as gpumem allocs has it");
    }
}

/// Stores ask for profiles alone: what a server knows of a process goes with the process, although no page is made.
#[test]
fn what_is_known_of_processes_ends_with_them() {
    let dir = dir();
    let all: Vec<Member> = (0..100).map(|number| Member::start(&dir, number)).collect();
    let server = Server::start(&dir, &[]);
    let mut resident = Vec::new();
    for round in 0..14 {
        // Another ledger is another process, whatever its number.
        all.iter().for_each(|member| member.put(&dir));
        std::thread::sleep(ROUND);
        all.iter().for_each(|member| member.check(&server, round));
        resident.push(server.resident_kib());
    }
    let grown = resident[13].saturating_sub(resident[5]);
    assert!(grown < 768, "{grown} KiB for 800 processes that ended: {resident:?} KiB");
}

/// A process that is parked has a profile: its memory is on the host, and its calls wait.
#[test]
fn a_parked_process_has_a_profile() {
    use gpumem_wire::kinds::Parking;
    let dir = dir();
    for state in [Parking::Quiet, Parking::Parked] {
        let sleeper = Sleeper::start();
        let mut composer = demo(sleeper.id());
        composer.header.parking = state as u64;
        composer.header.parking_ns = monotonic_ns();
        dir.put(sleeper.id(), composer);
        let server = Server::start(&dir, &[]);
        assert_eq!(profile(&server, sleeper.id().pid).1.sums()[3], LIVE, "{state:?}");
        let (_, body) = server.fetch("/targets");
        assert!(String::from_utf8_lossy(&body).contains(&format!("\"{}\"", sleeper.id().pid)), "{state:?}");
    }
}

/// If there is more to look at than time allows, what is listed stays, and what is not is no process that ended.
#[test]
fn a_process_that_was_not_looked_at_is_not_taken_for_one_that_ended() {
    let dir = dir();
    let sleeper = Sleeper::start();
    dir.put(me(), demo(me()));
    let server = Server::start(&dir, &[]);
    profile(&server, me().pid);
    for number in 0..150_000 {
        std::fs::File::create(dir.path().join(format!("{}-{number}.ledger", 1 << 22))).unwrap();
    }
    let begin = Instant::now();
    let ask = || status(&server.fetch(&format!("/debug/pprof/gpu?pid={}", sleeper.id().pid)).0);
    while ask() == 404 {
        assert!(begin.elapsed() < Duration::from_secs(20), "not all could be looked at");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(ask(), 503);
    let (_, body) = server.fetch("/targets");
    assert!(String::from_utf8_lossy(&body).contains(&format!("\"{}\"", me().pid)));
    profile(&server, me().pid);
}

/// A process that is killed between the list and the answer, or whose ledger is cut short, is a status and no hang.
#[test]
fn a_process_that_is_killed_has_no_profile_any_more() {
    let dir = dir();
    let sleeper = Sleeper::start();
    let pid = sleeper.id().pid;
    let ledger = dir.put(sleeper.id(), demo(sleeper.id()));
    let mut server = Server::start(&dir, &[]);
    profile(&server, pid);
    std::thread::sleep(Duration::from_millis(1100));
    let whole = std::fs::read(&ledger).unwrap();
    std::fs::write(&ledger, &whole[..whole.len() / 2]).unwrap();
    let (head, _) = server.fetch(&format!("/debug/pprof/gpu?pid={pid}"));
    assert!([200, 403, 404, 503].contains(&status(&head)), "{head}");
    std::fs::write(&ledger, whole).unwrap();
    // SAFETY: the child was not waited for yet, so no other process can have its number.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    std::thread::sleep(Duration::from_millis(1100));
    let (head, body) = server.fetch(&format!("/debug/pprof/gpu?pid={pid}"));
    assert_eq!(status(&head), 404, "{head}{}", String::from_utf8_lossy(&body));
    assert!(server.is_well());
}

/// Thousands of stacks are answered in bounded time and memory.
#[test]
fn thousands_of_stacks_are_answered() {
    const STACKS: u32 = 20_000;
    let dir = dir();
    let mut composer = demo(me());
    for number in 0..STACKS {
        let stack = StackSlot { allocs: 1, alloc_bytes: 4096, hash: u64::from(number) + 1000, ..Default::default() };
        let frames = [CUDA + 0x10, APP + 0x1000 + u64::from(number), APP + 0x901];
        composer.stack(number as usize + 9, stack, &frames);
    }
    dir.put(me(), composer);
    let server = Server::start(&dir, &["--no-symbols"]);
    let before = server.resident_kib();
    let begin = Instant::now();
    let (_, served) = profile(&server, me().pid);
    assert_eq!(served.sums()[0], 9 + u64::from(STACKS));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let grown = server.resident_kib() - before;
    assert!(grown < 256 << 10, "{grown} KiB more");
    println!("{STACKS} stacks: {took:?}, {grown} KiB more");
}

/// A scraper that asks twice at once gets two answers, and one that asks and reads nothing is in nobody's way.
#[test]
fn a_scraper_that_hangs_or_asks_twice_at_once_is_in_nobodys_way() {
    use std::io::{Read, Write};
    let dir = dir();
    dir.put(me(), demo(me()));
    let mut server = Server::start(&dir, &[]);
    let (_, first) = profile(&server, me().pid);
    let ask = format!("GET /debug/pprof/gpu?pid={} HTTP/1.1\r\nHost: {}\r\n", me().pid, server.at);
    // Two on one connection, and two connections at once.
    let mut twice = server.connect();
    twice.write_all(format!("{ask}\r\n{ask}Connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answers = Vec::new();
    twice.read_to_end(&mut answers).unwrap();
    assert_eq!(answers.windows(12).filter(|at| at == b"HTTP/1.1 200").count(), 2);
    let path = format!("/debug/pprof/gpu?pid={}", me().pid);
    std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| server.fetch(&path)));
        for one in both {
            let (head, body) = one.join().unwrap();
            assert_eq!((status(&head), Profile::read(&body).sums()), (200, first.sums()), "{head}");
        }
    });
    // One says half of its request, ten read none of their answers.
    let mut half = server.connect();
    half.write_all(&ask.as_bytes()[..20]).unwrap();
    let hanging: Vec<_> = (0..10)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(format!("{ask}\r\n").repeat(200).as_bytes()).unwrap();
            stream
        })
        .collect();
    let begin = Instant::now();
    assert_eq!(status(&server.fetch(&path).0), 200);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    drop((half, hanging));
    assert!(server.is_well());
}
