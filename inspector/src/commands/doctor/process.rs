//! Checks of one process: is everything recorded, and if not, why.

use super::finding::{Finding, Severity};
use super::reading::Reading;
use super::system::alias;
use super::trust;
use super::{freed_graphs, graphs, growth, memory, shared};
use crate::model::{Ledger, totals};
use crate::source::ask::ask;
use crate::source::choose;
use crate::source::find::{FoundProcess, LedgerFile};
use crate::source::liveness::{Life, Status};
use crate::source::process::Mapped;
use crate::source::world::{World, monotonic_ns};
use crate::text::{self, units};
use gpumem_wire::command::Request;
use gpumem_wire::counters;
use gpumem_wire::kinds::{Interception, State};
use gpumem_wire::read::Snapshot;
use gpumem_wire::settings::{Alias, aliases_in_force, parse_bool};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// All findings about a process that has the shim, or had it. It is read as a whole by `reading`.
pub(super) fn check(world: &World, found: &FoundProcess, reading: &Reading) -> Vec<Finding> {
    let mut findings = match &found.what {
        // One finding of stale-ledgers is for all of them.
        LedgerFile::Unreadable { .. } if found.is_dead_of_other_version() && !reading.is_named() => Vec::new(),
        LedgerFile::Unreadable { why, .. } => {
            let (severity, fix) = match found.process {
                Some(_) => (Severity::Error, ""),
                None => (Severity::Warning, "gpumem clean --all removes what ended processes have left"),
            };
            vec![Finding::new("ledger", severity, why.what.clone()).fix(why.fix.clone().unwrap_or(fix.to_owned()))]
        }
        LedgerFile::NoLedger { mapped, expected } => vec![no_ledger(world, found, mapped, expected)],
        LedgerFile::Ledger { summary, status, .. } if status.running() => {
            ledger(world, found, summary, status, reading)
        }
        LedgerFile::Ledger { summary, status, .. } if reading.is_named() => dead(world, found, summary, status),
        // A dead process needs no cure. stale-ledgers counts it.
        LedgerFile::Ledger { .. } => Vec::new(),
    };
    for finding in &mut findings {
        finding.pid = Some(found.pid);
    }
    findings
}

/// A failure that names the process, for a finding that names it already.
fn about_it(found: &FoundProcess, what: &str) -> String {
    let who = format!("pid {} ({}) ", found.pid, found.name());
    what.strip_prefix(&who).map_or_else(|| what.to_owned(), |rest| format!("it {rest}"))
}

fn no_ledger(world: &World, found: &FoundProcess, mapped: &Mapped, expected: &Path) -> Finding {
    let environment = found.process.as_ref().and_then(|process| process.environment(world).ok()).unwrap_or_default();
    let disabled = environment.get(OsStr::new("GPUMEM_DISABLE")).and_then(|value| parse_bool(value.to_str()?));
    if disabled == Some(true) {
        return Finding::new("ledger", Severity::Info, "GPUMEM_DISABLE=1: the shim does nothing")
            .fix("start it without");
    }
    if mapped.kfd && !mapped.driver {
        let said = "it has opened an AMD GPU (/dev/kfd), and no libamdhip64.so is loaded: the calls of a HIP runtime that \
                    is linked statically cannot be seen";
        return Finding::new("ledger", Severity::Warning, said).fix("link HIP as a shared library");
    }
    if !mapped.driver {
        return Finding::new("ledger", Severity::Info, "it has made no GPU call yet, so there is no ledger");
    }
    let dir = expected.parent().unwrap_or(expected);
    Finding::new("ledger", Severity::Warning, format!("the driver is loaded, and there is no ledger in {}", dir.display())).fix(
        "if it does use the GPU: can it write there (GPUMEM_DIR names another directory)? Was it loaded with RTLD_DEEPBIND, or does it call the driver itself?",
    )
}

