//! The text output has the same numbers.

use super::{Pairs, Views, number};
use gpumem_wire::units;
use serde_json::Value;

/// Lines of text that have totals, against `stats`.
pub(super) fn equal(pairs: &mut Pairs, views: &Views<'_>, stats: &Value) -> Result<(), String> {
    let live = |memory: &str| units::bytes(number(&stats["live"][memory]));
    let allocs = views.text(&["allocs"])?;
    // A memory of which nothing is live is not named.
    let named = ["device", "managed", "host"].into_iter().filter(|memory| number(&stats["live"][*memory]) > 0);
    let named: Vec<String> = named.map(|memory| format!("{} {memory}", live(memory))).collect();
    let allocations = format!("{} allocations live: {}", number(&stats["live"]["count"]), named.join(", "));
    pairs.shown(&allocs, "allocs", &allocations);
    let page = views.text(&["stats"])?;
    for device in stats["devices"].as_array().into_iter().flatten() {
        pairs.shown(&page, "stats", &units::bytes(number(&device["tracked_bytes"])));
    }
    if number(&stats["host"]["pinned_bytes"]) > 0 {
        let pinned = units::bytes(number(&stats["host"]["pinned_bytes"]));
        pairs.shown(&page, "stats", &format!("{pinned}  pinned memory from the driver"));
    }
    let graphs = views.json(&["graphs"])?;
    let of = |memory: &str| units::bytes(number(&graphs["total"][format!("{memory}_bytes_estimated")]));
    let told = format!("about {} of host and {} of device memory", of("host"), of("device"));
    pairs.shown(&views.text(&["graphs"])?, "graphs", &told);
    let leaks = views.json(&["leaks"])?;
    let holding = leaks["suspects"].as_array().into_iter().flatten();
    let holding = holding.filter(|row| (row["kind"] == "site" || row["kind"] == "graphs") && number(&row["bytes"]) > 0);
    pairs.shown(&views.text(&["leaks"])?, "leaks", &format!("{} call sites hold memory", holding.count()));
    Ok(())
}
