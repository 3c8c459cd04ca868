//! The ledger that a run left: its contents, and the views of `gpumem`.

use super::artifacts;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, Interception};
use gpumem_wire::layout::AllocSlot;
use gpumem_wire::location::Tally;
use gpumem_wire::place::ProcessId;
use gpumem_wire::read::{ReadError, Snapshot};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A ledger, read.
pub struct Ledger {
    pub path: PathBuf,
    pub id: ProcessId,
    pub snapshot: Snapshot,
}

/// A program's name for a kind, and the kinds of the ledger that it stands for.
const KINDS: &[(&str, &[AllocKind])] = &[
    ("device", &[AllocKind::Device, AllocKind::Pitch]),
    ("host", &[AllocKind::HostPinned]),
    ("registered", &[AllocKind::HostRegistered]),
    ("managed", &[AllocKind::Managed]),
    ("async", &[AllocKind::Async]),
    ("array", &[AllocKind::Array, AllocKind::MipmappedArray]),
    ("vmm", &[AllocKind::VmmPhysical]),
];

/// A program's name for a count, and the counters that it stands for.
const TOTALS: &[(&str, &[usize])] = &[
    ("graphs_created", &[counters::GRAPHS_CREATED]),
    ("graphs_destroyed", &[counters::GRAPHS_DESTROYED]),
    ("execs_created", &[counters::EXECS_CREATED]),
    ("execs_destroyed", &[counters::EXECS_DESTROYED]),
    ("graph_launches", &[counters::LAUNCHES]),
    ("exec_updates", &[counters::UPDATES]),
    ("exec_updates_failed", &[counters::UPDATE_FAILURES]),
    ("captures", &[counters::CAPTURES_ENDED, counters::CAPTURES_FAILED]),
];

/// The texts of the message events, the oldest first.
pub fn messages(snapshot: &Snapshot) -> Vec<String> {
    let messages = snapshot.events.iter().filter(|event| event.kind == EventKind::Message as u8);
    messages.map(|event| snapshot.text(event.text).into_owned()).collect()
}

impl Ledger {
    /// Reads a file.
    ///
    /// # Panics
    /// When it is not a ledger.
    #[track_caller]
    pub fn open(path: &Path) -> Self {
        Self::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn read(path: &Path) -> Result<Self, ReadError> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let id = ProcessId::from_ledger_name(name).unwrap_or(ProcessId { pid: 0, start_ticks: 0 });
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Ok(Self { path: path.to_owned(), id, snapshot: Snapshot::read(&file).expect("a readable file")? })
    }

