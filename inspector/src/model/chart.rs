//! Charts of a course. Rows of one name are merged; the largest keep their names and the others are summed up. There
//! are no more moments than a screen has columns.

use super::course::{Course, Grid, Of};
use crate::text::clean;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Most rows that a chart names.
const NAMED: usize = 10;
/// Most moments of a chart.
const MOMENTS: usize = 600;
/// Name of the row that sums the others up.
const OTHERS: &str = "others";

/// One chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Chart {
    pub id: Cow<'static, str>,
    pub title: Cow<'static, str>,
    /// `bytes`, or `count`.
    pub unit: &'static str,
    /// The rows are drawn on top of one another, because their sum has a meaning.
    pub stacked: bool,
    /// Milliseconds since 1970.
    pub times: Vec<u64>,
    pub rows: Vec<ChartRow>,
}

/// One row of a chart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ChartRow {
    pub name: String,
    pub values: Vec<u64>,
}

/// Definition of a chart: its rows, its name, its title, and true if rows are stacked.
type ChartKind = (Of, &'static str, &'static str, bool);

const HELD: &[ChartKind] = &[
    (Of::Site, "site", "call site", true),
    (Of::Tag, "tag", "tag", true),
    (Of::Graphs, "graphs", "call site of graphs", true),
    (Of::Class, "class", "graph class", true),
];

/// Returns the charts of live memory.
pub(crate) fn of_memory(course: &Course) -> Vec<Chart> {
    let mut charts = vec![chart(&course.totals, (Of::Kind, "kind", "kind", true))];
    charts.extend(HELD.iter().map(|&kind| chart(&course.held, kind)));
    charts.push(chart(&course.totals, (Of::Whole, "whole", "process and device", false)));
    charts.retain(Chart::says_something);
    charts
}

/// Returns the charts of graphs and execs.
pub(crate) fn of_graphs(course: &Course) -> Vec<Chart> {
    let kinds =
        [(Of::Count, "graphs-live", "number", false), (Of::Rate, "graphs-done", "what is done in a second", false)];
    let mut charts: Vec<Chart> = kinds.iter().map(|&kind| chart(&course.totals, kind)).collect();
    charts.retain(Chart::says_something);
    charts
}

impl Chart {
    /// Returns the highest sum of all rows.
    pub(crate) fn most(&self) -> u64 {
        sum(&self.rows, self.times.len()).into_iter().max().unwrap_or(0)
    }

    /// True if there is anything to draw.
    fn says_something(&self) -> bool {
        self.times.len() > 1 && self.rows.iter().any(|row| row.values.iter().any(|&value| value > 0))
    }
}

fn chart(grid: &Grid, (of, id, title, stacked): ChartKind) -> Chart {
    Chart { stacked, ..of_rows(grid, of, id.into(), title.into()) }
}

/// Returns a stacked chart of the rows of one kind.
pub(super) fn of_rows(grid: &Grid, of: Of, id: Cow<'static, str>, title: Cow<'static, str>) -> Chart {
    let mut named: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for row in grid.rows.iter().filter(|row| row.kind == of) {
        let sums = named.entry(&row.name).or_insert_with(|| vec![0; grid.times.len()]);
        sums.iter_mut().zip(&row.values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
    }
    let mut rows: Vec<ChartRow> =
        named.into_iter().map(|(name, values)| ChartRow { name: clean(name).into_owned(), values }).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.values.iter().max().copied()));
    rows.retain(|row| row.values.iter().any(|&value| value > 0));
    // A single extra row takes no more room under its own name than as "others".
    if rows.len() > NAMED + 1 {
        let others = rows.split_off(NAMED);
        rows.push(ChartRow { name: format!("{} {OTHERS}", others.len()), values: sum(&others, grid.times.len()) });
    }
    let kept = kept(&sum(&rows, grid.times.len()));
    for row in &mut rows {
        row.values = kept.iter().map(|&at| row.values[at]).collect();
    }
    let times = kept.iter().map(|&at| grid.times[at] / 1_000_000).collect();
    let unit = if matches!(of, Of::Count | Of::Rate) { "count" } else { "bytes" };
    Chart { id, title, unit, stacked: true, times, rows }
}

fn sum(rows: &[ChartRow], moments: usize) -> Vec<u64> {
    let at = |at: usize| rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.values[at]));
    (0..moments).map(at).collect()
}

/// Returns the moments that are shown: the first, the last, and the one with the highest sum in each stretch of time,
/// so that no peak is lost.
pub(super) fn kept(sums: &[u64]) -> Vec<usize> {
    if sums.len() <= MOMENTS {
        return (0..sums.len()).collect();
    }
    let begin = |stretch: usize| stretch * sums.len() / MOMENTS;
    let most = |stretch: usize| (begin(stretch)..begin(stretch + 1)).max_by_key(|&at| sums[at]);
    let mut kept: Vec<usize> = (0..MOMENTS).filter_map(most).chain([0, sums.len() - 1]).collect();
    kept.sort_unstable();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::course::Row;

    fn grid(rows: &[(Of, &str, &[u64])]) -> Grid {
        let times = (0..rows[0].2.len() as u64).map(|second| second * 1_000_000_000).collect();
        let row = |&(kind, name, values): &(Of, &str, &[u64])| Row {
            kind,
            name: name.into(),
            stack: 0,
            values: values.into(),
        };
        Grid { times, rows: rows.iter().map(row).collect() }
    }

    #[test]
    fn rows_of_one_name_are_one_and_the_smallest_are_put_together() {
        let mut rows = vec![(Of::Site, "a", &[1_u64, 2][..]), (Of::Site, "a", &[1, 98]), (Of::Tag, "a", &[7, 7])];
        let names: Vec<String> = (0..12).map(|n| format!("s{n:02}")).collect();
        rows.extend(names.iter().map(|name| (Of::Site, name.as_str(), &[1_u64, 1][..])));
        let chart = chart(&grid(&rows), HELD[0]);
        assert_eq!(chart.rows[0], ChartRow { name: "a".into(), values: vec![2, 100] });
        assert_eq!(chart.rows.len(), NAMED + 1);
        assert_eq!(chart.rows[NAMED], ChartRow { name: "3 others".into(), values: vec![3, 3] });
    }

    #[test]
    fn no_peak_is_lost() {
        let mut values = vec![5_u64; 100_000];
        values[77_777] = 900;
        let chart = chart(&grid(&[(Of::Kind, "device", &values)]), (Of::Kind, "kind", "", true));
        assert!(chart.times.len() <= MOMENTS + 2);
        let at = chart.rows[0].values.iter().position(|&value| value == 900).unwrap();
        assert_eq!(chart.times[at], 77_777_000);
        assert_eq!((chart.times[0], chart.times[chart.times.len() - 1]), (0, 99_999_000));
    }

    #[test]
    fn names_from_elsewhere_steer_nothing() {
        let chart = chart(&grid(&[(Of::Tag, "a\x1b\u{202e}b", &[1, 2])]), HELD[1]);
        assert_eq!(chart.rows[0].name, "a\\x1b\\u{202e}b");
    }
}
