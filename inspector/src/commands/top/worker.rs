//! The reading thread: keys never wait for a ledger or for names.
//!
//! It looks again after the interval, but takes at most a twenty-fifth of a core: it looks less often at a ledger of a
//! million rows. A second thread looks names up (see [`crate::symbols`]).

use super::look::{Ask, Look};
use super::tabs::{self, Memory};
use crate::args::Target;
use crate::model::Ledger;
use crate::model::names::{self, Job};
use crate::source::choose::{self, TargetRequest};
use crate::source::open::Owner;
use crate::source::world::{World, clock};
use crate::symbols::Named;
use crate::view::screen::Waker;
use rustc_hash::FxHashSet;
use rustix::time::ClockId;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

/// One of this many seconds of a core is used at most.
const SHARE: u32 = 25;
/// With more rows than this, looks have a minimum distance.
const MANY_ROWS: usize = 100_000;
const APART: Duration = Duration::from_secs(2);
/// Interval for an ended process. Its ledger no longer changes, but may be removed.
const ENDED: Duration = Duration::from_secs(5);
/// Longest delay until new names are shown.
const NAMES: Duration = Duration::from_millis(300);

/// Messages to the thread.
pub(super) enum ToWorker {
    Ask(Ask),
    Now,
    Named(u64, Vec<Named>),
}

/// Message from the thread: a look, or the reason why there is nothing to look at.
pub(super) type FromWorker = Result<Box<Look>, String>;

/// Handle of the thread.
pub(super) struct Worker {
    to: Sender<ToWorker>,
    from: Receiver<FromWorker>,
}

impl Worker {
    /// Starts the thread. It wakes the screen when it has a message.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn start(world: World, target: Target, waker: Waker) -> std::io::Result<Self> {
        let (to, told) = mpsc::channel();
        // If drawing is slow, the thread waits for it.
        let (say, from) = mpsc::sync_channel(4);
        let own = to.clone();
        let look = move || {
            let out = WorkerOut { say, waker };
            let mut reader = LedgerReader {
                world,
                target,
                own,
                names: None,
                asked: FxHashSet::default(),
                generation: 0,
                ledger: None,
                memory: Memory::default(),
                looked: None,
                due: None,
            };
            reader.run(&told, &out);
        };
        std::thread::Builder::new().name("gpumem-look".into()).spawn(look)?;
        Ok(Self { to, from })
    }

    pub(super) fn send(&self, message: ToWorker) {
        // `said` reports a thread that has ended.
        let _ = self.to.send(message);
    }

    /// Returns the next message, if there is one and the thread is not gone.
    pub(super) fn said(&self) -> Result<FromWorker, TryRecvError> {
        self.from.try_recv()
    }
}

/// Channel for the thread's messages, and for its end.
struct WorkerOut {
    say: SyncSender<FromWorker>,
    waker: Waker,
}

impl WorkerOut {
    /// False if the receiver is gone.
    fn say(&self, said: FromWorker) -> bool {
        let heard = self.say.send(said).is_ok();
        self.waker.wake();
        heard
    }
}

impl Drop for WorkerOut {
    fn drop(&mut self) {
        self.waker.wake();
    }
}

/// State of the thread.
struct LedgerReader {
    world: World,
    target: Target,
    own: Sender<ToWorker>,
    /// The thread that looks names up, the mappings it works on, and the addresses sent to it.
    names: Option<Sender<Job>>,
    asked: FxHashSet<u64>,
    generation: u64,
    ledger: Option<Ledger>,
    memory: Memory,
    /// Start time of the last look.
    looked: Option<Instant>,
    due: Option<Instant>,
}

