//! `gpumem allocs`: live allocations, grouped or one by one.

use crate::args::{Target, name_of, one_of, since, size, span};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::allocs::{self, By, Filter, Group, Sort};
use crate::model::key::GroupKey;
use crate::model::marks::{self, Moment, Since};
use crate::model::parts::{Part, Parts};
use crate::model::rows::SlotRow;
use crate::model::sites::Sites;
use crate::model::totals::{self, KindTotal, Live};
use crate::model::{Head, Ledger, suspects};
use crate::report::lines;
use crate::symbols::Frame;
use crate::text::{self, if_any, units};
use crate::view::lazy::Lazy;
use crate::view::table::Table;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::AllocSlot;
use gpumem_wire::read::Snapshot;
use serde::Serialize;
use std::io::Write;
use std::time::Duration;

/// Show live allocations: by call site, stack, kind, size, thread, tag, context or device
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// What to group by
    #[arg(long, value_enum, default_value = "site")]
    by: By,
    /// Which rows come first
    #[arg(long, value_enum, default_value = "bytes")]
    sort: Sort,
    /// One row for each allocation, without groups
    #[arg(long)]
    all: bool,
    /// Also show groups whose allocations are all freed
    #[arg(long, conflicts_with = "all")]
    freed: bool,
    /// Only these kinds (repeatable) [default: all that take memory of their own]
    #[arg(long, value_name = "KIND", value_parser = one_of(AllocKind::ALL, AllocKind::name))]
    kind: Vec<AllocKind>,
    /// Also what takes no memory of its own: addresses, mappings, imports, nodes of graphs, reported parts. Their bytes
    /// are shown apart and are in no sum
    #[arg(long)]
    all_kinds: bool,
    /// Only allocations of at least this size
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    min_size: u64,
    /// Only allocations at least this old: seconds, or a time such as 500ms or 2m
    #[arg(long, value_name = "TIME", value_parser = span)]
    older: Option<Duration>,
    /// Only what was allocated since then: a time such as 5m, or the name of a mark
    #[arg(long, value_name = "TIME|MARK", value_parser = since)]
    since: Option<Since>,
    /// Only this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only this thread
    #[arg(long, value_name = "TID", value_parser = crate::args::number::<u32>)]
    thread: Option<u32>,
    /// Only device memory that was spilled to managed or host memory
    #[arg(long)]
    spilled: bool,
    /// How many rows to show; 0 shows all [default: 40, in JSON all]
    #[arg(short = 'n', long, value_name = "ROWS", value_parser = crate::args::number::<usize>)]
    limit: Option<usize>,
    /// Show the call stack of each row
    #[arg(long)]
    stacks: bool,
}

#[derive(Serialize)]
pub(super) struct Report<'a, R: 'a> {
    process: Head,
    /// Type of a row: `site`, `stack`, …, or `allocation`.
    pub(super) by: String,
    pub(super) rows: Lazy<'a, R>,
    /// Number of rows, shown or not.
    pub(super) rows_total: usize,
    /// Sum over all rows.
    live: u64,
    bytes: u64,
    addresses: u64,
    address_bytes: u64,
    /// Sum over the whole process.
    process_live: Live,
    kinds: Vec<KindTotal>,
}

#[derive(Serialize)]
pub(super) struct GroupRow {
    #[serde(skip)]
    pub(super) of: GroupKey,
    key: String,
    live: u64,
    bytes: u64,
    spilled_bytes: u64,
    /// Addresses, mappings, imports and parts, which no other sum includes.
    address_bytes: u64,
    addresses: u64,
    oldest_age_ns: u64,
    newest_age_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_allocs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes: Option<i64>,
    /// Memory that the program's own allocators handed out of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<Frame>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct AllocRow<'a> {
    #[serde(flatten)]
    alloc: SlotRow<'a, AllocSlot>,
    thread: String,
    device: String,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Errors of choosing and reading the ledger.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let since = self.since.as_ref().map(|since| marks::moment(&ledger, since)).transpose();
        let since = since.map_err(Failure::usage)?;
        let (filter, limit) = (self.selection(since.as_ref()), context.rows(self.limit));
        if self.all {
            let report = alloc_rows(&ledger, &filter, self, limit);
            return context.print(&report, |out, report| print(out, report, &ledger, self, print_allocs));
        }
        let mut groups = allocs::group(&ledger, &filter, self.by, self.freed);
        if self.sort == Sort::Growth {
            suspects::add_growth(&ledger, self.by, since.as_ref(), &mut groups)
                .ok_or_else(|| Failure::usage("--sort growth needs --by site, stack or tag, or --all"))?;
        }
        let report = group_rows(&ledger, &filter, self, groups, limit);
        context.print(&report, |out, report| print(out, report, &ledger, self, print_groups))
    }

    /// Returns the arguments of a plain table of this grouping.
    pub(super) fn by(by: By) -> Self {
        Self { by, ..Self::default() }
    }

    pub(super) fn selection(&self, since: Option<&Moment>) -> Filter {
        Filter {
            kinds: self.kind.clone(),
            all_kinds: self.all_kinds || self.by == By::Kind && !self.all,
            min_bytes: self.min_size,
            min_age_ns: self.older.map_or(0, |age| age.as_nanos() as u64),
            since_ns: since.map_or(0, |moment| moment.at_ns),
            tag: self.tag.clone(),
            tid: self.thread,
            spilled: self.spilled,
        }
    }
}

