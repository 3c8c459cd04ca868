//! Ledgers made by hand, and running `gpumem` on them.
#![allow(dead_code)] // Each test binary uses its part.

pub mod cache;
pub mod growth;
pub mod opens;
pub mod otlp;
pub mod pool;
pub mod pprof;
pub mod recorded;
pub mod selftest;
#[path = "../../../tests/src/skipped.rs"]
pub mod skipped;
pub mod terminal;
pub mod web;

use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::*;
use gpumem_wire::layout::*;
use gpumem_wire::location::Location;
use gpumem_wire::place::{self, ProcessId};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

pub const MIB: u64 = 1 << 20;
pub const SECOND: u64 = 1_000_000_000;

/// Address of the pretended program's code.
pub const APP: u64 = 0x5000_0000_0000;
pub const CUDA: u64 = 0x7f00_0000_0000;

/// CLOCK_MONOTONIC, nanoseconds: the clock of every ledger.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local with room for the one timespec that clock_gettime writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// A directory of ledgers.
pub struct Dir(pub tempfile::TempDir);

pub fn dir() -> Dir {
    Dir(tempfile::Builder::new().prefix("gm-test").tempdir().unwrap())
}

impl Dir {
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Puts a ledger where the shim would.
    pub fn put(&self, id: ProcessId, composer: Composer) -> PathBuf {
        let path = self.path().join(id.ledger_name());
        std::fs::write(&path, composer.finish()).unwrap();
        path
    }

    /// `gpumem ARGS` looking here and nowhere else.
    pub fn gpumem(&self, args: &[&str]) -> Answer {
        let mut command = gpumem();
        command.env("GPUMEM_DIR", self.path()).args(args);
        answer(command)
    }

    pub fn ok(&self, args: &[&str]) -> String {
        let answer = self.gpumem(args);
        assert_eq!(answer.code, 0, "gpumem {args:?}: {}", answer.err);
        answer.out
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let out = self.ok(&[args, &["--json"]].concat());
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(value["schema_version"], 2);
        assert_eq!(value["command"], args[0]);
        value
    }
}

pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn gpumem() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
        command.env_remove(name);
    }
    command.env_remove("XDG_RUNTIME_DIR").env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

