//! Checks of a process's graphs: execs under the graph cache, its limits, parked execs, and launches after memory was
//! freed.

use super::finding::{Finding, info, ok, warning};
use super::memory::{cured, set};
use super::subject::Whole;
use crate::model::sites::Sites;
use crate::model::{Ledger, execs};
use crate::report::cache::{lines, pinned_words, thrash_words};
use crate::report::cure;
use crate::text::{self, count, units};
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, ExecState};
use gpumem_wire::layout::{EventSlot, ExecSlot, StackRef};
use std::collections::BTreeMap;

/// Less memory of parked execs needs no advice, bytes.
const LITTLE: u64 = 64 << 20;

/// Reports if graph execs are limited, and if the limits are too tight for the program.
pub(super) fn bounds(of: &Whole) -> Finding {
    let (ledger, cache) = (of.ledger, &of.overview.cache);
    let pid = ledger.pid();
    if let Some(thrash) = cache.thrash.as_ref().filter(|thrash| thrash.recent) {
        let folded = ledger.snapshot.execs.iter().filter(|exec| execs::state(exec) == Some(ExecState::Folded));
        let wanted =
            folded.fold(0_u64, |sum, exec| sum.saturating_add(exec.host_bytes.saturating_add(exec.device_bytes)));
        let change = format!("{}={}", thrash.raise.trim_start_matches(gpumem_wire::settings::PREFIX), thrash.to);
        let all = units::bytes(cache.real_bytes_estimated.saturating_add(wanted));
        let more = format!(", if there is memory for that: {all} for all graphs, estimated");
        return set(ledger, warning(thrash_words(thrash)).bytes(wanted), &change, &more);
    }
    let off = || info(format!("off: {}", cache.reason));
    match cache.state {
        "off" => match cure::of_graphs(ledger) {
            Some(cure) => cured(off(), cure, ""),
            None => off(),
        },
        "pinned" => info(format!("{}: {}", cache.reason, pinned_words(cache))).fix(format!(
            "gpumem graphs --pinned --all {pid} says which and why; pinned execs behave as without gpumem"
        )),
        "unused" => ok(&*cache.reason),
        _ if cache.one_by_one > 0 => {
            let launches = text::count(cache.one_by_one, "launch");
            warning(format!("{launches} ran node by node, because no real exec could be made"))
                .fix("the device or the host was out of memory: gpumem stats shows what holds it")
        }
        _ => ok(lines(cache).join("; ")),
    }
}

/// Reports real execs without a handle.
pub(super) fn parked(of: &Whole) -> Option<Finding> {
    let cache = &of.overview.cache;
    let bytes = cache.parked_host_bytes_estimated.saturating_add(cache.parked_device_bytes_estimated);
    if bytes < LITTLE || bytes < cache.real_bytes_estimated / 2 {
        return None;
    }
    let execs = text::count(cache.parked_execs, "real exec");
    let said = format!("{execs} of no handle take {}, estimated: graphs were destroyed", units::bytes(bytes));
    let found = info(said).bytes(bytes);
    if !of.ledger.status.running() {
        return found.into();
    }
    let trim = format!("gpumem trim {}", of.ledger.pid());
    found.paste(trim).fix("gpumem destroys them with time, unless GPUMEM_GRAPH_IDLE is 0").into()
}

/// Findings that are listed; `gpumem events` has the others.
const NAMED: usize = 3;
/// Launches that are read. A valid ledger has no more of them.
const MOST: usize = 256;
/// The events of one launch lie within this many events: other threads write some in between.
const APART: usize = 64;

/// The events of one launch after a free.
struct Launched<'a> {
    freed: &'a EventSlot,
    exec: &'a EventSlot,
    owner: Option<&'a EventSlot>,
}

/// The call sites of the graph, the memory and the memory's next owner.
type Where = (StackRef, StackRef, Option<StackRef>);

