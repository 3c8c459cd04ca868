//! Finds graphs that are launched after memory that they refer to was freed. Natively, such a launch also writes into
//! whatever lies there by then.
//!
//! The program's calls pay nothing for it. About once a second the sources of new and changed execs are read, and the
//! device allocations that they have addresses of are noted ([`index`], [`words`]). Later looks see which of those are
//! gone, and which execs were launched since. A launch is reported only if it certainly came after the free, and only
//! if the memory's call site did not get the same memory again (docs/decisions/graphs.md).

mod index;
mod words;

use crate::graphs::memory_use::{self, SourceRead};
use crate::process::clock;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, ExecState};
use gpumem_wire::layout::{AllocSlot, ExecSlot, StackRef, StackSlot};
use gpumem_wire::settings::Guard;
use index::{Gone, Index, Referred, ReferredBlock, SetRef};
use rustc_hash::FxHashMap;
use std::mem::offset_of;
use std::sync::atomic::{Ordering::*, fence};
use std::time::{Duration, Instant};
use words::{FoundMemory, SourceWords};

/// After a look the thread pauses for this many times the look's duration.
const REST: u32 = 100;
/// Maximum time for reading sources in one look, ns. The rest is read in the next.
const READING_NS: u64 = 5_000_000;
/// Maximum number of words kept in one look. A source that has more is read alone.
const MOST_WORDS: usize = 1 << 16;
/// Maximum number of findings per process that become events. The counter continues.
const MOST_FINDINGS: u64 = 256;

/// Known references of an exec: one of the three states, or a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refers(u32);

impl Refers {
    /// Its source must be read.
    const UNREAD: Self = Self(0);
    /// It was changed since the last look. Its source is read once it stays unchanged: some programs change it in each
    /// step.
    const CHANGING: Self = Self(1);
    /// It refers to no tracked memory, or its source cannot be read.
    const NOTHING: Self = Self(2);

    fn to(set: Option<SetRef>) -> Self {
        set.map_or(Self::NOTHING, |set| Self(set + 3))
    }

    fn set(self) -> Option<SetRef> {
        self.0.checked_sub(3)
    }
}

/// Last seen state of an exec, by the slot of its record. Only the lower halves of its numbers are kept.
#[derive(Clone, Copy, Debug, Default)]
struct SeenExec {
    /// 0: no exec.
    serial: u32,
    /// Changes and launches, as of the last look.
    changes: u32,
    launches: u16,
    /// The look that saw it last.
    look: u16,
    refers: Refers,
}

// A program may hold very many execs.
const _: () = assert!(size_of::<SeenExec>() == 16);

/// Execs of a piece. A list that grows by copying leaves its old places in the heap.
const PIECE: usize = 1024;

/// Last seen states of all execs.
#[derive(Default)]
struct SeenExecs(Vec<Box<[SeenExec]>>);

impl SeenExecs {
    /// Returns the last seen state of the exec in a slot.
    fn at(&mut self, slot: u32) -> &mut SeenExec {
        let (piece, at) = (slot as usize / PIECE, slot as usize % PIECE);
        while self.0.len() <= piece {
            self.0.push(vec![SeenExec::default(); PIECE].into());
        }
        &mut self.0[piece][at]
    }

