//! Names of call sites, looked up by another thread: a page never waits for one. Call sites without a name yet are
//! summed with the unnamed ones.

use super::Ledger;
use crate::source::find::FoundProcess;
use crate::source::open::{self, Owner};
use crate::source::process::{Process, Users};
use crate::source::world::World;
use crate::symbols::modules::Place;
use crate::symbols::{Known, Named, Symbols};
use gpumem_wire::layout::TableKind;
use gpumem_wire::read::Snapshot;
use rustc_hash::FxHashSet;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// Identity of a process, unique even if its pid is reused.
pub(crate) type Id = (u32, u64);

/// Returns the identity of the process of a ledger, whose number here is `pid`.
pub(crate) fn id(pid: u32, ledger: &Snapshot) -> Id {
    (pid, ledger.header.start_ticks ^ ledger.header.created_ns)
}

/// Addresses of a process to look up.
pub(crate) struct Job {
    pub id: Id,
    pub path: PathBuf,
    pub owner: Owner,
    pub process: Option<Process>,
    pub addresses: Vec<u64>,
}

/// Results of the thread.
type Found = (Id, Vec<Named>);

/// Names of the processes on the last page.
#[derive(Default)]
pub(crate) struct Names {
    known: HashMap<Id, OfProcess>,
    thread: Option<(Sender<Job>, Receiver<Found>)>,
}

#[derive(Default)]
struct OfProcess {
    known: Known,
    /// Addresses sent to the thread, each once.
    asked: FxHashSet<u64>,
    found: Vec<Named>,
    /// True if it is on the page being made.
    on_page: bool,
}

impl Names {
    /// Begins a page: takes the results since the last one.
    pub(crate) fn begin(&mut self) {
        let Some((_, from)) = &self.thread else { return };
        let found: Vec<Found> = from.try_iter().collect();
        found.into_iter().for_each(|(id, named)| self.keep_found(id, named));
    }

    /// Gives a ledger the known names; the ledger looks none up itself.
    pub(crate) fn give(&mut self, id: Id, ledger: &mut Ledger) {
        let of: &mut OfProcess = self.known.entry(id).or_default();
        ledger.symbols.put_off();
        ledger.symbols.begin_with(std::mem::take(&mut of.known));
        of.found.drain(..).for_each(|named| ledger.symbols.learn(&named));
    }

    /// Takes the known names back. `on_page`: the process is on the page being made.
    pub(crate) fn take(&mut self, id: Id, ledger: Ledger, on_page: bool) {
        if let Some(of) = self.known.get_mut(&id) {
            of.known = ledger.symbols.into_known();
            of.on_page |= on_page;
        }
    }

    /// Requests the wanted names that were not requested before.
    pub(crate) fn ask(&mut self, id: Id, world: &World, found: &FoundProcess, ledger: &Ledger) {
        let Some(of) = self.known.get_mut(&id) else { return };
        let wanted = ledger.symbols.wanted().into_iter();
        let addresses: Vec<u64> = wanted.filter(|&address| of.asked.insert(address)).collect();
        if addresses.is_empty() {
            return;
        }
        let (to, _) = self.thread.get_or_insert_with(|| {
            let (say, from) = mpsc::channel();
            (start(world, move |found| say.send(found).is_ok()), from)
        });
        let users = found.process.as_ref().map_or(Users::one(world.uid), |process| process.users);
        let owner = Owner::Only(found.at.as_ref().map_or(users, |at| Users::one(at.seen.owner)));
        let job = Job { id, path: ledger.path.clone(), owner, process: found.process.clone(), addresses };
        // Without the thread, addresses stay unnamed.
        let _ = to.send(job);
    }

    /// Waits for all names that a ledger wants, up to a time limit. False if some are still unknown.
    pub(crate) fn wait(
        &mut self,
        world: &World,
        id: Id,
        found: &FoundProcess,
        ledger: &Ledger,
        most: Duration,
    ) -> bool {
        let begin = Instant::now();
        while !ledger.symbols.wanted().is_empty() {
            self.ask(id, world, found, ledger);
            let (Some((_, from)), Some(left)) = (&self.thread, most.checked_sub(begin.elapsed())) else { return false };
            match from.recv_timeout(left) {
                Ok((of, named)) if of == id => named.iter().for_each(|named| ledger.symbols.learn(named)),
                Ok((of, named)) => self.keep_found(of, named),
                Err(_) => return false,
            }
        }
        true
    }

    fn keep_found(&mut self, id: Id, named: Vec<Named>) {
        if let Some(of) = self.known.get_mut(&id) {
            of.found.extend(named);
        }
    }

    /// Forgets a process.
    pub(crate) fn forget(&mut self, id: Id) {
        self.known.remove(&id);
    }

    /// Ends a page: forgets processes that were not on it.
    pub(crate) fn end_page(&mut self) {
        self.known.retain(|_, of| std::mem::take(&mut of.on_page));
    }
}

/// Starts the thread. `say` is given what it found, and returns false if nobody wants more.
pub(crate) fn start(world: &World, say: impl Fn(Found) -> bool + Send + 'static) -> Sender<Job> {
    let ((to, jobs), world) = (mpsc::channel(), world.clone());
    // Without the thread, addresses stay unnamed.
    let _ = std::thread::Builder::new().name("gpumem-names".into()).spawn(move || name_all(&world, &jobs, &say));
    to
}

/// Most processes for which the files that crashed a reader are remembered.
const MOST_REMEMBERED: usize = 400;
/// Addresses that are named between two reports of the thread.
const NAMED_AT_ONCE: usize = 16;

fn name_all(world: &World, jobs: &Receiver<Job>, say: &dyn Fn(Found) -> bool) {
    let mut remembered: HashMap<Id, Known> = HashMap::new();
    let answers = Rc::default();
    while let Ok(Job { id, path, owner, process, addresses }) = jobs.recv() {
        use TableKind::{Codes, Modules, Strings, Symbols as Carried};
        let wanted = |kind| matches!(kind, Strings | Modules | Codes | Carried);
        let Ok(snapshot) = open::snapshot(&path, owner, wanted) else { continue };
        let place = process.map_or(Place::here(), |process| Place::of(world, &process));
        let mut symbols = Symbols::new(&snapshot, place);
        symbols.in_background();
        symbols.share(&answers);
        symbols.begin_with(remembered.remove(&id).unwrap_or_default());
        for addresses in addresses.chunks(NAMED_AT_ONCE) {
            let named = addresses.iter().map(|&address| symbols.name_for_another(address)).collect();
            if !say((id, named)) {
                return;
            }
        }
        if remembered.len() >= MOST_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(id, symbols.into_known());
    }
}
