//! The page of several processes: a row for each, their sum on each card, and a part to open for each report.

use super::Report;
use super::page::{
    DrawnData, PageColumn, bytes, cell, chart, footer, head, moments_table, needs_script, section, sections, table,
    time,
};
use super::recorded::{RecordedProcess, Together};
use crate::text::{self, clean, shorten, units};
use crate::view;
use maud::{Markup, html};
use std::io::{self, Write};

/// Most characters of the command in the title.
const COMMAND: usize = 120;

pub(super) fn write(out: &mut dyn Write, first: &Report, together: &Together) -> io::Result<()> {
    let command = shorten(&together.recorded_command, COMMAND);
    let title = format!("{}: GPU memory of {} processes", clean(&command), together.processes.len());
    let reports: Vec<&Report> = std::iter::once(first).chain(&together.others).collect();
    let charts = &together.card_charts;
    let body = html! {
        a.skip href="#processes" { "Skip to the processes" }
        header {
            h1 { span.pid { "GPU memory of " } (clean(&command)) }
            (summary(together))
            (needs_script())
        }
        main {
            (section("", "processes", "Processes", &processes(together)))
            (section("", "time", "Device memory over time", &html! {
                @if let [chart] = &charts[..] { p.remark { "By " (chart.title) "." } }
                (chart("", "memory-chart", !charts.is_empty()))
                (moments_table(&together.card_moments))
            }))
            @for process in &together.processes {
                @if let Some(number) = process.report { (part(process, reports[number], &id(number))) }
            }
        }
        (footer())
    };
    let parts = reports.iter().enumerate().map(|(number, report)| (id(number), DrawnData::of(report))).collect();
    let moments = &together.card_moments;
    view::page::write(out, &title, &body, &DrawnData { charts, graph_charts: &[], moments, flame: None, parts })
}

/// Returns the beginning of all ids in the part of a report.
fn id(report: usize) -> String {
    format!("p{report}-")
}

fn summary(together: &Together) -> Markup {
    let all = &together.processes;
    let began = all.iter().map(|process| process.began_unix_ns).min().unwrap_or(0);
    let ended = all.iter().map(|process| process.ended_unix_ns).max().unwrap_or(0);
    let number = |name: &str, value: &str, remark: &str| {
        html! { div { dt { (name) } dd { (value) span.remark { (remark) } } } }
    };
    let left = all.iter().fold(0, |sum: u64, process| sum.saturating_add(process.live_bytes));
    let failed: u64 = all.iter().map(|process| process.out_of_memory).sum();
    html! {
        p.sub {
            (text::count(all.len() as u64, "process")) ", recorded for " (units::span(ended.saturating_sub(began)))
            ", until " (time(ended)) "."
        }
        dl.numbers {
            @if let Some(chart) = together.card_charts.first() {
                (number("highest sum", &units::bytes(chart.most()), "of device memory, at a sample"))
            }
            (number("left at the end", &units::bytes(left), "by each at its own end"))
            @if failed > 0 { (number("out of memory", &units::number(failed), "requests that failed")) }
        }
    }
}

fn processes(together: &Together) -> Markup {
    let without = together.processes.iter().filter(|process| process.report.is_none()).count() as u64;
    html! {
        (table("", "processes", PROCESSES, &together.processes))
        @if without > 0 { p.remark { "The " (text::count(without, "process")) " with the lowest peaks have no part below." } }
        @if together.processes_left_out > 0 { p.remark { (text::count(together.processes_left_out, "file")) " of further processes were not read." } }
    }
}

const PROCESSES: &[PageColumn<RecordedProcess>] = &[
    ("process", |of| match of.report {
        Some(number) => html! { td { a href={ "#" (id(number)) "process" } { (clean(&of.name)) } } },
        None => cell(&of.name),
    }),
    ("pid", |of| html! { td.n data-v=(of.pid) { (of.pid) } }),
    ("peak", |of| bytes(of.peak_bytes)),
    ("left", |of| bytes(of.live_bytes)),
    ("verdict", |of| html! { td.said { (verdict(of)) } }),
    ("end", |of| {
        let ended = if of.ended.is_empty() { "recording cut short" } else { &of.ended };
        html! { td.said { (clean(ended.strip_prefix("the process ").unwrap_or(ended))) } }
    }),
    ("began", |of| html! { td.said data-v=(of.began_unix_ns) { (time(of.began_unix_ns)) } }),
    ("started by", |of| match of.parent_pid {
        0 => cell(""),
        pid => cell(&format!("{} ({pid})", of.parent_name)),
    }),
];

fn verdict(process: &RecordedProcess) -> Markup {
    html! {
        @if process.out_of_memory > 0 { strong { "out of memory" } "; " }
        @if process.growing > 0 { strong { (clean(&process.verdict)) } } @else { (clean(&process.verdict)) }
        @if process.growing > 1 { " and " (process.growing - 1) " more" }
    }
}

fn part(process: &RecordedProcess, report: &Report, part: &str) -> Markup {
    html! {
        details.process id={ (part) "process" } {
            summary {
                strong { (clean(&process.name)) } " " span.pid { "pid " (process.pid) }
                " peak " (units::bytes(process.peak_bytes)) ", left " (units::bytes(process.live_bytes))
            }
            (head(report))
            (sections(report, part))
        }
    }
}
