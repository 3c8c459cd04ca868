//! Subjects of checks: this machine, a process, or a ledger. Reads whole ledgers: those of all processes share one
//! budget, a named one gets as much as it needs.

use crate::failure::{Failure, Result};
use crate::model::Ledger;
use crate::model::overview::Overview;
use crate::model::shared::{self, Shared};
use crate::model::suspects::{self, Suspects};
use crate::source::find::{FoundProcess, Survey};
use crate::source::liveness::Status;
use crate::source::nvml::Books;
use crate::source::process::{Mapped, Process};
use crate::source::world::World;
use crate::source::{budget, choose};
use gpumem_wire::read::Snapshot;
use gpumem_wire::settings::Settings;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// This machine and this shell.
pub(super) struct Machine<'a> {
    pub world: &'a World,
    pub survey: &'a Survey,
}

/// A running process without the shim.
pub(super) struct WithoutShim<'a> {
    pub world: &'a World,
    pub process: &'a Process,
}

/// State of a subject, as bits: a running process, the ledger of an ended one, a dump or a ledger elsewhere.
pub(super) const RUNNING: u8 = 1;
pub(super) const ENDED: u8 = 2;
pub(super) const FILE: u8 = 4;
pub(super) const EVERY: u8 = RUNNING | ENDED | FILE;
/// A running process with a control thread, and one whose mappings could be read.
pub(super) const ANSWERS: u8 = 8;
pub(super) const MAPPED: u8 = 16;

/// A process with the shim, or its ledger.
pub(super) struct Subject<'a> {
    pub pid: u32,
    pub name: String,
    pub summary: &'a Snapshot,
    pub status: &'a Status,
    pub is: u8,
    pub mapped: Mapped,
    /// Its ledger read as a whole, or the reason why it could not be read.
    pub whole: std::result::Result<Whole<'a>, &'a Failure>,
}

/// A ledger that was read as a whole, with data that several checks need.
pub(super) struct Whole<'a> {
    pub ledger: &'a Ledger,
    pub overview: Overview,
    pub settings: Settings,
    pub suspects: Suspects,
    /// Memory that it shares with other running processes.
    pub sharing: Shared,
}

impl<'a> Whole<'a> {
    fn of(ledger: &'a Ledger, sharing: Shared) -> Self {
        let (overview, suspects) = (Overview::of(ledger, &Books::closed()), suspects::find(ledger, None));
        Self { settings: ledger.settings().clone(), ledger, overview, suspects, sharing }
    }
}

impl<'a> Subject<'a> {
    /// Makes the subject of a process that was found, or its ledger; `read` reads the whole ledger.
    pub(super) fn found(
        world: &World,
        found: &FoundProcess,
        (summary, status): (&'a Snapshot, &'a Status),
        read: &'a Result<Ledger>,
        reading: &Reading,
    ) -> Self {
        let mapped = found.process.as_ref().filter(|_| status.running()).and_then(|its| its.mapped(world).ok());
        let answers = summary.header.heartbeat_ns != 0 && status.is_here() && read.is_ok();
        let bits =
            [(RUNNING, status.running()), (ENDED, !status.running()), (ANSWERS, answers), (MAPPED, mapped.is_some())];
        let sharing = |ledger: &Ledger| match status.running() && shared::is_shared(ledger) {
            true => shared::of(world, ledger, reading.others, |found| reading.read(world, found)),
            false => Shared::default(),
        };
        Self {
            pid: found.pid,
            name: found.name(),
            summary,
            status,
            is: bits.iter().filter(|(_, is)| *is).fold(0, |is, (bit, _)| is | bit),
            mapped: mapped.unwrap_or_default(),
            whole: read.as_ref().map(|ledger| Whole::of(ledger, sharing(ledger))),
        }
    }

    /// Makes the subject of a dump or a ledger elsewhere.
    pub(super) fn file(ledger: &'a Ledger) -> Self {
        Self {
            pid: ledger.pid(),
            name: ledger.name(),
            summary: &ledger.snapshot,
            status: &ledger.status,
            is: FILE,
            mapped: Mapped::default(),
            whole: Ok(Whole::of(ledger, Shared::default())),
        }
    }
}

/// A reader of whole ledgers.
pub(super) struct Reading<'a> {
    /// `None`: the process was named.
    of_all: Option<Spent>,
    others: &'a [FoundProcess],
}

struct Spent {
    begin: Instant,
    /// Time spent reading, without the checks.
    read: Cell<Duration>,
}

/// Longest wait for names, all ledgers together.
const NAMES_WITHIN: Duration = Duration::from_secs(20);

impl<'a> Reading<'a> {
    pub(super) fn of_all(others: &'a [FoundProcess]) -> Self {
        Self { of_all: Some(Spent { begin: Instant::now(), read: Cell::default() }), others }
    }

    pub(super) fn of_one(others: &'a [FoundProcess]) -> Self {
        Self { of_all: None, others }
    }

    pub(super) fn is_named(&self) -> bool {
        self.of_all.is_none()
    }

    /// Reads the ledger of a process that was found.
    ///
    /// # Errors
    /// Those of reading it; also if no time is left, or if it is larger than the whole budget.
    pub(super) fn read(&self, world: &World, found: &FoundProcess) -> Result<Ledger> {
        let Some(Spent { begin, read }) = &self.of_all else {
            return choose::read(world, found).map(|opened| Ledger::of(world, opened));
        };
        if read.get() >= budget::TIME {
            return Err(Failure::error(format!(
                "the other processes took all the time; gpumem doctor {} checks it alone",
                found.pid
            )));
        }
        let now = Instant::now();
        let opened = choose::read_within(world, found, budget::BYTES / 2);
        read.set(read.get() + now.elapsed());
        let mut ledger = Ledger::of(world, opened?);
        ledger.symbols.wait_at_most(NAMES_WITHIN.saturating_sub(begin.elapsed()));
        Ok(ledger)
    }
}
