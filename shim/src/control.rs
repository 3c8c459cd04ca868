//! The control thread: a heartbeat, samples over time, commands of the inspector, timed release of memory.
//!
//! The thread starts with the first context, ends when no other thread is left, and blocks all signals. It calls the
//! driver only to free unneeded memory and execs of the pool and the graph cache.

mod growth;
mod parking;
mod proc_files;
mod set;
mod socket;

use crate::freed_graphs::FreedGraphs;
use crate::gate;
use crate::graphs;
use crate::pool;
use crate::process::lock::lock;
use crate::process::spawn::{Stack, spawn};
use crate::process::{clock, own};
use crate::records;
use crate::records::parking::is_quiet;
use crate::references::{self, Look};
use crate::share::idle::Idle;
use crate::shim::Shim;
use crate::stranded;
use gpumem_wire::command::Request;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, PoolState, Severity, Space, Vendor};
use gpumem_wire::layout::{ContextSlot, EventSlot, SampleSlot};
use gpumem_wire::location::Tally;
use growth::Growth;
use parking::Asker;
use proc_files::ProcFiles;
use set::{Changes, NO_POOL, nothing_is_kept};
use socket::{Reply, Socket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Stack of the control thread, bytes: the C library's usual size, since the process may end on this thread and then
/// runs its exit handlers there.
const STACK: usize = 8 << 20;
/// Stack of the control thread if the process has no room for [`STACK`].
const SMALL_STACK: usize = 256 << 10;

/// Starts the thread, once per process.
pub(crate) fn start(shim: &'static Shim) {
    static STARTED_FOR: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    if STARTED_FOR.swap(pid, Relaxed) == pid {
        return;
    }
    // SAFETY: zeroes are a valid sigset. The call only reads this thread's mask, because the new
    // mask is null.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
        mask
    };
    let Some(open) = OpenFiles::new(shim) else { return };
    let open = Arc::new(Mutex::new(Some(open)));
    let work = move || {
        let Some(open) = lock(&open).take() else { return };
        match catch_unwind(AssertUnwindSafe(|| run(shim, open))) {
            Ok(Ended::Last) => end(&mask),
            Ok(Ended::Early) => {}
            Err(_) => gate::stop(shim, "the control thread"),
        }
    };
    // A thread that was refused may be granted the next time. The smaller stack is for a process without room.
    let _ = spawn(Stack::Mapped(STACK), work.clone())
        || spawn(Stack::Mapped(STACK), work.clone())
        || spawn(Stack::Bytes(SMALL_STACK), work);
    // Handlers run in the opposite order of their registration, so this one runs before the library's own.
    // SAFETY: `at_exit` has the type that is asked for. It is code of this library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
}

/// Runs when the process is ending. Slow work is done before the library ends: from then on each call of the program
/// fails, and running threads have less time to act on that.
extern "C" fn at_exit() {
    gate::record_if_started(Shim::unreachable);
}

/// Marks that the control thread checks for calls of the group's other members, while it lives.
struct Listening(&'static Shim);

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(group) = &self.0.group {
            group.listens_no_more();
        }
    }
}

/// Reason why the control thread has ended.
enum Ended {
    /// No thread of the program is left.
    Last,
    /// The thread cannot tell if it is the last one. Without knowing it, the process could not end.
    Early,
}

/// The control thread's files and socket. The starting thread opens them, within a call of the program: opened by
/// another thread, each would briefly take the number that the program's next file should get.
struct OpenFiles {
    files: ProcFiles,
    socket: Option<Socket>,
}

impl OpenFiles {
    /// Opens them. Returns `None`, and reports it, if the thread could not tell that it is the last one: the process
    /// could not end.
    fn new(shim: &'static Shim) -> Option<Self> {
        let files = ProcFiles::open().inspect_err(|error| cannot_tell(shim, error)).ok()?;
        let socket = Socket::new(shim).inspect_err(|error| {
            let line = format!("no control socket ({error}): commands such as gpumem mark do not reach this process");
            shim.message(Severity::Warning, &line);
        });
        Some(Self { files, socket: socket.ok() })
    }
}

