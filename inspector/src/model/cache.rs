//! The graph cache: its state, its contents against its limits, its work, and the time and memory it saved.

use super::execs::{held, state, why_pinned};
use super::{Ledger, RECENT_NS, sums, variables};
use gpumem_wire::counters::{self as c};
use gpumem_wire::kinds::{EventKind, ExecState, Pinned};
use gpumem_wire::layout::ContextRef;
use gpumem_wire::read::Snapshot;
use gpumem_wire::settings::Settings;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeMap;

/// The graph cache of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Cache {
    /// `on`; `off`; `pinned`: on, but every live exec is pinned; `unused`: no graph has reached it so far.
    pub state: &'static str,
    /// The reason why it is not on, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The limits in force. 0 bytes: no limit. 0 ns: no idle time.
    pub max_execs: u64,
    pub max_bytes: u64,
    pub(super) idle_ns: u64,
    /// Live handles made by gpumem, and the listed ones of them by state.
    pub handles: u64,
    pub resident: u64,
    pub folded: u64,
    pub gone: u64,
    /// Live pinned handles, and the listed ones of them by reason.
    pub pinned: u64,
    pub pinned_by: BTreeMap<&'static str, u64>,
    /// Number of classes of the listed handles.
    pub classes: u64,
    pub real_execs: u64,
    pub real_bytes_estimated: u64,
    /// Parked execs: real execs without a handle, counted in `real_execs` too.
    pub parked_execs: u64,
    pub parked_host_bytes_estimated: u64,
    pub parked_device_bytes_estimated: u64,
    pub source_bytes: u64,
    pub launches: u64,
    /// Launches that found their real exec ready.
    pub hits: u64,
    pub retargets: u64,
    /// Mean time of a retarget.
    pub retarget_mean_ns: u64,
    pub nodes_set: u64,
    /// Real execs ever made.
    pub instantiations: u64,
    pub recycled: u64,
    pub evictions: u64,
    pub over_bound: u64,
    pub made_anew: u64,
    pub fallback_instantiates: u64,
    pub one_by_one: u64,
    /// Estimated instantiate time saved, less the time that launches took to get their execs.
    pub saved_ns: i64,
    /// Time that launches took to get their execs.
    pub miss_ns: u64,
    /// Listed and folded graphs, and the bytes of their sources.
    pub folded_graphs: u64,
    pub folded_graph_bytes: u64,
    pub folds: u64,
    pub unfolds: u64,
    pub oom_retries: u64,
    pub graph_trims: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thrash: Option<Thrash>,
}

/// Execs that are evicted and wanted again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Thrash {
    pub times: u64,
    /// Age of the last such event in the ring.
    pub last_age_ns: Option<u64>,
    /// True if it happened recently and the variable was not changed since.
    pub recent: bool,
    /// The variable to raise, with the new value.
    pub raise: &'static str,
    pub to: String,
}

/// Variables that an event may recommend to raise.
const BOUNDS: [&str; 3] = ["GPUMEM_GRAPH_CACHE", "GPUMEM_GRAPH_CACHE_BYTES", "GPUMEM_GRAPH_IDLE"];

