//! `gpumem leaks --suspect`: live allocations with few references left, found by the process itself.

use super::Args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::references::{self, Held, Ranked, Standing};
use crate::model::sites::Sites;
use crate::model::suspects::{self, is_site};
use crate::model::verdict::Verdict;
use crate::model::{Head, Ledger};
use crate::report::lines;
use crate::source::ask::{ask_within, longest_work_ms};
use crate::text::{self, clean, units};
use crate::view::table::{BAD, Table, WARN, paint, terminal_columns};
use anstyle::Style;
use gpumem_wire::command::Request;
use gpumem_wire::references::{Place, References};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Most bytes of an answer: more than a million allocations need.
const MOST: usize = 256 << 20;
/// End of the reason why memory was not read, if a longer search could have read it.
const NO_TIME: &str = "there was no time to read all of it";
/// Default number of allocations listed one by one: the call sites are the main answer.
const ONE_BY_ONE: usize = 5;

#[derive(Serialize)]
struct Report {
    process: Head,
    /// Facts of each search.
    scans: Vec<BTreeMap<String, String>>,
    remarks: Vec<String>,
    /// Number of allocations that were searched for, and of live ones that were not.
    looked_for: usize,
    not_looked_for: u64,
    /// True if all memory that may hold a reference was read.
    all_was_read: bool,
    least_references: u64,
    typical_references: u64,
    /// A call site that grows, or may grow, and has most of the allocations: the typical number may be its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    mostly: Option<String>,
    /// Bytes of the suspect ones.
    suspect_bytes: u64,
    /// The reason why no suspects can be named: not all memory was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_known: Option<String>,
    /// Number of allocations without a reference in the memory read, if not all memory was read.
    unknown: usize,
    unknown_bytes: u64,
    /// Of the allocations searched for: the judged ones, and those too young. The others were shared with other
    /// processes.
    judged: usize,
    young: usize,
    sites: Vec<SuspectSite>,
    allocations: Vec<HeldRow>,
    allocations_total: usize,
}

/// Suspect allocations of one call site.
#[derive(Serialize)]
struct SuspectSite {
    standing: Standing,
    site: String,
    live: u64,
    bytes: u64,
    oldest_age_ns: u64,
    /// The verdict on the site's growth, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<&'static str>,
}

