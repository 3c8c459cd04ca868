//! `gpumem top` on terminals of any size.

mod common;
use common::*;

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
    }
}
