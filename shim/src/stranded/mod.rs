//! Stranded growth: call sites that keep asking for a little more while their older blocks stay allocated and unused.
//!
//! A file uses those below it, from top to bottom:
//!
//! | file | what it holds |
//! |---|---|
//! | watch.rs | one allocation, from the request to the answer |
//! | mod.rs | functions for hooks, and the action on a site (`GPUMEM_STRANDED`) |
//! | safe.rs | check that no graph needs what a refusal would free |
//! | [`state`] | what is known of call sites: a part of the shim, which knows none of these files |
//!
//! No vendor is known here, and no driver is called. A hook that allocates wraps its call in [`watched`], or asks a
//! [`Watch`] if it has further choices. These call the following functions, inside bookkeeping, and others may call
//! them too:
//!
//! * Before an allocation of at least [`SMALLEST`] bytes goes to the driver: [`asker`] once, then [`asked`]. A block
//!   that the pool already has is no growth. On [`Verdict::Refuse`] the hook answers out of memory (2) and calls
//!   nothing else. On [`Verdict::Spill`] it asks for managed memory.
//! * After it succeeded: [`made`]. After the program was told that memory ran out, by the driver or by a limit:
//!   [`failed`].
//! * **Before** a free: [`freed`]. It returns true if the program was pressed for the block, which then has to go back
//!   to the driver and must not be kept.
//! * When an idle block serves a request while a failed one is [`Stranded::waiting`]: [`served`].
//! * At kernel launches: [`submitted`]. When a thread waits for the device (streams, events, contexts, copies that
//!   wait): [`synced`].
//! * While [`watching`]: [`used`], with the arguments of calls that give the device work. A sample is enough.
//! * For `GPUMEM_POOL_MANAGED`: [`is_pool_growth`]. For `gpumem trim --press`: [`press_now`].
//! * When a context is gone: [`context_ended`].
//!
//! **press** answers out of memory to one request, once, and only if the program frees memory and asks again. All of
//! this has to hold:
//!
//! * The site strands more than it asks for.
//! * The program retries: `GPUMEM_STRANDED_RETRIES=1`, or see [`state::programs`], or this very site did before.
//! * Stacks are taken, and the site's blocks are scratch: requested in the middle of a computation, as this one is.
//! * Nothing captures, and no live graph may refer to a block of the same allocator ([`safe`]).
//! * No earlier refusal is still waiting for its thread's next request. A refusal that frees nothing was the site's
//!   last.

mod safe;
pub(crate) mod state;
mod watch;

pub(crate) use state::phase::{inside, submitted, synced};
pub(crate) use state::uses::{may_matter, watch_all, watching};
pub(crate) use watch::{Watch, watched};

use crate::call::Call;
use crate::gate;
use crate::graphs::memory_use;
use crate::process::clock;
use crate::records::registry::sites::Made;
use crate::records::{contexts, freed_in_graph};
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, Severity, Vendor};
use gpumem_wire::layout::{ContextRef, EventSlot, StackRef};
use gpumem_wire::settings::Stranded as Mode;
use gpumem_wire::units;
use state::phase;
use state::series::Older;
use state::sites::{Asker, Asking, Key, Report, SiteState, StrandedSites};
use std::sync::atomic::Ordering::*;

/// Smaller allocations are not examined, bytes.
pub(crate) const SMALLEST: u64 = 1 << 20;
/// Pools round their requests. ggml's pool rounds to this many bytes, after adding 5 %.
const ROUNDED: u64 = 256;
/// Action on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request goes its usual way.
    Nothing,
    /// The request is answered with out of memory (2), and the driver is not asked.
    Refuse,
    /// The request is placed in managed memory.
    Spill,
}

/// Notes arguments of work that the program gives the device, addresses among them.
#[cold]
pub(crate) fn used(words: &[u64]) {
    if words.iter().any(|&word| may_matter(word)) {
        gate::record_if_started(|shim| shim.stranded.uses.mark(words));
    }
}

/// Identifies the caller in a context, and takes the call's stack.
#[inline]
pub(crate) fn asker(shim: &'static Shim, call: &Call, context: ContextRef) -> Asker {
    if call.vendor == Vendor::Hip {
        phase::work();
    }
    let site = call.site();
    Asker { stack: shim.site(site, Made::Stream), pc: site.pc, context, tid: shim.tid() }
}

