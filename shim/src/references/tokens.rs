//! Meanings of a word near an address of a block.

use std::fmt;
use std::ops::Range;

/// Number of words examined on each side of a word.
pub(super) const AROUND: usize = 16;
/// Words of a window; then its bytes.
pub(super) const WIDE: usize = 2 * AROUND + 1;
pub(super) const WINDOW: usize = WIDE * 8;

/// A word and its neighbours.
pub(super) type Window = [u64; WIDE];

/// Worth of a link from one of the driver's records to another.
pub(super) const LINKED: u32 = 9;
/// Maximum distance between a link's target and the word that it is recognised by.
const NEAR: u64 = 512;
/// Sizes are rounded to these.
const UNITS: [u64; 3] = [1, 512, 2 << 20];

/// Meaning of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Token {
    /// The same number in each record: a kind, a count, an address of the driver's code or data.
    Number(u64),
    /// An address inside the block, at this offset.
    Inside(u64),
    /// The end of the block, its last byte, its size; or one of these with the size rounded as the driver does.
    End,
    Last,
    Size,
    /// An address at this distance behind the word itself: the record points into itself.
    Itself(i64),
    /// An address at this distance behind another known driver word that refers to the block: one of its records points
    /// to another.
    Link(i64),
}

impl Token {
    /// Returns how much this meaning of a word says.
    pub(super) fn worth(self) -> u32 {
        match self {
            Self::Number(0) => 0,
            Self::Number(number) if number < 1 << 32 => 1,
            Self::Inside(_) | Self::End | Self::Last | Self::Size | Self::Itself(_) => 2,
            Self::Number(_) => 4,
            Self::Link(_) => LINKED,
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Number(number) if number < 1 << 32 => Kind::Small,
            Self::Number(_) | Self::Link(_) => Kind::Strong,
            Self::Inside(_) | Self::End | Self::Last | Self::Size | Self::Itself(_) => Kind::Own,
        }
    }
}

/// Words that the program itself may have beside a block's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Words that programs do not have there.
    Strong,
    /// Small numbers.
    Small,
    /// Sizes and addresses of the block, and of its own record.
    Own,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number:#x}"),
            Self::Inside(offset) => write!(f, "block+{offset:#x}"),
            Self::End => f.write_str("end"),
            Self::Last => f.write_str("last"),
            Self::Size => f.write_str("size"),
            Self::Itself(offset) => write!(f, "itself{offset:+}"),
            Self::Link(offset) => write!(f, "link{offset:+}"),
        }
    }
}

/// A word that refers to a block, and its neighbours.
#[derive(Clone, Debug)]
pub(super) struct Near {
    pub at: u64,
    pub window: Window,
}

/// Shortest length in the word before memory of the C library. That word gives the memory's length, a multiple of 16,
/// and says that the memory before it is in use.
const SHORTEST: u64 = 0x20;
const LONGEST: u64 = 1 << 30;

impl Near {
    /// Returns the surrounding words that lie in the same piece of the C library's memory, as far as that shows. A word
    /// in another piece may belong to anything.
    pub(super) fn own(&self) -> Range<usize> {
        let begins_another = |&place: &usize| {
            let (at, word) = (self.address(place), self.window[place]);
            at % 16 == 8 && word & 9 == 1 && (SHORTEST..LONGEST).contains(&(word & !7))
        };
        let first = (0..AROUND).rev().find(begins_another).map_or(0, |place| place + 1);
        let end = (AROUND + 1..WIDE).find(begins_another).unwrap_or(WIDE);
        first..end
    }

    fn address(&self, place: usize) -> u64 {
        self.at.wrapping_add(8 * place as u64).wrapping_sub(8 * AROUND as u64)
    }

    /// True if an address lies in the same piece, within what is known of it.
    fn has(&self, address: u64) -> bool {
        let far = (address.wrapping_sub(self.at) as i64).div_euclid(8);
        usize::try_from(far.saturating_add(AROUND as i64)).is_ok_and(|place| self.own().contains(&place))
    }

    fn leads_into(&self, other: &Self) -> bool {
        self.window[self.own()].iter().any(|&word| other.has(word))
    }
}

/// The facts with which words are examined: the block, the address of the word that refers to it, and the other words
/// known to be the driver's.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub base: u64,
    pub bytes: u64,
    pub at: u64,
    pub known: &'a [Near],
}

fn behind(word: u64, at: u64) -> Option<i64> {
    let far = word.wrapping_sub(at) as i64;
    (far.unsigned_abs() <= NEAR).then_some(far)
}

/// A link back: a driver record with a word of the block has an address near another such word. The numbers are the
/// place in the window of the first word, and the distance behind the second.
pub(super) type Back = (usize, i64);

