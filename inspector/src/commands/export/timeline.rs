//! Samples and events over time, for Perfetto and chrome://tracing. Source: "Trace Event Format", counters (`C`),
//! instants (`i`) and metadata (`M`); times are microseconds.

use crate::model::{Ledger, growth};
use crate::source::liveness::real_ns;
use crate::view::json;
use gpumem_wire::kinds::EventKind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    ph: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    ts: f64,
    /// Scope of an instant: the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: BTreeMap<&'static str, serde_json::Value>,
}

/// Writes each object as soon as it is made.
struct List<'a> {
    out: &'a mut dyn Write,
    comma: &'static str,
}

impl List<'_> {
    fn push(&mut self, entry: &Entry<'_>) -> std::io::Result<()> {
        writeln!(self.out, "{}", self.comma)?;
        self.comma = ",";
        json::plain(self.out, entry)
    }
}

pub(super) fn write(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    let pid = ledger.pid();
    let microseconds = |ns| real_ns(&ledger.snapshot.header, ns) as f64 / 1000.0;
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut list = List { out, comma: "" };
    let args = BTreeMap::from([("name", ledger.name().into())]);
    list.push(&Entry { name: "process_name", ph: "M", pid, tid: None, ts: 0.0, s: None, args })?;
    for sample in &ledger.snapshot.samples {
        for &(name, _, column) in growth::COLUMNS {
            let args = BTreeMap::from([("value", column(sample).into())]);
            list.push(&Entry { name, ph: "C", pid, tid: None, ts: microseconds(sample.time_ns), s: None, args })?;
        }
    }
    for event in &ledger.snapshot.events {
        let name = EventKind::name_of(event.kind);
        let text = ledger.snapshot.text(event.text);
        let mut args = BTreeMap::from([("a", event.a.into()), ("b", event.b.into()), ("code", event.code.into())]);
        if !text.is_empty() {
            args.insert("text", text.into_owned().into());
        }
        let ts = microseconds(event.time_ns);
        list.push(&Entry { name, ph: "i", pid, tid: Some(event.tid), ts, s: Some("p"), args })?;
    }
    writeln!(list.out, "\n]}}")
}