/// Judges a request for a block of at least [`SMALLEST`] bytes, which the driver would have to make.
pub(crate) fn asked(shim: &Shim, asker: &Asker, bytes: u64) -> Verdict {
    let stranded = &shim.stranded;
    // In report mode no request is delayed. But uses of blocks count from here on.
    let may_refuse = !stranded.is(Mode::Report) || stranded.marked.load(Relaxed);
    if !stranded.on() || !(may_refuse || stranded.waiting() || stranded.uses.any()) {
        return Verdict::Nothing;
    }
    match with_sites(shim, |sites| sites.asked(asker, bytes)) {
        Asking::Growth(key, older) if may_press(shim, asker, key) => press(shim, asker, key, older, bytes),
        Asking::Growth(..) if stranded.is(Mode::Spill) => Verdict::Spill,
        Asking::Growth(..) => Verdict::Nothing,
        answer => {
            settled(shim, answer);
            Verdict::Nothing
        }
    }
}

/// Notes that a request of at least [`SMALLEST`] bytes was served without the driver. Called while
/// [`Stranded::waiting`], since it may be the second try of one that failed.
#[cold]
pub(crate) fn served(shim: &'static Shim, call: &Call, bytes: u64) {
    let asker = asker(shim, call, contexts::current(shim, call.vendor));
    let answer = with_sites(shim, |sites| sites.settled(&asker, bytes));
    settled(shim, answer);
}

fn settled(shim: &Shim, answer: Asking) {
    match answer {
        Asking::Retry { inside: true } => submitted(),
        Asking::InVain(key) => in_vain(shim, key),
        _ => {}
    }
}

/// Notes a new block.
pub(crate) fn made(shim: &Shim, asker: &Asker, addr: u64, bytes: u64) {
    if !shim.stranded.on() {
        return;
    }
    // This time is compared with the times of uses, if there are any.
    let now_ns = if watching() { clock::precise_ns() } else { clock::now_ns() };
    let inside = phase::inside();
    let report = with_sites(shim, |sites| {
        // If the address was known, its previous block was freed without our seeing it.
        let was_known = shim.stranded.mark(addr).load(Relaxed) != 0 && sites.freed(addr);
        let (is_known, report) = sites.made(asker, addr, bytes, inside, now_ns);
        if was_known != is_known {
            shim.stranded.marks(addr, if is_known { 1 } else { -1 });
        }
        report
    });
    if let Some(Report { stack, bytes, blocks }) = report {
        shim.event_at(EventKind::StrandedSite, (bytes, blocks), stack, asker.context);
    }
}

/// Notes that the program was told that there is no memory for its request.
pub(crate) fn failed(shim: &Shim, asker: &Asker, bytes: u64) {
    if shim.stranded.on() {
        with_sites(shim, |sites| sites.refused(asker, bytes, false, phase::inside()));
    }
}

/// Called before a block is freed. Returns true if this thread frees it because it was pressed to, so that the block
/// has to go back to the driver and must not be kept. `memory`: its bytes and the slot of its record.
#[inline]
pub(crate) fn freed(shim: &Shim, addr: u64, memory: impl FnOnce() -> Option<(u64, u32)>) -> bool {
    shim.stranded.may_know(addr) && known_freed(shim, addr, memory())
}

#[cold]
fn known_freed(shim: &Shim, addr: u64, memory: Option<(u64, u32)>) -> bool {
    if let Some((bytes, slot)) = memory.filter(|_| shim.settings.freed_in_graph)
        && memory_use::refers_to(&(addr..addr.saturating_add(bytes)))
    {
        freed_in_graph::found(shim, addr, bytes, slot);
    }
    let tid = shim.tid();
    with_sites(shim, |sites| {
        if sites.freed(addr) {
            shim.stranded.marks(addr, -1);
        }
        sites.pressed(tid)
    })
}

/// Notes that a context has ended, with all that was in it.
pub(crate) fn context_ended(shim: &Shim, context: ContextRef) {
    with_sites(shim, |sites| {
        for addr in sites.end_context(context) {
            shim.stranded.marks(addr, -1);
        }
    });
}

/// True if a request is the growth of a pool inside the program, and not a buffer that the program works with. Growth
/// comes in the middle of a computation, is rounded as pools round, and comes from a site that asks at no other time.
/// docs/decisions lists what this cannot tell apart.
pub(crate) fn is_pool_growth(shim: &Shim, asker: &Asker, bytes: u64) -> bool {
    if !phase::inside() || !bytes.is_multiple_of(ROUNDED) {
        return false;
    }
    shim.stranded.sites().of(asker).is_none_or(SiteState::is_scratch)
}

