//! The pool in every view: what is idle, what it did, what it placed elsewhere, what is stranded.

mod common;
use common::pool::pooled;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{Interception, Mode, PoolState};
use gpumem_wire::layout::{ContextSlot, TableKind};
use serde_json::{Value, json};

/// A directory with one running process, this test.
fn one() -> Dir {
    with(pooled(me()))
}

fn with(ledger: Composer) -> Dir {
    let dir = dir();
    dir.put(me(), ledger);
    dir
}

#[test]
fn totals_say_what_is_kept_and_what_it_was_good_for() {
    let report = one().json(&["stats"]);
    let pool = &report["pool"];
    for (field, expected) in [
        ("state", json!("on")),
        ("free", json!("strict")),
        ("idle_max_bytes", json!(256 * MIB)),
        ("decay_ns", json!(10 * SECOND)),
        ("idle_bytes", json!(48 * MIB)),
        ("idle_blocks", json!(3)),
        ("spilled_live_bytes", json!(16 * MIB)),
        ("hits", json!(990)),
        ("misses", json!(7)),
        ("passed", json!(3)),
        ("kept", json!(996)),
        ("released", json!(2)),
        ("released_bytes", json!(4 * MIB)),
        ("barriers", json!(5)),
        ("barriers_saved", json!(991)),
        ("flushes", json!(1)),
        ("trims", json!(10)),
        ("spills", json!(4)),
        ("spilled_bytes", json!(64 * MIB)),
        ("limit_refusals", json!(6)),
        ("press_refusals", json!(8)),
        ("freed_in_graph", json!(9)),
        ("stranded_bytes", json!(24 * MIB)),
    ] {
        assert_eq!(pool[field], expected, "{field}");
    }
    assert!(pool.get("reason").is_none());
    let contexts = pool["in_contexts"].as_array().unwrap();
    assert_eq!(contexts.len(), 2, "the one that is gone keeps nothing");
    assert_eq!((&contexts[0]["idle_peak_bytes"], &contexts[0]["limit_bytes"]), (&json!(96 * MIB), &json!(512 * MIB)));
    assert_eq!(
        (&contexts[1]["state"], &contexts[1]["reason"]),
        (&json!("peer-access"), &json!(PoolState::Peers.why()))
    );
    // What is idle is explained; what is spilled is not the device's.
    let device = &report["devices"][0];
    assert_eq!((&device["tracked_bytes"], &device["idle_bytes"]), (&json!(64 * MIB), &json!(48 * MIB)));
    assert_eq!((&device["spilled_bytes"], &device["unexplained_bytes"]), (&json!(16 * MIB), &json!((300 - 112) * MIB)));
    assert_eq!(report["devices"][1]["idle_bytes"], 0, "a context that is gone keeps nothing");
    let text = squeeze(&one().ok(&["stats", "--all"]));
    for line in [
        "48.0 MiB idle in gpumem's pool kept for the next allocations",
        "16.0 MiB spilled, outside of the device's memory gpumem allocs --spilled",
        "pool",
        "on frees wait as they do without gpumem",
        "48.0 MiB idle in 3 blocks; at most 256.0 MiB (GPUMEM_POOL_MAX); NVML counts idle memory as used",
        "10.0 s until idle memory goes back to the driver GPUMEM_POOL_DECAY",
        "16.0 MiB live outside of the device's memory (spilled) 64.0 MiB in 4 allocations so far",
        "99 % hits 990 reused, 7 from the driver, 3 bypassed the pool",
        "996 frees whose block the pool kept",
        "5 frees waited for the GPU, 991 did not need to",
        "2 blocks given back to the driver 4.0 MiB",
        "1 times everything was given back an allocation had run out of memory",
        "10 times trimmed gpumem trim",
        "6 allocations over the limit GPUMEM_LIMIT",
        "8 allocations refused once so that the program frees what it strands",
        "9 allocations freed while a live graph still refers to them gpumem events --kind freed-in-graph",
        "1 0 64.0 MiB 112.0 MiB 48.0 MiB 96.0 MiB 16.0 MiB 512.0 MiB on",
        "2 0 0 B 0 B 0 B 0 B 512.0 MiB peer-access: another context may use the memory of this one",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
}

#[test]
fn growth_shows_what_was_idle() {
    let growth = one().json(&["stats"])["growth"].clone();
    let rows = growth["rows"].as_array().unwrap();
    let idle = rows.iter().find(|row| row["what"] == "device_idle_bytes").unwrap();
    assert_eq!((&idle["first"], &idle["last"], &idle["peak"]), (&json!(0), &json!(48 * MIB), &json!(48 * MIB)));
    let text = squeeze(&one().ok(&["stats", "--all", "--samples"]));
    assert!(text.contains("\ndevice idle 0 B 48.0 MiB 48.0 MiB +28.8 MiB "), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("age device host ") && line.ends_with(" device used idle")),
        "{text}"
    );
}

