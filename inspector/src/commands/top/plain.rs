//! Looks as text or JSON: once, or again and again where nobody has keys.

use super::Args;
use crate::context::{Context, to_stdout};
use crate::failure::Result;
use crate::model::allocs::{self, By, Filter, Sort};
use crate::model::cache::Cache;
use crate::model::changes::minus;
use crate::model::overview::Overview;
use crate::model::pool::Pool;
use crate::model::sites::Sites;
use crate::model::totals::{self, Live};
use crate::model::{Head, Ledger};
use crate::report::{self, head};
use crate::source::nvml::Books;
use crate::text::{self, units};
use crate::view::table::{DIM, HEAD, Table, paint, terminal_size};
use gpumem_wire::counters;
use gpumem_wire::layout::StackRef;
use gpumem_wire::location::Tally;
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

#[derive(Serialize)]
struct Report {
    process: Head,
    live: Live,
    device_peak_bytes: u64,
    rss_bytes: Option<u64>,
    cache: Cache,
    pool: Pool,
    graphs: u64,
    execs: u64,
    graph_host_bytes_estimated: u64,
    graph_device_bytes_estimated: u64,
    /// Since the look before; absent on the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<Rates>,
    sites: Vec<Site>,
}

/// Per second.
#[derive(Serialize)]
struct Rates {
    allocs: f64,
    frees: f64,
    launches: f64,
    instantiates: f64,
    updates: f64,
    /// By the graph cache.
    retargets: f64,
    real_instantiates: f64,
    evictions: f64,
}

#[derive(Serialize)]
struct Site {
    site: String,
    bytes: u64,
    live: u64,
    /// Since the look before.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_change: Option<i64>,
    oldest_age_ns: u64,
}

/// Lines of every look besides call sites, pool, graph cache and warnings: four of the head, a blank one, the
/// table's heading, and where the cursor stays.
const LINES: usize = 7;

/// What the next look compares with.
struct Before {
    at: Instant,
    counts: [u64; 8],
    /// Bytes by stack: a site may have a longer name now, or be several.
    stacks: Vec<(StackRef, u64)>,
}

/// Looks once, or again and again.
///
/// # Errors
/// Those of choosing and reading the ledger.
pub(super) fn run(args: &Args, context: &Context) -> Result<()> {
    let looks = if args.once { 1 } else { args.count.unwrap_or(u64::MAX) };
    let redraw = terminal_size().is_some() && !args.once && !context.global.json;
    let mut target = args.target.clone();
    let mut before = None;
    for look in 0..looks {
        if look > 0 {
            std::thread::sleep(args.interval);
        }
        let ledger = context.ledger(&target)?;
        if target.target.is_none() && target.file.is_none() {
            // The one that was chosen stays, whatever else is started.
            target.target = Some(ledger.path.clone().into_os_string());
        }
        let (report, now) = report(context, args, &ledger, before.as_ref());
        let show = |out: &mut dyn Write, report: &Report| print(out, report, &ledger, args);
        if redraw {
            draw(&context.render(&report, show)?).map_err(to_stdout)?
        } else {
            context.print(&report, show)?
        }
        before = Some(now);
        if !ledger.status.running() {
            return Ok(());
        }
    }
    Ok(())
}

/// Draws over what is there, line by line: no flicker, and nothing to undo when interrupted. What does not fit
/// is cut: a line that wraps or is one too many scrolls the screen at each look.
fn draw(text: &[u8]) -> std::io::Result<()> {
    let (columns, rows) = terminal_size().unwrap_or((usize::MAX, usize::MAX));
    let stdout = std::io::stdout();
    let plain = anstream::AutoStream::choice(&stdout) == anstream::ColorChoice::Never;
    let text = if plain { anstream::adapter::strip_bytes(text).into_vec() } else { text.to_vec() };
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().take(rows.saturating_sub(1));
    let text: String = lines.map(|line| text::cut(line, columns) + "\x1b[K\n").collect();
    let mut stdout = stdout.lock();
    write!(stdout, "\x1b[H{text}\x1b[J")?;
    stdout.flush()
}

fn report(context: &Context, args: &Args, ledger: &Ledger, before: Option<&Before>) -> (Report, Before) {
    let now = Before::of(ledger);
    let Overview { live, cache, pool, graphs, device_peak_bytes, .. } = Overview::of(ledger, &Books::closed());
    let heads = report::cache::height(&cache) + report::pool::height(&pool) + ledger.head().warnings().len();
    let fit = terminal_size().map_or(20, |(_, rows)| rows.saturating_sub(LINES + heads).max(3));
    let limit = args.limit.unwrap_or(if context.global.json { usize::MAX } else { fit });
    let report = Report {
        process: ledger.head(),
        live,
        device_peak_bytes,
        rss_bytes: totals::host(&context.world, ledger).rss_bytes,
        cache,
        pool,
        graphs: graphs.graphs,
        execs: graphs.execs,
        graph_host_bytes_estimated: graphs.host_bytes,
        graph_device_bytes_estimated: graphs.device_bytes,
        rates: before.map(|before| now.rates(before)),
        sites: sites(ledger, before, limit),
    };
    (report, now)
}

