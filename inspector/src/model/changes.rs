//! Two snapshots compared: what grew where.

use super::Ledger;
use super::allocs::{self, By, Filter};
use super::graphs;
use crate::source::find::file_name;
use serde::Serialize;
use std::collections::BTreeMap;

/// What has to agree for two call sites to be the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Match {
    /// File and address within it: exact, for one build of the program, whatever run.
    Address,
    /// The function's name: also across builds.
    Function,
}

/// One call site in both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    pub site: String,
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub bytes_change: i64,
    pub count_before: u64,
    pub count_after: u64,
    pub count_change: i64,
}

/// Graphs and execs of one call site in both; bytes are estimates, host and device together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GraphChange {
    pub site: String,
    pub graphs_before: u64,
    pub graphs_after: u64,
    pub graphs_change: i64,
    pub execs_before: u64,
    pub execs_after: u64,
    pub execs_change: i64,
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub bytes_change: i64,
}

/// Difference without surprise at the ends.
pub fn minus(after: u64, before: u64) -> i64 {
    i64::try_from(i128::from(after) - i128::from(before)).unwrap_or(if after > before { i64::MAX } else { i64::MIN })
}

/// What identifies a site in both snapshots.
fn identity(ledger: &Ledger, site: Option<u64>, by: Match) -> String {
    let Some(address) = site else { return "(no stack)".into() };
    let frame = &ledger.symbols.frames(address)[0];
    let module = frame.module.as_deref().map(file_name).unwrap_or_default();
    match (&frame.function, by) {
        (Some(function), Match::Function) => format!("{module} {function}"),
        _ => format!("{module}+{:x}", frame.module_address.unwrap_or(address)),
    }
}

/// Changes of live allocations, the largest growth first; sites that did not change are left out.
pub fn allocs(before: &Ledger, after: &Ledger, by: Match, filter: &Filter) -> Vec<Change> {
    let mut changes: BTreeMap<String, Change> = BTreeMap::new();
    for (ledger, is_after) in [(before, false), (after, true)] {
        for group in allocs::group(ledger, filter, By::Site, false) {
            let allocs::Key::Site(site) = group.key else { continue };
            let change = changes.entry(identity(ledger, site, by)).or_default();
            change.site = ledger.site_text(site);
            let (bytes, count) = match is_after {
                true => (&mut change.bytes_after, &mut change.count_after),
                false => (&mut change.bytes_before, &mut change.count_before),
            };
            *bytes = bytes.saturating_add(group.bytes);
            *count += group.live;
        }
    }
    let mut changes: Vec<_> = changes.into_values().collect();
    for change in &mut changes {
        change.bytes_change = minus(change.bytes_after, change.bytes_before);
        change.count_change = minus(change.count_after, change.count_before);
    }
    changes.retain(|change| change.bytes_change != 0 || change.count_change != 0);
    changes.sort_by_key(|change| (std::cmp::Reverse(change.bytes_change), std::cmp::Reverse(change.count_change)));
    changes
}

/// Changes of graphs and execs, the largest growth first.
pub fn graphs(before: &Ledger, after: &Ledger, by: Match) -> Vec<GraphChange> {
    let mut changes: BTreeMap<String, GraphChange> = BTreeMap::new();
    for (ledger, is_after) in [(before, false), (after, true)] {
        for (key, group) in graphs::group(ledger, graphs::By::Site) {
            let graphs::Key::Site(site) = key else { continue };
            let change = changes.entry(identity(ledger, site, by)).or_default();
            change.site = ledger.site_text(site);
            let bytes = group.host_bytes.saturating_add(group.device_bytes);
            let (graphs, execs, sum) = match is_after {
                true => (&mut change.graphs_after, &mut change.execs_after, &mut change.bytes_after),
                false => (&mut change.graphs_before, &mut change.execs_before, &mut change.bytes_before),
            };
            *graphs += group.graphs;
            *execs += group.execs;
            *sum = sum.saturating_add(bytes);
        }
    }
    let mut changes: Vec<_> = changes.into_values().collect();
    for change in &mut changes {
        change.graphs_change = minus(change.graphs_after, change.graphs_before);
        change.execs_change = minus(change.execs_after, change.execs_before);
        change.bytes_change = minus(change.bytes_after, change.bytes_before);
    }
    changes.retain(|change| change.graphs_change != 0 || change.execs_change != 0 || change.bytes_change != 0);
    changes.sort_by_key(|change| (std::cmp::Reverse(change.bytes_change), std::cmp::Reverse(change.execs_change)));
    changes
}
