//! Limits the lines of one sort in a recording by time, since the program may produce any number.

/// Most lines at once after a quiet time.
const SAVED: u64 = 10_000;
const A_SECOND: u64 = 40;
const SECOND: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Used budget, in units of one line per second.
    spent: u64,
    seen_ns: u64,
}

impl Budget {
    /// Takes up to `wanted` lines from the budget and returns the number allowed.
    pub(super) fn take(&mut self, now_ns: u64, wanted: usize) -> usize {
        let earned = now_ns.saturating_sub(self.seen_ns).saturating_mul(A_SECOND);
        self.spent = self.spent.saturating_sub(earned);
        self.seen_ns = self.seen_ns.max(now_ns);
        let taken = (wanted as u64).min((SAVED * SECOND - self.spent) / SECOND);
        self.spent += taken * SECOND;
        taken as usize
    }
}
