//! Growth of a process: of its call sites, by the samples of each; and of the process as a whole, by the samples of its
//! totals.

use super::finding::{Finding, Severity, finding, info, warning};
use super::subject::Whole;
use crate::model::Ledger;
use crate::model::growth::{self, Growth};
use crate::model::suspects::{self, Suspect, Suspects};
use crate::report::cure::Cure;
use crate::report::growth::{
    advice, caveat, heap_profiler, held, of_balance, rate, rate_of, too_few, verdict, who, without_verdict,
};
use crate::text::{clean, count, units};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, GrowthKind};

/// Growth of the process as a whole is not judged over a shorter time, ns.
const SHORTEST_NS: u64 = 60_000_000_000;
/// Less growth per minute counts as none, bytes.
const LITTLE: i64 = 16 << 20;
/// Less growth per minute is reported without a warning, bytes.
const MUCH: f64 = 1048576.0;
/// Less code of a call site, or code in fewer modules, needs no advice.
const MUCH_CODE: u64 = 64 << 20;
const MANY_MODULES: u64 = 16;
/// Most call sites that are listed; `gpumem leaks` has the others.
const NAMED: usize = 3;

/// Columns to check if no call site explains the growth: the name, the meaning, and the command that says more.
const WHAT: [(&str, &str, &str); 3] = [
    ("device_live_bytes", "live device memory", "gpumem leaks PID"),
    ("graph_host_bytes", "host memory of graphs and execs", "gpumem graphs PID"),
    ("rss_of_program_bytes", "resident memory, without gpumem's own,", "gpumem stats PID"),
];

/// Reports growing call sites, or else growth of the heap or of the process as a whole, and that there is no verdict yet on
/// some call sites: if `gpumem leaks` has one on each, there is one here.
pub(super) fn check(of: &Whole) -> Vec<Finding> {
    let all = &of.suspects.all;
    let mut found = sites(of.ledger, &of.suspects);
    if suspects::growing(all).next().is_some() {
        return found;
    }
    let (too_few, unclear) = (too_few(of.ledger, &of.suspects.samples), suspects::unclear(all));
    if found.is_empty() {
        found = totals(of.ledger, of.suspects.without_row == 0 && too_few.is_none());
    }
    match too_few {
        Some(too_few) if found.is_empty() => found.push(info(too_few)),
        None if !unclear.is_empty() => {
            found.push(info(format!("too little to judge: {}", without_verdict(&unclear))));
        }
        _ => {}
    }
    found
}

/// Warns if one call site holds much code in many modules.
pub(super) fn code(of: &Whole) -> Option<Finding> {
    let of_code = of.suspects.all.iter().filter(|suspect| suspect.kind == GrowthKind::Code);
    let most = of_code.max_by_key(|suspect| suspect.bytes);
    let most = most.filter(|most| most.bytes >= MUCH_CODE && most.live >= MANY_MODULES)?;
    let unloaded = match of.ledger.snapshot.counter(counters::frees(AllocKind::Code)) {
        0 => "none was ever unloaded".to_owned(),
        n => format!("{} unloaded in this process", units::number(n)),
    };
    let (bytes, modules) = (crate::report::growth::bytes(most), units::number(most.live));
    warning(format!("{bytes} of code in {modules} modules that {} loaded; {unloaded}", clean(&most.key)))
        .bytes(most.bytes)
        .fix(advice(of.ledger, most).map_or_else(String::new, Cure::text))
        .into()
}