impl Before {
    fn of(ledger: &Ledger) -> Self {
        let counter = |index| ledger.snapshot.counter(index);
        let sum =
            |of: fn(Tally) -> usize| Tally::all_of_memory().fold(0_u64, |sum, row| sum.wrapping_add(counter(of(row))));
        let by_stack = allocs::group(ledger, &Filter::default(), By::Stack, false);
        Self {
            at: Instant::now(),
            counts: [
                sum(Tally::allocs),
                sum(Tally::frees),
                counter(counters::LAUNCHES),
                counter(counters::EXECS_CREATED),
                counter(counters::UPDATES),
                counter(counters::RETARGETS),
                counter(counters::REAL_EXECS_MADE),
                counter(counters::EVICTIONS),
            ],
            stacks: by_stack.iter().map(|group| (group.stack, group.bytes)).collect(),
        }
    }

    /// What happened between an earlier look and this one.
    fn rates(&self, before: &Self) -> Rates {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let [allocs, frees, launches, instantiates, updates, retargets, real_instantiates, evictions] =
            std::array::from_fn(|index| self.counts[index].saturating_sub(before.counts[index]) as f64 / seconds);
        Rates { allocs, frees, launches, instantiates, updates, retargets, real_instantiates, evictions }
    }
}

/// The call sites that hold most, and how much more or less than at the look before.
fn sites(ledger: &Ledger, before: Option<&Before>, limit: usize) -> Vec<Site> {
    let mut groups = allocs::group(ledger, &Filter::default(), By::Site, false);
    allocs::sort(&mut groups, Sort::Bytes);
    let names = Sites::of_allocs(ledger);
    let mut earlier: HashMap<Rc<str>, u64> = HashMap::new();
    for &(stack, bytes) in before.iter().flat_map(|before| &before.stacks) {
        *earlier.entry(names.name(stack)).or_default() += bytes;
    }
    let row = |group: &allocs::Group| {
        let allocs::Key::Site(site) = &group.key else { return None };
        let change = || minus(group.bytes, earlier.get(site).copied().unwrap_or(0));
        Some(Site {
            bytes_change: before.map(|_| change()),
            bytes: group.bytes,
            live: group.live,
            oldest_age_ns: ledger.age(group.oldest_ns),
            site: site.to_string(),
        })
    };
    groups.iter().take(limit).filter_map(row).collect()
}

fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, args: &Args) -> std::io::Result<()> {
    head::print(out, &report.process, ledger)?;
    writeln!(
        out,
        "device {} (peak {})  managed {}  host {}  in {} allocations",
        paint(HEAD, units::bytes(report.live.device)),
        units::bytes(report.device_peak_bytes),
        units::bytes(report.live.managed),
        units::bytes(report.live.host),
        units::number(report.live.count),
    )?;
    writeln!(
        out,
        "graphs {}  execs {} (~{} host, ~{} device)  resident {}",
        units::number(report.graphs),
        units::number(report.execs),
        units::bytes(report.graph_host_bytes_estimated),
        units::bytes(report.graph_device_bytes_estimated),
        report.rss_bytes.map_or("?".into(), units::bytes),
    )?;
    report::pool::print_head(out, &report.pool)?;
    report::cache::print_head(out, &report.cache)?;
    let rates = report.rates.as_ref().map(|rates| {
        let by_cache = match report.cache.seen() {
            true => format!(
                "; by the graph cache: {:.1} retargets, {:.1} instantiates, {:.1} evictions",
                rates.retargets, rates.real_instantiates, rates.evictions
            ),
            false => String::new(),
        };
        format!(
            "per second: {:.0} allocations, {:.0} frees, {:.0} launches, {:.1} instantiates, {:.1} updates{by_cache}",
            rates.allocs, rates.frees, rates.launches, rates.instantiates, rates.updates
        )
    });
    // One look alone has no rates; the next ones take no other shape.
    if !(args.once || !ledger.status.running() && rates.is_none()) {
        writeln!(out, "{}", paint(DIM, rates.unwrap_or_else(|| "rates from the next look on".into())))?;
    }
    writeln!(out)?;
    let change = |site: &Site| site.bytes_change.filter(|&change| change != 0).map(units::signed_bytes);
    let table = Table::<Site>::new()
        .bytes("live", 0, |site| site.bytes)
        .right("change", 0, |site| change(site).unwrap_or_default())
        .number("count", 0, |site| site.live)
        .span("oldest", 0, |site| site.oldest_age_ns)
        .text("site", 0, |site| &site.site);
    if report.sites.is_empty() { Ok(()) } else { table.print(out, || report.sites.iter()) }
}
