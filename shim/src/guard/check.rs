//! Checks: all watched memory is read on a user's request, and with `sync` also when the program waits for the device.

use super::turns::{Begun, For};
use super::{Guard, of};
use crate::gate;
use crate::pool::Pool;
use crate::pool::block::{Block, State};
use crate::pool::claims::Claim;
use crate::pool::context_pool::ContextPool;
use crate::process::clock;
use crate::progress::activity;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
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
    (pool, guard): (&Pool, &Guard),
    context_pool: &'static ContextPool,
    wanted: For,
    left: &mut dyn FnMut() -> Duration,
    checked: &mut Checked,
) {
    let mut check = match guard.turns.of(context_pool).begin(wanted, left) {
        Begun::Check(check) => check,
        Begun::Read => return,
        Begun::NoTime => return checked.taken += 1,
    };
    let Some(_hold) = context_pool.hold() else { return };
    let start = clock::precise_ns();
    let watched = |block: &&'static Block| block.is(State::Live) && block.is_watched();
    let live: Vec<_> =
        pool.releaser.blocks().all().into_iter().filter(|block| context_pool.has(block)).filter(watched).collect();
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

/// Returns the reason why nothing can be read now.
fn may_not(shim: &Shim, pool: &Pool) -> Option<&'static str> {
    if activity::broken() {
        Some(activity::WHY_BROKEN)
    } else if shim.registry.streams.capturing() > 0 {
        Some("a stream is being captured: ask again")
    } else if pool.releaser.switch().is_ending() {
        Some("the process is ending")
    } else {
        None
    }
}

/// Reads all memory that the guard watches, as long as time is left. Returns a sentence for users.
pub(crate) fn check_all(shim: &'static Shim, left: &mut dyn FnMut() -> Duration) -> Result<String, String> {
    let Some((pool, guard)) = of(Vendor::Cuda) else {
        return Err(
            "there is no guard here: it was not started with GPUMEM_GUARD=1, the pool is off, or no memory was \
                    asked for so far"
                .into(),
        );
    };
    if let Some(why) = may_not(shim, pool) {
        return Err(why.into());
    }
    let mut checked = Checked::default();
    for context_pool in pool.context_pools() {
        check((pool, guard), context_pool, For::User, left, &mut checked);
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
    let Some((pool, guard)) = of(Vendor::Cuda) else { return };
    // The pool steps aside whenever nothing may be read.
    if gate::shim().is_none_or(|shim| pool.releaser.switch().aside(shim)) {
        return;
    }
    if let Some(context_pool) = gate::note(|shim| pool.context_pool_of_thread(shim)).flatten() {
        let end = Instant::now() + AT_A_WAIT;
        let mut left = || end.saturating_duration_since(Instant::now());
        check((pool, guard), context_pool, For::Wait, &mut left, &mut Checked::default());
    }
}