/// Returns the graph cache of a ledger's process.
pub(crate) fn of(ledger: &Ledger) -> Cache {
    let snapshot = &ledger.snapshot;
    let counter = |index| snapshot.counter(index);
    let balance = |made, ended| counter(made).saturating_sub(counter(ended));
    let settings = ledger.settings();
    let instantiations = counter(c::REAL_EXECS_MADE);
    let retargets = counter(c::RETARGETS);
    let launches = counter(c::LAUNCHES);
    let mut cache = Cache {
        max_execs: settings.graph_cache,
        max_bytes: settings.graph_cache_bytes,
        idle_ns: settings.graph_idle,
        handles: balance(c::HANDLES_MADE, c::HANDLES_ENDED),
        pinned: balance(c::PINNED_MADE, c::PINNED_ENDED),
        real_execs: balance(c::REAL_EXECS_MADE, c::REAL_EXECS_ENDED),
        real_bytes_estimated: balance(c::REAL_BYTES_ADDED, c::REAL_BYTES_REMOVED),
        source_bytes: balance(c::SOURCE_BYTES_ADDED, c::SOURCE_BYTES_REMOVED),
        launches,
        hits: if counter(c::HANDLES_MADE) == 0 {
            0
        } else {
            launches.saturating_sub(retargets).saturating_sub(instantiations)
        },
        retargets,
        retarget_mean_ns: counter(c::RETARGET_NS).checked_div(retargets).unwrap_or(0),
        nodes_set: counter(c::NODES_SET),
        instantiations,
        recycled: counter(c::RECYCLED),
        evictions: counter(c::EVICTIONS),
        over_bound: counter(c::OVER_BOUND),
        made_anew: counter(c::MADE_ANEW),
        fallback_instantiates: counter(c::FALLBACK_INSTANTIATES),
        one_by_one: counter(c::ONE_BY_ONE),
        saved_ns: counter(c::SAVED_NS).wrapping_sub(counter(c::MISS_NS)) as i64,
        miss_ns: counter(c::MISS_NS),
        folds: counter(c::FOLDS),
        unfolds: counter(c::UNFOLDS),
        oom_retries: counter(c::OOM_RETRIES),
        graph_trims: counter(c::GRAPH_TRIMS),
        ..Cache::default()
    };
    listed(snapshot, &mut cache);
    parked(ledger, &mut cache);
    (cache.state, cache.reason) = on(ledger, settings, &cache);
    cache.thrash = thrash(ledger, &cache);
    cache
}

/// Counts from the tables of execs and graphs.
fn listed(snapshot: &Snapshot, cache: &mut Cache) {
    let mut classes = FxHashSet::default();
    for exec in &snapshot.execs {
        match state(exec) {
            Some(ExecState::Resident) => cache.resident += 1,
            Some(ExecState::Folded) => cache.folded += 1,
            Some(ExecState::Gone) => cache.gone += 1,
            Some(ExecState::Native) | None => {}
        }
        if let Some(reason) = why_pinned(exec) {
            *cache.pinned_by.entry(reason.name()).or_insert(0) += 1;
        }
        if exec.class != 0 {
            classes.insert(exec.class);
        }
    }
    cache.classes = classes.len() as u64;
    for graph in snapshot.graphs.iter().filter(|graph| graph.folded_bytes != 0) {
        cache.folded_graphs += 1;
        cache.folded_graph_bytes = cache.folded_graph_bytes.saturating_add(graph.folded_bytes);
    }
}

/// Counts parked execs: all real execs except those of resident handles.
fn parked(ledger: &Ledger, cache: &mut Cache) {
    cache.parked_execs = cache.real_execs.saturating_sub(cache.resident);
    if cache.parked_execs == 0 {
        return;
    }
    let sum = |sum: u64, bytes: u64| sum.saturating_add(bytes);
    let resident = ledger.snapshot.execs.iter().filter(|exec| state(exec) == Some(ExecState::Resident)).map(held);
    let parked = cache.real_bytes_estimated.saturating_sub(resident.map(|held| held.real()).fold(0, sum));
    cache.parked_device_bytes_estimated = parked_device(ledger).into_values().fold(0, sum).min(parked);
    cache.parked_host_bytes_estimated = parked - cache.parked_device_bytes_estimated;
}

/// Returns the estimated device bytes of real execs without a handle, by context.
pub(super) fn parked_device(ledger: &Ledger) -> FxHashMap<ContextRef, u64> {
    let resident = || ledger.snapshot.execs.iter().filter(|exec| state(exec) == Some(ExecState::Resident));
    let counter = |index| ledger.snapshot.counter(index);
    if counter(c::REAL_EXECS_MADE).saturating_sub(counter(c::REAL_EXECS_ENDED)) <= resident().count() as u64 {
        return FxHashMap::default();
    }
    let resident = sums::by(resident().map(|exec| (exec.context, exec.device_bytes)));
    let contexts = ledger.snapshot.contexts.iter();
    contexts
        .map(|(&context, slot)| (context, slot.exec_bytes.saturating_sub(resident.get(&context).copied().unwrap_or(0))))
        .collect()
}

