//! The command line: which process is meant, errors that say what to do, exit codes, `run`.

mod common;
use common::skipped::{installed, skipped};
use common::*;
use gpumem_inspector::Code;
use gpumem_wire::place::ProcessId;
use gpumem_wire::settings;
use serde_json::json;
use std::path::Path;
use std::process::Command;

fn failure(dir: &Dir, args: &[&str], code: i32) -> String {
    let answer = dir.gpumem(args);
    assert_eq!(answer.code, code, "{args:?}: {}{}", answer.out, answer.err);
    answer.err
}

#[test]
fn with_nothing_to_look_at_it_says_how_to_begin() {
    let dir = dir();
    for args in [
        &["ps"][..],
        &["allocs"],
        &["graphs"],
        &["stats"],
        &["events"],
        &["top", "--once"],
        &["dump", "-o", "/dev/null"],
    ] {
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
    assert!(failure(&dir, &["run", "--stacks", "129", "--", "true"], 2).contains("a number from 0 to 128"));
}

#[test]
fn colours_only_where_they_are_wanted() {
    let dir = dir();
    dir.put(me(), demo(me()));
    assert!(!dir.ok(&["allocs"]).contains('\x1b'));
    assert!(dir.ok(&["allocs", "--color", "always"]).contains('\x1b'));
}

/// A library to preload that says so: `libgpumem.so` in a directory of the test.
fn library(dir: &Path) -> std::path::PathBuf {
    let (source, library) = (dir.join("lib.c"), dir.join("libgpumem.so"));
    std::fs::write(&source, "int gpumem_test_library;\n").unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success());
    library
}

fn run(lib: &Path, args: &[&str]) -> Answer {
    let mut command = gpumem();
    command.env("GPUMEM_LIB", lib).arg("run").args(args);
    answer(command)
}

