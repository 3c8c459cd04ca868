//! A profile of one process as a request of OTLP, made from the one for pprof. The signal is in development: its
//! messages are of the package `v1development`, and may change. Source:
//! <https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/profiles/v1development/profiles.proto>
//!
//! A receiver adds up what it is sent. So memory allocated is that since the last request, where pprof has all of it.

use super::pprof::{self, Ever, Label, Packer, Sample, Table, ValueType};
use crate::model::Ledger;
use crate::model::names::Id;
use crate::source::liveness::real_ns;
use crate::source::world::{World, monotonic_ns};
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use std::collections::HashMap;

/// Path of a receiver, below its URL.
pub(crate) const PATH: &str = "/v1development/profiles";
pub(crate) const KIND: &str = "application/x-protobuf";

/// Data that was pushed of each process.
pub(super) struct Pushed {
    /// Time of the first round, on the ledgers' clock.
    began_ns: u64,
    before: HashMap<Id, Before>,
}

/// Time and totals of the last request for a process.
#[derive(Default)]
struct Before {
    unix_ns: u64,
    ever: Ever,
}

impl Default for Pushed {
    fn default() -> Self {
        Self { began_ns: monotonic_ns(), before: HashMap::new() }
    }
}

impl Pushed {
    /// Forgets processes that are gone.
    pub(super) fn keep(&mut self, pids: &[u32]) {
        self.before.retain(|(pid, _), _| pids.contains(pid));
    }

    /// Returns the request for a process, compressed by gzip; `None` if there is nothing to report.
    pub(super) fn request(&mut self, world: &World, id: Id, ledger: &Ledger, packer: &mut Packer) -> Option<Vec<u8>> {
        let header = &ledger.snapshot.header;
        let before = self.before.entry(id).or_insert_with(|| match header.created_ns < self.began_ns {
            // An earlier push may have had its allocations.
            true => Before { unix_ns: 0, ever: pprof::ever(ledger) },
            false => Before { unix_ns: real_ns(header, header.created_ns), ever: Ever::default() },
        });
        let profile = pprof::profile(ledger, &mut before.ever);
        let since = std::mem::replace(&mut before.unix_ns, profile.time_nanos as u64);
        let request = request(&profile, resource(world, id.0, ledger), since)?;
        packer.pack(&request.encode_to_vec()).ok()
    }
}

/// Returns the reason why a receiver took only a part of a request.
pub(crate) fn complaint(answer: &[u8]) -> Option<String> {
    let partial = ExportProfilesServiceResponse::decode(answer).ok()?.partial_success?;
    let of = partial.rejected_profiles;
    (of > 0)
        .then(|| format!("it rejects {of}: {}", crate::text::shorten(&crate::text::clean(&partial.error_message), 200)))
}

/// Describes a process by the names of OpenTelemetry's conventions. Source:
/// <https://opentelemetry.io/docs/specs/semconv/resource/process/>
fn resource(world: &World, pid: u32, ledger: &Ledger) -> Resource {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let container = ledger.process.as_ref().and_then(|process| process.container(world)).unwrap_or_default();
    let instance = format!("{host}-{pid}-{}", ledger.snapshot.header.start_ticks);
    let texts = [
        ("service.name", ledger.name()),
        ("service.instance.id", instance),
        ("process.executable.name", ledger.program()),
        ("host.name", host.to_owned()),
        ("container.id", container),
    ];
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let texts = texts.map(|(key, text)| (key, Value::StringValue(text)));
    let pid = ("process.pid", Value::IntValue(i64::from(pid)));
    let attribute = |(key, value): (&str, Value)| KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    };
    Resource { attributes: texts.chain([pid]).map(attribute).collect(), ..Resource::default() }
}

