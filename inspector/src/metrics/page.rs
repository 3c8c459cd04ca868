//! Samples of metrics, and their formats.

use super::table::{Kind, Metric};
use crate::text::{clean, shorten};
use rustc_hash::FxHashMap;
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
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    /// Index of its process, in [`Page::processes`].
    of: Option<usize>,
    /// Its labels besides those of the process, as text.
    labels: String,
    value: f64,
}

/// The metrics of all processes. New samples belong to the current process.
#[derive(Debug, Default)]
pub(crate) struct Page {
    families: Vec<Family>,
    /// Index of each family by its name.
    by_name: FxHashMap<Cow<'static, str>, usize>,
    /// Labels of each process, as text.
    processes: Vec<Rc<str>>,
    /// Index of each process by its labels.
    by_labels: FxHashMap<Rc<str>, usize>,
    current: Option<usize>,
}

impl Page {
    /// Sets the process of samples added from now on.
    pub(super) fn whose(&mut self, pid: u32, process: &str) {
        let labels: Rc<str> = text(&[("pid", &pid.to_string()), ("process", process)]).into();
        let index = *self.by_labels.entry(Rc::clone(&labels)).or_insert(self.processes.len());
        if index == self.processes.len() {
            self.processes.push(labels);
        }
        self.current = Some(index);
    }

    /// Samples added from now on belong to no process.
    pub(super) fn nobodys(&mut self) {
        self.current = None;
    }

    /// Adds a sample; `more`: its labels besides the process.
    pub(crate) fn add(&mut self, metric: &Metric, more: &[(&str, &str)], value: f64) {
        let labels = text(more);
        let at = self.by_name.get(&metric.name).copied().unwrap_or_else(|| {
            self.families.push(Family { metric: metric.clone(), samples: Vec::new() });
            self.by_name.insert(metric.name.clone(), self.families.len() - 1);
            self.families.len() - 1
        });
        let (samples, of) = (&mut self.families[at].samples, self.current);
        // The samples of the process that is new to the page are the last ones.
        let is_new = of.is_some_and(|of| of + 1 == self.processes.len());
        let mut known = samples.iter().rev().take_while(|sample| !is_new || sample.of == of);
        // A collector refuses a whole page if it has a sample twice.
        if !known.any(|sample| sample.of == of && sample.labels == labels) {
            samples.push(Sample { of, labels, value });
        }
    }

    /// Returns the page as text: for each metric its help and its type, then its samples.
    pub(crate) fn write(&self, format: Format) -> String {
        let mut out = String::new();
        for Family { metric, samples } in &self.families {
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
            for Sample { of, labels, value } in samples {
                let of = of.map_or("", |of| &self.processes[of]);
                let comma = if of.is_empty() || labels.is_empty() { "" } else { "," };
                let _ = match of.is_empty() && labels.is_empty() {
                    true => writeln!(out, "{name} {value}"),
                    false => writeln!(out, "{name}{{{of}{comma}{labels}}} {value}"),
                };
            }
        }
        if format == Format::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }
}

/// Returns labels as written: values are shortened, control characters written out, backslash and quote escaped.
fn text(labels: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(labels.len() * 32);
    for (name, value) in labels {
        text.push_str(if text.is_empty() { "" } else { "," });
        text.push_str(name);
        text.push_str("=\"");
        for c in shown(value).chars() {
            if matches!(c, '\\' | '"') {
                text.push('\\');
            }
            text.push(c);
        }
        text.push('"');
    }
    text
}

/// Returns a label's value as a reader of the page sees it.
pub(super) fn shown(value: &str) -> Cow<'_, str> {
    match shorten(value, MOST_LABEL) {
        Cow::Borrowed(value) => clean(value),
        Cow::Owned(value) => clean(&value).into_owned().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::table as t;
    use super::*;

    #[test]
    fn labels_cannot_break_out() {
        let label = |value: &str| text(&[("a", value)]);
        assert_eq!(label("a\"b\\c"), "a=\"a\\\"b\\\\c\"");
        assert_eq!(label("\x1b\n"), "a=\"\\\\x1b\\\\n\"");
        assert!(label(&"x".repeat(5000)).chars().count() <= MOST_LABEL + 4);
    }

    #[test]
    fn a_sample_is_there_once() {
        let mut page = Page::default();
        for (pid, kind, value) in
            [(7, "a", 1.0), (7, "b", 2.0), (8, "a", 3.0), (7, "b", 4.0), (8, "a", 5.0), (7, "c", 6.0)]
        {
            page.whose(pid, "app");
            page.add(&t::LIVE_BYTES, &[("kind", kind)], value);
            page.add(&t::UP, &[], value);
            page.nobodys();
            page.add(&t::WARNINGS, &[], value);
        }
        let text = page.write(Format::Text);
        let values = |name: &str| -> Vec<&str> {
            let of_name = text.lines().filter(|line| line.starts_with(name));
            of_name.map(|line| line.rsplit(' ').next().unwrap()).collect()
        };
        assert_eq!(
            (values("gpumem_live"), values("gpumem_up"), values("gpumem_search")),
            (vec!["1", "2", "3", "6"], vec!["1", "3"], vec!["1"])
        );
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
