//! `gpumem run`: the command that it becomes, and what it preloads.

use super::common::skipped::skipped;
use super::common::*;
use serde_json::json;
use std::process::Command;

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
        return skipped("AddressSanitizer is not installed", "package libasan8");
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
    let options = ["--stacks", "8", "--tag", "a b", "--summary", "1", "--record-only", "1", "--ledger-max", "64MiB"];
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
fn a_library_path_that_the_loader_cannot_take_is_refused() {
    let dir = dir();
    let odd = dir.path().join("a b");
    std::fs::create_dir(&odd).unwrap();
    let answer = run(&library(&odd), &["--", "true"]);
    assert_eq!(answer.code, 125);
    assert!(answer.err.contains("a space, a colon or a dollar"), "{}", answer.err);
}
