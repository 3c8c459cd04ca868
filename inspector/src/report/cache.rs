//! The graph cache in words, for the head of `graphs` and `top`, and for `stats --all`.

use super::lines::{line, nonzero};
use crate::model::cache::{Cache, Thrash};
use crate::text::{clean, count, if_any, units};
use crate::view::table::{HEAD, WARN, paint};
use std::io::Write;

/// "512" or "2.0 GiB"; says so if there is no limit.
fn bound(bound: u64, show: impl Fn(u64) -> String) -> String {
    if bound == 0 { "no bound".into() } else { format!("at most {}", show(bound)) }
}

/// Returns the real execs against their limits: "7 real execs of at most 512, 70.0 MiB of at most 2.0 GiB".
fn real(cache: &Cache) -> String {
    format!(
        "{} ({}), ~{} ({})",
        count(cache.real_execs, "real exec"),
        bound(cache.max_execs, units::number),
        units::bytes(cache.real_bytes_estimated),
        bound(cache.max_bytes, units::bytes)
    )
}

/// Returns the share of launches whose real exec was ready; empty without launches.
pub(super) fn hit_rate(cache: &Cache) -> String {
    units::percent(cache.hits, cache.launches)
}

/// Describes the thrashing and the setting that ends it.
pub(crate) fn thrash_words(thrash: &Thrash) -> String {
    let last = thrash.last_age_ns.map(|age| format!(", last {} ago", units::span(age))).unwrap_or_default();
    format!(
        "the graph cache thrashed {}{last}: raise its bound, for example {}={}",
        count(thrash.times, "time"),
        thrash.raise,
        thrash.to
    )
}

/// Returns a few lines for the head of a view; one if the cache is off, none if it was never needed.
pub(crate) fn lines(cache: &Cache) -> Vec<String> {
    if cache.state == "unused" && !cache.seen() {
        return Vec::new();
    }
    if !cache.seen() {
        let pinned = pinned(cache, "");
        return vec![format!("graph cache {}: {}{pinned}", cache.state, clean(&cache.reason))];
    }
    let parked = if_any(cache.parked_execs, |n| format!(", {} of them parked", units::number(n)));
    let gone = if cache.gone > 0 { format!(", {} gone", units::number(cache.gone)) } else { String::new() };
    let mut lines = vec![
        format!("graph cache {}: {}{parked}", cache.state, real(cache)),
        format!(
            "{}: {} resident, {} folded{gone}; sources {}{}",
            count(cache.handles, "handle"),
            units::number(cache.resident),
            units::number(cache.folded),
            units::bytes(cache.source_bytes),
            pinned(cache, "; ")
        ),
    ];
    let mean = if_any(cache.retargets, |_| format!(" of {}", units::span(cache.retarget_mean_ns)));
    let ready = if_any(hit_rate(cache), |rate| format!("{rate} of launches were ready to run, "));
    lines.push(format!(
        "{ready}{}{mean}, {}, {}; about {} of time {}",
        count(cache.retargets, "retarget"),
        count(cache.instantiations, "instantiate"),
        count(cache.evictions, "eviction"),
        units::span(cache.saved_ns.unsigned_abs()),
        saved(cache)
    ));
    lines
}

fn saved(cache: &Cache) -> &'static str {
    if cache.saved_ns < 0 { "lost" } else { "saved" }
}

/// Returns the pinned handles in words: "3 event-nodes, 1 memory-nodes"; empty if there are none.
pub(crate) fn pinned_words(cache: &Cache) -> String {
    let mut reasons: Vec<_> = cache.pinned_by.iter().collect();
    reasons.sort_by_key(|&(name, &n)| (std::cmp::Reverse(n), name));
    let words = reasons.iter().map(|(name, n)| format!("{} {name}", units::number(**n)));
    words.collect::<Vec<_>>().join(", ")
}

fn pinned(cache: &Cache, before: &str) -> String {
    match pinned_words(cache) {
        words if words.is_empty() => String::new(),
        words => {
            format!("{}{} pinned ({words})", if before.is_empty() { "; " } else { before }, units::number(cache.pinned))
        }
    }
}

/// Prints [`lines`], and a warning if it thrashes.
pub(crate) fn print_head(out: &mut dyn Write, cache: &Cache) -> std::io::Result<()> {
    for line in lines(cache) {
        writeln!(out, "{line}")?;
    }
    print_thrash(out, cache)
}

/// Prints the first of [`lines`], and a warning if it thrashes.
pub(crate) fn print_short(out: &mut dyn Write, cache: &Cache) -> std::io::Result<()> {
    if let Some(line) = lines(cache).first() {
        writeln!(out, "{line}")?;
    }
    print_thrash(out, cache)
}

