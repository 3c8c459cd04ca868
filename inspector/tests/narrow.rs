//! Views on narrow terminals: a line is broken between words alone, and no number is cut.

mod common;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::kinds::*;
use gpumem_wire::layout::*;

/// Everything that a view can have to say: a pool, a graph cache that thrashes, stranded memory, a partial interception.
fn rich(id: gpumem_wire::place::ProcessId) -> Composer {
    let mut ledger = pool::pooled(id);
    cache::thrashing(&mut ledger, "GPUMEM_GRAPH_CACHE");
    ledger.header.interception = Interception::Partial as u32;
    ledger.header.interception_reason =
        ledger.text("a library was loaded before the shim, and calls the driver past it");
    ledger
}

/// A ledger and a dump that is older: what `diff` compares.
fn two(dir: &Dir) -> [String; 2] {
    let dead = gone();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (before, after) = (path("before.gpumem"), path("after.gpumem"));
    std::fs::write(&before, cache::cached(dead).finish()).unwrap();
    let mut grown = cache::cached(dead);
    grown.header.created_ns = grown.header.created_ns.saturating_sub(SECOND);
    let more = |serial| AllocSlot {
        stack: 2,
        bytes: 8765 * MIB,
        serial,
        kind: AllocKind::Device as u8,
        context: 1,
        ..Default::default()
    };
    grown.slots((50..150).map(more));
    std::fs::write(&after, grown.finish()).unwrap();
    [before, after]
}

fn plain_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn no_line_is_longer_than_the_terminal_and_no_word_is_broken() {
    let dir = dir();
    dir.put(me(), rich(me()));
    let [before, after] = two(&dir);
    for args in [
        &["graphs"][..],
        &["graphs", "--pinned"],
        &["graphs", "--all"],
        &["diff", &before, &after],
        &["stats"],
        &["stats", "--samples"],
        &["allocs"],
        &["allocs", "--all"],
        &["leaks"],
        &["events"],
        &["ps"],
        &["get"],
    ] {
        for columns in [60, 80, 100] {
            let lines = terminal::lines(&dir, columns, args);
            for line in &lines {
                let width = unicode_width::UnicodeWidthStr::width(line.as_str());
                assert!(width <= usize::from(columns), "{args:?} at {columns}: {width} columns\n{}", lines.join("\n"));
                // A unit begins no line: its number would stand on the line before.
                let first = line.split_whitespace().next().unwrap_or_default();
                assert!(!["B", "KiB", "MiB", "GiB", "min", "ms", "s", "%"].contains(&first), "{args:?}: {line}");
            }
        }
    }
}

#[test]
fn what_is_no_table_loses_no_word() {
    let dir = dir();
    // One device: no table that leaves columns out.
    let mut ledger = cache::cached(me());
    cache::thrashing(&mut ledger, "GPUMEM_GRAPH_CACHE");
    dir.put(me(), ledger);
    let words = |lines: &[String]| plain_words(&lines.join("\n")).len();
    let (narrow, wide) = (terminal::lines(&dir, 60, &["stats"]), terminal::lines(&dir, 400, &["stats"]));
    assert!(narrow.len() > wide.len(), "something was broken: {narrow:?}");
    assert_eq!(words(&narrow), words(&wide));
    // What is no terminal has whole lines.
    assert_eq!(words(&wide), plain_words(&dir.ok(&["stats"])).len());
}

#[test]
fn numbers_of_a_diff_are_whole() {
    let dir = dir();
    let [before, after] = two(&dir);
    let text = terminal::lines(&dir, 44, &["diff", &before, &after]).join("\n");
    assert!(text.contains("+856.0 GiB"), "{text}");
    assert!(text.contains("left out to fit: a wider terminal"), "{text}");
    let wide = dir.ok(&["diff", &before, &after]);
    assert!(!wide.contains("left out to fit"), "{wide}");
}

#[test]
fn stats_fit_on_a_screen() {
    let dir = dir();
    dir.put(me(), rich(me()));
    let lines = terminal::lines(&dir, 80, &["stats"]);
    assert!(lines.len() <= 24, "{} lines:\n{}", lines.len(), lines.join("\n"));
    let text = squeeze(&lines.join(" "));
    for said in [
        "64.0 MiB 112.0 MiB 48.0 MiB 300.0 MiB 0: NVIDIA Test, 1.0 GiB",
        "resident",
        "48.0 MiB idle in 3 blocks (at most 256.0 MiB), 99 % hits",
        "the graph cache thrashed",
        "lie unused while demo-server+0x101",
        "gpumem stats --all shows each kind, counter and setting",
    ] {
        assert!(text.contains(said), "{said}:\n{text}");
    }
    // What is for those who ask for all of it.
    for said in ["counters", "settings", "GPUMEM_POOL_DECAY", "frees whose block"] {
        assert!(!text.contains(said), "{said}:\n{text}");
        assert!(dir.ok(&["stats", "--all"]).contains(said), "{said}");
    }
}

#[test]
fn stats_of_one_device_say_what_explains_its_memory() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let text = squeeze(&terminal::lines(&dir, 80, &["stats"]).join("\n"));
    for said in [
        "device 0: NVIDIA Test, 1.0 GiB",
        "96.0 MiB recorded allocations",
        "300.0 MiB used by all processes",
        "128.0 MiB peak of recorded allocations",
        "growth: device +28.8 MiB/min, resident +72.0 MiB/min, over the last 50.0 s;",
        "failed: 1 allocation, 2 updates",
    ] {
        assert!(text.lines().any(|line| line.starts_with(said)), "{said}:\n{text}");
    }
}

#[test]
fn stats_tell_of_several_devices_in_a_row_each() {
    let dir = dir();
    let mut ledger = demo(me());
    let name = ledger.text("NVIDIA Test");
    ledger.slots((1..12).map(|device| ContextSlot {
        handle: 0xd0 + u64::from(device),
        name,
        device,
        time_ns: 1,
        total_bytes: 1024 * MIB,
        live_bytes: MIB,
        peak_bytes: 2 * MIB,
        vendor: Vendor::Cuda as u8,
        ..Default::default()
    }));
    dir.put(me(), ledger);
    let lines = terminal::lines(&dir, 80, &["stats"]);
    assert!(lines.len() <= 24, "{} lines:\n{}", lines.len(), lines.join("\n"));
    let text = lines.join("\n");
    assert!(text.contains("  0: NVIDIA Test, 1.0 GiB"), "{text}");
    assert!(text.contains("… 4 more: --all shows them"), "{text}");
    assert!(dir.ok(&["stats", "--all"]).contains("device 11: NVIDIA Test"));
}
