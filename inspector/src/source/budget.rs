//! Limits on the memory and time of one survey, in total: other users may leave any number of names, ledgers and
//! mappings.
//!
//! The survey leaves out what does not fit, and says so in one line.

use crate::text::count;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Memory for all that is kept, and for the part that is being read.
pub(crate) const BYTES: u64 = 64 << 20;
/// Time until a survey ends.
pub(crate) const TIME: Duration = Duration::from_secs(2);

/// Kinds of things that a survey can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Process,
    /// Mappings of one process.
    Mappings,
    Ledger,
    /// Name of a file in a directory of ledgers. There may be more of them.
    Name,
}

/// Memory and time left for a survey.
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
    /// Returns a budget of this many bytes and this much time.
    pub(crate) fn new(bytes: u64, time: Duration) -> Self {
        Self { bytes: Cell::new(bytes), until: Instant::now() + time, left_out: RefCell::default() }
    }

    /// Returns the memory that is left.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub(crate) fn time(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// True if the survey must stop.
    pub(crate) fn is_over(&self) -> bool {
        self.bytes.get() == 0 || self.time().is_zero()
    }

    /// Takes the bytes of a kept item from the budget.
    pub(crate) fn pay(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// Counts items that were left out.
    pub(crate) fn leave_out(&self, part: Part, n: u64) {
        if n > 0 {
            *self.left_out.borrow_mut().entry(part).or_default() += n;
        }
    }

    /// Returns the line that says what was left out.
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
