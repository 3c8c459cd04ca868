//! A process with the graph cache on, known to the last byte.

use super::*;

/// Classes of its handles.
pub const A: u64 = 0xaaaa_0000_1111_2222;
pub const B: u64 = 0xbbbb_0000_3333_4444;

/// One handle, as the shim would keep it. A real exec takes 5 MiB of the host and 2 MiB of the device.
fn handle(serial: u64, class: u64, state: u64) -> ExecSlot {
    ExecSlot {
        stack: 1,
        handle: 0x100 + serial,
        serial,
        graph_serial: 1,
        host_bytes: 5 * MIB,
        device_bytes: 2 * MIB,
        context: 1,
        nodes_total: 1000,
        class,
        state,
        source_bytes: 60 * 1024,
        ..Default::default()
    }
}

/// Two resident handles and a folded one of class A, a folded one and one that is gone of class B,
/// one that is pinned; three real execs, so that one of them is parked; a graph of the driver's and
/// one that is folded. At most four real execs, of at most 64 MiB.
pub fn cached(id: ProcessId) -> Composer {
    let mut composer = begin(id);
    let under = |state| exec_state(state, Pinned::None);
    module(&mut composer, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    composer.header.settings = composer.text("GPUMEM_GRAPH_CACHE=4\nGPUMEM_GRAPH_CACHE_BYTES=64MiB");
    let name = composer.text("NVIDIA Test");
    composer.slots([ContextSlot {
        handle: 0xc0,
        name,
        total_bytes: 1024 * MIB,
        vendor: Vendor::Cuda as u8,
        used_bytes: 300 * MIB,
        used_ns: composer.header.created_ns,
        exec_bytes: 6 * MIB,
        ..Default::default()
    }]);
    composer.stack(0, StackSlot { graphs: 2, execs: 7, ..Default::default() }, &[APP + 0x301, APP + 0x901]);
    let graph = GraphSlot { stack: 1, handle: 1, nodes: 1000, host_bytes: MIB, context: 1, ..Default::default() };
    composer.slots([GraphSlot { serial: 1, ..graph }, GraphSlot { serial: 2, folded_bytes: 4096, ..graph }]);
    composer.slots([
        ExecSlot {
            launches: 100,
            retargets: 2,
            instantiations: 1,
            evictions: 1,
            saved_ns: 10_000_000,
            ..handle(11, A, under(ExecState::Resident))
        },
        ExecSlot { launches: 50, instantiations: 1, ..handle(12, A, under(ExecState::Resident)) },
        ExecSlot {
            launches: 10,
            retargets: 8,
            evictions: 6,
            failed_updates: 1,
            saved_ns: 40_000_000,
            ..handle(13, A, under(ExecState::Folded))
        },
        ExecSlot { launches: 1, retargets: 1, instantiations: 1, ..handle(14, B, under(ExecState::Folded)) },
        ExecSlot { source_bytes: 1024, ..handle(15, B, under(ExecState::Gone)) },
        ExecSlot {
            launches: 5,
            source_bytes: 0,
            host_bytes: 3 * MIB,
            device_bytes: MIB,
            ..handle(16, 0, exec_state(ExecState::Native, Pinned::EventNodes))
        },
    ]);
    let mut shard = vec![0; counters::PER_SHARD];
    for (index, value) in [
        (counters::GRAPHS_CREATED, 2),
        (counters::EXECS_CREATED, 7),
        (counters::EXECS_DESTROYED, 1),
        (counters::INSTANTIATE_NS, 7_000_000),
        (counters::LAUNCHES, 170),
        (counters::HANDLES_MADE, 6),
        (counters::HANDLES_ENDED, 1),
        (counters::PINNED_MADE, 1),
        (counters::REAL_EXECS_MADE, 4),
        (counters::REAL_EXECS_ENDED, 1),
        (counters::REAL_BYTES_ADDED, 28 * MIB),
        (counters::REAL_BYTES_REMOVED, 7 * MIB),
        (counters::SOURCE_BYTES_ADDED, 301 * 1024),
        (counters::SOURCE_BYTES_REMOVED, 60 * 1024),
        (counters::RETARGETS, 13),
        (counters::RETARGET_NS, 3_900_000),
        (counters::NODES_SET, 13_000),
        (counters::RECYCLED, 2),
        (counters::EVICTIONS, 7),
        (counters::OVER_BOUND, 1),
        (counters::MADE_ANEW, 2),
        (counters::SAVED_NS, 65_000_000),
        (counters::MISS_NS, 5_000_000),
        (counters::FOLDS, 3),
        (counters::UNFOLDS, 2),
    ] {
        shard[index] = value;
    }
    composer.words(TableKind::Counters, &shard);
    composer
}

/// The cache of this ledger has thrashed; `raise`: what the event says.
pub fn thrashing(composer: &mut Composer, raise: &str) {
    let text = composer.text(raise);
    let time_ns = composer.header.created_ns;
    composer.slots([EventSlot {
        kind: EventKind::Thrash as u8,
        time_ns,
        a: 4,
        b: 28 * MIB,
        text,
        ..Default::default()
    }]);
    count(composer, counters::THRASHES, 3);
}

/// Adds to a counter.
pub fn count(composer: &mut Composer, index: usize, value: u64) {
    let mut shard = vec![0; counters::PER_SHARD];
    shard[index] = value;
    composer.words(TableKind::Counters, &shard);
}
