//! Compares screens with stored pictures; `BLESS=1` writes them anew, for people to check.

use super::super::look::{ALLOCATIONS, CONTEXTS, Cell, EVENTS, GRAPHS, Head, NUMBERS, PROCESSES, Row};
use super::*;
use crate::view::plain::Means;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::path::PathBuf;
use std::time::Duration;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn state() -> State {
    State::new(Some("/7.ledger".into()), Duration::from_secs(1), false)
}

fn press(state: &mut State, look: &Look, keys: &str) {
    for c in keys.chars() {
        let code = if c == '\r' { KeyCode::Enter } else { KeyCode::Char(c) };
        let _ = state.key(&KeyEvent::new(code, KeyModifiers::NONE), Some(look));
    }
}

/// Contents of a screen of this size.
fn screen(state: &State, look: Option<&Look>, columns: u16, rows: u16, means: Means) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let draw = |frame: &mut ratatui::Frame| {
        all(frame.buffer_mut(), state, look);
        means.apply(frame.buffer_mut());
    };
    terminal.draw(draw).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
    (0..rows).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

const ALL: Means = Means { colour: true, ascii: false };

/// Compares a screen with its pictures at the important sizes.
fn holds(name: &str, state: &State, look: &Look) {
    for (columns, rows) in [(60, 20), (80, 24), (120, 40)] {
        let now = screen(state, Some(look), columns, rows, ALL);
        let file = format!("src/commands/top/draw/pictures/{name}-{columns}x{rows}.txt");
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(&file);
        if std::env::var_os("BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &now).unwrap();
        }
        let picture = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(now, picture, "{file} is not what is drawn; BLESS=1 writes it anew:\n{now}");
        whole(&now, look);
    }
}

/// Checks that every number on the screen is whole: each word with a digit is a word of the look.
fn whole(screen: &str, look: &Look) {
    let sheets = [&look.numbers, &look.list];
    let cells = sheets.iter().flat_map(|sheet| &sheet.rows).flat_map(|row| &row.cells);
    let mut said: Vec<String> = cells.map(|of| cell(of, 99)).collect();
    said.extend(look.lines.iter().chain(&look.warnings).cloned());
    said.push(format!("{} {} every 1.0 s 2.0 s 1 2 3 4 5 pid {}", look.head.name, look.head.status, look.head.pid));
    let known: Vec<&str> = said.iter().flat_map(|text| text.split_whitespace()).collect();
    let rows = look.list.rows.len();
    for line in screen.lines() {
        for word in
            line.split_whitespace().filter(|word| word.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c)))
        {
            let of_footer = line.contains(" of ") && word.parse::<usize>().is_ok_and(|n| n <= rows);
            assert!(word == "-" || known.contains(&word) || of_footer, "{word:?} is cut in: {line}");
        }
    }
}

fn bars(from: u64, to: u64) -> Cell {
    Cell::Bars((0..60).map(|at| from + (to.saturating_sub(from)) * at / 59).collect())
}

fn number(name: &str, now: u64, peak: u64, rate: f64) -> Row {
    Row::new(name, vec![Cell::text(name), Cell::Bytes(now), Cell::Bytes(peak), Cell::BytesRate(rate), bars(0, now)])
}

fn site(name: &str, bytes: u64, count: u64, rate: f64, grows: bool) -> Row {
    let cells = vec![
        Cell::text(if grows { "▲" } else { "" }),
        Cell::Bytes(bytes),
        Cell::Count(count),
        Cell::Age(3_725_000_000_000),
        Cell::BytesRate(rate),
        Cell::text(if grows { "grows steadily" } else { "one-off" }),
        bars(bytes / 2, bytes),
        Cell::text(name),
    ];
    Row::new(name, cells).style(if grows { WARN } else { PLAIN })
}

