//! The control thread: a heartbeat, samples over time, commands of the inspector. It starts with the first
//! context, ends when no other thread is left, blocks all signals, and calls the driver for one thing only: to
//! give back what the pool keeps idle, while its context is known to do nothing.

use crate::clock;
use crate::descriptor::Descriptor;
use crate::graphs::{self, cache::Bounds};
use crate::pool;
use crate::registry::estimate::{EXEC_HOST_PER_NODE, GRAPH_HOST_PER_NODE};
use crate::shim::Shim;
use crate::threads;
use gpumem_wire::command::{MAX_LINE, Request};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, PoolState, Severity, Space, Vendor};
use gpumem_wire::layout::{ContextSlot, SampleSlot};
use gpumem_wire::place::{self, LEDGER_SUFFIX, SOCKET_SUFFIX};
use gpumem_wire::settings::{self, Setting, Stranded, Value};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a client may take to say what it wants, all of it.
const PATIENCE: Duration = Duration::from_millis(200);

/// The stack of the thread that the process ends on: the C library's usual one, since exit handlers run there.
const LAST_STACK: usize = 8 << 20;

/// Starts the thread, once in a process.
pub fn start(shim: &'static Shim) {
    static STARTED_FOR: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    if STARTED_FOR.swap(pid, Relaxed) == pid {
        return;
    }
    // SAFETY: fills in this thread's mask.
    let mask = unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
        mask
    };
    drop(spawn(move || run(shim, mask)));
}

/// A thread of ours. It blocks all signals: the program's must not be delivered to it.
pub fn spawn<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> Option<std::thread::JoinHandle<R>> {
    // A new thread inherits the signal mask.
    // SAFETY: fills and sets this thread's mask, and puts it back.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let thread = std::thread::Builder::new().name("gpumem".into()).stack_size(256 << 10).spawn(f);
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        thread.ok()
    }
}

/// Runs until the process ends, or until no other thread is left. `mask`: what the program's threads block.
fn run(shim: &'static Shim, mask: libc::sigset_t) {
    let listener = match listen(shim) {
        Ok(listener) => Some(listener),
        Err(error) => {
            let line = format!("no control socket ({error}): commands such as gpumem mark do not reach this process");
            shim.message(Severity::Warning, &line);
            None
        }
    };
    let mut changes = Changes::new();
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next {
            if is_last() {
                return end(mask);
            }
            pool::decay::tick(shim);
            sample(shim);
            next += PERIOD;
        }
        let wait = next.saturating_duration_since(Instant::now());
        match &listener {
            Some(listener) => serve(shim, listener, wait, &mut changes),
            None => std::thread::sleep(wait),
        }
    }
}

/// Whether this thread is the only one left: main has ended, as a zombie that the kernel keeps, and so have all
/// others. Those that a driver keeps count.
fn is_last() -> bool {
    // The command, which is in it, need not be UTF-8.
    let stat = std::fs::read("/proc/self/stat").unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // The state, and 17 fields on the number of threads (proc(5)).
    let mut fields = place::stat_fields(&stat);
    fields.next() == Some("Z") && fields.nth(16) == Some("2")
}

/// Whether the kernel has a thread of this process still.
fn is_known(tid: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) == 0 }
}

/// Has the process end as it would without this thread: the C library calls `exit(0)` on the last thread that
/// ends. That is one more of ours, with the program's signals and a stack for its exit handlers.
fn end(mask: libc::sigset_t) {
    let ours = threads::os_id() as u32;
    let last = move || {
        while is_known(ours) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: sets this thread's mask, to one that the C library has filled in.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) };
    };
    // Without it this thread is the last.
    drop(std::thread::Builder::new().name("gpumem".into()).stack_size(LAST_STACK).spawn(last));
}

/// Where the control socket of this process is.
pub fn socket_path(shim: &Shim) -> PathBuf {
    let ledger = shim.ledger.path.to_string_lossy();
    PathBuf::from(format!("{}{SOCKET_SUFFIX}", ledger.trim_end_matches(LEDGER_SUFFIX)))
}

