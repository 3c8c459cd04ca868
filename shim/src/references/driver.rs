//! Which words are the driver's own records of memory.
//!
//! They lie in the heap, beside the program's, and no mapping tells them apart. But the driver keeps the same of each
//! block. So blocks are taken that the program never knows of: all words that refer to them are the driver's. What
//! stands around those in the same way for several blocks is a pattern, and what stands so around a word of any other
//! block is the driver's record of that. Sizes differ from block to block, so that a size is known for one.
//!
//! A pattern has to say something: a word among zeroes may be anyone's. It is compared from the word outwards, up to what
//! is another: behind the driver's record lies what is nobody's or anyone's.

use std::collections::BTreeSet;

/// Words that are looked at on each side of a word.
pub const AROUND: usize = 8;
/// Bytes of a window.
pub const WINDOW: usize = (2 * AROUND + 1) * 8;
/// Blocks of one class that have to show a pattern.
const SHOWN: usize = 3;
/// What a pattern has to be worth.
const WORTH: u32 = 6;
/// Words that are looked at of each block.
const MOST: usize = 256;

/// A word and its neighbours.
pub type Window = [u64; 2 * AROUND + 1];

/// What a word means beside an address of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    /// An address of the block, so far behind its beginning.
    Inside(u64),
    /// The end of the block, its size, or its size as the driver rounds it.
    End,
    Size,
    /// The same number in each record: a kind, a count, an address of the driver's code or data.
    Number(u64),
}

/// Sizes are rounded to these.
const UNITS: [u64; 3] = [1, 512, 2 << 20];

fn tokens(word: u64, (base, bytes): (u64, u64)) -> Vec<Token> {
    let mut tokens = Vec::new();
    if word.wrapping_sub(base) < bytes {
        tokens.push(Token::Inside(word - base));
    } else {
        tokens.push(Token::Number(word));
    }
    for unit in UNITS {
        let size = bytes.next_multiple_of(unit);
        if word == base + size {
            tokens.push(Token::End);
        }
        if word == size {
            tokens.push(Token::Size);
        }
    }
    tokens
}

/// What stands around a word of the driver's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern([Option<Token>; 2 * AROUND + 1]);

impl Pattern {
    /// What two windows have in common, if that says something.
    fn of(one: &Window, of_one: (u64, u64), other: &Window, of_other: (u64, u64)) -> Option<Self> {
        let mut pattern = Self([None; 2 * AROUND + 1]);
        for (at, common) in pattern.0.iter_mut().enumerate() {
            let theirs = tokens(other[at], of_other);
            // What is both a size and a number is a size.
            *common = tokens(one[at], of_one).into_iter().filter(|token| theirs.contains(token)).next_back();
        }
        (pattern.0[AROUND].is_some() && pattern.worth() >= WORTH).then_some(pattern)
    }

    /// What it says beside the word itself.
    fn worth(&self) -> u32 {
        self.0.iter().enumerate().filter(|(at, _)| *at != AROUND).map(|(_, token)| worth(token)).sum()
    }

    /// Whether a word stands so.
    fn fits(&self, window: &Window, of: (u64, u64)) -> bool {
        let is_so = |at: &usize| match self.0[*at] {
            None => true,
            Some(Token::Number(number)) => window[*at] == number,
            Some(Token::Inside(offset)) => window[*at] == of.0.wrapping_add(offset),
            Some(token) => tokens(window[*at], of).contains(&token),
        };
        let sum = |places: &mut dyn Iterator<Item = usize>| -> u32 {
            places.take_while(is_so).map(|at| worth(&self.0[at])).sum()
        };
        is_so(&AROUND) && sum(&mut (0..AROUND).rev()) + sum(&mut (AROUND + 1..=2 * AROUND)) >= WORTH
    }
}

fn worth(token: &Option<Token>) -> u32 {
    match token {
        None | Some(Token::Number(0)) => 0,
        Some(Token::Number(number)) if *number < 1 << 32 => 1,
        Some(_) => 2,
    }
}

/// What the driver's words look like.
#[derive(Debug, Default)]
pub struct Patterns(Vec<Pattern>);