impl LedgerReader {
    fn run(&mut self, told: &Receiver<ToWorker>, out: &WorkerOut) {
        let mut ask: Option<Ask> = None;
        loop {
            let paused = ask.as_ref().is_none_or(|ask| ask.paused);
            let wait = self.due.filter(|_| !paused).map(|due| due.saturating_duration_since(Instant::now()));
            let word = match wait
                .map_or_else(|| told.recv().map_err(|_| RecvTimeoutError::Disconnected), |wait| told.recv_timeout(wait))
            {
                Ok(word) => Some(word),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let heard = match word {
                Some(ToWorker::Ask(new)) => {
                    let again = self.changed(ask.as_ref(), &new);
                    let now = ask.insert(new);
                    self.look(now, again, out)
                }
                Some(ToWorker::Named(generation, named)) => {
                    self.learn(generation, &named);
                    true
                }
                Some(ToWorker::Now) | None => ask.as_ref().is_none_or(|ask| self.look(ask, true, out)),
            };
            if !heard {
                return;
            }
        }
    }

    /// True if the ledger must be read again for this request.
    fn changed(&mut self, before: Option<&Ask>, now: &Ask) -> bool {
        if before.is_none_or(|before| before.whom != now.whom) {
            (self.ledger, self.memory) = (None, Memory::default());
            return true;
        }
        let old = self.looked.is_none_or(|looked| looked.elapsed() > now.interval);
        self.ledger.is_none() || old && !now.paused
    }

    /// Looks and sends the result; false if the receiver is gone.
    fn look(&mut self, ask: &Ask, again: bool, out: &WorkerOut) -> bool {
        let (start, used) = (Instant::now(), clock(ClockId::ThreadCPUTime));
        self.looked = Some(start);
        let look = match &ask.whom {
            None => Ok(tabs::processes(&self.world, ask)),
            Some(path) => self.of_one(path, ask, again),
        };
        let rows = self.ledger.as_ref().map_or(0, |ledger| ledger.snapshot.allocs.len() + ledger.snapshot.execs.len());
        let running = self.ledger.as_ref().is_none_or(|ledger| ledger.status.running());
        let used = clock(ClockId::ThreadCPUTime).saturating_sub(used);
        tracing::debug!("a look took {} ms and {} ms of a core", start.elapsed().as_millis(), used.as_millis());
        let mut pace = ask.interval.max(used * SHARE);
        if rows > MANY_ROWS {
            pace = pace.max(APART);
        }
        if !running {
            pace = pace.max(ENDED);
        }
        self.due = Some(start + pace);
        if look.is_ok() {
            self.name(ask);
        }
        out.say(look.map(|look| Box::new(Look { pace, ..look })))
    }

    fn of_one(&mut self, path: &Path, ask: &Ask, again: bool) -> Result<Look, String> {
        if again || self.ledger.is_none() {
            self.read(path)?;
        }
        let ledger = self.ledger.as_ref().ok_or("there is no ledger")?;
        Ok(tabs::look(ledger, ask, &mut self.memory))
    }

    /// Reads the ledger, and takes over the known names.
    fn read(&mut self, path: &Path) -> Result<(), String> {
        let mut ledger = open(&self.world, path)?;
        ledger.stack = self.target.stack;
        match self.target.no_symbols {
            false => ledger.symbols.put_off(),
            true => ledger.symbols.disable(),
        }
        let same = self.ledger.take().is_some_and(|mut before| ledger.take_symbols_of(&mut before));
        if !same {
            self.generation += 1;
            self.asked.clear();
        }
        self.ledger = Some(ledger);
        Ok(())
    }

    /// Sends wanted names to the second thread.
    fn name(&mut self, ask: &Ask) {
        let Some((ledger, path)) = self.ledger.as_ref().zip(ask.whom.as_ref()) else { return };
        // Each once: naming may take longer than the interval.
        let wanted = ledger.symbols.wanted().into_iter();
        let addresses: Vec<u64> = wanted.filter(|&address| self.asked.insert(address)).collect();
        if addresses.is_empty() {
            return;
        }
        let (own, process) = (self.own.clone(), ledger.process.clone());
        let names = self.names.get_or_insert_with(|| {
            names::start(&self.world, move |((_, of), named)| own.send(ToWorker::Named(of, named)).is_ok())
        });
        let id = (0, self.generation);
        let _ = names.send(Job { id, path: path.clone(), owner: Owner::Anyone, process, addresses });
    }

    fn learn(&mut self, generation: u64, named: &[Named]) {
        let Some(ledger) = self.ledger.as_ref().filter(|_| generation == self.generation) else { return };
        named.iter().for_each(|named| ledger.symbols.learn(named));
        if let (Some(due), Some(looked)) = (self.due, self.looked) {
            self.due = Some(due.min(looked + NAMES));
        }
    }
}

fn open(world: &World, path: &Path) -> Result<Ledger, String> {
    let asked = TargetRequest { target: Some(path.as_os_str()), live: false, retype: &|pid| pid.to_string() };
    choose::ledger(world, &asked).map(|opened| Ledger::of(world, opened)).map_err(|failure| failure.what)
}
