//! Recordings made by hand.

use super::{Dir, SECOND};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// Writes the recording of a process that held so many bytes on a card for 20 s, and returns its path. `recorder`: when
/// the recorder started, which tells recordings of one run; 0: the process was not started for the recording.
pub fn recorded_process(dir: &Dir, name: &str, pid: u64, bytes: u64, recorder: u64) -> PathBuf {
    let path = dir.path().join(name);
    let file = std::fs::File::create(&path).unwrap();
    let mut file = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    let begin = json!({
        "version": 1, "pid": pid, "name": "<b>rank", "began_unix_ns": pid, "recorder_unix_ns": recorder,
        "command": "torchrun <i>train.py", "parent_pid": 9, "parent_name": "torchrun",
    });
    let row = |id: u64, kind: &str, name: &str, stack: u64| json!({"row": {"id": id, "kind": kind, "name": name, "stack": stack}});
    let tick = |second: u64, rows: Value| json!({"tick": {"unix_ns": (1000 + second) * SECOND, "rows": rows}});
    let change = |bytes: i64| json!([[0, bytes, 1, 0, 0], [1, bytes, 1, 0, 0], [2, bytes, 1, 0, 0]]);
    let lines = [
        json!({"gpumem_recording": begin}),
        json!({"frames": ["main rank.c:3"]}),
        json!({"stack": {"id": 1, "frames": [0], "site": 0}}),
        row(0, "card", "Card GPU-1", 0),
        row(1, "kind", "device", 0),
        row(2, "site", "", 1),
        tick(pid % 10, change(bytes as i64)),
        tick(20 + pid % 10, change(-1)),
        json!({"end": {"why": "the process exited"}}),
    ];
    for line in lines {
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    file.finish().unwrap();
    path
}
