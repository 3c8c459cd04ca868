//! The scripts of `tests/gpu` without a GPU. A stage whose build is not named is skipped, and a stage whose build does not
//! exist fails, each with one line. The loads over two servers run, with stand-ins for the servers.

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, Ran, artifacts, command};
use gpumem_tests::skipped::installed;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Scripts that take builds of other programs: their arguments, the name of what they need, and its variables.
const STAGES: [(&str, &[&str], &str, &[&str]); 12] = [
    ("sd", &["new"], "sd/new", &["SD_CLI"]),
    ("sd", &["old"], "sd/old", &["SD_CLI_OLD"]),
    ("servers", &["today"], "servers/today", &["LLAMA_SERVER", "LLAMA_MODEL"]),
    ("servers", &["ik"], "servers/ik", &["IK_SERVER", "LLAMA_MODEL"]),
    ("rpc", &[], "rpc/server", &["LLAMA_RPC", "LLAMA_SERVER", "LLAMA_MODEL"]),
    ("today", &[], "llama-today/programs", &["LLAMA_BIN", "LLAMA_MODEL"]),
    ("llama", &[], "llama/server", &["LLAMA_SERVER", "LLAMA_MODEL"]),
    ("flat", &["llama"], "flat/llama", &["LLAMA_SERVER", "LLAMA_MODEL"]),
    ("fix", &["llama"], "fix/llama", &["LLAMA_SERVER", "LLAMA_MODEL"]),
    ("transcript", &["llama"], "transcript/llama", &["LLAMA_SERVER", "LLAMA_MODEL"]),
    ("transcript", &["old"], "transcript/old", &["LLAMA_OLD_SERVER", "LLAMA_MODEL"]),
    ("report", &["llama"], "report/llama", &["LLAMA_SERVER", "LLAMA_MODEL"]),
];

/// Every variable that names a build.
const BUILDS: [&str; 15] = [
    "SD_CLI",
    "SD_CLI_OLD",
    "SD_MODEL",
    "LLAMA_SERVER",
    "LLAMA_OLD_SERVER",
    "LLAMA_OLD_MODEL",
    "LLAMA_MODEL",
    "LLAMA_BIN",
    "LLAMA_RPC",
    "LLAMA_BENCH",
    "STRANDED_MODEL",
    "IK_SERVER",
    "IK_MODEL",
    "GRAPHCHURN",
    "CUDA_SAMPLES",
];

/// A folder for what the scripts build, write and try.
struct Bench(Scratch);

impl Bench {
    /// `None`, and a line on stderr, if there is no Python.
    fn new() -> Option<Self> {
        installed("python3")?;
        let bench = Self(Scratch::new());
        for folder in ["out", "build", "work", "builds"] {
            fs::create_dir(bench.at(folder)).expect("a new folder");
        }
        Some(bench)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A program in the environment that `run.sh` gives a stage, without any build.
    fn program(&self, file: &str) -> Program {
        let program = BUILDS.iter().fold(command(file), |program, name| program.env(*name, ""));
        let set = [("OUT", "out"), ("BUILD", "build"), ("WORK", "work")];
        let program = set.iter().fold(program, |program, (name, folder)| program.env(*name, self.at(folder)));
        let program = program.env("GPUMEM_SO", &artifacts().shim).env("GPUMEM_CLI", &artifacts().gpumem);
        program.env("PYTHONDONTWRITEBYTECODE", "1").dir(self.at("ledgers"))
    }

    fn script(&self, name: &str) -> Program {
        self.program("python3").arg(repository().join("tests/gpu/stage.py")).arg(name)
    }

    /// A build of somebody's: a program of Python.
    fn build(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at("builds").join(name);
        fs::write(&path, format!("#!/usr/bin/env python3\n{text}")).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        path
    }
}

/// The lines that begin so. No run says where in Python something went wrong.
#[track_caller]
fn lines<'a>(ran: &'a Ran, begin: &str) -> Vec<&'a str> {
    assert!(!ran.out.contains("Traceback") && !ran.err.contains("Traceback"), "{}{}", ran.out, ran.err);
    ran.out.lines().filter(|line| line.starts_with(begin)).collect()
}

