//! Memory holders over time: the rows of growth with their points.

use super::source::Source;
use super::tables::Tables;
use crate::kinds::GrowthKind;
use crate::layout::{GROWTH_BLOCK, GROWTH_LEVELS, GROWTH_POINTS, GrowthSlot, StrRef, TableKind};

/// Rows of growth from the ledger.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    rows: Vec<(u32, GrowthSlot)>,
    words: Vec<u64>,
}

/// A row's memory at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub time_ns: u64,
    /// Number of samples that it stands for: it has the minimum of their bytes, and the time of the first.
    pub samples: u64,
    pub bytes: u64,
    pub count: u64,
}

impl Growth {
    pub(super) fn read<S: Source + ?Sized>(tables: &mut Tables<'_, S>) -> std::io::Result<Self> {
        let rows = tables.slots::<GrowthSlot>()?;
        let mut words = tables.words(TableKind::GrowthPoints)?;
        // A point that was rewritten while the blocks were read is not used: its time has changed, or is 0.
        let times = tables.first_words(TableKind::GrowthPoints, GROWTH_POINTS)?;
        for (place, time) in words.iter_mut().take(GROWTH_POINTS).enumerate() {
            if times.get(place) != Some(time) {
                *time = 0;
            }
        }
        Ok(Self { rows, words })
    }

    /// Iterates over every row with its number.
    pub fn rows(&self) -> impl Iterator<Item = (u32, &GrowthSlot)> {
        self.rows.iter().map(|(row, slot)| (*row, slot))
    }

    /// Returns the words of all blocks, for copies.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Iterates over the tags of rows.
    pub(super) fn tags(&self) -> impl Iterator<Item = StrRef> {
        let tags = self.rows.iter().filter(|(_, slot)| slot.kind == GrowthKind::Tag as u8);
        tags.filter_map(|(_, slot)| StrRef::try_from(slot.key).ok())
    }

    /// Returns the samples, oldest first; far back one stands for many.
    pub fn samples(&self) -> Vec<Point> {
        self.points_of(0, 0, false)
    }

    /// Returns the points of a row, oldest first.
    pub fn points(&self, row: u32, slot: &GrowthSlot) -> Vec<Point> {
        self.points_of(row as usize + 1, slot.since_ns, true)
    }

    /// Returns the points of a block that are no older than its row: the fine ones, preceded by coarser ones.
    fn points_of(&self, block: usize, since_ns: u64, held: bool) -> Vec<Point> {
        let word = |block: usize, at: usize| {
            let first = block.checked_mul(GROWTH_BLOCK)?;
            self.words.get(first.checked_add(at)?).copied()
        };
        let (mut points, mut first, mut oldest) = (Vec::new(), 0, u64::MAX);
        for level in GROWTH_LEVELS {
            let places = first..first + level.points;
            let times = || places.clone().filter_map(|place| Some((place, word(0, place).filter(|&time| time != 0)?)));
            for (place, time_ns) in times().filter(|&(_, time)| time < oldest && time >= since_ns) {
                let (bytes, count) = match held {
                    true => (word(block, place), word(block, GROWTH_POINTS + place)),
                    false => (Some(0), Some(0)),
                };
                if let (Some(bytes), Some(count)) = (bytes, count) {
                    points.push(Point { time_ns, samples: level.every, bytes, count });
                }
            }
            oldest = times().map(|(_, time)| time).fold(oldest, u64::min);
            first += level.points;
        }
        points.sort_by_key(|point| point.time_ns);
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(words: Vec<u64>) -> Growth {
        Growth { rows: vec![(0, GrowthSlot { since_ns: 50, ..Default::default() })], words }
    }

    #[test]
    fn fine_points_come_last_and_coarse_ones_before_them() {
        let mut words = vec![0; 2 * GROWTH_BLOCK];
        let mut put = |place: usize, time, bytes| {
            words[place] = time;
            words[GROWTH_BLOCK + place] = bytes;
            words[GROWTH_BLOCK + GROWTH_POINTS + place] = bytes / 10;
        };
        // The fine ring has wrapped around.
        put(0, 103, 40);
        put(1, 101, 20);
        put(2, 102, 30);
        put(60, 45, 5);
        put(61, 60, 10);
        put(62, 101, 20);
        put(120, 60, 10);
        let growth = growth(words);
        let (row, slot) = growth.rows().next().unwrap();
        let points: Vec<_> =
            growth.points(row, slot).iter().map(|p| (p.time_ns, p.samples, p.bytes, p.count)).collect();
        assert_eq!(points, [(60, 15, 10, 1), (101, 1, 20, 2), (102, 1, 30, 3), (103, 1, 40, 4)]);
        assert_eq!(growth.samples().len(), 5, "the row is younger than the first sample");
    }

    #[test]
    fn a_row_without_its_block_has_no_points() {
        let growth = growth(vec![7; GROWTH_BLOCK]);
        let (row, slot) = growth.rows().next().unwrap();
        assert!(growth.points(row, slot).is_empty() && growth.points(u32::MAX, slot).is_empty());
    }
}
