//! Suspects for people: growing ones in full, the others in a table.

use super::{Holding, Report, Summed, SuspectRow};
use crate::model::Ledger;
use crate::model::ages::OfAge;
use crate::model::suspects::{Grown, Suspect};
use crate::model::verdict::Verdict;
use crate::report::{growth, lines, shared};
use crate::source::liveness::Status;
use crate::text::{self, clean, units};
use crate::view::table::{BAD, DIM, HEAD, Table, WARN, paint, terminal_size};
use anstyle::Style;
use gpumem_wire::kinds::GrowthKind;
use std::io::Write;

pub(super) fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, all: bool) -> std::io::Result<()> {
    lines::head(out, &report.process, ledger)?;
    let Holding { memory, things, kinds } = &report.holding;
    let holds = |sites: u64| if sites == 1 { "holds" } else { "hold" };
    let names = kinds.iter().copied().collect::<Vec<_>>().join(" or ");
    let others = text::if_any(*things, |n| format!(", {} {} {names}", units::number(n), holds(n)));
    writeln!(
        out,
        "{} in {}; {} {} memory{others}, {} steadily",
        text::count(report.samples as u64, "sample"),
        units::span(report.sampled_ns),
        text::count(*memory, "call site"),
        holds(*memory),
        if report.growing == 1 { "1 grows".to_owned() } else { format!("{} grow", report.growing) },
    )?;
    for remark in &report.remarks {
        writeln!(out, "{} {}", paint(WARN, "note:"), clean(remark))?;
    }
    if let Some(since) = &report.since {
        writeln!(out, "growth since {}", clean(since))?;
    }
    let full = |row: &&SuspectRow| all || row.suspect.grows();
    for row in report.suspects.iter().filter(full) {
        in_full(out, row, &ledger.status)?;
    }
    let is_searchable =
        ledger.status.running() && report.suspects.iter().any(|row| row.suspect.grows() && is_of_memory(row));
    if is_searchable {
        writeln!(out, "\nlost, or kept by a list or a cache? gpumem leaks {} --suspect", ledger.pid())?;
    }
    if let Some(heap) = report.heap.as_ref().filter(|heap| heap.grows()) {
        outside(out, heap, ledger)?;
    }
    let others: Vec<&SuspectRow> = report.suspects.iter().filter(|row| !full(row)).collect();
    if !others.is_empty() {
        writeln!(out)?;
        in_short(out, &others, report.since.is_some())?;
    }
    lines::more(out, report.suspects_total - report.suspects.len())?;
    summed(out, &report.summed)?;
    shared::print_left(out, &report.left_by_graphs, ledger)?;
    shared::print(out, &report.sharing, all)
}

/// True if the row is a call site of allocations.
fn is_of_memory(row: &SuspectRow) -> bool {
    row.suspect.kind == GrowthKind::Site
}

fn summed(out: &mut dyn Write, summed: &Summed) -> std::io::Result<()> {
    if summed.classes == 0 {
        return Ok(());
    }
    let (classes, holds) = (text::count(summed.classes, "class"), if summed.classes == 1 { "holds" } else { "hold" });
    let too_little = text::if_any(summed.too_little, |n| format!(", {} too young to judge", units::number(n)));
    let grow = match summed.growing {
        1 => "1 grows steadily".to_owned(),
        n => format!("{} grow steadily", units::number(n)),
    };
    let line =
        format!("{classes} of graphs {holds} {}: {grow}{too_little}; --all shows each", units::bytes(summed.bytes));
    writeln!(out, "{}", paint(DIM, line))
}

/// As [`growth::who`]; a narrow column may leave out the beginning of the name.
fn in_column(suspect: &Suspect) -> String {
    match suspect.kind {
        GrowthKind::Graphs | GrowthKind::Code => format!("{} ({})", clean(&suspect.key), suspect.kind),
        _ => growth::who(suspect),
    }
}

/// Prints all that is known of a suspect.
pub(in crate::commands) fn in_full(out: &mut dyn Write, row: &SuspectRow, status: &Status) -> std::io::Result<()> {
    let SuspectRow { suspect, caveat, mapped_nowhere, next, parts, stack } = row;
    writeln!(out)?;
    match suspect.verdict {
        Verdict::GrowsSteadily => writeln!(out, "{}", paint(BAD, growth::verdict(suspect)))?,
        other => writeln!(out, "{}", paint(HEAD, other.words()))?,
    }
    line(out, "who", &growth::who(suspect))?;
    line(out, "live", &live(suspect))?;
    line(out, "seen", &seen(suspect, status))?;
    let grown = suspect
        .growth
        .iter()
        .map(|grown| format!("{} since {}", change(suspect, grown), since(&grown.since, grown.over_ns, status)));
    line(out, "growth", &grown.collect::<Vec<_>>().join(", "))?;
    if let Some(bytes) = suspect.bytes_per_mark {
        line(
            out,
            "",
            &format!("{} from each mark to the next, on average", units::signed_bytes(bytes.round() as i64)),
        )?;
    }
    line(out, "by age", &ages(suspect))?;
    for (number, part) in lines::parts(parts).iter().enumerate() {
        line(out, if number == 0 { "inside" } else { "" }, part)?;
    }
    if let Some(handles) = mapped_nowhere {
        line(
            out,
            "mapped",
            &format!("nowhere, {} held: unmapped, and never given to cuMemRelease", text::count(*handles, "handle")),
        )?;
    }
    if let Some(caveat) = caveat {
        line(out, "but", caveat)?;
    }
    if let Some(next) = next {
        line(out, "next", next)?;
    }
    lines::stack(stack).iter().try_for_each(|line| writeln!(out, "{}", paint(DIM, clean(line))))
}

