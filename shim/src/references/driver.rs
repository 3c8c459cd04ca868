//! Recognises the driver's own records of memory.
//!
//! They lie in the heap, beside the program's data, and no mapping tells them apart. But the driver keeps the same kind
//! of record for each block. So private blocks are taken that the program does not know; all words that refer to these
//! blocks are the driver's. If the same words stand around such a word for several blocks, they are a pattern. A word
//! that refers to any other block, with a pattern around it, is the driver's record of that block. The private blocks
//! have different sizes, so that a size can be recognised as one.
//!
//! A pattern has to say enough: a word among zeroes may belong to anything, and so may an address beside its size.
//! Parts of a pattern that differ around some word count for nothing. Behind a record may lie anything, and words that
//! were equal for all blocks taken at one time may differ for blocks of another time.
//!
//! A word of the program may stand just so: in memory that the program took right after the driver's, at a place that
//! for other blocks the driver itself has. A word is certainly the driver's only if the piece of the heap that it lies
//! in says enough by itself, or is linked with one that does. Otherwise the word is like the driver's, and its block is
//! not called lost.

use super::tokens::{AROUND, Back, Kind, LINKED, Near, Of, Token, WIDE, Window};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Number of blocks that must show a pattern.
const SHOWN: usize = 3;
/// Minimum worth of a pattern, besides the word itself.
const WORTH: u32 = 9;
/// Maximum worth of small numbers together, and likewise of the block's own addresses and sizes: programs have such
/// words as well.
const SMALL: u32 = 2;
const OWN: u32 = 5;
/// Number of words of each block that are examined.
pub(super) const MOST: usize = 32;
/// Maximum number of patterns.
const PATTERNS: usize = 64;
/// Number of the possible patterns of one word that are tried.
const TRIED: usize = 8;
/// Steps of learning: known records point to other records, and those to further ones.
pub(super) const STEPS: usize = 4;

/// A block, and the words that refer to it.
#[derive(Clone, Debug, Default)]
pub(super) struct ReferredBlock {
    pub base: u64,
    pub bytes: u64,
    pub words: Vec<Near>,
}

impl ReferredBlock {
    /// Returns the facts with which a word of this block is examined.
    fn of<'a>(&self, at: u64, known: &'a [Near]) -> Of<'a> {
        Of { base: self.base, bytes: self.bytes, at, known }
    }
}

/// Words that stand around a word in a record of the driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern {
    near: [Option<Token>; WIDE],
    back: Option<Back>,
}

impl Pattern {
    /// Returns what two words have in common, if that says something.
    fn of(one: &Window, of_one: Of<'_>, other: &Window, of_other: Of<'_>) -> Option<Self> {
        let center = of_one.center(one[AROUND]).filter(|&token| of_other.is(token, other[AROUND]))?;
        let mut near = [None; WIDE];
        for (at, common) in near.iter_mut().enumerate().filter(|(at, _)| *at != AROUND) {
            *common = of_one.best(one[at], |token| of_other.is(token, other[at]));
        }
        near[AROUND] = Some(center);
        let pattern = Self { near, back: of_one.back(|back| of_other.is_back(back)) };
        (pattern.worth(|_, _| true, |_| true) >= WORTH).then_some(pattern)
    }

    /// Returns how much the parts that hold say, besides the word itself.
    fn worth(&self, is_so: impl Fn(usize, Token) -> bool, is_back: impl Fn(Back) -> bool) -> u32 {
        let mut strong = if self.back.is_some_and(is_back) { LINKED } else { 0 };
        let (mut small, mut own) = (0, 0);
        for (at, token) in self.near.iter().enumerate() {
            let Some(token) = token.filter(|token| at != AROUND && token.worth() > 0) else { continue };
            let to = match token.kind() {
                Kind::Strong => &mut strong,
                Kind::Small => &mut small,
                Kind::Own => &mut own,
            };
            *to += if is_so(at, token) { token.worth() } else { 0 };
        }
        strong + small.min(SMALL) + own.min(OWN)
    }

    /// True if this pattern stands around a word.
    fn fits(&self, window: &Window, of: Of<'_>) -> bool {
        let is_so = |at: usize, token| of.is(token, window[at]);
        self.near[AROUND].is_some_and(|center| is_so(AROUND, center))
            && self.worth(is_so, |back| of.is_back(back)) >= WORTH
    }

