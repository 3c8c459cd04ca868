//! The page of a report. Its text needs no script. The data that the script draws is beside it.

use super::{LargeOne, Report};
use crate::model::chart::Chart;
use crate::model::course::Moment;
use crate::model::flame::Flame;
use crate::model::summary::{Finding, GraphsOf, Holder, Number, Setting, Summary};
use crate::report::growth::{rate, things};
use crate::text::{self, clean, units};
use crate::view::page;
use gpumem_wire::kinds::GrowthKind;
use maud::{Markup, html};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Most rows that are listed without growth. The data has all.
const ROWS: usize = 200;

/// Data that the script draws.
#[derive(Serialize)]
pub(super) struct DrawnData<'a> {
    pub charts: &'a [Chart],
    pub graph_charts: &'a [Chart],
    pub moments: &'a [Moment],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flame: Option<&'a Flame>,
    /// Data of the parts of the page, by the beginning of their ids.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, DrawnData<'a>>,
}

impl<'a> DrawnData<'a> {
    pub(super) fn of(report: &'a Report) -> Self {
        let Report { charts, graph_charts, moments, flame, .. } = report;
        Self { charts, graph_charts, moments, flame: Some(flame), parts: BTreeMap::new() }
    }
}

pub(super) fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let about = &report.summary.process;
    let title = format!("{} ({}): GPU memory", clean(&about.name), about.pid);
    let body = html! {
        a.skip href="#grew" { "Skip to what grew" }
        header {
            h1 { span.pid { "GPU memory of " } (clean(&about.name)) " " span.pid { "pid " (about.pid) } }
            (head(report))
            (needs_script())
        }
        main { (sections(report, "")) }
        (footer())
    };
    page::write(out, &title, &body, &DrawnData::of(report))
}

pub(super) fn footer() -> Markup {
    html! { footer { "gpumem " (env!("CARGO_PKG_VERSION")) ". This page loads nothing, and sends nothing." } }
}

pub(super) fn needs_script() -> Markup {
    html! { noscript { p.warning { "Charts and the flame graph need JavaScript. All tables below do without." } } }
}

/// Returns all sections of one process. The ids in them begin with `part`.
pub(super) fn sections(report: &Report, part: &str) -> Markup {
    let Report { source, summary, charts, graph_charts, moments, flame, large, large_total, .. } = report;
    html! {
        (grew(summary, part))
        (findings(summary, part))
        (over_time(!charts.is_empty(), moments, &source.timeline, part))
        (by_stack(flame, part))
        (holders(summary, part))
        (large_ones(large, *large_total, part))
        (graphs(summary, !graph_charts.is_empty(), part))
        (environment(summary, part))
    }
}

/// Returns a section whose title is its name to screen readers.
pub(super) fn section(part: &str, name: &str, title: &str, body: &Markup) -> Markup {
    let of_title = format!("{part}{name}-title");
    html! {
        section id={ (part) (name) } aria-labelledby=(of_title) {
            h2 id=(of_title) { (title) }
            (body)
        }
    }
}

/// Column of a table: its heading, and the cell of a row.
pub(super) type PageColumn<T> = (&'static str, fn(&T) -> Markup);

/// Returns the table of a section, which can be scrolled sideways and sorted.
pub(super) fn table<T>(part: &str, name: &str, columns: &[PageColumn<T>], rows: &[T]) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-labelledby={ (part) (name) "-title" } {
            table.sortable {
                (heads(columns.iter().map(|(title, _)| *title)))
                tbody { @for row in rows { tr { @for (_, cell) in columns { (cell(row)) } } } }
            }
        }
    }
}

/// Returns a cell of bytes.
pub(super) fn bytes(n: u64) -> Markup {
    html! { td.n data-v=(n) { (units::bytes(n)) } }
}

/// Returns a cell of a number.
fn number(n: u64) -> Markup {
    html! { td.n data-v=(n) { (units::number(n)) } }
}

