//! The pool's use of its guard. All watched memory is read on a user's request, and with `sync` also when the program
//! waits for the device. Launches are noted.

use super::block::{Block, FRONT, State};
use super::claims::Claim;
use super::context_pool::{Begun, ContextPool, For};
use super::guard::{Guard, LaunchKind};
use super::of;
use super::releaser::Releaser;
use super::switch::Switch;
use crate::call::Call;
use crate::gate;
use crate::process::clock;
use crate::progress::activity;
use crate::shim::Shim;
use crate::stranded;
use gpumem_abi::types::Stream;
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Number of blocks that are read together. A free of one of them, or a request that runs out, waits until they are
/// read.
const TOGETHER: usize = 128;
/// Time by which a wait of the program may become longer, unless there is need for more.
const AT_A_WAIT: Duration = Duration::from_millis(500);

/// Result of a check.
#[derive(Default)]
struct Checked {
    live: u64,
    freed: u64,
    written: u64,
    /// Blocks that were not read, because no time was left or the driver refused.
    left: u64,
    /// Contexts that another check was reading for the whole time.
    taken: u64,
}

impl Checked {
    fn add(&mut self, blocks: u64, live: bool, hit: Option<u64>) {
        match hit {
            Some(hit) => {
                *if live { &mut self.live } else { &mut self.freed } += blocks;
                self.written += hit;
            }
            None => self.left += blocks,
        }
    }
}

