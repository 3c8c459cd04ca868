//! Reading whole ledgers: all that are found share what a look may take, one that was named has what it needs.

use crate::failure::{Failure, Result};
use crate::model::Ledger;
use crate::source::budget;
use crate::source::choose;
use crate::source::find::FoundProcess;
use crate::source::world::World;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Reading<'a> {
    /// `None`: one that was named.
    of_all: Option<Spent>,
    others: &'a [FoundProcess],
}

struct Spent {
    begin: Instant,
    /// Time that reading took, without what was made of it.
    read: Cell<Duration>,
}

/// How long names are waited for, all ledgers together.
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

    /// All that were found, those among them that share memory with one.
    pub(super) fn others(&self) -> &'a [FoundProcess] {
        self.others
    }

    /// Reads the ledger of one that was found.
    ///
    /// # Errors
    /// Those of reading it; that there is no time left, or that it is too large for a look at all.
    pub(super) fn read(&self, world: &World, found: &FoundProcess) -> Result<Ledger> {
        let Some(Spent { begin, read }) = &self.of_all else {
            return choose::read(world, found).map(|opened| Ledger::of(world, opened));
        };
        if read.get() >= budget::TIME {
            return Err(Failure::error(format!("others took the time; gpumem doctor {} looks at it alone", found.pid)));
        }
        let now = Instant::now();
        let opened = choose::read_within(world, found, budget::BYTES / 2);
        read.set(read.get() + now.elapsed());
        let mut ledger = Ledger::of(world, opened?);
        ledger.symbols.wait_at_most(NAMES_WITHIN.saturating_sub(begin.elapsed()));
        Ok(ledger)
    }
}
