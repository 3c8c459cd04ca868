//! `gpumem serve`: what it answers, and that nobody who reaches it can make it fall or grow.

mod common;
use common::web::{Server, body, status};
use common::*;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn one() -> Dir {
    let dir = dir();
    dir.put(me(), demo(me()));
    dir
}

/// Lines that are samples, without the two that a clock moves.
fn samples(page: &str) -> Vec<&str> {
    let moves = ["gpumem_collect_seconds", "gpumem_recorded_seconds", "gpumem_resident", "gpumem_host_unexplained"];
    page.lines().filter(|line| !line.starts_with('#') && !moves.iter().any(|name| line.starts_with(name))).collect()
}

#[test]
fn it_serves_what_the_export_writes() {
    let dir = one();
    let server = Server::start(&dir, &[]);
    let answer = server.named();
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    let exported = dir.ok(&["export", "--to", "prometheus"]);
    assert_eq!(samples(body(&answer)), samples(&exported));
    let line = format!(
        "gpumem_live_bytes{{pid=\"{}\",process=\"demo-server\",kind=\"device\",memory=\"device\"}} {}",
        me().pid,
        96 * MIB
    );
    assert!(exported.contains(&line), "{exported}");

    // As Prometheus asks.
    let accept = "Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n";
    let open = server.get("/metrics", accept);
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(body(&open).ends_with("# EOF\n") && samples(body(&open)) == samples(&exported), "{open}");
    assert_eq!(server.end(libc::SIGTERM), Some(0));
}

#[test]
fn every_metric_of_the_table_is_one_of_a_page_or_says_when() {
    let dir = one();
    let page = dir.ok(&["export", "--to", "prometheus"]);
    let all = gpumem_inspector::metrics();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(all.iter().any(|metric| metric.name == name), "{name} is not in the table");
    }
    let here = |name: &str| page.lines().any(|line| line.starts_with(name));
    let absent: Vec<_> = all.iter().map(|metric| &*metric.name).filter(|name| !here(name)).collect();
    // Without a limit, an NVIDIA driver, pinned handles, a service that shares, --otlp, and what has ended, there are none.
    let allowed =
        ["gpumem_device_limit_bytes", "gpumem_device_process_bytes", "gpumem_graph_pinned", "gpumem_ended_seconds"];
    let of_others = |name: &str| name.starts_with("gpumem_share_") || name.starts_with("gpumem_otlp_");
    let is_allowed = |name: &&str| allowed.contains(name) || of_others(name);
    assert!(absent.iter().all(is_allowed), "{absent:?}");
}

