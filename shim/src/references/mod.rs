//! Counts the process's words that refer to its live allocations, for `gpumem leaks --suspect`.
//!
//! It is never said that no word refers to a block, because the driver's own records hold the block's address too, and
//! lie among the program's words. So words are counted, and the inspector ranks the blocks.
//!
//! * [`targets`]: the allocations referred to. [`host`]: words of the process's memory. [`counted`]: words that count,
//!   apart from the driver's own. [`driver`]: patterns of the driver's words, in terms of [`tokens`]. [`known`]: learns
//!   them for each context, from blocks that the program never knows of ([`private`]). [`device`]: words of device
//!   memory, by its [`reading`]. The graph cache searches the nodes of graphs.
//! * This file: one search at a time, on its own thread, which ends in time and holds no lock. That thread also has the
//!   guard read what it watches (`gpumem check`).
//!
//! The program can observe nothing of a search but its time. Memory is read through the kernel, so memory that is
//! unmapped meanwhile causes no fault. The program may move its pointers meanwhile, so the inspector asks twice.

mod counted;
mod device;
mod driver;
mod host;
mod known;
mod private;
mod reading;
mod targets;
mod tokens;

use crate::graphs::memory_use;
use crate::guard;
use crate::process::clock;
use crate::process::descriptor::Descriptor;
use crate::process::own;
use crate::process::spawn::{Stack, spawn};
use crate::shim::Shim;
use gpumem_wire::references::{Place, References};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::{Duration, Instant};
use targets::Targets;

/// Stack of the searching thread.
const STACK: usize = 256 << 10;
/// Maximum time of a search, whatever is requested.
const LONGEST: Duration = Duration::from_secs(120);
/// Time that the asking client has to read some of the answer, and all of it. The process does not end before the
/// thread does.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(10);

/// The process that searches now, 0 if none. After a fork the child does not search.
static SEARCHING: AtomicU32 = AtomicU32::new(0);
/// True if the process is about to end.
static END: AtomicBool = AtomicBool::new(false);

/// True if a search is in progress in this process, on its own thread.
pub(crate) fn is_going_on() -> bool {
    SEARCHING.load(Acquire) == std::process::id()
}

/// Makes the search end soon.
pub(crate) fn end() {
    END.store(true, Relaxed);
}

/// The end of a search.
struct Limit {
    until: Instant,
    asker: Descriptor,
    is_over: bool,
}

impl Limit {
    /// Checks if the search has to end, and remembers it. Called for each piece of memory.
    fn check(&mut self) -> bool {
        self.is_over |= END.load(Relaxed) || Instant::now() >= self.until || has_hung_up(&self.asker);
        self.is_over
    }

    /// Returns the remaining time; zero if the search has to end.
    fn left(&mut self) -> Duration {
        if self.check() { Duration::ZERO } else { self.until.saturating_duration_since(Instant::now()) }
    }
}

/// Keeps another search from beginning while it lives.
struct Searching;

impl Searching {
    fn begin() -> Option<Self> {
        let (pid, other) = (std::process::id(), SEARCHING.load(Acquire));
        // Made only if it is ours: the drop of one that is not would end the other's search.
        (other != pid && SEARCHING.compare_exchange(other, pid, AcqRel, Relaxed).is_ok()).then(|| Self)
    }
}

impl Drop for Searching {
    fn drop(&mut self) {
        SEARCHING.store(0, Release);
    }
}

/// Target of a search.
#[derive(Clone, Copy)]
pub(crate) enum Look {
    /// Words that refer to allocations.
    References,
    /// Writes that the guard has to find.
    Guard,
}

/// Begins a search, which answers the asking client when it has ended.
///
/// # Errors
/// Why none begins.
pub(crate) fn begin(
    shim: &'static Shim,
    look: Look,
    longest: Duration,
    asker: UnixStream,
) -> Result<(), (UnixStream, String)> {
    let Some(searching) = Searching::begin() else {
        return Err((asker, "a search for references, or a check, is under way: ask again".into()));
    };
    END.store(false, Relaxed);
    let asker = Arc::new(asker);
    let for_thread = asker.clone();
    let started = spawn(Stack::Bytes(STACK), move || {
        // Lower priority than the program's own threads.
        // SAFETY: setpriority takes numbers; 0 is the calling thread, as Linux has it.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
        let Ok(descriptor) = for_thread.try_clone().map(|own| Descriptor::new(own.into())) else { return };
        drop(for_thread);
        let mut limit = Limit { until: Instant::now() + longest.min(LONGEST), asker: descriptor, is_over: false };
        let found = own::keeping(|| match look {
            Look::References => search(shim, &mut limit).text(),
            Look::Guard => match guard::check_all(shim, &mut || limit.left()) {
                Ok(text) => format!("ok {text}\n"),
                Err(why) => format!("error {why}\n"),
            },
        });
        // A client that has its answer may ask again at once.
        drop(searching);
        answer(&limit.asker, found.as_bytes(), PATIENCE_FOR_ALL);
    });
    match (started, Arc::try_unwrap(asker)) {
        (false, Ok(asker)) => Err((asker, "no thread could be started".into())),
        _ => Ok(()),
    }
}