pub(super) fn look(state: &State) -> Look {
    let head = Head {
        name: "llama-server".into(),
        pid: 4194304,
        status: "recorded for 3 h 5 min".into(),
        running: true,
        ..Head::default()
    };
    let numbers = vec![
        number("device memory, live", 17 * GIB + 300 * MIB, 1023 * GIB, 12.5 * MIB as f64),
        number("pinned host memory", 512 * MIB, 512 * MIB, 0.0),
        number("idle in the pool", 900 * MIB, 2 * GIB, -3.0 * MIB as f64),
        Row::new(
            "allocations",
            vec![
                Cell::text("allocations"),
                Cell::Count(1_234_567),
                Cell::Count(1_300_000),
                Cell::CountRate(88.0),
                bars(5, 9),
            ],
        ),
    ];
    let sites = vec![
        site(
            "ggml_cuda_pool_vmm::alloc ggml-cuda.cu:512 ← ggml_cuda_op_mul_mat_cublas ggml-cuda.cu:1388",
            12 * GIB,
            1,
            0.0,
            false,
        ),
        site("kv_cache_grow llama-kv-cache.cpp:301", 4 * GIB, 1_234_567, 12.5 * MIB as f64, true),
        site("ein_Name_日本語 a.cu:5", 300 * MIB, 12, 0.0, false),
    ];
    Look {
        ask: state.ask(),
        head,
        warnings: vec!["1,024 records did not fit and are missing: raise GPUMEM_LEDGER_MAX".into()],
        lines: vec!["each second: 12345 allocations, 12344 frees, 88888 launches, 12 instantiates, 3 updates".into()],
        numbers: Sheet { columns: NUMBERS, rows: numbers, ..Sheet::default() },
        list: Sheet { columns: ALLOCATIONS, of: "site".into(), rows: sites, left_out: 0, empty: "nothing is live" },
        detail: None,
        unnamed: 0,
        pace: Duration::from_secs(2),
    }
}

#[test]
fn the_overview() {
    let state = state();
    holds("overview", &state, &look(&state));
}

#[test]
fn allocations() {
    let mut state = state();
    let first = look(&state);
    press(&mut state, &first, "2");
    let mut look = Look { numbers: Sheet::default(), ..look(&state) };
    look.warnings.clear();
    look.lines.clear();
    press(&mut state, &look, "jsss");
    holds("allocations", &state, &look);
    press(&mut state, &look, "/KV");
    let filtered = screen(&state, Some(&look), 80, 24, ALL);
    assert!(filtered.contains("kv_cache_gro") && !filtered.contains("cublas"), "{filtered}");
    assert!(filtered.contains("only rows with: KV"), "{filtered}");
}

/// Returns a look at a tab: its numbers and its list.
fn tab(key: &str, numbers: Vec<Row>, list: Sheet, lines: &[&str]) -> (State, Look) {
    let mut state = state();
    let first = look(&state);
    press(&mut state, &first, key);
    let lines = lines.iter().map(|line| (*line).to_owned()).collect();
    let numbers = Sheet { columns: NUMBERS, rows: numbers, ..Sheet::default() };
    let look = Look { numbers, list, lines, warnings: Vec::new(), ..look(&state) };
    (state, look)
}

fn counted(name: &str, now: u64, rate: f64) -> Row {
    let cells = vec![Cell::text(name), Cell::Count(now), Cell::Empty, Cell::CountRate(rate), bars(0, now)];
    Row::new(name, cells)
}

