//! docs/cli.md and docs/ledger.md say what is so: their generated parts are compared with the
//! command line and the layout, their tables of JSON fields with real answers.
//!
//! `BLESS=1 cargo test -p gpumem-inspector --test docs` rewrites the generated parts.

mod common;
use clap::CommandFactory;
use common::*;
use gpumem_inspector::{Code, check_list};
use gpumem_wire::kinds::{AllocKind, ExecState, Pinned, PoolState, SharedKind};
use gpumem_wire::layout::{
    AllocSlot, ExecSlot, HEADER_BYTES, MAX_PIECES, MAX_TABLES, SharedSlot, StackSlot, TableKind, VERSION, exec_state,
};
use gpumem_wire::{counters, settings};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

fn doc(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

/// Compares the part of a document between two marks with what it should be; with BLESS, writes it.
fn hold(file: &str, part: &str, expected: &str) {
    let path = doc(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {part}: generated -->\n"), format!("<!-- {part}: end -->"));
    let start = text.find(&begin).unwrap_or_else(|| panic!("{file} has no mark {begin}")) + begin.len();
    let stop = start + text[start..].find(&end).unwrap_or_else(|| panic!("{file} has no mark {end}"));
    if text[start..stop] == *expected {
        return;
    }
    assert!(
        std::env::var_os("BLESS").is_some(),
        "{file}: the part '{part}' is not what it should be; BLESS=1 rewrites it:\n{expected}"
    );
    std::fs::write(&path, format!("{}{expected}{}", &text[..start], &text[stop..])).unwrap();
}

/// tests/gpu/tools/stats.py reads ledgers by itself: its version of the layout, and the names of its numbers, are the shim's.
/// docs/metrics.md has every metric that `gpumem serve` and `gpumem export --to prometheus` write.
#[test]
fn the_table_of_metrics_is_current() {
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for metric in gpumem_inspector::metrics() {
        let kind = match metric.kind {
            gpumem_inspector::Kind::Gauge => "gauge",
            gpumem_inspector::Kind::Counter => "counter",
        };
        let _ = writeln!(table, "| `{}` | {kind} | {} | {} |", metric.name, metric.labels, metric.help);
    }
    hold("metrics.md", "metrics", &table);
}

/// Each guide is in `gpumem help`, by the name of its file.
#[test]
fn every_guide_is_printed_by_help() {
    let dir = dir();
    let list = dir.ok(&["help"]);
    let guides: Vec<_> = std::fs::read_dir(doc("guides")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(guides.len() >= 8, "{guides:?}");
    for guide in guides {
        let name = guide.file_stem().unwrap().to_str().unwrap();
        let title = std::fs::read_to_string(&guide).unwrap();
        let title = title.lines().next().unwrap().trim_start_matches("# ").to_owned();
        assert!(list.contains(&format!("  {name} ")), "{name} is not in {list}");
        assert!(dir.ok(&["help", name]).starts_with(&title), "{name}");
    }
    assert!(dir.ok(&["help", "leaks"]).contains("--fail-over"));
    let neither = dir.gpumem(&["help", "nothing"]);
    assert!(neither.code == 2 && neither.err.contains("guides are memory-grows"), "{}", neither.err);
}

#[test]
fn the_gpu_scripts_read_this_layout() {
    let text = std::fs::read_to_string(doc("../tests/gpu/tools/stats.py")).unwrap();
    let version = text.lines().find_map(|line| line.strip_prefix("VERSION = ")).expect("a version");
    assert_eq!(version, VERSION.to_string());
    let pinned = text.split("PINNED = (").nth(1).and_then(|rest| rest.split(')').next()).expect("reasons for a pin");
    let names: Vec<&str> = pinned.split('"').skip(1).step_by(2).collect();
    assert_eq!(names, Pinned::ALL.iter().map(|reason| reason.name()).collect::<Vec<_>>());
}

/// All documents in one test: blessing rewrites files, one part after another.
#[test]
fn generated_parts_are_up_to_date() {
    hold("cli.md", "commands", &commands());
    hold(
        "cli.md",
        "exit codes",
        &table(
            ["code", "meaning"],
            Code::ALL.iter().map(|(code, meaning)| [format!("{}", *code as u8), (*meaning).into()]),
        ),
    );
    hold(
        "cli.md",
        "checks",
        &table(["id", "in order when"], check_list().map(|(id, what)| [format!("`{id}`"), what.into()])),
    );
    hold("cli.md", "variables", &variables());
    hold(
        "ledger.md",
        "numbers",
        &format!(
            "Version {VERSION}. The header has {HEADER_BYTES} bytes and room for {MAX_TABLES} tables; the list behind it has room for {MAX_PIECES} pieces.\n"
        ),
    );
    hold("ledger.md", "tables", &tables());
    hold("ledger.md", "header", &slot(between(LAYOUT, "pub struct Header {", "\n}\n")));
    hold("ledger.md", "slots", &slots());
    hold("ledger.md", "kinds", &kinds());
    hold(
        "ledger.md",
        "counters",
        &table(
            ["index", "name", "counts"],
            counters::ALL.iter().map(|(index, name, doc)| [index.to_string(), format!("`{name}`"), doc.trim().into()]),
        ),
    );
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut out = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(N));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    out
}

/// The help of every command, as `--help` prints it at 100 columns.
fn commands() -> String {
    let mut root = gpumem_inspector::Args::command().term_width(100);
    root.build();
    let mut out = String::new();
    for command in root.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let name = command.get_name().to_owned();
        // The global options are listed once, below.
        let help =
            command.clone().mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg }).render_long_help();
        let help: Vec<_> = help.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
        let _ = writeln!(out, "### gpumem {name}\n\n```text\n{}\n```\n", help.join("\n").trim());
    }
    out
}

