//! Replays allocations against whatever driver is there: a trace with the columns of RMM's log, or RMM's
//! random distribution. Time, what the device had to give at most, and how much of that was asked for.

pub mod driver;
pub mod elf;
pub mod random;
pub mod replay;
pub mod trace;

/// One step of a replay. Slots are places for pointers, used again once they are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Take { slot: u32, bytes: u64 },
    Give { slot: u32 },
}

/// Steps to replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// How many slots the steps use.
    pub slots: u32,
    /// Rows of the trace that were left out: failures, and frees of pointers that it does not know.
    pub skipped: u64,
}

impl Plan {
    /// The most bytes that are asked for at a time.
    #[must_use]
    pub fn peak_requested(&self) -> u64 {
        let (mut live, mut now, mut peak) = (vec![0; self.slots as usize], 0_u64, 0);
        for step in &self.steps {
            match *step {
                Step::Take { slot, bytes } => {
                    live[slot as usize] = bytes;
                    now += bytes;
                    peak = peak.max(now);
                }
                Step::Give { slot } => now -= live[slot as usize],
            }
        }
        peak
    }

    /// How many of the steps allocate.
    #[must_use]
    pub fn takes(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, Step::Take { .. })).count()
    }
}

/// Gives out slots, the one that was free last first.
#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    count: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }
}
