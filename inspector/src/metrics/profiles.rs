//! Profiles for stores that fetch them every few seconds, and the list of processes that have one.
//!
//! A store takes differences of memory ever allocated, stack by stack. So a stack must be written the same in each
//! answer, and none is written before its names are known: the first answers for a process are refusals, and later a
//! new stack is left out of these two sums for one answer. Live memory is no difference, and is always complete.

use super::pprof::Packer;
use super::{Detail, MEMORY_FACTOR, pprof};
use crate::model::Ledger;
use crate::model::names::{Id, Names, id};
use crate::source::budget::{self, Budget};
use crate::source::choose;
use crate::source::find::{self, Depth, FoundProcess, LedgerFile};
use crate::source::process::Process;
use crate::source::remembered::Remembered;
use crate::source::world::World;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Reasons for a missing profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// No such process runs under the shim.
    NotFound,
    /// The server's user may not read its ledger.
    Forbidden,
    /// The profile comes later, or the ledger is larger than the limit of one read.
    Unavailable,
}

/// The reason for a missing profile, with a line that explains it.
pub(crate) type Refusal = (Lack, String);

/// A target in the form of Prometheus' HTTP service discovery. Source:
/// <https://prometheus.io/docs/prometheus/latest/http_sd/>
#[derive(Serialize)]
struct ScrapeTarget<'a> {
    targets: [&'a str; 1],
    labels: BTreeMap<&'static str, String>,
}

/// A list of processes is used again for this long. A request for a process that is not in it makes a new list.
const LIST_FRESH: Duration = Duration::from_secs(5);
/// An answer is served again for this long, so that two stores cost no more than one.
const ANSWER_FRESH: Duration = Duration::from_secs(1);
/// Longest wait of an answer for names.
const NAMES_WITHIN: Duration = Duration::from_millis(40);
/// The first answers for a process are refused for at most this long for lack of names.
const REFUSES_WITHIN: Duration = Duration::from_secs(60);
/// Most processes in a list.
const MOST: usize = 1000;

/// The running processes at a time.
struct List {
    at: Instant,
    found: Vec<FoundProcess>,
    /// False if there was no time or memory to look at all ledgers.
    is_whole: bool,
    /// True until what is known of processes that are not in it was forgotten.
    is_new: bool,
}

/// Data kept from one request to the next.
#[derive(Default)]
pub(super) struct Profiles {
    list: Option<List>,
    remembered: Remembered,
    made: HashMap<u32, (Instant, Rc<[u8]>)>,
    /// The processes that were asked for: the time of the first request if none had a complete answer yet.
    began: HashMap<Id, Option<Instant>>,
}

/// True if a listed process still runs.
fn runs(world: &World, found: &FoundProcess) -> bool {
    let same =
        |process: &Process| Process::of(world, process.pid).is_some_and(|now| now.start_ticks == process.start_ticks);
    // Without a visible process the ledger decides.
    found.process.as_ref().is_none_or(same)
}

/// Lists the running processes. If not all could be looked at, those of the earlier list that still run are kept: a
/// collector takes a process that is missing for one that ended.
fn list_anew(world: &World, remembered: &mut Remembered, earlier: Vec<FoundProcess>) -> List {
    let budget = Budget::new(budget::BYTES / 2, budget::TIME / 2);
    let survey = find::survey_again(world, budget, remembered, Depth::Lists);
    let is_whole = survey.budget.left_out().is_none();
    let live = |found: &FoundProcess| found.is_live() || found.running().is_some();
    let mut found: Vec<_> = survey.found.into_iter().filter(live).collect();
    if !is_whole {
        let listed: HashSet<u32> = found.iter().filter(|found| found.is_live()).map(|found| found.pid).collect();
        let is_left_out = |found: &FoundProcess| {
            found.is_live() && found.process.is_some() && !listed.contains(&found.pid) && runs(world, found)
        };
        let kept: Vec<_> = earlier.into_iter().filter(is_left_out).collect();
        found.splice(..0, kept);
    }
    found.truncate(MOST);
    List { at: Instant::now(), found, is_whole, is_new: true }
}

impl Profiles {
    /// Returns the running processes, from a list no older than `fresh`.
    fn list(&mut self, world: &World, fresh: Duration) -> &List {
        let list = match self.list.take() {
            Some(list) if list.at.elapsed() < fresh => list,
            earlier => list_anew(world, &mut self.remembered, earlier.map(|list| list.found).unwrap_or_default()),
        };
        self.list.insert(list)
    }

