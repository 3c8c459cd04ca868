//! `gpumem selftest`: on the simulated driver and the simulated HIP runtime, and with programs whose
//! answers are known.

mod common;
use common::selftest::{ONE_DIFFERS, pretend, said};
use common::*;
use gpumem_wire::verdict::{Subject, Verdict};
use serde_json::Value;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The simulated libraries, for LD_LIBRARY_PATH: the CUDA driver's and HIP's apart from one another.
struct Stage {
    profile: PathBuf,
    cuda: PathBuf,
    hip: PathBuf,
    /// As `hip`, with a compiler for device code.
    rtc: PathBuf,
    /// As `rtc`; with GPUMEM_HIP_RETARGET its updates say that they succeeded and do nothing.
    lies: PathBuf,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Built if it was not: `make test` has built it all.
fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_gpumem")).parent().unwrap().to_owned();
        let built = ["libgpumem.so", "conformance", "differ", "libcuda.so", "libamdhip64.a"];
        if !built.iter().all(|file| profile.join(file).exists()) {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.arg("build").current_dir(repository()).env("CARGO_TARGET_DIR", profile.parent().unwrap());
            cargo.args(["-p", "gpumem-shim", "-p", "gpumem-tests", "-p", "gpumem-sim-cuda", "-p", "gpumem-sim-hip"]);
            let release = profile.ends_with("release");
            must(cargo.args(release.then_some("--release")));
        }
        // Tests may run as a process each: one stages, the others find it done.
        let own = profile.join("selftest");
        let [cuda, hip, rtc, lies] = ["cuda", "hip", "rtc", "lies"].map(|name| own.join(name));
        [&cuda, &hip, &rtc, &lies].iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        let lock = fs::File::create(own.join("lock")).unwrap();
        // SAFETY: flock takes two numbers, and `lock` keeps the descriptor open. Closing the
        // descriptor gives the lock back.
        assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0, "the lock");
        let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
        let (archive, library) = (profile.join("libamdhip64.a"), hip.join("libamdhip64.so.6"));
        if changed(&library) < changed(&archive) {
            compiler(&rtc);
            compiler(&lies);
            liar(&archive, &lies);
            link(&archive, &library);
        }
        let links = [
            (profile.join("libcuda.so"), cuda.join("libcuda.so")),
            (profile.join("libcuda.so"), cuda.join("libcuda.so.1")),
            (library.clone(), hip.join("libamdhip64.so")),
            (library.clone(), rtc.join("libamdhip64.so")),
            (lies.join("libamdhip64.so.6"), lies.join("libamdhip64.so")),
        ];
        for (file, name) in links {
            if !name.exists() {
                std::os::unix::fs::symlink(file, name).unwrap();
            }
        }
        Stage { profile, cuda, hip, rtc, lies }
    })
}

/// The simulated HIP runtime as a library.
fn link(archive: &Path, library: &Path) {
    must(Command::new("sh").arg(repository().join("tests/sim/hip/link.sh")).arg(archive).arg(library));
}

