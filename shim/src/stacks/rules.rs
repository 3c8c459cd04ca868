//! Rules that lead from a code address to the caller, and the cache that remembers them.
//!
//! A rule belongs to the code, not to a thread: one cache serves the process. Its entries are two words, the second the
//! rule and the first the key mixed with the rule, so that an entry torn by two writers matches no key. Readers take no
//! lock and write nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// A rule in 64 bits; never 0.
///
/// | bits | |
/// |---|---|
/// | 0–2 | [`Kind`] |
/// | 3–4 | [`SavedFp`] |
/// | 8–31 | offset from the base to the CFA, in words, signed |
/// | 32–47 | place of the saved frame pointer, in words from the CFA (or from fp), signed |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule(u64);

/// How the CFA (the stack pointer before the call) is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// No unwind information: the walk stops here.
    Unknown = 1,
    /// The outermost frame.
    End = 2,
    /// The kernel's frame below a signal handler.
    Signal = 3,
    /// Loaded from fp + offset (realigned stacks).
    AtFp = 4,
    /// fp + offset.
    Fp = 5,
    /// sp + offset.
    Sp = 6,
}

/// Place of the caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SavedFp {
    /// Still in the register.
    Kept = 0,
    /// At CFA + offset.
    AtCfa = 1,
    /// At fp + offset (realigned stacks).
    AtFp = 2,
}

impl Rule {
    pub(super) const UNKNOWN: Rule = Rule(Kind::Unknown as u64);
    pub(super) const END: Rule = Rule(Kind::End as u64);
    pub(super) const SIGNAL: Rule = Rule(Kind::Signal as u64);

    /// Creates a rule from offsets in bytes; `None` if they do not fit or are not multiples of 8.
    pub(super) fn new(kind: Kind, cfa: i64, saved: SavedFp, fp: i64) -> Option<Rule> {
        let (cfa_words, fp_words) = (cfa >> 3, fp >> 3);
        if (cfa | fp) & 7 != 0 || cfa_words != (cfa_words << 40) >> 40 || fp_words != i64::from(fp_words as i16) {
            return None;
        }
        Some(Rule(
            kind as u64 | (saved as u64) << 3 | (cfa_words as u64 & 0xff_ffff) << 8 | u64::from(fp_words as u16) << 32,
        ))
    }

    #[inline(always)]
    pub(super) fn kind(self) -> u8 {
        (self.0 & 7) as u8
    }

    /// True for the two common kinds: base is fp or sp, and fp is kept or at the CFA.
    #[inline(always)]
    pub(super) fn is_plain(self) -> bool {
        self.0 & 7 >= Kind::Fp as u64 && self.0 & (2 << 3) == 0
    }

    #[inline(always)]
    pub(super) fn fp_kept(self) -> bool {
        self.0 & (3 << 3) == 0
    }

    #[inline(always)]
    pub(super) fn fp_at_fp(self) -> bool {
        self.0 & (3 << 3) == (SavedFp::AtFp as u64) << 3
    }

    /// Returns the offset in bytes.
    #[inline(always)]
    pub(super) fn cfa_offset(self) -> u64 {
        (((self.0 << 32) as i64 >> 40) << 3) as u64
    }

    /// Returns the offset in bytes.
    #[inline(always)]
    pub(super) fn fp_offset(self) -> u64 {
        (((self.0 << 16) as i64 >> 48) << 3) as u64
    }
}

const WAYS: usize = 4;
const SETS: usize = 4096;
const ADDRESS_BITS: u32 = 48;

#[repr(align(64))]
struct Set {
    mixed: [AtomicU64; WAYS],
    rules: [AtomicU64; WAYS],
}

/// 16384 rules in 256 KiB. A program touches only the part it uses: rules of adjacent code lie on one page.
static CACHE: Pages = Pages(
    [const { Set { mixed: [const { AtomicU64::new(0) }; WAYS], rules: [const { AtomicU64::new(0) }; WAYS] } }; SETS],
);

#[repr(align(4096))]
struct Pages([Set; SETS]);

/// Raised when code was unmapped; rules of earlier generations no longer match.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Returns the generation for lookups.
#[inline(always)]
pub(super) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Forgets every rule.
pub(super) fn forget_all() {
    let generation = GENERATION.fetch_add(1, Ordering::AcqRel) + 1;
    if generation & 0xffff == 0 {
        // The keys hold 16 bits of the generation: empty the cache before they wrap around.
        for set in &CACHE.0 {
            set.rules.iter().for_each(|rule| rule.store(0, Ordering::Relaxed));
        }
    }
}

