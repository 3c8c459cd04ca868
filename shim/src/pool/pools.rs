//! The pools of the process, one for each vendor: made here, turned off and on, and handled together.

use super::block::Block;
use super::switch::is_peer_access_enabled;
use super::watcher::NewWatcher;
use super::{Pool, block_records};
use crate::process::heap;
use crate::process::wiped::{Place, Word};
use crate::progress::activity;
use crate::shim::Shim;
use crate::{gate, records};
use gpumem_wire::kinds::{Interception, Mode, PoolState, Vendor};
use gpumem_wire::{counters, units};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// How often the control thread of a group's member checks if another member is short of memory.
pub(crate) const LISTENS_EVERY: Duration = Duration::from_millis(100);

#[inline(always)]
const fn place(vendor: Vendor) -> Place<Pool> {
    // SAFETY: `Place::new` asks that all places of a word hold one type. Only this function names these words.
    unsafe { Place::new(Word::Pool(vendor)) }
}

/// Returns the pool of a vendor, if there is one.
#[inline(always)]
pub(crate) fn of(vendor: Vendor) -> Option<&'static Pool> {
    place(vendor).get()
}

/// Returns the state of a vendor's pool: on, or the reason why it is off.
pub(crate) fn state(shim: &Shim, vendor: Vendor) -> PoolState {
    let header = shim.ledger.header();
    match of(vendor) {
        _ if !shim.settings.pool => PoolState::Off,
        _ if header.mode().load(Relaxed) != Mode::Active as u32 => PoolState::RecordOnly,
        _ if header.interception().load(Relaxed) != Interception::Complete as u32 => PoolState::Interception,
        _ if !shim.trust.pool(vendor) => PoolState::Verdict,
        None => PoolState::Unused,
        Some(pool) if pool.releaser.switch().is_closed() => PoolState::Off,
        Some(_) if is_peer_access_enabled() => PoolState::Peers,
        Some(_) if activity::broken() => PoolState::Broken,
        Some(_) => PoolState::On,
    }
}

/// Returns all pools of the process.
pub(crate) fn all() -> impl Iterator<Item = &'static Pool> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(of)
}

/// Turns the pools off, once `GPUMEM_POOL` is 0, and gives back what they keep. Returns a sentence for users. Memory
/// that cannot go back yet, or that another thread is just about to keep, goes within a second or two.
pub(crate) fn step_aside(shim: &'static Shim) -> String {
    shut_all();
    format!("the pool keeps nothing from now on: {}", trim(shim))
}

/// Turns the pools on again after [`step_aside`].
///
/// # Errors
/// The reason why they stay off.
pub(crate) fn step_back_in(shim: &'static Shim) -> Result<String, String> {
    if !shim.settings.pool {
        return Err("GPUMEM_POOL was 0 when the process started: the pool stays off".into());
    }
    all().filter(|pool| shim.trust.pool(pool.vendor)).for_each(|pool| pool.releaser.switch().open());
    Ok("the pool serves what comes from now on".into())
}

/// Returns the pool of a vendor. Makes it once recording has begun and the shim may do more than record.
#[inline]
pub(crate) fn open(vendor: Vendor, watcher: NewWatcher) -> Option<&'static Pool> {
    match of(vendor) {
        Some(pool) => Some(pool),
        None => make(vendor, watcher),
    }
}

/// Returns the pool of a vendor. Makes it if there is a limit that it has to hold.
#[inline]
pub(crate) fn of_limited(vendor: Vendor, watcher: NewWatcher) -> Option<&'static Pool> {
    of(vendor).or_else(|| gate::shim().filter(|shim| is_limited(shim)).and_then(|_| make(vendor, watcher)))
}

/// Returns true if there is a limit, for this process alone or for its group.
fn is_limited(shim: &Shim) -> bool {
    shim.in_force.limit() != 0 || shim.group.is_some()
}

#[cold]
fn make(vendor: Vendor, watcher: NewWatcher) -> Option<&'static Pool> {
    let shim = gate::shim().filter(|shim| records::handles::may_be_virtual(shim).is_ok())?;
    if vendor == Vendor::Hip {
        shim.ask_hip();
    }
    let keeps = shim.settings.pool && shim.trust.pool(vendor);
    if !keeps && !is_limited(shim) {
        return None;
    }
    let made = Pool::new(vendor, &shim.in_force.all(), keeps, watcher);
    let made = place(vendor).set_if_empty(Box::new(made));
    // The pool missed the changes that came before it was published.
    made.apply_settings(&shim.in_force.all());
    heap::when_refused(shut_all);
    // SAFETY: `at_exit` has the type that `atexit` asks for. It is code of this library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
    of(vendor)
}

/// Closes all pools: they serve and keep nothing from now on.
fn shut_all() {
    all().for_each(|pool| pool.releaser.switch().shut());
}

/// The process is ending: nothing is given back any more, not even by the shim's threads. Handlers run in the reverse
/// order of their registration, so this runs before those of the library.
///
/// The waits for threads are here, not after the library has ended: from then on each call of the program fails, and
/// the sooner the process exits, the less time threads that go on have to act on that.
extern "C" fn at_exit() {
    for pool in all() {
        pool.releaser.switch().end();
        for context_pool in pool.context_pools() {
            // The wait is bounded, since such a release may wait for an action that the program takes only later.
            context_pool.wait_for_releases(Duration::from_secs(1));
        }
        gate::record_if_started(|shim| pool.report_all(shim));
    }
}

/// Runs once a second on the control thread. Tells the group the idle bytes.
pub(crate) fn housekeeping(shim: &'static Shim) {
    all().for_each(|pool| pool.releaser.housekeeping(shim));
    let Some(group) = &shim.group else { return };
    records::grouped::look_after(shim);
    for pool in all() {
        for context_pool in pool.context_pools() {
            if let Some(place) = records::grouped::place(shim, context_pool.record()) {
                group.keeps(&place, pool.idle_on(context_pool.device));
            }
        }
    }
}

/// Gives back all idle memory, for `gpumem trim`. Returns a sentence for users.
pub(crate) fn trim(shim: &'static Shim) -> String {
    shim.count(counters::TRIMS, 1);
    let (back, stays) = all().fold((0, 0), |(back, stays), pool| {
        let (more, left) = pool.releaser.give_back(shim, None, false);
        (back + more, stays + left)
    });
    match stays {
        0 => format!("{} given back", units::bytes(back)),
        _ => format!("{} given back; {} stay while their contexts work", units::bytes(back), units::bytes(stays)),
    }
}

/// Gives back the unused memory of this process if another member of its group is short of memory.
pub(crate) fn give_to_group(shim: &'static Shim) {
    let Some(group) = &shim.group else { return };
    let Some((call, places)) = group.called() else { return };
    for place in places {
        for pool in all().filter(|pool| pool.vendor == place.vendor && !records::parking::is_quiet()) {
            pool.releaser.give_back(shim, Some(place.device), true);
            group.keeps(&place, pool.idle_on(place.device));
        }
    }
    group.answer(call);
}

/// Requires the real free for the block that contains an address, since others may know of the block.
pub(crate) fn pin(addr: u64) {
    let around = |pool: &'static Pool| pool.releaser.blocks().around(addr);
    all().filter_map(around).for_each(Block::pin);
}

/// Notes that others have the address of the block that contains `addr`. Returns the slot of its record, or `None` if
/// no block contains it.
pub(crate) fn note_shown(shim: &Shim, addr: u64) -> Option<u32> {
    let block = all().find_map(|pool| pool.releaser.blocks().around(addr));
    block.map(|block| block_records::shown(shim, block))
}
