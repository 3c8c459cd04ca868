//! Metrics and profiles for collectors: `gpumem serve` offers them over HTTP, `gpumem export` writes them to files.
//!
//! * [`table`]: every metric with its name, type and meaning. docs/metrics.md is made from it.
//! * [`page`]: samples of metrics, and their two formats.
//! * [`of_process`], [`of_device`]: the samples of one process, and those of its devices.
//! * [`pprof`]: a profile of one process. [`profiles`]: profiles over HTTP, and the list of processes that have one.
//! * [`otlp`]: the same profile as a request to a receiver of OTLP.
//! * [`holders`]: the largest call sites and tags, with the rest summed.

mod holders;
mod of_device;
mod of_process;
pub(crate) mod otlp;
mod page;
pub(crate) mod pprof;
mod profiles;
pub(crate) mod table;

use otlp::Pushed;
pub(crate) use page::{Format, Page};
pub(crate) use profiles::{Lack, Refusal};

use crate::model::Ledger;
use crate::model::names::{self, Names};
use crate::parking::share;
use crate::source::budget::{self, Budget};
use crate::source::choose::{self, Opened};
use crate::source::find::{self, Depth, FoundProcess, LedgerFile};
use crate::source::nvml::Books;
use crate::source::remembered::Remembered;
use crate::source::world::World;
use gpumem_wire::location::Tally;
use pprof::Packer;
use profiles::Profiles;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::{Duration, Instant};
use table as t;

/// Amount of detail for each process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    /// Number of call sites and of tags that are named; the others are summed.
    pub top: usize,
    /// Names of functions instead of modules and offsets.
    pub symbols: bool,
}

/// Default number of call sites and of tags that are named.
pub(crate) const TOP: usize = 10;

/// Processes that are listed one by one, most memory first. Each has a few hundred series.
const MOST_PROCESSES: usize = 200;

/// A process is listed for this long after its end: longer than a collector's interval. If a process dies of a failed
/// allocation, no other tool reports it.
const ENDED_WITHIN_NS: u64 = 300_000_000_000;

/// Ended processes that are listed, the last ones first.
const MOST_ENDED: usize = 20;

/// Memory for reading a ledger, for each byte of its tables.
const MEMORY_FACTOR: u64 = 2;

/// Most bytes of a ledger that are read for its counters.
const MOST_OF_SUMMARY: u64 = budget::BYTES / 8;

/// Longest wait for names, all processes together.
const NAMES_WITHIN: Duration = Duration::from_secs(20);

/// Answers one collector after another, and keeps data for the next answer.
pub(crate) struct Collector {
    world: World,
    detail: Detail,
    names: Names,
    remembered: Remembered,
    profiles: Profiles,
    pushed: Pushed,
    packer: Packer,
}

impl Collector {
    pub(crate) fn new(world: World, detail: Detail) -> Self {
        Self {
            world,
            detail,
            names: Names::default(),
            remembered: Remembered::default(),
            profiles: Profiles::default(),
            pushed: Pushed::default(),
            packer: Packer::default(),
        }
    }

    /// Returns the page of all running processes.
    pub(crate) fn page(&mut self) -> Page {
        made(&self.world, self.detail, &mut self.remembered, Some(&mut self.names))
    }

    /// Returns the processes that have a profile, as JSON, for a collector that knows the server as `host`.
    pub(crate) fn targets(&mut self, host: &str, https: bool) -> String {
        self.profiles.targets(&self.world, host, https)
    }

    /// Returns the profile of a process, packed by gzip.
    ///
    /// # Errors
    /// Says why there is none.
    pub(crate) fn profile(&mut self, pid: u32) -> Result<Rc<[u8]>, Refusal> {
        self.profiles.of(&self.world, pid, self.detail, (&mut self.names, &mut self.packer))
    }

    /// Begins a round of pushes: returns the pids of all processes that have a profile.
    pub(crate) fn begin_round(&mut self) -> Vec<u32> {
        let pids = self.profiles.pids(&self.world);
        self.pushed.keep(&pids);
        pids
    }

