//! A recording as a report: the course is the recording's own, the state at the end is the last summary. Of the processes
//! of one command: a row for each, their sum on each card, and the reports of the largest.

use super::{LargeOne, MOMENTS, Report, ReportSource};
use crate::failure::{Failure, Result};
use crate::model::cards::{self, CardCourse};
use crate::model::chart::Chart;
use crate::model::course::Moment;
use crate::model::recording::Recording;
use crate::model::recording::line::Begin;
use crate::model::summary::{Holder, PEAK, Summary};
use crate::source::recording::{self, Ended};
use crate::text::{self, clean, units};
use serde::Serialize;
use std::cmp::Reverse;
use std::ffi::OsStr;
use std::path::Path;

/// Most large allocations that are listed.
const LARGE: usize = 200;

/// Returns the recording that a word means, if any: a path, or the name of a file here that begins as gzip does.
pub(super) fn named(target: &OsStr) -> Option<&Path> {
    let path = Path::new(target);
    recording::may_be(path).then_some(path)
}

/// Reads a recording, and the part before it if that is beside it.
///
/// # Errors
/// A file that cannot be read, or that is no recording.
fn read(path: &Path) -> Result<(Recording, Ended)> {
    let mut recorded = Recording::default();
    let before = recording::part_before(path);
    let (of_this, of_before) = (begin_of(path), begin_of(&before));
    let goes_on = of_this.zip(of_before).is_some_and(|(this, before)| this.follows(&before));
    if goes_on {
        recording::lines(&before, |line| recorded.take(line))?;
    }
    let ended = recording::lines(path, |line| recorded.take(line))?;
    if recorded.times.is_empty() {
        return Err(Failure::error(format!(
            "{} is no recording, or it ends before its first whole sample",
            path.display()
        )));
    }
    Ok((recorded, ended))
}

/// Returns the report of one process.
fn of_process(mut recorded: Recording, ended: Ended) -> Report {
    let mut course = recorded.course();
    course.moments.drain(..course.moments.len().saturating_sub(MOMENTS));
    let flame = recorded.flame(&course);
    let source = ReportSource { kind: "recording", timeline: timeline(&recorded, ended) };
    let large = recorded.largest(LARGE).into_iter().map(|(large, site)| LargeOne {
        bytes: large.made.bytes,
        kind: large.made.kind,
        tag: large.made.tag,
        site: site.to_string(),
        made_unix_ns: large.made.unix_ns,
        freed_unix_ns: large.freed_unix_ns,
    });
    let (large, large_total) = (large.collect(), recorded.large.len() as u64);
    let mut summary = recorded.summary.take().unwrap_or_default();
    if summary.process.name.is_empty() {
        (summary.process.name, summary.process.pid) = (recorded.begin.name.clone(), recorded.begin.pid);
    }
    Report { large, large_total, ..Report::new(source, summary, course, flame) }
}

/// Returns the first line of a recording.
fn begin_of(path: &Path) -> Option<Begin> {
    let mut begin = None;
    // One line is enough.
    let _ = recording::lines(path, |line| {
        begin = Begin::of(line);
        Err(String::new())
    });
    begin
}

fn timeline(recorded: &Recording, ended: Ended) -> String {
    let (looks, times) = (recorded.times.len() as u64, &recorded.times);
    let over = times.last().zip(times.first()).map_or(0, |(last, first)| last.saturating_sub(*first));
    let end = match (&recorded.ended, ended) {
        (Some(why), _) => format!("It ended because {}.", clean(why)),
        (None, Ended::TooMuch) => "The rest of the file is out of proportion, and is left out.".into(),
        (None, _) => "It is cut short: whoever recorded was stopped before the end.".into(),
    };
    let left_out = text::if_any(recorded.left_out, |n| format!(" {} did not fit.", text::count(n, "large allocation")));
    let moments = text::if_any(recorded.moments_left_out, |n| format!(" {} did not fit.", text::count(n, "event")));
    // The summary is written each minute, and at the end.
    let at = recorded.summary.as_ref().map_or(0, |summary| summary.process.at_unix_ns);
    let last = times.last().copied().unwrap_or(0);
    let older = match last.saturating_sub(at) {
        gap if at > 0 && gap > recorded.begin.interval_ns.saturating_mul(2) => {
            format!(" All but the timeline and the call stacks is from {} before its end.", units::span(gap))
        }
        _ => String::new(),
    };
    let skipped =
        text::if_any(recorded.skipped, |n| format!(" {} say nothing to this version.", text::count(n, "line")));
    format!(
        "Recorded over {}, in {}, one about every {}. {end}{older} Allocations of {} and above were recorded one by one if they were \
         live at a sample.{left_out}{moments}{skipped}",
        units::span(over),
        text::count(looks, "sample"),
        units::span(recorded.begin.interval_ns),
        units::bytes(recorded.begin.events_from_bytes),
    )
}

/// Maximum number of processes that are read besides the first one.
const PROCESSES: usize = 1000;
/// Maximum number of these that have a report of their own.
const REPORTS: usize = 15;
/// Maximum bytes of these reports together, as JSON.
const BYTES: usize = 16 << 20;

/// All processes of a recording.
#[derive(Serialize, Default)]
pub(super) struct Together {
    pub recorded_command: String,
    /// In the order of their start.
    pub processes: Vec<RecordedProcess>,
    /// Number of files that were not read, because there are too many.
    pub processes_left_out: u64,
    pub card_charts: Vec<Chart>,
    pub card_moments: Vec<Moment>,
    /// Reports of the processes with the highest peaks, besides the first one.
    pub others: Vec<Report>,
    #[serde(skip)]
    on_cards: Vec<CardCourse>,
}

