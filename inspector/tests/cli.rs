//! The command line: which process is meant, errors that say what to do, exit codes; [`run`].

mod common;
#[path = "cli/run.rs"]
mod run;

use common::*;
use gpumem_inspector::Code;
use gpumem_wire::place::ProcessId;
use gpumem_wire::settings;
use serde_json::json;
use std::process::Command;

fn failure(dir: &Dir, args: &[&str], code: i32) -> String {
    let answer = dir.gpumem(args);
    assert_eq!(answer.code, code, "{args:?}: {}{}", answer.out, answer.err);
    answer.err
}

#[test]
fn with_nothing_to_look_at_it_says_how_to_begin() {
    let dir = dir();
    for args in [&["ps"][..], &["allocs"], &["graphs"], &["stats"], &["events"], &["dump", "-o", "/dev/null"]] {
        let err = failure(&dir, args, 3);
        assert!(
            err.contains("no process with libgpumem.so was found") && err.contains("gpumem run -- COMMAND"),
            "{err}"
        );
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    assert_eq!(dir.gpumem(&["ps", "--json"]).code, 3);
    assert!(failure(&dir, &["allocs", "4194304"], 3).contains("there is no process 4194304"));
    assert!(failure(&dir, &["allocs", "neither"], 3).contains("is not a pid, a file or the name"));
    assert!(failure(&dir, &["allocs", "./none.gpumem"], 3).contains("there is no file ./none.gpumem"));
    let pid = std::process::id().to_string();
    assert!(failure(&dir, &["allocs", &pid], 3).contains("runs without libgpumem.so"));
}

#[test]
fn of_several_one_has_to_be_named() {
    let dir = dir();
    let (a, b) = (Sleeper::start(), Sleeper::start());
    for id in [a.id(), b.id()] {
        dir.put(id, demo(id));
    }
    let err = failure(&dir, &["allocs"], 4);
    for id in [a.id(), b.id()] {
        assert!(err.contains(&format!("gpumem allocs {}", id.pid)), "{err}");
    }
    assert_eq!(dir.json(&["allocs", &a.id().pid.to_string()])["process"]["pid"], a.id().pid);
}

#[test]
fn a_running_process_is_meant_before_dead_ones() {
    let dir = dir();
    dir.put(gone(), demo(gone()));
    dir.put(me(), demo(me()));
    assert_eq!(dir.json(&["allocs"])["process"]["pid"], me().pid);
}

#[test]
fn usage_errors_have_their_own_code() {
    let dir = dir();
    for args in [
        &["nonsense"][..],
        &["allocs", "--by", "colour"],
        &["allocs", "--min-size", "1KBi"],
        &["allocs", "--older", "-1"],
        &["top", "--interval", "0"],
        &["run", "--stacks", "129", "--", "true"],
        &["export"],
        &["allocs", "x", "--file", "y"],
    ] {
        failure(&dir, args, 2);
    }
    assert!(failure(&dir, &["export"], 2).contains(".speedscope.json"), "the endings that there are");
    assert!(failure(&dir, &["run", "--stacks", "129", "--", "true"], 2).contains("a number from 0 to 128"));
}

#[test]
fn colours_only_where_they_are_wanted() {
    let dir = dir();
    dir.put(me(), demo(me()));
    assert!(!dir.ok(&["allocs"]).contains('\x1b'));
    assert!(dir.ok(&["allocs", "--color", "always"]).contains('\x1b'));
}

#[test]
fn clean_removes_the_long_dead_only() {
    let dir = dir();
    let day = 24 * 3600 * 1_000_000_000_u64;
    let recent = dir.put(gone(), demo(gone()));
    let live = dir.put(me(), demo(me()));
    let old_id = ProcessId { pid: 1, start_ticks: 7 };
    let mut old = demo(old_id);
    old.header.boot_id = [1; 16];
    old.header.created_real_ns -= 2 * day;
    let old = dir.put(old_id, old);
    let broken = dir.path().join("999999-1.ledger");
    std::fs::write(&broken, "broken").unwrap();
    let stranger = dir.path().join("notes.txt");
    std::fs::write(&stranger, "mine").unwrap();

    let report = dir.json(&["clean", "--dry-run"]);
    assert_eq!(report["removed"].as_array().unwrap().len(), 1);
    assert!(old.exists());
    dir.ok(&["clean"]);
    assert!(!old.exists() && recent.exists() && live.exists() && broken.exists());
    let text = dir.ok(&["clean", "--all"]);
    assert!(text.contains("its process is running"), "{text}");
    assert!(!recent.exists() && !broken.exists() && live.exists() && stranger.exists());
}

#[test]
fn doctor_gives_each_finding_an_id_and_a_fix() {
    let dir = dir();
    let lib = library(dir.path());
    let mut ledger = demo(me());
    ledger.header.interception = gpumem_wire::kinds::Interception::Partial as u32;
    ledger.header.interception_reason = ledger.text("an exec was made before the shim");
    ledger.header.complaints = ledger.text("GPUMEM_STAKS is no variable of gpumem and does nothing");
    dir.put(me(), ledger);
    let doctor = |args: &[&str]| {
        let mut command = gpumem();
        command
            .env("GPUMEM_DIR", dir.path())
            .env("GPUMEM_LIB", &lib)
            .env("GPUMEM_STACKS", "many")
            .arg("doctor")
            .args(args);
        answer(command)
    };
    let report: serde_json::Value = serde_json::from_str(&doctor(&["--json"]).out).unwrap();
    let find = |id: &str| {
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("{id}: {report:#}")).clone()
    };
    assert_eq!(find("library")["severity"], "ok");
    assert_eq!(find("variables")["severity"], "warning");
    assert!(find("variables")["finding"].as_str().unwrap().contains("GPUMEM_STACKS=\"many\" is refused"));
    let interception = find("interception");
    assert_eq!((&interception["severity"], &interception["pid"]), (&json!("warning"), &json!(me().pid)));
    assert!(!interception["fix"].as_str().unwrap().is_empty());
    assert_eq!(find("complaints")["severity"], "warning");
    assert_eq!(find("recording")["severity"], "ok");
    let text = doctor(&[]);
    assert_eq!(text.code, 0, "{}", text.err);
    assert!(text.out.contains("fix:") && !text.out.contains("ok       library"), "{}", text.out);

    std::fs::write(&lib, "no library").unwrap();
    let broken = doctor(&[]);
    assert_eq!(broken.code, 1);
    assert!(broken.out.contains("cannot be preloaded"), "{}", broken.out);
}

