//! The control thread: a heartbeat, samples over time, and sweeping up after dead processes. It
//! starts with the first context, blocks all signals, and never calls the driver.

use crate::clock;
use crate::registry::estimate::{EXEC_HOST_PER_NODE, GRAPH_HOST_PER_NODE};
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, Space};
use gpumem_wire::layout::SampleSlot;
use gpumem_wire::place::{self, ProcessId};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, SystemTime};

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Ledgers of dead processes that are kept for those who come to look.
const KEPT: usize = 8;

/// Starts the thread, once in a process.
pub fn start(shim: &'static Shim) {
    static STARTED_FOR: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    if STARTED_FOR.swap(pid, Relaxed) == pid {
        return;
    }
    let run = move || {
        if let Some(dir) = shim.ledger.path.parent() {
            sweep(dir);
        }
        loop {
            sample(shim);
            std::thread::sleep(PERIOD);
        }
    };
    // A new thread inherits the signal mask: the program's signals must not be delivered to ours.
    // SAFETY: fills and sets this thread's mask, and puts it back.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let _ = std::thread::Builder::new().name("gpumem".into()).stack_size(128 << 10).spawn(run);
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
}

/// Writes the totals of this moment.
fn sample(shim: &'static Shim) {
    let ledger = &shim.ledger;
    let live = |space: Space, up: fn(AllocKind) -> usize, down: fn(AllocKind) -> usize| {
        let kinds = AllocKind::ALL.iter().filter(|kind| kind.space() == space);
        kinds.fold(0_u64, |sum, &kind| {
            sum.wrapping_add(ledger.counter(up(kind))).wrapping_sub(ledger.counter(down(kind)))
        })
    };
    let bytes = |space| live(space, counters::alloc_bytes, counters::free_bytes);
    let allocs = AllocKind::ALL.iter().fold(0_u64, |sum, &kind| {
        sum.wrapping_add(ledger.counter(counters::allocs(kind))).wrapping_sub(ledger.counter(counters::frees(kind)))
    });
    let made = |up, down| ledger.counter(up).wrapping_sub(ledger.counter(down));
    let graphs_live = made(counters::GRAPHS_CREATED, counters::GRAPHS_DESTROYED);
    let execs_live = made(counters::EXECS_CREATED, counters::EXECS_DESTROYED);
    let nodes_each = ledger.counter(counters::NODES_INSTANTIATED).checked_div(ledger.counter(counters::EXECS_CREATED));
    let per_graph = nodes_each.unwrap_or(0);
    let now = clock::precise_ns();
    let slot = SampleSlot {
        time_ns: now,
        device_live: bytes(Space::Device),
        host_live: bytes(Space::Host),
        managed_live: bytes(Space::Managed),
        allocs_live: allocs,
        graphs_live,
        execs_live,
        graph_host_bytes: per_graph * (graphs_live * GRAPH_HOST_PER_NODE + execs_live * EXEC_HOST_PER_NODE),
        rss: rss(),
        device_used: shim.device_used(),
        ..Default::default()
    };
    ledger.samples.push(|seq| SampleSlot { seq, ..slot });
    ledger.header().heartbeat_ns().store(now, Relaxed);
}

/// Resident bytes of this process.
fn rss() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // SAFETY: a plain query.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// Removes ledgers of dead processes, all but the newest few.
fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut dead: Vec<(SystemTime, std::path::PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let id = ProcessId::from_ledger_name(entry.file_name().to_str()?)?;
            let what = entry.metadata().ok().filter(|what| what.is_file())?;
            (!is_alive(id)).then(|| (what.modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()))
        })
        .collect();
    dead.sort_unstable_by(|a, b| b.cmp(a));
    for (_, path) in dead.iter().skip(KEPT) {
        let _ = std::fs::remove_file(path);
    }
}

/// Whether the process that wrote a ledger is there; if that cannot be known, it is taken to be.
fn is_alive(id: ProcessId) -> bool {
    match std::fs::read_to_string(format!("/proc/{}/stat", id.pid)) {
        Ok(stat) => place::start_ticks(&stat).is_none_or(|start| start == id.start_ticks),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}