fn cannot_tell(shim: &'static Shim, error: &std::io::Error) {
    let line = format!("no control thread (/proc/self/stat: {error}): commands do not reach this process");
    shim.message(Severity::Warning, &line);
}

/// Runs until the process ends, or until all threads of the program have ended.
fn run(shim: &'static Shim, OpenFiles { mut files, socket }: OpenFiles) -> Ended {
    let _listening = Listening(shim);
    let mut changes = Changes::new();
    let mut asker = Asker::default();
    let mut growth = Growth::new(shim);
    let mut freed_graphs = FreedGraphs::new(shim);
    let mut idle = Idle::default();
    let mut next = Instant::now();
    // Not at once: a starting program may close descriptors and rely on the numbers that it gets.
    let mut sweeps_from = Some(next + PERIOD);
    loop {
        if Instant::now() >= next {
            match files.look_for_others(own::threads()) {
                Ok(false) => {}
                // Otherwise the searching thread would be the last one.
                Ok(true) if references::is_going_on() => references::end(),
                Ok(true) => return Ended::Last,
                Err(error) => {
                    cannot_tell(shim, &error);
                    return Ended::Early;
                }
            }
            asker.look(shim);
            if !is_quiet() {
                set::shorten_decay_beside_own_cache(shim, &mut changes);
                pool::housekeeping(shim);
                graphs::housekeeping();
                freed_graphs.look_if_due(shim);
                idle.look(shim);
            }
            sample(shim, files.resident());
            if sweeps_from.is_some_and(|from| Instant::now() >= from) && !shim.ledger.sweep() {
                sweeps_from = None;
            }
            next += PERIOD;
        }
        // The copy of the device's memory on the host is not the program's.
        let samples = growth.next().filter(|_| !is_quiet());
        if samples.is_some() {
            growth.sample_if_due(shim, &mut files);
        }
        let wait = samples
            .and(growth.next())
            .map_or(next, |sample| sample.min(next))
            .saturating_duration_since(Instant::now());
        // Another process may wait for what this one keeps.
        let wait = shim.group.as_ref().map_or(wait, |_| wait.min(pool::LISTENS_EVERY));
        match &socket {
            Some(socket) => {
                socket.serve(wait, |line| carry_out(shim, line, &mut changes, &mut asker, &mut growth, &mut files))
            }
            None => std::thread::sleep(wait),
        }
        pool::give_to_group(shim);
        growth.apply_settings(shim);
    }
}

/// Makes the process end as it would without this thread. The C library calls `exit(0)` on the last thread that ends.
/// That is this one, so it gets the program's signals. If another thread of ours waits in the driver for work that will
/// never end, this thread makes that call itself. `mask`: the signals that the program's threads block.
fn end(mask: &libc::sigset_t) {
    // SAFETY: `mask` is one that the C library filled in for `start`. The call changes this
    // thread's mask alone.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
    if own::threads() > 1 {
        // SAFETY: exit takes a number. No thread of the program is left that could also call it.
        unsafe { libc::exit(0) };
    }
}

/// Carries out a command line; returns the reply.
fn carry_out(
    shim: &'static Shim,
    line: &str,
    changes: &mut Changes,
    asker: &mut Asker,
    growth: &mut Growth,
    files: &mut ProcFiles,
) -> Reply {
    Reply::Line(match Request::parse(line) {
        Ok(Request::Ping) => format!("ok {}", env!("CARGO_PKG_VERSION")),
        Ok(Request::Mark(name)) => {
            let text = shim.ledger.texts.intern(name.as_bytes());
            shim.event(EventKind::Mark, EventSlot { text, ..Default::default() });
            // Growth since the mark is counted from what was live when the mark was set.
            if !is_quiet() {
                growth.sample(shim, files);
            }
            "ok".to_owned()
        }
        Ok(Request::Trim { press }) => answer_line(parking::may_call().and_then(|()| trim(shim, press))),
        Ok(Request::Set { name, value, force }) => answer_line(set::set(shim, &name, &value, force, changes)),
        Ok(Request::Off) => answer_line(set::off(shim, changes)),
        Ok(Request::Park) => answer_line(asker.park(shim)),
        Ok(Request::Parked { bytes }) => {
            asker.parked(shim, bytes);
            "ok".to_owned()
        }
        Ok(Request::Resumed) => {
            asker.resumed(shim);
            "ok".to_owned()
        }
        Ok(Request::Check { .. } | Request::References { .. }) if is_quiet() => {
            format!("error {}", parking::PARKED)
        }
        Ok(Request::Check { longest_ms }) => return later(shim, Look::Guard, longest_ms),
        Ok(Request::References { longest_ms }) => return later(shim, Look::References, longest_ms),
        Err(why) => format!("error {why}"),
    })
}