fn ledger(world: &World, found: &FoundProcess, summary: &Snapshot, status: &Status, reading: &Reading) -> Vec<Finding> {
    let header = &summary.header;
    let small = |number: u32| u8::try_from(number).ok();
    let mut findings = vec![interception(summary, small(header.interception).and_then(Interception::from_u8))];
    findings.extend(trust::check(summary));
    findings.push(match small(header.state).and_then(State::from_u8) {
        Some(State::Recording) => Finding::new("recording", Severity::Ok, "recording"),
        _ => Finding::new("recording", Severity::Error, "recording has stopped")
            .fix(format!("gpumem events --problems {} says why; start the program again", found.pid)),
    });
    findings.push(dropped(summary));
    let whole = reading.read(world, found);
    if let Err(why) = &whole {
        findings.push(Finding::new("ledger", Severity::Info, format!("it was not looked through: {}", why.what)));
    }
    if let Ok(whole) = &whole {
        findings.push(stacks(whole));
        findings.extend(python(whole));
        findings.extend(advice(whole));
        findings.extend(shared::check(world, whole, reading));
        findings.extend(aliases(whole));
    }
    findings.extend(complaints(summary));
    findings.push(heartbeat(summary, status));
    if let Ok(whole) = &whole
        && header.heartbeat_ns != 0
        && status.life == Life::Running
    {
        findings.push(match ask(&whole.whom(), &Request::Ping) {
            Ok(_) => Finding::new("control", Severity::Ok, "it answers on its control socket"),
            Err(why) => {
                Finding::new("control", Severity::Warning, about_it(found, &why.what)).fix(why.fix.unwrap_or_default())
            }
        });
    }
    if let Some(Ok(mapped)) = found.process.as_ref().map(|process| process.mapped(world)) {
        findings.push(match mapped.tool {
            Some(tool) => Finding::new(
                "tools",
                Severity::Info,
                format!(
                    "{} watches the GPU: if it was there at the first call, gpumem only records",
                    text::clean(&tool)
                ),
            ),
            None => Finding::new("tools", Severity::Ok, "no other tool is loaded"),
        });
    }
    let (theirs, ours) = (summary.text(header.shim_version), env!("CARGO_PKG_VERSION"));
    findings.push(match theirs == ours {
        true => Finding::new("version", Severity::Ok, format!("the shim is of release {theirs}")),
        false => Finding::new("version", Severity::Info, format!("the shim is of release {theirs}, gpumem of {ours}"))
            .fix("use both from one release"),
    });
    findings
}

fn dropped(summary: &Snapshot) -> Finding {
    match summary.counter(counters::DROPPED_RECORDS) {
        0 => Finding::new("dropped", Severity::Ok, "every record fits"),
        n => Finding::new("dropped", Severity::Warning, format!("{} did not fit", text::count(n, "record")))
            .fix("start it with a larger GPUMEM_LEDGER_MAX, and with space where the ledger lies"),
    }
}

/// What the ledger of an ended process tells.
fn dead(world: &World, found: &FoundProcess, summary: &Snapshot, status: &Status) -> Vec<Finding> {
    let name = text::clean(&found.name()).into_owned();
    let finding = |severity, text: String| Finding::new("recording", severity, text);
    let mut findings = vec![match status.life {
        Life::Killed => finding(Severity::Warning, format!("{name} was {}, without closing its ledger", status.text()))
            .fix(format!(
                "SIGKILL, a crash, _exit or the system's out-of-memory killer; gpumem events {} shows its last events",
                found.pid
            )),
        _ => finding(Severity::Info, format!("{name} {}", status.text())),
    }];
    if summary.cut.is_some() {
        findings.push(Finding::new("ledger", Severity::Error, "its ledger is cut short: the rest is missing"));
    }
    findings.extend(trust::check(summary));
    findings.push(left(summary, found.pid));
    findings.push(dropped(summary));
    if let Ok(whole) = choose::read(world, found).map(|opened| Ledger::of(world, opened)) {
        findings.push(stacks(&whole));
        findings.extend(python(&whole));
        findings.extend(advice(&whole));
    }
    findings.extend(complaints(summary));
    findings
}