/// A variable that is not set skips the stage. A path that does not exist fails it, with one line that names both.
#[test]
fn a_build_that_is_not_there_is_one_line() {
    let Some(bench) = Bench::new() else { return };
    let model = bench.build("model.gguf", "");
    for (script, args, name, variables) in STAGES {
        let run = |program: Program| program.args(args.iter().copied()).native();
        let without = run(bench.script(script));
        let skipped = lines(&without, "skip");
        assert_eq!(
            (without.code, skipped.len(), lines(&without, "FAIL").len()),
            (0, 1, 0),
            "{script}: {}",
            without.out
        );
        assert!(skipped[0].starts_with(&format!("skip {name} set {}", variables[0])), "{}", skipped[0]);
        // All paths are named, and one of them is wrong.
        for wrong in variables {
            let nowhere = bench.at("nowhere");
            let named = |program: Program, variable: &&'static str| {
                program.env(*variable, if variable == wrong { &nowhere } else { &model })
            };
            let ran = run(variables.iter().fold(bench.script(script), named));
            let failed = lines(&ran, "FAIL");
            assert_eq!((ran.code, failed.len(), lines(&ran, "skip").len()), (1, 1, 0), "{script} {wrong}: {}", ran.out);
            let said = format!("FAIL {name} {wrong}: {} is not there", nowhere.display());
            assert_eq!(failed[0], said, "{script}");
            assert_eq!(ran.err, "", "{script} {wrong}");
        }
    }
}

/// The same by `run.sh`, as people call it, with a toolkit that has nothing to compile for these stages.
#[test]
fn run_sh_skips_and_fails_by_one_line_a_stage() {
    let Some(bench) = Bench::new() else { return };
    let toolkit = bench.at("toolkit");
    for folder in ["bin", "include", "lib64"] {
        fs::create_dir_all(toolkit.join(folder)).expect("a new folder");
    }
    fs::write(toolkit.join("include/cuda_runtime.h"), "").expect("a header");
    fs::write(toolkit.join("bin/nvcc"), "#!/bin/sh\nexit 1\n").expect("a compiler");
    fs::set_permissions(toolkit.join("bin/nvcc"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let stages = ["sd", "servers", "rpc", "llama-today", "llama", "churn", "pool-stranded", "pool-oom"];
    let run = |program: Program| program.env("CUDA_HOME", &toolkit).env("LLAMA_COUNTED", "0").args(stages).native();
    let sh = bench.program("bash").arg(repository().join("tests/gpu/run.sh"));
    let ran = run(sh.clone());
    // Two of sd, three of servers, one of each other.
    assert_eq!((ran.code, lines(&ran, "skip").len(), lines(&ran, "FAIL").len()), (0, 11, 0), "{}{}", ran.out, ran.err);
    let ran = run(BUILDS.iter().fold(sh, |sh, name| sh.env(*name, bench.at("nowhere"))));
    assert_eq!((ran.code, lines(&ran, "skip").len(), lines(&ran, "FAIL").len()), (1, 0, 11), "{}{}", ran.out, ran.err);
    assert!(lines(&ran, "FAIL").iter().all(|line| line.contains("is not there")), "{}", ran.out);
}

/// A stand-in for an rpc-server that accepts connections, and one for a llama-server that gives the same answer to the same
/// prompt, if its rpc-server answers and if nothing is preloaded into the llama-server.
const RPC_SERVER: &str = "
import socket, sys
listening = socket.create_server(('127.0.0.1', int(sys.argv[sys.argv.index('-p') + 1])))
while True:
    listening.accept()[0].close()
";
const LLAMA_SERVER: &str = "
import hashlib, http.server, json, os, socket, sys
rpc = sys.argv[sys.argv.index('--rpc') + 1] if '--rpc' in sys.argv else None
if rpc and (os.environ.get('LD_PRELOAD') or os.environ.get('CUDA_VISIBLE_DEVICES') != ''): sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, said):
        if rpc: socket.create_connection(rpc.split(':')).close()
        text = json.dumps(said).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        self.answer({'status': 'ok'})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.answer({'content': hashlib.sha256(asked['prompt'].encode()).hexdigest(), 'tokens_predicted': asked['n_predict']})
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[sys.argv.index('--port') + 1])), Handler).serve_forever()
";

