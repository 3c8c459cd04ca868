//! Computes a line in the file from a place in a code object, as CPython's `PyCode_Addr2Line` does.

use super::versions::Lines;

/// Returns the line of the instruction that begins `at` bytes into the code; 0 if there is none.
pub(super) fn line(form: Lines, table: &[u8], first: u32, at: i64) -> u32 {
    if at < 0 {
        return first;
    }
    let line = match form {
        Lines::Steps => by_steps(table, first, at),
        Lines::Ranges => by_ranges(table, first, at),
        Lines::Entries => by_entries(table, first, at),
    };
    line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
}

fn by_steps(table: &[u8], first: u32, at: i64) -> Option<i64> {
    let (mut line, mut address) = (i64::from(first), 0);
    for step in table.chunks_exact(2) {
        address += i64::from(step[0]);
        if address > at {
            break;
        }
        line += i64::from(step[1] as i8);
    }
    Some(line)
}

fn by_ranges(table: &[u8], first: u32, at: i64) -> Option<i64> {
    /// In place of a step: the range has no line.
    const NO_LINE: i8 = -128;
    let (mut line, mut end) = (i64::from(first), 0);
    for range in table.chunks_exact(2) {
        let step = range[1] as i8;
        end += i64::from(range[0]);
        if step != NO_LINE {
            line += i64::from(step);
        }
        if end > at {
            return (step != NO_LINE).then_some(line);
        }
    }
    None
}

fn by_entries(table: &[u8], first: u32, at: i64) -> Option<i64> {
    const UNIT: i64 = 2;
    let (mut line, mut end) = (i64::from(first), 0);
    let mut rest = table;
    while let Some((&head, behind)) = rest.split_first() {
        let form = head >> 3 & 15;
        line += match form {
            10..=12 => i64::from(form) - 10,
            13 | 14 => signed(behind),
            _ => 0,
        };
        end += (i64::from(head & 7) + 1) * UNIT;
        if end > at {
            const NO_LINE: u8 = 15;
            return (form != NO_LINE).then_some(line);
        }
        // Only the first byte of an entry has its upper bit set.
        let len = behind.iter().position(|byte| byte & 0x80 != 0).unwrap_or(behind.len());
        rest = &behind[len..];
    }
    None
}

/// Decodes a number from groups of six bits, the lowest first; its lowest bit is the sign.
fn signed(bytes: &[u8]) -> i64 {
    let (mut value, mut shift) = (0_i64, 0);
    for byte in bytes.iter().take(6) {
        value |= i64::from(byte & 0x3f) << shift;
        shift += 6;
        if byte & 0x40 == 0 {
            break;
        }
    }
    if value & 1 == 0 { value >> 1 } else { -(value >> 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tables by the compilers of 3.9, 3.10 and 3.11 for a function that begins in line 1, leaves hundreds of lines
    // empty and ends in an assignment over several lines; and the lines that `co_lines` and `dis` give for it.
    const STEPS: &[u8] = &[0, 127, 0, 127, 0, 47, 2, 1, 8, 127, 0, 75, 16, 3, 2, 255];
    const RANGES: &[u8] = &[0, 127, 0, 127, 2, 47, 8, 1, 0, 127, 6, 75, 2, 3, 6, 255, 8, 254];
    const ENTRIES: &[u8] = &[
        128, 0, 240, 90, 9, 75, 3, 5, 12, 221, 8, 9, 137, 3, 140, 3, 136, 3, 245, 84, 6, 0, 9, 10, 137, 3, 140, 3, 136,
        3, 136, 3, 248, 141, 1, 137, 3, 140, 3, 136, 3, 136, 3, 248, 248, 248, 245, 6, 0, 3, 4, 240, 3, 0, 5, 105, 1,
        208, 4, 104, 208, 4, 104,
    ];

    fn lines(form: Lines, table: &[u8], at: impl IntoIterator<Item = i64>) -> Vec<u32> {
        at.into_iter().map(|at| line(form, table, 1, at)).collect()
    }

    #[test]
    fn lines_are_those_that_python_gives() {
        assert_eq!(
            lines(Lines::Steps, STEPS, [-2, 0, 2, 8, 10, 24, 26, 28, 32]),
            [1, 302, 303, 303, 505, 505, 508, 507, 507]
        );
        assert_eq!(
            lines(Lines::Ranges, RANGES, [-2, 0, 2, 8, 10, 14, 16, 18, 22, 24, 30]),
            [1, 302, 303, 303, 505, 505, 508, 507, 507, 505, 505]
        );
        assert_eq!(
            lines(Lines::Entries, ENTRIES, [-2, 0, 2, 4, 30, 32, 60, 62, 64, 94, 100, 110, 112, 116]),
            [1, 1, 302, 303, 303, 505, 505, 0, 505, 0, 508, 508, 507, 507]
        );
    }

    /// A place beyond the end of its table has no line. In tables of steps it has the last line.
    #[test]
    fn tables_that_are_cut_short_are_no_trouble() {
        for len in 0..ENTRIES.len() {
            for at in [0, 50, 116, 1 << 40] {
                line(Lines::Entries, &ENTRIES[..len], u32::MAX, at);
                line(Lines::Ranges, &RANGES[..len.min(RANGES.len())], u32::MAX, at);
                line(Lines::Steps, &STEPS[..len.min(STEPS.len())], u32::MAX, at);
            }
        }
        assert_eq!(lines(Lines::Entries, ENTRIES, [118, 1 << 40]), [0, 0]);
        assert_eq!(lines(Lines::Ranges, RANGES, [32]), [0]);
        assert_eq!(line(Lines::Entries, &[0xff; 300], 1, 100), 0);
    }
}
