//! Commands that change a running process, as far as the inspector goes: what is checked, what is asked, what is told.

mod common;
use common::pool::pooled;
use common::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;

/// A directory with one running process, this test.
fn one() -> Dir {
    let dir = dir();
    dir.put(me(), pooled(me()));
    dir
}

/// Runs a command against a control socket that answers like this: what the socket was asked.
fn asked(args: &[&str], reply: &'static str) -> (Answer, String) {
    let dir = one();
    let listener = UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    let socket = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        stream.write_all(reply.as_bytes()).unwrap();
        line
    });
    (dir.gpumem(args), socket.join().unwrap())
}

#[test]
fn trim_asks_and_tells() {
    let pid = me().pid;
    let (answer, line) = asked(&["trim"], "ok 48 MiB in 3 blocks\n");
    assert_eq!((answer.code, line.as_str()), (0, "trim\n"));
    assert_eq!(answer.out, format!("pid {pid}: 48 MiB in 3 blocks\n"));
    let (answer, line) = asked(&["trim", "--press", "demo-server", "--json"], "ok x\n");
    assert_eq!(line, "trim press\n", "by its name: {}", answer.err);
    let report: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!((&report["pid"], &report["press"], &report["said"]), (&json!(pid), &json!(true), &json!("x")));
    let (answer, _) = asked(&["trim"], "error the pool is off\n");
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("the process refuses it: the pool is off"), "{}", answer.err);
}

#[test]
fn set_is_checked_before_it_is_asked() {
    let pid = me().pid.to_string();
    let (answer, line) = asked(&["set", &pid, "pool_max=1 GiB"], "ok\n");
    assert_eq!((answer.code, line.as_str()), (0, "set GPUMEM_POOL_MAX 1 GiB\n"), "{}", answer.err);
    assert_eq!(answer.out, format!("pid {pid}: GPUMEM_POOL_MAX 256MiB → 1 GiB\n"));
    let (answer, _) = asked(&["set", &pid, "GPUMEM_LIMIT=default", "--json"], "ok no limit\n");
    let report: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!((&report["variable"], &report["said"]), (&json!("GPUMEM_LIMIT"), &json!("no limit")));
    let (answer, line) = asked(&["set", &pid, "graph_cache=0"], "ok set aside\n");
    assert_eq!((answer.code, line.as_str()), (0, "set GPUMEM_GRAPH_CACHE 0\n"), "{}", answer.err);
    let (answer, line) = asked(&["set", &pid, "GPUMEM_POOL=default"], "ok\n");
    assert_eq!((answer.code, line.as_str()), (0, "set GPUMEM_POOL default\n"), "{}", answer.err);
    assert_eq!(answer.out, format!("pid {pid}: GPUMEM_POOL 1 → 1\n"));
    let dir = one();
    assert!(dir.gpumem(&["set", &pid, "POOL"]).err.contains("POOL needs a value"));
    assert!(dir.gpumem(&["set", &pid, "POOL", "0"]).err.contains("POOL needs a value"));
    for (first, second, says) in [
        ("POOL=1", "LIMIT=1KB", "GPUMEM_LIMIT cannot be \"1KB\": allowed is 1MiB or more"),
        ("POOL=1", "POOL_DECAY=fast", "allowed is seconds, or a time"),
        ("POOL=1", "EVENTS=300", "GPUMEM_EVENTS is read once, when the process starts; gpumem set changes STACKS"),
        ("EVENTS=300", "POOL=1", "GPUMEM_EVENTS is read once"),
        ("POLL=1", "POOL=1", "unknown variable POLL"),
        ("LIMIT=1GiB", "3", "\"3\" is no variable, and no part of LIMIT=1GiB"),
        ("LIMIT=1GiB", "limit=2GiB", "limit has two values"),
    ] {
        let answer = dir.gpumem(&["set", &pid, first, second]);
        assert_eq!(answer.code, 2);
        assert!(answer.err.contains(says), "{}", answer.err);
    }
}

#[test]
fn several_variables_are_set_at_once_and_a_refusal_names_the_one() {
    let dir = one();
    let listener = UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    let said = std::thread::spawn(move || {
        let mut lines = Vec::new();
        for reply in ["ok\n", "error 3.0 GiB are live on device 0\n"] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            lines.push(line);
        }
        lines
    });
    let answer = dir.gpumem(&["set", "STRANDED=spill", "LIMIT=1GiB", "POOL=0", "--json", "--force"]);
    assert_eq!(said.join().unwrap(), ["force GPUMEM_STRANDED spill\n", "force GPUMEM_LIMIT 1GiB\n"]);
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(
        answer.err.contains("GPUMEM_LIMIT is not changed: the process refuses it: 3.0 GiB are live"),
        "{}",
        answer.err
    );
    // What was set before stands in the answer.
    let report: Value = serde_json::from_str(&answer.out).unwrap();
    let change = json!({ "variable": "GPUMEM_STRANDED", "old": "report", "value": "spill", "said": "" });
    assert_eq!(report["changes"], json!([change]), "{report:#}");
}

#[test]
fn get_says_what_is_in_force_and_where_it_came_from() {
    let dir = dir();
    let mut ledger = pooled(me());
    ledger.header.changes = ledger.text("GPUMEM_LIMIT=default\nGPUMEM_FREE=deferred");
    dir.put(me(), ledger);
    let report = dir.json(&["get"]);
    let all = report["variables"].as_array().unwrap();
    assert_eq!(all.len(), gpumem_wire::settings::ALL.len());
    let of = |name: &str| {
        let row = all.iter().find(|row| row["variable"] == name).unwrap();
        (row["value"].as_str().unwrap().to_owned(), row["source"].as_str().unwrap().to_owned())
    };
    let is =
        |name: &str, value: &str, source: &str| assert_eq!(of(name), (value.to_owned(), source.to_owned()), "{name}");
    is("GPUMEM_POOL_MAX", "256MiB", "environment");
    is("GPUMEM_LIMIT", "", "set");
    is("GPUMEM_FREE", "deferred", "set");
    is("GPUMEM_OOM_FALLBACK", "managed", "environment");
    is("GPUMEM_GRAPH_CACHE", "512", "default");
    let pid = me().pid.to_string();
    for args in [
        &["get", "limit", "GPUMEM_FREE"][..],
        &["get", &pid, "LIMIT", "free"],
        &["get", "demo-server", "LIMIT", "FREE"],
    ] {
        let text = dir.ok(args);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().skip(1).map(words).collect();
        assert_eq!(lines[0][..3], ["GPUMEM_LIMIT=", "set:", "unset"], "{text}");
        assert_eq!(lines[1][..2], ["GPUMEM_FREE=deferred", "set"], "{text}");
    }
    assert!(dir.ok(&["get", "OOM_FALLBACK"]).contains("environment: GGML_CUDA_ALLOC_FALLBACK_MANAGED"));
    let answer = dir.gpumem(&["get", "GPUMEM_LIMT"]);
    assert_eq!(answer.code, 2, "{}", answer.err);
    assert!(answer.err.contains("there is no variable GPUMEM_LIMT"), "{}", answer.err);
}

#[test]
fn off_is_one_word() {
    let pid = me().pid.to_string();
    let (answer, line) = asked(&["off", &pid], "ok 3 blocks went back\n");
    assert_eq!((answer.code, line.as_str()), (0, "off\n"), "{}", answer.err);
    assert_eq!(answer.out, format!("pid {pid}: 3 blocks went back\n"));
}
