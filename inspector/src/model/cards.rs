//! Live memory of several processes on each card, as charts.

use super::chart::{self, Chart};
use super::course::{self, Grid, Of, Row};
use std::collections::{BTreeMap, BTreeSet};

/// Device memory of one process on one card over time.
pub(crate) struct CardCourse {
    pub process: String,
    pub card: String,
    /// Nanoseconds since 1970, and the live bytes from then on, in order.
    pub held: Vec<(u64, u64)>,
}

/// Most cards that have a chart of their processes.
const CARDS: usize = 32;

/// Returns a chart of all cards, if there are several, and for each card one of its processes.
pub(crate) fn charts(all: &[CardCourse]) -> Vec<Chart> {
    let times = times(all);
    let cards: BTreeSet<&str> = all.iter().map(|one| one.card.as_str()).collect();
    let grid = |card: Option<&str>| {
        let row = |one: &CardCourse| {
            let name = if card.is_some() { &one.process } else { &one.card };
            let values = course::at(one.held.iter().copied(), times.iter().copied());
            Row { kind: Of::Card, name: name.clone(), stack: 0, values }
        };
        let rows = all.iter().filter(|one| card.is_none_or(|card| one.card == card)).map(row).collect();
        Grid { times: times.clone(), rows }
    };
    let mut charts = Vec::new();
    if cards.len() > 1 {
        charts.push(chart::of_rows(&grid(None), Of::Card, "cards".into(), "card".into()));
    }
    for (number, card) in cards.into_iter().take(CARDS).enumerate() {
        let title = format!("process on {}", crate::text::clean(card));
        charts.push(chart::of_rows(&grid(Some(card)), Of::Card, format!("card-{number}").into(), title.into()));
    }
    charts
}

/// Returns the times at which a chart shows the sum of all.
fn times(all: &[CardCourse]) -> Vec<u64> {
    let changes = all.iter().enumerate();
    let mut changes: Vec<(u64, usize, u64)> =
        changes.flat_map(|(of, one)| one.held.iter().map(move |&(time, bytes)| (time, of, bytes))).collect();
    changes.sort_unstable();
    let (mut now, mut sum, mut sums) = (vec![0; all.len()], 0_u64, BTreeMap::new());
    for (time, of, bytes) in changes {
        sum = sum.saturating_sub(std::mem::replace(&mut now[of], bytes)).saturating_add(bytes);
        sums.insert(time, sum);
    }
    let values: Vec<u64> = sums.values().copied().collect();
    let times: Vec<u64> = sums.into_keys().collect();
    chart::kept(&values).into_iter().map(|at| times[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(process: &str, card: &str, held: &[(u64, u64)]) -> CardCourse {
        let held = held.iter().map(|&(second, bytes)| (second * 1_000_000_000, bytes)).collect();
        CardCourse { process: process.into(), card: card.into(), held }
    }

    fn row<'a>(chart: &'a Chart, name: &str) -> &'a [u64] {
        &chart.rows.iter().find(|row| row.name == name).unwrap().values
    }

    #[test]
    fn processes_add_up_on_each_card_whenever_each_was_looked_at() {
        let all = [
            on("a (1)", "X", &[(1, 10), (4, 30), (9, 0)]),
            on("b (2)", "X", &[(2, 5), (6, 0)]),
            on("b (2)", "Y", &[(3, 7)]),
        ];
        let charts = charts(&all);
        assert_eq!(charts.iter().map(|chart| &*chart.id).collect::<Vec<_>>(), ["cards", "card-0", "card-1"]);
        assert!(charts.iter().all(|chart| chart.times == [1000, 2000, 3000, 4000, 6000, 9000]));
        assert_eq!(row(&charts[0], "X"), [10, 15, 15, 35, 30, 0]);
        assert_eq!(row(&charts[0], "Y"), [0, 0, 7, 7, 7, 7]);
        assert_eq!(row(&charts[1], "b (2)"), [0, 5, 5, 5, 0, 0]);
        assert_eq!(self::charts(&all[..2]).len(), 1, "one card needs no sum of all");
    }

    #[test]
    fn many_processes_with_many_changes_make_a_chart_of_few_moments() {
        let held = |process: u64| (0..2000).map(|n| (n * 50 + process, n % 7)).collect::<Vec<_>>();
        let mut all: Vec<CardCourse> =
            (0..50).map(|process| on(&format!("p ({process})"), "X", &held(process))).collect();
        all.push(on("peak (9)", "X", &[(500, 0), (77_777, 900), (77_778, 0)]));
        let charts = charts(&all);
        assert!(charts[0].times.len() <= 602 && charts[0].rows.len() <= 11);
        assert_eq!(row(&charts[0], "peak (9)").iter().max(), Some(&900));
    }
}
