//! A recording as a report. The course is the recording's own. The state at the end is the last summary.

use super::{LargeOne, MOMENTS, Report, ReportSource};
use crate::failure::{Failure, Result};
use crate::model::recording::Recording;
use crate::model::recording::line::Begin;
use crate::source::recording::{self, Ended};
use crate::text::{self, clean, units};
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
pub(super) fn read(path: &Path) -> Result<(Recording, Ended)> {
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
pub(super) fn report(mut recorded: Recording, ended: Ended) -> Report {
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
pub(super) fn begin_of(path: &Path) -> Option<Begin> {
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
    let left_out = match recorded.left_out {
        0 => String::new(),
        n => format!(" {} did not fit.", text::count(n, "large allocation")),
    };
    let moments = match recorded.moments_left_out {
        0 => String::new(),
        n => format!(" {} did not fit.", text::count(n, "event")),
    };
    // The summary is written each minute, and at the end.
    let at = recorded.summary.as_ref().map_or(0, |summary| summary.process.at_unix_ns);
    let last = times.last().copied().unwrap_or(0);
    let older = match last.saturating_sub(at) {
        gap if at > 0 && gap > recorded.begin.interval_ns.saturating_mul(2) => {
            format!(" All but the timeline and the call stacks is from {} before its end.", units::span(gap))
        }
        _ => String::new(),
    };
    let skipped = match recorded.skipped {
        0 => String::new(),
        n => format!(" {} say nothing to this version.", text::count(n, "line")),
    };
    format!(
        "Recorded over {}, in {}, one about every {}. {end}{older} Allocations of {} and above were recorded one by one if they were \
         live at a sample.{left_out}{moments}{skipped}",
        units::span(over),
        text::count(looks, "sample"),
        units::span(recorded.begin.interval_ns),
        units::bytes(recorded.begin.events_from_bytes),
    )
}
