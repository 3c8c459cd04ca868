//! Reads whole ledgers: those of all processes share one budget, a named one gets as much as it needs.

use crate::failure::{Failure, Result};
use crate::model::Ledger;
use crate::source::budget;
use crate::source::choose;
use crate::source::find::FoundProcess;
use crate::source::world::World;
use std::cell::Cell;
use std::time::{Duration, Instant};

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

    /// Returns all processes found, including those that share memory with the subject.
    pub(super) fn others(&self) -> &'a [FoundProcess] {
        self.others
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
