//! A recording as a report shows it: live memory over time, and memory by call stack.

use super::Recording;
use super::reader::{Large, Track};
use crate::model::course::{Course, Grid, Of, Row};
use crate::model::flame::{self, Flame};
use crate::model::{chart, sites};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Rows of a kind that have a curve of their own. The others are merged.
const ROWS: usize = 2000;
const OTHERS: &str = "(smaller ones)";

impl Recording {
    /// Returns the live memory over time, at no more moments than a chart has.
    pub(crate) fn course(&self) -> Course {
        let ticks = chart::kept(&self.sums());
        let times: Vec<u64> = ticks.iter().map(|&tick| self.times[tick]).collect();
        let mut totals = self.grid(&[Of::Kind], &ticks, &times);
        totals.rows.extend(self.whole(&ticks, &times));
        let held = self.grid(&[Of::Site, Of::Graphs, Of::Tag, Of::Class], &ticks, &times);
        Course { totals, held, moments: self.moments.clone() }
    }

    /// Returns the memory by call stack; totals count from the start of the recording.
    pub(crate) fn flame(&self, course: &Course) -> Flame {
        let sites = || self.tracks.iter().filter(|track| track.of.kind == Of::Site);
        let live: FxHashMap<u32, u64> = sites().map(|track| (track.of.stack, track.now[0])).collect();
        let made = sites().map(|track| (track.of.stack, track.now[2].saturating_sub(track.made_before)));
        flame::of(&flame::weights(&live, made, &course.held), |stack| self.labels(stack))
    }

    /// Returns the largest single allocations, each with its call site.
    pub(crate) fn largest(&self, most: usize) -> Vec<(Large, Rc<str>)> {
        let mut all: Vec<&Large> = self.large.iter().collect();
        all.sort_by_key(|large| (std::cmp::Reverse(large.made.bytes), large.made.serial));
        all.truncate(most);
        let names = self.names(Of::Site);
        let name = |stack| names.get(&stack).cloned().unwrap_or_else(|| sites::NO_STACK.into());
        all.into_iter().map(|large| (large.clone(), name(large.made.stack))).collect()
    }

    /// Returns the live device memory on each card: the card's name, and the bytes from each of these times on.
    pub(crate) fn by_card(&self) -> Vec<(String, Vec<(u64, u64)>)> {
        let cards = self.tracks.iter().filter(|track| track.of.kind == Of::Card);
        let held = |track: &Track| track.held.iter().map(|&(tick, bytes)| (self.times[tick as usize], bytes)).collect();
        cards.map(|track| (track.of.name.clone(), held(track))).collect()
    }

    /// Returns the live bytes at each tick.
    fn sums(&self) -> Vec<u64> {
        let mut changes = vec![0_i128; self.times.len()];
        for track in self.tracks.iter().filter(|track| track.of.kind == Of::Kind) {
            let mut before = 0;
            for &(tick, bytes) in &track.held {
                changes[tick as usize] += i128::from(bytes) - before;
                before = i128::from(bytes);
            }
        }
        let mut sum = 0;
        let at = |change| {
            sum += change;
            u64::try_from(sum).unwrap_or(u64::MAX)
        };
        changes.into_iter().map(at).collect()
    }

    fn grid(&self, kinds: &[Of], ticks: &[usize], times: &[u64]) -> Grid {
        let mut rows = Vec::new();
        for &kind in kinds {
            let mut tracks: Vec<&Track> = self.tracks.iter().filter(|track| track.of.kind == kind).collect();
            tracks.sort_by_key(|track| std::cmp::Reverse(track.peak()));
            let others = tracks.split_off(tracks.len().min(ROWS));
            let names = if matches!(kind, Of::Site | Of::Graphs) { self.names(kind) } else { FxHashMap::default() };
            for track in tracks {
                let name = names.get(&track.of.stack).map_or(&*track.of.name, |name| name);
                rows.push(Row { kind, name: name.to_owned(), stack: track.of.stack, values: track.at(ticks) });
            }
            if !others.is_empty() {
                rows.push(together(kind, &others, ticks));
            }
        }
        Grid { times: times.to_vec(), rows }
    }

    /// Returns the columns of the totals; for a counter, its increase per second.
    fn whole(&self, ticks: &[usize], times: &[u64]) -> Vec<Row> {
        let column = |(place, (kind, name)): (usize, &(Of, String))| {
            let value = |&tick: &usize| self.totals[tick].get(place).copied().unwrap_or(0);
            let mut values: Vec<u64> = ticks.iter().map(value).collect();
            if *kind == Of::Rate {
                values = per_second(&values, times);
            }
            Row { kind: *kind, name: name.clone(), stack: 0, values }
        };
        self.begin.columns.iter().enumerate().map(column).collect()
    }

    /// Returns the names of all call sites of memory or of graphs, by stack.
    fn names(&self, kind: Of) -> FxHashMap<u32, Rc<str>> {
        let tracks = self.tracks.iter().filter(|track| track.of.kind == kind);
        let stacks: Vec<u32> = tracks.map(|track| track.of.stack).collect();
        let names = sites::name(stacks.len(), &|item, depth| self.step(stacks[item], depth));
        stacks.into_iter().zip(names).collect()
    }
}

fn together(kind: Of, tracks: &[&Track], ticks: &[usize]) -> Row {
    let mut values = vec![0_u64; ticks.len()];
    for track in tracks {
        values.iter_mut().zip(track.at(ticks)).for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
    }
    Row { kind, name: OTHERS.into(), stack: flame::MANY, values }
}

/// Returns the increase of a counter in each second. 0 at the first moment, before which nothing is known.
fn per_second(values: &[u64], times: &[u64]) -> Vec<u64> {
    let between = |at: usize| {
        let rose = values[at].saturating_sub(values[at - 1]) as f64;
        let seconds = times[at].saturating_sub(times[at - 1]) as f64 / 1e9;
        (rose / seconds.max(1e-3)).round() as u64
    };
    (0..values.len()).map(|at| if at == 0 { 0 } else { between(at) }).collect()
}