impl<'a, R> Report<'a, R> {
    fn new(ledger: &Ledger, by: String, rows: Lazy<'a, R>, rows_total: usize, sums: &Group) -> Self {
        Self {
            process: Head::of(ledger),
            by,
            rows,
            rows_total,
            live: sums.live,
            bytes: sums.bytes,
            addresses: sums.addresses,
            address_bytes: sums.address_bytes,
            process_live: totals::live(&ledger.snapshot, &ledger.status),
            kinds: totals::kinds(ledger),
        }
    }
}

/// Returns the report of these groups.
pub(super) fn group_rows<'a>(
    ledger: &'a Ledger,
    filter: &Filter,
    args: &'a Args,
    mut groups: Vec<Group>,
    limit: usize,
) -> Report<'a, GroupRow> {
    allocs::sort(&mut groups, args.sort);
    let mut sums = Group::empty(0);
    groups.iter().for_each(|group| sums.add_group(group));
    let sites = if args.by == By::Stack { Sites::of_allocs(ledger) } else { Sites::default() };
    let total = groups.len();
    groups.truncate(limit);
    let parts = allocs::parts(ledger, filter, args.by);
    let row = move |at: usize| {
        let group: &Group = &groups[at];
        let age = |ns| if group.live == 0 { 0 } else { ledger.age(ns) };
        let site = match group.key {
            GroupKey::Site(_) | GroupKey::Stack(_) => ledger.site(group.stack),
            _ => None,
        };
        let stack = if args.stacks || args.by == By::Stack { ledger.frames(group.stack) } else { Vec::new() };
        GroupRow {
            of: group.key.clone(),
            key: group.key.text(ledger, &sites),
            live: group.live,
            bytes: group.bytes,
            spilled_bytes: group.spilled_bytes,
            address_bytes: group.address_bytes,
            addresses: group.addresses,
            oldest_age_ns: age(group.oldest_ns),
            newest_age_ns: age(group.newest_ns),
            total_allocs: group.total.map(|total| total.0),
            total_bytes: group.total.map(|total| total.1),
            peak_bytes: group.peak_bytes,
            growth_bytes: group.growth,
            parts: parts.get(&group.key).cloned().unwrap_or_default(),
            site: site.map(|address| ledger.symbols.frames(address)[0].clone()),
            stack,
        }
    };
    Report::new(ledger, name_of(args.by), Lazy::of((0..total.min(limit)).collect(), row), total, &sums)
}

fn alloc_rows<'a>(ledger: &'a Ledger, filter: &Filter, args: &'a Args, limit: usize) -> Report<'a, AllocRow<'a>> {
    let snapshot: &'a Snapshot = &ledger.snapshot;
    let mut chosen: Vec<&'a AllocSlot> = snapshot.allocs.iter().filter(filter.on(ledger)).collect();
    match args.sort {
        Sort::Bytes => chosen.sort_unstable_by_key(|alloc| (std::cmp::Reverse(alloc.bytes), alloc.serial)),
        Sort::Count | Sort::Age => chosen.sort_unstable_by_key(|alloc| (alloc.time_ns, alloc.serial)),
        Sort::Growth => chosen.sort_unstable_by_key(|alloc| std::cmp::Reverse((alloc.time_ns, alloc.serial))),
    }
    let mut sums = Group::empty(0);
    chosen.iter().for_each(|alloc| sums.add(alloc));
    let sites = Sites::of_allocs(ledger);
    let total = chosen.len();
    chosen.truncate(limit);
    let parts = Parts::of(ledger).by(ledger, |alloc| Some(alloc.serial));
    let row = move |alloc: &'a AllocSlot| AllocRow {
        alloc: SlotRow { ledger, slot: alloc },
        thread: ledger.thread(alloc.tid).to_owned(),
        device: ledger.device(alloc.context),
        site: sites.name(alloc.stack).to_string(),
        parts: parts.get(&alloc.serial).cloned().unwrap_or_default(),
        stack: if args.stacks { ledger.frames(alloc.stack) } else { Vec::new() },
    };
    Report::new(ledger, "allocation".into(), Lazy::of(chosen, row), total, &sums)
}

