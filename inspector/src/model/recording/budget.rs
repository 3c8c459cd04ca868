//! How many lines of one sort a recording may have: what comes in great numbers is bounded by time, not by the program.

/// So many may come at once after a quiet time.
const SAVED: u64 = 10_000;
const A_SECOND: u64 = 40;
const SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Budget {
    /// In parts of which one is a line's for each second.
    left: u64,
    seen_ns: u64,
}

impl Budget {
    pub(super) fn full(now_ns: u64) -> Self {
        Self { left: SAVED * SECOND, seen_ns: now_ns }
    }

    /// How many of `wanted` may be written now.
    pub(super) fn take(&mut self, now_ns: u64, wanted: usize) -> usize {
        let earned = now_ns.saturating_sub(self.seen_ns).saturating_mul(A_SECOND);
        self.left = self.left.saturating_add(earned).min(SAVED * SECOND);
        self.seen_ns = self.seen_ns.max(now_ns);
        let taken = (wanted as u64).min(self.left / SECOND);
        self.left -= taken * SECOND;
        taken as usize
    }
}
