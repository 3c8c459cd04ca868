//! A file for speedscope. Source: <https://www.speedscope.app/file-format-schema.json>.

use super::stacks::{self, StackBytes};
use crate::model::Ledger;
use crate::view::json;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::Write;
use std::rc::Rc;

#[derive(Serialize)]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    shared: SharedFrames,
    profiles: [KindProfile; 2],
    name: String,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    exporter: String,
}

#[derive(Serialize)]
struct SharedFrames {
    frames: Vec<ShownFrame>,
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

pub(super) fn write(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    let mut frames = Frames::default();
    let held = stacks::held(ledger);
    let sample = |held: &StackBytes| {
        let mut sample = vec![frames.named(held.kind.name())];
        let stack = ledger.frames(held.stack);
        if stack.is_empty() {
            sample.push(frames.named(stacks::NO_STACK));
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
        shared: SharedFrames { frames: frames.shown },
        profiles,
        name: format!("{}, pid {}", ledger.name(), ledger.pid()),
        active: 0,
        exporter: format!("gpumem {}", env!("CARGO_PKG_VERSION")),
    };
    json::plain(out, &file)?;
    writeln!(out)
}
