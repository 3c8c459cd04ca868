//! Profiles that `gpumem serve` has for those who come by for them, and the list of processes that have one.

mod common;
use common::pprof::Profile;
use common::web::{Server, status};
use common::*;
use gpumem_wire::layout::*;
use serde_json::Value;
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

/// What the configurations in deploy/ fetch is there.
#[test]
fn the_configurations_name_pages_that_there_are() {
    let dir = dir();
    let server = Server::start(&dir, &[]);
    for file in ["config.alloy", "parca.yaml"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/profiles").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("127.0.0.1:9849/targets") && text.contains("/debug/pprof/gpu"), "{file}");
    }
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

/// A process that holds what its number says, in its own way.
fn of_number(id: gpumem_wire::place::ProcessId, number: u64) -> gpumem_inspector::compose::Composer {
    let mut composer = demo(id);
    let more = AllocSlot {
        stack: 2,
        addr: 0x6000_0000_0000,
        bytes: number * MIB,
        time_ns: composer.header.created_ns,
        serial: 9,
        context: 1,
        kind: gpumem_wire::kinds::AllocKind::Device as u8,
        ..Default::default()
    };
    composer.slots([more]);
    composer
}

/// A hundred processes, each asked for by two stores, round after round: each sum is its process's own, an answer comes
/// soon, and the server does not grow. `GPUMEM_CASES` says how many rounds; a day has 5,760 of 15 s.
#[test]
fn a_hundred_processes_are_served_without_growth() {
    let rounds: u64 = std::env::var("GPUMEM_CASES").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6);
    let dir = dir();
    let all: Vec<Sleeper> = (0..100).map(|_| Sleeper::start()).collect();
    for (number, sleeper) in all.iter().enumerate() {
        dir.put(sleeper.id(), of_number(sleeper.id(), number as u64));
    }
    let server = Server::start(&dir, &[]);
    let mut after_first = 0;
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let (_, body) = server.fetch("/targets");
        assert_eq!(serde_json::from_slice::<Vec<Value>>(&body).unwrap().len(), all.len());
        for (number, sleeper) in all.iter().enumerate() {
            let (pid, wanted) = (sleeper.id().pid, LIVE + number as u64 * MIB);
            assert_eq!(profile(&server, pid).1.sums()[3], wanted, "process {number} in round {round}");
            let begin = Instant::now();
            assert_eq!(profile(&server, pid).1.sums()[3], wanted, "the second store");
            slowest = slowest.max(begin.elapsed());
        }
        match round {
            0 => after_first = server.resident_kib(),
            _ => {
                let now = server.resident_kib();
                assert!(now < after_first + 8192, "{after_first} KiB after the first round, {now} after {round}");
            }
        }
    }
    println!("{rounds} rounds: {after_first} KiB, at last {} KiB; slowest again {slowest:?}", server.resident_kib());
    let views: u64 = all
        .iter()
        .take(5)
        .map(|sleeper| sleeper.id().pid.to_string())
        .fold(0, |sum, pid| sum + dir.json(&["allocs", &pid])["bytes"].as_u64().unwrap());
    assert_eq!(views, 5 * LIVE + 10 * MIB, "as gpumem allocs has them");
}