fn variables() -> String {
    let shim = settings::ALL.iter().map(|setting| {
        let default = if setting.default.is_empty() { "unset".into() } else { format!("`{}`", setting.default) };
        let live = if setting.when == settings::When::Live { "yes" } else { "" };
        [format!("`{}`", setting.name), setting.kind.to_string(), default, live.into(), setting.doc.trim().into()]
    });
    let own = settings::INSPECTOR.iter().map(|(name, doc)| {
        [
            format!("`{name}`"),
            "any text; the command `gpumem` reads it, not libgpumem.so".into(),
            "unset".into(),
            String::new(),
            (*doc).into(),
        ]
    });
    let aliases = settings::ALIASES.iter().map(|alias| {
        let allowed = "0, no, false and off turn it off; any other text turns it on".into();
        [format!("`{}`", alias.name), allowed, "unset".into(), String::new(), alias.doc.into()]
    });
    table(["variable", "allowed", "default", "can be set while running", "meaning"], shim.chain(own).chain(aliases))
}

const LAYOUT: &str = include_str!("../../shim/wire/src/layout.rs");
const KINDS: &str = include_str!("../../shim/wire/src/kinds.rs");

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let start = text.find(begin).unwrap() + begin.len();
    &text[start..start + text[start..].find(end).unwrap()]
}

fn tables() -> String {
    let rows = TableKind::ALL.iter().map(|(kind, bytes)| {
        let what = between(LAYOUT, "pub enum TableKind {", "\n}");
        let mark = format!("{kind:?} = ");
        let before = &what[..what.find(&mark).unwrap()];
        let doc = before.lines().rev().skip(1).find_map(|line| line.trim().strip_prefix("/// ")).unwrap();
        [(*kind as u32).to_string(), format!("{kind:?}"), bytes.to_string(), plain(doc)]
    });
    table(["kind", "table", "bytes of a slot", "holds"], rows)
}

/// A doc comment without its links.
fn plain(doc: &str) -> String {
    doc.replace("[`crate::kinds::", "`").replace("[`crate::counters::", "`").replace("[`", "`").replace("`]", "`")
}

