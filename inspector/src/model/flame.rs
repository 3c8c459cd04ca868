//! Memory by call stack for a flame graph: frames, stacks, and the bytes of each stack.

use super::course::{Grid, Of};
use super::{Ledger, sums};
use gpumem_wire::layout::StackRef;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most stacks that are kept; the lightest are merged.
const MOST: usize = 4000;
/// Stack number of a row that covers several stacks.
pub(super) const MANY: u32 = u32::MAX;
/// Name of allocations without a stack, and of merged stacks.
const NO_STACK: &str = "(no stack)";
const OTHERS: &str = "(smaller stacks)";

/// Stacks with their weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Flame {
    pub frames: Vec<Rc<str>>,
    pub stacks: Vec<FlameStack>,
}

/// One stack.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FlameStack {
    /// Numbers of frames, outermost first.
    pub frames: Vec<u32>,
    #[serde(flatten)]
    pub weight: Weight,
}

/// Bytes of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Weight {
    /// Live at the end.
    pub live: u64,
    /// Live at the time when all stacks together held most.
    pub peak: u64,
    /// Growth of live bytes from the beginning to the end.
    pub growth: u64,
    /// Ever allocated.
    pub churn: u64,
}

impl Weight {
    fn most(&self) -> u64 {
        self.live.max(self.peak).max(self.growth).max(self.churn)
    }

    fn add(&mut self, other: Self) {
        let sums = [
            (&mut self.live, other.live),
            (&mut self.peak, other.peak),
            (&mut self.growth, other.growth),
            (&mut self.churn, other.churn),
        ];
        sums.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
}

/// Returns the weights of every stack by number, from live bytes, totals ever allocated, and live bytes over time.
pub(crate) fn weights(
    live: &FxHashMap<u32, u64>,
    ever: impl Iterator<Item = (u32, u64)>,
    held: &Grid,
) -> BTreeMap<u32, Weight> {
    let mut weights: BTreeMap<u32, Weight> = BTreeMap::new();
    for (&stack, &live) in live {
        weights.entry(stack).or_default().live = live;
    }
    for (stack, bytes) in ever {
        weights.entry(stack).or_default().churn = bytes;
    }
    let sites = || held.rows.iter().filter(|row| row.kind == Of::Site);
    let sum =
        |at: usize| sites().filter_map(|row| row.values.get(at)).fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
    let peak = (0..held.times.len()).max_by_key(|&at| sum(at));
    let known = sites().filter(|row| row.stack != MANY);
    let known: FxHashMap<u32, &[u64]> = known.map(|row| (row.stack, &*row.values)).collect();
    let now = live.values().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
    // If more is live now than at any sample, the peak is now.
    let peak = peak.filter(|&at| sum(at) > now);
    for stack in known.keys() {
        weights.entry(*stack).or_default();
    }
    for (stack, weight) in &mut weights {
        let values = known.get(stack);
        weight.peak = match (peak, values) {
            (Some(at), Some(values)) => values.get(at).copied().unwrap_or(0),
            (Some(_), None) => 0,
            (None, _) => weight.live,
        };
        // A stack without a row came after the last sample, or there was no room for it. Its start is unknown.
        let first = values.map(|values| values.first().copied().unwrap_or(0));
        weight.growth = first.map_or(0, |first| weight.live.saturating_sub(first));
    }
    weights.retain(|_, weight| weight.most() > 0);
    weights
}

/// Returns the flame graph of these weights; `frames` returns the frames of a stack, innermost first.
pub(crate) fn of(weights: &BTreeMap<u32, Weight>, frames: impl Fn(u32) -> Vec<Rc<str>>) -> Flame {
    let mut heaviest: Vec<(u32, Weight)> = weights.iter().map(|(&stack, &weight)| (stack, weight)).collect();
    heaviest.sort_by_key(|(stack, weight)| (std::cmp::Reverse(weight.most()), *stack));
    let mut flame = Flame::default();
    let mut known: FxHashMap<Rc<str>, u32> = FxHashMap::default();
    let mut rest = Weight::default();
    let mut number = |frame: Rc<str>, all: &mut Vec<Rc<str>>| {
        *known.entry(frame).or_insert_with_key(|frame| {
            all.push(Rc::clone(frame));
            all.len() as u32 - 1
        })
    };
    for (place, (stack, weight)) in heaviest.into_iter().enumerate() {
        if place >= MOST {
            rest.add(weight);
            continue;
        }
        let mut named = frames(stack);
        if named.is_empty() {
            named.push(NO_STACK.into());
        }
        let frames = named.into_iter().rev().map(|frame| number(frame, &mut flame.frames)).collect();
        flame.stacks.push(FlameStack { frames, weight });
    }
    if rest.most() > 0 {
        let frames = vec![number(OTHERS.into(), &mut flame.frames)];
        flame.stacks.push(FlameStack { frames, weight: rest });
    }
    flame
}

/// Returns the live bytes by stack, of kinds that take memory of their own.
pub(crate) fn live(ledger: &Ledger) -> FxHashMap<StackRef, u64> {
    let live = ledger.snapshot.allocs.iter().filter(|alloc| alloc.takes_memory());
    sums::by(live.map(|alloc| (alloc.stack, alloc.bytes)))
}

/// Returns the flame graph of a ledger, from the bytes held over time.
pub(crate) fn of_ledger(ledger: &Ledger, held: &Grid) -> Flame {
    let ever = ledger.snapshot.stacks.iter().map(|(&stack, totals)| (stack, totals.alloc_bytes));
    of(&weights(&live(ledger), ever, held), |stack| ledger.labels(stack))
}