impl Patterns {
    /// From windows of words that refer to blocks of the driver's, by block; of each block its beginning and bytes.
    /// Neighbours in `blocks` that are `of_class` together are kept by the driver in one way.
    pub fn learn(blocks: &[((u64, u64), Vec<Window>)], of_class: usize) -> Self {
        let mut all = BTreeSet::new();
        for class in blocks.chunks(of_class) {
            let mut candidates = BTreeSet::new();
            for (index, (of_one, ones)) in class.iter().enumerate() {
                for (of_other, others) in &class[index + 1..] {
                    for one in ones.iter().take(MOST) {
                        let found =
                            others.iter().take(MOST).filter_map(|other| Pattern::of(one, *of_one, other, *of_other));
                        candidates.extend(found);
                    }
                }
            }
            let shown = |pattern: &Pattern| {
                class.iter().filter(|(of, windows)| windows.iter().any(|window| pattern.fits(window, *of))).count()
            };
            all.extend(candidates.into_iter().filter(|pattern| shown(pattern) >= SHOWN.min(class.len())));
        }
        Self(all.into_iter().collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a word that refers to this block, or to its end, stands as the driver's do.
    pub fn fit(&self, window: &Window, of: (u64, u64)) -> bool {
        self.0.iter().any(|pattern| pattern.fits(window, of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x7fff_0000_1230;

    /// As a driver's record may be: an address of code, links, a size, and where the block lies.
    fn record(base: u64, bytes: u64, links: u64) -> [Window; 2] {
        let words = [0x61, CODE, links, links + 96, bytes.next_multiple_of(512), base, base + bytes, 3, 0];
        let around = |at: usize| {
            let mut window = [links.wrapping_mul(7); 2 * AROUND + 1];
            for (to, word) in words.iter().enumerate() {
                if let Some(place) = (AROUND + to).checked_sub(at).and_then(|place| window.get_mut(place)) {
                    *place = *word;
                }
            }
            window
        };
        [around(5), around(6)]
    }

    fn learned() -> Patterns {
        let blocks: Vec<_> = (1..=4_u64)
            .map(|n| ((n << 40, n * 5120), record(n << 40, n * 5120, 0x5500_0000 + n * 0x1230).to_vec()))
            .collect();
        Patterns::learn(&blocks, 4)
    }

    #[test]
    fn the_drivers_record_of_another_block_is_known() {
        let patterns = learned();
        assert!(patterns.len() > 0);
        let of = (0x7f12_3400_0000, 1 << 20);
        let [mut base, end] = record(of.0, of.1, 0x5577_1110);
        assert!(patterns.fit(&base, of) && patterns.fit(&end, of));
        // What lies behind the record is anyone's.
        base[2 * AROUND - 1] = 0x1234;
        assert!(patterns.fit(&base, of));
        // That of another size is another's, and was freed: the address was given out again.
        assert!(!patterns.fit(&base, (of.0, of.1 + 4096)));
    }

    #[test]
    fn what_a_program_keeps_is_not_the_drivers() {
        let patterns = learned();
        let of = (0x7f12_3400_0000, 1 << 20);
        let mut alone = [0; 2 * AROUND + 1];
        alone[AROUND] = of.0;
        assert!(!patterns.fit(&alone, of));
        // An address and a size, as programs keep them too.
        alone[AROUND - 1] = of.1;
        alone[AROUND + 1] = of.0 + of.1;
        alone[AROUND - 2] = 0x21;
        assert!(!patterns.fit(&alone, of));
        let mut many = [of.0; 2 * AROUND + 1];
        many[0] = CODE;
        assert!(!patterns.fit(&many, of));
    }

    #[test]
    fn what_says_nothing_is_no_pattern() {
        let window = |base: u64| {
            let mut window = [0; 2 * AROUND + 1];
            (window[AROUND], window[AROUND + 1]) = (base, 1);
            window
        };
        let blocks: Vec<_> = (1..=4_u64).map(|n| ((n << 40, n * 5120), vec![window(n << 40)])).collect();
        assert_eq!(Patterns::learn(&blocks, 4).len(), 0);
    }
}
