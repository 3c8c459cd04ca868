//! The distribution of RMM's random-allocation benchmark: sizes uniform from 1 to a bound, 73 allocations
//! in 100 steps while fewer than the wanted number were made and what is live stays below a bound, else
//! a random victim is freed. Twice as many steps as allocations, as there.

use super::{Plan, Slots, Step};

const ALLOCATIONS_IN_100: u64 = 73;

/// Arguments of RMM's benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Allocations in all.
    pub count: u64,
    /// The largest, bytes.
    pub max_bytes: u64,
    /// Live at a time, bytes; 16000 MiB there.
    pub usage_bytes: u64,
    pub seed: u64,
}

/// splitmix64: the same numbers for the same seed, everywhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u64
    }
}

/// The steps for `of`.
#[must_use]
pub fn plan(of: Random) -> Plan {
    let (mut numbers, mut slots, mut plan) = (Numbers(of.seed), Slots::default(), Plan::default());
    let (mut live, mut usage, mut made) = (Vec::new(), 0, 0);
    for _ in 0..of.count * 2 {
        let bytes = 1 + numbers.below(of.max_bytes);
        let wanted = live.is_empty() || numbers.below(100) < ALLOCATIONS_IN_100;
        if made < of.count && wanted && (live.is_empty() || usage + bytes < of.usage_bytes) {
            let slot = slots.take();
            plan.steps.push(Step::Take { slot, bytes });
            live.push((slot, bytes));
            usage += bytes;
            made += 1;
        } else if !live.is_empty() {
            let (slot, bytes) = live.swap_remove(numbers.below(live.len() as u64) as usize);
            plan.steps.push(Step::Give { slot });
            slots.give(slot);
            usage -= bytes;
        }
    }
    plan.slots = slots.count;
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_to_the_bounds_and_frees_what_it_made() {
        let of = Random { count: 5000, max_bytes: 1 << 20, usage_bytes: 64 << 20, seed: 1 };
        let plan = plan(of);
        assert_eq!(plan.takes(), 5000);
        assert_eq!(plan.steps.len(), 10000);
        let peak = plan.peak_requested();
        assert!(peak < of.usage_bytes && peak > of.usage_bytes * 9 / 10, "{peak}");
        let mean =
            plan.steps.iter().map(|step| if let Step::Take { bytes, .. } = step { *bytes } else { 0 }).sum::<u64>()
                / 5000;
        // Half of the bound, less because near the bound of what is live small ones are let through more often.
        assert!((400 << 10..512 << 10).contains(&mean), "{mean}");
        let mut held = vec![false; plan.slots as usize];
        for step in &plan.steps {
            let (slot, takes) = match *step {
                Step::Take { slot, .. } => (slot, true),
                Step::Give { slot } => (slot, false),
            };
            assert_ne!(held[slot as usize], takes);
            held[slot as usize] = takes;
        }
        assert!(!held.contains(&true));
    }
}