#[test]
fn sites_and_tags_are_bounded_and_their_sum_is_whole() {
    let dir = one();
    let sum = |page: &str, metric: &str| -> u64 {
        let of = page.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
        of.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    for top in ["1", "10"] {
        let server = Server::start(&dir, &["--top", top]);
        // At first no site has a name: their sum is told all the same.
        assert_eq!(sum(&server.get("/metrics", ""), "gpumem_site_live_bytes"), 112 * MIB);
        let answer = wait_for_name(&server);
        assert_eq!(sum(&answer, "gpumem_site_live_bytes"), 112 * MIB, "{answer}");
        assert_eq!(sum(&answer, "gpumem_tag_live_bytes"), 112 * MIB, "{answer}");
        assert_eq!(answer.contains("site=\"(other)\""), top == "1", "{answer}");
    }
    // No names, and all that alerts need.
    let server = Server::start(&dir, &["--top", "0"]);
    let answer = server.get("/metrics", "");
    assert!(!answer.contains("site=") && !answer.contains("tag="), "{answer}");
    for name in ["gpumem_growing_sites", "gpumem_growing_bytes_per_second"] {
        assert!(answer.lines().any(|line| line.starts_with(&format!("{name}{{"))), "{name}: {answer}");
    }
}

/// Writes the ledger of a process that ended `ago` seconds ago and had run out of memory `times` times. No running
/// process has its pid.
fn put_ended(dir: &Dir, number: u32, ago: u64, times: u64) {
    let id = gpumem_wire::place::ProcessId { pid: 0x3000_0000 + number, start_ticks: 1 };
    let mut ledger = begin(id);
    ledger.header.created_ns = monotonic_ns().saturating_sub((ago + 50) * SECOND).max(1);
    ledger.header.heartbeat_ns = monotonic_ns().saturating_sub(ago * SECOND).max(1);
    cache::count(&mut ledger, gpumem_wire::counters::OUT_OF_MEMORY, times);
    dir.put(id, ledger);
}

/// A program that dies of a failed allocation may do so between two scrapes: what it counted is told for some minutes, by
/// as many programs as there is room for, the last ones first, and nothing of it looks as if it still held memory.
#[test]
fn what_ended_a_moment_ago_is_told_of() {
    let dir = one();
    put_ended(&dir, 1, 10, 3);
    put_ended(&dir, 2, 3000, 5);
    let server = Server::start(&dir, &[]);
    let answer = server.get("/metrics", "");
    let of = |pid: u32| {
        let who = format!("pid=\"{}\"", 0x3000_0000 + pid);
        answer.lines().filter(|line| line.contains(&who)).map(str::to_owned).collect::<Vec<_>>()
    };
    let last = of(1);
    let value = |name: &str| {
        let line = last.iter().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
    };
    assert_eq!(value("gpumem_up"), Some(0.0), "{last:#?}");
    assert_eq!(value("gpumem_out_of_memory_total"), Some(3.0), "{last:#?}");
    assert!(value("gpumem_ended_seconds").is_some_and(|ago| ago >= 10.0), "{last:#?}");
    assert!(last.iter().any(|line| line.contains("how=\"killed\"")), "{last:#?}");
    assert_eq!(value("gpumem_live_bytes"), None, "it holds nothing any more");
    assert_eq!(of(2), [""; 0], "that is long ago");
    drop(server);

    (10..200).for_each(|number| put_ended(&dir, number, 20, 1));
    let server = Server::start(&dir, &[]);
    let answer = server.get("/metrics", "");
    let ended: Vec<_> = answer.lines().filter(|line| line.starts_with("gpumem_ended_seconds{")).collect();
    assert_eq!(ended.len(), 20, "{ended:#?}");
    assert!(ended.iter().any(|line| line.contains(&format!("pid=\"{}\"", 0x3000_0001))), "the last one: {ended:#?}");
}

/// The page of metrics once a call site has a name.
fn wait_for_name(server: &Server) -> String {
    for _ in 0..100 {
        let answer = server.get("/metrics", "");
        if answer.contains("site=\"demo-server+") {
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    panic!("no call site was named in 30 s");
}

/// A page of the web reaches a server of this machine under a name of its own, by DNS rebinding.
#[test]
fn a_server_of_this_machine_alone_answers_to_no_name_of_a_stranger() {
    let dir = one();
    let ask = |server: &Server, host: &str| {
        let (port, path) = (server.at.rsplit_once(':').unwrap().1, "/metrics");
        server.say(format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n").as_bytes())
    };
    let server = Server::start(&dir, &["--host", "GPU.lan"]);
    for host in ["127.0.0.1", "[::1]", "localhost", "gpu.lan"] {
        assert_eq!(status(&ask(&server, host)), 200, "{host}");
    }
    let refused = ask(&server, "evil.example");
    assert!(status(&refused) == 403 && body(&refused).contains("--host"), "{refused}");
    assert!(!refused.contains("demo-server"), "{refused}");
    let healthy = server.say(b"GET /-/healthy HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&healthy), 403, "{healthy}");
    // Whoever names none is no browser; a request that names two, or another in its first line, is refused.
    assert_eq!(status(&server.say(b"GET / HTTP/1.0\r\n\r\n")), 200);
    let two = server.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(matches!(status(&two), 400 | 403), "{two}");
    let other = server.say(b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(matches!(status(&other), 400 | 403), "{other}");
    // Elsewhere, where collectors come by names, any is taken until one is given.
    let server = Server::listening(&dir, "0.0.0.0:0", &[]);
    assert_eq!(status(&ask(&server, "metrics.example")), 200);
    let server = Server::listening(&dir, "0.0.0.0:0", &["--host", "metrics.example"]);
    assert_eq!(status(&ask(&server, "metrics.example")), 200);
    assert_eq!(status(&ask(&server, "10.0.0.7")), 200);
    assert_eq!(status(&ask(&server, "evil.example")), 403);
    let wrong = dir.gpumem(&["serve", "--host", "a b"]);
    assert!(wrong.code == 2 && wrong.err.contains("the name of a host"), "{}", wrong.err);
}

#[test]
fn paths_and_methods_have_answers() {
    let dir = dir();
    let mut server = Server::start(&dir, &[]);
    assert_eq!(status(&server.get("/", "")), 200);
    assert_eq!(status(&server.get("/metrics?x=1", "")), 200);
    let none = server.get("/metric", "");
    assert!(status(&none) == 404 && body(&none).contains("/metrics"), "{none}");
    let head = server.say(b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(status(&head) == 200 && body(&head).is_empty() && head.contains("content-length: "), "{head}");
    let post =
        server.say(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc");
    assert!(status(&post) == 405 && post.contains("allow: GET, HEAD"), "{post}");
    assert!(server.is_well());
}

#[test]
fn what_is_in_the_way_is_told() {
    let dir = dir();
    let server = Server::start(&dir, &[]);
    let taken = dir.gpumem(&["serve", "--listen", &server.at]);
    assert_eq!(taken.code, 1);
    assert!(taken.err.contains(&format!("cannot listen on {}: Address already in use", server.at)), "{}", taken.err);
    for (args, allowed) in [
        (["--listen", "here"], "an address and a port, such as 127.0.0.1:9849"),
        (["--top", "101"], "a number from 0 to 100"),
        (["--max-connections", "0"], "a number from 1 to 10000"),
    ] {
        let answer = dir.gpumem(&[&["serve"], &args[..]].concat());
        assert!(answer.code == 2 && answer.err.contains(allowed), "{args:?}: {}", answer.err);
    }
}

/// Requests that are none, too large, or cut short.
#[test]
fn garbage_is_answered_or_cut_and_nothing_falls() {
    let dir = one();
    let mut server = Server::start(&dir, &[]);
    let long = "x".repeat(100_000);
    for (request, expected) in [
        ("nonsense\r\n\r\n".to_owned(), 400),
        ("GET /metrics HTTP/9.9\r\n\r\n".into(), 400),
        ("GET\r\n\r\n".into(), 400),
        (format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {long}\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000)), 431),
        ("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".into(), 400),
        ("GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), 400),
    ] {
        let answer = server.say(request.as_bytes());
        let shown = &request[..request.len().min(60)];
        // Who is still sending when the server closes may not get to read why.
        let lost = request.len() > 16_384 && answer.is_empty();
        assert!(lost || status(&answer) == expected, "{shown:?}: {answer}");
    }
    assert!(server.is_well());
}

/// Clients that send their request byte by byte, or never read the answer, take a bounded part of the server, and are
/// thrown out.
#[test]
fn slow_clients_are_thrown_out() {
    let dir = one();
    let mut server = Server::start(&dir, &["--max-connections", "4"]);
    let mut slow: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nA: ").unwrap();
    }
    // All are taken: more are turned away, with a reason.
    let refused = loop {
        let answer = server.get("/metrics", "");
        if status(&answer) != 200 {
            break answer;
        }
    };
    assert!(status(&refused) == 503 && body(&refused).contains("too many connections"), "{refused}");
    // Each is cut once its time is over, however it drips.
    for stream in &mut slow {
        let mut cut = Vec::new();
        loop {
            let mut byte = [0; 64];
            let _ = stream.write_all(b"b");
            stream.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
            match stream.read(&mut byte) {
                Ok(0) => break,
                Ok(n) => cut.extend_from_slice(&byte[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
    assert!(server.is_well());
}

#[test]
fn a_client_that_reads_nothing_is_thrown_out() {
    let dir = one();
    let server = Server::start(&dir, &["--max-connections", "1"]);
    let mut deaf = server.connect();
    deaf.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let asked = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    while deaf.write_all(asked.as_bytes()).is_ok() {}
    assert_eq!(status(&server.get("/metrics", "")), 503, "it has the only connection");
    let begin = Instant::now();
    while status(&server.get("/metrics", "")) != 200 {
        assert!(begin.elapsed() < Duration::from_secs(60), "it still has its connection");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn many_clients_cost_no_memory() {
    let dir = one();
    let mut server = Server::start(&dir, &["--max-connections", "8"]);
    assert!(server.is_well());
    assert_eq!(status(&server.get("/metrics", "")), 200);
    let before = server.resident_kib();
    for _ in 0..20 {
        let open: Vec<_> = (0..50).map(|_| server.connect()).collect();
        drop(open);
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 20_000, "{grown} KiB");
    // Those that were open may not be gone yet.
    while !server.is_well() {}
}

/// Of a counter a collector takes the smallest step back for a process that began anew, and adds all that it counts to what
/// there was.
#[test]
fn no_counter_falls_while_what_it_counts_grows() {
    let page = |more: Option<usize>| {
        let dir = dir();
        let mut ledger = cache::cached(me());
        if let Some(index) = more {
            cache::count(&mut ledger, index, 1_000_000);
        }
        dir.put(me(), ledger);
        dir.ok(&["export", "--to", "prometheus", "--no-symbols"])
    };
    let counters = |page: &str| -> std::collections::BTreeMap<String, f64> {
        let of = page.lines().filter(|line| line.split(['{', ' ']).next().is_some_and(|name| name.ends_with("_total")));
        of.map(|line| line.rsplit_once(' ').unwrap()).map(|(name, n)| (name.to_owned(), n.parse().unwrap())).collect()
    };
    let before = counters(&page(None));
    for &(index, name, _) in gpumem_wire::counters::ALL {
        for (sample, now) in counters(&page(Some(index))) {
            assert!(now >= before[&sample], "{sample} falls from {} to {now} when {name} grows", before[&sample]);
        }
    }
}

/// A server, and a child of this test that it knows to lack the shim and to be unchanged since.
fn with_idle(command: &mut Command) -> (Server, Sleeper, String) {
    let (server, child) = (Server::wide(), Sleeper(command.stdin(Stdio::piped()).spawn().unwrap()));
    let up = format!("gpumem_up{{pid=\"{}\"", child.id().pid);
    for _ in 0..3 {
        assert!(!next_page(&server).contains(&up));
    }
    (server, child, up)
}

/// The page after the one that is served again.
fn next_page(server: &Server) -> String {
    std::thread::sleep(Duration::from_millis(1100));
    server.get("/metrics", "")
}

/// Waits for a page with this sample: on a busy machine a page leaves processes out.
fn wait_for_sample(server: &Server, sample: &str) {
    assert!((0..30).any(|_| next_page(server).contains(sample)), "{sample}");
}

#[test]
fn a_page_has_a_process_that_started_another_program_since_the_last_one() {
    let dir = dir();
    let script = format!("read line; exec env GPUMEM_DIR={} sleep 86400", dir.path().display());
    let (server, mut child, up) = with_idle(Command::new("sh").args(["-c", &script]));
    dir.put(child.id(), demo(child.id()));
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let name = format!("/proc/{}/comm", child.id().pid);
    while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_for_sample(&server, &format!("{up},process=\"demo-server\"}} 1"));
}

#[test]
fn a_page_has_a_process_that_loaded_the_shim_since_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let (shim, driver) = (library(dir.path()), dir.path().join("libcuda.so.1"));
    std::fs::copy(&shim, &driver).unwrap();
    let (source, program) = (dir.path().join("loads.c"), dir.path().join("loads"));
    let code = "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char **a) { getchar(); \
                int ok = dlopen(a[1], 2) && dlopen(a[2], 2); puts(ok ? \"ok\" : dlerror()); fflush(stdout); \
                getchar(); getchar(); return 0; }\n";
    std::fs::write(&source, code).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    assert!(Command::new(cc).arg(&source).arg("-o").arg(&program).arg("-ldl").status().unwrap().success());
    let (server, mut child, up) =
        with_idle(Command::new(&program).args([&shim, &driver]).env_remove("GPUMEM_DIR").stdout(Stdio::piped()));
    child.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut said = [0; 3];
    child.0.stdout.take().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ok\n");
    wait_for_sample(&server, &format!("{up},process=\"loads\"}} 0"));
}
