//! Profiles that `gpumem serve --otlp` pushes, to receivers that take them, refuse them, hang, or are not there.

mod common;
use common::otlp::{Pushed, Receiver, Reply, TAKEN, partial};
use common::web::{Server, status};
use common::*;
use gpumem_wire::layout::*;
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn pushing(dir: &Dir, url: &str) -> Server {
    Server::start(dir, &["--otlp", url, "--otlp-every", "1s"])
}

/// A value of the page of metrics.
fn metric(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics", "");
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}\n{page}"));
    line.trim().parse().unwrap()
}

/// Waits until a value of the page of metrics is so high. A page is made once a second.
fn until(server: &Server, name: &str, value: u64) {
    let begin = Instant::now();
    while metric(server, name) < value {
        assert!(begin.elapsed() < Duration::from_secs(60), "{name} is below {value}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

const ACCEPTED: &str = "gpumem_otlp_profiles_total{outcome=\"accepted\"}";
const REFUSED: &str = "gpumem_otlp_profiles_total{outcome=\"refused\"}";
const FAILED_TRIES: &str = "gpumem_otlp_failed_tries_total";
const WAITING: &str = "gpumem_otlp_waiting_bytes";

/// Live bytes of memory as `gpumem ps` and `gpumem allocs` have them.
const LIVE: u64 = (96 + 16) * MIB;

#[test]
fn a_pushed_profile_is_what_the_views_show() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let receiver = Receiver::start(&[TAKEN]);
    let server = pushing(&dir, &receiver.url);
    let pushed = receiver.after(1, |requests| {
        let head = &requests[0].head;
        for line in [
            "post /v1development/profiles http/1.1\r\n",
            "content-type: application/x-protobuf\r\n",
            "user-agent: gpumem/",
        ] {
            assert!(head.contains(line), "{head}");
        }
        assert!(head.contains("content-encoding: gzip\r\n"), "{head}");
        Pushed::read(&requests[0].body)
    });
    assert_eq!((pushed.sum("inuse_space bytes"), pushed.sum("inuse_objects count")), (LIVE, 3));
    assert_eq!(pushed.sum("alloc_space bytes"), 0, "what was allocated before the first push may have been pushed");
    let resource = |key: &str| pushed.resource[key].clone();
    assert_eq!(
        (resource("service.name"), resource("process.executable.name")),
        ("demo-server".into(), "demo-server".into())
    );
    assert_eq!(resource("process.pid"), me().pid.to_string());
    assert!(resource("service.instance.id").contains(&format!("-{}-", me().pid)), "{:?}", pushed.resource);
    let sample = pushed.samples.iter().find(|sample| sample.value == 64 * MIB).unwrap();
    let attributes: Vec<String> = sample.attributes.iter().map(|(key, text)| format!("{key}={text}")).collect();
    let device = "device=30313233-3435-3637-3839-616263646566";
    assert_eq!(attributes, [device, "kind=device", "process=demo-server", "tag=weights"]);
    assert_eq!(sample.kind, "inuse_space bytes");
    assert!(sample.stack.iter().any(|step| step.starts_with("demo-server+0x")), "{:?}", sample.stack);
    until(&server, ACCEPTED, 2);
    assert_eq!((metric(&server, REFUSED), metric(&server, FAILED_TRIES)), (0, 0));
}

/// A receiver adds up what it is sent: each allocation is sent once, also of a process that takes a pid again.
#[test]
fn allocations_are_sent_once() {
    let dir = dir();
    let receiver = Receiver::start(&[TAKEN]);
    let server = pushing(&dir, &receiver.url);
    let put = |created_ns: u64, more: u64| {
        let mut composer = demo(me());
        composer.header.created_ns = created_ns;
        let stack = StackSlot { allocs: more, alloc_bytes: more * MIB, hash: 99, ..Default::default() };
        composer.stack(9, stack, &[CUDA + 0x10, APP + 0x501, APP + 0x901]);
        // Never a half-written file.
        let next = dir.path().join("next");
        std::fs::write(&next, composer.finish()).unwrap();
        std::fs::rename(next, dir.path().join(me().ledger_name())).unwrap();
        let next = receiver.count() + 2;
        receiver.after(next, |_| ());
    };
    let all = || {
        receiver.after(0, |requests| {
            let sums = requests.iter().map(|request| Pushed::read(&request.body).sum("alloc_space bytes"));
            sums.sum::<u64>() / MIB
        })
    };
    let began = monotonic_ns();
    put(began, 7);
    assert_eq!(all(), 165 + 7, "since the process began");
    put(began, 12);
    assert_eq!(all(), 165 + 12, "five more");
    put(monotonic_ns(), 1);
    assert_eq!(all(), 2 * 165 + 12 + 1, "another process");
    let durations = receiver.after(0, |requests| {
        let of = requests.iter().map(|request| Pushed::read(&request.body).durations);
        of.filter_map(|durations| durations.get("alloc_space bytes").copied()).collect::<Vec<u64>>()
    });
    assert!(durations.len() == 3 && durations.iter().all(|&ns| ns < 60 * SECOND), "{durations:?}");
    assert!(server.get("/metrics", "").contains(ACCEPTED));
}

/// Bodies that come again after these replies, and the time between the first two.
fn tried_again(replies: &[Reply]) -> Duration {
    let dir = dir();
    dir.put(me(), demo(me()));
    let receiver = Receiver::start(replies);
    let server = pushing(&dir, &receiver.url);
    let failed = replies.len() - 1;
    let pause = receiver.after(failed + 1, |requests| {
        assert!(requests.windows(2).take(failed).all(|pair| pair[0].body == pair[1].body), "the same comes again");
        requests[1].at - requests[0].at
    });
    until(&server, ACCEPTED, 1);
    assert_eq!((metric(&server, REFUSED), metric(&server, FAILED_TRIES)), (0, failed as u64));
    until(&server, ACCEPTED, 2);
    pause
}

#[test]
fn what_may_pass_is_tried_again() {
    for code in [502, 503, 504] {
        let pause = tried_again(&[Reply::Status(code, "", vec![]), Reply::Status(code, "", vec![]), TAKEN]);
        assert!(pause >= Duration::from_millis(500), "{code}: after {pause:?}");
    }
    assert!(tried_again(&[Reply::Half, TAKEN]) >= Duration::from_millis(500));
    let wish = Reply::Status(429, "Retry-After: 3\r\n", vec![]);
    assert!(tried_again(&[wish, TAKEN]) >= Duration::from_secs(3), "as the receiver wishes");
    let date = Reply::Status(503, "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n", vec![]);
    assert!(tried_again(&[date, TAKEN]) >= Duration::from_millis(500));
}

#[test]
fn what_is_refused_is_not_tried_again() {
    let wrong = |code| Reply::Status(code, "", b"no".to_vec());
    for reply in [wrong(400), wrong(413), wrong(500), wrong(301), Reply::Status(200, "", partial(1, "too old"))] {
        let dir = dir();
        dir.put(me(), demo(me()));
        let receiver = Receiver::start(&[reply, TAKEN]);
        let server = pushing(&dir, &receiver.url);
        until(&server, REFUSED, 1);
        until(&server, ACCEPTED, 1);
        assert_eq!((metric(&server, REFUSED), metric(&server, FAILED_TRIES)), (1, 0));
    }
    // An answer without end, and one that is no message, are answers all the same.
    for body in [vec![7; 200_000], b"{}".to_vec()] {
        let dir = dir();
        dir.put(me(), demo(me()));
        let receiver = Receiver::start(&[Reply::Status(200, "", body)]);
        until(&pushing(&dir, &receiver.url), ACCEPTED, 2);
    }
}

/// Pages come at once and a signal ends the server at once, whatever the receiver does.
#[test]
fn a_receiver_that_hangs_or_is_absent_is_in_nobodys_way() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let receiver = Receiver::start(&[Reply::Hang]);
    for (url, hangs) in [(&receiver.url, true), (&nobody, false), (&"http://no-such-host.invalid".to_owned(), false)] {
        let dir = dir();
        dir.put(me(), demo(me()));
        let mut server = pushing(&dir, url);
        match hangs {
            true => receiver.after(1, |_| ()),
            false => until(&server, FAILED_TRIES, 2),
        }
        until(&server, WAITING, 1);
        for _ in 0..20 {
            let begin = Instant::now();
            assert_eq!(status(&server.fetch(&format!("/debug/pprof/gpu?pid={}", me().pid)).0), 200);
            assert!(begin.elapsed() < Duration::from_secs(2), "{url}: {:?}", begin.elapsed());
        }
        assert!(server.is_well());
        let begin = Instant::now();
        assert_eq!(server.end(libc::SIGTERM), Some(0));
        assert!(begin.elapsed() < Duration::from_secs(1), "{url}: it ends after {:?}", begin.elapsed());
    }
}

#[test]
fn a_url_has_to_be_one_that_can_be_pushed_to() {
    let dir = dir();
    for (args, says) in [
        (&["--otlp", "https://otel.example"][..], "on this machine"),
        (&["--otlp", "otel.example:4318"], "such as http://127.0.0.1:4318"),
        (&["--otlp", "http://user:secret@otel.example"], "such as http://127.0.0.1:4318"),
        (&["--otlp", "http://127.0.0.1:4318", "--otlp-every", "0"], "from 1s to 1h"),
        (&["--otlp-every", "5s"], "--otlp <URL>"),
    ] {
        let answer = dir.gpumem(&[&["serve"], args].concat());
        assert!(answer.code == 2 && answer.err.contains(says), "{args:?}: {} {}", answer.code, answer.err);
    }
}
