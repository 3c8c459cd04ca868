//! `gpumem top` follows a ledger that changes.

mod common;
use common::*;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::AllocSlot;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn growth_between_two_looks_is_shown_at_its_site() {
    let dir = dir();
    let path = dir.put(me(), demo(me()));
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).args(["top", "--count", "2", "--interval", "0.5", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // The first answer ends with a brace of its own.
    let mut first = String::new();
    while !first.ends_with("\n}\n") {
        assert!(out.read_line(&mut first).unwrap() > 0, "{first}");
    }
    let mut grown = demo(me());
    let more = AllocSlot {
        stack: 2,
        bytes: 8 * MIB,
        serial: 50,
        kind: AllocKind::Device as u8,
        context: 1,
        ..Default::default()
    };
    grown.slots([more]);
    // As the shim does: in place, never half a file.
    let draft = dir.path().join("draft");
    std::fs::write(&draft, grown.finish()).unwrap();
    std::fs::rename(draft, path).unwrap();
    let second: serde_json::Value = serde_json::from_reader(out).unwrap();
    assert!(child.wait().unwrap().success());
    let changes: Vec<_> = second["sites"].as_array().unwrap().iter().map(|site| site["bytes_change"].clone()).collect();
    assert_eq!(changes, [json!(0), json!(8 * MIB)]);
    assert!(second["rates"]["launches"].is_number());
}