    /// Every ledger in a directory; none if there is no directory.
    pub fn all(dir: &Path) -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "ledger")).map(|path| Self::open(&path)).collect()
    }

    /// The ledger of a process; none while it is being made.
    pub fn of_pid(dir: &Path, pid: u32) -> Option<Self> {
        Self::read(&Self::of_pid_unread(dir, pid)?).ok()
    }

    /// Returns the path of a process's ledger.
    pub fn of_pid_unread(dir: &Path, pid: u32) -> Option<PathBuf> {
        let entries = std::fs::read_dir(dir).ok()?;
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        paths.find(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            ProcessId::from_ledger_name(name).is_some_and(|id| id.pid == pid)
        })
    }

    pub fn counter(&self, index: usize) -> u64 {
        self.snapshot.counter(index)
    }

    /// Counted of these kinds, wherever their memory lies.
    fn sum(&self, kinds: &[AllocKind], of: fn(Tally) -> usize) -> u64 {
        Tally::all().filter(|tally| kinds.contains(&tally.kind)).map(|tally| self.counter(of(tally))).sum()
    }

    pub fn interception(&self) -> (Option<Interception>, String) {
        let header = &self.snapshot.header;
        let what = u8::try_from(header.interception).ok().and_then(Interception::from_u8);
        (what, self.snapshot.text(header.interception_reason).into_owned())
    }

    /// Texts of message events.
    pub fn messages(&self) -> Vec<String> {
        messages(&self.snapshot)
    }

    /// Asserts that every allocation and graph that the program counted was recorded, and no other.
    #[track_caller]
    pub fn agrees_with(&self, said: &Value) -> &Self {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        for (name, kinds) in KINDS {
            let kind = &said["kinds"][name];
            let recorded = |of| self.sum(kinds, of);
            assert_eq!(recorded(Tally::allocs), number(&kind["allocs"]), "allocations of {name} in {said}");
            assert_eq!(recorded(Tally::frees), number(&kind["frees"]), "frees of {name} in {said}");
            assert_eq!(recorded(Tally::alloc_bytes), number(&kind["bytes"]), "bytes of {name} in {said}");
        }
        for (name, indexes) in TOTALS {
            let recorded: u64 = indexes.iter().map(|&index| self.counter(index)).sum();
            assert_eq!(recorded, number(&said[name]), "{name} in {said}");
        }
        self.sound()
    }

    /// Asserts that nothing was lost, contained or torn, and that each counter is at least as large as those that it
    /// bounds.
    #[track_caller]
    pub fn sound(&self) -> &Self {
        for index in [counters::DROPPED_RECORDS, counters::PANICS, counters::UNKNOWN_FREES] {
            let name = counters::ALL.iter().find(|row| row.0 == index).map_or("", |row| row.1);
            assert_eq!(self.counter(index), 0, "{name}: {:?}", self.messages());
        }
        assert_eq!(self.snapshot.torn, 0, "torn slots");
        for tally in Tally::all() {
            let (made, ended) = (self.counter(tally.allocs()), self.counter(tally.frees()));
            assert!(ended <= made, "frees of {tally:?}");
            let bytes = (self.counter(tally.free_bytes()), self.counter(tally.alloc_bytes()));
            assert!(bytes.0 <= bytes.1, "freed bytes of {tally:?}");
            let counted = |alloc: &&AllocSlot| alloc.kind == tally.kind as u8 && alloc.space() == tally.space;
            let listed = self.snapshot.allocs.iter().filter(counted);
            let (count, sum) = listed.fold((0, 0), |(count, sum), alloc| (count + 1, sum + alloc.bytes));
            assert_eq!(count, made - ended, "listed {tally:?}");
            assert_eq!(sum, bytes.1 - bytes.0, "listed bytes of {tally:?}");
        }
        let ended = self.counter(counters::CAPTURES_ENDED) + self.counter(counters::CAPTURES_FAILED);
        assert!(ended <= self.counter(counters::CAPTURES_BEGUN), "{ended} captures ended");
        let graphs = self.counter(counters::GRAPHS_CREATED) - self.counter(counters::GRAPHS_DESTROYED);
        let execs = self.counter(counters::EXECS_CREATED) - self.counter(counters::EXECS_DESTROYED);
        assert_eq!((self.snapshot.graphs.len() as u64, self.snapshot.execs.len() as u64), (graphs, execs));
        self
    }

    /// Asserts that nothing is live but code, which few programs unload.
    #[track_caller]
    pub fn balanced(&self) -> &Self {
        let live = &self.snapshot;
        let left = live.allocs.iter().map(|alloc| (AllocKind::from_u8(alloc.kind), alloc.bytes));
        let left: Vec<_> = left.filter(|(kind, _)| *kind != Some(AllocKind::Code)).collect();
        assert_eq!(left, [], "allocations left");
        assert_eq!((live.graphs.len(), live.execs.len()), (0, 0), "graphs and execs left");
        for context in live.contexts.values() {
            assert_eq!(context.live_bytes, 0, "bytes live in context {:#x}", context.handle);
        }
        self
    }

    #[track_caller]
    pub fn complete(&self) -> &Self {
        assert_eq!(self.interception(), (Some(Interception::Complete), String::new()));
        self
    }

    /// Returns the answer of `gpumem COMMAND` about this file.
    #[track_caller]
    pub fn gpumem(&self, command: &str, args: &[&str]) -> Value {
        let path = self.path.to_str().expect("UTF-8");
        gpumem(self.path.parent().expect("a directory"), &[&[command, path], args].concat())
    }
}

/// Returns the answer of `gpumem ARGS --json`, which looks in this directory and nowhere else.
///
/// # Panics
/// If the command fails, or says anything but JSON.
#[track_caller]
pub fn gpumem(dir: &Path, args: &[&str]) -> Value {
    let output = run(dir, args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "gpumem {args:?}: {}: {err}", output.status);
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("gpumem {args:?}: {error}"));
    assert_eq!(value["schema_version"], 2);
    value
}

/// Returns the words of `gpumem ARGS` on stderr when it fails.
///
/// # Panics
/// If it does not fail.
#[track_caller]
pub fn refused(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert!(!output.status.success(), "gpumem {args:?} succeeds");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(&artifacts().gpumem);
    command.env_remove("LD_PRELOAD").env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command.env("GPUMEM_DIR", dir).args(args).arg("--json").output().expect("gpumem runs")
}