/// Reports graphs that were launched after memory that they refer to was freed.
pub(super) fn freed(of: &Whole) -> Vec<Finding> {
    let ledger = of.ledger;
    let mut by_site: BTreeMap<Where, Vec<Launched>> = BTreeMap::new();
    let launched = launched(ledger);
    let known = launched.len() as u64;
    for its in launched {
        by_site.entry((its.exec.stack, its.freed.stack, its.owner.map(|owner| owner.stack))).or_default().push(its);
    }
    let sites = if by_site.is_empty() { Sites::default() } else { Sites::of_events(ledger) };
    let mut groups: Vec<_> = by_site.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    let mut findings: Vec<_> = groups.iter().take(NAMED).map(|group| one(ledger, &sites, group)).collect();
    let named: usize = groups.iter().take(NAMED).map(Vec::len).sum();
    let more = ledger.snapshot.counter(counters::LAUNCHED_AFTER_FREE).max(known).saturating_sub(named as u64);
    if more > 0 {
        let said = format!("{} more that a graph was launched with after their free", count(more, "allocation"));
        findings.push(finding(ledger, said));
    }
    findings
}

fn finding(ledger: &Ledger, said: String) -> Finding {
    let fix = format!(
        "keep the memory until the graph's last launch, or update or destroy the exec when the memory is freed; \
         gpumem events --problems {} has each of them",
        ledger.whose()
    );
    warning(said).fix(fix)
}

/// Returns such launches still in the ring of events. The events of one launch are consecutive on one thread.
fn launched(ledger: &Ledger) -> Vec<Launched<'_>> {
    let events = &ledger.snapshot.events;
    let is = |event: &EventSlot, kind: EventKind| event.kind == kind as u8;
    let of = |(at, freed): (usize, &'_ EventSlot)| {
        let mut next = events[at + 1..].iter().take(APART).filter(|event| event.tid == freed.tid);
        let exec = next.next().filter(|event| is(event, EventKind::LaunchedGraph))?;
        Some(Launched { freed: &events[at], exec, owner: next.next().filter(|event| is(event, EventKind::NextOwner)) })
    };
    let freed = events.iter().enumerate().filter(|(_, event)| is(event, EventKind::FreedGraphLaunched));
    freed.filter_map(of).take(MOST).collect()
}

/// Returns the least number of launches of an exec with freed memory.
fn launches(ledger: &Ledger, exec: &EventSlot) -> u64 {
    // A handle may be another exec's by now.
    let is_it = |live: &&ExecSlot| live.handle == exec.a && live.time_ns <= exec.time_ns;
    ledger.snapshot.execs.iter().find(is_it).map_or(1, |live| live.launches.saturating_sub(exec.b).max(1))
}

/// Reports launches of graphs of one call site with memory of one other.
fn one(ledger: &Ledger, sites: &Sites, group: &[Launched]) -> Finding {
    let site = |stack| text::clean(&sites.name(stack)).into_owned();
    let Some(Launched { freed, exec, owner }) = group.first() else { return finding(ledger, String::new()) };
    let execs: BTreeMap<u64, u64> = group.iter().map(|its| (its.exec.a, launches(ledger, its.exec))).collect();
    let times = count(execs.values().fold(0, |sum: u64, &times| sum.saturating_add(times)), "launch");
    let bytes = group.iter().fold(0, |sum: u64, its| sum.saturating_add(its.freed.b));
    let graphs = match execs.len() {
        1 => "a graph".to_owned(),
        many => count(many as u64, "graph"),
    };
    let memory = match bytes {
        0 => format!("memory at {:#x} that it refers to was freed", freed.a),
        bytes => format!("{} that it refers to were freed (allocated at {})", units::bytes(bytes), site(freed.stack)),
    };
    let now = match owner {
        Some(owner) => {
            format!("the memory now belongs to {} allocated at {}", units::bytes(owner.b), site(owner.stack))
        }
        None => "the memory may be anybody's".to_owned(),
    };
    let said = format!(
        "{graphs} instantiated at {}: at least {times} after {memory}; {now}, and each launch works on it",
        site(exec.stack)
    );
    finding(ledger, said).bytes(bytes)
}