#[test]
fn doctor_looks_at_a_process_without_the_shim() {
    let dir = dir();
    let sleeper = Sleeper::start();
    let report = dir.gpumem(&["doctor", "--json", &sleeper.id().pid.to_string()]);
    assert!(report.out.contains("was started without libgpumem.so"), "{}", report.out);
    assert_eq!(dir.gpumem(&["doctor", "4194304"]).code, 3);
}

#[test]
fn a_process_that_made_no_gpu_call_is_listed() {
    let dir = dir();
    let lib = library(dir.path());
    let mut command = Command::new("sleep");
    let child = command.arg("600").env("LD_PRELOAD", &lib).env("GPUMEM_DIR", dir.path()).spawn().unwrap();
    let sleeper = Sleeper(child);
    let pid = sleeper.0.id().to_string();
    // Until the loader has mapped the library.
    let mapped =
        || std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libgpumem.so"));
    for _ in 0..500 {
        if mapped() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let report = dir.json(&["ps"]);
    assert_eq!(
        (&report["processes"][0]["pid"], &report["processes"][0]["status"]),
        (&json!(sleeper.0.id()), &json!("no-gpu-call"))
    );
    for named in [pid.as_str(), "sleep"] {
        assert!(failure(&dir, &["allocs", named], 3).contains("has made no GPU call yet"), "{named}");
    }
}

#[test]
fn completions_and_man_pages_are_made() {
    let dir = dir();
    for shell in ["bash", "zsh", "fish"] {
        assert!(dir.ok(&["completions", shell]).contains("_GPUMEM_COMPLETE"), "{shell}");
    }
    let page = dir.ok(&["man"]);
    assert!(page.contains(".TH gpumem 1") && page.contains("gpumem\\-help(1)"), "{page}");
    for (code, meaning) in Code::ALL {
        let meaning = meaning.replace('-', "\\-");
        assert!(page.contains(&format!("\\fB{}\\fR\n{meaning}\n", *code as u8)), "{page}");
    }
    for setting in settings::ALL {
        assert!(page.contains(&format!("\\fB{}\\fR", setting.name)), "{}", setting.name);
    }
    let out = dir.path().join("man");
    dir.ok(&["man", "--out", out.to_str().unwrap()]);
    let pages: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(pages.len() > 20 && out.join("gpumem-allocs.1").is_file(), "{pages:?}");
    for path in pages {
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains("\n.SH EXAMPLES\n.TP\n\\fBgpumem"), "{}", path.display());
        let also = page.split(".SH \"SEE ALSO\"\n").nth(1).unwrap_or_default();
        for name in
            also.split("\\fB").filter_map(|rest| rest.split_once("\\fR(1)")).map(|(name, _)| name.replace('\\', ""))
        {
            assert!(out.join(format!("{name}.1")).is_file(), "{}: {name}", path.display());
        }
    }
}

