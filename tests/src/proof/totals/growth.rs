//! Holders of memory and their amounts, as `gpumem leaks` and the samples of `gpumem stats` tell them.

use super::{Pairs, Views, live_bytes, number, sum};
use serde_json::Value;
use std::collections::BTreeMap;

/// The newest sample.
pub(super) fn samples(pairs: &mut Pairs, stats: &Value) {
    let rows = stats["growth"]["rows"].as_array().cloned().unwrap_or_default();
    let last = |what: &str| rows.iter().find(|row| row["what"] == what).map_or(u64::MAX, |row| number(&row["last"]));
    for memory in ["device", "host", "managed"] {
        pairs.equal(
            format!("growth of {memory}"),
            number(&stats["live"][memory]),
            last(&format!("{memory}_live_bytes")),
        );
    }
    pairs.equal("growth of allocations", number(&stats["live"]["count"]), last("allocs_live"));
    let counter = |name: &str| number(&stats["counters"][name]);
    let graphs = counter("graphs_created") - counter("graphs_destroyed");
    pairs.equal("growth of graphs", graphs, last("graphs_live"));
    pairs.equal("growth of execs", counter("execs_created") - counter("execs_destroyed"), last("execs_live"));
    let host = ["graph_bytes", "exec_bytes", "source_bytes"].iter().map(|part| number(&stats["host"][*part])).sum();
    pairs.equal("growth of graph host memory", host, last("graph_host_bytes"));
    pairs.equal("growth of idle memory", number(&stats["pool"]["idle_bytes"]), last("device_idle_bytes"));
}

/// Call sites of memory and of graphs, and classes: all that each has, however old it is, and what other views say of it.
pub(super) fn suspects(pairs: &mut Pairs, views: &Views<'_>, stats: &Value) -> Result<(), String> {
    let leaks = views.json(&["leaks"])?;
    let rows = |kind: &str| -> Value {
        let all = leaks["suspects"].as_array().into_iter().flatten();
        all.filter(|row| row["kind"] == kind).cloned().collect::<Vec<Value>>().into()
    };
    pairs.equal(
        "leaks, its rows",
        number(&leaks["suspects_total"]),
        leaks["suspects"].as_array().map_or(0, Vec::len) as u64,
    );
    for row in leaks["suspects"].as_array().into_iter().flatten() {
        let who = format!("{} {}", row["kind"], row["key"]);
        for (all, of_age) in [("bytes", "bytes"), ("live", "live")] {
            pairs.equal(format!("leaks, {all} of {who} by age"), number(&row[all]), sum(&row["ages"], of_age));
        }
        pairs.equal(
            format!("leaks, peak of {who}"),
            number(&row["peak_bytes"]).min(number(&row["bytes"])),
            number(&row["bytes"]),
        );
    }
    let sites = rows("site");
    pairs.equal("leaks, bytes of call sites", sum(&sites, "bytes"), live_bytes(stats));
    pairs.equal("leaks, allocations of call sites", sum(&sites, "live"), number(&stats["live"]["count"]));
    let allocs = views.json(&["allocs", "--by", "site"])?;
    let by_site = |rows: &Value, name: &str| -> BTreeMap<String, [u64; 2]> {
        let rows = rows.as_array().into_iter().flatten();
        let rows = rows.filter(|row| number(&row["live"]) > 0);
        rows.map(|row| (row[name].to_string(), [number(&row["bytes"]), number(&row["live"])])).collect()
    };
    pairs.all += 1;
    let (of_leaks, of_allocs) = (by_site(&sites, "key"), by_site(&allocs["rows"], "key"));
    if of_leaks != of_allocs {
        pairs.differ.push(format!("leaks and allocs by call site: {of_leaks:?} and {of_allocs:?}"));
    }
    // Kinds that take no memory of their own have no call site here.
    let taking = stats["kinds"].as_array().into_iter().flatten().filter(|kind| kind["space"] != "none");
    // Nor of memory that was freed before a sample saw it: that is counted.
    let made = sum(&sites, "total_allocs") + number(&leaks["unlisted_allocs"]);
    pairs.equal("leaks, ever made", made, taking.map(|kind| number(&kind["allocs"])).sum());
    let graphs = views.json(&["graphs", "--all"])?;
    let (total, cache) = (&graphs["total"], &graphs["cache"]);
    let real = |memory: &str| {
        number(&total[format!("{memory}_bytes_estimated")]) - number(&cache[format!("parked_{memory}_bytes_estimated")])
    };
    pairs.equal("leaks, bytes of graphs", sum(&rows("graphs"), "bytes"), real("host") + real("device"));
    // An exec of the driver's own, whose graph has nodes that allocate, has no class.
    let of_classes = graphs["execs"].as_array().into_iter().flatten().filter(|exec| exec["class"] != "");
    let bytes = |exec: &Value| number(&exec["host_bytes_estimated"]) + number(&exec["device_bytes_estimated"]);
    let execs = of_classes.map(bytes).sum();
    if number(&cache["max_execs"]) != 0 {
        pairs.equal("leaks, bytes of classes", sum(&rows("class"), "bytes"), execs);
    }
    Ok(())
}
