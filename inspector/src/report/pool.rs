//! The pool in words, for the heads of views, for `doctor`, and for `stats --all`.

use super::lines::{self, line, nonzero};
use crate::model::pool::{Guard, OfContext, Pool, StrandedSite};
use crate::text::{clean, count, if_any, units};
use crate::view::table::{HEAD, Table, WARN, paint};
use std::io::Write;

/// "at most 1.0 GiB", or the default limit if none is set.
fn bound(pool: &Pool) -> String {
    match pool.idle_max_bytes {
        Some(bytes) => format!("at most {}", units::bytes(bytes)),
        None => "at most a quarter of each device".into(),
    }
}

/// Returns the share of allocations served by an idle block; empty without any.
pub(super) fn hit_rate(pool: &Pool) -> String {
    units::percent(pool.hits, pool.hits.saturating_add(pool.misses).saturating_add(pool.passed))
}

/// Returns one line for the head of a view; none if the pool was never needed.
pub(crate) fn head(pool: &Pool) -> Option<String> {
    if !pool.seen() {
        let off = pool.state == "off";
        return off.then(|| format!("pool off: {}", clean(&pool.reason)));
    }
    let hits = if_any(hit_rate(pool), |rate| format!(", {rate} hits"));
    let spilled = if_any(pool.spilled_live_bytes, |bytes| format!(", {} spilled", units::bytes(bytes)));
    let idle = format!("{} idle in {}", units::bytes(pool.idle_bytes), count(pool.idle_blocks, "block"));
    Some(format!("pool {} ({}): {idle} ({}){hits}{spilled}", pool.state, pool.free, bound(pool)))
}

/// Prints [`head`], and a warning if memory is stranded.
pub(crate) fn print_head(out: &mut dyn Write, pool: &Pool) -> std::io::Result<()> {
    if let Some(line) = head(pool) {
        writeln!(out, "{line}")?;
    }
    match worst(pool) {
        Some(site) => writeln!(out, "{} {}", paint(WARN, "warning:"), stranded_words(site)),
        None => Ok(()),
    }
}

/// Returns the call site with the most stranded bytes, while any are stranded.
fn worst(pool: &Pool) -> Option<&StrandedSite> {
    pool.stranded.first().filter(|_| pool.stranded_bytes > 0)
}

/// Returns a call site that strands memory, in words.
pub(crate) fn stranded_words(site: &StrandedSite) -> String {
    format!(
        "{} in {} lie unused while {} asks for more, as reported {} ago",
        units::bytes(site.bytes),
        count(site.blocks, "older block"),
        clean(&site.site),
        units::span(site.last_age_ns)
    )
}

/// Prints the part of `stats --all`; nothing if no memory was ever requested.
pub(crate) fn print_part(out: &mut dyn Write, pool: &Pool) -> std::io::Result<()> {
    if pool.state == "unused" && !pool.seen() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint(HEAD, "pool"))?;
    let reason = clean(&pool.reason).into_owned();
    let frees = match pool.free {
        _ if pool.state != "on" => "",
        "deferred" => "frees never wait",
        _ => "frees wait as they do without gpumem",
    };
    line(out, pool.state, frees, &reason)?;
    if pool.seen() {
        print_kept(out, pool)?;
        print_done(out, pool)?;
    }
    print_guard(out, &pool.guard)?;
    let why = "kernels and buffers of the guard and of searches";
    let own = [
        (pool.own_device_bytes, "gpumem's own, of the device", why),
        (pool.own_pinned_bytes, "gpumem's own, pinned", why),
    ];
    nonzero(out, units::bytes, &own)?;
    print_contexts(out, &pool.in_contexts)?;
    print_stranded(out, pool)
}

/// Prints the idle memory and its limits.
fn print_kept(out: &mut dyn Write, pool: &Pool) -> std::io::Result<()> {
    let remark = format!(
        "in {}; {} (GPUMEM_POOL_MAX); NVML counts idle memory as used",
        count(pool.idle_blocks, "block"),
        bound(pool)
    );
    line(out, &units::bytes(pool.idle_bytes), "idle", &remark)?;
    match pool.decay_ns {
        0 => line(out, "-", "idle memory is not given back with time", "GPUMEM_POOL_DECAY=0")?,
        ns => line(out, &units::span(ns), "until idle memory goes back to the driver", "GPUMEM_POOL_DECAY")?,
    }
    if pool.spilled_live_bytes > 0 || pool.spills > 0 {
        let ever = format!("{} in {} so far", units::bytes(pool.spilled_bytes), count(pool.spills, "allocation"));
        line(out, &units::bytes(pool.spilled_live_bytes), "live outside of the device's memory (spilled)", &ever)?;
    }
    Ok(())
}