fn size(ty: &str) -> usize {
    if let Some((element, count)) = ty.trim_matches(['[', ']']).split_once("; ") {
        let count = count.parse().unwrap_or(match count {
            "MAX_TABLES" => MAX_TABLES,
            // The pad that fills the page.
            _ => 0,
        });
        return size(element) * count;
    }
    match ty {
        "u8" => 1,
        "u16" | "ContextRef" | "StreamRef" => 2,
        "u32" | "i32" | "StrRef" | "StackRef" => 4,
        "u64" => 8,
        "TableDesc" => 40,
        _ => panic!("the size of {ty} is not known here"),
    }
}

/// Fields with their offsets, out of the source of a slot.
fn slot(body: &str) -> String {
    let (mut offset, mut doc, mut rows) = (0, Vec::new(), Vec::new());
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc.push(plain(text));
        } else if let Some((name, ty)) = line.strip_suffix(',').and_then(|line| line.split_once(": ")) {
            let (name, bytes) = (name.trim_start_matches("pub "), size(ty));
            if !name.starts_with('_') {
                rows.push([offset.to_string(), format!("`{name}`"), format!("`{ty}`"), doc.join(" ")]);
            }
            offset += bytes;
            doc.clear();
        }
    }
    table(["offset", "field", "type", "meaning"], rows.into_iter())
}

fn slots() -> String {
    let mut out = String::new();
    for part in LAYOUT.split("\nslot! {\n").skip(1) {
        let (head, rest) = part.split_once(" {\n").unwrap();
        let body = &rest[..rest.find("\n    }\n}").unwrap()];
        let (docs, name) = head.rsplit_once('\n').unwrap();
        let (name, bytes) = name.trim().split_once(", ").unwrap();
        let docs: Vec<_> = docs.lines().filter_map(|line| line.trim().strip_prefix("/// ")).map(plain).collect();
        // What the source says a slot takes is what its fields take.
        let sum: usize = body
            .lines()
            .filter_map(|line| line.trim().strip_suffix(',')?.split_once(": "))
            .filter(|(name, _)| !name.contains("///"))
            .map(|(_, ty)| size(ty))
            .sum();
        assert_eq!(sum.to_string(), bytes, "{name}");
        let _ = writeln!(out, "### {name}: {bytes} bytes\n\n{}\n\n{}", docs.join(" "), slot(body));
    }
    out
}

/// The numbers in slots, with their names and meanings.
fn kinds() -> String {
    let mut out = String::new();
    for part in KINDS.split("\nnames! {\n").skip(1) {
        let (head, rest) = part.split_once(" {\n").unwrap();
        let (docs, name) = head.rsplit_once('\n').unwrap();
        let docs: Vec<_> = docs.lines().filter_map(|line| line.trim().strip_prefix("/// ")).map(plain).collect();
        let mut rows = Vec::new();
        let mut doc = Vec::new();
        for line in rest[..rest.find("\n    }").unwrap()].lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("/// ") {
                doc.push(plain(text));
            } else if let Some((_, value)) = line.trim_end_matches(';').split_once(" = ") {
                let (number, name) = value.split_once(", ").unwrap();
                let name_only = name.trim_matches('"');
                let why = match () {
                    () if head.ends_with("Pinned") => Pinned::from_name(name_only).map(Pinned::why),
                    () if head.ends_with("PoolState") => PoolState::from_name(name_only).map(PoolState::why),
                    () => None,
                };
                doc.extend(why.filter(|_| doc.is_empty()).map(str::to_owned));
                rows.push([number.to_owned(), name.trim_matches('"').to_owned(), doc.join(" ")]);
                doc.clear();
            }
        }
        let _ = writeln!(
            out,
            "### {}\n\n{}\n\n{}",
            name.trim(),
            docs.join(" "),
            table(["number", "name", "meaning"], rows.into_iter())
        );
    }
    out
}

/// Objects whose keys are data, not fields.
const MAPS: &[&str] = &["counters", "nodes", "environment", "pinned_by"];

fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| keys(item, into)),
        Value::Object(object) => {
            for (key, value) in object {
                into.insert(key.clone());
                if !MAPS.contains(&key.as_str()) {
                    keys(value, into);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_json_field_is_documented_and_every_documented_field_exists() {
    let dir = dir();
    let mut ledger = demo(me());
    ledger.header.dumped_device_used = 1;
    let kernel = ledger.text("hungry");
    ledger.slots([gpumem_wire::layout::ContextSlot {
        device: 3,
        taken: [0, 0, 0, 0, 0, MIB, 0],
        local_per_thread: 64,
        local_kernel: kernel.into(),
        ..Default::default()
    }]);
    // An inlined function at a site.
    ledger.symbol(APP + 0x101, 0, "inner", "a.c", 1, "/opt/demo/demo-server");
    ledger.symbol(APP + 0x101, 1, "outer", "a.c", 2, "/opt/demo/demo-server");
    let file = dir.put(me(), ledger);
    let empty = dir.path().join("empty");
    std::fs::write(&empty, begin(me()).finish()).unwrap();
    std::fs::write(dir.path().join("1-1.ledger"), "x").unwrap();
    let file = file.to_str().unwrap();
    let mut under = cache::cached(me());
    cache::thrashing(&mut under, "GPUMEM_GRAPH_CACHE");
    let under = {
        let path = dir.path().join("under");
        std::fs::write(&path, under.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let with_pool = {
        let path = dir.path().join("pool");
        std::fs::write(&path, pool::pooled(me()).finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let variables = {
        let mut ledger = begin(me());
        ledger.header.settings = ledger.text("GPUMEM_POOL_MAX=much\nGGML_CUDA_POOL_USE_MANAGED=1");
        let path = dir.path().join("variables");
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let dumped = {
        let mut ledger = growth::leaking(me(), 60);
        ledger.header.dumped_ns = monotonic_ns() - 10 * SECOND;
        let path = dir.path().join("dumped");
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // Written again before each answer, since growth that stood still for some seconds is judged otherwise.
    let leaking_now = || {
        let mut ledger = growth::leaking_at(me(), 60, &growth::torch());
        module(&mut ledger, "/opt/torch/lib/libc10_cuda.so", CUDA, 0x10_0000, CUDA);
        (0..2).for_each(|seq| growth::mark(&mut ledger, seq, "warm", 30 - seq));
        growth::report_parts(&mut ledger);
        ledger.stack(3, StackSlot { execs: 1, ..Default::default() }, &[APP + 0x501]);
        ledger.slots([AllocSlot { kind: AllocKind::VmmPhysical as u8, stack: 3, serial: 99, ..Default::default() }]);
        let kind = AllocKind::GraphLeft as u8;
        ledger.slots([AllocSlot { kind, stack: 3, serial: 98, ..Default::default() }]);
        let state = exec_state(ExecState::Folded, Pinned::None);
        ledger.slots([ExecSlot { stack: 4, serial: 1, host_bytes: MIB, state, ..Default::default() }]);
        let path = dir.path().join("leaking");
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let leaking = leaking_now();
    let ended = {
        use gpumem_wire::{kinds::EventKind, layout::EventSlot};
        let mut ledger = begin(gone());
        let kind = EventKind::OutOfMemory as u8;
        ledger.slots([EventSlot { kind, time_ns: monotonic_ns(), ..Default::default() }]);
        let path = dir.path().join("ended");
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let code = {
        use gpumem_wire::{kinds::AllocKind, layout::AllocSlot, location::Location};
        let mut ledger = begin(gone());
        let (kind, location) = (AllocKind::Code as u8, Location::Nowhere.word());
        ledger.slots([AllocSlot { kind, location, addr: 1, bytes: MIB, extra: 1, ..Default::default() }]);
        let path = dir.path().join("code");
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let dump = dir.path().join("dump");
    let library = dir.path().join("libgpumem.so");
    let checks = [("a", "ok"), ("b", "skip"), ("c", "fail")].map(|(name, result)| selftest::said(name, result));
    selftest::pretend(dir.path(), &checks.join(";"), "true", selftest::ONE_DIFFERS);
    let library = library.to_str().unwrap();
    let kept = dir.path().join("kept");
    // A control socket that takes the commands.
    let listener = std::os::unix::net::UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            stream.write_all(b"ok\n").unwrap();
        }
    });
    let cut = dir.path().join("cut");
    std::fs::write(&cut, &demo(me()).finish()[..5000]).unwrap();
    let mut seen = BTreeSet::new();
    for args in [
        &["ps"][..],
        &["allocs", file, "--stacks"],
        &["allocs", file, "--by", "context"],
        &["allocs", file, "--all", "--stacks"],
        &["allocs", &leaking, "--sort", "growth"],
        &["leaks", &leaking, "--since", "warm", "--stacks"],
        &["leaks", file],
        &["leaks", &code],
        &["graphs", file, "--all", "--stacks"],
        &["graphs", &under, "--all"],
        &["stats", &with_pool],
        &["stats", cut.to_str().unwrap()],
        &["stats", file, "--samples"],
        &["events", file],
        &["events", &ended],
        &["dump", file, "-o", dump.to_str().unwrap()],
        &["dump", file, "-o", dump.to_str().unwrap()],
        &["diff", empty.to_str().unwrap(), file],
        &["diff", &dumped, file],
        &["export", "--format", "json", file],
        &["mark", "x", file],
        &["trim", file],
        &["set", file, "POOL_MAX=1GiB"],
        &["get", &variables],
        &["clean", "--dry-run"],
        &["doctor"],
        &["run", "--lib", library, "--print-env", "--", "true"],
        &["selftest", "--lib", library, "--keep", kept.to_str().unwrap()],
    ] {
        if args.contains(&&*leaking) {
            leaking_now();
        }
        let answer = dir.gpumem(&[&["--json"], args].concat());
        assert!(!answer.out.is_empty(), "{args:?}: {}", answer.err);
        for value in serde_json::Deserializer::from_str(&answer.out).into_iter::<Value>() {
            keys(&value.unwrap_or_else(|error| panic!("{args:?}: {error}: {}{}", answer.out, answer.err)), &mut seen);
        }
    }
    // Of processes none of which is named.
    let (several, sleepers) = (common::dir(), [Sleeper::start(), Sleeper::start()]);
    sleepers.iter().for_each(|sleeper| drop(several.put(sleeper.id(), demo(sleeper.id()))));
    let answer = several.gpumem(&["--json", "leaks"]);
    keys(&serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {}", answer.err)), &mut seen);
    // Of two that share memory.
    let [one, other] = &sleepers;
    for (id, kind) in [(one.id(), SharedKind::Exported), (other.id(), SharedKind::Imported)] {
        let mut ledger = demo(id);
        ledger.slots([SharedSlot { serial: 4711, kind: kind as u8, ..Default::default() }]);
        let kinds = [AllocKind::IpcImport, AllocKind::VmmImport].into_iter().filter(|_| kind == SharedKind::Imported);
        let slot = |kind: AllocKind| AllocSlot { serial: 4711, kind: kind as u8, ..Default::default() };
        ledger.slots(kinds.map(slot));
        several.put(id, ledger);
    }
    for sleeper in &sleepers {
        let answer = several.gpumem(&["--json", "leaks", &sleeper.id().pid.to_string()]);
        keys(&serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {}", answer.err)), &mut seen);
    }
    let rules = selftest::rules(dir.path(), library);
    keys(&serde_json::from_str(&rules).unwrap_or_else(|error| panic!("{error}: {rules}")), &mut seen);
    let text = std::fs::read_to_string(doc("cli.md")).unwrap();
    let section = between(&text, "## JSON", "\n## ");
    let documented: BTreeSet<String> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .flat_map(|line| {
            line[..line.find(" |").unwrap()]
                .split(", ")
                .map(|name| name.trim_matches('`').to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    let missing: Vec<_> = seen.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/cli.md does not explain {missing:?}");
    let gone: Vec<_> = documented.difference(&seen).collect();
    assert!(gone.is_empty(), "docs/cli.md explains what no answer has: {gone:?}");
}
