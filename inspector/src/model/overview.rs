//! The sums of a process: live memory, devices, pool, graph cache. Views and metrics share them.

use super::cache::{self, Cache};
use super::devices::{self, Device};
use super::pool::{self, Pool};
use super::totals::{self, KindTotal, Live};
use super::{Ledger, graphs};
use crate::source::nvml::Books;
use serde::Serialize;

/// Sums, and the parts behind them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overview {
    pub live: Live,
    pub kinds: Vec<KindTotal>,
    pub devices: Vec<Device>,
    pub cache: Cache,
    pub pool: Pool,
    /// The sum of all graphs and execs.
    #[serde(skip)]
    pub graphs: graphs::Group,
    /// Peak of live device memory of each context, added up.
    #[serde(skip)]
    pub device_peak_bytes: u64,
}

impl Overview {
    /// Gathers all sums. `books`: the driver's counts, which are queried once for each card.
    pub(crate) fn of(ledger: &Ledger, books: &Books) -> Self {
        let cache = cache::of(ledger);
        let contexts = ledger.snapshot.contexts.values();
        Self {
            live: totals::live(&ledger.snapshot, &ledger.status),
            kinds: totals::kinds(ledger),
            devices: devices::of(ledger, books),
            graphs: graphs::total(ledger, &cache),
            cache,
            pool: pool::of(ledger),
            device_peak_bytes: contexts.fold(0, |sum: u64, context| sum.saturating_add(context.peak_bytes)),
        }
    }
}