#[test]
fn without_a_bound_or_a_decay_that_is_said() {
    let mut ledger = pooled(me());
    ledger.header.settings = ledger.text("GPUMEM_FREE=deferred\nGPUMEM_POOL_DECAY=0");
    let dir = with(ledger);
    let pool = &dir.json(&["stats"])["pool"];
    assert_eq!((&pool["idle_max_bytes"], &pool["decay_ns"]), (&Value::Null, &json!(0)));
    let text = squeeze(&dir.ok(&["stats", "--all"]));
    for line in ["on frees never wait", "- idle memory is not given back with time GPUMEM_POOL_DECAY=0"] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    assert!(text.contains("at most a quarter of each device (GPUMEM_POOL_MAX)"), "{text}");
}

#[test]
fn what_was_set_while_it_ran_is_in_force() {
    let mut ledger = pooled(me());
    ledger.header.changes = ledger.text("GPUMEM_LIMIT=\nGPUMEM_POOL_MAX=1GiB");
    let dir = with(ledger);
    let report = dir.json(&["stats"]);
    assert_eq!(report["pool"]["idle_max_bytes"], 1024 * MIB);
    let settings = &report["settings"];
    assert_eq!(settings, &json!(["GGML_CUDA_ALLOC_FALLBACK_MANAGED=1", "GPUMEM_LIMIT=", "GPUMEM_POOL_MAX=1GiB"]));
}

#[test]
fn what_is_stranded_has_its_call_site() {
    let dir = one();
    let stranded = dir.json(&["stats"])["pool"]["stranded"].clone();
    assert_eq!(stranded.as_array().unwrap().len(), 1, "one site, however often it was reported");
    // Freed since, it is no warning any more.
    let mut freed = pooled(me());
    cache::count(&mut freed, counters::STRANDED_REMOVED, 24 * MIB);
    let freed = with(freed);
    assert!(freed.ok(&["stats", "--all"]).contains("stranded, and freed since"));
    assert!(!freed.ok(&["stats"]).contains("warning:"));
    let site = &stranded[0];
    assert_eq!((&site["bytes"], &site["blocks"], &site["times"]), (&json!(24 * MIB), &json!(3), &json!(2)));
    assert_eq!(site["site"], "demo-server+0x101");
    assert_eq!(site["stack"].as_array().unwrap().len(), 2);
    assert!(!dir.ok(&["stats"]).contains("demo-server+0x901"), "stacks are for --all");
    let text = dir.ok(&["stats", "--all"]);
    let row = |text: &str| text.lines().find(|line| line.contains("demo-server+0x101")).map(squeeze);
    assert!(row(&text).unwrap().starts_with("24.0 MiB 3 2 "), "{text}");
    assert!(text.contains("demo-server+0x901"), "its stack: {text}");
    let warning = "warning: 24.0 MiB in 3 older blocks lie unused while demo-server+0x101";
    assert!(dir.ok(&["stats"]).contains(warning));
    // Since the report some of it was freed: the total is of now, the row is of then, and both say so.
    let mut less = pooled(me());
    cache::count(&mut less, counters::STRANDED_REMOVED, 8 * MIB);
    let text = squeeze(&with(less).ok(&["stats", "--all"]));
    assert!(text.contains("\nstranded now: 16.0 MiB in older buffers "), "{text}");
    assert!(text.contains("\nunused then blocks reports last report site\n24.0 MiB 3 2 "), "{text}");
    let row = text.lines().find(|line| line.starts_with("24.0 MiB 3 2 ")).unwrap();
    assert!(row.contains(" ago demo-server+0x101"), "{row}");
}