/// What there is to set.
fn advice(ledger: &Ledger) -> Vec<Finding> {
    [memory::check(ledger), graphs::check(ledger), freed_graphs::check(ledger), growth::check(ledger)].concat()
}

/// Findings of a dump, or of a ledger that lies elsewhere.
pub(super) fn of_file(ledger: &Ledger) -> Vec<Finding> {
    let (summary, header) = (&ledger.snapshot, &ledger.snapshot.header);
    let name = text::clean(&ledger.name()).into_owned();
    let mut findings = vec![Finding::new("recording", Severity::Info, format!("{name} {}", ledger.status.text()))];
    findings.push(interception(summary, u8::try_from(header.interception).ok().and_then(Interception::from_u8)));
    findings.extend(trust::check(summary));
    findings.push(dropped(summary));
    findings.push(stacks(ledger));
    findings.extend(python(ledger));
    findings.extend(advice(ledger));
    findings.extend(complaints(summary));
    findings.into_iter().map(|finding| finding.of(ledger.pid())).collect()
}

/// Memory that was live at the end.
fn left(summary: &Snapshot, pid: u32) -> Finding {
    let live = totals::live(summary);
    let finding = |severity, text: String| Finding::new("left", severity, text);
    if live.count == 0 {
        return finding(Severity::Ok, "it had freed everything".into());
    }
    let parts: Vec<_> = live.parts().map(|(bytes, what)| format!("{} {what}", units::bytes(bytes))).collect();
    let held = format!("when it ended it held {} in {}", parts.join(", "), text::count(live.count, "allocation"));
    finding(Severity::Info, format!("{held}; the driver has taken it back"))
        .fix(format!("nothing, unless the program should have freed it: gpumem allocs {pid} shows the call sites"))
}

fn interception(summary: &Snapshot, interception: Option<Interception>) -> Finding {
    let reason = summary.text(summary.header.interception_reason);
    let reason = if reason.is_empty() { "no reason was recorded".into() } else { reason };
    match interception {
        Some(Interception::Complete) => Finding::new("interception", Severity::Ok, "complete"),
        Some(Interception::Partial) => Finding::new("interception", Severity::Warning, format!("partial: {reason}"))
            .fix("numbers are a lower bound; start the program itself under gpumem run"),
        Some(Interception::None) => Finding::new("interception", Severity::Warning, format!("none: {reason}")).fix(
            "calls do not reach the shim: RTLD_DEEPBIND, a static driver loader, or another preload that comes first",
        ),
        None => Finding::new("interception", Severity::Warning, "unknown to this version of gpumem"),
    }
}

/// Names at most this many threads.
const THREADS: usize = 4;

/// Calls whose stack could not be walked, by thread. Allocations that are too small for a stack by
/// the process's own setting do not count.
/// Whether call sites are lines of Python, where there is an interpreter.
fn python(ledger: &Ledger) -> Option<Finding> {
    let head = ledger.head();
    let finding = match (head.python.is_empty(), head.python_refused.is_empty()) {
        (true, _) => return None,
        (_, true) => Finding::new("python", Severity::Ok, format!("frames of {} are read", head.python)),
        (_, false) => {
            let said = format!("call stacks have no frames of {}: {}", head.python, head.python_refused);
            Finding::new("python", Severity::Info, said)
                .fix("a newer release of gpumem may know it; native frames are recorded all the same")
        }
    };
    Some(finding)
}

