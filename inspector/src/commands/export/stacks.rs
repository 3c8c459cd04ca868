//! Live memory by call stack, for profile viewers: folded stacks, and a file for speedscope.

use crate::model::Ledger;
use crate::symbols::Frame;
use crate::text;
use crate::view::json;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::StackRef;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;

/// Memory of one kind that one call stack holds.
pub(super) struct StackBytes {
    pub(super) kind: AllocKind,
    pub(super) stack: StackRef,
    /// Live now.
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

/// Returns the live allocations by kind and stack, of kinds that take memory of their own; most bytes first.
pub(super) fn held(ledger: &Ledger) -> Vec<StackBytes> {
    let mut found = BTreeMap::<(AllocKind, StackRef), (u64, u64)>::new();
    for alloc in &ledger.snapshot.allocs {
        if let Some(kind) = AllocKind::from_u8(alloc.kind).filter(|_| alloc.takes_memory()) {
            let (bytes, blocks) = found.entry((kind, alloc.stack)).or_default();
            *bytes = bytes.saturating_add(alloc.bytes);
            *blocks += 1;
        }
    }
    let mut held: Vec<StackBytes> =
        found.into_iter().map(|((kind, stack), (bytes, blocks))| StackBytes { kind, stack, bytes, blocks }).collect();
    held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
    held
}

/// Name in viewers for an allocation whose stack was not recorded.
pub(super) const NO_STACK: &str = "(no stack)";

/// Writes folded stacks, the input of flame graphs: `kind;outermost;…;innermost BYTES`, one line for each call stack.
/// Source: the README of Brendan Gregg's FlameGraph, "Fold stacks"; inferno reads the same.
pub(super) fn folded(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    for StackBytes { kind, stack, bytes, .. } in held(ledger) {
        write!(out, "{}", kind.name())?;
        let frames = ledger.frames(stack);
        for frame in frames.iter().rev() {
            write!(out, ";{}", step(frame))?;
        }
        if frames.is_empty() {
            write!(out, ";{}", NO_STACK)?;
        }
        writeln!(out, " {bytes}")?;
    }
    Ok(())
}

/// Returns a frame in words that cannot end a step or a line.
fn step(frame: &Frame) -> String {
    text::clean(&frame.label()).replace(';', ":").replace('\n', " ")
}

#[derive(Serialize)]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    shared: BTreeMap<&'static str, Vec<ShownFrame>>,
    profiles: [KindProfile; 2],
    name: String,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    exporter: String,
}

/// A frame in the viewer's format.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
struct ShownFrame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Rc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct KindProfile {
    #[serde(rename = "type")]
    form: &'static str,
    name: &'static str,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u64,
    #[serde(rename = "endValue")]
    end: u64,
    /// Indices of frames, outermost first, one list for each weight.
    samples: Rc<[Vec<usize>]>,
    weights: Vec<u64>,
}

/// The frames so far, each once.
#[derive(Default)]
struct Frames {
    shown: Vec<ShownFrame>,
    known: FxHashMap<ShownFrame, usize>,
}

impl Frames {
    fn index(&mut self, frame: ShownFrame) -> usize {
        *self.known.entry(frame).or_insert_with_key(|frame| {
            self.shown.push(frame.clone());
            self.shown.len() - 1
        })
    }

    fn named(&mut self, name: &str) -> usize {
        self.index(ShownFrame { name: name.into(), file: None, line: None })
    }
}

/// Writes a file for speedscope. Source: <https://www.speedscope.app/file-format-schema.json>.
pub(super) fn speedscope(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    let mut frames = Frames::default();
    let held = held(ledger);
    let sample = |held: &StackBytes| {
        let mut sample = vec![frames.named(held.kind.name())];
        let stack = ledger.frames(held.stack);
        if stack.is_empty() {
            sample.push(frames.named(NO_STACK));
        }
        for frame in stack.iter().rev() {
            sample.push(frames.index(ShownFrame { name: frame.name(), file: frame.file.clone(), line: frame.line }));
        }
        sample
    };
    let samples: Rc<[Vec<usize>]> = held.iter().map(sample).collect();
    let profile = |name, unit, weight: fn(&StackBytes) -> u64| {
        let weights: Vec<u64> = held.iter().map(weight).collect();
        let end = weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(*weight));
        KindProfile { form: "sampled", name, unit, start: 0, end, samples: Rc::clone(&samples), weights }
    };
    let profiles =
        [profile("live bytes", "bytes", |held| held.bytes), profile("live allocations", "none", |held| held.blocks)];
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        shared: BTreeMap::from([("frames", frames.shown)]),
        profiles,
        name: format!("{}, pid {}", ledger.name(), ledger.pid()),
        active: 0,
        exporter: format!("gpumem {}", env!("CARGO_PKG_VERSION")),
    };
    json::plain(out, &file)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_no_step() {
        let frame = |function: &str| Frame { function: Some(function.into()), ..Frame::default() };
        assert_eq!(step(&frame("f<a;b>\nc")), step(&frame("f<a:b>\nc")));
        assert!(!step(&frame("a;b\nc")).contains([';', '\n']));
    }
}