#[test]
fn spilled_memory_is_marked() {
    let dir = one();
    let flags = |args: &[&str]| {
        let report = dir.json(&[&["allocs", "--all"], args].concat());
        report["rows"].as_array().unwrap().iter().map(|row| row["flags"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(flags(&[]), [json!(["pooled"]), json!(["spilled"])]);
    assert_eq!(flags(&["--spilled"]), [json!(["spilled"])]);
    let groups = dir.json(&["allocs"]);
    let spilled: Vec<_> = groups["rows"].as_array().unwrap().iter().map(|row| row["spilled_bytes"].clone()).collect();
    assert_eq!(spilled, [json!(0), json!(16 * MIB)]);
    let text = squeeze(&dir.ok(&["allocs"]));
    assert!(text.contains("\nlive % spilled count "), "{text}");
    assert!(text.contains("\n16.0 MiB 20 % 16.0 MiB 1 "), "{text}");
    let without = with(demo(me())).ok(&["allocs"]);
    assert!(!without.contains("spilled"), "a column for nothing: {without}");
}

#[test]
fn a_ledger_without_the_pool_has_no_word_of_it() {
    let dir = with(demo(me()));
    for view in [&["stats"][..], &["allocs"]] {
        let text = dir.ok(view);
        assert!(!text.contains("pool"), "{view:?}:\n{text}");
    }
    let pool = &dir.json(&["stats"])["pool"];
    assert_eq!((&pool["state"], &pool["reason"]), (&json!("unused"), &json!(PoolState::Unused.why())));
}

/// State and reason of a process whose only context is in this state.
fn state(pool: PoolState, change: impl FnOnce(&mut Composer)) -> (String, String) {
    let mut ledger = begin(me());
    ledger.slots([ContextSlot { vendor: 1, pool_state: pool as u64, ..Default::default() }]);
    change(&mut ledger);
    let report = with(ledger).json(&["stats"]);
    let text = |field: &str| report["pool"][field].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

#[test]
fn a_pool_that_is_off_says_why() {
    let is = |got: (String, String), state: &str, reason: &str| assert_eq!(got, (state.to_owned(), reason.to_owned()));
    is(state(PoolState::On, |_| ()), "on", "");
    is(state(PoolState::Broken, |_| ()), "off", PoolState::Broken.why());
    is(state(PoolState::Peers, |_| ()), "off", PoolState::Peers.why());
    let off = |ledger: &mut Composer| ledger.header.settings = ledger.text("GPUMEM_POOL=0");
    is(state(PoolState::Off, off), "off", "GPUMEM_POOL=0");
    let recording = |ledger: &mut Composer| {
        ledger.header.mode = Mode::RecordOnly as u32;
        ledger.header.mode_reason = ledger.text("libcuinj64 is loaded");
    };
    is(state(PoolState::RecordOnly, recording), "off", "record-only: libcuinj64 is loaded");
    let partial = |ledger: &mut Composer| {
        ledger.header.interception = Interception::Partial as u32;
        ledger.header.interception_reason = ledger.text("used before");
    };
    is(state(PoolState::Interception, partial), "off", "interception is partial: used before");
    let text = with(pooled(me())).ok(&["stats"]);
    let line = "pool on (strict): 48.0 MiB idle in 3 blocks (at most 256.0 MiB), 99 % hits, 16.0 MiB spilled\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn doctor_explains_what_is_off_ran_out_or_is_stranded() {
    let finding = |ledger: Composer, id: &str| {
        let answer = with(ledger).gpumem(&["doctor", "--all", "--json"]);
        let report: Value = serde_json::from_str(&answer.out).unwrap();
        let found = report["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == id).unwrap();
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (text("severity"), text("finding"), text("fix"))
    };
    let (severity, said, _) = finding(pooled(me()), "pool");
    assert_eq!(severity, "info");
    assert_eq!(said, "on, but not everywhere: context 2 on device 0: another context may use the memory of this one");
    let (severity, said, fix) = finding(pooled(me()), "memory");
    let holder = "demo-server+0x101 holds most now: 64.0 MiB in 1 allocation, 100 % of the live device memory";
    assert!(
        said.starts_with("an allocation of 900.0 MiB ran out of memory ")
            && said.ends_with(&format!("with 80.0 MiB live; {holder}")),
        "{said}"
    );
    assert!(severity == "warning" && fix.ends_with("spilling failed too"), "its settings spill: {fix}");
    let (severity, said, fix) = finding(pooled(me()), "stranded");
    let (what, when) = said.split_once(", as reported ").unwrap();
    assert_eq!(
        (severity.as_str(), what),
        ("warning", "24.0 MiB in 3 older blocks lie unused while demo-server+0x101 asks for more")
    );
    assert!(when.ends_with(" ago"), "{when}");
    assert!(fix.contains("GPUMEM_STRANDED=press"), "{fix}");
    let (severity, said, fix) = finding(pooled(me()), "aliases");
    assert_eq!(severity, "info");
    assert_eq!(said, "GGML_CUDA_ALLOC_FALLBACK_MANAGED is set; gpumem reads it as GPUMEM_OOM_FALLBACK=managed");
    assert!(fix.contains("GPUMEM_OOM_FALLBACK itself overrides it"), "{fix}");
    let mut freed = pooled(me());
    cache::count(&mut freed, counters::STRANDED_REMOVED, 24 * MIB);
    let (severity, said, _) = finding(freed, "stranded");
    assert_eq!((severity.as_str(), said.as_str()), ("info", "1 call site had stranded memory, which is freed by now"));
    for id in ["pool", "memory", "stranded", "aliases"] {
        assert_eq!(finding(demo(me()), id).0, "ok", "{id}");
    }
    let mut off = demo(me());
    off.header.settings = off.text("GPUMEM_POOL=0");
    let (severity, said, fix) = finding(off, "pool");
    assert_eq!((severity.as_str(), said.as_str()), ("info", "off: GPUMEM_POOL=0"));
    assert!(fix.contains("start it without"), "{fix}");
    let mut limited = demo(me());
    let mut shard = vec![0; counters::PER_SHARD];
    shard[counters::LIMIT_REFUSALS] = 2;
    limited.words(TableKind::Counters, &shard);
    let (severity, said, fix) = finding(limited, "memory");
    let known = "2 allocations refused at a GPUMEM_LIMIT that is unset by now";
    assert_eq!((severity.as_str(), said.as_str(), fix.as_str()), ("info", known, ""));
}

#[test]
fn an_alias_in_this_shell_is_told() {
    let dir = dir();
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).env("GGML_CUDA_POOL_USE_MANAGED", "1").args(["doctor"]);
    let answer = answer(command);
    assert!(
        answer.out.contains("GGML_CUDA_POOL_USE_MANAGED is set; gpumem reads it as GPUMEM_POOL_MANAGED=1"),
        "{}",
        answer.out
    );
}

#[test]
fn events_are_sentences() {
    let dir = one();
    let report = dir.json(&["events"]);
    let texts: Vec<_> =
        report["events"].as_array().unwrap().iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(
        texts,
        [
            "a call site asks for larger and larger buffers; 8.0 MiB in 1 older block lie unused",
            "the pool gave 4.0 MiB of idle memory back to the driver",
            "16.0 MiB were placed outside of the device's memory",
            "600.0 MiB refused: over the limit of this process",
            "900.0 MiB could not be allocated: 80.0 MiB are live, and all idle memory was given back",
            "32.0 MiB were refused once, so that the program frees 24.0 MiB that it strands",
            "a call site asks for larger and larger buffers; 24.0 MiB in 3 older blocks lie unused",
            "this call site held 64.0 MiB in 1 allocation when memory ran out",
        ]
    );
    let problems = dir.json(&["events", "--problems"]);
    let kinds: Vec<_> = problems["events"].as_array().unwrap().iter().map(|event| event["kind"].clone()).collect();
    assert_eq!(
        kinds,
        ["stranded-site", "spilled", "limit-refused", "out-of-memory", "pressed", "stranded-site", "top-holder"]
    );
}

#[test]
fn diff_and_exports_hold_the_pool() {
    let dir = dir();
    let file = |name: &str, ledger: Composer| {
        let path = dir.path().join(name);
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let before = file("before", pooled(me()));
    let mut grown = pooled(me());
    let more = [
        (counters::POOL_HITS, 100),
        (counters::POOL_MISSES, 2),
        (counters::POOL_BARRIERS, 1),
        (counters::POOL_RELEASED_BYTES, 8 * MIB),
    ];
    for (index, value) in more {
        cache::count(&mut grown, index, value);
    }
    grown.slots([ContextSlot { idle_bytes: 10 * MIB, spilled_bytes: MIB, vendor: 1, ..Default::default() }]);
    let after = file("after", grown);
    let text = dir.ok(&["diff", &before, &after]);
    let line = "pool: idle +10.0 MiB (48.0 MiB -> 58.0 MiB), spilled +1.0 MiB; hits +100, misses +2, allocations past the pool +0, frees that waited +1, given back +8.0 MiB\n";
    assert!(text.contains(line), "{text}");
    let report = dir.json(&["diff", &before, &after]);
    assert_eq!((&report["before"]["pool"]["hits"], &report["after"]["pool"]["hits"]), (&json!(990), &json!(1090)));

    let metrics = dir.ok(&["export", "--format", "prometheus", &before]);
    let pid = me().pid;
    for (name, labels, value) in [
        ("gpumem_pool_on", "", 1),
        ("gpumem_pool_idle_bytes", ",context=\"1\",device=\"0\"", 48 * MIB),
        ("gpumem_pool_idle_blocks", ",context=\"1\",device=\"0\"", 3),
        ("gpumem_device_limit_bytes", ",device=\"0\",uuid=\"\",device_name=\"NVIDIA Test\"", 512 * MIB),
        ("gpumem_pool_hits_total", "", 990),
    ] {
        let line = format!("{name}{{pid=\"{pid}\",process=\"demo-server\"{labels}}} {value}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    assert_eq!(dir.json(&["export", "--format", "json", &before])["pool"]["barriers_saved"], 991);
}

#[test]
fn a_dump_keeps_what_the_pool_had() {
    let dir = one();
    let dump = dir.path().join("dump");
    dir.ok(&["dump", "-o", dump.to_str().unwrap()]);
    let pool = |args: &[&str]| {
        let mut pool = dir.json(args)["pool"].clone();
        pool["stranded"][0]["last_age_ns"] = json!(0);
        pool
    };
    assert_eq!(pool(&["stats"]), pool(&["stats", dump.to_str().unwrap()]));
}

#[test]
fn a_name_is_as_good_as_a_pid() {
    let dir = one();
    assert_eq!(dir.json(&["stats", "demo-server"])["process"]["pid"], me().pid);
    let answer = dir.gpumem(&["stats", "nobody"]);
    assert_eq!(answer.code, 3);
    assert!(answer.err.contains("\"nobody\" is not a pid, a file or the name of a running process"), "{}", answer.err);
    let other = Sleeper::start();
    dir.put(other.id(), demo(other.id()));
    let answer = dir.gpumem(&["stats", "demo-server"]);
    assert_eq!(answer.code, 4);
    assert!(answer.err.contains(&format!("gpumem stats {}", other.id().pid)), "{}", answer.err);
}
