//! Which words of the process refer to its live allocations, counted for `gpumem leaks --suspect`.
//!
//! That no word refers to a block is never said: the driver's own records have its address too, and lie where the
//! program's words lie. So words are counted, and the inspector ranks.
//!
//! * [`targets`]: what is referred to. [`host`]: words of the process's memory. [`driver`]: which of them are the
//!   driver's own. [`device`]: words of device memory. Nodes of graphs are looked through by the graph cache.
//! * This file: one search at a time, by a thread of its own, which ends in time and holds no lock.
//!
//! The program can observe nothing of it but time. Memory is read through the kernel, so that what is unmapped meanwhile
//! is no fault. The program moves its pointers meanwhile, which is why the inspector asks twice.

mod device;
mod driver;
mod host;
mod targets;

use crate::graphs;
use crate::pool::private;
use crate::process::clock;
use crate::process::descriptor::Descriptor;
use crate::process::spawn::spawn;
use crate::shim::Shim;
use driver::Patterns;
use gpumem_wire::references::{Place, References};
use once_cell::race::OnceBox;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::{Duration, Instant};
use targets::Targets;

/// The stack of the thread that looks.
const STACK: usize = 256 << 10;
/// A search takes no longer, whatever is asked for.
const LONGEST: Duration = Duration::from_secs(120);
/// How long whoever asked may take to read some of the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The process that searches now: after a fork the child does not. 0: none.
static SEARCHING: AtomicU32 = AtomicU32::new(0);
/// The process is about to end.
static END: AtomicBool = AtomicBool::new(false);

/// Whether a search goes on in this process, with a thread of its own.
pub fn is_going_on() -> bool {
    SEARCHING.load(Acquire) == std::process::id()
}

/// Has the search end soon.
pub fn end() {
    END.store(true, Relaxed);
}

/// Until when a search goes on.
struct Limit {
    until: Instant,
    asker: Descriptor,
    is_over: bool,
}

impl Limit {
    /// Whether it is to end: asked for each piece of memory.
    fn is_over(&mut self) -> bool {
        self.is_over |= END.load(Relaxed) || Instant::now() >= self.until || has_hung_up(&self.asker);
        self.is_over
    }
}

/// While it lives, no other search begins.
struct Searching;

impl Searching {
    fn begin() -> Option<Self> {
        let (pid, other) = (std::process::id(), SEARCHING.load(Acquire));
        (other != pid && SEARCHING.compare_exchange(other, pid, AcqRel, Relaxed).is_ok()).then_some(Self)
    }
}

impl Drop for Searching {
    fn drop(&mut self) {
        SEARCHING.store(0, Release);
    }
}

/// Begins a search, which answers whoever asked when it is over.
///
/// # Errors
/// Why none begins.
pub fn begin(shim: &'static Shim, longest: Duration, asker: UnixStream) -> Result<(), (UnixStream, String)> {
    let Some(searching) = Searching::begin() else {
        return Err((asker, "a search for references is under way: ask again".into()));
    };
    END.store(false, Relaxed);
    let asker = Arc::new(asker);
    let for_thread = asker.clone();
    let started = spawn(STACK, move || {
        // Out of the way of the program's own threads.
        // SAFETY: setpriority takes numbers; 0 is the calling thread, as Linux has it.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
        let Ok(descriptor) = for_thread.try_clone().map(|own| Descriptor::new(own.into())) else { return };
        drop(for_thread);
        let mut limit = Limit { until: Instant::now() + longest.min(LONGEST), asker: descriptor, is_over: false };
        let found = search(shim, &mut limit);
        // Whoever has the answer may ask again at once.
        drop(searching);
        answer(&limit.asker, found.text().as_bytes());
    });
    match (started, Arc::try_unwrap(asker)) {
        (false, Ok(asker)) => Err((asker, "no thread could be started".into())),
        _ => Ok(()),
    }
}

/// Sizes of the blocks that the driver's words are known by: the first half are parts of what the driver takes at a time.
const PRIVATE: [u64; 8] = [5 << 10, 17 << 9, 13 << 10, 33 << 9, 2 << 20, 4 << 20, 6 << 20, 10 << 20];

