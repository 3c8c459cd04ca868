//! Checks of a process's graphs: execs under the graph cache, its limits, and parked execs.

use super::finding::{Finding, info, ok, warning};
use super::memory::set;
use super::subject::Whole;
use crate::model::execs;
use crate::report::cache::{lines, pinned_words, thrash_words};
use crate::text::{self, units};
use gpumem_wire::kinds::ExecState;

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
        "off" if of.settings.graph_cache == 0 => {
            off().fix("start it without GPUMEM_GRAPH_CACHE=0 to bound what graphs take")
        }
        "off" => off(),
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