/// A HIP runtime whose updates do nothing where graphs are retargeted.
fn liar(archive: &Path, dir: &Path) {
    let source = "#include <stdlib.h>
int sim_update(void *exec, void *graph, void **node, int *result);
int hipGraphExecUpdate(void *exec, void *graph, void **node, int *result) {
    if (!getenv(\"GPUMEM_HIP_RETARGET\")) return sim_update(exec, graph, node, result);
    *node = 0, *result = 0;
    return 0;
}
";
    let [code, object, with] = ["lies.c", "lies.o", "lies.a"].map(|file| dir.join(file));
    fs::write(&code, source).unwrap();
    must(Command::new(cc()).args(["-c", "-fPIC", "-o"]).arg(&object).arg(&code));
    must(Command::new("objcopy").arg("--redefine-sym=hipGraphExecUpdate=sim_update").arg(archive).arg(&with));
    must(Command::new("ar").arg("q").arg(&with).arg(&object));
    link(&with, &dir.join("libamdhip64.so.6"));
    fs::remove_file(with).unwrap();
}

fn cc() -> std::ffi::OsString {
    std::env::var_os("CC").unwrap_or_else(|| "cc".into())
}

/// A libhiprtc.so that compiles every source to the code that the simulator understands.
fn compiler(dir: &Path) {
    let code = repository().join("kernels/gpumem.ptx").canonicalize().unwrap();
    let source = format!(
        r#"#include <stdio.h>
static const char *path = "{}";
int hiprtcCreateProgram(void **p, const char *s, const char *n, int c, void *a, void *b) {{
    (void)n, (void)c, (void)a, (void)b;
    *p = &path;
    return s == 0;
}}
int hiprtcCompileProgram(void *p, int n, void *options) {{ return p != &path || n || options; }}
int hiprtcGetCodeSize(void *p, size_t *size) {{
    FILE *f = fopen(path, "r");
    (void)p, fseek(f, 0, SEEK_END), *size = (size_t)ftell(f), fclose(f);
    return 0;
}}
int hiprtcGetCode(void *p, char *code) {{
    FILE *f = fopen(path, "r");
    size_t size;
    hiprtcGetCodeSize(p, &size);
    size -= fread(code, 1, size, f);
    fclose(f);
    return size != 0;
}}
"#,
        code.display()
    );
    fs::write(dir.join("rtc.c"), source).unwrap();
    must(Command::new(cc()).args(["-shared", "-fPIC", "-o"]).arg(dir.join("libhiprtc.so")).arg(dir.join("rtc.c")));
}

/// `gpumem selftest --json ARGS` with these libraries and variables: its exit code, report and stderr.
fn selftest(libraries: &Path, lib: &Path, args: &[&str], variables: &[(&str, &str)]) -> (i32, Value, String) {
    let mut command = gpumem();
    command.env("LD_LIBRARY_PATH", libraries).env("GPUMEM_LIB", lib).envs(variables.iter().copied());
    command.args(["selftest", "--json"]).args(args);
    let answer = answer(command);
    let report =
        serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {}{}", answer.out, answer.err));
    (answer.code, report, answer.err)
}

/// On the simulated libraries.
fn simulated(libraries: &Path, args: &[&str], variables: &[(&str, &str)]) -> (i32, Value, String) {
    selftest(libraries, &stage().profile.join("libgpumem.so"), args, variables)
}

/// `[part, run, failed]` of each part of the only section.
fn parts(report: &Value) -> Vec<(String, String, u64)> {
    assert_eq!(report["sections"].as_array().unwrap().len(), 1, "{report:#}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let parts = report["sections"][0]["parts"].as_array().unwrap().iter();
    parts.map(|part| (text(&part["part"]), text(&part["run"]), part["failed"].as_u64().unwrap())).collect()
}

fn expect(report: &Value, wanted: &[(&str, &str, u64)]) {
    let wanted: Vec<_> = wanted.iter().map(|(part, run, n)| ((*part).to_owned(), (*run).to_owned(), *n)).collect();
    assert_eq!(parts(report), wanted, "{report:#}");
}

/// `VARIABLE=VALUE`, and whether it is needed.
fn advice(report: &Value) -> Vec<(String, bool)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let advice = report["sections"][0]["advice"].as_array().unwrap().iter();
    advice
        .map(|row| (format!("{}={}", text(&row["variable"]), text(&row["value"])), row["needed"].as_bool().unwrap()))
        .collect()
}

#[test]
fn on_a_driver_of_a_new_major_it_says_that_more_than_recording_is_safe() {
    let keep = dir();
    let kept = keep.path().join("kept");
    let args = ["--seconds", "2", "--seed", "64", "--keep", kept.to_str().unwrap()];
    let (code, report, err) = simulated(&stage().cuda, &args, &[("SIM_DRIVER_VERSION", "14000")]);
    expect(&report, &[("conformance", "native", 0), ("conformance", "preloaded", 0), ("differential", "preloaded", 0)]);
    assert_eq!((code, &report["verdict"]), (0, &Value::from("held")), "{err}");
    assert_eq!(report["sections"][0]["device"], "Simulated GPU, driver API 14000");
    for part in report["sections"][0]["parts"].as_array().unwrap() {
        assert!(part["ok"].as_u64().unwrap() > 0, "{part}");
    }
    assert_eq!(advice(&report), [("GPUMEM_RECORD_ONLY=0".to_owned(), false)]);
    assert_eq!(report["not_run"].as_array().unwrap().len(), 1, "HIP");
    assert!(kept.join("conformance-preloaded.jsonl").is_file());
    assert!(fs::read_dir(kept.join("ledgers-conformance-preloaded")).unwrap().next().is_some());
}

/// `gpumem selftest --rules --json ARGS` with these libraries: its exit code, report and stderr, and the verdicts in the
/// user's place by their names.
fn rules(libraries: &Path, variables: &[(&str, &str)]) -> (i32, Value, String, Vec<(String, String)>) {
    let home = dir();
    let state = home.path().to_str().unwrap();
    let args = ["--rules", "--place", "user", "--seconds", "1", "--keep", &format!("{state}/kept")];
    let variables = [variables, &[("XDG_STATE_HOME", state)]].concat();
    let (code, report, err) = simulated(libraries, &args, &variables);
    let place = fs::read_dir(home.path().join("gpumem"));
    let files = place.into_iter().flatten().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    (code, report, err, files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect())
}

fn subject(driver: u32) -> Subject {
    let release = env!("CARGO_PKG_VERSION").to_owned();
    Subject { release, driver, gpu: "Simulated GPU".into(), capability: (9, 0) }
}

/// On a driver of a new major where every rule holds, later processes may do everything.
#[test]
fn rules_that_hold_give_a_verdict_with_everything_on() {
    let (code, report, err, files) = rules(&stage().cuda, &[("SIM_DRIVER_VERSION", "14000")]);
    expect(&report, &[("conformance", "native", 0), ("conformance", "preloaded", 0), ("differential", "preloaded", 0)]);
    assert_eq!((code, &report["verdict"]), (0, &Value::from("held")), "{err}");
    let verdict = Verdict { subject: subject(14000), pool: true, graph_cache: true };
    assert_eq!(files, [(verdict.subject.file_name(), verdict.to_string())]);
    assert!(report["written"]["path"].as_str().unwrap().ends_with(&files[0].0), "{report:#}");
}

/// A unit asks at each start: where there is a verdict nothing is tried, and where that is not believed it is replaced.
#[test]
fn nothing_is_tried_where_a_verdict_is_there() {
    let home = dir();
    let state = home.path().to_str().unwrap();
    let lib = pretend(home.path(), &format!("echo >>{state}/tried; exit 2"), "true", "");
    let place = home.path().join("gpumem");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    let verdict = Verdict { subject: subject(14000), pool: true, graph_cache: false };
    let file = place.join(verdict.subject.file_name());
    let asked = |driver: &str, args: &[&str]| {
        let args = [&["--rules", "--place", "user"], args].concat();
        let variables = [("XDG_STATE_HOME", state), ("SIM_DRIVER_VERSION", driver)];
        let (code, report, _) = selftest(&stage().cuda, &lib, &args, &variables);
        let tried = fs::remove_file(home.path().join("tried")).is_ok();
        (code, report["verdict"].as_str().unwrap().to_owned(), report["written"].clone(), tried)
    };
    fs::write(&file, verdict.to_string()).unwrap();
    let (code, said, written, tried) = asked("14000", &["--if-missing"]);
    assert_eq!((code, said.as_str(), tried), (0, "there", false));
    assert_eq!((&written["path"], &written["graph_cache"]), (&Value::from(file.to_str().unwrap()), &false.into()));
    // Without the option, of another driver, and where the file is not believed, there is something to try.
    for (driver, option, mode) in
        [("14000", None, 0o644), ("14010", Some("--if-missing"), 0o644), ("14000", Some("--if-missing"), 0o666)]
    {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let (code, said, _, tried) = asked(driver, option.as_slice());
        assert_eq!((code, said.as_str(), tried), (2, "could-not-run", true), "{driver} {option:?} {mode:o}");
    }
}

/// A driver of a known major that breaks a rule of graphs: the graph cache is off from then on, the pool is not.
#[test]
fn a_rule_that_does_not_hold_turns_off_what_is_built_on_it() {
    let fault = ("SIM_FAULT", "cuGraphExecMemsetNodeSetParams:1=801");
    let (code, report, err, files) = rules(&stage().cuda, &[fault]);
    assert_eq!((code, &report["verdict"]), (1, &Value::from("failed")), "{err}");
    let verdict = Verdict { subject: subject(13000), pool: true, graph_cache: false };
    assert_eq!(files, [(verdict.subject.file_name(), verdict.to_string())], "{report:#}");
    let written = &report["written"];
    assert_eq!((&written["pool"], &written["graph_cache"]), (&true.into(), &false.into()), "{report:#}");
    // What a broken rule concerns is not tried.
    let tried = [("conformance", "native"), ("conformance", "cache-off"), ("differential", "cache-off")];
    let tried = tried.map(|(part, run)| (part.to_owned(), run.to_owned()));
    let runs: Vec<_> = parts(&report).into_iter().map(|(part, run, _)| (part, run)).collect();
    assert_eq!(runs, tried, "{report:#}");
    // Without --rules, the same decision is advice.
    let (code, report, err) = simulated(&stage().cuda, &["--seconds", "1"], &[fault]);
    let runs: Vec<_> = parts(&report).into_iter().map(|(part, run, _)| (part, run)).collect();
    assert_eq!((code, runs), (1, tried.to_vec()), "{err}");
    assert_eq!(advice(&report), [("GPUMEM_GRAPH_CACHE=0".to_owned(), true)]);
    assert_eq!(
        report["sections"][0]["advice"][0]["why"],
        "this driver breaks rules that the graph cache is built on; nothing else differed"
    );
    fs::remove_dir_all(report["put"].as_str().unwrap()).unwrap();
}

/// Without a driver, without a device: nothing is written, and the exit code says so.
#[test]
fn without_a_driver_there_is_no_verdict() {
    let empty = dir();
    for (libraries, variables, said) in [
        (empty.path(), &[][..], "libcuda.so.1 is not found"),
        (stage().cuda.as_path(), &[("SIM_DEVICES", "0")], "cuInit gives 100"),
        (stage().cuda.as_path(), &[("SIM_FAULT", "cuInit:1=999")], "cuInit gives 999"),
    ] {
        let (code, report, err, files) = rules(libraries, variables);
        assert_eq!((code, &report["verdict"], files), (2, &Value::from("could-not-run"), vec![]), "{err}");
        assert!(report["not_run"][0].as_str().unwrap().contains(said), "{report:#}");
        assert!(err.contains("there is no verdict"), "{err}");
    }
}

#[test]
fn hip_may_retarget_where_graphs_with_kernels_held_too() {
    let all = [("hip", "native", 0), ("hip", "preloaded", 0), ("hip", "retargeting", 0)];
    let (code, report, err) = simulated(&stage().rtc, &[], &[]);
    expect(&report, &all);
    assert_eq!(code, 0, "{err}");
    assert_eq!(report["sections"][0]["parts"][2]["skipped"], 0, "{report:#}");
    assert_eq!(advice(&report), [("GPUMEM_HIP_RETARGET=1".to_owned(), false)]);
    // Without a compiler there is no kernel, and nothing is promised.
    let (code, report, err) = simulated(&stage().hip, &[], &[]);
    expect(&report, &all);
    assert_eq!((code, advice(&report)), (0, vec![]), "{err}");
    assert_eq!(report["sections"][0]["parts"][2]["skipped"], 2);
    assert!(report["sections"][0]["notes"][0].as_str().unwrap().contains("not known"), "{report:#}");
}

/// Natively and under the graph cache all is well; only retargeted graphs are wrong.
#[test]
fn hip_must_not_retarget_where_updates_lie() {
    let (code, report, err) = simulated(&stage().lies, &[], &[]);
    assert_eq!(code, 1, "{err}");
    let failed: Vec<_> = parts(&report).into_iter().map(|(_, _, failed)| failed).collect();
    assert_eq!(failed[..2], [0, 0], "{report:#}");
    let failures = report["sections"][0]["parts"][2]["failures"].as_array().unwrap();
    let failed = |check: &str| failures.iter().any(|failed| failed["name"] == check);
    assert!(["fills.in_turn", "kernels.in_turn"].into_iter().all(failed), "{report:#}");
    // Copies keep their graph's execs where they are.
    assert!(
        ["memset.in_turn", "launches.at_once", "copies.host"].into_iter().all(|check| !failed(check)),
        "{report:#}"
    );
    assert_eq!(advice(&report), []);
    let note = report["sections"][0]["notes"][0].as_str().unwrap();
    assert!(note.contains("leave GPUMEM_HIP_RETARGET unset"), "{note}");
    fs::remove_dir_all(report["put"].as_str().unwrap()).unwrap();
}

#[test]
fn what_hip_itself_does_otherwise_is_told() {
    // From its third call on an update is answered otherwise, in every process.
    let fault = ("SIM_FAULT", "hipGraphExecUpdate:3=719");
    let (code, report, _) = simulated(&stage().rtc, &[], &[fault]);
    assert_eq!((code, &report["verdict"]), (1, &Value::from("failed")));
    let native = &report["sections"][0]["parts"][0]["failures"][0];
    assert_eq!(native["name"], "memset.updated", "{report:#}");
    assert!(native["why"].as_str().unwrap().contains("hipGraphExecUpdate gives 719"), "{native}");
    assert!(!advice(&report).contains(&("GPUMEM_HIP_RETARGET=1".to_owned(), false)));
    assert!(advice(&report).iter().all(|(_, needed)| *needed), "{report:#}");
    fs::remove_dir_all(report["put"].as_str().unwrap()).unwrap();
}

/// A check that ends its process has failed; those behind it run all the same.
#[test]
fn a_check_that_kills_its_process_is_named_and_the_rest_runs() {
    let dir = dir();
    let first = format!("{}; kill -SEGV $$", said("a", "ok"));
    let lib = pretend(dir.path(), &first, &said("c", "ok"), ONE_DIFFERS);
    let (code, report, err) = selftest(dir.path(), &lib, &[], &[]);
    assert_eq!(code, 1, "{err}");
    // The pretended libgpumem.so does nothing: that is a failure of its own under the preload.
    let mut wanted = vec![("conformance", "native", 1)];
    wanted.extend(
        ["preloaded", "cache-off", "pool-off"].map(|run| [("conformance", run, 2), ("differential", run, 1)]).concat(),
    );
    expect(&report, &wanted);
    let parts = &report["sections"][0]["parts"];
    assert_eq!((&parts[0]["ok"], &parts[0]["failures"][0]["name"]), (&2.into(), &Value::from("checkpoint.b")));
    assert!(parts[0]["failures"][0]["why"].as_str().unwrap().contains("signal 11"), "{report:#}");
    assert_eq!(parts[1]["failures"][1]["name"], "preload.is_active");
    assert_eq!(parts[2]["failures"][0]["name"], "/tmp/differ-3.json");
    assert_eq!(parts[2]["failures"][0]["why"], "native 1 launch e0 = 0; preloaded 1 launch e0 = 700");
    assert_eq!((&parts[2]["ok"], &parts[2]["skipped"]), (&7.into(), &1.into()));
    assert_eq!(
        advice(&report),
        [("GPUMEM_DISABLE=1".to_owned(), true)],
        "not even without the graph cache or the pool"
    );
    fs::remove_dir_all(report["put"].as_str().unwrap()).unwrap();
}

/// A failed run's files are kept. A later process that has the number of an earlier one finds its own place all the
/// same. A run that could not try anything leaves nothing.
#[test]
fn what_an_earlier_process_kept_is_in_the_way_of_nobody() {
    let dir = dir();
    let places = dir.path().join("places");
    fs::create_dir(&places).unwrap();
    let names = || fs::read_dir(&places).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let after_another = |lib: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", "mkdir $TMPDIR/gpumem-selftest-$$ && exec $0 selftest --json --lib $1"]);
        command.arg(env!("CARGO_BIN_EXE_gpumem")).arg(lib).env("TMPDIR", &places).env("LD_LIBRARY_PATH", dir.path());
        answer(command)
    };
    let lib = pretend(dir.path(), &said("a", "ok"), &said("c", "ok"), ONE_DIFFERS);
    let failed = after_another(&lib);
    assert_eq!(failed.code, 1, "{}", failed.err);
    let report: Value = serde_json::from_str(&failed.out).unwrap();
    assert_eq!((names().len(), Path::new(report["put"].as_str().unwrap()).parent()), (2, Some(&*places)));
    let lib = pretend(dir.path(), "echo 'conformance: no driver to ask: none' >&2; exit 2", "true", "");
    let ended = after_another(&lib);
    assert_eq!((ended.code, names().len()), (2, 3), "{}", ended.err);
}

/// HIP is tried without the differential tester, and not without the conformance suite.
#[test]
fn of_the_programs_hip_needs_the_conformance_suite_alone() {
    let dir = tempfile::tempdir_in(&stage().profile).unwrap();
    let gpumem = dir.path().join("gpumem");
    fs::hard_link(env!("CARGO_BIN_EXE_gpumem"), &gpumem).unwrap();
    let lib = pretend(dir.path(), "exit 2", "true", "");
    for (gone, cuda, hip) in
        [("differ", "program differ", "libamdhip64.so"), ("conformance", "program conformance", "program conformance")]
    {
        fs::remove_file(dir.path().join(gone)).unwrap();
        let mut command = Command::new(&gpumem);
        command.env("LD_LIBRARY_PATH", dir.path()).args(["selftest", "--json", "--lib"]).arg(&lib);
        let answer = answer(command);
        assert_eq!(answer.code, 2, "{}", answer.err);
        let report: Value = serde_json::from_str(&answer.out).unwrap();
        let why = [0, 1].map(|at| report["not_run"][at].as_str().unwrap().to_owned());
        assert!(why[0].starts_with(&format!("the CUDA driver: the {cuda} is not installed")), "{why:?}");
        assert!(why[1].starts_with("HIP: ") && why[1].contains(&format!("{hip} is not installed")), "{why:?}");
        assert_eq!(why[1].contains("`make build-selftest install` builds it"), gone == "conformance", "{why:?}");
    }
}

#[test]
fn where_nothing_can_run_it_says_why() {
    let dir = dir();
    let lib = pretend(dir.path(), "echo 'conformance: no driver to ask: none' >&2; exit 2", "true", "");
    let (code, report, err) = selftest(dir.path(), &lib, &[], &[]);
    assert_eq!((code, &report["verdict"]), (2, &Value::from("could-not-run")), "{err}");
    assert_eq!(report["not_run"][0], "the CUDA driver: no driver to ask: none");
    assert!(report["not_run"][1].as_str().unwrap().starts_with("HIP: "), "{report:#}");
    assert!(report.get("put").is_none());
    // Without its programs.
    fs::remove_file(dir.path().join("differ")).unwrap();
    let mut command = gpumem();
    command.env("LD_LIBRARY_PATH", dir.path()).args(["selftest", "--lib", "/nowhere/libgpumem.so"]);
    let answer = answer(command);
    assert_eq!(answer.code, 2, "{}", answer.err);
}
