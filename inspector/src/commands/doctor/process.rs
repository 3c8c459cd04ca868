//! Checks of one process: completeness of its records, and the reasons for gaps; whether the shim does more than record,
//! what decided that, and which features it does not know.

use super::finding::{Finding, Severity, error, finding, info, ok, warning};
use super::subject::{ENDED, FILE, RUNNING, Reading, Subject, Whole};
use super::system::alias;
use crate::model::{Head, totals};
use crate::source::ask::ask;
use crate::source::find::{FoundProcess, LedgerFile};
use crate::source::liveness::Life;
use crate::source::process::Mapped;
use crate::source::world::{World, monotonic_ns};
use crate::text::{self, units};
use gpumem_wire::command::Request;
use gpumem_wire::counters;
use gpumem_wire::kinds::{Interception, Mode, State, Vendor};
use gpumem_wire::settings::{aliases_in_force, parse_bool};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// Returns the findings for a process whose ledger cannot be read. `None`: it can be read.
pub(super) fn without_ledger(world: &World, found: &FoundProcess, reading: &Reading) -> Option<Vec<Finding>> {
    let finding = match &found.what {
        LedgerFile::Ledger { .. } => return None,
        // One finding of stale-ledgers covers all of them.
        LedgerFile::Unreadable { .. } if found.is_dead_of_other_version() && !reading.is_named() => {
            return Some(Vec::new());
        }
        LedgerFile::Unreadable { why, .. } => {
            let (severity, fix) = match found.process {
                Some(_) => (Severity::Error, ""),
                None => (Severity::Warning, "gpumem clean --all removes what ended processes have left"),
            };
            finding(severity, &*why.what).fix(why.fix.as_deref().unwrap_or(fix))
        }
        LedgerFile::NoLedger { mapped, expected } => no_ledger(world, found, mapped, expected),
    };
    Some(vec![Finding { id: "ledger", ..finding }])
}

fn no_ledger(world: &World, found: &FoundProcess, mapped: &Mapped, expected: &Path) -> Finding {
    let environment = found.process.as_ref().and_then(|process| process.environment(world).ok()).unwrap_or_default();
    let disabled = environment.get(OsStr::new("GPUMEM_DISABLE")).and_then(|value| parse_bool(value.to_str()?));
    if disabled == Some(true) {
        return info("GPUMEM_DISABLE=1: the shim does nothing").fix("start it without GPUMEM_DISABLE");
    }
    if mapped.kfd && !mapped.driver {
        let said = "it has opened an AMD GPU (/dev/kfd), and no libamdhip64.so is loaded: the calls of a HIP runtime that \
                    is linked statically cannot be seen";
        return warning(said).fix("link HIP as a shared library");
    }
    if !mapped.driver {
        return info("it has made no GPU call yet, so there is no ledger");
    }
    let dir = expected.parent().unwrap_or(expected);
    warning(format!("the driver is loaded, and there is no ledger in {}", dir.display())).fix(
        "if it does use the GPU: can it write there (GPUMEM_DIR names another directory)? Was it loaded with RTLD_DEEPBIND, or does it call the driver itself?",
    )
}

/// Reports if part of the ledger could not be read.
pub(super) fn ledger(of: &Subject) -> Option<Finding> {
    match &of.whole {
        _ if of.is & ENDED != 0 && of.summary.cut.is_some() => {
            error("its ledger is cut short: the rest is missing").into()
        }
        Err(why) if of.is & RUNNING != 0 => info(format!("it was not checked: {}", why.what)).into(),
        _ => None,
    }
}

/// Reports if the process records, or how it ended.
pub(super) fn recording(of: &Subject) -> Option<Finding> {
    let (pid, name) = (of.pid, text::clean(&of.name));
    let state = u8::try_from(of.summary.header.state).ok().and_then(State::from_u8);
    match of.status.life {
        Life::Killed if of.is & FILE == 0 => {
            let fix = "possible causes: SIGKILL, a crash, _exit, the system's out-of-memory killer; gpumem events";
            warning(format!("{name} {}; its ledger was not closed", of.status.text()))
                .fix(format!("{fix} {pid} shows its last events"))
                .into()
        }
        Life::Replaced => info(format!("{name} was {}: the program at this pid is another now", of.status.text()))
            .fix(format!("gpumem allocs {pid} shows what it held; gpumem clean --all removes its ledger"))
            .into(),
        _ if of.is & RUNNING == 0 => {
            let is = if of.status.running() { "is " } else { "" };
            info(format!("{name} {is}{}", of.status.text())).into()
        }
        _ if state == Some(State::Recording) => None,
        _ => error("recording has stopped")
            .fix(format!("gpumem events --problems {pid} says why; start the program again"))
            .into(),
    }
}