/// Starts a long task on its own thread, which answers.
fn later(shim: &'static Shim, look: Look, longest_ms: u64) -> Reply {
    let longest = Duration::from_millis(longest_ms);
    Reply::Later(Box::new(move |asker| references::begin(shim, look, longest, asker)))
}

/// Returns the reply line for an answer.
fn answer_line(answer: Result<String, String>) -> String {
    match answer {
        Ok(text) => format!("ok {text}"),
        Err(why) => format!("error {why}"),
    }
}

/// Frees what the pool keeps. With `press`, also makes the program free buffers it no longer uses.
fn trim(shim: &'static Shim, press: bool) -> Result<String, String> {
    let execs = graphs::trim();
    let given = match (nothing_is_kept(), execs) {
        (true, None) => return Err(NO_POOL.into()),
        (true, Some(execs)) => execs,
        (false, None) => pool::trim(shim),
        (false, Some(execs)) => format!("{}; {execs}", pool::trim(shim)),
    };
    if !press {
        return Ok(given);
    }
    match stranded::press_now(shim) {
        Ok(pressed) => Ok(format!("{given}; {pressed}")),
        Err(why) => Err(format!("{given}, and nothing is pressed: {why}")),
    }
}

/// Writes the present totals. `resident`: the bytes of the process, and those of them that belong to no file.
fn sample(shim: &'static Shim, (rss, rss_anon): (u64, u64)) {
    let ledger = &shim.ledger;
    // Shards are read one after another, so an end may be seen without its beginning.
    let made = |up, down| ledger.counter(up).saturating_sub(ledger.counter(down));
    let bytes = |space| Tally::all_in(space).map(|row| made(row.alloc_bytes(), row.free_bytes())).sum();
    let allocs = Tally::all_of_memory().map(|row| made(row.allocs(), row.frees())).sum();
    let now = clock::precise_ns();
    let slot = SampleSlot {
        time_ns: now,
        device_live: bytes(Space::Device),
        host_live: bytes(Space::Host),
        managed_live: bytes(Space::Managed),
        unknown_live: bytes(Space::Unknown),
        allocs_live: allocs,
        graphs_live: made(counters::GRAPHS_CREATED, counters::GRAPHS_DESTROYED),
        execs_live: made(counters::EXECS_CREATED, counters::EXECS_DESTROYED),
        graph_host_bytes: records::graphs::host_bytes(shim),
        rss,
        rss_anon,
        own: own::bytes(),
        device_used: records::driver_memory::device_used(shim),
        device_idle: idle(shim),
        ..Default::default()
    };
    ledger.samples.push(|seq| SampleSlot { seq, ..slot });
    pool_states(shim);
    ledger.header().heartbeat_ns().store(now, Relaxed);
}

/// Writes down for each context if the pool serves it, and if not, why.
fn pool_states(shim: &Shim) {
    let contexts = &shim.ledger.contexts;
    for slot in 0..contexts.handed_out() as u32 {
        let Some(context) = contexts.read(slot).filter(|context| context.gone_ns == 0) else { continue };
        let state = Vendor::from_u8(context.vendor).map_or(PoolState::Unused, |vendor| pool::state(shim, vendor));
        contexts.field(slot, std::mem::offset_of!(ContextSlot, pool_state)).store(state as u64, Relaxed);
    }
}

/// Returns the bytes that the pool keeps in all contexts.
fn idle(shim: &Shim) -> u64 {
    let contexts = &shim.ledger.contexts;
    let there = (0..contexts.handed_out() as u32).filter_map(|slot| contexts.read(slot));
    there.filter(|context| context.gone_ns == 0).map(|context| context.idle_bytes).sum()
}
