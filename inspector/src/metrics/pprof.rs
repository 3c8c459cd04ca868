//! A heap profile of GPU memory for pprof: live memory and memory ever allocated, by call stack. Source:
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>; field numbers are from that file.

use crate::model::Ledger;
use crate::model::devices::uuid;
use crate::source::liveness::real_ns;
use crate::symbols::Frame;
use flate2::{Compress, Compression, FlushCompress, Status};
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, ContextRef, ContextSlot, StackRef, StrRef};
use prost::Message;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::io::Write;
use std::rc::Rc;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(super) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
    #[prost(int64, tag = "14")]
    pub(super) default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) what: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    /// Innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) text: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
    #[prost(bool, tag = "7")]
    pub(super) has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    /// Innermost first, if functions were inlined.
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}

/// A table whose first row is the empty one.
pub(super) struct Table<T> {
    pub(super) rows: Vec<T>,
    indices: FxHashMap<T, usize>,
}

impl<T: Clone + Default + Eq + Hash> Default for Table<T> {
    fn default() -> Self {
        Self { rows: vec![T::default()], indices: FxHashMap::from_iter([(T::default(), 0)]) }
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    pub(super) fn index(&mut self, row: T) -> i32 {
        let Self { rows, indices } = self;
        *indices.entry(row).or_insert_with_key(|row| {
            rows.push(row.clone());
            rows.len() - 1
        }) as i32
    }
}

/// A profile being made. Its mappings and functions are known by their texts.
#[derive(Default)]
struct Maker {
    profile: Profile,
    texts: Table<Rc<str>>,
    mappings: Table<i64>,
    functions: Table<(i64, i64)>,
    locations: FxHashMap<u64, u64>,
}

impl Maker {
    /// Its index in the table of texts, whose first entry is the empty one.
    fn text(&mut self, text: &str) -> i64 {
        let known = self.texts.indices.get(text).map(|&known| known as i64);
        known.unwrap_or_else(|| self.texts.index(text.into()).into())
    }

    fn location(&mut self, ledger: &Ledger, address: u64) -> u64 {
        if let Some(&known) = self.locations.get(&address) {
            return known;
        }
        let frames = ledger.symbols.frames(address);
        let line = |frame: &Frame| {
            let of = (self.text(&frame.name()), self.text(frame.file.as_deref().unwrap_or_default()));
            Line { function_id: self.functions.index(of) as u64, line: frame.line.map_or(0, i64::from) }
        };
        let line = frames.iter().map(line).collect();
        let module = frames.iter().find_map(|frame| frame.module.as_deref()).map_or(0, |module| self.text(module));
        let mapping_id = self.mappings.index(module) as u64;
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location { id, mapping_id, address, line });
        self.locations.insert(address, id);
        id
    }

    fn label(&mut self, key: &str, text: &str) -> Label {
        Label { key: self.text(key), text: self.text(text) }
    }

    /// Returns the profile with its tables.
    fn end(self) -> Profile {
        let mappings = (1..).zip(&self.mappings.rows[1..]);
        let functions = (1..).zip(&self.functions.rows[1..]);
        Profile {
            mapping: mappings.map(|(id, &filename)| Mapping { id, filename, has_functions: true }).collect(),
            function: functions.map(|(id, &(name, filename))| Function { id, name, filename }).collect(),
            string_table: self.texts.rows.iter().map(ToString::to_string).collect(),
            ..self.profile
        }
    }

    fn stack(&mut self, ledger: &Ledger, stack: StackRef) -> Vec<u64> {
        ledger.addresses(stack).iter().map(|&address| self.location(ledger, address)).collect()
    }
}

/// Values of a sample, as in pprof's own heap profiles.
pub(super) const VALUES: [(&str, &str); 4] =
    [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")];

/// Returns a number as an `i64`, which some formats take; at most its maximum.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Properties that distinguish samples of live memory, besides their stack.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Apart {
    stack: StackRef,
    kind: AllocKind,
    /// A context of the device; `None` for memory that lies on no device.
    context: Option<ContextRef>,
    tag: StrRef,
}

/// Returns the live blocks and their bytes.
fn live(ledger: &Ledger) -> BTreeMap<Apart, (u64, u64)> {
    let contexts = &ledger.snapshot.contexts;
    let context_of = |alloc: &AllocSlot| {
        let device = ledger.device_of(alloc)?;
        let on = |slot: Option<&ContextSlot>| slot.is_some_and(|slot| slot.device == device);
        let other = || contexts.iter().find(|(_, slot)| on(Some(slot))).map(|(&context, _)| context);
        Some(alloc.context).filter(|context| on(contexts.get(context))).or_else(other)
    };
    let mut live = BTreeMap::<_, (u64, u64)>::new();
    for alloc in &ledger.snapshot.allocs {
        if let Some(kind) = AllocKind::from_u8(alloc.kind).filter(|_| alloc.takes_memory()) {
            let on_device = alloc.location().is_device();
            let context = if on_device { context_of(alloc) } else { None };
            let apart = Apart { stack: alloc.stack, kind, context, tag: alloc.tag };
            let (blocks, bytes) = live.entry(apart).or_default();
            (*blocks, *bytes) = (*blocks + 1, bytes.saturating_add(alloc.bytes));
        }
    }
    live
}