pub(super) fn dropped(of: &Subject) -> Option<Finding> {
    match of.summary.counter(counters::DROPPED_RECORDS) {
        0 => None,
        n => warning(format!("{} did not fit into the ledger", text::count(n, "record")))
            .fix("start it with a larger GPUMEM_LEDGER_MAX, and with enough space in the ledger's directory")
            .into(),
    }
}

/// Reports memory that was live at the end.
pub(super) fn left(of: &Subject) -> Finding {
    let live = totals::live(of.summary, of.status);
    if live.count == 0 {
        return ok("it had freed everything");
    }
    let parts: Vec<_> = live.parts().map(|(bytes, what)| format!("{} {what}", units::bytes(bytes))).collect();
    let held = format!("when it ended it held {} in {}", parts.join(", "), text::count(live.count, "allocation"));
    let who = format!("gpumem allocs {} shows the call sites", of.pid);
    info(format!("{held}; the driver has taken it back"))
        .fix(format!("nothing to do, unless the program should have freed it: {who}"))
}

pub(super) fn interception(of: &Subject) -> Option<Finding> {
    let reason = of.summary.text(of.summary.header.interception_reason);
    let reason = if reason.is_empty() { "no reason was recorded".into() } else { reason };
    let found = match u8::try_from(of.summary.header.interception).ok().and_then(Interception::from_u8) {
        Some(Interception::Complete) => return None,
        Some(Interception::Partial) => warning(format!("partial: {reason}"))
            .fix("numbers are a lower bound; start the program itself under gpumem run"),
        Some(Interception::None) => warning(format!("none: {reason}")).fix(
            "calls do not reach the shim: RTLD_DEEPBIND, a static driver loader, or another preload that comes first",
        ),
        None => warning("its value is unknown to this version of gpumem"),
    };
    found.into()
}

/// Reports if call sites are lines of Python, if the process has an interpreter.
pub(super) fn python(of: &Whole) -> Option<Finding> {
    let head = Head::of(of.ledger);
    match (head.python.is_empty(), head.python_refused.is_empty()) {
        (true, _) => None,
        (_, true) => ok(format!("frames of {} are read", head.python)).into(),
        (_, false) => info(format!("call stacks have no frames of {}: {}", head.python, head.python_refused))
            .fix("a newer release of gpumem may know it; native frames are recorded all the same")
            .into(),
    }
}

/// Most threads that are named.
const THREADS: usize = 4;

/// Reports calls whose stack could not be walked, by thread. Allocations below the process's size limit for stacks do
/// not count.
pub(super) fn stacks(of: &Whole) -> Option<Finding> {
    let ledger = of.ledger;
    let snapshot = &ledger.snapshot;
    if snapshot.header.stack_depth == 0 {
        return info("no call stacks are recorded, so no call sites are known")
            .fix("start it with GPUMEM_STACKS above 0")
            .into();
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
        return None;
    }
    let mut threads: Vec<_> = threads.into_iter().collect();
    threads.sort_by_key(|&(tid, records)| (std::cmp::Reverse(records), tid));
    let name = |&(tid, _): &(u32, u64)| format!("{tid} {}", ledger.thread(tid)).trim_end().to_owned();
    let mut names = threads.iter().take(THREADS).map(name).collect::<Vec<_>>().join(", ");
    if threads.len() > THREADS {
        names.push_str(&format!(" and {} more", threads.len() - THREADS));
    }
    let (without, all) = (units::number(without), text::count(all, "live record"));
    warning(format!("{without} of {all} have no call stack: thread {names}"))
        .fix("their code has neither frame pointers nor unwind tables: build it with -fno-omit-frame-pointer")
        .into()
}

pub(super) fn complaints(of: &Subject) -> Vec<Finding> {
    let text = of.summary.text(of.summary.header.complaints);
    let wrong = |line: &str| warning(line).fix("correct or unset it where the program is started");
    text.lines().map(wrong).collect()
}

/// Reports variables of other projects that are in force. The user may have set them without gpumem in mind.
pub(super) fn aliases(of: &Whole) -> Vec<Finding> {
    let environment = of.ledger.environment().into_iter().map(|(name, value)| (name.into(), value.into()));
    aliases_in_force(&environment.collect::<Vec<_>>()).into_iter().map(alias).collect()
}

/// The control thread beats every second.
const LATE_NS: u64 = 10_000_000_000;

pub(super) fn heartbeat(of: &Subject) -> Option<Finding> {
    let late = monotonic_ns().saturating_sub(of.summary.header.heartbeat_ns);
    match of.summary.header.heartbeat_ns {
        0 => info("no control thread runs: no samples over time, no commands")
            .fix("start it with GPUMEM_CONTROL=1, unless you turned the thread off on purpose")
            .into(),
        _ if of.status.is_here() && late > LATE_NS => {
            warning(format!("the control thread has not reported for {}", units::span(late)))
                .fix("the process is stopped, frozen or starved of processor time")
                .into()
        }
        _ => None,
    }
}