    /// Returns the number of slots up to the last piece.
    fn slots(&self) -> u32 {
        (self.0.len() * PIECE) as u32
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut SeenExec> {
        self.0.iter_mut().flat_map(|piece| piece.iter_mut())
    }
}

/// All execs and their memory.
pub(crate) struct FreedGraphs {
    /// Time of the next look; `None`: never.
    next: Option<Instant>,
    execs: SeenExecs,
    index: Index,
    looks: u16,
    /// Settings of stacks at the start. If they change, a call site has another stack, so nothing is judged then.
    stacks: (u32, u64),
    /// Slot at which reading of sources continues.
    read_from: u32,
}

/// Result of one look.
#[derive(Default)]
struct GraphLook {
    /// Time before which all allocations were freed that are gone now.
    freed_ns: u64,
    /// Execs that were launched since the last look, and refer to freed memory.
    launched: Vec<(u32, SetRef)>,
}

fn how_stacks_are_taken(shim: &Shim) -> (u32, u64) {
    let settings = shim.in_force.all();
    (settings.stacks, settings.stack_every)
}

/// True if a launch came after another moment: `launch_ns` is from the record.
fn is_after(launch_ns: u64, moment_ns: u64) -> bool {
    launch_ns > moment_ns.saturating_add(clock::MOST_AHEAD_NS)
}

/// Returns how often an exec was changed, the lower half only.
fn changes_of(exec: &ExecSlot) -> u32 {
    exec.updates.wrapping_add(exec.node_sets) as u32
}

/// Returns how many allocations these call sites ever made.
fn made_at(shim: &Shim, stacks: impl Iterator<Item = StackRef>) -> FxHashMap<StackRef, u64> {
    let made = |stack| (stack, shim.ledger.made_at(stack, &[offset_of!(StackSlot, allocs)]));
    let mut all: FxHashMap<_, _> = stacks.map(made).collect();
    // As in growth.rs: the places are read after the records.
    fence(Acquire);
    for (stack, allocs) in shim.ledger.in_places() {
        if let Some(made) = all.get_mut(&stack) {
            *made = made.wrapping_add(allocs);
        }
    }
    all
}

/// As [`made_at`], for one call site.
fn made_at_one(shim: &Shim, stack: StackRef) -> u64 {
    made_at(shim, std::iter::once(stack)).get(&stack).copied().unwrap_or(0)
}

/// Reports an exec that was launched after memory was freed.
fn tell(shim: &Shim, exec: &ExecSlot, freed: &ReferredBlock, owner: Option<&AllocSlot>) {
    shim.count(counters::LAUNCHED_AFTER_FREE, 1);
    if shim.ledger.counter(counters::LAUNCHED_AFTER_FREE) > MOST_FINDINGS {
        return;
    }
    let bytes = if freed.is_strangers() { 0 } else { freed.bytes };
    shim.event_at(EventKind::FreedGraphLaunched, (freed.addr, bytes), freed.stack, freed.context);
    shim.event_at(EventKind::LaunchedGraph, (exec.handle, exec.launches.saturating_sub(1)), exec.stack, exec.context);
    let Some(owner) = owner else { return };
    shim.event_at(EventKind::NextOwner, (owner.addr, owner.bytes), owner.stack, owner.context);
}

impl FreedGraphs {
    pub(crate) fn new(shim: &Shim) -> Self {
        // The guard looks before each launch, and keeps freed memory from others.
        let next = (shim.settings.guard == Guard::Off).then(Instant::now);
        let stacks = how_stacks_are_taken(shim);
        Self { next, execs: SeenExecs::default(), index: Index::default(), looks: 0, stacks, read_from: 0 }
    }

    /// Takes a look if it is due.
    pub(crate) fn look_if_due(&mut self, shim: &Shim) {
        if self.next.is_none_or(|next| next > Instant::now()) || shim.ledger.execs.handed_out() == 0 {
            return;
        }
        if how_stacks_are_taken(shim) != self.stacks {
            *self = Self { next: None, ..Self::new(shim) };
            return;
        }
        // As in growth.rs: the thread's working time counts.
        let (begin, worked) = (Instant::now(), clock::worked_ns());
        self.look(shim);
        let took = Duration::from_nanos(clock::worked_ns().saturating_sub(worked));
        self.next = Some(begin + took * REST);
    }

    fn look(&mut self, shim: &Shim) {
        self.looks = self.looks.wrapping_add(1);
        let mut look = GraphLook { freed_ns: self.see_frees(shim), ..GraphLook::default() };
        self.see_execs(shim, &mut look);
        let (read, words) = self.read_sources(shim);
        let gone = self.index.blocks().filter(|(_, block)| block.gone.is_some());
        let gone: Vec<_> = gone.map(|(at, block)| (at, *block)).collect();
        let is_new = |(_, block): &(u32, ReferredBlock)| block.gone.is_some_and(|gone| gone.since_ns.is_none());
        let found = match words.len() > 0 || !look.launched.is_empty() || gone.iter().any(is_new) {
            true => words.find(&shim.ledger, gone),
            false => FoundMemory::default(),
        };
        for (slot, set) in &look.launched {
            self.judge(shim, *slot, *set, &found);
        }
        self.settle(shim, look.freed_ns, &found);
        for (number, exec) in (0..).zip(&read) {
            self.note(shim, exec, found.of(number));
        }
    }

