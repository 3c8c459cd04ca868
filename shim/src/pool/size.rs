//! Block sizes: the bytes that are asked of the driver for a request of the program.

pub(crate) use crate::backend::memory::UNIT;

/// Smallest block, bytes: the driver's alignment.
const SMALLEST: u64 = 512;
/// Number of sizes from a power of two up to the next.
const STEPS: u64 = 8;
/// Exponent below the smallest block.
const FIRST_EXPONENT: u32 = 8;
/// Classes up to one unit.
const SMALL_CLASSES: usize = (UNIT.ilog2() - FIRST_EXPONENT) as usize * STEPS as usize;
/// The most units of a block that threads keep for themselves.
const MOST_UNITS: u64 = 16;
/// Number of sizes of which threads keep blocks.
pub(crate) const CLASSES: usize = SMALL_CLASSES + MOST_UNITS as usize - 1;

/// Returns the bytes of the block for a request; `None` for more than any device has.
#[inline]
pub(crate) fn rounded(bytes: u64) -> Option<u64> {
    match bytes.max(SMALLEST) {
        bytes @ ..=UNIT => Some(bytes.next_multiple_of(step(bytes))),
        bytes => bytes.checked_next_multiple_of(UNIT),
    }
}

/// Returns the distance between block sizes around a request of at most a unit.
#[inline]
fn step(bytes: u64) -> u64 {
    (1 << (bytes - 1).ilog2()) / STEPS
}

/// Returns the class of a block that threads may keep: that of the largest size that is at most the block's. A block
/// that was taken because its rounded size did not fit is between two sizes, or below the smallest.
#[inline]
pub(crate) fn class_of(block: u64) -> Option<usize> {
    if block < SMALLEST {
        return None;
    }
    if block <= UNIT {
        let exponent = (block - 1).ilog2();
        let steps = (block - (1 << exponent)) / step(block);
        return Some((exponent - FIRST_EXPONENT) as usize * STEPS as usize + steps as usize - 1);
    }
    let units = block / UNIT;
    (units <= MOST_UNITS).then(|| SMALL_CLASSES + units as usize - 2)
}

/// Returns the class of blocks that serve a request, computed without [`rounded`]. `None` for 0 bytes, and for sizes of
/// which threads keep no blocks.
#[inline(always)]
pub(crate) fn class_for(bytes: u64) -> Option<usize> {
    if bytes <= UNIT {
        let last = bytes.max(SMALLEST) - 1;
        let exponent = last.ilog2();
        let within = last >> (exponent - STEPS.ilog2()) & (STEPS - 1);
        return (bytes != 0).then_some((exponent - FIRST_EXPONENT) as usize * STEPS as usize + within as usize);
    }
    let units = bytes.div_ceil(UNIT);
    (units <= MOST_UNITS).then(|| SMALL_CLASSES + units as usize - 2)
}

/// Returns by how many bytes a block may exceed a request that it serves: an eighth, as HIP's own pools allow, and at
/// least a unit if blocks are whole units.
#[inline]
pub(crate) fn slack(rounded: u64) -> u64 {
    let eighth = rounded / 8;
    if rounded > UNIT { eighth.max(UNIT) } else { eighth }
}

/// Returns the class whose blocks may serve requests of this class besides its own blocks. [`slack`] bounds how much
/// larger a block may be. That allows the next size, except for the step from one unit to two.
#[inline(always)]
pub(crate) fn next_that_serves(class: usize) -> Option<usize> {
    (class + 1 != SMALL_CLASSES).then_some(class + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_what_is_asked_and_waste_an_eighth_at_most() {
        for bytes in (1..5000).chain((5000..40 << 20).step_by(4093)) {
            let block = rounded(bytes).unwrap();
            assert!(block >= bytes, "{bytes}");
            assert!(block <= SMALLEST || block - bytes <= (bytes / 8).max(UNIT * u64::from(bytes > UNIT)), "{bytes}");
            assert_eq!(rounded(block), Some(block), "{bytes}");
        }
        assert_eq!(rounded(u64::MAX), None);
        assert_eq!((rounded(UNIT), rounded(UNIT + 1)), (Some(UNIT), Some(2 * UNIT)));
    }

    #[test]
    fn the_next_class_serves_where_its_blocks_are_not_too_large() {
        let all: Vec<u64> = (1..MOST_UNITS * UNIT).step_by(61).filter_map(rounded).collect();
        for pair in all.windows(2).filter(|pair| pair[0] != pair[1]) {
            let serves = pair[1] <= pair[0] + slack(pair[0]);
            let next = next_that_serves(class_of(pair[0]).unwrap());
            assert_eq!(next, class_of(pair[1]).filter(|_| serves), "{pair:?}");
        }
    }

    #[test]
    fn a_block_between_two_sizes_has_the_smaller_ones_class() {
        assert_eq!([1, 8, 9, 256, 257, SMALLEST - 1].map(class_of), [None; 6]);
        let mut smaller = SMALLEST;
        for block in SMALLEST..4 * UNIT {
            if rounded(block) == Some(block) {
                smaller = block;
            }
            assert_eq!(class_of(block), class_for(smaller), "{block}");
        }
    }

    #[test]
    fn each_size_has_a_class_of_its_own() {
        let mut before = None;
        for bytes in (1..MOST_UNITS * UNIT).step_by(61) {
            let block = rounded(bytes).unwrap();
            let class = class_of(block).unwrap();
            assert!(class < CLASSES);
            assert_eq!(class_for(bytes), Some(class), "{bytes}");
            if let Some((last_block, last_class)) = before {
                assert_eq!(block == last_block, class == last_class, "{bytes}");
                assert!(class >= last_class);
            }
            before = Some((block, class));
        }
        assert_eq!(class_of(MOST_UNITS * UNIT), Some(CLASSES - 1));
        assert_eq!(class_of((MOST_UNITS + 1) * UNIT), None);
        assert_eq!([0, MOST_UNITS * UNIT + 1, u64::MAX].map(class_for), [None; 3]);
    }
}