    /// Returns the profile of a process as a request of OTLP, packed by gzip, if there is anything to push. It waits for
    /// no name: the next request has it.
    pub(crate) fn otlp_request(&mut self, pid: u32) -> Option<Vec<u8>> {
        let Self { world, detail, names, profiles, pushed, packer, .. } = self;
        let then = |id, ledger: &Ledger| pushed.request(world, id, ledger, packer);
        profiles.read(world, pid, *detail, (names, Duration::ZERO), then).ok()?
    }
}

/// Returns the page of all running processes. This thread looks names up: a person waits, for no longer than one process
/// may take.
pub(crate) fn of_all(world: &World, detail: Detail) -> Page {
    made(world, detail, &mut Remembered::default(), None)
}

/// As [`of_all`]. With `names`, another thread looks names up for the next pages.
fn made(world: &World, detail: Detail, remembered: &mut Remembered, mut names: Option<&mut Names>) -> Page {
    let begin = Instant::now();
    let mut page = Page::default();
    let books = Books::default();
    let budget = Budget::new(budget::BYTES / 2, budget::TIME / 2);
    let survey = find::survey_again(world, budget, remembered, Depth::Headers);
    of_survey(&mut page, &survey.found, survey.warnings.len());
    of_services(&mut page, world);
    if let Some(names) = &mut names {
        names.begin();
    }
    let mut live: Vec<&FoundProcess> = survey.found.iter().filter(|found| found.is_live()).collect();
    let is_crowded = live.len() > MOST_PROCESSES;
    // A pid belongs to the visible process that has it, if any.
    live.sort_by_cached_key(|found| {
        let summary = if is_crowded && begin.elapsed() < budget::TIME { summary(world, found) } else { None };
        (found.process.is_none(), Reverse(summary.map_or(0, |summary| live_bytes(&summary))))
    });
    let mut left_out = live.len().saturating_sub(MOST_PROCESSES);
    let mut pids = HashSet::new();
    let most = (budget::BYTES / 2 + survey.budget.bytes()) / MEMORY_FACTOR;
    for found in live.into_iter().take(MOST_PROCESSES) {
        // In a pid namespace that cannot be seen from here, the pid may belong to another process.
        if !pids.insert(found.pid) {
            continue;
        }
        let most = if begin.elapsed() < budget::TIME { most } else { 0 };
        match choose::read_within(world, found, most) {
            Ok(opened) => {
                let mut ledger = Ledger::of(world, opened);
                ledger.symbols.wait_at_most(NAMES_WITHIN.saturating_sub(begin.elapsed()));
                of_found(&mut page, world, found, (ledger, &books), detail, names.as_deref_mut());
            }
            // A process that ends meanwhile is left out.
            Err(_) if found.process.is_none() => {}
            Err(_) => {
                left_out += 1;
                if let Some(summary) = summary(world, found) {
                    of_process::add_counters(&mut page, &summary);
                }
            }
        }
    }
    if let Some(names) = names {
        names.end_page();
    }
    page.add(&t::PROCESSES_LEFT_OUT, &[], left_out as f64);
    of_ended(&mut page, world, &survey.found, &mut pids);
    page.add(&t::COLLECT_SECONDS, &[], begin.elapsed().as_secs_f64());
    page
}

fn of_found(
    page: &mut Page,
    world: &World,
    found: &FoundProcess,
    (mut ledger, books): (Ledger, &Books),
    detail: Detail,
    naming: Option<&mut Names>,
) {
    let id = names::id(found.pid, &ledger.snapshot);
    match naming {
        _ if !detail.symbols => ledger.symbols.disable(),
        Some(names) => {
            names.give(id, &mut ledger);
            of_process::add(page, world, &ledger, books, detail.top);
            names.ask(id, world, found, &ledger);
            return names.take(id, ledger, true);
        }
        None => {}
    }
    of_process::add(page, world, &ledger, books, detail.top);
}

