//! Ledgers with samples of who held how much, as the shim writes them.

use super::*;

/// A row, with its bytes and count at each sample since its own first one.
pub struct Row {
    pub kind: GrowthKind,
    pub key: u64,
    /// Bytes and count, one for each sample; fewer than samples: the row came later.
    pub held: Vec<(u64, u64)>,
}

/// Adds rows to a ledger, sampled at these times.
pub fn sampled(composer: &mut Composer, times: &[u64], rows: &[Row]) {
    let mut words = vec![0; GROWTH_BLOCK * (rows.len() + 1)];
    let mut first = 0;
    for level in GROWTH_LEVELS {
        let every = level.every as usize;
        for point in 0..times.len() / every {
            let place = first + point % level.points;
            let samples = point * every..(point + 1) * every;
            words[place] = times[samples.start];
            for (number, row) in rows.iter().enumerate() {
                let missing = times.len() - row.held.len();
                let held = |sample: usize| sample.checked_sub(missing).map_or((0, 0), |at| row.held[at]);
                let (bytes, count) = samples.clone().map(held).min().unwrap();
                let block = GROWTH_BLOCK * (number + 1);
                (words[block + place], words[block + GROWTH_POINTS + place]) = (bytes, count);
            }
        }
        first += level.points;
    }
    let slot = |row: &Row| {
        let (bytes, count) = *row.held.last().unwrap();
        let since_ns = times[times.len() - row.held.len()];
        let peak = *row.held.iter().max().unwrap();
        GrowthSlot {
            kind: row.kind as u8,
            key: row.key,
            since_ns,
            bytes,
            count,
            peak_bytes: peak.0,
            ..Default::default()
        }
    };
    composer.slots(rows.iter().map(slot));
    composer.words(TableKind::GrowthPoints, &words);
}

/// A process that has been watched for so many seconds, with a sample a second: weights of 64 MiB, a call site that
/// leaks a block of 1 MiB a second under the tag `cache`, and a heap that stays as it is.
pub fn leaking(id: ProcessId, seconds: u64) -> Composer {
    leaking_at(id, seconds, &[APP + 0x201, APP + 0x901])
}

/// A call stack out of PyTorch's allocator, if that is the module at [`CUDA`].
pub fn torch() -> [u64; 2] {
    [CUDA + 0x10, APP + 0x201]
}

/// As [`leaking`], with the stack of the leak.
pub fn leaking_at(id: ProcessId, seconds: u64, leak_at: &[u64]) -> Composer {
    let mut composer = begin(id);
    let now = monotonic_ns();
    composer.header.created_ns = now - (seconds + 1) * SECOND;
    composer.header.heartbeat_ns = now;
    let at = |sample: u64| now - (seconds - sample) * SECOND;
    module(&mut composer, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    let tag = composer.text("cache");
    let stack = |allocs| StackSlot { first_ns: at(0), allocs, alloc_bytes: allocs * MIB, ..Default::default() };
    composer.stack(0, stack(1), &[APP + 0x101, APP + 0x901]);
    composer.stack(1, stack(2 * seconds), leak_at);
    let alloc = |serial: u64, stack, mib: u64, time_ns| AllocSlot {
        stack,
        addr: 0x7000_0000_0000 + serial * 0x1000_0000,
        bytes: mib * MIB,
        time_ns,
        serial,
        tid: id.pid,
        kind: AllocKind::Device as u8,
        ..Default::default()
    };
    composer.slots([alloc(0, 1, 64, at(0))]);
    composer.slots((1..=seconds).map(|n| AllocSlot { tag, ..alloc(n, 2, 1, at(n) - SECOND / 2) }));
    let times: Vec<u64> = (0..seconds).map(at).collect();
    let row = |kind, key, held: &dyn Fn(u64) -> (u64, u64)| Row { kind, key, held: (0..seconds).map(held).collect() };
    let leak = |sample: u64| (sample * MIB, sample);
    sampled(
        &mut composer,
        &times,
        &[
            row(GrowthKind::Site, 1, &|_| (64 * MIB, 1)),
            row(GrowthKind::Site, 2, &leak),
            row(GrowthKind::Tag, tag.into(), &leak),
            row(GrowthKind::Heap, 0, &|_| (8 * MIB, 1)),
        ],
    );
    composer
}

/// Parts that a program's own allocator `arena` handed out of the first block that [`leaking`] leaks: three of 64 KiB,
/// one that would go on behind the block's end, and one that lies in no block.
pub fn report_parts(composer: &mut Composer) {
    const FIRST: u64 = 0x7000_1000_0000;
    let pool = composer.text("arena").into();
    composer.stack(2, StackSlot { allocs: 5, ..Default::default() }, &[APP + 0x301]);
    let part = |serial, addr, bytes| AllocSlot {
        stack: 3,
        addr,
        bytes,
        time_ns: composer.header.heartbeat_ns - SECOND,
        serial,
        extra: pool,
        kind: AllocKind::Reported as u8,
        location: Location::usual(AllocKind::Reported).word(),
        ..Default::default()
    };
    let parts: Vec<AllocSlot> =
        [(0, 64 << 10), (64 << 10, 64 << 10), (128 << 10, 64 << 10), (MIB - 4096, 64 << 10), (MIB, 64 << 10)]
            .into_iter()
            .zip(9000..)
            .map(|((at, bytes), serial)| part(serial, FIRST + at, bytes))
            .collect();
    composer.slots(parts);
}

/// As a dump of that moment: no time goes by while it is looked at, however slow the machine is.
pub fn dumped(mut composer: Composer) -> Composer {
    composer.header.dumped_ns = composer.header.heartbeat_ns;
    composer
}

/// Adds a mark, so long before the last heartbeat.
pub fn mark(composer: &mut Composer, seq: u64, name: &str, seconds_ago: u64) {
    let text = composer.text(name);
    let time_ns = composer.header.heartbeat_ns - seconds_ago * SECOND;
    composer.slots([EventSlot { kind: EventKind::Mark as u8, seq, time_ns, text, ..Default::default() }]);
}
