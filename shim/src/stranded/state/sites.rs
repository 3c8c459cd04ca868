//! Call sites that request large blocks: the blocks they hold and strand, and their refused requests. Pure bookkeeping:
//! no outside code is called, and everything is bounded.

mod site;

use super::series::{BACK, Older, SeriesBlock, older};
use gpumem_wire::layout::{ContextRef, StackRef};
use rustc_hash::{FxHashMap, FxHashSet};
use site::SiteChange;
use std::ops::Range;

pub(in crate::stranded) use site::{Report, SiteState};

/// Maximum number of call sites. Sites that hold nothing are dropped first.
const SITES: usize = 512;
/// Maximum number of blocks, of all sites together and of one. Pools that strand have some hundred at most.
const BLOCKS: usize = 16384;
const BLOCKS_OF_SITE: usize = 1024;
/// Maximum number of refusals that wait for their thread's next request.
const REFUSALS: usize = 64;
/// Maximum wait of a refusal. A program that frees memory and asks again has done so by then, even after a wait for all
/// of its work. Until then every free is examined.
const LONGEST_WAIT_NS: u64 = 60_000_000_000;

/// A call site: its stack, or the caller's return address if no stacks are taken.
pub(super) type Site = u64;
/// A call site in a context: memory is per context.
pub(in crate::stranded) type Key = (Site, ContextRef);

/// The source of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    /// 0: no stack was taken.
    pub stack: StackRef,
    /// The caller's return address.
    pub pc: u64,
    pub context: ContextRef,
    pub tid: u32,
}

impl Asker {
    fn site(&self) -> Site {
        if self.stack != 0 { u64::from(self.stack) } else { self.pc }
    }
}

/// A request that failed. The thread's next request tells if the program retries.
#[derive(Debug)]
struct Refusal {
    tid: u32,
    key: Key,
    bytes: u64,
    /// Bytes that the site freed since then.
    freed: u64,
    /// True if we refused it, not the driver.
    ours: bool,
    /// True if it was made in the middle of a computation.
    inside: bool,
    /// End of its wait. 0: not set yet.
    until_ns: u64,
}

/// Classification of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stranded) enum Asking {
    /// An ordinary request.
    Plain,
    /// The second try of a request that failed. `inside`: the first try was made in the middle of a computation. The
    /// program's wait before its frees does not change that.
    Retry { inside: bool },
    /// Nothing was freed, or the request differs, so the earlier refusal was in vain.
    InVain(Key),
    /// Growth of a site that strands.
    Growth(Key, Older),
}

/// All sites of a process.
#[derive(Debug, Default)]
pub(in crate::stranded) struct StrandedSites {
    known: FxHashMap<Key, SiteState>,
    /// Size and site of each block, by address.
    blocks: FxHashMap<u64, (u64, Key)>,
    /// Sites whose requests are second tries of another site's requests.
    aliases: FxHashMap<Key, Site>,
    refusals: Vec<Refusal>,
    /// Sum of what all sites strand.
    pub stranded: u64,
    /// Number of calls of [`StrandedSites::work_given`].
    work: u64,
    /// True if a site is marked, or was.
    pub any_marked: bool,
    /// Change of the watched sites' blocks since the last [`StrandedSites::newly_watched`].
    changed: Option<Watched>,
}

/// Change of watched blocks: usually one came or went; otherwise the blocks now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Came(Range<u64>),
    Went(u64),
    All(Vec<Range<u64>>),
}

impl StrandedSites {
    fn key(&self, asker: &Asker) -> Key {
        let key = (asker.site(), asker.context);
        (self.aliases.get(&key).copied().unwrap_or(key.0), key.1)
    }

    /// Notes that the device was given work since the last block was made. So an earlier block may be unused.
    pub(crate) fn work_given(&mut self) {
        self.work += 1;
    }

    pub(crate) fn get(&self, key: Key) -> Option<&SiteState> {
        self.known.get(&key)
    }

    /// Marks this site: the user wants its next request refused.
    pub(crate) fn mark(&mut self, key: Key) {
        if let Some(known) = self.known.get_mut(&key) {
            known.marked = true;
            self.any_marked = true;
        }
    }

    /// Returns the asker's site, if known.
    pub(crate) fn of(&self, asker: &Asker) -> Option<&SiteState> {
        self.known.get(&self.key(asker))
    }

    /// True if the program freed memory and asked again when a request of this call stack failed.
    pub(crate) fn retries(&self, stack: StackRef) -> bool {
        self.known.values().any(|known| known.retries && known.stack == stack)
    }

    /// Returns the number of failed requests without a following request.
    pub(crate) fn refusals(&self) -> usize {
        self.refusals.len()
    }