#[test]
fn run_passes_exit_codes_signals_and_output() {
    let dir = dir();
    let lib = library(dir.path());
    let sh = |script: &str| run(&lib, &["--", "sh", "-c", script]);
    assert_eq!(sh("exit 0").code, 0);
    assert_eq!(sh("exit 77").code, 77);
    assert_eq!(sh("kill -9 $$").code, 128 + 9);
    let said = sh("echo out; echo err >&2");
    assert_eq!((said.out.as_str(), said.err.as_str()), ("out\n", "err\n"));
    let odd = dir.path().join("odd");
    std::fs::write(&odd, "#!/nonexistent/interpreter\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&odd, PermissionsExt::from_mode(0o755)).unwrap();
    for (command, code, said) in [
        ("no-such-command", 127, "no command no-such-command was found; it is in no directory of PATH"),
        ("/nonexistent/command", 127, "there is no file /nonexistent/command\n"),
        (odd.to_str().unwrap(), 127, "its interpreter is missing; its first line"),
        ("/etc/passwd", 126, "no permission to execute it; chmod +x /etc/passwd"),
        ("/etc", 126, "cannot run /etc: it is a directory\n"),
    ] {
        let answer = run(&lib, &["--", command]);
        assert_eq!(answer.code, code, "{command}");
        assert!(answer.err.contains(said), "{}", answer.err);
    }
    assert_eq!(run(&lib, &[]).code, 2);
    let none = run(&dir.path().join("missing.so"), &["--", "true"]);
    assert_eq!(none.code, 125, "{}", none.err);
    assert!(none.err.contains("there is no library"), "{}", none.err);
}

#[test]
fn run_keeps_the_preloads_of_others_behind_its_own() {
    let dir = dir();
    let lib = library(dir.path());
    let other = dir.path().join("other.so");
    std::fs::copy(&lib, &other).unwrap();
    let mut command = gpumem();
    command.env("LD_PRELOAD", &other).env("GPUMEM_LIB", &lib).args(["run", "--", "printenv", "LD_PRELOAD"]);
    let out = answer(command).out;
    assert_eq!(out.trim(), format!("{}:{}", lib.display(), other.display()));
    // What is there already does not come twice.
    let mut command = gpumem();
    command.env("LD_PRELOAD", &lib).env("GPUMEM_LIB", &lib).args(["run", "--", "printenv", "LD_PRELOAD"]);
    assert_eq!(answer(command).out.trim(), lib.display().to_string());
}

/// AddressSanitizer's library, shared as gcc links it, comes first: it refuses to start behind another. Says so where
/// the compiler has none.
#[test]
fn run_puts_itself_behind_a_checker_that_has_to_come_first() {
    let dir = dir();
    let lib = library(dir.path());
    let mut command = gpumem();
    command.env("LD_PRELOAD", "other.so:/lib/libasan.so.8").env("GPUMEM_LIB", &lib).args([
        "run",
        "--print-env",
        "true",
    ]);
    let out = answer(command).out;
    assert!(out.starts_with(&format!("LD_PRELOAD=/lib/libasan.so.8:{}:other.so ", lib.display())), "{out}");

    let (source, program) = (dir.path().join("checked.c"), dir.path().join("checked"));
    std::fs::write(&source, "int main(void) { return 7; }").unwrap();
    let cc = Command::new("cc").args(["-fsanitize=address", "-o"]).arg(&program).arg(&source).output();
    if !cc.is_ok_and(|cc| cc.status.success()) || Command::new(&program).status().unwrap().code() != Some(7) {
        return skipped("AddressSanitizer is not installed");
    }
    let mut command = gpumem();
    command.env("GPUMEM_LIB", &lib).args(["run", "--"]).arg(&program);
    let ran = answer(command);
    assert_eq!(ran.code, 7, "{}", ran.err);
}

#[test]
fn run_sets_variables_and_prints_the_one_liner() {
    let dir = dir();
    let lib = library(dir.path());
    let options = ["--stacks", "8", "--tag", "a b", "--summary", "--record-only", "1", "--ledger-max", "64MiB"];
    let answer = run(&lib, &[&options[..], &["--print-env", "--", "echo", "it's"]].concat());
    let line = answer.out.trim();
    assert_eq!(
        line,
        format!(
            "LD_PRELOAD={} GPUMEM_STACKS=8 GPUMEM_LEDGER_MAX=64MiB GPUMEM_RECORD_ONLY=1 GPUMEM_SUMMARY=1 GPUMEM_TAG='a b' echo 'it'\\''s'",
            lib.display()
        )
    );
    // What it prints does what it says.
    let line = run(&lib, &[&options[..], &["--print-env", "--", "printenv", "GPUMEM_TAG"]].concat()).out;
    let shell = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8(shell.stdout).unwrap(), "a b\n");
    let direct =
        run(&lib, &[&options[..], &["--", "sh", "-c", "echo $GPUMEM_STACKS $GPUMEM_TAG $GPUMEM_SUMMARY"]].concat());
    assert_eq!(direct.out, "8 a b 1\n");
}

#[test]
fn run_turns_other_allocators_off() {
    let dir = dir();
    let lib = library(dir.path());
    let script = "echo $PYTORCH_NO_CUDA_MEMORY_CACHING $XLA_PYTHON_CLIENT_ALLOCATOR";
    assert_eq!(run(&lib, &["--tensors", "--", "sh", "-c", script]).out, "1 platform\n");
    assert_eq!(run(&lib, &["--", "sh", "-c", script]).out, "\n");
}

#[test]
fn run_as_json_has_each_key_once() {
    let dir = dir();
    let lib = library(dir.path());
    let out = run(&lib, &["--json", "--print-env", "--", "echo", "hi"]).out;
    assert_eq!(out.matches("\n  \"command\":").count(), 1, "{out}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["command"], &report["argv"]), (&json!("run"), &json!(["echo", "hi"])));
}

#[test]
fn run_warns_where_no_preload_reaches() {
    let dir = dir();
    let lib = library(dir.path());
    let (source, program) = (dir.path().join("s.c"), dir.path().join("static"));
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let built = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).output();
    if !built.is_ok_and(|built| built.status.success()) {
        skipped("the static C library is not installed");
        return;
    }
    let answer = run(&lib, &["--", program.to_str().unwrap()]);
    assert_eq!(answer.code, 3);
    assert!(answer.err.contains("statically linked"), "{}", answer.err);
}