    /// True if this pattern stands around a word, and the piece of memory that the word lies in shows that it is the
    /// driver's, by itself or by a link with a piece that does. The piece has all that the pattern has of the block:
    /// records of other blocks lie in memory that is reused.
    fn fits_surely(&self, near: &Near, of: Of<'_>) -> bool {
        let (own, window) = (near.own(), &near.window);
        let is_of_the_block = |token: Token| matches!(token, Token::Size | Token::End | Token::Last | Token::Inside(_));
        let is_so = |at: usize, token| own.contains(&at) && of.is(token, window[at]);
        let mut tokens = self.near.iter().enumerate().filter_map(|(at, token)| Some((at, (*token)?)));
        self.fits(window, of)
            && tokens.all(|(at, token)| !own.contains(&at) || !is_of_the_block(token) || is_so(at, token))
            && (of.is_linked(near) || self.worth(is_so, |_| false) >= WORTH)
    }

    /// True if a word is certainly the end of a block in the driver's record of that block. The block need not be known,
    /// because the record also has its address.
    fn ends_another(&self, near: &Near) -> bool {
        let end = near.window[AROUND];
        let ends_at = |place: usize| {
            let base = near.window[place];
            base < end && self.fits_surely(near, Of { base, bytes: end - base, at: near.at, known: &[] })
        };
        self.near[AROUND] == Some(Token::End)
            && self.near.iter().position(|&token| token == Some(Token::Inside(0))).is_some_and(ends_at)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (at, token) in self.near.iter().enumerate() {
            if let Some(token) = token.filter(|token| at == AROUND || token.worth() > 0) {
                let place = at as i64 - AROUND as i64;
                let _ = write!(text, "{}{place}:{token}", if text.is_empty() { "" } else { " " });
            }
        }
        if let Some((place, far)) = self.back {
            let _ = write!(text, " back:{}{far:+}", place as i64 - AROUND as i64);
        }
        text
    }

    /// Returns how many blocks have a word with this pattern around it.
    fn shown(&self, blocks: &[Sample]) -> usize {
        blocks.iter().filter(|block| block.words().any(|(word, of)| self.fits(&word.window, of))).count()
    }
}

/// A block that patterns are learned from, and its words explained so far.
struct Sample {
    block: ReferredBlock,
    is_known: Vec<bool>,
    /// Words that were explained before the present step.
    known: Vec<Near>,
}

impl Sample {
    fn new(mut block: ReferredBlock) -> Self {
        block.words.truncate(MOST);
        Self { is_known: vec![false; block.words.len()], known: Vec::new(), block }
    }

    fn words(&self) -> impl Iterator<Item = (&Near, Of<'_>)> {
        self.block.words.iter().map(|word| (word, self.block.of(word.at, &self.known)))
    }

    /// Marks the words that this pattern explains; returns how many are new.
    fn mark(&mut self, pattern: &Pattern) -> usize {
        let fits: Vec<bool> = self.words().map(|(word, of)| pattern.fits(&word.window, of)).collect();
        let new = fits.iter().zip(&self.is_known).filter(|(fits, known)| **fits && !**known).count();
        self.is_known.iter_mut().zip(fits).for_each(|(known, fits)| *known |= fits);
        new
    }

    /// Makes the words marked now known for the next step.
    fn step(&mut self) {
        let marked = self.block.words.iter().zip(&self.is_known).filter(|(_, known)| **known);
        self.known = marked.map(|(word, _)| word.clone()).collect();
    }

    fn count(&self) -> usize {
        self.is_known.iter().filter(|known| **known).count()
    }
}

/// The patterns of the driver's words.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    all: Vec<Pattern>,
    /// For each pattern, the number of words that it was the first to explain.
    words: Vec<usize>,
    /// For each block that was learned from: its bytes, its explained words, and all of its words.
    blocks: Vec<(u64, usize, usize)>,
}

impl Patterns {
    /// Learns patterns from the words that refer to private blocks.
    pub(super) fn learn(blocks: Vec<ReferredBlock>) -> Self {
        let mut blocks: Vec<Sample> = blocks.into_iter().map(Sample::new).collect();
        let mut patterns = Self::default();
        for _ in 0..STEPS {
            let before = patterns.all.len();
            patterns.step(&mut blocks);
            if patterns.all.len() == before {
                break;
            }
            blocks.iter_mut().for_each(Sample::step);
        }
        patterns.blocks =
            blocks.iter().map(|sample| (sample.block.bytes, sample.count(), sample.is_known.len())).collect();
        patterns
    }