    /// Returns all processes that have a profile, for a collector that knows the server as `host`.
    pub(super) fn targets(&mut self, world: &World, host: &str, https: bool) -> String {
        let target = |found: &FoundProcess| {
            let LedgerFile::Ledger { summary, .. } = &found.what else { return None };
            let mut labels = BTreeMap::from([
                ("__param_pid", found.pid.to_string()),
                ("pid", found.pid.to_string()),
                // Another process may get the pid later.
                ("start", summary.header.start_ticks.to_string()),
                ("service_name", found.name()),
            ]);
            if https {
                labels.insert("__scheme__", "https".into());
            }
            Some(ScrapeTarget { targets: [host], labels })
        };
        let all = self.list(world, ANSWER_FRESH).found.iter().filter(|found| found.is_live());
        serde_json::to_string(&all.filter_map(target).collect::<Vec<_>>()).unwrap_or_default()
    }

    /// Returns the pids of all processes that have a profile.
    pub(super) fn pids(&mut self, world: &World) -> Vec<u32> {
        let List { found, .. } = self.list(world, ANSWER_FRESH);
        found.iter().filter(|found| found.is_live()).map(|found| found.pid).collect()
    }

    /// Returns the profile of a process, compressed by gzip.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn of(
        &mut self,
        world: &World,
        pid: u32,
        detail: Detail,
        (names, packer): (&mut Names, &mut Packer),
    ) -> Result<Rc<[u8]>, Refusal> {
        self.made.retain(|_, (at, _)| at.elapsed() < ANSWER_FRESH);
        if let Some((_, made)) = self.made.get(&pid) {
            return Ok(Rc::clone(made));
        }
        let write = |_, ledger: &Ledger| pprof::packed(packer, ledger);
        let made = self.read(world, pid, detail, (names, NAMES_WITHIN), write)?;
        let made: Rc<[u8]> = made.map_err(|error| (Lack::Unavailable, format!("{error}\n")))?.into();
        self.made.insert(pid, (Instant::now(), Rc::clone(&made)));
        Ok(made)
    }

    /// Reads the ledger of a process and calls `then` with it once its names are known, for which it waits up to a time
    /// limit.
    ///
    /// # Errors
    /// Says why there is no profile.
    pub(super) fn read<T>(
        &mut self,
        world: &World,
        pid: u32,
        detail: Detail,
        (names, most): (&mut Names, Duration),
        then: impl FnOnce(Id, &Ledger) -> T,
    ) -> Result<T, Refusal> {
        let is = |found: &FoundProcess| found.pid == pid && found.is_live();
        let is_listed = self.list(world, LIST_FRESH).found.iter().any(is);
        self.forget_ended(names);
        let List { found: list, is_whole, .. } = self.list(world, if is_listed { LIST_FRESH } else { ANSWER_FRESH });
        let none = || (Lack::NotFound, format!("no process {pid} runs under gpumem; /targets lists those that do\n"));
        let Some(at) = list.iter().position(|found| is(found) && runs(world, found)) else {
            return Err(match list.iter().find(|found| found.pid == pid).map(|found| &found.what) {
                Some(LedgerFile::Unreadable { why, .. }) => (Lack::Forbidden, format!("{why}\n")),
                None if !is_whole => {
                    (Lack::Unavailable, "there are more processes and ledgers than could be looked at in time\n".into())
                }
                _ => none(),
            });
        };
        let found = &list[at];
        let opened = choose::read_within(world, found, budget::BYTES / MEMORY_FACTOR);
        let opened = opened.map_err(|why| (Lack::Unavailable, format!("{why}\n")))?;
        let mut ledger = Ledger::of(world, opened);
        if !ledger.status.running() {
            return Err(none());
        }
        let id = id(pid, &ledger.snapshot);
        let mut is_whole = true;
        if detail.symbols {
            names.begin();
            names.give(id, &mut ledger);
            pprof::want_names(&ledger);
            is_whole = names.wait(world, id, found, &ledger, most);
        } else {
            ledger.symbols.disable();
        }
        let began = self.began.entry(id).or_insert_with(|| Some(Instant::now()));
        let refuses = !is_whole && began.is_some_and(|began| began.elapsed() < REFUSES_WITHIN);
        let answer = match refuses {
            true => {
                let why = "the names of its functions are being looked up; the next answer has them\n";
                Err((Lack::Unavailable, why.into()))
            }
            false => {
                *began = None;
                Ok(then(id, &ledger))
            }
        };
        if detail.symbols {
            names.take(id, ledger, false);
        }
        answer
    }

    /// Forgets the processes that a new list no longer has, with their names.
    fn forget_ended(&mut self, names: &mut Names) {
        let Some(list) = self.list.as_mut().filter(|list| list.is_new) else { return };
        list.is_new = false;
        let of = |found: &FoundProcess| match &found.what {
            LedgerFile::Ledger { summary, .. } => Some(id(found.pid, summary)),
            _ => None,
        };
        let ids: HashSet<Id> = list.found.iter().filter_map(of).collect();
        self.began.retain(|id, _| {
            let stays = ids.contains(id);
            if !stays {
                names.forget(*id);
            }
            stays
        });
    }
}