/// Reports call sites that grow steadily, and the heap if it does.
fn sites(ledger: &Ledger, found: &Suspects) -> Vec<Finding> {
    let growing: Vec<&Suspect> = suspects::growing(&found.all).collect();
    let mut findings: Vec<Finding> = growing.iter().take(NAMED).map(|suspect| site(ledger, suspect)).collect();
    if let Some(more) = growing.get(NAMED..).filter(|more| !more.is_empty()) {
        let said = format!("{} more grow steadily", count(more.len() as u64, "call site"));
        let all = more.iter().map(|suspect| bytes(suspect)).fold(0, u64::saturating_add);
        let per_minute = more.iter().map(|suspect| suspect.bytes_per_minute).sum();
        findings.push(grown(said, per_minute, all).paste(format!("gpumem leaks {}", ledger.whose())));
    }
    if let Some(heap) = found.heap.as_ref().filter(|heap| heap.grows()) {
        let said = format!(
            "the process's own heap grows by {}, and recorded GPU calls do not explain it",
            rate(heap.bytes_per_minute)
        );
        let profiler = heap_profiler(ledger).unwrap_or_else(|| "heaptrack".into());
        let found = grown(said, heap.bytes_per_minute, bytes(heap));
        findings.push(found.fix(format!("use a profiler of the heap, such as {profiler}")));
    }
    findings
}

/// Returns a finding about growth per minute, with the total growth in bytes.
fn grown(said: String, per_minute: f64, bytes: u64) -> Finding {
    let severity = if per_minute >= MUCH { Severity::Warning } else { Severity::Info };
    finding(severity, said).bytes(bytes)
}

fn site(ledger: &Ledger, suspect: &Suspect) -> Finding {
    let (who, held) = (who(suspect), held(suspect));
    let said = match (suspect.balance, suspect.freed_share) {
        (Some(_), _) => format!("{who} {}", verdict(suspect)),
        (None, Some(freed)) => {
            let by = rate_of(suspect);
            format!("{who} grows steadily, by {by}: {held}, {} of all that it allocated are freed", units::share(freed))
        }
        (None, None) => format!("{who}: {}: {held}", verdict(suspect)),
    };
    let finding =
        grown(said, suspect.bytes_per_minute, bytes(suspect)).fix(caveat(ledger, suspect).unwrap_or_default());
    let of_graphs = suspect.balance.as_ref().map(|balance| of_balance(ledger, suspect, balance));
    if let Some((fault, Some(Cure::Paste(bound)))) = of_graphs {
        return finding.fix(fault).paste(bound);
    }
    match advice(ledger, suspect) {
        Some(Cure::Paste(next)) => finding.paste(next),
        Some(Cure::Start(next)) => finding.fix(next),
        None => finding,
    }
}

/// Returns the total growth in bytes.
fn bytes(suspect: &Suspect) -> u64 {
    suspect.since().map_or(0, |grown| u64::try_from(grown.bytes_change).unwrap_or(0))
}

/// Reports growth of the whole process that no call site explains. The samples show its amount, but not its origin.
/// `is_judged`: each call site has a verdict, so that growth of the device's memory is temporary.
fn totals(ledger: &Ledger, is_judged: bool) -> Vec<Finding> {
    let long = growth::growth(ledger).filter(|growth| growth.span_ns >= SHORTEST_NS);
    let Some(growth::AllGrowth { span_ns, rows, .. }) = long else { return Vec::new() };
    let is_asked = |name: &str| !(is_judged && name == "device_live_bytes");
    let of = |name: &str| rows.iter().find(|row| row.what == name && is_asked(name)).filter(|row| grows(row, span_ns));
    WHAT.iter()
        .filter_map(|&(name, what, command)| of(name).map(|row| (row, what, command)))
        .map(|(row, what, command)| {
            let said = format!(
                "{what} grew by {} in the last minute, and from {} to {} in {}",
                units::bytes(row.last_minute.unsigned_abs()),
                units::bytes(row.first),
                units::bytes(row.last),
                units::span(span_ns)
            );
            let pid = ledger.pid().to_string();
            warning(said).bytes(row.last_minute.unsigned_abs()).paste(command.replace("PID", &pid))
        })
        .collect()
}

/// Returns true if a number grows steadily: in the last minute, before that, and near its peak. A rise that has ended
/// is no growth.
fn grows(row: &Growth, span_ns: u64) -> bool {
    let minute = row.last_minute;
    let since_the_first = row.last.saturating_sub(row.first) as f64 * 60e9 / span_ns as f64;
    minute >= LITTLE
        && minute as u64 >= row.last / 50
        && row.last >= row.peak / 20 * 19
        && since_the_first * 2.0 >= minute as f64
}
