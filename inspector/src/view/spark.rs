//! A row of values as a line of bars, one column wide each.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws values, oldest first, in `columns` columns: the lowest value as the lowest bar, the highest as the highest. If
/// several values share a column, the last one counts. Empty if all values are 0.
pub(crate) fn line(values: &[u64], columns: usize) -> String {
    let (Some(&lowest), Some(&highest)) = (values.iter().min(), values.iter().max()) else { return String::new() };
    if highest == 0 {
        return String::new();
    }
    let columns = columns.min(values.len());
    let last = |column: usize| values[(column + 1) * values.len() / columns - 1];
    let bar = |value: u64| {
        let share = u128::from(value - lowest) * (BARS.len() as u128 - 1);
        BARS[share.checked_div(u128::from(highest - lowest)).unwrap_or(0) as usize]
    };
    (0..columns).map(|column| bar(last(column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_go_from_the_lowest_to_the_highest() {
        assert_eq!(line(&[0, 1, 2, 3, 4, 5, 6, 7], 8), "▁▂▃▄▅▆▇█");
        assert_eq!(line(&[100, 100, 101], 9), "▁▁█");
        assert_eq!(line(&[0, 1, 2, 3, 4, 5, 6, 7], 2), "▄█", "the last one of each half");
        assert_eq!(line(&[5, 5], 4), "▁▁", "level, and something");
        assert_eq!((line(&[0, 0], 4), line(&[], 4), line(&[1, 2], 0)), (String::new(), String::new(), String::new()));
        assert_eq!(line(&[0, u64::MAX], 2), "▁█");
    }
}