    /// Notes which allocations are gone. Returns a time after all their frees.
    fn see_frees(&mut self, shim: &Shim) -> u64 {
        for (_, block) in self.index.blocks_mut() {
            let is_live =
                shim.ledger.allocs.read_if_whole(block.slot).is_some_and(|alloc| alloc.serial == block.serial);
            if is_live {
                block.gone = None;
            } else {
                block.gone.get_or_insert_default();
            }
        }
        clock::now_ns()
    }

    /// Notes which execs are new, or were changed, launched or destroyed.
    fn see_execs(&mut self, shim: &Shim, look: &mut GraphLook) {
        shim.ledger.execs.each_slot(|slot, exec| {
            // The library's own execs: their references cannot be read.
            if exec.exec_state() != Some(ExecState::Native) {
                self.see_exec(slot, exec, look);
            }
        });
        let mut are_any = false;
        for seen in self.execs.iter_mut().filter(|seen| seen.serial != 0) {
            if seen.look == self.looks {
                are_any = true;
            } else if let Some(set) = std::mem::take(seen).refers.set() {
                self.index.release(set);
            }
        }
        if !are_any {
            self.execs = SeenExecs::default();
        }
    }

    fn see_exec(&mut self, slot: u32, exec: &ExecSlot, look: &mut GraphLook) {
        let (changes, launches) = (changes_of(exec), exec.launches as u16);
        let before = *self.execs.at(slot);
        let refers = match before.refers {
            _ if before.serial != exec.serial as u32 => Refers::UNREAD,
            _ if before.changes != changes => Refers::CHANGING,
            Refers::CHANGING => Refers::UNREAD,
            same => same,
        };
        if let Some(set) = before.refers.set() {
            let is_gone = |&at: &u32| self.index.block(at).is_some_and(|block| block.gone.is_some());
            if refers != before.refers {
                self.index.release(set);
            } else if before.launches != launches && self.index.blocks_of(set).iter().any(is_gone) {
                look.launched.push((slot, set));
            }
        }
        let serial = exec.serial as u32;
        *self.execs.at(slot) = SeenExec { serial, changes, launches, look: self.looks, refers };
    }

    /// Reads sources for a while. Returns the execs whose source was read, and their words.
    fn read_sources(&mut self, shim: &Shim) -> (Vec<(u32, ExecSlot)>, SourceWords) {
        let (mut read, mut words) = (Vec::new(), SourceWords::default());
        let all = self.execs.slots();
        let from = self.read_from.min(all);
        let began = clock::worked_ns();
        for slot in (from..all).chain(0..from) {
            let seen = self.execs.at(slot);
            if seen.serial == 0 || seen.refers != Refers::UNREAD {
                continue;
            }
            if words.len() > MOST_WORDS || clock::worked_ns().saturating_sub(began) > READING_NS {
                self.read_from = slot;
                break;
            }
            // Read before its source: the next look sees a change that comes meanwhile.
            let Some(exec) = shim.ledger.execs.read_if_whole(slot).filter(|exec| exec.serial as u32 == seen.serial)
            else {
                continue;
            };
            let (of, mut node) = (read.len() as u32, 0);
            let add = |record: &[u8]| {
                words.add(of, node, record);
                node += 1;
            };
            match memory_use::each_record_of_exec(exec.handle, add) {
                SourceRead::Whole => read.push((slot, exec)),
                SourceRead::Busy => {}
                SourceRead::Unused | SourceRead::Unreadable => seen.refers = Refers::NOTHING,
            }
        }
        (read, words)
    }