/// The load over a native and a preloaded server: both give the same answers, and one line tells what is missing without a
/// GPU (no ledger, few samples).
#[test]
fn loads_over_two_servers_run() {
    let Some(bench) = Bench::new() else { return };
    let (rpc, server) = (bench.build("rpc-server", RPC_SERVER), bench.build("llama-server", LLAMA_SERVER));
    let model = bench.build("model.gguf", "");
    let named = |script: &str| bench.script(script).env("LLAMA_SERVER", &server).env("LLAMA_MODEL", &model);
    let seconds = |program: Program, variable: &str| program.env(variable, "2");
    let rpc_stage = seconds(named("rpc").env("LLAMA_RPC", &rpc), "RPC_SECONDS").native();
    let servers = seconds(named("servers").arg("today"), "SERVERS_SECONDS").native();
    for (ran, name) in [(rpc_stage, "rpc/server"), (servers, "servers/today")] {
        let failed = lines(&ran, "FAIL");
        assert_eq!((ran.code, failed.len()), (1, 1), "{}{}", ran.out, ran.err);
        assert!(failed[0].starts_with(&format!("FAIL {name} no ledger was left; only ")), "{}", failed[0]);
        let told = failed[0].split("no device memory was told; ").nth(1).unwrap_or_default();
        let words: Vec<&str> = told.split(' ').collect();
        let count = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        // N requests in 2 s, N with the same text in both
        assert!(count(0) > Some(0) && count(0) == count(5), "{told}");
    }
    let flat = seconds(named("flat").arg("llama").env("FLAT_REST", "0"), "FLAT_SECONDS").native();
    assert_eq!((flat.code, lines(&flat, "FAIL flat/llama only ").len()), (1, 1), "{}{}", flat.out, flat.err);
    let left =
        fs::read_dir("/proc").expect("proc").flatten().filter(|process| runs(&process.path(), &bench.at("builds")));
    assert_eq!(left.count(), 0, "a server was left");
}

/// The transcript of a C program, by `run.sh` and without a toolkit: what is typed and what is said is printed.
#[test]
fn a_transcript_is_printed_command_by_command() {
    let Some(bench) = Bench::new() else { return };
    let sh = bench.program("bash").arg(repository().join("tests/gpu/run.sh")).arg("transcript");
    let ran = sh.env("TRANSCRIPTS", "c").env("CUDA_HOME", "").native();
    let said = [
        "ok   transcript/c ",
        "    $ gpumem run -- ",
        "    grows steadily, +",
        "who    block leak.c",
        "← remember leak.c",
        " --by stack --sort growth\n    leak  pid ",
    ];
    said.iter().for_each(|words| assert!(ran.out.contains(words), "no {words:?}: {}{}", ran.out, ran.err));
    assert_eq!((ran.code, lines(&ran, "FAIL").len()), (0, 0), "{}{}", ran.out, ran.err);
}

/// A stand-in for PyTorch: what the programs print that import it. Its preloaded steps take twice as long.
const TORCH: &str = "
import json, os, sys
slow = 2 if os.environ.get('LD_PRELOAD') else 1
if sys.argv[0].endswith('compile_shapes.py'):
    for shape in range(1, 1 + int(sys.argv[sys.argv.index('--shapes') + 1])):
        print(json.dumps({'shape': shape, 'seconds': slow * shape, 'digest': 'one', 'rested': shape % 5 == 0}))
    for number in range(1, 1 + int(sys.argv[sys.argv.index('--rounds') + 1])):
        print(json.dumps({'round': number, 'us': slow * 100 * number, 'digest': 'one'}))
