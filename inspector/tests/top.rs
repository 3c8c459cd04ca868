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

#[test]
fn a_look_never_scrolls_the_terminal() {
    let dir = dir();
    let mut ledger = pool::pooled(me());
    cache::thrashing(&mut ledger, "GPUMEM_GRAPH_CACHE");
    ledger.header.interception = gpumem_wire::kinds::Interception::Partial as u32;
    ledger.header.interception_reason = ledger.text(&"a reason that is longer than a line of the terminal ".repeat(3));
    for site in 0..60_u64 {
        let stack = gpumem_wire::layout::StackSlot { allocs: 1, alloc_bytes: MIB, ..Default::default() };
        ledger.stack(100 + site as usize, stack, &[APP + 0x2000 + site * 0x10]);
        ledger.slots([AllocSlot {
            stack: 101 + site as u32,
            bytes: MIB,
            serial: 1000 + site,
            kind: AllocKind::Device as u8,
            context: 1,
            ..Default::default()
        }]);
    }
    dir.put(me(), ledger);
    for (columns, rows) in [(80, 14), (80, 24), (132, 50)] {
        let said = terminal::ok(&dir, columns, rows, &["top", "--count", "2", "--interval", "0.1"]);
        let looks: Vec<_> = said.split("\x1b[H").skip(1).collect();
        assert_eq!(looks.len(), 2, "{said:?}");
        for look in looks {
            let lines = look.matches('\n').count();
            assert!(lines < usize::from(rows), "{columns}x{rows}: {lines} lines\n{look}");
            // As many sites as fit.
            assert!(lines + 2 > usize::from(rows), "{columns}x{rows}: {lines} lines\n{look}");
            for line in look.lines() {
                let plain = anstream::adapter::strip_str(line).to_string();
                let width = unicode_width::UnicodeWidthStr::width(plain.trim_end());
                assert!(width <= usize::from(columns), "{columns}x{rows}: {width} columns: {plain}");
            }
        }
    }
}

/// A terminal may have no rows: one that a program opened and gave no size, or a window that was drawn to nothing.
#[test]
fn a_terminal_without_rows_or_columns_is_borne() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let log = dir.path().join("log");
    for (columns, rows) in [(120, 0), (0, 40), (0, 0), (1, 1), (39, 7)] {
        let mut top = terminal::Running::sized(&dir, columns, rows, &["top", "--interval", "0.1"], &log);
        std::thread::sleep(std::time::Duration::from_millis(500));
        for (columns, rows) in [(columns, rows), (0, 0), (80, 24), (80, 0), (1, 1)] {
            top.resize(columns, rows);
            std::thread::sleep(std::time::Duration::from_millis(150));
        }
        top.press("q");
        top.end();
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(!said.contains("panicked"), "{columns}x{rows}: {said}");
        let text = terminal::ok(&dir, columns, rows, &["top", "--count", "1"]);
        assert!(!text.is_empty(), "{columns}x{rows}");
    }
}