/// Musl's loader ends a program for whose preload it lacks a library: such a program gets none.
#[test]
fn a_program_of_musls_runs_as_it_was() {
    let dir = dir();
    let lib = library(dir.path());
    let (source, program) = (dir.path().join("s.c"), dir.path().join("other"));
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    // A loader by musl's name, which is the machine's own.
    let (ours, loader) = (own_loader(), dir.path().join("ld-musl-x86_64.so.1"));
    std::os::unix::fs::symlink(ours, &loader).unwrap();
    let named = format!("-Wl,--dynamic-linker={}", loader.display());
    let built = Command::new("cc").arg(named).arg("-o").arg(&program).arg(&source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let answer = run(&lib, &["--", program.to_str().unwrap()]);
    assert_eq!(answer.code, 3, "{}", answer.err);
    assert!(answer.err.contains("musl") && answer.err.contains("it runs without gpumem"), "{}", answer.err);
    let shown = run(&lib, &["--print-env", "--", program.to_str().unwrap()]);
    assert!(!shown.out.contains("LD_PRELOAD"), "{}", shown.out);
    // Real ones, where there is a compiler for them.
    if let Some(cc) = installed("musl-gcc") {
        assert!(Command::new(cc).arg("-o").arg(&program).arg(&source).status().unwrap().success());
        let answer = run(&lib, &["--", program.to_str().unwrap()]);
        assert_eq!(answer.code, 3, "{}", answer.err);
    }
}

/// The loader of this machine's programs, which this test has, too.
fn own_loader() -> String {
    let said = Command::new("readelf").args(["-l", "-W"]).arg(std::env::current_exe().unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.split("interpreter: ").nth(1).and_then(|rest| rest.split(']').next()).expect("a loader").to_owned()
}

#[test]
fn a_library_path_that_the_loader_cannot_take_is_refused() {
    let dir = dir();
    let odd = dir.path().join("a b");
    std::fs::create_dir(&odd).unwrap();
    let answer = run(&library(&odd), &["--", "true"]);
    assert_eq!(answer.code, 125);
    assert!(answer.err.contains("a space, a colon or a dollar"), "{}", answer.err);
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
    for (command, line, what) in all {
        assert!(line.starts_with(&format!("gpumem {command}")) && what.ends_with('.'), "{line}");
        if let Err(error) = gpumem_inspector::Args::try_parse_from(line.split(' ')) {
            panic!("{line}: {error}");
        }
    }
    for command in gpumem_inspector::Args::command().get_subcommands() {
        assert!(all.iter().any(|row| row.0 == command.get_name()), "{} has no example", command.get_name());
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
        (&["top", "--count", "1.5"], "a number from 0 to"),
        (&["selftest", "--seed", "x"], "a number from 0 to"),
    ] {
        let answer = dir.gpumem(args);
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.err);
        assert!(answer.err.contains(allowed) && !answer.err.contains("invalid digit"), "{args:?}: {}", answer.err);
    }
}

/// `--pool 0` is what it says, and not the pool on with a command 0.
#[test]
fn a_switch_can_be_turned_off_by_the_next_word() {
    let dir = dir();
    let lib = library(dir.path());
    let mut command = gpumem();
    command.env("GPUMEM_LIB", &lib).args(["run", "--pool", "0", "--", "sh", "-c", "echo pool is $GPUMEM_POOL"]);
    let answer = answer(command);
    assert_eq!((answer.code, answer.out.as_str()), (0, "pool is 0\n"), "{}", answer.err);
}
