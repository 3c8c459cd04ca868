//! Memory that the driver took for itself, by call site: the fall of free memory around calls that request none.

use super::Ledger;
use super::sites::Sites;
use gpumem_wire::kinds::{EventKind, Taken};
use serde::Serialize;
use std::collections::BTreeMap;

/// Memory that the driver took in calls of one site, for one reason, on one device. Limited to events still in the
/// ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TakenBy {
    pub device: u32,
    /// The reason: `context`, `code`, `first launch`, `limit`.
    pub what: &'static str,
    pub bytes: u64,
    pub times: u64,
    pub last_age_ns: u64,
    pub site: String,
}

/// Returns the calls in which the driver took memory, largest first.
pub(crate) fn taken(ledger: &Ledger) -> Vec<TakenBy> {
    let took = || ledger.snapshot.events.iter().filter(|event| event.kind == EventKind::DriverTook as u8);
    if took().next().is_none() {
        return Vec::new();
    }
    let sites = Sites::of_events(ledger);
    let mut rows: BTreeMap<_, TakenBy> = BTreeMap::new();
    for event in took() {
        let device = ledger.snapshot.contexts.get(&event.context).map_or(0, |context| context.device);
        let what = Taken::name_of(event.b);
        let site = sites.name(event.stack);
        let row = rows.entry((device, what, site.clone())).or_insert_with(|| TakenBy {
            device,
            what,
            site: site.to_string(),
            ..TakenBy::default()
        });
        row.bytes = row.bytes.saturating_add(event.a);
        row.times += 1;
        row.last_age_ns = ledger.age(event.time_ns);
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.cmp(&b.site)));
    rows
}