fn listen(shim: &Shim) -> std::io::Result<Descriptor> {
    let path = socket_path(shim);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    // The directory keeps others out; where the user named one that does not, the mode does.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(Descriptor::new(listener.into()))
}

/// Waits for a client, for at most `wait`, and does what it asks.
fn serve(shim: &'static Shim, listener: &Descriptor, wait: Duration, changes: &mut Changes) {
    let Some(fd) = listener.get() else {
        // The program closed what it did not open: samples are all that is left to do.
        return std::thread::sleep(wait);
    };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&mut poll, 1, wait.as_millis().min(1000) as i32 + 1) };
    if ready <= 0 || listener.get().is_none() {
        return;
    }
    // SAFETY: borrowed for this function; the descriptor stays open.
    let listener = std::mem::ManuallyDrop::new(unsafe { UnixListener::from_raw_fd(fd) });
    match listener.accept() {
        Ok((client, _)) => drop(answer(shim, client, changes)),
        Err(_) => std::thread::sleep(PATIENCE),
    }
}

fn answer(shim: &'static Shim, mut client: UnixStream, changes: &mut Changes) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let deadline = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_LINE {
        let left = deadline.saturating_duration_since(Instant::now());
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        if left.is_zero() || client.read(&mut byte)? != 1 || byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    let reply = match Request::parse(&String::from_utf8_lossy(&line)) {
        _ if !same_user(&client) => "error this process belongs to another user".to_owned(),
        Ok(Request::Ping) => format!("ok {}", env!("CARGO_PKG_VERSION")),
        Ok(Request::Mark(name)) => {
            let text = shim.ledger.texts.intern(name.as_bytes());
            shim.event(EventKind::Mark, |event| event.text = text);
            "ok".to_owned()
        }
        Ok(Request::Trim { press }) => said(trim(shim, press)),
        Ok(Request::Set(name, value)) => said(set(shim, &name, &value, changes)),
        Err(why) => format!("error {why}"),
    };
    client.write_all(format!("{reply}\n").as_bytes())
}

/// A reply out of an answer.
fn said(answer: Result<String, String>) -> String {
    match answer {
        Ok(text) => format!("ok {text}"),
        Err(why) => format!("error {why}"),
    }
}

/// Gives back what the pool keeps; with `press`, has the program give back what it strands, too.
fn trim(shim: &'static Shim, press: bool) -> Result<String, String> {
    if nothing_is_kept() {
        return Err(NO_POOL.into());
    }
    let given = pool::decay::trim(shim);
    if !press {
        return Ok(given);
    }
    match shim.press_now() {
        Ok(pressed) => Ok(format!("{given}; {pressed}")),
        Err(why) => Err(format!("{given}, and nothing is pressed: {why}")),
    }
}

/// Variables that were changed since the start, by name, and to what.
type Changes = BTreeMap<&'static str, String>;

/// Changes a variable while the process runs, and writes down that it did.
fn set(shim: &'static Shim, name: &str, value: &str, changes: &mut Changes) -> Result<String, String> {
    let (setting, new) = settings::change(name, value)?;
    let value = if new.is_none() { "default" } else { value.trim() };
    let said = change(shim, setting, new)?;
    changes.insert(setting.name, value.to_owned());
    let lines: Vec<String> = changes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let header = shim.ledger.header();
    header.changes().store(shim.ledger.texts.intern(lines.join("\n").as_bytes()), Relaxed);
    shim.message(Severity::Info, &format!("gpumem set {}={value}", setting.name));
    Ok(said)
}

