//! Reports of the guard's findings: events in the ledger, and lines on stderr.

use super::launches::PastLaunch;
use super::{Freed, Guard};
use crate::backend::reader::Mismatch;
use crate::pool::block::FRONT;
use crate::process::clock;
use crate::process::stderr::say;
use crate::records::site_text::Places;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::EventKind;
use gpumem_wire::layout::{AllocSlot, EventSlot, StackRef};
use gpumem_wire::units;
use std::fmt::Write;
use std::ops::Range;

/// The most findings that are reported. Further ones are only counted.
const MOST: u64 = 256;
/// The most launches that are named with each finding.
const LAUNCHES: usize = 3;

/// Location of a wrong write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Behind,
    InFront,
    /// In freed memory.
    Freed,
}

/// A finding.
pub(super) struct Writes<'a> {
    pub place: Where,
    pub found: Mismatch,
    /// Start of the range that was read.
    pub from: u64,
    /// Address of the allocation, and the bytes that the program asked for.
    pub addr: u64,
    pub asked: u64,
    pub record: AllocSlot,
    /// Time at which the range was last known to be unwritten, ns.
    pub good_ns: u64,
    pub freed: Option<&'a Freed>,
}

fn ago(now: u64, then: u64) -> String {
    format!("{:.1} s ago", now.saturating_sub(then) as f64 / 1e9)
}

impl Writes<'_> {
    /// Describes the finding in a sentence.
    fn sentence(&self, now: u64) -> String {
        let Mismatch { first, end, count } = self.found;
        let bytes = if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") };
        let block = format!("a block of {} at {:#x}", units::bytes(self.asked), self.addr);
        let made = ago(now, self.record.time_ns);
        let span =
            |from: u64, to: u64| if from == to { format!("byte {from}") } else { format!("bytes {from} to {to}") };
        match (self.place, self.freed) {
            (Where::Behind, _) => {
                format!("{bytes} written behind {block}: {} behind its end; allocated {made}", span(first + 1, end))
            }
            (Where::InFront, _) => {
                let (near, far) = (FRONT - end + 1, FRONT - first);
                format!("{bytes} written in front of {block}: {} before its start; allocated {made}", span(near, far))
            }
            (Where::Freed, freed) => {
                let gone = freed.map_or(String::new(), |freed| format!(", freed {}", ago(now, freed.time_ns)));
                format!(
                    "{bytes} written to {block} after its free: {} of it; allocated {made}{gone}",
                    span(first, end - 1)
                )
            }
        }
    }

    fn range(&self) -> Range<u64> {
        self.addr.saturating_sub(FRONT)..self.addr + self.asked
    }
}

/// Reports a finding.
#[cold]
pub(super) fn tell(shim: &'static Shim, guard: &Guard, writes: &Writes<'_>) {
    let (counter, kind) = match writes.place {
        Where::Freed => (counters::GUARD_FREED, EventKind::WrittenAfterFree),
        _ => (counters::GUARD_OUTSIDE, EventKind::WrittenOutside),
    };
    shim.count(counter, 1);
    if shim.ledger.counter(counters::GUARD_OUTSIDE) + shim.ledger.counter(counters::GUARD_FREED) > MOST {
        return;
    }
    let now = clock::precise_ns();
    let mut sentence = writes.sentence(now);
    let since = writes.freed.map_or(writes.good_ns, |freed| freed.time_ns);
    let _ = write!(sentence, "; written at most {}", ago(now, since));
    let text = shim.ledger.texts.intern(sentence.as_bytes());
    let (a, b) = (writes.from + writes.found.first, writes.found.count);
    let AllocSlot { stack, context, .. } = writes.record;
    shim.event(kind, EventSlot { a, b, stack, context, text, ..Default::default() });
    let places = Places::now(shim);
    let mut lines = format!("{sentence}\ngpumem:   allocated: {}", places.of(writes.record.stack));
    if let Some(freed) = writes.freed {
        freed_here(shim, writes.addr, freed);
        let _ = write!(lines, "\ngpumem:   freed: {}", places.of(freed.stack));
    }
    possible_writers(shim, guard, writes, since, &places, &mut lines);
    let _ = write!(lines, "\ngpumem: for function names: gpumem events {}", std::process::id());
    if !shim.in_force.quiet() {
        say(&lines);
    }
}

/// Records the call site at which the memory of a finding was freed.
fn freed_here(shim: &Shim, addr: u64, freed: &Freed) {
    shim.event_at(EventKind::FreedHere, (addr, freed.asked), freed.stack, freed.record.context);
}

/// Names the launches that may have made the write.
fn possible_writers(
    shim: &'static Shim,
    guard: &Guard,
    writes: &Writes<'_>,
    since: u64,
    places: &Places<'_>,
    lines: &mut String,
) {
    let (given, launches) = guard.launches.since(since, &writes.range(), LAUNCHES);
    let first = writes.freed.and_then(|freed| guard.launches.first_since(freed.time_ns));
    let is_first = |launch: &PastLaunch| first.as_ref().is_some_and(|first| first.number == launch.number);
    let of = |stack: StackRef| if stack == 0 { String::new() } else { format!(" at {}", places.of(stack)) };
    let how = |launch: &PastLaunch| match (given, is_first(launch)) {
        (true, true) => "launched first after the free, with its address",
        (true, false) => "launched with its address",
        (false, true) => "launched first after the free",
        (false, false) => "launched since",
    };
    let mut named: Vec<_> = launches.iter().map(|launch| (how(launch), given, launch)).collect();
    let is_named = launches.iter().any(is_first);
    named.extend(first.iter().filter(|_| !is_named).map(|first| ("launched first after the free", false, first)));
    for (how, given, launch) in named {
        let _ = write!(lines, "\ngpumem:   {how}: {}, stream {:#x}{}", launch.name, launch.stream, of(launch.stack));
        let text = shim.ledger.texts.intern(launch.name.as_bytes());
        let (a, b) = (launch.stream, u64::from(given) + 2 * u64::from(is_first(launch)));
        let (stack, context) = (launch.stack, writes.record.context);
        shim.event(EventKind::PossibleWriter, EventSlot { a, b, stack, context, text, ..Default::default() });
    }
}

/// Reports that a graph is about to run that refers to freed memory.
#[cold]
pub(super) fn tell_of_graph(shim: &'static Shim, addr: u64, freed: &Freed) {
    shim.count(counters::GUARD_GRAPHS, 1);
    if shim.ledger.counter(counters::GUARD_GRAPHS) > MOST {
        return;
    }
    let (now, bytes) = (clock::precise_ns(), freed.asked);
    shim.event_at(EventKind::FreedGraphLaunched, (addr, bytes), freed.record.stack, freed.record.context);
    freed_here(shim, addr, freed);
    if shim.in_force.quiet() {
        return;
    }
    let places = Places::now(shim);
    say(&format_args!(
        "a graph is about to run that refers to freed memory: a block of {} at {addr:#x}, allocated {}, freed {}\n\
         gpumem:   allocated: {}\ngpumem:   freed: {}\ngpumem: for function names: gpumem events {}",
        units::bytes(bytes),
        ago(now, freed.record.time_ns),
        ago(now, freed.time_ns),
        places.of(freed.record.stack),
        places.of(freed.stack),
        std::process::id(),
    ));
}
