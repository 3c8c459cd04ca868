//! Recordings of real programs: `gpumem record`, and what `gpumem report` makes of them.

use gpumem_tests::harness::run::{Scratch, wait_for};
use gpumem_tests::harness::terminal::Terminal;
use gpumem_tests::harness::{artifacts, client};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// `gpumem` with its ledgers in a folder.
fn gpumem(dir: &Path, args: &[&str]) -> Command {
    let mut gpumem = Command::new(&artifacts().gpumem);
    gpumem.current_dir(dir).env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", &artifacts().stage);
    gpumem.env("GPUMEM_DIR", dir.join("ledgers")).env("GPUMEM_LIB", &artifacts().shim);
    gpumem.stdin(Stdio::null()).args(args);
    gpumem
}

fn output(dir: &Path, args: &[&str]) -> Output {
    gpumem(dir, args).output().expect("gpumem runs")
}

fn path_of(program: &str) -> String {
    artifacts().programs.join(program).to_str().expect("UTF-8").to_owned()
}

/// Returns the report of a recording; `None` while there is none.
fn report(dir: &Path, recording: &str) -> Option<Value> {
    let answer = output(dir, &["report", recording, "--json"]);
    answer.status.success().then(|| serde_json::from_slice(&answer.stdout).expect("JSON"))
}

fn timeline(report: &Value) -> &str {
    report["source"]["timeline"].as_str().expect("words")
}

/// The rows of a chart: name, and what is held over time.
fn rows(report: &Value, chart: &str) -> Vec<(String, Vec<u64>)> {
    let charts = report["charts"].as_array().expect("charts");
    let Some(chart) = charts.iter().find(|other| other["id"] == chart) else { return Vec::new() };
    let values = |row: &Value| row["values"].as_array().expect("values").iter().filter_map(Value::as_u64).collect();
    let row = |row: &Value| (row["name"].as_str().expect("a name").to_owned(), values(row));
    chart["rows"].as_array().expect("rows").iter().map(row).collect()
}

#[test]
fn a_command_is_recorded_and_ends_as_it_would() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let named = |page: &Value| {
        let frames = page["flame"]["frames"].as_array().expect("frames");
        frames.iter().any(|frame| frame.as_str().is_some_and(|frame| frame.starts_with("main ")))
    };
    let record = || {
        let ran = output(dir, &["record", "-d", "0.05", "-o", "r.rec.gz", "--", &path_of("basic")]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success() && said.contains("now type: gpumem report"), "{said}");
        report(dir, "r.rec.gz").expect("a recording")
    };
    // Who looks names up is given up where it sleeps for a second, as it may on a disk that is busy.
    let first = (0..3).map(|_| record()).find(named).expect("a recording with names");
    assert_eq!((&first["source"]["kind"], &first["process"]["name"]), (&"recording".into(), &"basic".into()));
    assert!(timeline(&first).contains("the process exited"), "{}", timeline(&first));
    // Everything that the program allocated is in it, whatever the looks saw: stacks are counted by the shim.
    let stacks = first["flame"]["stacks"].as_array().expect("stacks");
    assert!(stacks.iter().any(|stack| stack["churn"].as_u64() > Some(0)), "{stacks:?}");

    // A second one moves the first aside; what is no recording stays.
    assert!(output(dir, &["record", "-o", "r.rec.gz", "--", &path_of("basic")]).status.success());
    assert_eq!(report(dir, "r.rec.gz~").expect("the first")["process"]["pid"], first["process"]["pid"]);
    std::fs::write(dir.join("mine"), "precious").expect("a file");
    let ran = output(dir, &["record", "-o", "mine", "--", &path_of("basic")]);
    assert!(ran.status.success(), "the command runs all the same");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("is not a recording: it is not overwritten"));
    assert_eq!(std::fs::read(dir.join("mine")).expect("it is there"), b"precious");

    let ran = output(dir, &["record", "--", "sh", "-c", "exit 7"]);
    assert_eq!(ran.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("nothing was recorded"));
    assert_eq!(output(dir, &["record", "--", "./none"]).status.code(), Some(127));
}