/// Returns a process's counters, without its call sites. The survey did not read those of a running process.
fn summary(world: &World, found: &FoundProcess) -> Option<Ledger> {
    let opened = match &found.what {
        LedgerFile::Ledger { path, summary, .. } if found.running().is_none() => {
            Opened { snapshot: (**summary).clone(), path: path.clone(), process: None }
        }
        _ => choose::read_tables(world, found, find::for_lists, MOST_OF_SUMMARY).ok()?,
    };
    Some(Ledger::of(world, opened))
}

/// Adds the counters of processes that ended a moment ago. A pid that a living process has now belongs to that process.
fn of_ended(page: &mut Page, world: &World, found: &[FoundProcess], pids: &mut HashSet<u32>) {
    let at_hand = found.iter().filter(|found| found.running().is_some()).map(|found| found.pid);
    pids.extend(at_hand);
    let just_ended = |found: &&FoundProcess| {
        let ended = found.status().filter(|status| status.life.is_over());
        ended.is_some_and(|status| !status.other_boot && status.ago_ns < ENDED_WITHIN_NS)
    };
    let mut ended: Vec<&FoundProcess> = found.iter().filter(just_ended).collect();
    ended.sort_by_key(|found| found.status().map_or(u64::MAX, |status| status.ago_ns));
    for found in ended.into_iter().filter(|found| pids.insert(found.pid)).take(MOST_ENDED) {
        if let Some(summary) = summary(world, found) {
            of_process::add_counters(page, &summary);
        }
    }
}

/// Returns the page of one process.
pub(crate) fn of_one(world: &World, ledger: &Ledger, top: usize) -> Page {
    let mut page = Page::default();
    of_process::add(&mut page, world, ledger, &Books::default(), top);
    page
}

/// Adds the number of processes in each state.
fn of_survey(page: &mut Page, found: &[FoundProcess], warnings: usize) {
    page.add(&t::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let state = |found: &&FoundProcess| match &found.what {
        LedgerFile::Ledger { .. } if found.is_live() => Some("running"),
        LedgerFile::NoLedger { mapped, .. } if mapped.driver => Some("unseen"),
        LedgerFile::NoLedger { .. } => Some("no-gpu-call"),
        LedgerFile::Unreadable { .. } if found.process.is_some() => Some("unreadable"),
        _ => None,
    };
    for name in ["running", "no-gpu-call", "unseen", "unreadable"] {
        let n = found.iter().filter(|found| state(found) == Some(name)).count();
        page.add(&t::PROCESSES, &[("status", name)], n as f64);
    }
    page.add(&t::WARNINGS, &[], warnings as f64);
    for found in found.iter().filter(|found| matches!(state(found), Some("unseen" | "unreadable"))) {
        page.whose(found.pid, &found.name());
        page.add(&t::UP, &[], 0.0);
    }
    page.nobodys();
}

/// Adds what the services of `gpumem share` have done.
fn of_services(page: &mut Page, world: &World) {
    for counts in share::counts(world) {
        let name = ("name", counts.name.as_str());
        page.add(&t::SHARE_PARKS, &[name], counts.parks as f64);
        page.add(&t::SHARE_RESUMES, &[name], counts.resumes as f64);
        page.add(&t::SHARE_MOVED_BYTES, &[name, ("to", "host")], counts.parked_bytes as f64);
        page.add(&t::SHARE_MOVED_BYTES, &[name, ("to", "card")], counts.resumed_bytes as f64);
        page.add(&t::SHARE_MOVE_SECONDS, &[name], counts.park_seconds + counts.resume_seconds);
        page.add(&t::SHARE_FAILED, &[name], counts.failed as f64);
        page.add(&t::SHARE_GRANTED, &[name], counts.granted as f64);
        page.add(&t::SHARE_REFUSED, &[name], counts.refused as f64);
        page.add(&t::SHARE_WAIT_SECONDS, &[name], counts.waited_seconds);
    }
}

/// Returns the live bytes of all kinds that take memory.
fn live_bytes(ledger: &Ledger) -> u64 {
    let counter = |index| ledger.snapshot.counter(index);
    Tally::all_of_memory().fold(0, |sum: u64, row| {
        sum.saturating_add(counter(row.alloc_bytes()).saturating_sub(counter(row.free_bytes())))
    })
}