    /// Settles a thread's last request, if that failed, by its new request; returns the new request's classification.
    pub(crate) fn settled(&mut self, asker: &Asker, bytes: u64) -> Asking {
        if let Some(index) = self.refusals.iter().position(|refusal| refusal.tid == asker.tid) {
            let refusal = self.refusals.swap_remove(index);
            let same = refusal.bytes == bytes && refusal.key.1 == asker.context;
            let retries = same && refusal.freed > 0;
            if let Some(known) = self.known.get_mut(&refusal.key) {
                known.retries |= retries;
                known.barred |= refusal.ours && !retries;
            }
            if retries {
                // The second try may come from another line of the program. It counts as the same site.
                let key = (asker.site(), asker.context);
                if key.0 != refusal.key.0 && self.aliases.len() < SITES {
                    self.aliases.insert(key, refusal.key.0);
                }
                return Asking::Retry { inside: refusal.inside };
            }
            if refusal.ours {
                return Asking::InVain(refusal.key);
            }
        }
        Asking::Plain
    }

    /// Classifies a thread's request for a block that the driver would have to make.
    pub(crate) fn asked(&mut self, asker: &Asker, bytes: u64) -> Asking {
        let settled = self.settled(asker, bytes);
        if settled != Asking::Plain {
            return settled;
        }
        let key = self.key(asker);
        let Some(known) = self.known.get(&key).filter(|known| known.strands || known.marked) else {
            return Asking::Plain;
        };
        let older = older(&known.blocks, bytes, self.work);
        match known.marked || older.bytes > bytes {
            true => Asking::Growth(key, older),
            false => Asking::Plain,
        }
    }

    /// Notes that a request is refused, by us or by the driver.
    pub(crate) fn refused(&mut self, asker: &Asker, bytes: u64, ours: bool, inside: bool) {
        let key = self.key(asker);
        self.refusals.retain(|refusal| refusal.tid != asker.tid);
        if self.refusals.len() == REFUSALS {
            self.refusals.remove(0);
        }
        if let Some(known) = self.known.get_mut(&key) {
            known.marked &= !ours;
        }
        self.refusals.push(Refusal { tid: asker.tid, key, bytes, freed: 0, ours, inside, until_ns: 0 });
    }

    /// Ends refusals whose time is over. Returns the sites of our own refusals among them, which were in vain. Called
    /// after each change.
    pub(crate) fn expired(&mut self, now_ns: u64) -> Vec<Key> {
        let mut in_vain = Vec::new();
        self.refusals.retain_mut(|refusal| {
            if refusal.until_ns == 0 {
                refusal.until_ns = now_ns.saturating_add(LONGEST_WAIT_NS);
            }
            let waits = now_ns < refusal.until_ns;
            if !waits && refusal.ours {
                in_vain.push(refusal.key);
            }
            waits
        });
        for key in &in_vain {
            if let Some(known) = self.known.get_mut(key) {
                known.barred = true;
            }
        }
        in_vain
    }

    /// True if a refusal of this site waits for its thread's next request.
    pub(crate) fn waits(&self, key: Key) -> bool {
        self.refusals.iter().any(|refusal| refusal.key == key)
    }

    /// True if a refusal of ours waits for this thread's next request. Then what the thread frees goes back to the
    /// driver.
    pub(crate) fn pressed(&self, tid: u32) -> bool {
        self.refusals.iter().any(|refusal| refusal.ours && refusal.tid == tid)
    }

    /// Notes a new block. Returns true if it is known from now on, and a report for the user, if one is due.
    pub(crate) fn made(
        &mut self,
        asker: &Asker,
        addr: u64,
        bytes: u64,
        inside: bool,
        now_ns: u64,
    ) -> (bool, Option<Report>) {
        let key = self.key(asker);
        if self.blocks.len() >= BLOCKS || !self.room_for(key) {
            return (false, None);
        }
        let known = self.known.entry(key).or_default();
        if known.stack == 0 {
            (known.stack, known.pc) = (asker.stack, asker.pc);
        }
        known.inside += u64::from(inside);
        known.outside += u64::from(!inside);
        if known.blocks.len() >= BLOCKS_OF_SITE {
            return (false, None);
        }
        known.blocks.push(SeriesBlock { addr, bytes, made_ns: now_ns, work: self.work, used_ns: 0 });
        self.blocks.insert(addr, (bytes, key));
        let change = known.look_again(self.work);
        let (watched, report) = (known.watched, known.report());
        self.apply(change);
        if watched {
            self.watched_changed(Watched::Came(addr..addr.saturating_add(bytes)));
        }
        (true, report)
    }