fn print_thrash(out: &mut dyn Write, cache: &Cache) -> std::io::Result<()> {
    match cache.thrash.as_ref().filter(|thrash| thrash.recent) {
        Some(thrash) => writeln!(out, "{} {}", paint(WARN, "warning:"), thrash_words(thrash)),
        None => Ok(()),
    }
}

/// Prints the part of `stats --all`; nothing if no exec was ever made.
pub(crate) fn print_part(out: &mut dyn Write, cache: &Cache) -> std::io::Result<()> {
    if cache.state == "unused" && !cache.seen() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint(HEAD, "graph cache"))?;
    let reason = clean(&cache.reason).into_owned();
    let on = if cache.state == "on" { "the program's exec handles are gpumem's own" } else { "" };
    line(out, cache.state, on, &reason)?;
    nonzero(out, units::number, &[(cache.pinned, "pinned handles", &pinned_words(cache))])?;
    if cache.seen() {
        print_held(out, cache)?;
        print_done(out, cache)?;
    }
    print_thrash(out, cache)
}

/// Prints the contents and limits.
fn print_held(out: &mut dyn Write, cache: &Cache) -> std::io::Result<()> {
    let n = units::number;
    let (resident, folded, gone) = (n(cache.resident), n(cache.folded), n(cache.gone));
    let states = format!("{resident} resident, {folded} folded, {gone} gone, in {}", count(cache.classes, "class"));
    line(out, &n(cache.handles), "virtual handles", &states)?;
    line(out, &n(cache.real_execs), "real execs", &format!("{} (GPUMEM_GRAPH_CACHE)", bound(cache.max_execs, n)))?;
    if cache.parked_execs > 0 {
        let bytes = units::bytes(cache.parked_host_bytes_estimated.saturating_add(cache.parked_device_bytes_estimated));
        let remark = format!("~{bytes}, used by no handle now; the next handle of their class takes one");
        line(out, &n(cache.parked_execs), "of them parked", &remark)?;
    }
    let remark = format!("estimated; {} (GPUMEM_GRAPH_CACHE_BYTES)", bound(cache.max_bytes, units::bytes));
    line(out, &units::bytes(cache.real_bytes_estimated), "real execs, host and device", &remark)?;
    let remark = "copies of the graphs behind the handles, to build execs again";
    line(out, &units::bytes(cache.source_bytes), "sources", remark)?;
    if cache.folded_graphs > 0 || cache.folds > 0 {
        let bytes = units::bytes(cache.folded_graph_bytes);
        let remark = format!("they take {bytes}; folded so far: {}, built again: {}", n(cache.folds), n(cache.unfolds));
        line(out, &n(cache.folded_graphs), "folded graphs", &remark)?;
    }
    Ok(())
}

/// Prints the work done.
fn print_done(out: &mut dyn Write, cache: &Cache) -> std::io::Result<()> {
    let n = units::number;
    let rate = hit_rate(cache);
    if !rate.is_empty() {
        line(out, &rate, "hits", "launches whose graph was ready to run")?;
    }
    let mean = if_any(cache.retargets, |_| {
        format!("{} each, {} set", units::span(cache.retarget_mean_ns), count(cache.nodes_set, "node"))
    });
    line(out, &n(cache.retargets), "retargets", &mean)?;
    let reasons = [
        (cache.over_bound, "above a bound"),
        (cache.made_anew, "for execs that retargets had slowed"),
        (cache.fallback_instantiates, "after a refused retarget"),
    ];
    let reasons = reasons.iter().filter(|(times, _)| *times > 0);
    let reasons: Vec<_> = reasons.map(|&(times, what)| format!("{} {what}", n(times))).collect();
    line(out, &n(cache.instantiations), "instantiates", &reasons.join(", "))?;
    let reused = format!("{} reused after a destroy", count(cache.recycled, "exec"));
    line(out, &n(cache.evictions), "evictions", &reused)?;
    let seldom = [
        (cache.one_by_one, "launches node by node", "no real exec could be made"),
        (cache.oom_retries, "retries after out-of-memory", ""),
        (cache.graph_trims, "trims of the driver's graph memory", ""),
    ];
    nonzero(out, n, &seldom)?;
    let remark = format!(
        "estimated: the time of instantiates that were not needed, minus {} that launches spent on getting their execs",
        units::span(cache.miss_ns)
    );
    line(out, &units::span(cache.saved_ns.unsigned_abs()), saved(cache), &remark)
}