else:
    for step in range(20, 220, 20):
        print(json.dumps({'rank': 0, 'step': step, 'loss': 1.0, 'digest': str(step), 'ms': slow * step}))
sys.stdout.flush()
os._exit(0)
";

/// Training and `torch.compile` tell the ratio of each step to native's: its median and quartiles.
#[test]
fn programs_of_pytorch_tell_quartiles_of_ratios() {
    let Some(bench) = Bench::new() else { return };
    for package in ["torch", "triton"] {
        fs::create_dir(bench.at("builds").join(package)).expect("a new folder");
        bench.build(&format!("{package}/__init__.py"), TORCH);
    }
    let stage = bench.script("torch_programs").args(["train", "compile"]).env("PYTHONPATH", bench.at("builds"));
    let ran = stage.env("COMPILE_SHAPES", "8").env("COMPILE_ROUNDS", "5").env("TRAIN_SECONDS", "1").native();
    let rows = lines(&ran, "| PyTorch, training").len() + lines(&ran, "| torch.compile").len();
    // One of training, one of compilations and one of replays.
    let ratios = ran.out.matches("2.000 [2.000 … 2.000] ×").count();
    assert_eq!((rows, ratios), (2, 3), "{}{}", ran.out, ran.err);
}

/// Says of each program that it has an error, but of clean ones.
const MEMCHECK: &str = "
import subprocess, sys
words = sys.argv[1:]
log = words[words.index('--log-file') + 1]
program = next(at for at, word in enumerate(words) if word.endswith(('pool_guard', 'vectorAdd')))
subprocess.run(words[program:])
clean = 'clean' in words or words[program].endswith('vectorAdd')
open(log, 'w').write(f\"========= ERROR SUMMARY: {0 if clean else 2} errors\\n\")
";

/// The table of the guard is made, on the simulator and with a stand-in for memcheck: what is found, what cannot be, a clean
/// program, and one in the place of a sample of NVIDIA's; a second one, which does not run natively, is passed over.
#[test]
fn the_table_of_the_guard_is_made() {
    let Some(bench) = Bench::new() else { return };
    fs::create_dir(bench.at("build/guard")).expect("a new folder");
    let link = |program: &str, to: &str| {
        std::os::unix::fs::symlink(artifacts().programs.join(program), bench.at(to)).expect("a link");
    };
    link("pool_guard", "build/guard/pool_guard");
    link("basic", "builds/vectorAdd");
    bench.build("scan", "import sys; sys.exit(3)");
    let memcheck = bench.build("compute-sanitizer", MEMCHECK);
    let guard = || bench.script("guard").env("COMPUTE_SANITIZER", &memcheck).env("GUARD_BUGS", "over4 stale twice");
    let ran = guard().args(["bugs", "clean", "samples"]).env("GUARD_ROUNDS", "1").env("GUARD_SAMPLE_ROUNDS", "1");
    let ran = ran.env("CUDA_SAMPLES", bench.at("builds")).native();
    assert_eq!((ran.code, lines(&ran, "FAIL").len()), (0, 0), "{}{}", ran.out, ran.err);
    assert_eq!(lines(&ran, "skip guard/sample/scan natively status 3").len(), 1, "{}", ran.out);
    let rows: Vec<Vec<&str>> = lines(&ran, "| ").iter().map(|line| line.split(" | ").collect()).collect();
    let with = |guard: &str, memcheck: &str| rows.iter().filter(|row| row[2..4] == [guard, memcheck]).count();
    assert_eq!((with("finds", "finds"), with("cannot", "finds"), with("clean", "clean")), (2, 1, 6), "{}", ran.out);
    // A folder with none of the samples, and one that is not there.
    for (folder, said) in [("out", "none of vectorAdd, "), ("nowhere", "CUDA_SAMPLES: ")] {
        let ran = guard().arg("samples").env("CUDA_SAMPLES", bench.at(folder)).native();
        let failed = lines(&ran, &format!("FAIL guard/samples {said}")).len();
        assert_eq!((ran.code, failed), (1, 1), "{}{}", ran.out, ran.err);
    }
    // Where there is none its column says so.
    let none = bench.script("guard").arg("none").env("CUDA_HOME", bench.at("nowhere"));
    let ran = none.native();
    assert_eq!(
        (ran.code, lines(&ran, "skip guard/memcheck set COMPUTE_SANITIZER").len()),
        (0, 1),
        "{}{}",
        ran.out,
        ran.err
    );
}

/// Runs the script whose answers an owner sends of a machine with the GPU's memory in the machine's, or beside it. Here
/// it runs on the simulator, with the attributes of each machine. docs/pool.md has NVIDIA's statements about these
/// machines.
#[test]
fn whose_memory_it_is_is_told_on_each_kind_of_machine() {
    let Some(_) = installed("python3") else { return };
    let card = ("a card", vec![], false);
    let gh200 = ("GH200", vec![("SIM_PAGEABLE", "host")], false);
    let spark = ("DGX Spark", vec![("SIM_INTEGRATED", "1"), ("SIM_PAGEABLE", "host")], true);
    let jetson = ("Jetson", vec![("SIM_INTEGRATED", "1"), ("SIM_MANAGED", "exclusive")], true);
    let check = |(machine, setting, integrated): (&str, Vec<(&str, &str)>, bool)| {
        let bench = Bench::new().expect("Python is there");
        let run = bench.script("integrated").env("INTEGRATED_MIB", "64").env("SIM_DEVICE_MEM", "1G");
        let ran = run.envs(&setting).native();
        assert_eq!((ran.code, lines(&ran, "FAIL").len()), (0, 0), "{machine}: {}{}", ran.out, ran.err);
        assert_eq!(lines(&ran, "ok   integrated/").len(), 5, "{machine}: {}", ran.out);
        let (_, block) = ran.out.split_once("---- send from here\n").expect("a block");
        let (block, _) = block.split_once("---- to here").expect("its end");
        let block: serde_json::Value = serde_json::from_str(block).expect("JSON");
        // A quarter or a sixteenth of 1 GiB, of which more was freed.
        let kept = block["kept"].as_u64().expect("a number") >> 20;
        let expected = if integrated { 32..=64 } else { 100..=256 };
        assert!(expected.contains(&kept), "{machine}: {kept} MiB");
        assert_eq!(block["devices"][0]["integrated"], integrated, "{machine}");
        let asked = |id: &str| block["native"]["attributes"][id] == 1;
        let set = |name: &str, value: &str| setting.contains(&(name, value));
        assert_eq!((asked("18"), asked("100")), (integrated, set("SIM_PAGEABLE", "host")), "{machine}");
        assert_eq!(asked("89"), !set("SIM_MANAGED", "exclusive"), "{machine}");
    };
    // Each waits for most of its time.
    std::thread::scope(|scope| {
        for machine in [card, gh200, spark, jetson] {
            scope.spawn(|| check(machine));
        }
    });
}

/// Searches of programs that lost pointers, each program several times and some at the same time, on the simulator.
#[test]
fn programs_that_lost_pointers_are_searched_several_times() {
    let Some(bench) = Bench::new() else { return };
    fs::create_dir(bench.at("build/scan")).expect("a new folder");
    std::os::unix::fs::symlink(artifacts().programs.join("lost"), bench.at("build/scan/lost")).expect("a link");
    let ran = bench.script("scan").arg("lost").env("SCAN_SEEDS", "2").env("SCAN_TIMES", "2").env("SCAN_AT_ONCE", "2");
    let ran = ran.native();
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(lines(&ran, "ok   scan/lost 4 programs, 0 of ").len(), 1, "{}", ran.out);
    let results = fs::read_to_string(bench.at("out/results.jsonl")).expect("results");
    assert_eq!(results.lines().filter(|line| line.contains("\"name\": \"lost-")).count(), 4, "{results}");
}

/// True if a process runs a program of a folder.
fn runs(process: &Path, folder: &Path) -> bool {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(&*folder.to_string_lossy())
}
