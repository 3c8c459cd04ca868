//! A process with the pool on, known to the last byte.

use super::*;

/// Two contexts on one device, of which the pool serves the first; one on another device that is
/// gone. 80 MiB live of which 16 are spilled, 48 MiB idle in 3 blocks, at most 256 MiB. A site that
/// strands memory, reported twice, another one that has run out.
pub fn pooled(id: ProcessId) -> Composer {
    let mut composer = begin(id);
    let t0 = composer.header.created_ns;
    let at = |seconds: u64| t0 + seconds * SECOND;
    module(&mut composer, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    composer.header.settings =
        composer.text("GPUMEM_POOL_MAX=256MiB\nGPUMEM_LIMIT=512MiB\nGGML_CUDA_ALLOC_FALLBACK_MANAGED=1");
    let name = composer.text("NVIDIA Test");
    let context = ContextSlot {
        handle: 0xc0,
        name,
        total_bytes: 1024 * MIB,
        vendor: Vendor::Cuda as u8,
        used_bytes: 300 * MIB,
        used_ns: t0,
        limit_bytes: 512 * MIB,
        ..Default::default()
    };
    composer.slots([
        ContextSlot {
            live_bytes: 64 * MIB,
            peak_bytes: 112 * MIB,
            idle_bytes: 48 * MIB,
            idle_peak_bytes: 96 * MIB,
            idle_blocks: 3,
            spilled_bytes: 16 * MIB,
            pool_state: PoolState::On as u64,
            ..context
        },
        ContextSlot { handle: 0xc1, pool_state: PoolState::Peers as u64, ..context },
        ContextSlot { handle: 0xc2, device: 1, gone_ns: at(50), idle_bytes: 7 * MIB, ..context },
    ]);
    let stack = |allocs| StackSlot { hash: allocs, allocs, ..Default::default() };
    composer.stack(0, stack(1), &[APP + 0x101, APP + 0x901]);
    composer.stack(1, stack(2), &[APP + 0x201, APP + 0x901]);
    let alloc = |serial: u64, stack, mib: u64, flags| AllocSlot {
        stack,
        addr: 0x7000_0000_0000 + serial * 0x1000_0000,
        bytes: mib * MIB,
        time_ns: at(serial * 10),
        serial,
        tid: id.pid,
        context: 1,
        kind: AllocKind::Device as u8,
        flags,
        ..Default::default()
    };
    let spilled =
        AllocSlot { location: gpumem_wire::location::Location::Managed.word(), ..alloc(2, 2, 16, ALLOC_SPILLED) };
    composer.slots([alloc(1, 1, 64, ALLOC_POOLED), spilled]);
    let event = |seq, kind: EventKind, mib: u64, b| EventSlot {
        kind: kind as u8,
        seq,
        time_ns: at(seq),
        a: mib * MIB,
        b,
        tid: id.pid,
        context: 1,
        stack: 1,
        ..Default::default()
    };
    composer.slots([
        event(60, EventKind::StrandedSite, 8, 1),
        event(61, EventKind::PoolReleased, 4, 0),
        EventSlot { stack: 2, ..event(62, EventKind::Spilled, 16, 0) },
        event(63, EventKind::LimitRefused, 600, 0),
        EventSlot { stack: 2, ..event(64, EventKind::OutOfMemory, 900, 80 * MIB) },
        event(65, EventKind::Pressed, 32, 24 * MIB),
        event(66, EventKind::StrandedSite, 24, 3),
        event(67, EventKind::TopHolder, 64, 1),
    ]);
    let sample = |seq: u64| SampleSlot {
        seq,
        time_ns: at(seq * 50),
        device_live: 64 * MIB,
        device_idle: 24 * seq * MIB,
        ..Default::default()
    };
    composer.slots((0..3).map(sample));
    let mut shard = vec![0; counters::PER_SHARD];
    for (index, value) in [
        (counters::allocs(AllocKind::Device), 1000),
        (counters::frees(AllocKind::Device), 998),
        (counters::alloc_bytes(AllocKind::Device), 4000 * MIB),
        (counters::free_bytes(AllocKind::Device), 3920 * MIB),
        (counters::POOL_HITS, 990),
        (counters::POOL_MISSES, 7),
        (counters::POOL_PASSED, 3),
        (counters::POOL_KEPT, 996),
        (counters::POOL_RELEASED, 2),
        (counters::POOL_RELEASED_BYTES, 4 * MIB),
        (counters::POOL_BARRIERS, 5),
        (counters::POOL_BARRIERS_FREE, 991),
        (counters::POOL_FLUSHES, 1),
        (counters::SPILLS, 4),
        (counters::SPILLED_BYTES, 64 * MIB),
        (counters::LIMIT_REFUSALS, 6),
        (counters::PRESS_REFUSALS, 8),
        (counters::FREED_IN_GRAPH, 9),
        (counters::TRIMS, 10),
        (counters::STRANDED_ADDED, 30 * MIB),
        (counters::STRANDED_REMOVED, 6 * MIB),
    ] {
        shard[index] = value;
    }
    composer.words(TableKind::Counters, &shard);
    composer
}