/// Reasons that apply to every exec of a process.
const EVERYWHERE: [Pinned; 4] = [Pinned::Off, Pinned::RecordOnly, Pinned::Interception, Pinned::Lookup];

/// Returns the state of the graph cache, with the reason if it is not on.
fn on(ledger: &Ledger, settings: &Settings, cache: &Cache) -> (&'static str, String) {
    let counted = |index| ledger.snapshot.counter(index) > 0;
    if cache.handles > 0 {
        return ("on", String::new());
    }
    if settings.graph_cache == 0 {
        return ("off", "GPUMEM_GRAPH_CACHE=0".into());
    }
    if let Some(reason) = ledger.record_only() {
        return ("off", reason);
    }
    let mut reasons = ledger.snapshot.execs.iter().filter_map(why_pinned).peekable();
    if let Some(&first) = reasons.peek() {
        let everywhere = EVERYWHERE.contains(&first) && reasons.all(|reason| reason == first);
        let partial = || ledger.partial().filter(|_| first == Pinned::Interception);
        return match everywhere {
            true => ("off", partial().unwrap_or_else(|| first.why().to_owned())),
            false => ("pinned", "every live exec is pinned".to_owned()),
        };
    }
    if counted(c::HANDLES_MADE) {
        return ("on", String::new());
    }
    if let Some(reason) = ledger.partial() {
        return ("off", reason);
    }
    let reason = if counted(c::EXECS_CREATED) { "no exec came under it" } else { "nothing was instantiated so far" };
    ("unused", reason.into())
}

/// Returns thrashing, and the change that would end it.
fn thrash(ledger: &Ledger, cache: &Cache) -> Option<Thrash> {
    let times = Some(ledger.snapshot.counter(c::THRASHES)).filter(|&times| times > 0)?;
    let last = ledger.last_event(EventKind::Thrash, |_| true);
    let named = last.and_then(|event| {
        let text = ledger.snapshot.text(event.text);
        BOUNDS.iter().copied().find(|&bound| text == bound)
    });
    // If the event has left the ring: the limit that is closer.
    let nearer = || {
        let fill = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let by_count = fill(cache.real_execs, cache.max_execs) >= fill(cache.real_bytes_estimated, cache.max_bytes);
        if by_count { BOUNDS[0] } else { BOUNDS[1] }
    };
    let raise = named.unwrap_or_else(nearer);
    let to = match raise {
        "GPUMEM_GRAPH_CACHE" => {
            let wanted = cache.handles.max(cache.max_execs.saturating_mul(2)).min(65536);
            wanted.checked_next_power_of_two().unwrap_or(65536).to_string()
        }
        "GPUMEM_GRAPH_CACHE_BYTES" => {
            let folded = ledger.snapshot.execs.iter().filter(|exec| state(exec) == Some(ExecState::Folded));
            let wanted = folded.fold(cache.real_bytes_estimated, |sum, exec| {
                sum.saturating_add(exec.host_bytes.saturating_add(exec.device_bytes))
            });
            format!("{}GiB", wanted.max(cache.max_bytes.saturating_mul(2)).div_ceil(1 << 30).max(1))
        }
        _ => format!("{}s", cache.idle_ns.saturating_mul(10).div_ceil(1_000_000_000).max(1)),
    };
    // If the variable was changed since, the user knows of the problem, and the effect is still unknown.
    let recent = last.is_some_and(|event| {
        ledger.age(event.time_ns) <= RECENT_NS && !variables::were_set_since(ledger, raise, event.time_ns)
    });
    Some(Thrash { times, last_age_ns: last.map(|event| ledger.age(event.time_ns)), recent, raise, to })
}

impl Cache {
    /// True if there is more to show than that the cache is off or unused.
    pub(crate) fn seen(&self) -> bool {
        self.state == "on" || self.instantiations > 0 || self.folds > 0 || self.folded_graphs > 0
    }
}
