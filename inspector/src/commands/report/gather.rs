//! Gathers the summary of a ledger's process for a report.

use crate::commands::doctor;
use crate::context::Context;
use crate::model::key::GroupKey;
use crate::model::overview::Overview;
use crate::model::summary::{About, Finding, GraphsOf, Holder, LIVE, Number, PEAK, Setting, Summary};
use crate::model::suspects::{self, Suspect};
use crate::model::verdict::ENOUGH;
use crate::model::{Head, Ledger, graphs, totals, variables};
use crate::report::cure::Cure;
use crate::report::{cache as cache_words, growth};
use crate::source::liveness::real_ns;
use crate::source::nvml::Books;
use crate::text::units;

/// Most holders and most groups of graphs that are listed.
const HOLDERS: usize = 500;
const GROUPS: usize = 200;
/// Most frames of a stack, and most characters of a frame and of a command line, that are shown.
const FRAMES: usize = 64;
const LABEL: usize = 300;
const CMDLINE: usize = 2000;

/// Returns the whole summary.
pub(in crate::commands) fn summary(context: &Context, ledger: &Ledger) -> Summary {
    let found = suspects::find(ledger, None);
    let mut remarks = growth::remarks(ledger, &found);
    let samples = found.samples.points.len();
    if samples >= ENOUGH {
        let (of, over) = (units::number(samples as u64), units::span(found.samples.span_ns()));
        remarks.insert(0, format!("verdicts rest on {of} samples over {over}"));
    }
    let holders_total = found.all.len() as u64;
    let holders = found.all.into_iter().take(HOLDERS).map(|suspect| holder(ledger, suspect)).collect();
    let overview = Overview::of(ledger, &Books::closed());
    Summary {
        process: about(ledger, &overview),
        warnings: Head::of(ledger).warnings(),
        remarks,
        numbers: numbers(context, ledger, &overview),
        holders,
        holders_total,
        graph_cache: cache_words::lines(&overview.cache),
        graphs: groups(ledger),
        environment: variables::of(ledger).into_iter().map(setting).collect(),
        findings: doctor::of_ledger(ledger).into_iter().map(finding).collect(),
    }
}

fn about(ledger: &Ledger, overview: &Overview) -> About {
    let head = Head::of(ledger);
    let header = &ledger.snapshot.header;
    let because = |word: &str, why: &str| if why.is_empty() { word.to_owned() } else { format!("{word}: {why}") };
    About {
        pid: head.pid,
        cmdline: crate::text::shorten(&ledger.snapshot.text(header.cmdline), CMDLINE).into_owned(),
        life: ledger.status.text(),
        began_unix_ns: real_ns(header, header.created_ns),
        at_unix_ns: real_ns(header, ledger.status.now_ns),
        interception: because(head.interception, &head.interception_reason),
        mode: because(head.mode, &head.mode_reason),
        driver_version: head.driver_version.clone(),
        shim_version: head.shim_version.clone(),
        devices: overview
            .devices
            .iter()
            .map(|device| format!("{}: {}, {}", device.device, device.name, units::bytes(device.total_bytes)))
            .collect(),
        name: head.name,
    }
}

fn numbers(context: &Context, ledger: &Ledger, overview: &Overview) -> Vec<Number> {
    let Overview { live, graphs, .. } = overview;
    let bytes = |name: &str, value: u64, remark: &str| Number {
        name: name.into(),
        value,
        unit: "bytes".into(),
        remark: remark.into(),
    };
    let count = |name: &str, value| Number { name: name.into(), value, ..Number::default() };
    let mut numbers = vec![
        bytes(LIVE, live.device, ""),
        bytes(PEAK, overview.device_peak_bytes, "of device memory"),
        bytes("managed memory live", live.managed, ""),
        bytes("host memory live", live.host, "pinned or registered"),
        count("allocations live", live.count),
        bytes("idle in the pool", overview.pool.idle_bytes, "goes back by itself or with gpumem trim"),
        count("graphs", graphs.graphs),
        count("execs", graphs.execs),
        bytes("host memory of graphs and execs", graphs.host_bytes, "estimated"),
        bytes("device memory of execs", graphs.device_bytes, "estimated"),
    ];
    if let Some(rss) = totals::host(&context.world, ledger).rss_bytes {
        numbers.push(bytes("resident memory", rss, "of the process"));
    }
    numbers.retain(|number| number.value > 0 || number.name == LIVE);
    numbers
}

fn holder(ledger: &Ledger, suspect: Suspect) -> Holder {
    let labels = ledger.labels(suspect.stack);
    let more = labels.len().saturating_sub(FRAMES);
    let mut stack: Vec<String> =
        labels.iter().take(FRAMES).map(|frame| crate::text::shorten(frame, LABEL).into_owned()).collect();
    if more > 0 {
        stack.push(format!("… {more} more"));
    }
    Holder {
        caveat: growth::caveat(ledger, &suspect).unwrap_or_default().into(),
        next: growth::advice(ledger, &suspect).map(Cure::text).unwrap_or_default(),
        bytes_change: suspect.since().map_or(0, |grown| grown.bytes_change),
        grows: suspect.grows(),
        kind: suspect.kind.name().into(),
        verdict: if suspect.balance.is_some() && suspect.grows() {
            growth::verdict(&suspect)
        } else {
            suspect.verdict.words().into()
        },
        bytes: suspect.bytes,
        live: suspect.live,
        peak_bytes: suspect.peak_bytes,
        oldest_age_ns: suspect.oldest_age_ns,
        newest_age_ns: suspect.newest_age_ns,
        total: suspect.total_allocs,
        freed_share: suspect.freed_share,
        bytes_per_minute: suspect.bytes_per_minute,
        name: suspect.key,
        stack,
    }
}

fn groups(ledger: &Ledger) -> Vec<GraphsOf> {
    let groups = graphs::group(ledger, &graphs::Filter::default(), graphs::By::Site);
    let words = |pinned: &std::collections::BTreeMap<&'static str, u64>| {
        let words = pinned.iter().map(|(why, n)| format!("{n} {why}"));
        words.collect::<Vec<_>>().join(", ")
    };
    let group = |(key, group): (GroupKey, graphs::Group)| GraphsOf {
        name: match key {
            GroupKey::Site(name) => name.to_string(),
            _ => String::new(),
        },
        graphs: group.graphs,
        execs: group.execs,
        launches: group.launches,
        host_bytes: group.host_bytes,
        device_bytes: group.device_bytes,
        resident: group.resident,
        folded: group.folded,
        pinned: words(&group.pinned),
    };
    groups.into_iter().take(GROUPS).map(group).collect()
}

fn setting(variable: variables::Variable) -> Setting {
    Setting { name: variable.name.into(), value: variable.value, source: variable.source.to_string() }
}

fn finding(finding: doctor::Finding) -> Finding {
    Finding {
        id: finding.id.into(),
        severity: finding.severity.name().into(),
        finding: finding.finding,
        paste: finding.paste,
        fix: finding.fix,
    }
}