fn search(shim: &'static Shim, limit: &mut Limit) -> References {
    let start = clock::precise_ns();
    let (patterns, why) = known::patterns(shim, limit);
    let targets = Targets::of(shim);
    let (host, mut seen) = counted::count(shim, &targets, &patterns, limit);
    let host_ns = clock::precise_ns() - start;
    let unread = memory_use::each_record(shim, |record| {
        for word in record.windows(8).filter_map(|bytes| bytes.first_chunk()) {
            if let Some(index) = targets.find(u64::from_le_bytes(*word)) {
                seen[index].add(Place::Graph, 1);
            }
        }
    });
    let device_start = clock::precise_ns();
    let device = device::count(shim, &targets, &mut seen, limit);
    let device_ns = clock::precise_ns() - device_start;
    let mut found = References::default();
    let mut fact = |name: &str, value: String| drop(found.facts.insert(name.into(), value));
    fact("pid", std::process::id().to_string());
    fact("allocs", seen.len().to_string());
    fact("host_ns", host_ns.to_string());
    fact("host_bytes", host.bytes.to_string());
    fact("host_words", host.words.to_string());
    fact("host_reserved_bytes", host.reserved.to_string());
    fact("graphs_unread", unread.to_string());
    fact("device_wanted", targets.on_device().to_string());
    fact("device_ns", device_ns.to_string());
    fact("device_bytes", device.bytes.to_string());
    fact("device_by_kernel", device.by_kernel.to_string());
    fact("device_launches", device.launches.to_string());
    fact("device_allocs", device.allocs.to_string());
    fact("device_gone", device.gone.to_string());
    if device.more_edges {
        fact("device_edges_incomplete", "true".into());
    }
    if let Some(why) = device.incomplete {
        fact("device_incomplete", why.into());
    }
    if let Some(why) = device.never {
        fact("device_never", why.into());
    }
    if let Some(why) = host.incomplete {
        fact("host_incomplete", why);
    }
    known::tell(&patterns, why, &mut fact);
    let serial = |index: u32| targets.all()[index as usize].serial;
    found.edges = device.edges.into_iter().map(|(from, to)| (serial(from), serial(to))).collect();
    found.allocs = targets.all().iter().map(|target| target.serial).zip(seen).collect();
    found
}

/// True if the client is gone, so that an answer would not be read.
fn has_hung_up(asker: &Descriptor) -> bool {
    let Some(fd) = asker.get() else { return true };
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: `poll` is a local, the one pollfd that the call is told of.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
}

/// Sends an answer, as long as it is read.
fn answer(asker: &Descriptor, mut bytes: &[u8], longest: Duration) {
    let until = Instant::now() + longest;
    while let Some(fd) = asker.get().filter(|_| !bytes.is_empty() && Instant::now() < until) {
        let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: `poll` is a local, the one pollfd that the call is told of. `bytes` is readable for its length.
        let sent = unsafe {
            if libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) <= 0 {
                return;
            }
            libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        match usize::try_from(sent) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// A refused request leaves the search in progress unchanged.
    #[test]
    fn one_search_goes_on_at_a_time_however_many_are_refused() {
        let first = Searching::begin().expect("nothing goes on");
        assert!((0..3).all(|_| Searching::begin().is_none()) && is_going_on());
        drop(first);
        assert!(!is_going_on() && Searching::begin().is_some());
    }

    /// The client reads in small pieces. Each makes room for another piece, so no single wait for room is too long.
    #[test]
    fn who_reads_slowly_is_not_answered_for_ever() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let reader = std::thread::spawn(move || {
            let (began, mut some, mut bytes) = (Instant::now(), [0; 4096], 0);
            while !seen.load(Relaxed) && began.elapsed() < Duration::from_secs(30) {
                bytes += client.read(&mut some).expect("an answer, or its end");
                std::thread::sleep(Duration::from_millis(2));
            }
            (seen.load(Relaxed), bytes)
        });
        answer(&Descriptor::new(server.into()), &vec![b'x'; 1 << 28], Duration::from_millis(200));
        is_over.store(true, Relaxed);
        let (ended, bytes) = reader.join().expect("it ends");
        assert!(ended, "it was answered for as long as it read: {bytes} bytes");
    }
}