#[derive(Serialize)]
struct HeldRow {
    #[serde(flatten)]
    held: Held,
    site: String,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<()> {
    let ledger = context.live_ledger(&args.target)?;
    let (until, pause) = (Instant::now() + args.timeout, args.pause.min(args.timeout / 3));
    // A process that is short of processor time answers late, so the first look may use time of the second.
    let half = (args.timeout - pause) / 2;
    let search = |patience: Duration| -> Result<References> {
        let longest_ms = longest_work_ms(patience.min(half));
        let said = ask_within(&ledger.whom(), &Request::References { longest_ms }, patience, MOST)?;
        References::parse(&said)
            .map_err(|why| Failure::error(format!("the answer of pid {} is incomplete: {why}", ledger.pid())))
    };
    let first = search(half + half / 2)?;
    std::thread::sleep(pause);
    let searches = [first, search(until.saturating_duration_since(Instant::now()))?];
    let older_ns = u64::try_from(args.older.as_nanos()).unwrap_or(u64::MAX);
    let names = Sites::of_allocs(&ledger);
    let verdicts: FxHashMap<String, Verdict> = suspects::find(&ledger, None)
        .all
        .into_iter()
        .filter(is_site)
        .map(|suspect| (suspect.key, suspect.verdict))
        .collect();
    let grows = |site: &str| {
        let verdict = verdicts.get(site).copied().filter(|&verdict| verdict != Verdict::TooLittle)?;
        Some(verdict == Verdict::GrowsSteadily)
    };
    let ranked = references::rank(&ledger, &searches, older_ns, &names, grows);
    let report = report(args, context, &ledger, &searches, ranked, &names, &verdicts);
    context.print(&report, |out, report| print(out, report, &ledger))?;
    fails(args, &report)
}

/// Fails if there is more suspect memory than the user allows, and also if that is unknown.
fn fails(args: &Args, report: &Report) -> Result<()> {
    match (args.fail_over, &report.not_known) {
        (Some(most), _) if report.suspect_bytes > most => Err(Failure::nothing(format!(
            "{} are suspect, more than {}",
            units::bytes(report.suspect_bytes),
            units::bytes(most)
        ))),
        (Some(most), Some(why)) => {
            Err(Failure::error(format!("not known whether more than {} are suspect: {why}", units::bytes(most)))
                .fix("ask again, or with a longer --timeout"))
        }
        _ => Ok(()),
    }
}

fn report(
    args: &Args,
    context: &Context,
    ledger: &Ledger,
    searches: &[References; 2],
    ranked: Ranked,
    names: &Sites,
    verdicts: &FxHashMap<String, Verdict>,
) -> Report {
    let (remarks, all_was_read) = (remarks(searches, &ranked), ranked.all_was_read());
    let Ranked { all, not_looked_for, least, typical, mostly, unread, .. } = ranked;
    let looked_for = all.len();
    let of = |standing: Standing| all.iter().filter(move |held| held.standing == standing);
    let (unknown, young) = (of(Standing::Unknown).count(), of(Standing::Young).count());
    let judged = looked_for - young - of(Standing::Outside).count();
    let unknown_bytes = of(Standing::Unknown).map(|held| held.bytes).fold(0, u64::saturating_add);
    let suspect: Vec<&Held> = all.iter().filter(|held| held.standing.is_suspect()).collect();
    let suspect_bytes = suspect.iter().map(|held| held.bytes).fold(0, u64::saturating_add);
    let sites = sites(&suspect, names, verdicts);
    let wanted = all.into_iter().filter(|held| args.all || held.standing.is_suspect());
    let mut allocations: Vec<HeldRow> =
        wanted.map(|held| HeldRow { site: names.name(held.stack).to_string(), held }).collect();
    let allocations_total = allocations.len();
    let in_brief = args.limit.is_none() && !args.all && !context.global.json;
    allocations.truncate(if in_brief { ONE_BY_ONE } else { context.rows(args.limit) });
    Report {
        process: Head::of(ledger),
        scans: searches.iter().map(|search| search.facts.clone()).collect(),
        remarks,
        looked_for,
        not_looked_for,
        all_was_read,
        least_references: least,
        typical_references: typical,
        mostly: mostly.map(|site| site.to_string()),
        suspect_bytes,
        not_known: Some(unread.join("; ")).filter(|why| !why.is_empty()),
        unknown,
        unknown_bytes,
        judged,
        young,
        sites,
        allocations,
        allocations_total,
    }
}

/// Groups suspects by call site and state: growing ones first, then by bytes.
fn sites(suspect: &[&Held], names: &Sites, verdicts: &FxHashMap<String, Verdict>) -> Vec<SuspectSite> {
    let mut all: BTreeMap<(Standing, Rc<str>), SuspectSite> = BTreeMap::new();
    for held in suspect {
        let name = names.name(held.stack);
        let site = all.entry((held.standing, Rc::clone(&name))).or_insert_with(|| SuspectSite {
            standing: held.standing,
            site: name.to_string(),
            live: 0,
            bytes: 0,
            oldest_age_ns: 0,
            growth: verdicts.get(&*name).map(|verdict| verdict.words()),
        });
        site.live += 1;
        site.bytes = site.bytes.saturating_add(held.bytes);
        site.oldest_age_ns = site.oldest_age_ns.max(held.age_ns);
    }
    let grows = |site: &SuspectSite| site.growth == Some(Verdict::GrowsSteadily.words());
    let mut all: Vec<SuspectSite> = all.into_values().collect();
    all.sort_by_key(|site| (site.standing, !grows(site), std::cmp::Reverse(site.bytes)));
    all
}

/// Remarks on the searches that a reader needs.
fn remarks(searches: &[References; 2], ranked: &Ranked) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    let mut say = |line: String| {
        if !said.contains(&line) {
            said.push(line);
        }
    };
    ranked.unread.iter().for_each(|why| say(why.clone()));
    for search in searches {
        if let Some(why) = search.facts.get("device_never") {
            say(format!("no device memory is read: {why}"));
        }
        if let Some(why) = search.facts.get("driver_unknown") {
            say(format!(
                "the driver's own references are counted, too: {why}; each allocation has some, here {} at least",
                units::number(ranked.least)
            ));
        }
    }
    if !ranked.unread.is_empty() {
        let for_time = ranked.unread.iter().any(|why| why.ends_with(NO_TIME));
        let more = if for_time { "; a longer --timeout gives more time" } else { "" };
        say(format!("so no allocation is called lost: what was not read may refer to it{more}"));
    }
    if ranked.never_read > 0 {
        let never = text::count(ranked.never_read, "allocation");
        say(format!(
            "the device memory of {never} lies outside gpumem's pool (such as memory that is allocated in stream order, \
             managed, pitched or virtual): it cannot be read and may hold a reference"
        ));
    }
    if ranked.without_record > 0 {
        let missing = text::count(ranked.without_record, "allocation");
        say(format!("not searched for: {missing} without a record; their memory may hold a reference"));
    }
    if ranked.not_looked_for > 0 {
        say(format!(
            "not searched for: {} (arrays, virtual memory, or made or freed during the search)",
            text::count(ranked.not_looked_for, "allocation")
        ));
    }
    said
}

fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger) -> std::io::Result<()> {
    lines::head(out, &report.process, ledger)?;
    let number = |scan: &BTreeMap<String, String>, fact| scan.get(fact).and_then(|n| n.parse().ok()).unwrap_or(0);
    let most = |fact| report.scans.iter().map(|scan| number(scan, fact)).max().unwrap_or(0);
    writeln!(
        out,
        "searched {} of host memory and {} of device memory twice for references to {}\n\
         counted references: {} to an allocation of a typical call site, {} to the allocation with the fewest",
        units::bytes(most("host_bytes")),
        units::bytes(most("device_bytes")),
        text::count(report.looked_for as u64, "allocation"),
        units::number(report.typical_references),
        units::number(report.least_references),
    )?;
    for remark in &report.remarks {
        writeln!(out, "{} {}", paint(WARN, "note:"), clean(remark))?;
    }
    if report.sites.is_empty() {
        writeln!(out, "{}", nothing(report))?;
    } else {
        writeln!(out)?;
        by_site(out, &report.sites, report.all_was_read)?;
    }
    if !report.allocations.is_empty() {
        writeln!(out)?;
        one_by_one(out, &report.allocations, report.all_was_read)?;
        lines::more(out, report.allocations_total - report.allocations.len())?;
    }
    if report.sites.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nfor call stacks: gpumem allocs {} --by stack", ledger.pid())?;
    writeln!(out, "how to read this list: gpumem help is-it-a-leak")
}

/// Returns the meaning of an empty list of suspects.
fn nothing(report: &Report) -> String {
    let young = text::if_any(report.young, |young| {
        format!("; {} too young to judge (--older sets the age)", units::number(young as u64))
    });
    match (&report.not_known, report.unknown, report.judged) {
        _ if report.looked_for == 0 => "there is no allocation to search for".into(),
        (_, _, 0) => format!("no allocation could be judged{young}"),
        (Some(_), 0, _) => format!("no suspect: a reference to each allocation was found{young}"),
        (Some(_), ..) => format!(
            "not known: no reference to {} ({}) was found in what was read{young}",
            text::count(report.unknown as u64, "allocation"),
            units::bytes(report.unknown_bytes)
        ),
        // The driver's words are told apart, so that a single word of the program is a reference. Nothing is compared.
        _ if !report.scans.iter().any(|scan| scan.contains_key("driver_unknown")) => {
            format!("no suspect: a reference to each allocation was found{young}")
        }
        _ if report.mostly.is_some() => format!(
            "cannot tell: {} has most of the allocations, so the typical number of references may be its own{young}",
            report.mostly.as_deref().unwrap_or_default()
        ),
        _ => format!("no suspect: each allocation has about as many references as is typical here{young}"),
    }
}

fn style(standing: Standing) -> Style {
    match standing {
        Standing::NoneSeen | Standing::OnlyFromSuch => BAD,
        _ => Style::new(),
    }
}

/// Narrower terminals get the state in fewer words, because the call site matters more.
const NARROW: usize = 110;

fn words(standing: Standing, all_was_read: bool) -> &'static str {
    match terminal_columns() {
        Some(columns) if columns < NARROW => standing.short(all_was_read),
        _ => standing.words(all_was_read),
    }
}

fn by_site(out: &mut dyn Write, sites: &[SuspectSite], all_was_read: bool) -> std::io::Result<()> {
    let table = Table::<SuspectSite>::new()
        .bytes("bytes", 0, |site| site.bytes)
        .number("count", 0, |site| site.live)
        .span("oldest", 1, |site| site.oldest_age_ns)
        .left("references", 0, |site| (words(site.standing, all_was_read).to_owned(), style(site.standing)))
        .kept()
        .left("growth", 0, |site| site.growth.unwrap_or_default())
        .text("site", 0, |site| &site.site);
    table.print(out, || sites.iter())
}

fn one_by_one(out: &mut dyn Write, rows: &[HeldRow], all_was_read: bool) -> std::io::Result<()> {
    let counts = |name: &str| Place::ALL.iter().any(|place| place.name() == name && place.counts());
    let seen = |held: &Held| {
        let seen = held.seen.iter().map(|(place, words)| {
            let remark = if counts(place) { "" } else { " (not counted)" };
            format!("{place} {words}×{remark}")
        });
        seen.collect::<Vec<_>>().join(", ")
    };
    let table = Table::<HeldRow>::new()
        .right("address", 0, |row| format!("{:#x}", row.held.address))
        .bytes("bytes", 0, |row| row.held.bytes)
        .span("age", 0, |row| row.held.age_ns)
        .left("references", 0, |row| (words(row.held.standing, all_was_read).to_owned(), style(row.held.standing)))
        .kept()
        .left("address found in", 1, |row| seen(&row.held))
        .text("site", 0, |row| &row.site);
    table.print(out, || rows.iter())
}