/// Prints the work done.
fn print_done(out: &mut dyn Write, pool: &Pool) -> std::io::Result<()> {
    let n = units::number;
    let rate = hit_rate(pool);
    if !rate.is_empty() {
        let of = format!(
            "{} reused, {} from the driver, {} bypassed the pool",
            n(pool.hits),
            n(pool.misses),
            n(pool.passed)
        );
        line(out, &rate, "hits", &of)?;
    }
    line(out, &n(pool.kept), "frees whose block the pool kept", "")?;
    let barriers = pool.barriers.saturating_add(pool.barriers_saved);
    if barriers > 0 {
        let waited = format!("frees waited for the GPU, {} did not need to", n(pool.barriers_saved));
        line(out, &n(pool.barriers), &waited, "")?;
    }
    line(out, &n(pool.released), "blocks given back to the driver", &units::bytes(pool.released_bytes))?;
    let seldom = [
        (pool.flushes, "times everything was given back", "an allocation had run out of memory"),
        (pool.trims, "times trimmed", "gpumem trim"),
        (pool.limit_refusals, "allocations over the limit", "GPUMEM_LIMIT"),
        (pool.press_refusals, "allocations refused once", "so that the program frees what it strands"),
        (
            pool.freed_in_graph,
            "allocations freed while a live graph still refers to them",
            "gpumem events --kind freed-in-graph",
        ),
    ];
    nonzero(out, n, &seldom)
}

/// Prints the guard's memory and findings, if there is a guard.
fn print_guard(out: &mut dyn Write, guard: &Guard) -> std::io::Result<()> {
    if !guard.on {
        return Ok(());
    }
    let n = units::number;
    let what = "besides what the program asked for, to find wrong writes";
    line(out, &units::bytes(guard.bytes), what, "GPUMEM_GUARD; at most GPUMEM_GUARD_MAX")?;
    line(out, &n(guard.checks), "ranges read", "behind and in front of allocations, and freed ones")?;
    let seldom = [
        (guard.unchecked, "ranges that could not be read in time", "what was written there is not known"),
        (guard.without, "allocations that are not watched", "GPUMEM_GUARD_MAX was reached, or memory was short"),
        (guard.written_outside, "allocations were written to outside of them", "gpumem events --kind written-outside"),
        (
            guard.written_after_free,
            "allocations were written to after their free",
            "gpumem events --kind written-after-free",
        ),
        (
            guard.freed_graph_launches,
            "launches of graphs that refer to freed memory",
            "gpumem events --kind freed-graph-launched",
        ),
    ];
    nonzero(out, n, &seldom)
}

/// Prints one row for each context, if there are several or one is not served.
fn print_contexts(out: &mut dyn Write, contexts: &[OfContext]) -> std::io::Result<()> {
    let plain = |context: &OfContext| context.reason.is_empty() && context.limit_bytes == 0;
    if contexts.len() < 2 && contexts.iter().all(plain) {
        return Ok(());
    }
    let why = |context: &OfContext| match context.reason.as_str() {
        "" => context.state.to_owned(),
        reason => format!("{}: {reason}", context.state),
    };
    let table = Table::<OfContext>::new()
        .right("  context", 0, |context| context.context.to_string())
        .right("device", 0, |context| context.device.to_string())
        .bytes("live", 0, |context| context.live_bytes)
        .bytes("peak", 0, |context| context.peak_bytes)
        .bytes("idle", 0, |context| context.idle_bytes)
        .bytes("idle peak", 0, |context| context.idle_peak_bytes)
        .some_bytes("spilled", 0, |context| context.spilled_live_bytes)
        .some_bytes("limit", 0, |context| context.limit_bytes)
        .left("pool", 0, why);
    table.print(out, || contexts.iter())
}

fn print_stranded(out: &mut dyn Write, pool: &Pool) -> std::io::Result<()> {
    if pool.stranded.is_empty() {
        return Ok(());
    }
    let title = match pool.stranded_bytes {
        0 => paint(HEAD, "stranded, and freed since: older buffers lay unused while their call site asked for more"),
        now => {
            let what = "in older buffers that lie unused while their call site asks for more";
            paint(WARN, format!("stranded now: {} {what}", units::bytes(now)))
        }
    };
    writeln!(out, "\n{title}")?;
    let table = Table::<StrandedSite>::new()
        // A site reports again when it strands more; later frees appear in the total alone.
        .bytes("unused then", 0, |site| site.bytes)
        .number("blocks", 0, |site| site.blocks)
        .number("reports", 0, |site| site.times)
        .right("last report", 0, |site| format!("{} ago", units::span(site.last_age_ns)))
        .text("site", 0, |site| &site.site);
    table.below(|site| lines::stack(&site.stack)).print(out, || pool.stranded.iter())
}