/// Claims the live and watched blocks among these, and skips the others.
fn claimed(blocks: &[&'static Block]) -> (Vec<&'static Block>, Claim) {
    let addresses: Vec<u64> = blocks.iter().map(|block| block.addr()).collect();
    let claim = Claim::of(addresses.clone());
    let is_live =
        |(block, addr): (&&'static Block, &u64)| block.is(State::Live) && block.addr() == *addr && block.is_watched();
    (blocks.iter().zip(&addresses).filter(|&pair| is_live(pair)).map(|(block, _)| *block).collect(), claim)
}

/// Reads all watched memory of a context, as long as time is left. One thread at a time does that.
fn check(
    releaser: &Releaser,
    guard: &Guard,
    context_pool: &'static ContextPool,
    wanted: For,
    left: &mut dyn FnMut() -> Duration,
    checked: &mut Checked,
) {
    let mut check = match context_pool.begin_check(wanted, left) {
        Begun::Check(check) => check,
        Begun::Read => return,
        Begun::NoTime => return checked.taken += 1,
    };
    let Some(_hold) = context_pool.hold() else { return };
    let start = clock::precise_ns();
    let watched = |block: &&'static Block| block.is(State::Live) && block.is_watched();
    let live: Vec<_> =
        releaser.blocks().all().into_iter().filter(|block| context_pool.has(block)).filter(watched).collect();
    let (mut good, before, before_left) = (true, checked.written, checked.left);
    for blocks in live.chunks(TOGETHER) {
        let (blocks, claim) = claimed(blocks);
        let time = left();
        let hit = if time.is_zero() { None } else { guard.read_zones(context_pool, (&blocks, &claim), time) };
        good &= hit.is_some();
        checked.add(blocks.len() as u64, true, hit);
    }
    if good && checked.written == before {
        guard.remember_good(start);
    }
    let mut turns = context_pool.quarantined_turns();
    while let Some(lent) = context_pool.lend_quarantined(&mut turns, TOGETHER) {
        let time = left();
        let hit = if time.is_zero() { None } else { guard.read_freed(context_pool, &lent.blocks, time) };
        checked.add(lent.blocks.len() as u64, false, hit);
        context_pool.put_in_quarantine(lent);
    }
    check.is_whole = checked.left == before_left;
}

/// Returns a vendor's releaser and guard, if it has a guard.
fn with_guard(vendor: Vendor) -> Option<(&'static Releaser, &'static Guard)> {
    let releaser = &of(vendor)?.releaser;
    Some((releaser, releaser.guard()?))
}

/// Returns the reason why nothing can be read now.
fn may_not(shim: &Shim, switch: &Switch) -> Option<&'static str> {
    if activity::broken() {
        Some(activity::WHY_BROKEN)
    } else if shim.registry.streams.capturing() > 0 {
        Some("a stream is being captured: ask again")
    } else if switch.is_ending() {
        Some("the process is ending")
    } else {
        None
    }
}

/// Reads all memory that the guard watches, as long as time is left. Returns a sentence for users.
pub(crate) fn check_all(shim: &'static Shim, left: &mut dyn FnMut() -> Duration) -> Result<String, String> {
    let Some((releaser, guard)) = with_guard(Vendor::Cuda) else {
        return Err(
            "there is no guard here: it was not started with GPUMEM_GUARD=1, the pool is off, or no memory was \
                    asked for so far"
                .into(),
        );
    };
    if let Some(why) = may_not(shim, releaser.switch()) {
        return Err(why.into());
    }
    let mut checked = Checked::default();
    for context_pool in releaser.idle().contexts().all() {
        check(releaser, guard, context_pool, For::User, left, &mut checked);
    }
    let Checked { live, freed, written, left, taken } = checked;
    let taken = match taken {
        0 => String::new(),
        _ => format!(
            "; {taken} contexts were not read, since another check went on for the whole time: ask again, or with a longer \
             --timeout"
        ),
    };
    let left = if left == 0 { String::new() } else { format!("; {left} could not be read in time") };
    let found = if written == 0 {
        "nothing written where it should not be".to_owned()
    } else {
        format!("{written} findings: see gpumem events")
    };
    let without = shim.ledger.counter(counters::GUARD_WITHOUT);
    let without = if without == 0 { String::new() } else { format!("; {without} allocations were not watched") };
    Ok(format!("{live} live and {freed} freed blocks read: {found}{left}{taken}{without}"))
}

/// Reads the whole context after the program has waited for the device.
#[cold]
pub(crate) fn at_wait() {
    let Some((releaser, guard)) = with_guard(Vendor::Cuda) else { return };
    let Some(shim) = gate::shim() else { return };
    if releaser.switch().aside(shim) || may_not(shim, releaser.switch()).is_some() {
        return;
    }
    if let Some(context_pool) = gate::note(|shim| releaser.idle().context_pool_of_thread(shim)).flatten() {
        let end = Instant::now() + AT_A_WAIT;
        let mut left = || end.saturating_duration_since(Instant::now());
        check(releaser, guard, context_pool, For::Wait, &mut left, &mut Checked::default());
    }
}

/// Returns true if a word is an address in a block, or in front of the part of a block that is the program's.
fn is_in_block(releaser: &Releaser, word: u64) -> bool {
    let blocks = releaser.blocks();
    stranded::may_matter(word) && (blocks.around(word).is_some() || blocks.around(word.saturating_add(FRONT)).is_some())
}

/// Notes a launch that may write. `words`: arguments of the launch that may be addresses.
#[cold]
pub(crate) fn note_launch(call: &Call, stream: Stream, what: LaunchKind, words: &[u64]) {
    let Some((releaser, guard)) = with_guard(call.vendor) else { return };
    // Work without code writes to its arguments alone. So a recorded event, for example, is not noted.
    if matches!(what, LaunchKind::Other) && !words.iter().any(|&word| is_in_block(releaser, word)) {
        return;
    }
    gate::note(|shim| guard.launched(shim, call, stream, what, words));
}

/// Notes that a graph is about to run. `refers` returns true if the graph refers to one of the given ranges, which are
/// sorted.
#[cold]
pub(crate) fn of_launched_graph(vendor: Vendor, refers: impl Fn(&[Range<u64>]) -> bool) {
    let Some((_, guard)) = with_guard(vendor) else { return };
    let ranges = guard.freed_in_graphs();
    if !refers(&ranges) {
        return;
    }
    for range in ranges.iter().filter(|range| refers(std::slice::from_ref(range))) {
        gate::note(|shim| guard.tell_of_graph(shim, range.start));
    }
}
