//! `gpumem allocs`: live allocations, grouped or one by one.

use crate::args::{Target, span};
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::model::allocs::{self, By, Filter, Group, Key, Sort};
use crate::model::sites::Sites;
use crate::model::totals::{self, KindTotal, Live};
use crate::model::{Head, Ledger};
use crate::report::{head, lines};
use crate::source::life::real_ns;
use crate::symbols::Frame;
use crate::text::{self, units};
use crate::view::lazy::Lazy;
use crate::view::table::{Line, Side, Table};
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::AllocSlot;
use gpumem_wire::read::Snapshot;
use gpumem_wire::settings::parse_size;
use serde::Serialize;
use std::io::Write;
use std::time::Duration;

/// Show live allocations: by call site, stack, kind, size, thread, tag, context or device
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// What to group by
    #[arg(long, value_enum, default_value = "site")]
    by: By,
    /// What comes first
    #[arg(long, value_enum, default_value = "bytes")]
    sort: Sort,
    /// One row for each allocation, without groups
    #[arg(long)]
    all: bool,
    /// Also show groups whose allocations are all freed
    #[arg(long, conflicts_with = "all")]
    freed: bool,
    /// Only these kinds (repeatable) [default: all that take memory of their own]
    #[arg(long, value_name = "KIND", value_parser = kind_parser())]
    kind: Vec<String>,
    /// Also kinds that take no memory of their own: addresses, mappings, imports, reported parts
    #[arg(long)]
    all_kinds: bool,
    /// Only allocations of at least this size
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    min_size: u64,
    /// Only allocations at least this old: seconds, or a time such as 500ms or 2m
    #[arg(long, value_name = "TIME", value_parser = span)]
    older: Option<Duration>,
    /// Only this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only this thread
    #[arg(long, value_name = "TID")]
    thread: Option<u32>,
    /// Only device memory that was spilled to managed or host memory
    #[arg(long)]
    spilled: bool,
    /// How many rows to show; 0 shows all [default: 40, in JSON all]
    #[arg(short = 'n', long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Show the call stack of each row
    #[arg(long)]
    stacks: bool,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    parse_size(text).ok_or_else(|| {
        "allowed: bytes, or a number with K, M, G, T or KiB … TiB (powers of 1024), or kB … TB (powers of 1000)".into()
    })
}

fn kind_parser() -> clap::builder::PossibleValuesParser {
    AllocKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().into()
}

#[derive(Serialize)]
struct Report<'a> {
    process: Head,
    /// What a row is: `site`, `stack`, …, or `allocation`.
    by: &'static str,
    rows: Lazy<'a, Row>,
    /// Rows that there are, shown or not.
    rows_total: usize,
    /// Of all rows.
    live: u64,
    bytes: u64,
    /// Of the whole process.
    process_live: Live,
    kinds: Vec<KindTotal>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Group(Box<GroupRow>),
    Alloc(Box<AllocRow>),
}

#[derive(Serialize)]
struct GroupRow {
    key: String,
    live: u64,
    bytes: u64,
    spilled_bytes: u64,
    oldest_age_ns: u64,
    newest_age_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_allocs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<Frame>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct AllocRow {
    address: u64,
    bytes: u64,
    kind: &'static str,
    age_ns: u64,
    time_unix_ns: u64,
    serial: u64,
    tid: u32,
    thread: String,
    tag: String,
    device: String,
    context: u16,
    stream: u32,
    flags: Vec<&'static str>,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

impl Command for Args {
    const NAME: &'static str = "allocs";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let report = report(self, context, &ledger)?;
        context.print(&report, |out, report| print(out, report, &ledger, self))
    }
}

fn report<'a>(args: &'a Args, context: &Context, ledger: &'a Ledger) -> Result<Report<'a>> {
    let filter = Filter {
        kinds: args.kind.iter().filter_map(|name| AllocKind::from_name(name)).collect(),
        all_kinds: args.all_kinds || args.by == By::Kind && !args.all,
        min_bytes: args.min_size,
        min_age_ns: args.older.map_or(0, |age| age.as_nanos() as u64),
        tag: args.tag.clone(),
        tid: args.thread,
        spilled: args.spilled,
    };
    let limit = context.rows(args.limit);
    let (rows, rows_total, live, bytes) = match args.all {
        true => alloc_rows(ledger, &filter, args, limit),
        false => group_rows(ledger, &filter, args, limit),
    };
    Ok(Report {
        process: ledger.head(),
        by: if args.all { "allocation" } else { by_name(args.by) },
        rows,
        rows_total,
        live,
        bytes,
        process_live: totals::live(&ledger.snapshot),
        kinds: totals::kinds(ledger),
    })
}

fn by_name(by: By) -> &'static str {
    match by {
        By::Site => "site",
        By::Stack => "stack",
        By::Kind => "kind",
        By::Size => "size",
        By::Thread => "thread",
        By::Tag => "tag",
        By::Context => "context",
        By::Device => "device",
    }
}

