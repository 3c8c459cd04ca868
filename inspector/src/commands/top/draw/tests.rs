//! Compares screens with stored pictures; `BLESS=1` writes them anew, for people to check.

use super::super::tabs::{self, Memory};
use super::*;
use crate::compose::Composer;
use crate::model::Ledger;
use crate::source::choose::Opened;
use crate::source::world::World;
use crate::view::plain::Means;
use gpumem_wire::counters as c;
use gpumem_wire::kinds::{AllocKind, EventKind, GrowthKind, PoolState};
use gpumem_wire::layout::*;
use gpumem_wire::location::Location;
use gpumem_wire::read::Snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::path::PathBuf;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Time of the look.
const NOW: u64 = 11_101 * SECOND;
/// Samples, one a second.
const SAMPLES: u64 = 60;

/// A call site: its function, file and line.
const SITES: [(&str, &str, u32); 4] = [
    ("ggml_cuda_pool_vmm::alloc", "ggml-cuda.cu", 512),
    ("kv_cache_grow", "llama-kv-cache.cpp", 301),
    ("ein_Name_日本語", "a.cu", 5),
    ("ggml_cuda_graph_update_executable", "ggml-cuda.cu", 2894),
];

/// A ledger of large numbers: one site grows.
fn ledger() -> Ledger {
    let mut composer = Composer::new();
    (composer.header.created_ns, composer.header.pid, composer.header.dumped_ns) = (SECOND, 4_194_304, NOW);
    composer.header.interception = 1;
    for (at, &(function, file, line)) in SITES.iter().enumerate() {
        let address = 0x1000 + at as u64;
        let (allocs, execs) = if at == 3 { (0, 1024) } else { (1_300_000, 0) };
        let slot = StackSlot { allocs, alloc_bytes: 4 * GIB, execs, hash: at as u64 + 1, ..Default::default() };
        composer.stack(at, slot, &[address, 0x2000]);
        composer.symbol(address, 0, function, file, line, "/opt/llama/llama-server");
    }
    composer.symbol(0x2000, 0, "main", "server.cpp", 77, "/opt/llama/llama-server");
    let alloc = |serial: u64, stack, bytes, time_ns| {
        let (kind, location) = (AllocKind::Device as u8, Location::usual(AllocKind::Device).word());
        let addr = serial << 34;
        AllocSlot { stack, addr, bytes, serial, kind, location, time_ns, context: 1, tid: 7, ..Default::default() }
    };
    composer.slots([alloc(1, 1, 12 * GIB, 2 * SECOND), alloc(2, 3, 300 * MIB, 2 * SECOND)]);
    let grown = |at: u64| alloc(3 + at, 2, 12 * MIB, NOW - (SAMPLES - at) * SECOND);
    composer.slots((0..SAMPLES).map(grown));
    let exec = |serial: u64| ExecSlot {
        stack: 4,
        handle: 0x9000 + serial * 64,
        serial,
        time_ns: 2 * SECOND,
        host_bytes: 50_000,
        device_bytes: MIB,
        launches: 88_888,
        last_launch_ns: NOW - SECOND,
        nodes: [100; 16],
        ..Default::default()
    };
    composer.slots((1..1025).map(exec));
    grown_by(&mut composer);
    let name = composer.text("NVIDIA H200");
    let context = |device, live_bytes, limit_bytes, pool_state: PoolState| ContextSlot {
        name,
        device,
        live_bytes,
        peak_bytes: 1023 * GIB,
        idle_bytes: 900 * MIB,
        idle_peak_bytes: 2 * GIB,
        idle_blocks: 12,
        limit_bytes,
        pool_state: pool_state as u64,
        ..Default::default()
    };
    composer.slots([context(0, 17 * GIB, 1024 * GIB, PoolState::On), context(7, 0, 0, PoolState::Peers)]);
    let mut shard = vec![0; c::PER_SHARD];
    for (index, n) in [(c::POOL_HITS, 1_234_567_890), (c::POOL_MISSES, 12_345), (c::POOL_KEPT, 1_234_567)] {
        shard[index] = n;
    }
    (shard[c::EXECS_CREATED], shard[c::LAUNCHES]) = (12_345, 1_234_567_890);
    shard[c::allocs(AllocKind::Device)] = SAMPLES + 2;
    shard[c::alloc_bytes(AllocKind::Device)] = 12 * GIB + (300 + 12 * SAMPLES) * MIB;
    composer.words(TableKind::Counters, &shard);
    add_events(&mut composer);
    let snapshot = Snapshot::read(&composer.finish()[..]).unwrap().unwrap();
    Ledger::of(&World::here(None), Opened { snapshot, path: "none".into(), process: None })
}