    /// Does one step: learns what follows from the known words.
    fn step(&mut self, blocks: &mut [Sample]) {
        for index in 0..blocks.len() {
            for number in 0..blocks[index].is_known.len() {
                if blocks[index].is_known[number] || self.all.len() == PATTERNS {
                    continue;
                }
                let Some(pattern) = best(blocks, index, number) else { continue };
                self.words.push(blocks.iter_mut().map(|block| block.mark(&pattern)).sum());
                self.all.push(pattern);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// True if a pattern is about a word with this meaning, or about an end and another block may end where this one
    /// begins. Most words fit none and need no second look.
    pub(super) fn may_fit(&self, word: u64, of: Of<'_>) -> bool {
        let may = |center| of.is(center, word) || center == Token::End && word == of.base;
        self.all.iter().any(|pattern| pattern.near[AROUND].is_some_and(may))
    }

    /// True if the words around a word that refers to this block, or to its end, fit a pattern.
    pub(super) fn fit(&self, window: &Window, of: Of<'_>) -> bool {
        self.all.iter().any(|pattern| pattern.fits(window, of))
    }

    /// True if that is certain. `of.known`: certain words.
    pub(super) fn fit_surely(&self, near: &Near, of: Of<'_>) -> bool {
        self.all.iter().any(|pattern| pattern.fits_surely(near, of))
    }

    /// True if a word is certainly the end in the driver's record of a block that is not searched for: an idle block of
    /// the pool, a block of the shim, or a module's memory.
    pub(super) fn end_another(&self, near: &Near) -> bool {
        self.all.iter().any(|pattern| pattern.ends_another(near))
    }

    /// Describes what was learned, for the user: of each block its bytes, its explained words and all of its words; of
    /// each pattern its words and its text.
    pub(super) fn described(&self) -> (String, Vec<String>) {
        let blocks = self.blocks.iter().map(|(bytes, known, all)| format!("{bytes}:{known}/{all}"));
        let patterns =
            self.all.iter().zip(&self.words).map(|(pattern, words)| format!("{words} words, {}", pattern.text()));
        (blocks.collect::<Vec<_>>().join(" "), patterns.collect())
    }
}

/// Returns, of a word's patterns that say most, the one that most blocks show.
fn best(blocks: &[Sample], index: usize, number: usize) -> Option<Pattern> {
    let (word, of) = blocks[index].words().nth(number)?;
    let mut all: BTreeSet<(u32, Pattern)> = BTreeSet::new();
    for (_, block) in blocks.iter().enumerate().filter(|(other, _)| *other != index) {
        for (near, of_near) in block.words() {
            let common = Pattern::of(&word.window, of, &near.window, of_near);
            all.extend(common.map(|pattern| (pattern.worth(|_, _| true, |_| true), pattern)));
        }
    }
    let tried = all.into_iter().rev().take(TRIED).map(|(_, pattern)| (pattern.shown(blocks), pattern));
    tried.filter(|(shown, _)| *shown >= SHOWN.min(blocks.len())).max_by_key(|(shown, _)| *shown).map(|(_, best)| best)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x7fff_0000_1230;

    /// Returns a record as a driver may keep it: an address of code, links, a size, and the block's address.
    fn record(base: u64, bytes: u64, at: u64) -> ReferredBlock {
        let words = [0x61, CODE, at ^ 0x770, at ^ 0x330, bytes.next_multiple_of(512), base, base + bytes, 3, 0];
        let around = |of: usize| {
            let mut window = [at.wrapping_mul(7); WIDE];
            for (to, word) in words.iter().enumerate() {
                if let Some(place) = (AROUND + to).checked_sub(of).and_then(|place| window.get_mut(place)) {
                    *place = *word;
                }
            }
            Near { at: at + 8 * of as u64, window }
        };
        ReferredBlock { base, bytes, words: vec![around(5), around(6)] }
    }

    fn learned() -> Patterns {
        Patterns::learn((1..=4_u64).map(|n| record(n << 40, n * 5120, 0x5500_0000 + n * 0x1230)).collect())
    }

    fn fit(patterns: &Patterns, window: &Window, (base, bytes): (u64, u64)) -> bool {
        patterns.fit(window, Of { base, bytes, at: 0x5600_0000, known: &[] })
    }

    #[test]
    fn the_drivers_record_of_another_block_is_known() {
        let patterns = learned();
        assert!(patterns.len() > 0);
        assert_eq!(patterns.described().0, "5120:2/2 10240:2/2 15360:2/2 20480:2/2");
        let of = (0x7f12_3400_0000, 1 << 20);
        let [mut base, end] = <[Near; 2]>::try_from(record(of.0, of.1, 0x5577_1110).words).unwrap();
        assert!(fit(&patterns, &base.window, of) && fit(&patterns, &end.window, of));
        // Behind the record may lie anything.
        base.window[WIDE - 1] = 0x1234;
        assert!(fit(&patterns, &base.window, of));
        // The record of another size belongs to another block, which was freed, and whose address was given out again.
        assert!(!fit(&patterns, &base.window, (of.0, of.1 + 4096)));
    }

    /// At the address where a block begins, another block may end that the search does not know.
    #[test]
    fn the_end_of_an_unknown_block_is_the_drivers() {
        let [_, end] = <[Near; 2]>::try_from(record(0x7f12_3400_0000, 1 << 20, 0x5577_1110).words).unwrap();
        let begins_there = Of { base: 0x7f12_3410_0000, bytes: 4096, at: end.at, known: &[] };
        let patterns = learned();
        assert!(patterns.may_fit(end.window[AROUND], begins_there) && !patterns.fit(&end.window, begins_there));
        assert!(patterns.end_another(&end));
        // A size that does not fit, and a word in a piece of memory behind the record.
        for (place, word) in [(AROUND - 2, 4096), (AROUND - 1, 0x31)] {
            let mut other = end.clone();
            other.window[place] = word;
            assert!(!patterns.end_another(&other), "{place}");
        }
    }

    #[test]
    fn what_a_program_keeps_is_not_the_drivers() {
        let patterns = learned();
        let of = (0x7f12_3400_0000, 1 << 20);
        let mut alone = [0; WIDE];
        alone[AROUND] = of.0;
        assert!(!fit(&patterns, &alone, of));
        // An address and a size, as programs keep them too.
        alone[AROUND - 1] = of.1;
        alone[AROUND + 1] = of.0 + of.1;
        alone[AROUND - 5] = 0x61;
        assert!(!fit(&patterns, &alone, of));
        let mut many = [of.0; WIDE];
        many[AROUND - 4] = CODE;
        assert!(!fit(&patterns, &many, of));
    }

    #[test]
    fn what_says_nothing_is_no_pattern() {
        let window = |base: u64| {
            let mut window = [0; WIDE];
            (window[AROUND], window[AROUND + 1]) = (base, 1);
            window
        };
        let block = |n: u64| ReferredBlock {
            base: n << 40,
            bytes: n * 5120,
            words: vec![Near { at: 0x5500_0000 + n * 0x1230, window: window(n << 40) }],
        };
        assert_eq!(Patterns::learn((1..=4).map(block).collect()).len(), 0);
    }

    /// The links of a tree's node say nothing, except the one to the record of the same block.
    #[test]
    fn what_points_beside_another_word_of_its_block_says_much() {
        let with_node = |n: u64, base: u64, bytes: u64| {
            let mut block = record(base, bytes, 0x5500_0000 + n * 0x1230);
            let mut window = [n.wrapping_mul(0x9_1234_5677); WIDE];
            window[AROUND] = base;
            window[AROUND + 1] = base + bytes;
            window[AROUND - 1] = block.words[0].at - 40;
            block.words.push(Near { at: 0x5900_0000 + n * 0x310, window });
            block
        };
        let patterns = Patterns::learn((1..=4_u64).map(|n| with_node(n, n << 40, n * 5120)).collect());
        let other = with_node(9, 0x7f12_3400_0000, 1 << 20);
        let node = &other.words[2];
        assert!(patterns.fit(&node.window, other.of(node.at, &other.words[..2])));
        assert!(!patterns.fit(&node.window, other.of(node.at, &[])), "without the record it may be anyone's");
    }

    /// A record that the driver's record of a block points to is the driver's, too.
    #[test]
    fn what_a_record_of_the_drivers_points_to_is_the_drivers() {
        let with_entry = |n: u64, base: u64, bytes: u64| {
            let mut block = record(base, bytes, 0x5500_0000 + n * 0x1230);
            let at = 0x5900_0000 + n * 0x310;
            let mut window = [n.wrapping_mul(0x9_1234_5677); WIDE];
            window[AROUND] = base;
            block.words[0].window[AROUND + 6] = at - 16;
            block.words.push(Near { at, window });
            block
        };
        let patterns = Patterns::learn((1..=4_u64).map(|n| with_entry(n, n << 40, n * 5120)).collect());
        assert!(patterns.described().0.starts_with("5120:3/3"), "{:?}", patterns.described());
        let other = with_entry(9, 0x7f12_3400_0000, 1 << 20);
        let entry = &other.words[2];
        assert!(patterns.fit(&entry.window, other.of(entry.at, &other.words[..1])));
        assert!(!patterns.fit(&entry.window, other.of(entry.at, &[])), "without the record it may be anyone's");
    }

    /// A table of the program with words that it has forgotten holds many of a block.
    #[test]
    fn many_words_take_no_longer() {
        let block = |n: u64| {
            let words = (0..100_000).map(|at| Near { at: at * 8, window: [n << 40; WIDE] }).collect();
            ReferredBlock { base: n << 40, bytes: n * 5120, words }
        };
        assert_eq!(Patterns::learn((1..=4).map(block).collect()).len(), 0);
    }
}