/// What the driver's words look like, once a process; the reason why that is not known.
fn patterns(shim: &'static Shim, limit: &mut Limit) -> Result<&'static Patterns, &'static str> {
    static KNOWN: OnceBox<Patterns> = OnceBox::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known);
    }
    let learned = private::with_private_blocks(shim, &PRIVATE, |blocks| {
        // The word behind a block is its end, and there another may begin.
        let with_end = |block: &Range<u64>| (block.start, block.end + 1, block.end);
        let targets = Targets::new(blocks.iter().map(with_end).collect());
        let ranges: Vec<_> = targets.all().map(|(start, _, end)| (start, end - start)).collect();
        let mut windows: Vec<_> = ranges.iter().map(|&range| (range, Vec::new())).collect();
        let found = host::look(shim, &targets, limit, |word| {
            windows[word.index].1.push(word.window());
            let before = word.index.checked_sub(1).filter(|&before| ranges[before].0 + ranges[before].1 == word.word);
            before.into_iter().for_each(|before| windows[before].1.push(word.window()));
        });
        // By size: the driver may place them in any order.
        windows.sort_unstable_by_key(|(range, _)| range.1);
        found.incomplete.is_none().then(|| Patterns::learn(&windows, PRIVATE.len() / 2))
    })?;
    let learned = learned.ok_or("there was no time to look at them")?;
    Ok(KNOWN.get_or_init(|| Box::new(learned)))
}

fn search(shim: &'static Shim, limit: &mut Limit) -> References {
    let start = clock::precise_ns();
    let unknown = Patterns::default();
    let (patterns, why) = match patterns(shim, limit) {
        Ok(patterns) => (patterns, None),
        Err(why) => (&unknown, Some(why)),
    };
    let targets = Targets::of(shim);
    let (host, mut seen) = host::count(shim, &targets, patterns, limit);
    let host_ns = clock::precise_ns() - start;
    let unread = graphs::each_record(shim, |record| {
        for word in record.windows(8).filter_map(|bytes| bytes.first_chunk()) {
            if let Some(index) = targets.find(u64::from_le_bytes(*word)) {
                seen[index].add(Place::Graph, 1);
            }
        }
    });
    let device_start = clock::precise_ns();
    let device = device::count(&targets, &mut seen, limit);
    let device_ns = clock::precise_ns() - device_start;
    let mut found = References::default();
    let mut fact = |name: &str, value: String| drop(found.facts.insert(name.into(), value));
    fact("pid", std::process::id().to_string());
    fact("allocs", targets.len().to_string());
    fact("host_ns", host_ns.to_string());
    fact("host_bytes", host.bytes.to_string());
    fact("host_words", host.words.to_string());
    fact("driver_patterns", patterns.len().to_string());
    fact("graphs_unread", unread.to_string());
    fact("device_wanted", targets.on_device().to_string());
    fact("device_ns", device_ns.to_string());
    fact("device_bytes", device.bytes.to_string());
    fact("device_allocs", device.allocs.to_string());
    if device.more_edges {
        fact("device_edges_incomplete", "true".into());
    }
    if let Some(why) = device.incomplete {
        fact("device_incomplete", why.into());
    }
    if let Some(why) = host.incomplete {
        fact("host_incomplete", why);
    }
    if let Some(why) = why {
        fact("driver_unknown", why.into());
    }
    let serials: Vec<u64> = targets.serials().collect();
    let serial = |index: u32| serials[index as usize];
    found.edges = device.edges.into_iter().map(|(from, to)| (serial(from), serial(to))).collect();
    found.allocs = serials.iter().copied().zip(seen).collect();
    found
}

/// Whether nobody is left who would read an answer.
fn has_hung_up(asker: &Descriptor) -> bool {
    let Some(fd) = asker.get() else { return true };
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: `poll` is a local, the one pollfd that the call is told of.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
}

/// Sends an answer, as long as it is read.
fn answer(asker: &Descriptor, mut bytes: &[u8]) {
    while let Some(fd) = asker.get().filter(|_| !bytes.is_empty()) {
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