/// Puts a new value in force. `None`: it is unset from now on.
///
/// # Errors
/// Why it cannot be.
fn change(shim: &'static Shim, setting: &'static Setting, value: Option<Value>) -> Result<String, String> {
    let number = match value {
        Some(Value::Number(number)) => Some(number),
        Some(Value::Choice(choice)) if setting.name == "GPUMEM_STRANDED" => {
            shim.stranded.set_mode(Stranded::VALUES.get(choice).copied().unwrap_or_default());
            return Ok(String::new());
        }
        _ => None,
    };
    match (setting.name, number) {
        ("GPUMEM_GRAPH_CACHE", Some(0)) => Err("the graph cache cannot be turned off while the process runs".into()),
        ("GPUMEM_GRAPH_CACHE", Some(count)) => graph_bound(|bounds| &bounds.count, count),
        ("GPUMEM_GRAPH_CACHE_BYTES", Some(bytes)) => graph_bound(|bounds| &bounds.bytes, bytes),
        ("GPUMEM_GRAPH_IDLE", Some(idle)) => graph_bound(|bounds| &bounds.idle_ns, idle),
        ("GPUMEM_POOL_MAX" | "GPUMEM_POOL_DECAY", _) if nothing_is_kept() => Err(NO_POOL.into()),
        ("GPUMEM_POOL_MAX", max) => of_pools(|pool| pool.set_max(max)),
        ("GPUMEM_POOL_DECAY", Some(decay)) => of_pools(|pool| pool.decay_ns.store(decay, Relaxed)),
        ("GPUMEM_LIMIT", limit) => of_pools(|pool| pool.set_limit(limit.unwrap_or(0))),
        (name, _) => Err(format!("{name} is read once, when the process starts")),
    }
}

/// Why there is nothing to do.
const NO_POOL: &str = "the pool is off, or was not needed so far";

/// Whether no pool keeps anything; one that is off may be there for the limit.
fn nothing_is_kept() -> bool {
    pool::all().all(pool::Pool::is_closed)
}

/// Changes what pools go by from now on.
fn of_pools(change: impl Fn(&pool::Pool)) -> Result<String, String> {
    let mut changed = Err(NO_POOL.into());
    for pool in pool::all() {
        change(pool);
        changed = Ok(String::new());
    }
    changed
}

/// Changes a bound of the graph cache; the next launches go by it.
fn graph_bound(which: fn(&Bounds) -> &AtomicU64, value: u64) -> Result<String, String> {
    let caches: Vec<_> = [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(graphs::cache).collect();
    caches.iter().for_each(|cache| which(&cache.bounds).store(value, Relaxed));
    if caches.is_empty() { Err("the graph cache is off, or was not needed so far".into()) } else { Ok(String::new()) }
}

/// Whether a client runs as this process's user, or as root.
fn same_user(client: &UnixStream) -> bool {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: fills the struct; geteuid has no failure.
    unsafe {
        let fd = client.as_raw_fd();
        let known = libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &mut len) == 0;
        known && (who.uid == 0 || who.uid == libc::geteuid())
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
        device_idle: idle(shim),
        ..Default::default()
    };
    ledger.samples.push(|seq| SampleSlot { seq, ..slot });
    pool_states(shim);
    ledger.header().heartbeat_ns().store(now, Relaxed);
}

/// Writes down of each context whether the pool serves it, and why not.
fn pool_states(shim: &Shim) {
    let contexts = &shim.ledger.contexts;
    for slot in 0..contexts.handed_out() as u32 {
        let Some(context) = contexts.read(slot).filter(|context| context.gone_ns == 0) else { continue };
        let state = Vendor::from_u8(context.vendor).map_or(PoolState::Unused, |vendor| pool::state(shim, vendor));
        contexts.field(slot, std::mem::offset_of!(ContextSlot, pool_state)).store(state as u64, Relaxed);
    }
}

/// What the pool keeps in all contexts.
fn idle(shim: &Shim) -> u64 {
    let contexts = &shim.ledger.contexts;
    let there = (0..contexts.handed_out() as u32).filter_map(|slot| contexts.read(slot));
    there.filter(|context| context.gone_ns == 0).map(|context| context.idle_bytes).sum()
}

/// Resident bytes of this process.
fn rss() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // SAFETY: a plain query.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}