/// Marks the site that strands most. Its next request is refused, if that is safe then.
///
/// # Errors
/// Why no site can be pressed.
pub(crate) fn press_now(shim: &Shim) -> Result<String, String> {
    if !shim.stranded.on() {
        return Err("GPUMEM_STRANDED is off: no call site was looked at".into());
    }
    let worst = with_sites(shim, |sites| sites.worst().map(|(key, known)| (key, known.stranded, asker_of(key, known))));
    let Some((key, (bytes, blocks), asker)) = worst else {
        return Err("no call site strands memory".into());
    };
    let noun = if blocks == 1 { "block" } else { "blocks" };
    let what = format!("{} in {blocks} older {noun} of one call site", units::bytes(bytes));
    if asker.stack == 0 {
        return Err(format!(
            "{what} are stranded; without stacks (GPUMEM_STACKS) it is not known which requests may be refused"
        ));
    }
    if !retries(shim, &asker, key) {
        return Err(format!(
            "{what} are stranded, but the program is not known to free and retry when an allocation fails: if it does, GPUMEM_STRANDED_RETRIES=1 says so"
        ));
    }
    with_sites(shim, |sites| sites.mark(key));
    Ok(format!("{what}: its next request is refused once, so that the program gives them back"))
}

/// Works on the sites, and keeps their counters in step.
fn with_sites<R>(shim: &Shim, f: impl FnOnce(&mut StrandedSites) -> R) -> R {
    let mut sites = shim.stranded.sites();
    let before = sites.stranded;
    if phase::worked() {
        sites.work_given();
    }
    if shim.stranded.uses.any() {
        sites.used(&shim.stranded.uses.take());
    }
    let result = f(&mut sites);
    let unanswered = if sites.refusals() == 0 { Vec::new() } else { sites.expired(clock::now_ns()) };
    let now = sites.stranded;
    if let Some(watched) = sites.newly_watched().filter(|_| shim.stranded.on()) {
        shim.stranded.uses.watch(watched);
    }
    shim.stranded.refusals.store(sites.refusals() as u32, Relaxed);
    shim.stranded.marked.store(sites.any_marked, Relaxed);
    drop(sites);
    unanswered.into_iter().for_each(|key| in_vain(shim, key));
    if now > before {
        shim.count(counters::STRANDED_ADDED, now - before);
    } else if before > now {
        shim.count(counters::STRANDED_REMOVED, before - now);
    }
    result
}

/// True if this site's request may be refused now.
fn may_press(shim: &Shim, asker: &Asker, key: Key) -> bool {
    let wanted = |sites: &StrandedSites| {
        let known = sites.get(key)?;
        let wanted = (known.marked || shim.stranded.is(Mode::Press)) && !known.barred && known.is_scratch();
        wanted.then(|| asker_of(key, known))
    };
    let Some(site) = wanted(&shim.stranded.sites()) else { return false };
    asker.stack != 0
        && phase::inside()
        && shim.registry.streams.capturing() == 0
        && safe::may_change(shim)
        && retries(shim, &site, key)
        && !safe::graph_needs(shim, &site)
}

/// True if the program frees memory and asks again when a request of this site fails.
fn retries(shim: &Shim, site: &Asker, key: Key) -> bool {
    let seen = || shim.stranded.sites().get(key).is_some_and(|known| known.retries);
    shim.stranded.retries()
        || seen()
        || safe::caller(shim, site.stack).is_some_and(|pc| shim.stranded.programs.retries(pc))
}

/// True if a program is known to free memory and ask again when a request of this call stack fails.
pub(crate) fn program_retries(shim: &Shim, stack: StackRef) -> bool {
    let seen = || shim.stranded.sites().retries(stack);
    shim.stranded.retries() || seen() || safe::caller(shim, stack).is_some_and(|pc| shim.stranded.programs.retries(pc))
}

/// True if this thread was refused memory although there is some, and has not asked again.
pub(crate) fn pressed(shim: &Shim) -> bool {
    shim.stranded.waiting() && shim.stranded.sites().pressed(shim.tid())
}

fn press(shim: &Shim, asker: &Asker, key: Key, older: Older, bytes: u64) -> Verdict {
    // A capture may have begun, or another thread may have pressed, since the request was judged.
    let refused = shim.registry.streams.capturing() == 0
        && with_sites(shim, |sites| {
            let may = sites.get(key).is_some_and(|known| !known.barred) && !sites.waits(key);
            if may {
                sites.refused(asker, bytes, true, true);
            }
            may
        });
    if !refused {
        return Verdict::Nothing;
    }
    shim.count(counters::PRESS_REFUSALS, 1);
    shim.event_at(EventKind::Pressed, (bytes, older.bytes), asker.stack, asker.context);
    Verdict::Refuse
}

fn in_vain(shim: &Shim, key: Key) {
    let stack = shim.stranded.sites().get(key).map_or(0, |known| known.stack);
    let line = "a request was refused so that the program gives back what it strands, and it did not: \
                this call site is not pressed again";
    let text = shim.ledger.texts.intern(line.as_bytes());
    shim.event(EventKind::Message, EventSlot { code: Severity::Warning as i32, text, stack, ..Default::default() });
}

fn asker_of(key: Key, known: &SiteState) -> Asker {
    Asker { stack: known.stack, pc: known.pc, context: key.1, tid: 0 }
}