type Rows<'a> = (Lazy<'a, Row>, usize, u64, u64);

fn group_rows<'a>(ledger: &'a Ledger, filter: &Filter, args: &'a Args, limit: usize) -> Rows<'a> {
    let mut groups = allocs::group(ledger, filter, args.by, args.freed);
    allocs::sort(&mut groups, args.sort);
    let live = groups.iter().map(|group| group.live).sum();
    let bytes = groups.iter().fold(0, |sum: u64, group| sum.saturating_add(group.bytes));
    let sites = if args.by == By::Stack { Sites::of_allocs(ledger) } else { Sites::default() };
    let total = groups.len();
    groups.truncate(limit);
    let row = move |at: usize| {
        let group: &Group = &groups[at];
        let age = |ns| if group.live == 0 { 0 } else { ledger.age(ns) };
        let site = match group.key {
            Key::Site(_) | Key::Stack(_) => ledger.site(group.stack),
            _ => None,
        };
        let stack = if args.stacks || args.by == By::Stack { ledger.frames(group.stack) } else { Vec::new() };
        Row::Group(Box::new(GroupRow {
            key: key_text(ledger, &sites, &group.key),
            live: group.live,
            bytes: group.bytes,
            spilled_bytes: group.spilled_bytes,
            oldest_age_ns: age(group.oldest_ns),
            newest_age_ns: age(group.newest_ns),
            total_allocs: group.total.map(|total| total.0),
            total_bytes: group.total.map(|total| total.1),
            peak_bytes: group.peak_bytes,
            site: site.map(|address| ledger.symbols.frames(address)[0].clone()),
            stack,
        }))
    };
    (Lazy::of((0..total.min(limit)).collect(), row), total, live, bytes)
}

fn key_text(ledger: &Ledger, sites: &Sites, key: &Key) -> String {
    match key {
        Key::Site(site) => site.to_string(),
        Key::Stack(stack) => sites.name(*stack).to_string(),
        Key::Kind(number) => AllocKind::from_u8(*number).map_or(format!("kind {number}"), |kind| kind.name().into()),
        Key::Size(bytes) => units::bytes(*bytes),
        Key::Thread(tid) => format!("{tid} {}", ledger.thread(*tid)).trim_end().into(),
        Key::Tag(tag) if tag.is_empty() => "(no tag)".into(),
        Key::Tag(tag) => tag.clone(),
        Key::Context(0) => "(no context)".into(),
        Key::Context(context) => format!("context {context} on device {}", ledger.device(*context)),
        Key::Device(None) => "(no device)".into(),
        Key::Device(Some(device)) => {
            let slot = ledger.snapshot.contexts.values().find(|slot| slot.device == *device);
            format!("{device}: {}", slot.map(|slot| ledger.snapshot.name(slot.name)).unwrap_or_default())
        }
    }
}

fn alloc_rows<'a>(ledger: &'a Ledger, filter: &Filter, args: &'a Args, limit: usize) -> Rows<'a> {
    let snapshot: &'a Snapshot = &ledger.snapshot;
    let mut chosen: Vec<&'a AllocSlot> = snapshot.allocs.iter().filter(filter.on(ledger)).collect();
    match args.sort {
        Sort::Bytes => chosen.sort_unstable_by_key(|alloc| (std::cmp::Reverse(alloc.bytes), alloc.serial)),
        Sort::Count | Sort::Age => chosen.sort_unstable_by_key(|alloc| (alloc.time_ns, alloc.serial)),
    }
    let bytes = chosen.iter().fold(0, |sum: u64, alloc| sum.saturating_add(alloc.bytes));
    let sites = Sites::of_allocs(ledger);
    let total = chosen.len();
    chosen.truncate(limit);
    let row = move |alloc: &AllocSlot| {
        Row::Alloc(Box::new(AllocRow {
            address: alloc.addr,
            bytes: alloc.bytes,
            kind: AllocKind::from_u8(alloc.kind).map_or("unknown", AllocKind::name),
            age_ns: ledger.age(alloc.time_ns),
            time_unix_ns: real_ns(&ledger.snapshot.header, alloc.time_ns),
            serial: alloc.serial,
            tid: alloc.tid,
            thread: ledger.thread(alloc.tid).to_owned(),
            tag: ledger.snapshot.text(alloc.tag).into_owned(),
            device: ledger.device(alloc.context),
            context: alloc.context,
            stream: alloc.stream,
            flags: Ledger::flags(alloc),
            site: sites.name(alloc.stack).to_string(),
            stack: if args.stacks { ledger.frames(alloc.stack) } else { Vec::new() },
        }))
    };
    (Lazy::of(chosen, row), total, total as u64, bytes)
}

fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, args: &Args) -> std::io::Result<()> {
    head::print(out, &report.process, ledger)?;
    let process = &report.process_live;
    let part = |bytes, what| if bytes > 0 { format!(", {} {what}", units::bytes(bytes)) } else { String::new() };
    writeln!(
        out,
        "{} live: {} device{}{}",
        text::count(process.count, "allocation"),
        units::bytes(process.device),
        part(process.managed, "managed"),
        part(process.host, "host"),
    )?;
    if report.rows.is_empty() {
        return match process.count {
            0 => writeln!(out, "nothing is live; --freed shows the sites of what was freed"),
            _ => writeln!(out, "none of them matches the filters"),
        };
    }
    writeln!(out)?;
    if args.all {
        print_allocs(out, report, args)?;
    } else {
        print_groups(out, report, args)?;
    }
    lines::more(out, report.rows_total - report.rows.len())
}

fn print_groups(out: &mut dyn Write, report: &Report, args: &Args) -> std::io::Result<()> {
    let groups = || report.rows.iter().filter_map(|row| if let Row::Group(group) = row { Some(group) } else { None });
    // Most processes have none.
    let spilled = groups().any(|group| group.spilled_bytes > 0);
    let mut columns = vec![
        ("live", Side::Right),
        ("%", Side::Right),
        ("count", Side::Right),
        ("peak", Side::Right),
        ("total", Side::Right),
        ("times", Side::Right),
        ("oldest", Side::Right),
        (report.by, Side::Left),
    ];
    if spilled {
        columns.insert(2, ("spilled", Side::Right));
    }
    let with_stacks = args.stacks || args.by == By::Stack;
    let line = |group: Box<GroupRow>| {
        let mut cells = vec![
            units::bytes(group.bytes),
            units::percent(group.bytes, report.bytes),
            units::number(group.live),
            group.peak_bytes.map(units::bytes).unwrap_or_default(),
            group.total_bytes.map(units::bytes).unwrap_or_default(),
            group.total_allocs.map(units::number).unwrap_or_default(),
            if group.live == 0 { String::new() } else { units::span(group.oldest_age_ns) },
            group.key.clone(),
        ];
        if spilled {
            let some = |bytes: u64| if bytes == 0 { String::new() } else { units::bytes(bytes) };
            cells.insert(2, some(group.spilled_bytes));
        }
        Line::new(cells).below(if with_stacks { lines::stack(&group.stack) } else { Vec::new() })
    };
    Table::new(&columns).print_lines(out, || groups().map(line))
}

fn print_allocs(out: &mut dyn Write, report: &Report, args: &Args) -> std::io::Result<()> {
    let table = Table::new(&[
        ("address", Side::Right),
        ("bytes", Side::Right),
        ("kind", Side::Left),
        ("age", Side::Right),
        ("thread", Side::Left),
        ("device", Side::Left),
        ("stream", Side::Right),
        ("flags", Side::Left),
        ("tag", Side::Left),
        ("site", Side::Left),
    ]);
    let line = |row: Row| {
        let Row::Alloc(alloc) = row else { return None };
        let line = Line::new([
            format!("{:#x}", alloc.address),
            units::bytes(alloc.bytes),
            alloc.kind.to_owned(),
            units::span(alloc.age_ns),
            format!("{} {}", alloc.tid, alloc.thread).trim_end().to_owned(),
            alloc.device.split(':').next().unwrap_or_default().to_owned(),
            if alloc.stream == 0 { String::new() } else { alloc.stream.to_string() },
            alloc.flags.join(","),
            alloc.tag.clone(),
            alloc.site.clone(),
        ]);
        Some(line.below(if args.stacks { lines::stack(&alloc.stack) } else { Vec::new() }))
    };
    table.print_lines(out, || report.rows.iter().filter_map(line))
}
