//! Sizes of the heap's blocks: four classes per doubling, so that a block is at most a quarter larger than the request.

use std::alloc::Layout;

/// Blocks of up to [`FINE`] bytes are multiples of this. All blocks are aligned to it.
pub(super) const SMALLEST: usize = 16;
const FINE: usize = 64;
const FINE_CLASSES: usize = FINE / SMALLEST;
/// Classes per doubling above [`FINE`].
const STEPS: usize = 4;
/// The longest block of a class.
const LONGEST: usize = 128 << 10;
pub(super) const CLASSES: usize = FINE_CLASSES + STEPS * (LONGEST / FINE).ilog2() as usize;
/// Maximum alignment of a block.
pub(super) const MOST_ALIGNED: usize = 4096;

/// Returns the class of the blocks for a layout; `None` if they would be too long.
pub(super) fn class_of(layout: Layout) -> Option<usize> {
    let bytes = match layout.align() {
        ..=SMALLEST => layout.size().max(1),
        // Powers of two are aligned to themselves.
        align => layout.size().max(align).next_power_of_two(),
    };
    let last = bytes - 1;
    let class = match last {
        ..FINE => last / SMALLEST,
        _ => FINE_CLASSES + (last / FINE).ilog2() as usize * STEPS + last / step(last) % STEPS,
    };
    (class < CLASSES).then_some(class)
}

/// Returns the distance between the classes around a size above [`FINE`].
fn step(bytes: usize) -> usize {
    (1 << bytes.ilog2()) / STEPS
}

/// Returns the length of a class's blocks.
pub(super) fn bytes_of(class: usize) -> usize {
    match class.checked_sub(FINE_CLASSES) {
        None => (class + 1) * SMALLEST,
        Some(class) => {
            let doubling = FINE << (class / STEPS);
            doubling + (class % STEPS + 1) * step(doubling)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_is_asked_and_little_more() {
        let class = |size, align| class_of(Layout::from_size_align(size, align).unwrap());
        for align in [1, 16, 64, 4096] {
            for size in (1..2000).chain((2000..=LONGEST).step_by(97)).chain([LONGEST]) {
                let block = bytes_of(class(size, align).unwrap());
                assert!(block >= size && block.is_multiple_of(align), "{size} {align}: {block}");
                assert!(align > SMALLEST || block < size + SMALLEST.max(size / STEPS), "{size}: {block}");
            }
        }
        assert_eq!((class(LONGEST, 8), class(LONGEST + 1, 8)), (Some(CLASSES - 1), None));
        for (at, size) in (0..CLASSES).map(|at| (at, bytes_of(at))) {
            assert_eq!(class(size, 8), Some(at), "{size}");
        }
    }
}