impl Of<'_> {
    /// True if a word has this meaning.
    pub(super) fn is(&self, token: Token, word: u64) -> bool {
        match token {
            Token::Number(number) => word == number,
            Token::Inside(offset) => word == self.base.wrapping_add(offset),
            Token::End => self.is_size(word.wrapping_sub(self.base)),
            Token::Last => self.is_size(word.wrapping_sub(self.base).wrapping_add(1)),
            Token::Size => self.is_size(word),
            Token::Itself(far) => word.wrapping_sub(self.at) as i64 == far,
            Token::Link(far) => self.others().any(|other| word.wrapping_sub(other.at) as i64 == far),
        }
    }

    fn is_size(&self, word: u64) -> bool {
        UNITS.iter().any(|&unit| word == self.bytes.next_multiple_of(unit))
    }

    /// Returns the known words, without the word itself.
    fn others(&self) -> impl Iterator<Item = &Near> {
        self.known.iter().filter(|other| other.at != self.at)
    }

    /// True if a known record points to the word in this way.
    pub(super) fn is_back(&self, (place, far): Back) -> bool {
        self.others().any(|other| other.window[place].wrapping_sub(self.at) as i64 == far)
    }

    /// True if a known word lies in the same piece as this one, or one of the two pieces has an address in the other.
    pub(super) fn is_linked(&self, near: &Near) -> bool {
        self.others().any(|other| near.has(other.at) || near.leads_into(other) || other.leads_into(near))
    }

    /// Returns how known records point to the word, if they point to another word in the same way.
    pub(super) fn back(&self, is_so: impl Fn(Back) -> bool) -> Option<Back> {
        let of_one = |other: &Near| {
            let places = other.window.iter().enumerate();
            let mut all = places.filter_map(|(place, &word)| Some((place, behind(word, self.at)?)));
            all.find(|&back| is_so(back))
        };
        self.others().find_map(of_one)
    }

    /// Returns the meaning of the word itself: an address of the block, or its end.
    pub(super) fn center(&self, word: u64) -> Option<Token> {
        match word.wrapping_sub(self.base) {
            _ if self.is(Token::Last, word) => Some(Token::Last),
            _ if self.is(Token::End, word) => Some(Token::End),
            offset => (offset < self.bytes).then_some(Token::Inside(offset)),
        }
    }

    /// Returns the meaning of a word that says most, of the meanings that it also has for another block.
    pub(super) fn best(&self, word: u64, is_so: impl Fn(Token) -> bool) -> Option<Token> {
        let of_block = [Token::Size, Token::End, Token::Last].into_iter().filter(|&token| self.is(token, word));
        let inside = Some(word.wrapping_sub(self.base)).filter(|&offset| offset < self.bytes).map(Token::Inside);
        let itself = behind(word, self.at).map(Token::Itself);
        // An address near the word itself is also near other words of its record.
        let others = self.others().filter(|_| itself.is_none());
        let links = others.filter_map(|other| behind(word, other.at)).map(Token::Link);
        let all = of_block.chain(inside).chain(itself).chain(links).chain([Token::Number(word)]);
        all.filter(|&token| is_so(token)).max_by_key(|token| token.worth())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x5500_0000_1000;

    /// Returns a word with these words at these distances behind it.
    fn near(at: u64, words: &[(i64, u64)]) -> Near {
        let mut window = [0; WIDE];
        for &(place, word) in words {
            window[(AROUND as i64 + place) as usize] = word;
        }
        Near { at, window }
    }

    #[test]
    fn a_piece_of_the_heap_ends_where_another_begins() {
        // Behind 24 bytes before it and 40 of its own.
        let piece = near(AT, &[(-1, 0x31), (-5, 0x21), (5, 0x51), (15, 0x91)]);
        assert_eq!(piece.own(), AROUND..AROUND + 5);
        assert!(piece.has(AT) && piece.has(AT + 39) && !piece.has(AT + 40) && !piece.has(AT - 8));
        // Not a length: at a wrong address, even, not a multiple, too short, or an address.
        for (place, word) in [(-2, 0x31), (-1, 0x30), (-1, 0x39), (-1, 0x11), (-1, AT + 1)] {
            assert_eq!(near(AT, &[(place, word)]).own(), 0..WIDE, "{place} {word:#x}");
        }
    }

    #[test]
    fn pieces_are_linked_by_an_address_in_either_direction() {
        let record = near(AT, &[(-1, 0x51), (1, 7), (9, 0x41)]);
        let linked =
            |near: Near| Of { base: 0, bytes: 0, at: near.at, known: std::slice::from_ref(&record) }.is_linked(&near);
        let far = AT + 0x800;
        assert!(linked(near(far, &[(-1, 0x31), (2, AT)])), "it leads to the record");
        assert!(linked(near(AT + 16, &[(-3, 0x51)])), "it is a part of the record");
        assert!(!linked(near(far, &[(-1, 0x31), (-3, AT)])), "what leads there is another's");
        assert!(!linked(near(far, &[(-1, 0x31), (2, AT + 0x48)])), "it leads behind the record");
        let leads = near(AT, &[(-1, 0x51), (1, far), (9, 0x41)]);
        let of = Of { base: 0, bytes: 0, at: far, known: std::slice::from_ref(&leads) };
        assert!(of.is_linked(&near(far, &[(-1, 0x31)])), "the record leads to it");
        assert!(!of.is_linked(&near(far + 0x20, &[(-1, 0x31)])), "the record leads to what lies before it");
    }
}