    /// Makes room for a new site by dropping one that holds nothing and has no special property.
    fn room_for(&mut self, key: Key) -> bool {
        if self.known.len() < SITES || self.known.contains_key(&key) {
            return true;
        }
        let idle = |known: &SiteState| known.blocks.is_empty() && !known.strands && !known.barred;
        let gone = self.known.iter().find(|(_, known)| idle(known)).map(|(&key, _)| key);
        gone.is_some_and(|gone| self.known.remove(&gone).is_some())
    }

    /// Removes a block before its free. Returns true if it was known.
    pub(crate) fn freed(&mut self, addr: u64) -> bool {
        let Some((bytes, key)) = self.blocks.remove(&addr) else { return false };
        for refusal in self.refusals.iter_mut().filter(|refusal| refusal.key == key) {
            refusal.freed += bytes;
        }
        let Some(known) = self.known.get_mut(&key) else { return true };
        if let Some(index) = known.blocks.iter().rposition(|block| block.addr == addr) {
            known.blocks.remove(index);
        }
        let (was_watched, strands) = (known.watched, known.strands);
        if was_watched {
            self.watched_changed(Watched::Went(addr));
        }
        // A free cannot make a series.
        if strands {
            self.look_again(key);
        }
        true
    }

    /// Notes uses of blocks by work, as addresses and times.
    pub(crate) fn used(&mut self, uses: &[(u64, u64)]) {
        let mut keys = FxHashSet::default();
        for &(addr, used_ns) in uses {
            let Some(&(_, key)) = self.blocks.get(&addr) else { continue };
            let Some(known) = self.known.get_mut(&key) else { continue };
            if let Some(block) = known.blocks.iter_mut().find(|block| block.addr == addr) {
                block.used_ns = used_ns;
                keys.insert(key);
            }
        }
        keys.into_iter().for_each(|key| self.look_again(key));
    }

    /// Counts all watched blocks as changed from now on.
    pub(crate) fn watch_all(&mut self) {
        self.changed = Some(Watched::All(Vec::new()));
    }

    /// Notes a change. Two changes are reported as the list of all blocks.
    fn watched_changed(&mut self, how: Watched) {
        match self.changed {
            None => self.changed = Some(how),
            Some(_) => self.watch_all(),
        }
    }

    /// Returns how the blocks of all watched sites have changed since the last call.
    #[inline]
    pub(crate) fn newly_watched(&mut self) -> Option<Watched> {
        if self.changed.is_some() { self.watched_now() } else { None }
    }

    #[cold]
    fn watched_now(&mut self) -> Option<Watched> {
        let changed = self.changed.take()?;
        let Watched::All(_) = changed else { return Some(changed) };
        let watched = self.known.values().filter(|known| known.watched);
        let blocks = watched.flat_map(|known| known.blocks.iter().rev().take(BACK));
        Some(Watched::All(blocks.map(|block| block.addr..block.addr.saturating_add(block.bytes)).collect()))
    }

    /// Recomputes what a site strands.
    fn look_again(&mut self, key: Key) {
        if let Some(change) = self.known.get_mut(&key).map(|known| known.look_again(self.work)) {
            self.apply(change);
        }
    }

    /// Applies a site's change to the totals.
    fn apply(&mut self, change: SiteChange) {
        self.stranded = self.stranded - change.stranded.start + change.stranded.end;
        if change.watched {
            self.watch_all();
        }
    }

    /// Returns the site that strands most, of those that may still be pressed.
    pub(crate) fn worst(&self) -> Option<(Key, &SiteState)> {
        let may = self.known.iter().filter(|(_, known)| known.stranded.0 > 0 && !known.barred);
        may.max_by_key(|(_, known)| known.stranded.0).map(|(&key, known)| (key, known))
    }

    /// Returns the stacks of blocks that are not scratch.
    pub(crate) fn kept(&self) -> FxHashSet<StackRef> {
        let kept = self.known.values().filter(|known| known.stack != 0 && !known.is_scratch());
        kept.map(|known| known.stack).collect()
    }

    /// Removes everything that belonged to an ended context.
    pub(crate) fn end_context(&mut self, context: ContextRef) -> Vec<u64> {
        let gone = |key: &Key| key.1 == context;
        let addresses = self.blocks.iter().filter(|(_, (_, key))| gone(key)).map(|(&addr, _)| addr).collect();
        self.blocks.retain(|_, (_, key)| !gone(key));
        self.refusals.retain(|refusal| !gone(&refusal.key));
        let ended: u64 = self.known.iter().filter(|(key, _)| gone(key)).map(|(_, known)| known.stranded.0).sum();
        self.stranded -= ended;
        self.known.retain(|key, _| !gone(key));
        self.watch_all();
        self.aliases.retain(|key, _| !gone(key));
        addresses
    }
}

#[cfg(test)]
mod tests;