/// Forgets addresses without a rule: an object loaded since may cover them.
pub(super) fn forget_unknown() {
    let unknown = Rule::UNKNOWN.0;
    // A failed exchange writes, too, and a page that is written to takes memory.
    let is_unknown = |rule: &&AtomicU64| rule.load(Ordering::Relaxed) == unknown;
    for rule in CACHE.0.iter().flat_map(|set| &set.rules).filter(is_unknown) {
        let _ = rule.compare_exchange(unknown, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[inline(always)]
fn key(address: u64, generation: u64) -> u64 {
    (generation << ADDRESS_BITS) ^ address
}

#[inline(always)]
fn mix(key: u64, rule: u64) -> u64 {
    key ^ rule.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Code that shares a page of sets: its bytes, as a number of bits.
const CODE_BITS: u32 = 14;
/// Sets of a page, as a number of bits.
const PAGE_BITS: u32 = (4096 / size_of::<Set>()).trailing_zeros();

#[inline(always)]
fn set_of(address: u64) -> &'static Set {
    let page = (address >> CODE_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 + PAGE_BITS - SETS.trailing_zeros());
    let within = (address as u32).wrapping_mul(0x9e37_79b1) >> (32 - PAGE_BITS);
    &CACHE.0[(page << PAGE_BITS) as usize | within as usize]
}

/// Returns the remembered rule for `address`.
#[inline(always)]
pub(super) fn lookup(address: u64, generation: u64) -> Option<Rule> {
    let set = set_of(address);
    let key = key(address, generation);
    for way in 0..WAYS {
        let rule = set.rules[way].load(Ordering::Relaxed);
        if mix(key, rule) == set.mixed[way].load(Ordering::Relaxed) && rule != 0 {
            return Some(Rule(rule));
        }
    }
    None
}

/// Remembers a rule that was found while `generation` was current.
pub(super) fn remember(address: u64, generation: u64, rule: Rule) {
    let set = set_of(address);
    let dead = |way: &usize| {
        let rule = set.rules[*way].load(Ordering::Relaxed);
        let key = mix(set.mixed[*way].load(Ordering::Relaxed), rule);
        rule == 0 || key >> ADDRESS_BITS != generation & 0xffff
    };
    let way = (0..WAYS).find(dead).unwrap_or((address >> 2) as usize % WAYS);
    set.mixed[way].store(mix(key(address, generation), rule.0), Ordering::Relaxed);
    set.rules[way].store(rule.0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_gives_back_its_parts() {
        for (cfa, fp) in [(8, -16), (16, 0), (-8, 8), (1 << 20, -(1 << 18)), (-(1 << 26), (1 << 18) - 8)] {
            let rule = Rule::new(Kind::Sp, cfa, SavedFp::AtCfa, fp).unwrap();
            assert_eq!((rule.cfa_offset() as i64, rule.fp_offset() as i64), (cfa, fp));
            assert!(rule.is_plain() && !rule.fp_kept() && rule.kind() == Kind::Sp as u8);
        }
        assert_eq!(Rule::new(Kind::Sp, 12, SavedFp::Kept, 0), None);
        assert_eq!(Rule::new(Kind::Sp, 1 << 26, SavedFp::Kept, 0), None);
        assert_eq!(Rule::new(Kind::Fp, 16, SavedFp::AtCfa, 1 << 18), None);
        let realigned = Rule::new(Kind::AtFp, -8, SavedFp::AtFp, 0).unwrap();
        assert!(!realigned.is_plain() && realigned.fp_at_fp() && !realigned.fp_kept());
    }

    #[test]
    fn rules_of_code_that_lies_together_share_a_page() {
        let page = |address: u64| (std::ptr::from_ref(set_of(address)) as usize - CACHE.0.as_ptr() as usize) / 4096;
        let distinct = |all: &mut dyn Iterator<Item = u64>| all.map(page).collect::<std::collections::BTreeSet<_>>();
        let code = 0x7f12_3455_c000..0x7f12_3456_0000_u64;
        assert_eq!(distinct(&mut code.clone().step_by(7)).len(), 1);
        let sets: std::collections::BTreeSet<_> = code.step_by(64).map(|at| std::ptr::from_ref(set_of(at))).collect();
        assert!(sets.len() > 40, "256 addresses in {} of 64 sets", sets.len());
        assert!(distinct(&mut (0x4000_0000..0x4100_0000).step_by(0x4000)).len() > 60, "1024 regions on 64 pages");
    }

    #[test]
    fn rules_are_found_by_address_and_generation_only() {
        let rule = Rule::new(Kind::Sp, 48, SavedFp::AtCfa, -16).unwrap();
        // Generations that no walk uses, so that other tests' walks do not meet these entries.
        let (then, now) = (0xf00d, 0xf00e);
        for address in (0x1000..0x1400).step_by(8) {
            remember(address, then, rule);
        }
        let found = (0x1000..0x1400).step_by(8).filter(|a| lookup(*a, then) == Some(rule)).count();
        assert!(found > 100, "only {found} of 128 are still there");
        assert_eq!(lookup(0x1000, now), None);
        assert_eq!(lookup(0x1001, then), None);
    }
}
