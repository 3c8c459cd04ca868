//! `gpumem diff A [B]`: growth between two snapshots.

use crate::args::{Target, candidates};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::model::allocs::Filter;
use crate::model::cache::{self, Cache};
use crate::model::changes::{self, Change, Match, minus};
use crate::model::ledger::frames::StackMode;
use crate::model::pool::{self, Pool};
use crate::model::totals::{self, Live};
use crate::model::{Head, Ledger};
use crate::report::lines;
use crate::text::units;
use crate::view::table::{BAD, GOOD, HEAD, Table, paint};
use anstyle::Style;
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;

/// Compare two snapshots (dumps, ledgers, pids): growth by call site, of allocations and graphs
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The earlier snapshot: a dump, a ledger or a pid
    #[arg(value_name = "BEFORE", add = candidates::offer([candidates::recorded, candidates::files]))]
    before: OsString,
    /// The later snapshot: a dump, a ledger or a pid [default: the process that BEFORE was taken from, as it is now]
    #[arg(value_name = "AFTER", add = candidates::offer([candidates::recorded, candidates::files]))]
    after: Option<OsString>,
    /// How to tell that two call sites are the same
    #[arg(long, value_enum, default_value = "address", value_name = "HOW")]
    match_by: Match,
    /// Also kinds that take no memory of their own: addresses, mappings, imports, nodes of graphs, reported parts
    #[arg(long)]
    all_kinds: bool,
    /// How many rows of each table to show; 0 shows all [default: 40, in JSON all]
    #[arg(short = 'n', long, value_name = "ROWS", value_parser = crate::args::number::<usize>)]
    limit: Option<usize>,
    /// Do not look up symbols: show modules and offsets
    #[arg(long)]
    no_symbols: bool,
    /// Which frames to show, if a call stack has native frames and frames of Python
    #[arg(long, value_enum, value_name = "FRAMES", default_value = "mixed")]
    stack: StackMode,
}

#[derive(Serialize)]
struct Report {
    before: Side2,
    after: Side2,
    /// Time between the two, if they are of one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ns: Option<u64>,
    device_change: i64,
    managed_change: i64,
    host_change: i64,
    count_change: i64,
    allocs: Vec<Change<2>>,
    allocs_total: usize,
    graphs: Vec<Change<3>>,
    graphs_total: usize,
}

/// One of the two snapshots.
#[derive(Serialize)]
struct Side2 {
    process: Head,
    live: Live,
    cache: Cache,
    pool: Pool,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading either ledger.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let read = |name: &OsString| {
            let target = Some(name.clone());
            context.ledger(&Target { target, file: None, no_symbols: self.no_symbols, stack: self.stack })
        };
        let before = read(&self.before)?;
        let after = match &self.after {
            Some(after) => read(after)?,
            None => now(&before, &read)?,
        };
        let elapsed_ns = changes::elapsed_ns(&before, &after);
        let limit = context.rows(self.limit);
        let filter = Filter { all_kinds: self.all_kinds, ..Filter::default() };
        let mut allocs = changes::allocs(&before, &after, self.match_by, &filter);
        let mut graphs = changes::graphs(&before, &after, self.match_by);
        for change in &mut allocs {
            change.bytes_per_minute = elapsed_ns.map(|elapsed| changes::per_minute(change.difference(0), elapsed));
        }
        let (allocs_total, graphs_total) = (allocs.len(), graphs.len());
        allocs.truncate(limit);
        graphs.truncate(limit);
        let side = |ledger: &Ledger| Side2 {
            process: Head::of(ledger),
            live: totals::live(&ledger.snapshot, &ledger.status),
            cache: cache::of(ledger),
            pool: pool::of(ledger),
        };
        let (before, after) = (side(&before), side(&after));
        let report = Report {
            device_change: minus(after.live.device, before.live.device),
            managed_change: minus(after.live.managed, before.live.managed),
            host_change: minus(after.live.host, before.live.host),
            count_change: minus(after.live.count, before.live.count),
            before,
            after,
            elapsed_ns,
            allocs,
            allocs_total,
            graphs,
            graphs_total,
        };
        context.print(&report, print)
    }
}

/// Returns the process of a snapshot in its present or last state.
fn now(before: &Ledger, read: &dyn Fn(&OsString) -> Result<Ledger>) -> Result<Ledger> {
    let pid = before.pid();
    match read(&pid.to_string().into()) {
        Ok(after) if changes::same_process(before, &after) => Ok(after),
        Err(failure) if failure.code != Code::Nothing => Err(failure),
        _ => Err(Failure::nothing(format!(
            "pid {pid}, which {} is of, is gone and has left no ledger",
            before.path.display()
        ))
        .fix("name what to compare with: gpumem diff BEFORE AFTER")),
    }
}

