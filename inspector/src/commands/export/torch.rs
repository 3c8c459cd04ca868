//! A snapshot in PyTorch's format, for <https://pytorch.org/memory_viz> and `torch.cuda._memory_viz`: each live block
//! of device memory is a segment of its own. Source: `torch/cuda/_memory_viz.py` and
//! `torch/csrc/cuda/memory_snapshot.cpp` of PyTorch 2.11.

use crate::metrics::pprof::signed;
use crate::model::Ledger;
use crate::source::liveness::real_ns;
use crate::view::lazy::Lazy;
use gpumem_wire::kinds::Space;
use gpumem_wire::layout::AllocSlot;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// Most blocks that are exported, the largest ones. The format repeats the whole call stack for each.
const MOST_BLOCKS: usize = 20_000;

#[derive(Serialize)]
struct Snapshot<'a> {
    segments: Lazy<'a, TorchSegment>,
    device_traces: Vec<Lazy<'a, Traced>>,
    allocator_settings: BTreeMap<&'static str, String>,
}

/// Numbers have at most eight bytes. A u64 would take nine, one for its sign. The reader of memory_viz would make a BigInt
/// of it, which cannot be added to a block's size.
#[derive(Serialize)]
struct TorchSegment {
    device: u32,
    address: i64,
    total_size: i64,
    allocated_size: i64,
    active_size: i64,
    requested_size: i64,
    stream: u32,
    segment_type: &'static str,
    segment_pool_id: (u32, u32),
    is_expandable: bool,
    frames: Vec<TorchFrame>,
    blocks: [Block; 1],
}

#[derive(Serialize)]
struct Block {
    address: i64,
    size: i64,
    requested_size: i64,
    state: &'static str,
    frames: Vec<TorchFrame>,
}

/// One event of a device's history.
#[derive(Serialize)]
struct Traced {
    action: &'static str,
    addr: i64,
    size: i64,
    stream: u32,
    time_us: i64,
    frames: Vec<TorchFrame>,
}

/// A frame, innermost first in a list.
#[derive(Clone, Serialize)]
struct TorchFrame {
    name: String,
    filename: String,
    line: u32,
}

fn frames(ledger: &Ledger, alloc: &AllocSlot) -> Vec<TorchFrame> {
    let line = |frame: &crate::symbols::Frame| TorchFrame {
        name: frame.name(),
        filename: frame.file.as_deref().or(frame.module.as_deref()).unwrap_or_default().to_owned(),
        line: frame.line.unwrap_or(0),
    };
    ledger.frames(alloc.stack).iter().map(line).collect()
}

fn device(ledger: &Ledger, alloc: &AllocSlot) -> u32 {
    ledger.device_of(alloc).unwrap_or(0)
}

fn segment(ledger: &Ledger, alloc: &AllocSlot) -> TorchSegment {
    let (address, size) = (signed(alloc.addr), signed(alloc.bytes));
    let frames = frames(ledger, alloc);
    TorchSegment {
        device: device(ledger, alloc),
        address,
        total_size: size,
        allocated_size: size,
        active_size: size,
        requested_size: size,
        stream: alloc.stream.into(),
        segment_type: if alloc.bytes < 1 << 20 { "small" } else { "large" },
        segment_pool_id: (0, 0),
        is_expandable: false,
        frames: frames.clone(),
        blocks: [Block { address, size, requested_size: size, state: "active_allocated", frames }],
    }
}

fn traced(ledger: &Ledger, alloc: &AllocSlot) -> Traced {
    Traced {
        action: "alloc",
        addr: signed(alloc.addr),
        size: signed(alloc.bytes),
        stream: alloc.stream.into(),
        time_us: signed(real_ns(&ledger.snapshot.header, alloc.time_ns) / 1000),
        frames: frames(ledger, alloc),
    }
}

pub(super) fn write(mut out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    let on_device = |alloc: &&AllocSlot| matches!(alloc.space(), Space::Device | Space::Managed);
    let mut blocks: Vec<&AllocSlot> = ledger.snapshot.allocs.iter().filter(on_device).collect();
    blocks.sort_by_key(|alloc| std::cmp::Reverse(alloc.bytes));
    let left_out = blocks.split_off(blocks.len().min(MOST_BLOCKS));
    blocks.sort_by_key(|alloc| alloc.addr);
    let mut in_time = BTreeMap::<u32, Vec<&AllocSlot>>::new();
    for &alloc in &blocks {
        in_time.entry(device(ledger, alloc)).or_default().push(alloc);
    }
    in_time.values_mut().for_each(|of| of.sort_by_key(|alloc| alloc.time_ns));
    // More devices than a machine can have come from a damaged file.
    let devices = in_time.keys().next_back().map_or(0, |&last| last.min(63) + 1);
    let history = (0..devices).map(|device| in_time.remove(&device).unwrap_or_default());
    let mut settings = BTreeMap::from([("gpumem", env!("CARGO_PKG_VERSION").to_owned())]);
    if !left_out.is_empty() {
        let bytes = left_out.iter().fold(0_u64, |sum, alloc| sum.saturating_add(alloc.bytes));
        settings.insert("left_out", format!("{} smaller blocks, {bytes} bytes", left_out.len()));
    }
    let snapshot = Snapshot {
        device_traces: history.map(|of| Lazy::of(of, |alloc| traced(ledger, alloc))).collect(),
        segments: Lazy::of(blocks, |alloc| segment(ledger, alloc)),
        allocator_settings: settings,
    };
    serde_pickle::to_writer(&mut out, &snapshot, serde_pickle::SerOptions::new()).map_err(std::io::Error::other)
}
