//! What a look around may take of memory and of time, all of it together: the names, ledgers and mappings that others leave
//! for it to find are without bound.
//!
//! What does not fit is left out, and one line says so.

use crate::text::count;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Memory for all that is kept, and for what is read at a time.
pub(crate) const BYTES: u64 = 64 << 20;
/// Until a look comes to its end.
pub(crate) const TIME: Duration = Duration::from_secs(2);

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Process,
    /// Of one process.
    Mappings,
    Ledger,
    /// Of a file in a directory of ledgers. There may be more.
    Name,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: Cell<u64>,
    until: Instant,
    left_out: RefCell<BTreeMap<Part, u64>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BYTES, TIME)
    }
}

impl Budget {
    /// A part of the whole.
    pub(crate) fn new(bytes: u64, time: Duration) -> Self {
        Self { bytes: Cell::new(bytes), until: Instant::now() + time, left_out: RefCell::default() }
    }

    /// Memory that is left.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub(crate) fn time(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// True if nothing more may be looked at.
    pub(crate) fn is_over(&self) -> bool {
        self.bytes.get() == 0 || self.time().is_zero()
    }

    /// Pays for what is kept.
    pub(crate) fn pay(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// Notes what was left out.
    pub(crate) fn leave_out(&self, part: Part, n: u64) {
        if n > 0 {
            *self.left_out.borrow_mut().entry(part).or_default() += n;
        }
    }

    /// The line that says what was left out.
    pub(crate) fn left_out(&self) -> Option<String> {
        let left_out = self.left_out.borrow();
        let said = left_out.iter().map(|(part, &n)| match part {
            Part::Process => count(n, "process"),
            Part::Mappings => format!("the mappings of {}", count(n, "process")),
            Part::Ledger => count(n, "ledger"),
            Part::Name => format!("at least {}", count(n, "file name")),
        });
        let said: Vec<_> = said.collect();
        let (mib, seconds) = (BYTES >> 20, TIME.as_secs());
        (!said.is_empty()).then(|| {
            format!(
                "not all is shown: {} left out, because a look takes {mib} MiB and {seconds} s at most",
                said.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_one_line() {
        let budget = Budget::default();
        assert_eq!(budget.left_out(), None);
        assert!(!budget.is_over() && budget.bytes() == BYTES);
        budget.pay(BYTES - 1);
        assert!(!budget.is_over());
        budget.pay(7);
        assert!(budget.is_over());
        budget.leave_out(Part::Name, 1200);
        budget.leave_out(Part::Ledger, 1);
        budget.leave_out(Part::Ledger, 1);
        budget.leave_out(Part::Mappings, 1);
        budget.leave_out(Part::Process, 0);
        assert_eq!(
            budget.left_out().unwrap(),
            "not all is shown: the mappings of 1 process, 2 ledgers, at least 1,200 file names left out, because a look takes 64 MiB and 2 s at most"
        );
    }
}
