//! State of the process behind a ledger, and the time that its ages count from.

use super::process::Process;
use super::world::{World, monotonic_ns};
use gpumem_wire::kinds::Parking;
use gpumem_wire::layout::Header;
use gpumem_wire::read::Snapshot;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Life {
    /// The process runs and was found.
    Running,
    /// The process was stopped by a signal or by its tracer.
    Stopped,
    /// The process runs, and its device memory is on its way to the host.
    BeingParked,
    /// The process is there, its device memory is on the host, and its driver calls wait.
    Parked,
    /// Its control thread was alive a moment ago, in a pid namespace that cannot be seen from here.
    Elsewhere,
    /// The process exited and said so in its ledger.
    Exited,
    /// The process is gone and did not say so: SIGKILL, a crash, `_exit`, an out-of-memory kill.
    Killed,
    /// The process called `exec` and runs another program. Memory of the ledger's program was freed.
    Replaced,
    /// The file is a dump, made while the process ran or of the ledger it left.
    Dump,
}

impl Life {
    /// True if the program of the ledger has ended.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Exited | Self::Killed | Self::Replaced)
    }

    /// True if the process is there, and is found by its pid.
    pub(crate) fn is_here(self) -> bool {
        matches!(self, Self::Running | Self::Stopped | Self::BeingParked | Self::Parked)
    }
}

/// [`Life`] with the times that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub life: Life,
    /// Time that ages count from, on the ledger's clock: now, the last sign of life, or the time of the dump.
    pub now_ns: u64,
    /// Time since the process ended or was asked to be parked, or the age of the dump; 0 while it runs.
    pub ago_ns: u64,
    /// True if this machine has rebooted since.
    pub other_boot: bool,
}

/// A younger heartbeat means a living process, seen or not. The control thread beats every second.
const HEARTBEAT_FRESH_NS: u64 = 5_000_000_000;
/// So long after its last heartbeat the process may be stopped, or run another program: its mappings are read. A traced
/// process that stops for a moment at each system call counts as running.
const HEARTBEAT_LATE_NS: u64 = 2_000_000_000;

impl Status {
    /// Returns the status of a ledger, given the process of its name if that runs.
    pub(crate) fn of(world: &World, snapshot: &Snapshot, process: Option<&Process>) -> Self {
        let header = &snapshot.header;
        let other_boot = world.boot_id.is_some_and(|boot_id| boot_id != header.boot_id);
        let now = monotonic_ns();
        let last = match header.dumped_ns {
            0 => last_sign(snapshot),
            dumped_ns => dumped_ns,
        };
        let ago_ns = if other_boot { real_ago(header, last) } else { now.saturating_sub(last) };
        let gone = |life| Self { life, now_ns: last, ago_ns, other_boot };
        if header.dumped_ns != 0 {
            return gone(Life::Dump);
        }
        if header.exited_ns != 0 {
            return gone(Life::Exited);
        }
        if other_boot {
            return gone(Life::Killed);
        }
        let beats = header.heartbeat_ns != 0;
        let since_beat = now.saturating_sub(header.heartbeat_ns);
        let (fresh, late) = (beats && since_beat < HEARTBEAT_FRESH_NS, beats && since_beat > HEARTBEAT_LATE_NS);
        match process {
            Some(process) if late && process.is_another_program(world) => gone(Life::Replaced),
            Some(process) => {
                let (life, since) = match u8::try_from(header.parking).ok().and_then(Parking::from_u8) {
                    Some(Parking::Quiet) => (Life::BeingParked, header.parking_ns),
                    Some(Parking::Parked) => (Life::Parked, header.parking_ns),
                    Some(Parking::Running) | None if late && process.is_stopped => (Life::Stopped, now),
                    Some(Parking::Running) | None => (Life::Running, now),
                };
                Self { life, now_ns: now, ago_ns: now.saturating_sub(since), other_boot }
            }
            None if fresh && !visible(world, header) => {
                Self { life: Life::Elsewhere, now_ns: now, ago_ns: 0, other_boot }
            }
            None => gone(Life::Killed),
        }
    }

    /// True while records may still change.
    pub(crate) fn running(&self) -> bool {
        self.is_here() || self.life == Life::Elsewhere
    }

    /// True if the process is there, and is found by its pid.
    pub(crate) fn is_here(&self) -> bool {
        self.life.is_here()
    }

    /// True if its device memory is on the host.
    pub(crate) fn is_parked(&self) -> bool {
        self.life == Life::Parked
    }