/// `1 min ago`, `mark warm (2 min 3 s ago)`.
fn since(name: &str, over_ns: u64, status: &Status) -> String {
    match name.ends_with(" min") {
        true => format!("{name} {}", status.ago_words()),
        false => format!("{} ({})", clean(name), status.ago(over_ns)),
    }
}

fn live(suspect: &Suspect) -> String {
    let Suspect { live, oldest_age_ns, newest_age_ns, freed_share, .. } = suspect;
    let freed = freed_share.map_or(String::new(), |share| format!(", {} freed", units::share(share)));
    let ages =
        text::if_any(*live, |_| format!(", {} to {} old", units::span(*newest_age_ns), units::span(*oldest_age_ns)));
    format!("{}{ages}{freed}", growth::held(suspect))
}

/// Returns the times of the first and the last allocation there.
fn seen(suspect: &Suspect, status: &Status) -> String {
    let ago = |what: &str, age: Option<u64>| age.map(|ns| format!("{what} {}", status.ago(ns)));
    let all = [ago("first", suspect.first_seen_age_ns), ago("last", suspect.last_seen_age_ns)];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn ages(suspect: &Suspect) -> String {
    let age = |of: &OfAge| {
        let held = match suspect.count_per_minute {
            Some(_) => units::number(of.live),
            None => format!("{} in {}", units::bytes(of.bytes), units::number(of.live)),
        };
        of.under_minutes.map_or(format!("older {held}"), |minutes| format!("under {minutes} min {held}"))
    };
    suspect.ages.iter().map(age).collect::<Vec<_>>().join(", ")
}

/// Returns the growth of a suspect in bytes or in things.
fn change(suspect: &Suspect, grown: &Grown) -> String {
    match suspect.count_per_minute {
        Some(_) => format!("{:+}", grown.count_change),
        None => units::signed_bytes(grown.bytes_change),
    }
}

/// Prints a name and a value. A line that would be too long is broken between the parts of the value.
fn line(out: &mut dyn Write, name: &str, value: &str) -> std::io::Result<()> {
    const NAME: usize = 9;
    if value.is_empty() {
        return Ok(());
    }
    let width = terminal_size().map_or(80, |(columns, _)| columns).max(40) - NAME;
    let (mut name, mut rest) = (name, String::new());
    for part in value.split_inclusive(", ") {
        if !rest.is_empty() && text::width(&rest) + text::width(part.trim_end()) > width {
            writeln!(out, "  {name:<7}{}", rest.trim_end())?;
            (name, rest) = ("", String::new());
        }
        rest.push_str(part);
    }
    writeln!(out, "  {name:<7}{}", rest.trim_end())
}

/// Prints the memory that no GPU call made.
fn outside(out: &mut dyn Write, heap: &Suspect, ledger: &Ledger) -> std::io::Result<()> {
    let grown = heap.since().map_or(0, |grown| grown.bytes_change);
    writeln!(out)?;
    writeln!(
        out,
        "{} the process's own heap grows by {}, {} in all",
        paint(WARN, "not GPU memory:"),
        growth::rate(heap.bytes_per_minute),
        units::signed_bytes(grown),
    )?;
    growth::heap_profiler(ledger).map_or(Ok(()), |command| line(out, "next", &command))
}

/// Prints the suspects that do not grow. Memory made at the start is no growth, so growth is shown only since a moment.
fn in_short(out: &mut dyn Write, rows: &[&SuspectRow], with_growth: bool) -> std::io::Result<()> {
    table(with_growth).print(out, || rows.iter().map(|row| &row.suspect))
}

/// Returns the table of suspects.
pub(in crate::commands) fn table(with_growth: bool) -> Table<'static, Suspect> {
    let grown = move |suspect: &Suspect| {
        let grown = suspect.since().filter(|_| with_growth)?;
        Some((grown.bytes_change as f64, change(suspect, grown)))
    };
    let style = |suspect: &Suspect| if suspect.grows() { BAD } else { Style::new() };
    Table::<Suspect>::new()
        .right("live", 0, |suspect| Some((suspect.bytes as f64, growth::bytes(suspect))))
        .number("count", 3, |suspect| suspect.live)
        .right("growth", 0, grown)
        .right("freed", 1, |suspect| suspect.freed_share.map(|share| (share, units::share(share))))
        .left("verdict", 0, move |suspect| (suspect.verdict.short().to_owned(), style(suspect)))
        .kept()
        .left("who", 0, in_column)
}