/// The man pages' examples.
#[test]
fn each_command_has_examples_that_it_takes() {
    use clap::{CommandFactory, Parser};
    let all = gpumem_inspector::EXAMPLES;
    for (line, what) in all {
        assert!(line.starts_with("gpumem ") && what.ends_with('.'), "{line}");
        if let Err(error) = gpumem_inspector::Args::try_parse_from(line.split(' ')) {
            panic!("{line}: {error}");
        }
    }
    for command in gpumem_inspector::Args::command().get_subcommands() {
        assert!(
            all.iter().any(|row| row.0.split(' ').nth(1) == Some(command.get_name())),
            "{} has no example",
            command.get_name()
        );
    }
}

#[test]
fn the_log_goes_to_stderr_and_can_be_turned_up() {
    let dir = dir();
    let dead = gone();
    dir.put(dead, demo(dead));
    assert_eq!(dir.gpumem(&["allocs"]).err, "");
    let told = dir.gpumem(&["allocs", "-v"]);
    assert!(told.err.contains(&format!("this is what pid {} left", dead.pid)), "{}", told.err);
}

/// A number that is none is answered in words.
#[test]
fn what_is_no_number_is_told_plainly() {
    let dir = dir();
    for (args, allowed) in [
        (&["allocs", "-n", "many"][..], "a number from 0 to 18446744073709551615"),
        (&["allocs", "--thread", "5000000000"], "a number from 0 to 4294967295"),
        (&["selftest", "--seed", "x"], "a number from 0 to"),
    ] {
        let answer = dir.gpumem(args);
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.err);
        assert!(answer.err.contains(allowed) && !answer.err.contains("invalid digit"), "{args:?}: {}", answer.err);
    }
}

/// `--pool 0` is what it says, and not the pool on with a command 0; a switch without a value is refused.
#[test]
fn a_switch_can_be_turned_off_by_the_next_word() {
    let dir = dir();
    let lib = library(dir.path());
    let mut command = gpumem();
    command.env("GPUMEM_LIB", &lib).args(["run", "--pool", "0", "--", "sh", "-c", "echo pool is $GPUMEM_POOL"]);
    let answer = answer(command);
    assert_eq!((answer.code, answer.out.as_str()), (0, "pool is 0\n"), "{}", answer.err);
    assert!(failure(&dir, &["run", "--pool", "./app"], 2).contains("for '--pool <0|1>': allowed is 0 or 1"));
    assert!(failure(&dir, &["run", "--pool", "--", "./app"], 2).contains("'--pool <0|1>'"));
}

/// A path on a command line begins in the folder where it is typed. The shim's variables need whole paths.
#[test]
fn a_trace_may_be_named_from_here() {
    let (dir, work) = (dir(), tempfile::tempdir().unwrap());
    let lib = library(dir.path());
    for (named, wanted) in [("a.trace", work.path().join("a.trace")), ("/b.trace", "/b.trace".into())] {
        let mut command = gpumem();
        command.current_dir(work.path()).env("GPUMEM_LIB", &lib);
        command.args(["run", "--alloc-trace", named, "--", "sh", "-c", "printf %s \"$GPUMEM_ALLOC_TRACE\""]);
        let answer = answer(command);
        assert_eq!((answer.code, answer.out.as_str()), (0, wanted.to_str().unwrap()), "{}", answer.err);
    }
}