/// Returns the style of a change: growth stands out.
fn tint(change: i64) -> Style {
    match change {
        0 => Style::new(),
        1.. => BAD,
        _ => GOOD,
    }
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let (before, after) = (&report.before, &report.after);
    let who = |head: &Head| format!("{} pid {}", crate::text::clean(&head.name), head.pid);
    let elapsed = report.elapsed_ns.map_or(String::new(), |elapsed| format!(", {} later", units::span(elapsed)));
    writeln!(out, "{} -> {}{elapsed}", paint(HEAD, who(&before.process)), paint(HEAD, who(&after.process)))?;
    let rate = |change| {
        let rate = |elapsed| format!(", {}/min", units::signed_bytes(changes::per_minute(change, elapsed)));
        report.elapsed_ns.map_or(String::new(), rate)
    };
    writeln!(
        out,
        "device {}{} ({} -> {}), host {}, managed {}, allocations {}",
        units::signed_bytes(report.device_change),
        rate(report.device_change),
        units::bytes(before.live.device),
        units::bytes(after.live.device),
        units::signed_bytes(report.host_change),
        units::signed_bytes(report.managed_change),
        units::signed(report.count_change),
    )?;
    print_pool(out, &before.pool, &after.pool)?;
    print_cache(out, &before.cache, &after.cache)?;
    print_sites(out, report)
}

/// Prints call sites: of allocations, then of graphs.
fn print_sites(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let grown = |bytes: i64| (units::signed_bytes(bytes), tint(bytes));
    let table = Table::<Change<2>>::new()
        .right("growth", 0, |change| grown(change.difference(0)))
        .right("per minute", 3, |change| change.bytes_per_minute.map(units::signed_bytes).unwrap_or_default())
        .bytes("before", 2, |change| change.before[0])
        .bytes("after", 0, |change| change.after[0])
        .right("count", 1, |change| units::signed(change.difference(1)))
        .text("site", 0, |change| &change.site);
    section(out, &table, &report.allocs, report.allocs_total, "allocations are the same at every site")?;
    let table = Table::<Change<3>>::new()
        .right("growth~", 0, |change| grown(change.difference(2)))
        .bytes("before~", 1, |change| change.before[2])
        .bytes("after~", 0, |change| change.after[2])
        .right("graphs", 2, |change| units::signed(change.difference(0)))
        .right("execs", 0, |change| units::signed(change.difference(1)))
        .text("site", 0, |change| &change.site);
    section(out, &table, &report.graphs, report.graphs_total, "graphs and execs are the same at every site")
}

/// Prints the pool's idle memory and its work.
fn print_pool(out: &mut dyn Write, before: &Pool, after: &Pool) -> std::io::Result<()> {
    if !before.seen() && !after.seen() {
        return Ok(());
    }
    let change = |of: fn(&Pool) -> u64| minus(of(after), of(before));
    let number = |of| units::signed(change(of));
    writeln!(
        out,
        "pool: idle {} ({} -> {}), spilled {}; hits {}, misses {}, allocations past the pool {}, frees that waited {}, given back {}",
        units::signed_bytes(change(|pool| pool.idle_bytes)),
        units::bytes(before.idle_bytes),
        units::bytes(after.idle_bytes),
        units::signed_bytes(change(|pool| pool.spilled_live_bytes)),
        number(|pool| pool.hits),
        number(|pool| pool.misses),
        number(|pool| pool.passed),
        number(|pool| pool.barriers),
        units::signed_bytes(change(|pool| pool.released_bytes)),
    )
}

/// Prints the graph cache's contents and work. Real execs have no single site, since they serve several.
fn print_cache(out: &mut dyn Write, before: &Cache, after: &Cache) -> std::io::Result<()> {
    if !before.seen() && !after.seen() {
        return Ok(());
    }
    let change = |of: fn(&Cache) -> u64| minus(of(after), of(before));
    let number = |of| units::signed(change(of));
    writeln!(
        out,
        "graph cache: real execs {} (~{}, parked {}), handles {}, sources {}; retargets {}, instantiates {}, evictions {}, launches {}",
        number(|cache| cache.real_execs),
        units::signed_bytes(change(|cache| cache.real_bytes_estimated)),
        number(|cache| cache.parked_execs),
        number(|cache| cache.handles),
        units::signed_bytes(change(|cache| cache.source_bytes)),
        number(|cache| cache.retargets),
        number(|cache| cache.instantiations),
        number(|cache| cache.evictions),
        number(|cache| cache.launches),
    )
}

fn section<T>(out: &mut dyn Write, table: &Table<T>, rows: &[T], total: usize, same: &str) -> std::io::Result<()> {
    writeln!(out)?;
    if rows.is_empty() {
        return writeln!(out, "{same}");
    }
    table.print(out, || rows.iter())?;
    lines::more(out, total - rows.len())
}