fn add_events(composer: &mut Composer) {
    let text = composer.text("warm up");
    let event = |seq, kind: EventKind, time_ns| EventSlot {
        kind: kind as u8,
        seq,
        time_ns,
        tid: 4_194_304,
        context: 1,
        ..Default::default()
    };
    composer.slots([
        EventSlot { text, ..event(4097, EventKind::Mark, 2 * SECOND) },
        EventSlot { code: 700, stack: 4, ..event(4098, EventKind::InstantiateFailed, NOW - 3725 * SECOND) },
        EventSlot { a: 1023 * GIB, code: 2, stack: 2, ..event(4099, EventKind::AllocFailed, NOW - SECOND) },
    ]);
}

/// Bytes and count at a sample.
type Held = fn(u64) -> (u64, u64);

/// Adds the samples.
fn grown_by(composer: &mut Composer) {
    let time_ns = |at: u64| NOW - (SAMPLES - at) * SECOND;
    let sample = |at: u64| SampleSlot {
        seq: at,
        time_ns: time_ns(at),
        device_live: 12 * GIB + 300 * MIB + at * 12 * MIB,
        allocs_live: at + 2,
        execs_live: 1024,
        rss: 512 * MIB,
        device_idle: 900 * MIB,
        ..Default::default()
    };
    composer.slots((0..SAMPLES).map(sample));
    let held: [Held; 3] = [|_| (12 * GIB, 1), |at| (12 * MIB * (at + 1), at + 1), |_| (300 * MIB, 1)];
    let mut words = vec![0; GROWTH_BLOCK * (held.len() + 1)];
    for at in 0..SAMPLES {
        words[at as usize] = time_ns(at);
        for (row, held) in held.iter().enumerate() {
            let block = GROWTH_BLOCK * (row + 1) + at as usize;
            (words[block], words[block + GROWTH_POINTS]) = held(at);
        }
    }
    let row = |(row, held): (usize, &Held)| {
        let (kind, key, (bytes, count)) = (GrowthKind::Site as u8, row as u64 + 1, held(SAMPLES - 1));
        GrowthSlot { kind, key, since_ns: time_ns(0), bytes, count, peak_bytes: bytes, ..Default::default() }
    };
    composer.slots(held.iter().enumerate().map(row));
    composer.words(TableKind::GrowthPoints, &words);
}

fn state() -> State {
    State::new(Some("/7.ledger".into()), Duration::from_secs(1))
}

/// Presses keys that are seen at once.
fn go(state: &mut State, keys: &str) {
    let look = look(state);
    press(state, &look, keys);
}

fn press(state: &mut State, look: &Look, keys: &str) {
    for c in keys.chars() {
        let code = if c == '\r' { KeyCode::Enter } else { KeyCode::Char(c) };
        let _ = state.key(&KeyEvent::new(code, KeyModifiers::NONE), Some(look));
    }
}

/// Returns a look at the present state.
fn look(state: &State) -> Look {
    let mut look = tabs::look(&ledger(), &state.ask, &mut Memory::default());
    // How long ago a dump was made depends on today.
    look.lines[0] = "llama-server  pid 4194304, recorded for 3 h 5 min, interception complete".into();
    Look { pace: Duration::from_secs(2), ..look }
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
fn holds(name: &str, state: &State) {
    let look = look(state);
    for (columns, rows) in [(60, 20), (80, 24), (120, 40)] {
        let mut now = screen(state, Some(&look), columns, rows, ALL);
        // A clock depends on the zone.
        for (at, _) in now.clone().match_indices(" 1970-01-0") {
            now.replace_range(at + 1..at + 20, "1970-01-01 00:00:00");
        }
        let file = format!("src/commands/top/draw/pictures/{name}-{columns}x{rows}.txt");
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(&file);
        if std::env::var_os("BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &now).unwrap();
        }
        let picture = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(now, picture, "{file} is not what is drawn; BLESS=1 writes it anew:\n{now}");
        whole(&now, &look);
    }
}

/// Checks that every number of the tables is whole: each word with a digit is one of a wide screen.
fn whole(screen: &str, look: &Look) {
    let lines = |sheet: &crate::view::table::Sheet| sheet.lines(400, &(0..sheet.len()).collect::<Vec<_>>());
    let mut said = [lines(&look.totals), lines(&look.list.sheet), look.lines.clone()].concat();
    said.push("every 2.0 s 1 2 3 4 1970-01-01 00:00:00".into());
    let said = anstream::adapter::strip_str(&said.join("\n")).to_string();
    let known: Vec<&str> = said.split_whitespace().collect();
    for line in screen.lines() {
        // The text of a cell may be shortened in the middle, with a mark.
        let digits =
            |word: &&str| !word.contains('…') && word.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c));
        for word in line.split_whitespace().filter(digits) {
            let of_footer = line.contains(" of ") && word.parse::<usize>().is_ok_and(|n| n <= look.list.sheet.len());
            assert!(known.contains(&word) || of_footer, "{word:?} is cut in: {line}");
        }
    }
}