/// Returns the profiles of all sample types with samples, or `None` if none has any. pprof's numbers are the indices:
/// both count from 1, and 0 is nothing. Texts are numbered anew.
fn request(from: &pprof::Profile, resource: Resource, since: u64) -> Option<ExportProfilesServiceRequest> {
    let (mut stacks, mut attributes) = (Table::<Vec<u64>>::default(), Table::<Label>::default());
    // pprof has the texts of labels in its table; here they are beside the keys.
    let mut texts = Table::<i64>::default();
    let now = from.time_nanos as u64;
    let mut value_type = |kind: &ValueType| otlp::ValueType {
        type_strindex: texts.index(kind.what),
        unit_strindex: texts.index(kind.unit),
    };
    let mut sample = |of: &Sample, value: i64| otlp::Sample {
        stack_index: stacks.index(of.location_id.clone()),
        attribute_indices: of.label.iter().map(|label| attributes.index(*label)).collect(),
        values: vec![value],
        ..otlp::Sample::default()
    };
    let mut profiles = Vec::new();
    for (index, kind) in from.sample_type.iter().enumerate() {
        let some = from.sample.iter().filter(|sample| sample.value[index] > 0);
        let samples: Vec<_> = some.map(|of| sample(of, of.value[index])).collect();
        // Allocations belong to the time since the last request, live memory to this moment.
        let begin = if pprof::VALUES[index].0.starts_with("alloc") { since } else { now };
        if !samples.is_empty() {
            profiles.push(otlp::Profile {
                sample_type: Some(value_type(kind)),
                samples,
                time_unix_nano: begin,
                duration_nano: now.saturating_sub(begin),
                period_type: from.period_type.as_ref().map(&mut value_type),
                period: from.period,
                ..otlp::Profile::default()
            });
        }
    }
    if profiles.is_empty() {
        return None;
    }
    let scope = InstrumentationScope {
        name: "gpumem".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    let of_scope = otlp::ScopeProfiles { scope: Some(scope), profiles, ..otlp::ScopeProfiles::default() };
    let of_process =
        otlp::ResourceProfiles { resource: Some(resource), scope_profiles: vec![of_scope], ..Default::default() };
    Some(ExportProfilesServiceRequest {
        resource_profiles: vec![of_process],
        dictionary: Some(dictionary(from, texts, stacks.rows, &attributes.rows)),
    })
}

fn dictionary(
    from: &pprof::Profile,
    mut texts: Table<i64>,
    stacks: Vec<Vec<u64>>,
    attributes: &[Label],
) -> otlp::ProfilesDictionary {
    let text = |index: i64| from.string_table[index as usize].clone();
    let mapping_table = behind_none(&from.mapping, |of| otlp::Mapping {
        filename_strindex: texts.index(of.filename),
        ..Default::default()
    });
    let function_table = behind_none(&from.function, |of| otlp::Function {
        name_strindex: texts.index(of.name),
        filename_strindex: texts.index(of.filename),
        ..Default::default()
    });
    let attribute_table = behind_none(&attributes[1..], |of| otlp::KeyValueAndUnit {
        key_strindex: texts.index(of.key),
        value: Some(AnyValue { value: Some(Value::StringValue(text(of.text))) }),
        unit_strindex: 0,
    });
    let line = |of: &pprof::Line| otlp::Line { function_index: of.function_id as i32, line: of.line, column: 0 };
    let location_table = behind_none(&from.location, |of| otlp::Location {
        mapping_index: of.mapping_id as i32,
        address: of.address,
        lines: of.line.iter().map(line).collect(),
        ..Default::default()
    });
    let stack = |of: Vec<u64>| otlp::Stack { location_indices: of.into_iter().map(|id| id as i32).collect() };
    otlp::ProfilesDictionary {
        mapping_table,
        location_table,
        function_table,
        link_table: vec![otlp::Link::default()],
        attribute_table,
        stack_table: stacks.into_iter().map(stack).collect(),
        string_table: texts.rows.into_iter().map(text).collect(),
    }
}

/// Returns a table whose first row is the empty one.
fn behind_none<T, R: Default>(of: &[T], row: impl FnMut(&T) -> R) -> Vec<R> {
    std::iter::once(R::default()).chain(of.iter().map(row)).collect()
}
