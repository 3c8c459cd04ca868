//! The patterns of the driver's words in each context of the process, learned once for each context from private
//! blocks.

use super::Limit;
use super::driver::{MOST, Patterns, ReferredBlock};
use super::host::{self, Word};
use super::private::{Private, with_private_blocks};
use super::targets::{Target, Targets};
use super::tokens::Near;
use crate::pool;
use crate::pool::context_pool::ContextPool;
use crate::process::wiped::{self, Place};
use crate::shim::Shim;
use gpumem_wire::kinds::Vendor;
use std::sync::{Arc, Mutex};

/// Maximum number of contexts; the oldest is forgotten for a new one.
const CONTEXTS: usize = 16;
/// Sizes of the blocks, in units of 512 bytes: parts of what the driver takes at a time, and more than that.
const SIZES: [u64; 22] = [
    1, 6, 11, 19, 27, 41, 67, 141, 261, 403, 661, 1041, 1399, 2011, 4096, 6144, 8192, 10240, 12288, 14336, 16384, 20480,
];
const UNIT: u64 = 512;

/// Patterns of a context: its pool, and which context of that pool.
struct Learned {
    context_pool: usize,
    generation: u32,
    patterns: Arc<Patterns>,
}

// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const LEARNED: Place<Mutex<Vec<Learned>>> = unsafe { Place::new(wiped::Word::DriverPatterns) };

/// Returns the patterns of each context and, if a context has none, the reason.
pub(super) fn patterns(shim: &'static Shim, limit: &mut Limit) -> (Vec<Arc<Patterns>>, Option<&'static str>) {
    let Some(pool) = pool::of(Vendor::Cuda) else { return (Vec::new(), Some("gpumem has no pool here")) };
    let context_pools = pool.context_pools();
    let (mut all, mut why) = (Vec::new(), context_pools.is_empty().then_some("there is no context"));
    LEARNED.locked().retain(|learned| context_pools.iter().any(|context_pool| learned.is_of(context_pool)));
    for context_pool in context_pools {
        let known =
            LEARNED.locked().iter().find(|learned| learned.is_of(context_pool)).map(|learned| learned.patterns.clone());
        let learned = known.map_or_else(|| learn(shim, pool, context_pool, limit), Ok);
        match learned {
            Ok(patterns) => all.push(patterns),
            Err(because) => why = Some(because),
        }
    }
    (all, why)
}

impl Learned {
    fn is_of(&self, context_pool: &'static ContextPool) -> bool {
        self.context_pool == std::ptr::from_ref(context_pool) as usize && self.generation == context_pool.generation()
    }
}

/// Learns the patterns of one context.
fn learn(
    shim: &'static Shim,
    pool: &'static pool::Pool,
    context_pool: &'static ContextPool,
    limit: &mut Limit,
) -> Result<Arc<Patterns>, &'static str> {
    let generation = context_pool.generation();
    let sizes = SIZES.map(|size| size * UNIT);
    let blocks = with_private_blocks(pool, context_pool, &sizes, |private| look(shim, private, limit))??;
    let learned = Learned {
        context_pool: std::ptr::from_ref(context_pool) as usize,
        generation,
        patterns: Arc::new(Patterns::learn(blocks)),
    };
    let patterns = learned.patterns.clone();
    let mut all = LEARNED.locked();
    if all.len() == CONTEXTS {
        all.remove(0);
    }
    all.push(learned);
    Ok(patterns)
}

/// Finds all words that refer to private blocks.
fn look(shim: &'static Shim, private: &Private<'_>, limit: &mut Limit) -> Result<Vec<ReferredBlock>, &'static str> {
    // The address behind a block is its end, and another block may begin there.
    let target = |block: &std::ops::Range<u64>| Target {
        bytes: block.end - block.start,
        ..Target::new(block.start, block.end + 1, 0)
    };
    let targets = Targets::new(private.blocks().iter().map(target).collect());
    let referred = |target: &Target| ReferredBlock {
        base: target.base,
        bytes: target.bytes,
        // The room is taken now, because the shim's own memory must not move during the search.
        words: Vec::with_capacity(MOST),
    };
    let mut blocks: Vec<ReferredBlock> = targets.all().iter().map(referred).collect();
    let is_over = || limit.check() || private.is_wanted();
    let found = host::look(shim, &targets, is_over, |word: &Word<'_>| {
        for index in [Some(word.index), targets.ends_at(word.index, word.word)].into_iter().flatten() {
            let words = &mut blocks[index].words;
            if words.len() < MOST {
                words.push(Near { at: word.at, window: word.window() });
            }
        }
    });
    match found.incomplete {
        None => Ok(blocks),
        Some(_) if private.is_wanted() => {
            Err("the program needed the memory, or ended the context, while it was learned")
        }
        Some(_) => Err("there was no time to look at them"),
    }
}

/// Reports the patterns as facts of a search.
pub(super) fn tell(patterns: &[Arc<Patterns>], why: Option<&'static str>, fact: &mut impl FnMut(&str, String)) {
    fact("driver_patterns", patterns.iter().map(|patterns| patterns.len()).sum::<usize>().to_string());
    let mut number = 0;
    for (context, patterns) in patterns.iter().enumerate() {
        let (blocks, texts) = patterns.described();
        fact(&format!("driver_blocks_{context}"), blocks);
        for text in texts {
            fact(&format!("driver_pattern_{number:02}"), text);
            number += 1;
        }
    }
    if let Some(why) = why {
        fact("driver_unknown", why.into());
    }
}
