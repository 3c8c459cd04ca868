//! Checks of a process's graphs: whether execs are under the graph cache, whether its bounds fit, what is parked.

use super::finding::{Finding, Severity};
use super::memory::set;
use crate::model::cache::{self, Cache};
use crate::model::{Ledger, execs};
use crate::report::cache::{lines, pinned_words, thrash_words};
use crate::text::{self, units};
use gpumem_wire::kinds::ExecState;

/// Parked execs that take less need no advice, bytes.
const LITTLE: u64 = 64 << 20;

/// All of them.
pub(super) fn check(ledger: &Ledger) -> Vec<Finding> {
    let cache = cache::of(ledger);
    let mut findings = vec![bounds(ledger, &cache)];
    findings.extend(parked(ledger, &cache));
    findings
}

/// Whether graph execs are bounded, and whether the bounds are too tight for the program.
fn bounds(ledger: &Ledger, cache: &Cache) -> Finding {
    let finding = |severity, text: String| Finding::new("graph-cache", severity, text);
    let pid = ledger.pid();
    if let Some(thrash) = cache.thrash.as_ref().filter(|thrash| thrash.recent) {
        let folded = ledger.snapshot.execs.iter().filter(|exec| execs::state(exec) == Some(ExecState::Folded));
        let wanted =
            folded.fold(0_u64, |sum, exec| sum.saturating_add(exec.host_bytes.saturating_add(exec.device_bytes)));
        let change = format!("{}={}", thrash.raise.trim_start_matches(gpumem_wire::settings::PREFIX), thrash.to);
        let finding = finding(Severity::Warning, thrash_words(thrash)).bytes(wanted);
        let all = units::bytes(cache.real_bytes_estimated.saturating_add(wanted));
        return set(
            ledger,
            finding,
            &change,
            &format!(", if there is memory for that: {all} for all graphs, estimated"),
        );
    }
    match cache.state {
        "off" if ledger.settings().graph_cache == 0 => finding(Severity::Info, format!("off: {}", cache.reason))
            .fix("start it without GPUMEM_GRAPH_CACHE=0 to bound what graphs take"),
        "off" => finding(Severity::Info, format!("off: {}", cache.reason)),
        "pinned" => finding(Severity::Info, format!("{}: {}", cache.reason, pinned_words(cache))).fix(format!(
            "gpumem graphs --pinned --all {pid} says which and why; pinned execs behave as without gpumem"
        )),
        "unused" => finding(Severity::Ok, cache.reason.clone()),
        _ if cache.one_by_one > 0 => {
            let launches = text::count(cache.one_by_one, "launch");
            finding(Severity::Warning, format!("{launches} ran node by node, because no real exec could be made"))
                .fix("the device or the host was out of memory: gpumem stats says who holds it")
        }
        _ => finding(Severity::Ok, lines(cache).join("; ")),
    }
}

/// Real execs of no handle.
fn parked(ledger: &Ledger, cache: &Cache) -> Option<Finding> {
    let bytes = cache.parked_host_bytes_estimated.saturating_add(cache.parked_device_bytes_estimated);
    if bytes < LITTLE || bytes < cache.real_bytes_estimated / 2 {
        return None;
    }
    let execs = text::count(cache.parked_execs, "real exec");
    let said = format!("{execs} of no handle take {}, estimated: graphs were destroyed", units::bytes(bytes));
    let finding = Finding::new("parked", Severity::Info, said).bytes(bytes);
    Some(match ledger.status.running() {
        true => finding
            .paste(format!("gpumem trim {}", ledger.pid()))
            .fix("they go with time, where GPUMEM_GRAPH_IDLE is not 0"),
        false => finding,
    })
}
