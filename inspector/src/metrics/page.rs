//! Samples of metrics, and their formats.

use super::table::{Kind, Metric};
use crate::text::{clean, shorten};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::rc::Rc;

/// Most columns of a label's value: names of some templates have thousands.
const MOST_LABEL: usize = 200;

/// Format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus' text format 0.0.4, also used for a collector's files.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// A metric with its samples, in the order in which they were added.
#[derive(Debug)]
struct Family {
    metric: Metric,
    /// The labels as text, and the value.
    samples: Vec<(Rc<str>, f64)>,
    /// Labels that already have a sample.
    known: FxHashSet<Rc<str>>,
}

/// The metrics of all processes. New samples belong to the current process.
#[derive(Debug, Default)]
pub(crate) struct Page {
    families: Vec<Family>,
    /// Index of each family by its name.
    by_name: FxHashMap<Cow<'static, str>, usize>,
    /// Labels of the current process, as text.
    who: String,
}

impl Page {
    /// Sets the process of samples added from now on.
    pub(super) fn whose(&mut self, pid: u32, process: &str) {
        self.who = text(&[("pid", &pid.to_string()), ("process", process)]);
    }

    /// Samples added from now on belong to no process.
    pub(super) fn nobodys(&mut self) {
        self.who.clear();
    }

    /// Adds a sample; `more`: its labels besides the process.
    pub(crate) fn add(&mut self, metric: &Metric, more: &[(&str, &str)], value: f64) {
        let comma = if self.who.is_empty() || more.is_empty() { "" } else { "," };
        let labels: Rc<str> = format!("{}{comma}{}", self.who, text(more)).into();
        let at = self.by_name.get(&metric.name).copied().unwrap_or_else(|| {
            self.families.push(Family { metric: metric.clone(), samples: Vec::new(), known: FxHashSet::default() });
            self.by_name.insert(metric.name.clone(), self.families.len() - 1);
            self.families.len() - 1
        });
        let family = &mut self.families[at];
        // A collector refuses a whole page if it has a sample twice.
        if family.known.insert(Rc::clone(&labels)) {
            family.samples.push((labels, value));
        }
    }

    /// Returns the page as text: for each metric its help and its type, then its samples.
    pub(crate) fn write(&self, format: Format) -> String {
        let mut out = String::new();
        for Family { metric, samples, .. } in &self.families {
            let name = &*metric.name;
            let family = match format {
                Format::Text => name,
                // Only a counter's samples have the ending.
                Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            };
            let kind = match metric.kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
            };
            let help = metric.help.replace('\\', "\\\\");
            // In Prometheus' own format a quote is not escaped.
            let help = if format == Format::OpenMetrics { help.replace('"', "\\\"") } else { help };
            let _ = writeln!(out, "# HELP {family} {help}\n# TYPE {family} {kind}");
            let unit = family.rsplit('_').next().filter(|unit| matches!(*unit, "bytes" | "seconds"));
            if let (Format::OpenMetrics, Some(unit)) = (format, unit) {
                let _ = writeln!(out, "# UNIT {family} {unit}");
            }
            for (labels, value) in samples {
                let _ = match labels.is_empty() {
                    true => writeln!(out, "{name} {value}"),
                    false => writeln!(out, "{name}{{{labels}}} {value}"),
                };
            }
        }
        if format == Format::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }
}

fn text(labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", label(value))).collect();
    labels.join(",")
}

/// Returns a label's value as written: shortened, control characters written out; backslash and quote escaped.
fn label(value: &str) -> String {
    shown(value).replace('\\', "\\\\").replace('"', "\\\"")
}

/// Returns a label's value as a reader of the page sees it.
pub(super) fn shown(value: &str) -> String {
    clean(&shorten(value, MOST_LABEL)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::table as t;
    use super::*;

    #[test]
    fn labels_cannot_break_out() {
        assert_eq!(label("a\"b\\c"), "a\\\"b\\\\c");
        assert_eq!(label("\x1b\n"), "\\\\x1b\\\\n");
        assert!(label(&"x".repeat(5000)).chars().count() <= MOST_LABEL);
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let mut page = Page::default();
        page.add(&t::PROCESSES_LEFT_OUT, &[], 0.0);
        page.whose(7, "a\"b");
        page.add(&t::LIVE_BYTES, &[("kind", "device")], 5e15);
        page.add(&t::LIVE_BYTES, &[("kind", "device")], 1.0);
        page.add(&t::ALLOCATIONS, &[], 3.0);
        let samples = |format| -> Vec<String> {
            page.write(format).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(Format::Text), samples(Format::OpenMetrics));
        assert_eq!(
            samples(Format::Text)[1],
            "gpumem_live_bytes{pid=\"7\",process=\"a\\\"b\",kind=\"device\"} 5000000000000000"
        );
        let (text, open) = (page.write(Format::Text), page.write(Format::OpenMetrics));
        assert!(text.contains("# TYPE gpumem_allocations_total counter\n") && !text.contains("# EOF"), "{text}");
        assert!(open.contains("# TYPE gpumem_allocations counter\n") && open.ends_with("\n# EOF\n"), "{open}");
        assert!(open.contains("# UNIT gpumem_live_bytes bytes\n"), "{open}");
    }
}