/// Requests every name that a ledger's profile needs.
pub(super) fn want_names(ledger: &Ledger) {
    for &stack in ledger.snapshot.stacks.keys() {
        ledger.addresses(stack).iter().for_each(|&address| drop(ledger.symbols.frames(address)));
    }
}

/// Allocations ever made by each stack, and their bytes.
pub(super) type Ever = FxHashMap<StackRef, (u64, u64)>;

/// Returns the allocations ever made by each stack.
pub(super) fn ever(ledger: &Ledger) -> Ever {
    let stacks = ledger.snapshot.stacks.iter();
    stacks.map(|(&reference, stack)| (reference, (stack.allocs, stack.alloc_bytes))).collect()
}

/// Returns the profile, with allocations beyond those in `before`, to which it adds them. A frame whose name is not known
/// yet is written as an offset in its file.
pub(super) fn profile(ledger: &Ledger, before: &mut Ever) -> Profile {
    let mut maker = Maker::default();
    for (what, unit) in VALUES {
        let value = ValueType { what: maker.text(what), unit: maker.text(unit) };
        maker.profile.sample_type.push(value);
    }
    maker.profile.default_sample_type = maker.text("inuse_space");
    // Each allocation is counted, without sampling.
    maker.profile.period_type = Some(ValueType { what: maker.text("space"), unit: maker.text("bytes") });
    maker.profile.period = 1;
    maker.profile.time_nanos = signed(real_ns(&ledger.snapshot.header, ledger.status.now_ns));
    let (exe, name) = (ledger.program(), ledger.name());
    let mut of_all = vec![maker.label("process", &exe)];
    if name != exe {
        of_all.push(maker.label("script", &name));
    }
    for (Apart { stack, kind, context, tag }, (blocks, bytes)) in live(ledger) {
        let mut label = of_all.clone();
        label.push(maker.label("kind", kind.name()));
        let uuid = context.and_then(|context| ledger.snapshot.contexts.get(&context)).map(|slot| uuid(&slot.uuid));
        for (key, text) in [("device", uuid), ("tag", Some(ledger.snapshot.text(tag).into_owned()))] {
            label.extend(text.filter(|text| !text.is_empty()).map(|text| maker.label(key, &text)));
        }
        let (location_id, value) = (maker.stack(ledger, stack), vec![0, 0, signed(blocks), signed(bytes)]);
        maker.profile.sample.push(Sample { location_id, value, label });
    }
    // Memory ever allocated is counted by stack alone. A store takes differences of these sums, so a stack is added
    // only once it has its names.
    let is_told = |reference| !ledger.awaits_names(reference);
    let mut told: Vec<_> = ever(ledger).into_iter().filter(|&(reference, _)| is_told(reference)).collect();
    told.sort_by_key(|&(reference, _)| reference);
    for (reference, (allocs, bytes)) in told {
        let (allocs_before, bytes_before) = before.insert(reference, (allocs, bytes)).unwrap_or_default();
        let (allocs, bytes) = (allocs.saturating_sub(allocs_before), bytes.saturating_sub(bytes_before));
        if allocs == 0 {
            continue;
        }
        let value = vec![signed(allocs), signed(bytes), 0, 0];
        let location_id = maker.stack(ledger, reference);
        maker.profile.sample.push(Sample { location_id, value, label: of_all.clone() });
    }
    maker.end()
}

/// Compresses profiles by gzip. It is kept: its memory is aligned, and glibc before 2.38 takes more of the heap each time
/// that such memory is allocated and freed.
pub(super) struct Packer(Compress);

impl Default for Packer {
    fn default() -> Self {
        Self(Compress::new_gzip(Compression::default(), 15))
    }
}

impl Packer {
    /// # Errors
    /// The compressor's.
    pub(super) fn pack(&mut self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        self.0.reset();
        let mut packed = Vec::with_capacity(bytes.len() / 4 + 64);
        loop {
            let rest = &bytes[self.0.total_in() as usize..];
            if self.0.compress_vec(rest, &mut packed, FlushCompress::Finish)? == Status::StreamEnd {
                return Ok(packed);
            }
            packed.reserve(packed.len());
        }
    }
}

/// Returns the profile of a ledger, compressed by gzip.
///
/// # Errors
/// The compressor's.
pub(super) fn packed(packer: &mut Packer, ledger: &Ledger) -> std::io::Result<Vec<u8>> {
    packer.pack(&profile(ledger, &mut Ever::default()).encode_to_vec())
}

/// Writes the profile of a ledger, compressed by gzip.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    out.write_all(&packed(&mut Packer::default(), ledger)?)
}