    /// Judges the launches of an exec that refers to freed memory, and reports what is certain.
    fn judge(&mut self, shim: &Shim, slot: u32, set: SetRef, found: &FoundMemory) {
        let seen = *self.execs.at(slot);
        let is_it = |exec: &ExecSlot| (exec.serial as u32, changes_of(exec)) == (seen.serial, seen.changes);
        let read = || shim.ledger.execs.read_if_whole(slot).filter(is_it);
        // Changes are read again after the last launch, which may be of a source that came meanwhile.
        let (Some(exec), Some(_)) = (read(), read()) else { return };
        let mut told = Vec::new();
        for &at in self.index.blocks_of(set).iter() {
            let Some((block, gone)) = self.index.block(at).and_then(|block| Some((block, block.gone?))) else {
                continue;
            };
            let owner = found.owners.get(&at).map(|(_, owner)| owner);
            if owner.is_some_and(|owner| block.is_made_again_by(owner)) {
                continue;
            }
            let is_owners = owner.is_some_and(|owner| is_after(exec.last_launch_ns, owner.time_ns));
            if is_owners || is_gone_for_long(shim, block, gone, exec.last_launch_ns) {
                tell(shim, &exec, block, owner);
                told.push(at);
            }
        }
        if !told.is_empty() {
            let left = self.index.without(set, &told);
            self.execs.at(slot).refers = Refers::to(left);
        }
    }

    /// Follows blocks that were made again, and counts what the call sites of the others make.
    fn settle(&mut self, shim: &Shim, freed_ns: u64, found: &FoundMemory) {
        for (&at, (slot, owner)) in &found.owners {
            if self.index.block(at).is_some_and(|block| block.is_made_again_by(owner)) {
                self.index.made_again(at, *slot, owner);
            }
        }
        let gone = self.index.blocks().filter(|(_, block)| block.gone.is_some());
        let made = made_at(shim, gone.map(|(_, block)| block.stack));
        for (_, block) in self.index.blocks_mut() {
            let Some(gone) = &mut block.gone else { continue };
            let made = made.get(&block.stack).copied().unwrap_or(0);
            *gone = match gone.made == Some(made) {
                true => Gone { since_ns: gone.since_ns.or(Some(freed_ns)), ..*gone },
                false => Gone { made: Some(made), since_ns: None },
            };
        }
    }

    /// Notes the references of an exec.
    fn note<'a>(
        &mut self,
        shim: &Shim,
        (slot, exec): &(u32, ExecSlot),
        refers: impl Iterator<Item = &'a (u32, AllocSlot)>,
    ) {
        let made_ns = exec.time_ns.max(exec.last_update_ns);
        // The exec's original memory came from another call site if this one made no other. The exec's own thread takes
        // higher numbers than the exec's for later allocations, however soon they come.
        let is_later =
            |alloc: &AllocSlot| alloc.time_ns > made_ns || changes_of(exec) == 0 && alloc.serial > exec.serial;
        let is_strangers =
            |alloc: &AllocSlot| is_later(alloc) && alloc.stack != 0 && made_at_one(shim, alloc.stack) == 1;
        let referred = |&(slot, alloc): &_| Referred { slot, alloc, is_stranger: is_strangers(&alloc) };
        let all: Vec<Referred> = refers.map(referred).collect();
        let set = self.index.set_of(&all);
        let seen = self.execs.at(*slot);
        seen.refers = Refers::to(set);
        if all.iter().any(|referred| referred.is_stranger) {
            // The next look judges the launches so far: by then it shows if the source came with an update that was
            // still in progress here.
            seen.launches = seen.launches.wrapping_sub(1);
        }
    }
}

/// True if, at a launch, a block had been gone so long that its call site cannot have got the same memory again, and
/// freed it, between two looks.
fn is_gone_for_long(shim: &Shim, block: &ReferredBlock, gone: Gone, launch_ns: u64) -> bool {
    block.stack != 0
        && gone.since_ns.is_some_and(|since_ns| is_after(launch_ns, since_ns))
        && gone.made == Some(made_at_one(shim, block.stack))
}
