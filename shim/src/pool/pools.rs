//! The pools of the process, one for each vendor: made, turned off and on.

use super::{Pool, REACHED, block_records, decay};
use crate::process::heap;
use crate::process::wiped::{Place, Word};
use crate::progress::activity;
use crate::shim::Shim;
use crate::{gate, records};
use gpumem_wire::kinds::{Interception, Mode, PoolState, Vendor};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Since [`step_aside`] pools are off, also pools that are made later.
pub(super) static STEPPED_ASIDE: AtomicBool = AtomicBool::new(false);

#[inline(always)]
const fn place(vendor: Vendor) -> Place<Pool> {
    // SAFETY: `Place::new` asks that all places of a word hold one type. Only this function names these words.
    unsafe { Place::new(Word::Pool(vendor)) }
}

/// The pool of a vendor, once there is one.
#[inline(always)]
pub(crate) fn of(vendor: Vendor) -> Option<&'static Pool> {
    place(vendor).get()
}

/// Whether the pool serves a vendor's contexts, and why not.
pub(crate) fn state(shim: &Shim, vendor: Vendor) -> PoolState {
    let header = shim.ledger.header();
    match of(vendor) {
        _ if !shim.settings.pool => PoolState::Off,
        _ if header.mode().load(Relaxed) != Mode::Active as u32 => PoolState::RecordOnly,
        _ if header.interception().load(Relaxed) != Interception::Complete as u32 => PoolState::Interception,
        _ if !shim.trust.pool(vendor) => PoolState::Verdict,
        None => PoolState::Unused,
        Some(pool) if pool.is_closed() => PoolState::Off,
        Some(_) if REACHED.load(Relaxed) => PoolState::Peers,
        Some(_) if activity::broken() => PoolState::Broken,
        Some(_) => PoolState::On,
    }
}

/// All pools of the process.
pub(crate) fn all() -> impl Iterator<Item = &'static Pool> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(of)
}

/// From now on the pools serve and keep nothing, and what they keep goes back. The answer is a sentence for people.
/// What cannot go back yet, and what another thread is just about to keep, goes within a second or two.
pub(crate) fn step_aside(shim: &'static Shim) -> String {
    STEPPED_ASIDE.store(true, SeqCst);
    all().for_each(Pool::shut);
    format!("the pool keeps nothing from now on: {}", decay::trim(shim))
}

/// Serves again after [`step_aside`].
///
/// # Errors
/// Why it does not.
pub(crate) fn step_back_in(shim: &'static Shim) -> Result<String, String> {
    if !shim.settings.pool {
        return Err("GPUMEM_POOL was 0 when the process started: the pool stays off".into());
    }
    STEPPED_ASIDE.store(false, SeqCst);
    let may_open = |pool: &&Pool| !pool.ending.load(SeqCst) && shim.trust.pool(pool.vendor);
    all().filter(|pool| may_open(pool)).for_each(|pool| pool.closed.store(false, SeqCst));
    Ok("the pool serves what comes from now on".into())
}

/// The pool of a vendor, made once recording has begun and the shim may do more than record.
#[inline]
pub(crate) fn open(vendor: Vendor) -> Option<&'static Pool> {
    match of(vendor) {
        Some(pool) => Some(pool),
        None => make(vendor),
    }
}

/// The pool of a vendor, made now if there is a limit that it has to hold.
#[inline]
pub(crate) fn of_limited(vendor: Vendor) -> Option<&'static Pool> {
    of(vendor).or_else(|| gate::shim().filter(|shim| is_limited(shim)).and_then(|_| make(vendor)))
}

/// Whether there is a limit, of this process alone or of its group.
fn is_limited(shim: &Shim) -> bool {
    shim.in_force.limit() != 0 || shim.group.is_some()
}

#[cold]
fn make(vendor: Vendor) -> Option<&'static Pool> {
    let shim = gate::shim().filter(|shim| records::handles::may_be_virtual(shim).is_ok())?;
    if vendor == Vendor::Hip {
        shim.ask_hip();
    }
    let keeps = shim.settings.pool && shim.trust.pool(vendor);
    if !keeps && !is_limited(shim) {
        return None;
    }
    let made = place(vendor).set_if_empty(Box::new(Pool::new(vendor, &shim.in_force.all(), keeps)));
    // The pool was not told of changes before it had its place.
    made.goes_by(&shim.in_force.all());
    heap::when_refused(|| all().for_each(Pool::shut));
    decay::end_before_the_library();
    of(vendor)
}

/// Marks the block that an address lies in: its free has to be the real one.
pub(crate) fn pin(addr: u64) {
    all().for_each(|pool| pool.pin(addr));
}

/// Notes that others have the address of the block that an address lies in. Returns the place of its record; `None` if it
/// lies in no block.
pub(crate) fn note_shown(shim: &Shim, addr: u64) -> Option<u32> {
    all().find_map(|pool| pool.blocks.around(addr)).map(|block| block_records::shown(shim, block))
}
