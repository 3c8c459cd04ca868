//! Limits the lines of one sort in a recording by time, since the program may produce any number.

/// Most lines at once after a quiet time.
const SAVED: u64 = 10_000;
const A_SECOND: u64 = 40;
const SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Budget {
    /// Remaining budget, in units of one line per second.
    left: u64,
    seen_ns: u64,
}

impl Budget {
    pub(super) fn full(now_ns: u64) -> Self {
        Self { left: SAVED * SECOND, seen_ns: now_ns }
    }

    /// Takes up to `wanted` lines from the budget and returns the number allowed.
    pub(super) fn take(&mut self, now_ns: u64, wanted: usize) -> usize {
        let earned = now_ns.saturating_sub(self.seen_ns).saturating_mul(A_SECOND);
        self.left = self.left.saturating_add(earned).min(SAVED * SECOND);
        self.seen_ns = self.seen_ns.max(now_ns);
        let taken = (wanted as u64).min(self.left / SECOND);
        self.left -= taken * SECOND;
        taken as usize
    }
}