/// Reports that the device memory of the process is on the host, or on its way there.
pub(super) fn parking(of: &Subject) -> Option<Finding> {
    let bytes = units::bytes(of.summary.header.parked_bytes);
    let found = match of.status.life {
        Life::Parked => info(format!(
            "{}: {bytes} of its device memory are on the host, and its driver calls wait",
            of.status.text()
        ))
        .fix(format!("gpumem resume {}", of.pid)),
        Life::BeingParked => info(format!("{}: its device memory is on its way to the host", of.status.text()))
            .fix("nothing, unless it stays so: the program that parks it may have ended"),
        _ => return None,
    };
    found.into()
}

pub(super) fn control(of: &Subject) -> Option<Finding> {
    let Ok(Err(why)) = of.whole.as_ref().map(|whole| ask(&whole.ledger.whom(), &Request::Ping)) else {
        return None;
    };
    // The finding names the process already.
    let said = why.what.strip_prefix(&format!("pid {} ({}) ", of.pid, of.name)).map(|rest| format!("it {rest}"));
    warning(said.unwrap_or(why.what)).fix(why.fix.unwrap_or_default()).into()
}

pub(super) fn tools(of: &Subject) -> Vec<Finding> {
    let said = |tool: &String| {
        let tool = text::clean(tool);
        info(format!("{tool} watches the GPU: if it was loaded before the first GPU call, gpumem only records"))
    };
    of.mapped.tool.iter().map(said).collect()
}

pub(super) fn version(of: &Subject) -> Option<Finding> {
    let (theirs, ours) = (of.summary.text(of.summary.header.shim_version), env!("CARGO_PKG_VERSION"));
    if theirs == ours {
        return None;
    }
    info(format!("libgpumem.so is of release {theirs}, gpumem of {ours}")).fix("use both from one release").into()
}

/// Returns the deciding setting or finding in the first line, then the refused ones.
fn decided(of: &Subject) -> String {
    of.summary.text(of.summary.header.decided).into_owned()
}

/// Reports if the shim does more than record.
pub(super) fn mode(of: &Subject) -> Finding {
    let all = decided(of);
    let decided = all.lines().next().unwrap_or_default();
    let reason = of.summary.text(of.summary.header.mode_reason);
    let active = of.summary.header.mode != Mode::RecordOnly as u32;
    if active && reason.is_empty() {
        let by = if decided.is_empty() { String::new() } else { format!("; decided by {decided}") };
        return ok(format!("active{by}"));
    }
    let said = if decided.contains(&*reason) { decided } else { &*reason };
    let said = if active { format!("active, but {said}") } else { format!("record-only: {said}") };
    info(said).fix("GPUMEM_RECORD_ONLY=0 overrides it")
}

/// Reports selftest verdicts that were refused.
pub(super) fn verdict(of: &Subject) -> Vec<Finding> {
    let refused = |line: &str| warning(line).fix("remove the file; gpumem selftest --rules writes another");
    decided(of).lines().skip(1).map(refused).collect()
}

/// Reports the ROCm of a process without CUDA. It is reported beside the mode, because a newer minor version is still
/// served.
pub(super) fn rocm(of: &Subject) -> Option<Finding> {
    let number = of.summary.header.driver_version;
    let is_hips = of.summary.contexts.values().any(|context| context.vendor == Vendor::Hip as u8);
    let ((major, minor), newest) = (gpumem_wire::units::version(number), gpumem_wire::units::NEWEST_ROCM);
    // CUDA's version numbers are smaller.
    if !is_hips || number < 1_000_000 {
        return None;
    }
    let compared = format!("the newest compared is {}.{}", newest.0, newest.1);
    if (major, minor) <= newest {
        return ok(format!("ROCm {major}.{minor}; {compared}")).into();
    }
    info(format!("ROCm {major}.{minor} was not compared with gpumem's tables; {compared}"))
        .fix("a newer release of gpumem may know it; gpumem selftest says what works here")
        .into()
}

/// Features that the process used and that the shim has no tables for.
pub(super) fn unknown(of: &Subject) -> Option<Finding> {
    let met = of.summary.text(of.summary.header.unknown);
    let met: Vec<&str> = met.lines().collect();
    if met.is_empty() {
        return None;
    }
    info(format!("newer than this gpumem, and left to the driver: {}", met.join(", ")))
        .fix("a newer release of gpumem may know it")
        .into()
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
            let found = FoundProcess { pid: 7, process: None, what, at: None, file: None };
            no_ledger(&world, &found, &mapped, Path::new("/l")).finding
        };
        assert!(said(true, false).contains("linked statically"), "{}", said(true, false));
        assert!(!said(true, true).contains("statically"));
        assert!(said(false, false).contains("no GPU call yet"));
    }
}