/// Prints a table of rows.
type PrintRows<R> = fn(&mut dyn Write, &Report<R>, &Args) -> std::io::Result<()>;

fn print<R>(
    out: &mut dyn Write,
    report: &Report<R>,
    ledger: &Ledger,
    args: &Args,
    rows: PrintRows<R>,
) -> std::io::Result<()> {
    print_head(out, report, ledger)?;
    if report.rows.is_empty() {
        return match report.process_live.count {
            0 => writeln!(out, "nothing is live; --freed shows the sites of what was freed"),
            _ => writeln!(out, "none of them matches the filters"),
        };
    }
    writeln!(out)?;
    rows(out, report, args)?;
    lines::more(out, report.rows_total - report.rows.len())
}

/// Prints the lines above the rows.
pub(super) fn print_head<R>(out: &mut dyn Write, report: &Report<R>, ledger: &Ledger) -> std::io::Result<()> {
    lines::head(out, &report.process, ledger)?;
    print_live(out, &report.process_live)
}

/// Prints the sums of a process.
pub(super) fn print_live(out: &mut dyn Write, process: &Live) -> std::io::Result<()> {
    let part = |bytes, what| if bytes > 0 { format!(", {} {what}", units::bytes(bytes)) } else { String::new() };
    writeln!(
        out,
        "{} live: {} device{}{}{}{}",
        text::count(process.count, "allocation"),
        units::bytes(process.device),
        part(process.managed, "managed"),
        part(process.host, "host"),
        part(process.unknown, "in unknown places"),
        part(process.parked, "on the host while parked"),
    )
}

/// Returns the lines below a row.
fn below(parts: &[Part], stack: &[Frame]) -> Vec<String> {
    let parts = lines::parts(parts).into_iter().map(|part| format!("    inside: {part}"));
    parts.chain(lines::stack(stack)).collect()
}

pub(super) fn print_groups(out: &mut dyn Write, report: &Report<GroupRow>, args: &Args) -> std::io::Result<()> {
    let with_stacks = args.stacks || args.by == By::Stack;
    let table = group_table(report);
    let table = table.below(move |group| below(&group.parts, if with_stacks { &group.stack } else { &[] }));
    table.print(out, || report.rows.iter())
}

/// Returns the table of groups.
pub(super) fn group_table<'a>(report: &'a Report<GroupRow>) -> Table<'a, GroupRow> {
    let age = |group: &GroupRow, ns| Some(ns).filter(|_| group.live > 0);
    let share = |group: &GroupRow| Some((group.bytes as f64, units::percent(group.bytes, report.bytes)));
    Table::<GroupRow>::new()
        .bytes("live", 0, |group| group.bytes)
        .right("%", 0, share)
        .some_bytes("spilled", 0, |group| group.spilled_bytes)
        // A kind without memory of its own, such as code, has only the other number.
        .number("count", 0, |group| if group.live == 0 { group.addresses } else { group.live })
        .some("peak", 0, |group| group.peak_bytes, units::bytes)
        .some("total", 3, |group| group.total_bytes, units::bytes)
        .some("times", 2, |group| group.total_allocs, units::number)
        .right("growth", 0, |group| group.growth_bytes.map(|n| (n as f64, units::signed_bytes(n))))
        .some("oldest", 4, move |group| age(group, group.oldest_age_ns), units::span)
        .some("newest", 1, move |group| age(group, group.newest_age_ns), units::span)
        .some_bytes("addresses", 0, |group| group.address_bytes)
        .text(&report.by, 0, |group| &group.key)
}

fn print_allocs(out: &mut dyn Write, report: &Report<AllocRow>, args: &Args) -> std::io::Result<()> {
    let thread = |row: &AllocRow| format!("{} {}", row.alloc.slot.tid, row.thread).trim_end().to_owned();
    let table = Table::<AllocRow>::new()
        .right("address", 0, |row| format!("{:#x}", row.alloc.slot.addr))
        .bytes("bytes", 0, |row| row.alloc.slot.bytes)
        .left("kind", 0, |row| AllocKind::name_of(row.alloc.slot.kind))
        .span("age", 0, |row| row.alloc.ledger.age(row.alloc.slot.time_ns))
        .left("thread", 0, thread)
        .left("memory", 0, |row| row.alloc.ledger.location(row.alloc.slot))
        .right("stream", 0, |row| if_any(row.alloc.slot.stream, |stream| stream.to_string()))
        .left("flags", 0, |row| Ledger::flags(row.alloc.slot).join(","))
        .left("tag", 0, |row| row.alloc.ledger.snapshot.text(row.alloc.slot.tag).into_owned())
        .text("site", 0, |row| &row.site);
    table.below(|row| below(&row.parts, if args.stacks { &row.stack } else { &[] })).print(out, || report.rows.iter())
}