#[test]
fn graphs() {
    let graph = |name: &str, execs: u64, device: u64, launches: u64| {
        let cells = vec![
            Cell::Count(execs),
            Cell::Count(execs * 2),
            Cell::Bytes(device),
            Cell::Bytes(device * 3),
            Cell::Count(launches),
            Cell::BytesRate(12.5 * MIB as f64),
            Cell::Age(3_725_000_000_000),
            bars(device / 2, device),
            Cell::text(name),
        ];
        Row::new(name, cells)
    };
    let rows = vec![
        graph(
            "ggml_cuda_graph_update_executable ggml-cuda.cu:2894 ← ggml_backend_cuda_graph_compute",
            1024,
            GIB,
            88_888_888,
        ),
        graph("capture_step sd.cpp:77", 12, 300 * MIB, 12),
    ];
    let numbers = vec![
        counted("graphs", 123_456, 88.0),
        counted("execs", 1_036, -3.0),
        number("graphs' host memory ~", 900 * MIB, 2 * GIB, -3.0 * MIB as f64),
        counted("launches", 1_234_567_890, 5_333_280.0),
        counted("retargets", 1_234_567, 0.0),
        counted("real instantiates", 12_345, 0.0),
        counted("evictions", 1_234, 720.0),
    ];
    let list = Sheet { columns: GRAPHS, of: "site".into(), rows, left_out: 0, empty: "no graphs" };
    let lines = ["graph cache on: 64 of at most 64 real execs serve 1,036 handles of 12 classes, 3 are parked"];
    let (state, look) = tab("3", numbers, list, &lines);
    holds("graphs", &state, &look);
}

#[test]
fn pool() {
    let context = |context: u64, limit: Cell, said: &str, style| {
        let bytes = [17 * GIB + 300 * MIB, 1023 * GIB, 900 * MIB, 2 * GIB].map(Cell::Bytes);
        let cells = [Cell::Count(context), Cell::Count(7)].into_iter().chain(bytes);
        Row::new(context.to_string(), cells.chain([Cell::Empty, limit, Cell::text(said)]).collect()).style(style)
    };
    let rows = vec![
        context(1, Cell::Bytes(1024 * GIB), "on", PLAIN),
        context(12, Cell::Empty, "aside: peer access is on, so that a free has to be the real one", WARN),
    ];
    let mut numbers = look(&state()).numbers.rows;
    numbers.truncate(3);
    numbers.remove(1);
    for (name, now) in [
        ("hits", 1_234_567_890),
        ("from the driver", 12_345),
        ("past the pool", 0),
        ("frees kept", 1_234_567),
        ("blocks given back", 12_345),
        ("frees that waited", 88),
        ("spills", 3),
        ("over the limit", 1),
    ] {
        numbers.push(counted(name, now, 88.0));
    }
    let list = Sheet { columns: CONTEXTS, rows, empty: "no context", ..Sheet::default() };
    let (state, look) = tab("4", numbers, list, &["pool on, strict: 900.0 MiB idle of at most 2.0 GiB, 99.9 % hits"]);
    holds("pool", &state, &look);
}

#[test]
fn events() {
    let event = |seq: u64, ago: u64, what: &str, thread: &str, said: &str, style| {
        let site = if seq == 9 { Cell::text("kv_cache_grow llama-kv-cache.cpp:301 ← main") } else { Cell::Empty };
        Row::new(seq.to_string(), vec![Cell::Age(ago), Cell::text(what), Cell::text(thread), Cell::text(said), site])
            .style(style)
    };
    let refused = "1023.0 GiB of device memory were refused (error 2)";
    let rows = vec![
        event(9, 1_000_000_000, "alloc-failed", "4194304 llama-server", refused, BAD),
        event(8, 3_725_000_000_000, "instantiate-failed", "4194311 ein_Name_日本", "error 700", BAD),
        event(7, 90_000_000_000_000, "mark", "4194304", "warm up", PLAIN),
    ];
    let list = Sheet { columns: EVENTS, rows, empty: "no events", ..Sheet::default() };
    let (state, look) = tab("5", Vec::new(), list, &["4,096 older events are no longer kept: GPUMEM_EVENTS"]);
    holds("events", &state, &look);
}