    /// For people: "running", "exited 12 s ago". Neither the ledger nor the kernel tells a kill from `_exit`, by which
    /// workers of a server often end.
    pub(crate) fn text(&self) -> String {
        match self.life {
            Life::Killed => {
                let ago = crate::text::units::span(self.ago_ns);
                format!("ended without exit handlers (killed or _exit) {ago} ago")
            }
            _ => self.with(crate::text::units::span),
        }
    }

    /// As [`text`](Self::text), for a column: "killed/_exit 12 min ago".
    pub(crate) fn short(&self) -> String {
        self.with(crate::text::units::about)
    }

    /// Returns a time before [`now_ns`](Self::now_ns): "3.0 s ago", of a dead process "3.0 s before its end".
    pub(crate) fn ago(&self, ns: u64) -> String {
        let span = match self.life {
            // The last sign of life of a killed process is up to a second before its end.
            life if life.is_over() && ns < 1_000_000_000 => "less than a second".into(),
            _ => crate::text::units::span(ns),
        };
        format!("{span} {}", self.ago_words())
    }

    /// Returns the point in time that ages count from, in words.
    pub(crate) fn ago_words(&self) -> &'static str {
        match self.life {
            Life::Running | Life::Stopped | Life::BeingParked | Life::Parked | Life::Elsewhere => "ago",
            Life::Exited | Life::Killed | Life::Replaced => "before its end",
            Life::Dump => "before the dump",
        }
    }

    fn with(&self, span: fn(u64) -> String) -> String {
        match self.life {
            Life::Running => "running".into(),
            Life::Stopped => "stopped".into(),
            Life::BeingParked => format!("being parked for {}", span(self.ago_ns)),
            Life::Parked => format!("parked {} ago", span(self.ago_ns)),
            Life::Elsewhere => "running in another pid namespace".into(),
            Life::Exited => format!("exited {} ago", span(self.ago_ns)),
            Life::Killed => format!("killed/_exit {} ago", span(self.ago_ns)),
            Life::Replaced => format!("replaced by exec {} ago", span(self.ago_ns)),
            Life::Dump => format!("dumped {} ago", span(self.ago_ns)),
        }
    }
}

/// True if a running process with this header would be found, because it is in our pid namespace. A namespace of 0,
/// which the shim could not read, counts as ours.
fn visible(world: &World, header: &Header) -> bool {
    let ours = std::fs::metadata(world.proc.join("self/ns/pid")).map_or(0, |meta| meta.ino());
    header.pid_ns == 0 || header.pid_ns == ours
}

/// `PROC_PID_INIT_INO`: the root of all pid namespaces.
const FIRST: u64 = 0xefff_fffc;

/// True if every running process can be found, in any namespace.
pub(super) fn sees_all_namespaces(world: &World) -> bool {
    std::fs::metadata(world.proc.join("self/ns/pid")).is_ok_and(|meta| meta.ino() == FIRST)
}

/// Returns the newest time in a ledger.
fn last_sign(snapshot: &Snapshot) -> u64 {
    let header = &snapshot.header;
    let newest = |times: &mut dyn Iterator<Item = u64>| times.max().unwrap_or(0);
    [
        header.created_ns,
        header.heartbeat_ns,
        header.exited_ns,
        newest(&mut snapshot.allocs.iter().map(|alloc| alloc.time_ns)),
        newest(&mut snapshot.events.iter().map(|event| event.time_ns)),
        newest(&mut snapshot.samples.iter().map(|sample| sample.time_ns)),
        newest(&mut snapshot.growth.samples().iter().map(|sample| sample.time_ns)),
        newest(&mut snapshot.graphs.iter().map(|graph| graph.time_ns.max(graph.last_used_ns))),
        newest(&mut snapshot.execs.iter().map(|exec| exec.time_ns.max(exec.last_launch_ns).max(exec.last_update_ns))),
        newest(
            &mut snapshot.contexts.values().map(|context| context.time_ns.max(context.gone_ns).max(context.used_ns)),
        ),
    ]
    .into_iter()
    .max()
    .unwrap_or(0)
}

/// Returns the age of a time from another boot, by the wall clock.
fn real_ago(header: &Header, ns: u64) -> u64 {
    let real = header.created_real_ns.saturating_add(ns.saturating_sub(header.created_ns));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    now.saturating_sub(real)
}

/// Returns a ledger time as nanoseconds since 1970.
pub(crate) fn real_ns(header: &Header, ns: u64) -> u64 {
    if ns == 0 { 0 } else { header.created_real_ns.saturating_add(ns).saturating_sub(header.created_ns) }
}