/// The list of processes counts what a process holds in any memory, as the other views do.
#[test]
fn pinned_memory_that_grows_is_growth_of_the_process() {
    let mut composer = Composer::new();
    (composer.header.created_ns, composer.header.dumped_ns) = (SECOND, NOW);
    let sample = |second: u64| SampleSlot {
        seq: second,
        time_ns: NOW - (SAMPLES - second) * SECOND,
        device_live: GIB,
        host_live: second * MIB,
        managed_live: 2 * second * MIB,
        ..Default::default()
    };
    composer.slots((0..SAMPLES).map(sample));
    let snapshot = Snapshot::read(&composer.finish()[..]).unwrap().unwrap();
    let ledger = Ledger::of(&World::here(None), Opened { snapshot, path: "none".into(), process: None });
    let (rate, history) = tabs::growing(&ledger.snapshot, &ledger.status);
    assert_eq!(rate.round(), 180.0 * MIB as f64);
    assert!(history.contains('█'), "{history}");
}

#[test]
fn the_overview() {
    holds("overview", &state());
}

#[test]
fn allocations() {
    let mut state = state();
    go(&mut state, "2");
    let first = look(&state);
    press(&mut state, &first, "jsss");
    holds("allocations", &state);
    press(&mut state, &first, "/KV");
    let filtered = screen(&state, Some(&first), 80, 24, ALL);
    assert!(filtered.contains("kv_cache_gro") && !filtered.contains("ggml"), "{filtered}");
    assert!(filtered.contains("only rows with: KV"), "{filtered}");
}

#[test]
fn graphs() {
    let mut state = state();
    go(&mut state, "3");
    holds("graphs", &state);
}

#[test]
fn events() {
    let mut state = state();
    go(&mut state, "4");
    holds("events", &state);
}

/// All about a row: its columns, its call stacks.
#[test]
fn details() {
    for (tab, said) in [
        ("1", ["history ▁", "kv_cache_grow llama-kv-cache.cpp:301"]),
        ("2", ["times   1,300,000", "    main server.cpp:77"]),
        ("3", ["launches        91,021,312", "    main server.cpp:77"]),
        ("4", ["context 1 on 0: NVIDIA H200", "    main server.cpp:77"]),
    ] {
        let mut state = state();
        go(&mut state, tab);
        go(&mut state, "\r");
        let shown = screen(&state, Some(&look(&state)), 80, 40, ALL);
        assert!(said.iter().all(|said| shown.contains(said)), "{tab}: {said:?}\n{shown}");
    }
}

#[test]
fn help_shows_every_key_and_scrolls() {
    let mut state = state();
    let look = look(&state);
    press(&mut state, &look, "?");
    for (columns, rows) in [(60, 20), (80, 24), (120, 40)] {
        let mut seen = String::new();
        for from in (0..80).step_by(10) {
            state.from = from;
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
    let plain = screen(&state, Some(&look(&state)), 120, 40, Means { colour: false, ascii: true });
    assert!(plain.is_ascii(), "{plain}");
    // The growth, its history, the verdict.
    for said in ["per minute", "_..", "512", "grows steadily"] {
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
    for typed in ["", "?", "?/"] {
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
    look.lines[0] = look.lines[0].replace("5 min", "6 min");
    assert_eq!(first.diff(&draw(&state, &look)).len(), 1, "one digit");
    press(&mut state, &look, "j");
    assert!(first.diff(&draw(&state, &look)).len() < 3 * 80, "two rows change their style");
}