/// One process of several.
#[derive(Serialize)]
pub(super) struct RecordedProcess {
    pub pid: u32,
    pub name: String,
    pub parent_pid: u32,
    pub parent_name: String,
    pub began_unix_ns: u64,
    pub ended_unix_ns: u64,
    /// The reason; empty if the recorder was stopped before the end.
    pub ended: String,
    /// Device memory.
    pub peak_bytes: u64,
    pub live_bytes: u64,
    /// Number of holders that grow, and the likeliest leak in words.
    pub growing: u64,
    pub verdict: String,
    pub out_of_memory: u64,
    /// Index of its report: 0 is the whole one, n is `others[n - 1]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<usize>,
}

/// Returns the report of a recording. If the file is that of a command's first process, it has all of its processes.
///
/// # Errors
/// A file that cannot be read, or that is no recording.
pub(super) fn report(path: &Path) -> Result<Report> {
    let (first, ended) = read(path)?;
    let (mut paths, mut all) = (Vec::new(), 0);
    if first.begin.started_by.recorder_unix_ns > 0 {
        (paths, all) = recording::of_other_processes(path, PROCESSES);
    }
    let processes_left_out = all.saturating_sub(paths.len()) as u64;
    paths.retain(|path| begin_of(path).is_some_and(|begin| begin.is_together_with(&first.begin)));
    if paths.is_empty() {
        return Ok(of_process(first, ended));
    }
    let recorded_command = first.begin.started_by.command.clone();
    let mut together = Together { recorded_command, processes_left_out, ..Together::default() };
    let mut reports = Vec::new();
    together.add(&first);
    let first = of_process(first, ended);
    for path in &paths {
        // One that is cut before its first sample says nothing.
        let Ok((other, ended)) = read(path) else { continue };
        reports.push((together.add(&other), of_process(other, ended)));
        reports.sort_by_key(|(process, _)| Reverse(together.processes[*process].peak_bytes));
        reports.truncate(REPORTS);
    }
    Ok(Report { together: Some(together.finish(reports)), ..first })
}

impl Together {
    /// Adds a process, and returns its number.
    fn add(&mut self, recorded: &Recording) -> usize {
        let begin = &recorded.begin;
        let who = format!("{} ({})", begin.name, begin.pid);
        let (began, ended) = recorded.times.first().zip(recorded.times.last()).map_or((0, 0), |(a, b)| (*a, *b));
        let by_card = recorded.by_card();
        let live_bytes = by_card.iter().filter_map(|(_, held)| held.last()).map(|(_, bytes)| bytes).sum();
        self.on_cards.extend(by_card.into_iter().map(|(card, mut held)| {
            held.insert(0, (began.saturating_sub(1), 0));
            held.push((ended, held.last().map_or(0, |(_, bytes)| *bytes)));
            CardCourse { process: who.clone(), card, held }
        }));
        let moment = |moment: &Moment| Moment { text: format!("{who}: {}", moment.text), ..moment.clone() };
        self.card_moments.extend(recorded.moments.iter().map(moment));
        let nothing = Summary::default();
        let summary = recorded.summary.as_ref().unwrap_or(&nothing);
        let growing: Vec<&Holder> = summary.holders.iter().filter(|holder| holder.grows).collect();
        let unclear = summary.findings.iter().find(|finding| finding.id == "growth" && finding.severity != "ok");
        let verdict = match (growing.first(), unclear) {
            (Some(holder), _) => format!("{}: {}", holder.verdict, holder.name),
            (None, Some(finding)) => finding.finding.clone(),
            (None, None) => "nothing grows".into(),
        };
        self.processes.push(RecordedProcess {
            pid: begin.pid,
            name: begin.name.clone(),
            parent_pid: begin.started_by.parent_pid,
            parent_name: begin.started_by.parent_name.clone(),
            began_unix_ns: began,
            ended_unix_ns: ended,
            ended: recorded.ended.clone().unwrap_or_default(),
            peak_bytes: summary.number(PEAK).max(live_bytes),
            live_bytes,
            growing: growing.len() as u64,
            verdict,
            out_of_memory: recorded.moments.iter().filter(|moment| moment.out_of_memory).count() as u64,
            report: None,
        });
        self.processes.len() - 1
    }

    /// Puts rows, charts and reports in order.
    fn finish(mut self, mut reports: Vec<(usize, Report)>) -> Self {
        let mut bytes = 0_usize;
        reports.retain(|(_, report)| {
            bytes = bytes.saturating_add(serde_json::to_vec(report).map_or(0, |json| json.len()));
            bytes <= BYTES
        });
        self.processes[0].report = Some(0);
        for (number, (process, report)) in (1..).zip(reports) {
            self.processes[process].report = Some(number);
            self.others.push(report);
        }
        self.processes.sort_by_key(|process| process.began_unix_ns);
        // What an ended process held went back to the card.
        let last = self.processes.iter().map(|process| process.ended_unix_ns).max().unwrap_or(0);
        for held in self.on_cards.iter_mut().map(|one| &mut one.held) {
            let gone = held.last().map(|(ended, _)| (ended.saturating_add(1_000_000), 0));
            held.extend(gone.filter(|(ended, _)| *ended < last));
        }
        self.card_charts = cards::charts(&self.on_cards);
        self.card_moments.sort_by_key(|moment| moment.unix_ns);
        self.card_moments.drain(..self.card_moments.len().saturating_sub(MOMENTS));
        self
    }
}
