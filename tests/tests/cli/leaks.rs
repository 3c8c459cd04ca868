//! `gpumem leaks` finds growth that is known: with the commands of the README, and by the claim of `make proof`.

use gpumem_tests::harness::run::{Program, Running, Scratch, wait_for};
use gpumem_tests::harness::{artifacts, client, command, program};
use gpumem_wire::kinds::GrowthKind;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// A line as a user pastes it, where this program's ledger is looked for.
fn typed(running: &Running, line: &str) -> String {
    let words = line.strip_prefix("gpumem ").expect("a command of ours");
    let mut shell = Command::new(&artifacts().gpumem);
    let done = shell.args(words.split(' ')).env("GPUMEM_DIR", &running.dir).output().expect("gpumem runs");
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// Asks until the answer is there: how many samples there are by then depends on the machine.
fn typed_until(running: &Running, line: &str, right: impl Fn(&str) -> bool) -> String {
    let mut said = String::new();
    for _ in 0..200 {
        said = typed(running, line);
        if right(&said) {
            return said;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("{line} says: {said}");
}

/// The rest of the first line that begins with this text.
fn after<'a>(said: &'a str, begin: &str) -> &'a str {
    said.lines()
        .find_map(|line| line.trim().strip_prefix(begin))
        .unwrap_or_else(|| panic!("no {begin} in {said}"))
        .trim()
}

/// A server under `gpumem run`, and the directory of its ledger.
fn server(args: &[&str], variable: (&str, &str)) -> (Running, Scratch) {
    let dir = Scratch::new();
    let run =
        command(&artifacts().gpumem).args(["run", "--"]).arg(artifacts().clients.join("leak")).args(args.to_vec());
    // A sample each 20 ms, so that a second is enough.
    let run = run.dir(dir.path()).env("GPUMEM_DIR", dir.path()).env("GPUMEM_GROWTH_INTERVAL", "20ms");
    let running = run.env(variable.0, variable.1).waits().start(false);
    running.says("serving");
    (running, dir)
}

/// Three commands: run the program, ask, and paste the command in the answer.
#[test]
fn the_leaking_line_of_a_c_program_is_found_in_three_commands() {
    let (running, _dir) = server(&[], ("GPUMEM_TAG", ""));
    let first = |said: &str| said.lines().find(|line| line.trim_start().starts_with("who")).map(str::to_owned);
    let right = |said: &str| {
        said.contains("grows steadily, +") && first(said).is_some_and(|who| who.contains("remember leak.c"))
    };
    let said = typed_until(&running, "gpumem leaks", right);
    let next = after(&said, "next");
    assert!(next.starts_with("gpumem allocs "), "{said}");
    let stacks = typed(&running, next);
    let row = stacks.lines().skip_while(|line| !line.contains("growth")).nth(1).expect("a row");
    assert!(row.contains("remember"), "{stacks}");
    assert!(stacks.contains("main leak.c"), "{stacks}");
    running.finish().ok();
}

/// The number of a server's graphs grows, without the graph cache. The answer has the call site that keeps the graphs, and
/// the command that bounds them.
#[test]
fn a_server_whose_graphs_grow_is_found() {
    let (running, _dir) = server(&["graphs"], ("GPUMEM_GRAPH_CACHE", "0"));
    let first = |said: &str| said.lines().find(|line| line.trim_start().starts_with("who")).map(str::to_owned);
    let right = |said: &str| first(said).is_some_and(|who| who.contains("graphs of remember_graph leak.c"));
    let said = typed_until(&running, "gpumem leaks", right);
    assert!(said.contains("grows steadily, +"), "{said}");
    let next = after(&said, "next");
    assert!(next.starts_with("cuGraphExecDestroy is never called for the execs of remember_graph leak.c"), "{said}");
    assert!(next.contains("until it is: start it without GPUMEM_GRAPH_CACHE=0"), "{said}");
    running.finish().ok();
}

/// The same server under the graph cache: what it holds rises by little, and the verdict stays what it is of the program.
#[test]
fn execs_that_the_cache_bounds_grow_at_each_look() {
    let (running, _dir) = server(&["graphs"], ("GPUMEM_TAG", ""));
    let row = || {
        let said = running.gpumem(&["leaks"]);
        said["suspects"].as_array().expect("rows").iter().find(|row| row["kind"] == "graphs").cloned()
    };
    wait_for("a verdict", || row().is_some_and(|row| row["verdict"] == "grows-steadily"));
    for look in 0..10 {
        std::thread::sleep(Duration::from_millis(500));
        let row = row().expect("a row");
        assert_eq!(row["verdict"], "grows-steadily", "look {look}: {row:#}");
        assert_eq!(
            (&row["balance"]["destroyed"], &row["freed_share"]),
            (&Value::from(0), &Value::from(0.0)),
            "{row:#}"
        );
        assert!(row["balance"]["native_bytes_per_minute"].as_f64() > row["bytes_per_minute"].as_f64(), "{row:#}");
    }
    let said = typed(&running, "gpumem leaks");
    assert!(said.contains("0 destroyed; gpumem keeps them at"), "{said}");
    assert!(!said.contains("the process's own heap grows"), "{said}");
    running.finish().ok();
}

/// Verdicts on a thousand call sites with planted growth.
#[test]
fn planted_growth_is_told() {
    let args = ["--simulator", "--seed", "0", "leaks.verdicts"];
    let done = Command::new(env!("CARGO_BIN_EXE_proof")).args(args).output().expect("proof");
    let said = String::from_utf8(done.stdout).expect("text");
    let line: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!((&line["native"], &line["holds"]), (&Value::from(1010), &Value::Bool(true)), "{line:#}");
}

/// Answers about a hundred call sites of seven kinds, asked ten times, change only with what is planted.
#[test]
fn answers_change_only_with_what_is_planted() {
    let args = ["--simulator", "--seed", "0", "--programs", "1", "leaks.changes"];
    let done = Command::new(env!("CARGO_BIN_EXE_proof")).args(args).output().expect("proof");
    let said = String::from_utf8(done.stdout).expect("text");
    let line: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!((&line["native"], &line["holds"]), (&Value::from(100), &Value::Bool(true)), "{line:#}");
}

/// A small ledger has room for a few histories: those of the largest sites. The other sites are counted.
#[test]
fn where_there_is_little_room_the_largest_are_followed() {
    let ran = program("leaks")
        .args(["3", "60"])
        .envs(&[("GPUMEM_GROWTH_INTERVAL", "0"), ("GPUMEM_LEDGER_MAX", "1MiB")])
        .preloaded()
        .ok();
    let said = ran.ledger().gpumem("leaks", &[]);
    let judged = |row: &&Value| row["verdict"] != "too-little";
    let rows = said["suspects"].as_array().expect("suspects");
    assert!(rows.iter().filter(judged).count() <= 8, "{said:#}");
    assert!(said["remarks"].to_string().contains("there is no more room for one"), "{said:#}");
}

/// First and last seen are the program's own times, also for a call site that gets its history late, and for one that
/// loses its history to a larger site and gets it back.
#[test]
fn first_and_last_seen_are_when_it_was() {
    // The clock of records ticks each 4 ms.
    const TICK_NS: u64 = 20_000_000;
    let ran = program("seen").envs(&[("GPUMEM_GROWTH_INTERVAL", "0"), ("GPUMEM_LEDGER_MAX", "1MiB")]).preloaded().ok();
    let known: Value = serde_json::from_str(ran.out.trim()).expect("what is known");
    let ledger = ran.ledger();
    for (name, bytes, live) in [("late", 12288, 2), ("churner", 80 << 20, 1), ("pushed", 5 << 20, 1)] {
        let rows = || ledger.snapshot.growth.rows().filter(|(_, row)| row.kind == GrowthKind::Site as u8);
        let row = rows().find(|(_, row)| (row.bytes, row.count) == (bytes, live));
        let (_, row) = row.unwrap_or_else(|| panic!("{name} has no row: {:#?}", rows().collect::<Vec<_>>()));
        let stack = &ledger.snapshot.stacks[&u32::try_from(row.key).expect("a stack")];
        for (what, told_ns) in [("first", stack.first_ns), ("last", row.made_ns)] {
            let known = |at: usize| known[name][what][at].as_u64().expect("a time");
            let is_right = (known(0).saturating_sub(TICK_NS)..=known(1) + TICK_NS).contains(&told_ns);
            assert!(is_right, "{name}, {what}: {told_ns} is not between {} and {}", known(0), known(1));
        }
    }
}

/// A user who looks at a machine does not know which process grows. All are there, and the growing one is first.
#[test]
fn several_processes_are_ranked_the_growing_one_first() {
    let dir = Scratch::new();
    let start = |program: Program| {
        let dir = dir.path();
        program.dir(dir).env("GPUMEM_DIR", dir).env("GPUMEM_GROWTH_INTERVAL", "20ms").waits().start(true)
    };
    let flat = start(program("lost").args(["5", "60"]));
    let grows = start(client("forgets_beside"));
    flat.says("blocks");
    grows.says("begun");
    let grows_first = |said: &Value| {
        let rows = said["processes"].as_array().expect("rows");
        rows.len() == 2 && rows[0]["pid"] == grows.pid() && rows[0]["growing"] == 1
    };
    wait_for("the growing one to be first", || grows_first(&grows.gpumem(&["leaks"])));
    let said = grows.gpumem(&["leaks"]);
    assert!(said["processes"][0]["site"].as_str().expect("a site").starts_with("forget "), "{said:#}");
    assert_eq!((&said["processes"][1]["pid"], &said["processes"][1]["growing"]), (&flat.pid().into(), &0.into()));
    let stats = grows.gpumem(&["stats"]);
    assert!(grows_first(&stats), "{stats:#}");
    // A gate is about one process.
    let refused = grows.refused(&["leaks", "--fail-over", "1"]);
    assert!(refused.contains("2 processes fit"), "{refused}");
    grows.finish().ok();
    flat.finish().ok();
}

/// Workers that only load the driver are many, and say nothing.
#[test]
fn processes_that_make_no_gpu_call_are_one_line() {
    let dir = Scratch::new();
    let sleeps = || command("/bin/sleep").arg("600").dir(dir.path()).env("GPUMEM_DIR", dir.path()).start(true);
    let mut helpers: Vec<Running> = (0..4).map(|_| sleeps()).collect();
    let said = |more: &[&str]| {
        let done = Command::new(&artifacts().gpumem).arg("ps").args(more).env("GPUMEM_DIR", dir.path()).output();
        String::from_utf8(done.expect("gpumem runs").stdout).expect("text")
    };
    let folded = |text: &str| text.lines().any(|line| line.ends_with("sleep made no GPU call: --wide lists them"));
    wait_for("four helpers in one line", || folded(&said(&[])));
    let pids: Vec<String> = helpers.iter().map(|helper| helper.pid().to_string()).collect();
    let lists = |text: &str, pid: &str| text.lines().any(|line| line.split_whitespace().next() == Some(pid));
    let (short, wide) = (said(&[]), said(&["--wide"]));
    assert!(pids.iter().all(|pid| lists(&wide, pid) && !lists(&short, pid)), "{short}\n{wide}");
    assert!(!folded(&wide), "{wide}");
    helpers.iter().for_each(|helper| helper.signal(libc::SIGTERM));
    helpers.iter_mut().for_each(|helper| wait_for("its end", || helper.reap()));
}