/// Each process of a command has a recording of its own, and one report has them all.
#[test]
fn processes_of_a_script_are_recorded_and_reported_together() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let demo = path_of("demo");
    // The recorder looks for processes between its looks, which take long on a machine that is busy.
    let script = format!("'{demo}' --seconds 3 & '{demo}' --seconds 3; wait");
    let ran = output(dir, &["record", "-d", "0.05", "-o", "r.gz", "--", "sh", "-c", &script]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let files = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut files: Vec<String> = files.map(|name| name.to_string_lossy().into_owned()).collect();
    files.retain(|name| name.starts_with("r."));
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in &files {
        let report = report(dir, file).expect("a recording");
        assert!(*file == "r.gz" || *file == format!("r.{}.gz", report["process"]["pid"]), "{file}");
        assert!(rows(&report, "tag").iter().any(|(name, _)| name == "weights"), "{report}");
        // Graphs are in it, too.
        assert!(!report["graph_charts"].as_array().expect("charts").is_empty());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("and 1 file beside it") && said.contains("now type: gpumem report r.gz\n"), "{said}");

    let all = report(dir, "r.gz").expect("a recording");
    let alone = report(dir, &files[0]).expect("a recording");
    assert!(alone.get("processes").is_none(), "the file of another process is of that one alone");
    let processes = all["processes"].as_array().expect("a list");
    let of = |name: &str| processes.iter().map(|process| process[name].clone()).collect::<Vec<_>>();
    let mut pids = [&all["process"]["pid"], &alone["process"]["pid"]].map(|pid| pid.as_u64().expect("a pid"));
    pids.sort_unstable();
    let mut listed: Vec<u64> = of("pid").iter().filter_map(Value::as_u64).collect();
    listed.sort_unstable();
    assert_eq!(listed, pids);
    assert_eq!((of("parent_name"), of("ended")), (vec!["sh".into(); 2], vec!["the process exited".into(); 2]));
    let mut reports: Vec<u64> = of("report").iter().filter_map(Value::as_u64).collect();
    reports.sort_unstable();
    assert_eq!((reports, &all["others"][0]["process"]), (vec![0, 1], &alone["process"]));
    // On the one card, each process has a row, with as much at most as it ever held.
    let [card] = &all["card_charts"].as_array().expect("charts")[..] else { panic!("{}", all["card_charts"]) };
    for process in processes {
        let name = format!("{} ({})", process["name"].as_str().expect("a name"), process["pid"]);
        let row = card["rows"].as_array().expect("rows").iter().find(|row| row["name"] == name).expect("a row");
        let most = row["values"].as_array().expect("values").iter().filter_map(Value::as_u64).max();
        assert!(most > Some(0) && most <= process["peak_bytes"].as_u64(), "{most:?} of {process}");
    }
    assert!(output(dir, &["report", "r.gz", "-o", "all.html"]).status.success());
    let page = std::fs::read_to_string(dir.join("all.html")).expect("a page");
    for pid in pids {
        assert!(page.contains(&format!("<span class=\"pid\">pid {pid}</span>")), "{pid}");
    }
    assert_eq!(page.matches("<details class=\"process\"").count(), 2);

    // The recordings of the next run replace the first one alone: what is left of this run is not of that one.
    assert!(output(dir, &["record", "-o", "r.gz", "--", &demo, "--seconds", "1"]).status.success());
    assert!(report(dir, "r.gz").expect("a recording").get("processes").is_none());
    assert_eq!(report(dir, "r.gz~").expect("a recording")["processes"], all["processes"], "moved aside, it is whole");
}

/// A recorder that is killed leaves what it has seen.
#[test]
fn a_recorder_that_is_killed_leaves_a_recording() {
    let running = client("held").waits().start(true);
    running.says("held");
    let scratch = Scratch::new();
    let pid = running.pid().to_string();
    let mut recorder = gpumem(scratch.path(), &["record", "-d", "0.05", "-o", "r", &pid]);
    let mut recorder = recorder.env("GPUMEM_DIR", &running.dir).stderr(Stdio::null()).spawn().expect("it runs");
    let looks = |report: &Value| rows(report, "kind").first().map_or(0, |(_, values)| values.len());
    wait_for("looks", || report(scratch.path(), "r").is_some_and(|report| looks(&report) >= 3));
    recorder.kill().and_then(|()| recorder.wait()).expect("it was ours");
    let report = report(scratch.path(), "r").expect("a recording");
    assert!(timeline(&report).contains("It is cut short"), "{}", timeline(&report));
    let held: u64 = (1..=20).map(|n| n << 16).sum();
    let last =
        |kind: &str| rows(&report, "kind").iter().find(|(name, _)| name == kind).and_then(|(_, v)| v.last().copied());
    assert_eq!((last("device"), last("host-pinned")), (Some(held), Some(123_456)), "{report}");
    let stacks = report["flame"]["stacks"].as_array().expect("stacks");
    assert_eq!(stacks.iter().filter_map(|stack| stack["live"].as_u64()).sum::<u64>(), held + 123_456);
    // Those of 1 MiB and above, one by one.
    let large: Vec<u64> =
        report["large"].as_array().expect("large ones").iter().filter_map(|one| one["bytes"].as_u64()).collect();
    assert_eq!(large, (16..=20).rev().map(|n| n << 16).collect::<Vec<u64>>());
}