fn stacks(ledger: &Ledger) -> Finding {
    let snapshot = &ledger.snapshot;
    if snapshot.header.stack_depth == 0 {
        return Finding::new("stacks", Severity::Info, "no call stacks are recorded, so no call sites are known")
            .fix("start it with GPUMEM_STACKS above 0");
    }
    let smallest = ledger.settings().stack_every;
    let allocs = snapshot.allocs.iter().filter(|alloc| alloc.bytes >= smallest).map(|alloc| (alloc.tid, alloc.stack));
    let graphs = snapshot.graphs.iter().map(|graph| (graph.tid, graph.stack));
    let execs = snapshot.execs.iter().map(|exec| (exec.tid, exec.stack));
    let (mut all, mut without, mut threads) = (0_u64, 0_u64, BTreeMap::<u32, u64>::new());
    for (tid, stack) in allocs.chain(graphs).chain(execs) {
        all += 1;
        if stack == 0 {
            without += 1;
            *threads.entry(tid).or_default() += 1;
        }
    }
    if without == 0 {
        return Finding::new("stacks", Severity::Ok, "every live record has a call stack");
    }
    let mut threads: Vec<_> = threads.into_iter().collect();
    threads.sort_by_key(|&(tid, records)| (std::cmp::Reverse(records), tid));
    let name = |&(tid, _): &(u32, u64)| format!("{tid} {}", ledger.thread(tid)).trim_end().to_owned();
    let mut names = threads.iter().take(THREADS).map(name).collect::<Vec<_>>().join(", ");
    if threads.len() > THREADS {
        names.push_str(&format!(" and {} more", threads.len() - THREADS));
    }
    let finding =
        format!("{} of {} have no call stack: thread {names}", units::number(without), text::count(all, "live record"));
    Finding::new("stacks", Severity::Warning, finding).fix(
        "code without frame pointers and without unwind tables cannot be walked: build it with -fno-omit-frame-pointer",
    )
}

fn complaints(summary: &Snapshot) -> Vec<Finding> {
    let text = summary.text(summary.header.complaints);
    let found: Vec<_> = text
        .lines()
        .map(|line| {
            Finding::new("complaints", Severity::Warning, line).fix("correct or unset it where the program is started")
        })
        .collect();
    if found.is_empty() {
        return vec![Finding::new("complaints", Severity::Ok, "its settings are in order")];
    }
    found
}

/// Variables of other projects that are in force. Whoever set them may not have thought of gpumem.
fn aliases(ledger: &Ledger) -> Vec<Finding> {
    let environment: Vec<_> =
        ledger.environment().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let finding = |&of: &&Alias| Finding { id: "aliases", ..alias(of) };
    let found: Vec<_> = aliases_in_force(&environment).iter().map(finding).collect();
    if found.is_empty() {
        return vec![Finding::new("aliases", Severity::Ok, "no variable of another project is in force")];
    }
    found
}

/// The control thread beats every second.
const LATE_NS: u64 = 10_000_000_000;

fn heartbeat(summary: &Snapshot, status: &Status) -> Finding {
    let late = monotonic_ns().saturating_sub(summary.header.heartbeat_ns);
    match summary.header.heartbeat_ns {
        0 => Finding::new("heartbeat", Severity::Info, "no control thread runs: no samples over time, no commands")
            .fix("start it with GPUMEM_CONTROL=1, unless you turned the thread off on purpose"),
        _ if status.life == Life::Running && late > LATE_NS => {
            let finding = format!("the control thread has not reported for {}", units::span(late));
            Finding::new("heartbeat", Severity::Warning, finding)
                .fix("the process is stopped, frozen or starved of processor time")
        }
        _ => Finding::new("heartbeat", Severity::Ok, "the control thread is alive"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hip_runtime_that_cannot_be_seen_is_told() {
        let world = World::here(None);
        let said = |kfd: bool, driver: bool| {
            let mapped = Mapped { shim: true, kfd, driver, ..Mapped::default() };
            let what = LedgerFile::NoLedger { mapped: mapped.clone(), expected: "/l".into() };
            let found = FoundProcess { pid: 7, process: None, what, at: None };
            no_ledger(&world, &found, &mapped, Path::new("/l")).finding
        };
        assert!(said(true, false).contains("linked statically"), "{}", said(true, false));
        assert!(!said(true, true).contains("statically"));
        assert!(said(false, false).contains("no GPU call yet"));
    }
}