pub fn answer(mut command: Command) -> Answer {
    let Output { status, stdout, stderr } = command.output().unwrap();
    use std::os::unix::process::ExitStatusExt;
    Answer {
        code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// A library that does nothing, by the name of ours.
pub fn library(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("lib.c"), dir.join("libgpumem.so"));
    std::fs::write(&source, "int gpumem_test_library;\n").unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(cc).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(status.expect("a C compiler is needed").success());
    library
}

/// `gpumem run ARGS` with this library.
pub fn run(lib: &Path, args: &[&str]) -> Answer {
    let mut command = gpumem();
    command.env("GPUMEM_LIB", lib).arg("run").args(args);
    answer(command)
}

/// Text with runs of blanks as one, and no blanks at the ends: columns may move.
pub fn squeeze(text: &str) -> String {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n")
}

/// Start time of a running process.
pub fn start_ticks(pid: u32) -> u64 {
    // As gpumem reads it: qemu answers /proc/PID/stat itself, with another time.
    let stat = std::fs::read(format!("/proc/{pid}/task/{pid}/stat")).unwrap();
    // A process may be called what is no text.
    place::start_ticks(&stat).unwrap()
}

/// This test: a process that runs.
pub fn me() -> ProcessId {
    ProcessId { pid: std::process::id(), start_ticks: start_ticks(std::process::id()) }
}

/// A process that is gone.
pub fn gone() -> ProcessId {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    ProcessId { pid: child.id(), start_ticks: 1 }
}

/// A child that runs until it is dropped.
pub struct Sleeper(pub std::process::Child);

impl Sleeper {
    pub fn start() -> Self {
        Self(Command::new("sleep").arg("86400").spawn().unwrap())
    }

    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.0.id(), start_ticks: start_ticks(self.0.id()) }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The header of a ledger that this machine's shim would write, begun 100 s ago.
pub fn begin(id: ProcessId) -> Composer {
    let mut composer = Composer::new();
    let now = monotonic_ns();
    let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let exe = composer.text("/opt/demo/demo-server");
    let cmdline = composer.text("demo-server --port 80");
    let shim_version = composer.text("0.1.0");
    let settings = composer.text("GPUMEM_STACKS=32\nGPUMEM_EVENTS=4096");
    let header = &mut composer.header;
    (header.pid, header.start_ticks) = (id.pid, id.start_ticks);
    header.boot_id = place::boot_id(&boot_id).unwrap();
    header.created_ns = now.saturating_sub(100 * SECOND).max(1);
    header.created_real_ns = real - 100 * SECOND;
    header.state = State::Recording as u32;
    header.mode = Mode::Active as u32;
    header.interception = Interception::Complete as u32;
    header.driver_version = 13000;
    header.doors = Door::ProcAddress as u32 | Door::RuntimeExport as u32;
    header.stack_depth = 32;
    (header.exe, header.cmdline, header.shim_version, header.settings) = (exe, cmdline, shim_version, settings);
    composer
}

pub fn module(composer: &mut Composer, path: &str, start: u64, bytes: u64, bias: u64) {
    let path = composer.text(path);
    composer.slots([ModuleSlot { path, bias, start, end: start + bytes, first_ns: 1, ..Default::default() }]);
}

/// A ledger with a bit of everything: three allocations at two sites in one context, a graph with
/// an exec, one graph whose exec is left, events, samples, counters.
pub fn demo(id: ProcessId) -> Composer {
    let mut composer = begin(id);
    let t0 = composer.header.created_ns;
    let at = |seconds: u64| t0 + seconds * SECOND;
    module(&mut composer, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    module(&mut composer, "/usr/lib/libcudart.so.12", CUDA, 0x10_0000, CUDA);

    let name = composer.text("NVIDIA Test");
    composer.slots([ContextSlot {
        handle: 0xc0,
        name,
        time_ns: at(0),
        total_bytes: 1024 * MIB,
        baseline_used: 100 * MIB,
        uuid: *b"0123456789abcdef",
        vendor: Vendor::Cuda as u8,
        primary: 1,
        used_bytes: 300 * MIB,
        used_ns: at(100),
        live_bytes: 96 * MIB,
        peak_bytes: 128 * MIB,
        ..Default::default()
    }]);
    composer.slots([StreamSlot { handle: 0x51, time_ns: at(1), context: 1, ..Default::default() }]);

    // Innermost first: within the runtime, then the program.
    let stack = |allocs, alloc_bytes, graphs, execs| StackSlot {
        first_ns: at(1),
        hash: allocs,
        allocs,
        alloc_bytes,
        graphs,
        execs,
        ..Default::default()
    };
    composer.stack(0, stack(3, 128 * MIB, 0, 0), &[CUDA + 0x10, APP + 0x101, APP + 0x901]);
    composer.stack(1, stack(1, 32 * MIB, 0, 0), &[CUDA + 0x10, APP + 0x201, APP + 0x901]);
    composer.stack(2, stack(0, 0, 2, 2), &[CUDA + 0x20, APP + 0x301, APP + 0x901]);
    composer.stack(3, stack(5, 5 * MIB, 0, 0), &[CUDA + 0x10, APP + 0x401, APP + 0x901]);

    let tag = composer.text("weights");
    let alloc = |serial: u64, stack, mib: u64, kind: AllocKind| AllocSlot {
        stack,
        addr: 0x7000_0000_0000 + serial * 0x1000_0000,
        bytes: mib * MIB,
        time_ns: at(serial * 10),
        serial,
        tid: id.pid,
        context: 1,
        kind: kind as u8,
        location: Location::usual(kind).word(),
        ..Default::default()
    };
    composer.slots([
        AllocSlot { tag, ..alloc(1, 1, 64, AllocKind::Device) },
        alloc(2, 2, 32, AllocKind::Device),
        AllocSlot { flags: ALLOC_EXPORTED, ..alloc(3, 1, 16, AllocKind::HostPinned) },
        alloc(4, 0, 512, AllocKind::VmmReservation),
    ]);
    let graph = GraphSlot {
        stack: 3,
        handle: 0x9a0,
        time_ns: at(20),
        serial: 5,
        nodes: 7,
        host_bytes: 7 * 1024,
        tid: id.pid,
        context: 1,
        origin: GraphOrigin::Captured as u8,
        instantiates: 1,
        last_used_ns: at(21),
        ..Default::default()
    };
    composer.slots([graph]);
    let mut nodes = [0; 16];
    (nodes[NodeKind::Kernel as usize], nodes[NodeKind::Memcpy as usize]) = (6, 1);
    let exec = |serial, graph_serial| ExecSlot {
        stack: 3,
        handle: 0xe0 + serial,
        time_ns: at(21),
        serial,
        graph_serial,
        instantiate_ns: 2_000_000,
        host_bytes: 40 * 1024,
        device_bytes: MIB,
        flags: 9,
        tid: id.pid,
        context: 1,
        nodes_total: 7,
        nodes,
        launches: 11,
        last_launch_ns: at(90),
        updates: 3,
        failed_updates: 1,
        last_update_ns: at(80),
        node_sets: 2,
        ..Default::default()
    };
    composer.slots([exec(6, 5), exec(7, 99)]);

    let message = composer.text("the driver is newer than any tested");
    let event = |seq, kind: EventKind| EventSlot {
        kind: kind as u8,
        seq,
        time_ns: at(seq),
        tid: id.pid,
        context: 1,
        ..Default::default()
    };
    composer.slots([
        event(0, EventKind::ContextCreated),
        EventSlot { code: Severity::Warning as i32, text: message, ..event(1, EventKind::Message) },
        EventSlot { a: 999 * MIB, b: AllocKind::Device as u64, code: 2, stack: 1, ..event(2, EventKind::AllocFailed) },
        EventSlot { a: 6, code: 901, ..event(3, EventKind::CaptureFailed) },
    ]);
    let sample = |seq: u64| SampleSlot {
        seq,
        time_ns: at(seq * 50),
        device_live: (48 + 24 * seq) * MIB,
        host_live: 16 * MIB,
        allocs_live: 1 + seq,
        graphs_live: 1,
        execs_live: 2,
        graph_host_bytes: 87 * 1024,
        rss: (200 + 60 * seq) * MIB,
        device_used: 300 * MIB,
        ..Default::default()
    };
    composer.slots((0..3).map(sample));
    let thread = composer.text("main-thread");
    composer.slots([ThreadSlot { tid: id.pid, name: thread, time_ns: at(0), ..Default::default() }]);
    composer.words(TableKind::Counters, &counts());
    composer
}

/// Counters that agree with what [`demo`] lists.
fn counts() -> Vec<u64> {
    let mut shard = vec![0; counters::PER_SHARD];
    let mut kind = |kind, allocs, frees, bytes: u64, freed: u64| {
        shard[counters::allocs(kind)] = allocs;
        shard[counters::frees(kind)] = frees;
        shard[counters::alloc_bytes(kind)] = bytes * MIB;
        shard[counters::free_bytes(kind)] = freed * MIB;
    };
    kind(AllocKind::Device, 8, 6, 149, 53);
    kind(AllocKind::HostPinned, 1, 0, 16, 0);
    kind(AllocKind::VmmReservation, 1, 0, 512, 0);
    shard[counters::alloc_failures(AllocKind::Device)] = 1;
    let mut set = |index: usize, value| shard[index] = value;
    set(counters::GRAPHS_CREATED, 2);
    set(counters::GRAPHS_DESTROYED, 1);
    set(counters::EXECS_CREATED, 2);
    set(counters::INSTANTIATE_NS, 4_000_000);
    set(counters::LAUNCHES, 22);
    set(counters::UPDATES, 6);
    set(counters::UPDATE_FAILURES, 2);
    set(counters::CAPTURES_BEGUN, 2);
    shard
}