#[test]
fn processes() {
    let state = State::new(None, Duration::from_secs(1), false);
    let process = |pid: u64, name: &str, status: &str, device: u64, style| {
        let cells = vec![
            Cell::text(pid.to_string()),
            Cell::text(name),
            Cell::text(status),
            Cell::Bytes(device),
            Cell::Bytes(0),
            Cell::Bytes(512 * MIB),
            Cell::Count(1_234_567),
            Cell::Count(1_024),
            Cell::Bytes(3 * GIB),
            Cell::BytesRate(12.5 * MIB as f64),
            bars(0, device),
        ];
        Row::new(pid.to_string(), cells).style(style)
    };
    let unreadable = vec![Cell::text("77"), Cell::text("python3.12"), Cell::text("unreadable")];
    let rows = vec![
        process(4_194_304, "llama-server", "running", 17 * GIB + 300 * MIB, PLAIN),
        process(4_194_303, "a_very_long_…process", "killed 12 min ago", 1023 * GIB, DIM),
        Row::new("77", unreadable).style(BAD),
    ];
    let head = Head { status: "1 process with libgpumem.so".into(), ..Head::default() };
    let list = Sheet { columns: PROCESSES, rows, empty: "none", ..Sheet::default() };
    let look = Look { head, list, numbers: Sheet::default(), warnings: Vec::new(), lines: Vec::new(), ..look(&state) };
    holds("processes", &state, &look);
}

#[test]
fn help_shows_every_key_and_scrolls() {
    let mut state = state();
    let look = look(&state);
    press(&mut state, &look, "?");
    for (columns, rows) in [(60, 20), (80, 24), (120, 40)] {
        let mut seen = String::new();
        for from in (0..80).step_by(10) {
            state.help = Some(from);
            seen.push_str(&screen(&state, Some(&look), columns, rows, ALL));
        }
        for (keys, _) in super::super::keys::KEYS {
            assert!(seen.contains(keys), "{keys} at {columns}x{rows}\n{seen}");
        }
    }
}

#[test]
fn without_colours_and_in_ascii_all_is_said_all_the_same() {
    let state = state();
    let look = look(&state);
    let plain = screen(&state, Some(&look), 120, 40, Means { colour: false, ascii: true });
    assert!(plain.is_ascii(), "{plain}");
    // The glyph of growth, the title of the rate, the arrow of a caller.
    for said in ["^", "d/min", "1388", "~", "grows steadily"] {
        assert!(plain.contains(said), "{said}\n{plain}");
    }
}

#[test]
fn a_tiny_terminal_is_told_what_is_needed() {
    let state = state();
    let look = look(&state);
    assert!(screen(&state, Some(&look), 30, 5, ALL).starts_with("too small: 40x8 needed"));
    for (columns, rows) in [(40, 8), (41, 9), (300, 100), (1, 1)] {
        screen(&state, Some(&look), columns, rows, ALL);
    }
}

#[test]
fn a_terminal_of_any_size_is_drawn_on() {
    let mut state = state();
    let seen = look(&state);
    for typed in ["", "?", "/", "m"] {
        press(&mut state, &seen, typed);
        for (columns, rows) in (0..6).flat_map(|columns| (0..6).map(move |rows| (columns, rows))) {
            let drawn = screen(&state, Some(&seen), columns, rows, ALL);
            assert!(rows > 0 && columns > 0 || drawn.trim().is_empty(), "{columns}x{rows}: {drawn:?}");
            assert_eq!(drawn, screen(&state, Some(&seen), columns, rows, ALL));
        }
        for (columns, rows) in [(0, 24), (80, 0), (40, 8), (41, 9), (40, 7), (39, 8), (200, 8), (40, 100)] {
            screen(&state, Some(&seen), columns, rows, ALL);
            screen(&state, None, columns, rows, ALL);
        }
    }
}

#[test]
fn only_what_changed_is_written() {
    let mut state = state();
    let mut look = look(&state);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let mut draw = |state: &State, look: &Look| {
        let mut before = None;
        terminal
            .draw(|frame| {
                all(frame.buffer_mut(), state, Some(look));
                before = Some(frame.buffer_mut().clone());
            })
            .unwrap();
        before.unwrap()
    };
    let first = draw(&state, &look);
    assert!(first.diff(&draw(&state, &look)).is_empty(), "the same look is the same screen");
    look.head.status = "recorded for 3 h 6 min".into();
    assert_eq!(first.diff(&draw(&state, &look)).len(), 1, "one digit");
    press(&mut state, &look, "j");
    assert!(first.diff(&draw(&state, &look)).len() < 3 * 80, "two rows change their style");
}
