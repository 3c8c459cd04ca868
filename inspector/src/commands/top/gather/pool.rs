//! The pool's idle memory by context, and its work.

use super::super::look::{CONTEXTS, Cell, Look, PLAIN, Row, Sheet, WARN};
use super::View;
use super::memory::gathered;
use super::overview::numbers;
use crate::model::pool::{OfContext, Pool};
use crate::report;
use crate::text::units;
use gpumem_wire::counters as c;

/// Work of the pool, by counter.
const DID: &[(&str, usize)] = &[
    ("hits", c::POOL_HITS),
    ("from the driver", c::POOL_MISSES),
    ("past the pool", c::POOL_PASSED),
    ("frees kept", c::POOL_KEPT),
    ("blocks given back", c::POOL_RELEASED),
    ("frees that waited", c::POOL_BARRIERS),
    ("spills", c::SPILLS),
    ("over the limit", c::LIMIT_REFUSALS),
];

/// Fills the tab.
pub(super) fn fill(view: &View, look: &mut Look) {
    let overview = gathered(view.ledger);
    let pool = &overview.pool;
    look.lines = report::pool::head(pool).into_iter().collect();
    if pool.stranded_bytes > 0 {
        look.warnings.extend(pool.stranded.iter().map(report::pool::stranded_words));
    }
    let is_of_pool = |name: &str| ["device memory, live", "idle in the pool"].contains(&name);
    look.numbers = numbers(view, &overview, is_of_pool, DID);
    let contexts = pool.in_contexts.iter().map(row).collect();
    look.list = Sheet { columns: CONTEXTS, rows: contexts, empty: "no context", ..Sheet::default() };
    look.detail = view.ask.detail.as_ref().map(|id| detail(pool, id));
}

fn row(context: &OfContext) -> Row {
    let some = |bytes| if bytes == 0 { Cell::Empty } else { Cell::Bytes(bytes) };
    let why = if context.reason.is_empty() { String::new() } else { format!(": {}", context.reason) };
    let cells = vec![
        Cell::Count(context.context.into()),
        Cell::Count(context.device.into()),
        Cell::Bytes(context.live_bytes),
        Cell::Bytes(context.peak_bytes),
        Cell::Bytes(context.idle_bytes),
        Cell::Bytes(context.idle_peak_bytes),
        some(context.spilled_live_bytes),
        some(context.limit_bytes),
        Cell::text(format!("{}{why}", context.state)),
    ];
    let style = if context.reason.is_empty() { PLAIN } else { WARN };
    Row::new(context.context.to_string(), cells).style(style)
}

fn detail(pool: &Pool, id: &str) -> Vec<String> {
    let Some(context) = pool.in_contexts.iter().find(|context| context.context.to_string() == id) else {
        return vec![format!("context {id} is gone")];
    };
    let bytes = units::bytes;
    let limit = if context.limit_bytes == 0 { "as much as there is".into() } else { bytes(context.limit_bytes) };
    vec![
        format!("context {id} on device {}", context.device),
        String::new(),
        format!("pool     {} {}", context.state, context.reason),
        format!("live     {}, at most {} at a time", bytes(context.live_bytes), bytes(context.peak_bytes)),
        format!("idle     {} in {} blocks", bytes(context.idle_bytes), units::number(context.idle_blocks)),
        format!("         at most {} at a time", bytes(context.idle_peak_bytes)),
        format!("spilled  {}", bytes(context.spilled_live_bytes)),
        format!("limit    {limit}"),
    ]
}