/// A signal ends the recording, and not the process; so does its time.
#[test]
fn a_recording_ends_when_it_is_asked_to() {
    let running = client("held").waits().start(true);
    running.says("held");
    let scratch = Scratch::new();
    let pid = running.pid().to_string();
    let record = |args: &[&str]| {
        let mut recorder = gpumem(scratch.path(), &[&["record", "-d", "0.05", "-o", "r"][..], args].concat());
        recorder.env("GPUMEM_DIR", &running.dir).stderr(Stdio::piped()).spawn().expect("it runs")
    };
    let recorder = record(&[&pid]);
    wait_for("a look", || report(scratch.path(), "r").is_some());
    // SAFETY: kill takes two numbers, and the child was not waited for yet.
    assert_eq!(unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) }, 0);
    let ended = recorder.wait_with_output().expect("it was ours");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(timeline(&report(scratch.path(), "r").expect("a recording")).contains("it was stopped"));
    let ended = record(&["--for", "0.2", "--events-from", "1152KiB", &pid]).wait_with_output().expect("it was ours");
    assert!(ended.status.success());
    let report = report(scratch.path(), "r").expect("a recording");
    assert!(timeline(&report).contains("its time was over. Allocations of 1.1 MiB and above"), "{}", timeline(&report));
    // It was asked for those alone.
    assert_eq!(report["large"].as_array().map(Vec::len), Some(3), "{}", report["large"]);
    assert_eq!(running.finish().code, 0, "the process goes on as ever");
}

/// A command that goes on after the time of its recording is waited for, and that is said. A signal still reaches it.
#[test]
fn a_command_that_outlives_its_recording_is_waited_for_aloud() {
    let scratch = Scratch::new();
    let demo = path_of("demo");
    let mut recorder = gpumem(scratch.path(), &["record", "-d", "0.05", "--for", "1", "-o", "r.rec.gz", "--"]);
    let mut recorder = recorder.args([&demo, "--seconds", "600"]).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut said = BufReader::new(recorder.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let line = said.find(|line| line.contains("waits for its end")).expect("it is said");
    assert!(line.contains("demo") && line.contains("SIGTERM"), "{line}");
    // SAFETY: kill takes two numbers, and the child was not waited for yet.
    assert_eq!(unsafe { libc::kill(recorder.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(recorder.wait().expect("it was ours").code(), Some(128 + libc::SIGTERM), "as the command ended");
    assert!(timeline(&report(scratch.path(), "r.rec.gz").expect("a recording")).contains("its time was over"));
}

/// A terminal that was closed takes the words along, and not the recording.
#[test]
fn a_recording_is_whole_where_nobody_reads_what_is_said_of_it() {
    let running = client("held").waits().start(true);
    running.says("held");
    let scratch = Scratch::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut recorder = gpumem(scratch.path(), &["record", "-d", "0.05", "-o", "r", &running.pid().to_string()]);
    let mut recorder = recorder.env("GPUMEM_DIR", &running.dir).stderr(writer).spawn().expect("it runs");
    wait_for("a look", || report(scratch.path(), "r").is_some());
    // SAFETY: kill takes two numbers, and the child was not waited for yet.
    assert_eq!(unsafe { libc::kill(recorder.id() as i32, libc::SIGHUP) }, 0);
    assert!(recorder.wait().expect("it was ours").success());
    let report = report(scratch.path(), "r").expect("a recording");
    assert!(timeline(&report).contains("it was stopped"), "{}", timeline(&report));
}

/// On a terminal one line says how far it is, and gives way to what is said at the end.
#[test]
fn a_terminal_shows_how_far_a_recording_is() {
    let running = client("held").waits().start(true);
    running.says("held");
    let scratch = Scratch::new();
    let mut record = gpumem(scratch.path(), &["record", "-d", "0.05", "-o", "r", &running.pid().to_string()]);
    record.env("GPUMEM_DIR", &running.dir).env("TERM", "xterm");
    let mut terminal = Terminal::start(record, 100, 24);
    terminal.shows("gpumem: recording held").shows("recording for ").shows(" live, ").shows(" written; Ctrl-C ends it");
    // It is written over, not below: one line however many looks there were.
    terminal.shows("recording for 1");
    let lines = terminal.text().lines().filter(|line| line.contains("recording for ")).count();
    assert_eq!(lines, 1, "{}", terminal.text());
    terminal.press("\x03");
    assert_eq!((terminal.ended(), terminal.left()), (0, vec![]));
    terminal.shows("gpumem: wrote r (").hides("recording for ");
    assert!(timeline(&report(scratch.path(), "r").expect("a recording")).contains("it was stopped"));
    assert_eq!(running.finish().code, 0, "the process goes on as ever");
}

/// The files that the tests of damage begin with are recordings.
#[test]
fn a_page_of_a_recording_is_a_page() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    assert!(output(dir, &["record", "-d", "0.05", "-o", "r", "--", &path_of("graphs")]).status.success());
    assert!(output(dir, &["report", "r"]).status.success());
    let pages = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let pages: Vec<PathBuf> = pages.filter(|path| path.extension().is_some_and(|end| end == "html")).collect();
    let [page] = &pages[..] else { panic!("{pages:?}") };
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("Made from a recording.") && page.contains("graph-chart"));
}