/// Returns a cell of text.
pub(super) fn cell(text: &str) -> Markup {
    html! { td { (clean(text)) } }
}

/// Returns a cell of a name.
fn who(name: &str) -> Markup {
    html! { td.who { (clean(name)) } }
}

/// Returns the place of a chart, if there is one.
pub(super) fn chart(part: &str, id: &str, is_there: bool) -> Markup {
    html! { @if is_there { div.chart id={ (part) (id) } {} } }
}

pub(super) fn moments_table(moments: &[Moment]) -> Markup {
    html! {
        @if !moments.is_empty() {
            details.moments open[moments.len() <= 8] {
                summary { (text::count(moments.len() as u64, "moment")) }
                table {
                    (heads(["when", "what", "text"]))
                    tbody {
                        @for moment in moments {
                            tr.oom[moment.out_of_memory] {
                                td { (time(moment.unix_ns)) }
                                td { (clean(&moment.kind)) }
                                td { (clean(&moment.text)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a time, which the script shows in the reader's time zone.
pub(super) fn time(unix_ns: u64) -> Markup {
    html! { time data-ms=(unix_ns / 1_000_000) { (units::clock(unix_ns)) } }
}

/// Returns which process it is, and its numbers.
pub(super) fn head(report: &Report) -> Markup {
    let (summary, about) = (&report.summary, &report.summary.process);
    let over = units::span(about.at_unix_ns.saturating_sub(about.began_unix_ns));
    html! {
        p.sub {
            (clean(&about.life)) ", recorded for " (over) ", until " (time(about.at_unix_ns))
            ". Made from " (made_from(report.source.kind)) ". Interception " (clean(&about.interception)) "."
        }
        @for warning in &summary.warnings { p.warning { strong { "Warning: " } (clean(warning)) } }
        dl.numbers { @for number in &summary.numbers { (number_of(number)) } }
    }
}

fn made_from(source: &str) -> &'static str {
    match source {
        "process" => "a running process",
        "ledger" => "the ledger of an ended process",
        "dump" => "a dump",
        _ => "a recording",
    }
}

fn number_of(number: &Number) -> Markup {
    let value = if number.unit == "bytes" { units::bytes(number.value) } else { units::number(number.value) };
    html! {
        div {
            dt { (clean(&number.name)) }
            dd { (value) @if !number.remark.is_empty() { span.remark { (clean(&number.remark)) } } }
        }
    }
}

/// Returns a command to paste, with a button that copies it; or another remedy as text.
fn command(line: &str) -> Markup {
    html! {
        @if line.starts_with("gpumem ") || line.starts_with("heaptrack ") {
            p.command { code { (clean(line)) } button.copy type="button" hidden { "Copy" } }
        } @else if !line.is_empty() {
            p { (clean(line)) }
        }
    }
}

fn stack(frames: &[String], what: &str) -> Markup {
    html! {
        @if !frames.is_empty() {
            details.stack {
                summary { (what) }
                ol { @for frame in frames { li { (clean(frame)) } } }
            }
        }
    }
}

fn grew(summary: &Summary, part: &str) -> Markup {
    // A class of graphs repeats what the call sites of its graphs hold.
    let is_class = |holder: &Holder| holder.kind == GrowthKind::Class.name();
    let growing = summary.holders.iter().filter(|holder| holder.grows && !is_class(holder));
    let growing: Vec<&Holder> = growing.collect();
    let body = html! {
        @if growing.is_empty() { p { "Nothing grows steadily, as far as the samples tell." } }
        @for holder in &growing {
            article.holder {
                h3 { span.verdict { (clean(&holder.verdict)) } " " span.kind { (kind_of(&holder.kind)) } " " (clean(&holder.name)) }
                p {
                    strong { (rate(holder.bytes_per_minute)) } ", "
                    (units::signed_bytes(holder.bytes_change)) " since the first sample. "
                    (units::bytes(holder.bytes)) " live in " (units::number(holder.live)) " " (GrowthKind::from_name(&holder.kind).map_or("allocations", things))
                    @if let Some(share) = holder.freed_share { "; " (units::share(share)) " of all that it allocated are freed" }
                    "."
                }
                @if !holder.caveat.is_empty() { p.remark { (clean(&holder.caveat)) } }
                (command(&holder.next))
                (stack(&holder.stack, "Call stack"))
            }
        }
        @for remark in &summary.remarks { p.remark { (clean(remark)) } }
    };
    section(part, "grew", "What grew", &body)
}

/// Returns the words before the name of a holder.
fn kind_of(kind: &str) -> String {
    match GrowthKind::from_name(kind) {
        Some(GrowthKind::Site) => "call site".into(),
        None | Some(GrowthKind::Tag | GrowthKind::Class) => clean(kind).into_owned(),
        Some(kind) => format!("{kind} of"),
    }
}

fn findings(summary: &Summary, part: &str) -> Markup {
    let fine = summary.findings.iter().filter(|finding| finding.severity == "ok").count();
    // Growth is listed above, with its call stacks.
    let is_told = |finding: &&Finding| {
        let grows = |holder: &Holder| holder.grows && finding.finding.contains(&*clean(&holder.name));
        finding.id == "growth" && summary.holders.iter().any(grows)
    };
    let body = html! {
        @for finding in summary.findings.iter().filter(|finding| finding.severity != "ok" && !is_told(finding)) {
            article.finding {
                p { span.severity.(severity(&finding.severity)) { (clean(&finding.severity)) } " " strong { (clean(&finding.id)) } ": " (clean(&finding.finding)) }
                (command(&finding.paste))
                @if !finding.fix.is_empty() { p.remark { (clean(&finding.fix)) } }
            }
        }
        p.remark { (text::count(fine as u64, "check")) " in order." }
    };
    section(part, "findings", "Findings", &body)
}

/// Returns a class of the style sheet. A recording may hold any word.
fn severity(word: &str) -> &'static str {
    ["error", "warning"].into_iter().find(|known| *known == word).unwrap_or("info")
}

fn over_time(has_chart: bool, moments: &[Moment], timeline: &str, part: &str) -> Markup {
    let body = html! { p.remark { (timeline) } (chart(part, "memory-chart", has_chart)) (moments_table(moments)) };
    section(part, "time", "Over time", &body)
}

fn by_stack(flame: &Flame, part: &str) -> Markup {
    let body = html! {
        @if flame.stacks.is_empty() { p { "No memory was allocated." } }
        @else { div id={ (part) "flame" } {} }
    };
    section(part, "stacks", "By call stack", &body)
}

fn holders(summary: &Summary, part: &str) -> Markup {
    let shown = summary.holders.len().min(ROWS);
    let missing = summary.holders_total.saturating_sub(shown as u64);
    let body = html! {
        (table(part, "sites", HOLDERS, &summary.holders[..shown]))
        @if missing > 0 { p.remark { (units::number(missing)) " more hold less memory." } }
    };
    section(part, "sites", "Who holds memory", &body)
}

fn heads<'a>(names: impl IntoIterator<Item = &'a str>) -> Markup {
    html! { thead { tr { @for name in names { th scope="col" { (name) } } } } }
}

const HOLDERS: &[PageColumn<Holder>] = &[
    ("who", |of| match of.stack.is_empty() {
        true => who(&of.name),
        false => html! { td.who { (stack(&of.stack, &clean(&of.name))) } },
    }),
    ("live", |of| bytes(of.bytes)),
    ("count", |of| number(of.live)),
    ("peak", |of| bytes(of.peak_bytes)),
    ("since first", |of| html! { td.n data-v=(of.bytes_change) { (units::signed_bytes(of.bytes_change)) } }),
    ("per minute", |of| html! { td.n data-v=(of.bytes_per_minute.round()) { (rate(of.bytes_per_minute)) } }),
    ("ever made", |of| {
        html! { td.n data-v=(of.total.unwrap_or(0)) { @if let Some(total) = of.total { (units::number(total)) } } }
    }),
    ("freed", |of| {
        let share = of.freed_share;
        html! { td.n data-v=(share.unwrap_or(0.0)) { @if let Some(share) = share { (units::share(share)) } } }
    }),
    ("oldest", |of| {
        html! { td.n data-v=(of.oldest_age_ns) { @if of.live > 0 { (units::span(of.oldest_age_ns)) } } }
    }),
    ("verdict", |of| match of.grows {
        true => html! { td { strong { (clean(&of.verdict)) } } },
        false => cell(&of.verdict),
    }),
    ("kind", |of| cell(&of.kind)),
];

const LARGE: &[PageColumn<LargeOne>] = &[
    ("call site", |one| who(&one.site)),
    ("size", |one| bytes(one.bytes)),
    ("made", |one| html! { td data-v=(one.made_unix_ns) { (time(one.made_unix_ns)) } }),
    ("gone by", |one| {
        html! {
            td data-v=(one.freed_unix_ns.unwrap_or(u64::MAX)) {
                @if let Some(freed) = one.freed_unix_ns { (time(freed)) } @else { "live" }
            }
        }
    }),
    ("kind", |one| cell(&one.kind)),
    ("tag", |one| cell(&one.tag)),
];

fn large_ones(large: &[LargeOne], total: u64, part: &str) -> Markup {
    let body = html! {
        (table(part, "large", LARGE, large))
        @if total > large.len() as u64 { p.remark { "The largest of " (text::count(total, "allocation")) "." } }
    };
    html! { @if !large.is_empty() { (section(part, "large", "Large allocations", &body)) } }
}

fn graphs(summary: &Summary, has_chart: bool, part: &str) -> Markup {
    let body = html! {
        @if summary.graph_cache.is_empty() && summary.graphs.is_empty() { p { "The process made no graphs." } }
        @for line in &summary.graph_cache { p { (clean(line)) } }
        (chart(part, "graph-chart", has_chart))
        @if !summary.graphs.is_empty() {
            (table(part, "graphs", GRAPHS, &summary.graphs))
            p.remark { "Bytes of graphs are estimates." }
        }
    };
    section(part, "graphs", "Graphs", &body)
}

const GRAPHS: &[PageColumn<GraphsOf>] = &[
    ("call site", |of| who(&of.name)),
    ("host", |of| bytes(of.host_bytes)),
    ("device", |of| bytes(of.device_bytes)),
    ("graphs", |of| number(of.graphs)),
    ("execs", |of| number(of.execs)),
    ("launches", |of| number(of.launches)),
    ("resident", |of| number(of.resident)),
    ("folded", |of| number(of.folded)),
    ("pinned", |of| cell(&of.pinned)),
];

fn environment(summary: &Summary, part: &str) -> Markup {
    let about = &summary.process;
    let (set, default): (Vec<&Setting>, Vec<&Setting>) =
        summary.environment.iter().partition(|setting| setting.source != "default");
    let fact = |name: &str, value: &str| html! { @if !value.is_empty() { dt { (name) } dd { (clean(value)) } } };
    let body = html! {
        dl.facts {
            (fact("command", &about.cmdline))
            @for device in &about.devices { (fact("device", device)) }
            (fact("driver", &about.driver_version))
            (fact("mode", &about.mode))
            (fact("shim", &about.shim_version))
            @for setting in set { (fact(&setting.name, &format!("{} ({})", setting.value, setting.source))) }
        }
        details {
            summary { (text::count(default.len() as u64, "variable")) " at their defaults" }
            dl.facts { @for setting in default { (fact(&setting.name, if setting.value.is_empty() { "unset" } else { &setting.value })) } }
        }
    };
    section(part, "environment", "Environment", &body)
}
