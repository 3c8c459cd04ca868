//! Reads from the shim's ledger of this process what is live.

use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::read::Snapshot;
use std::fs::File;
use std::path::PathBuf;

/// This process's ledger, if it is preloaded.
pub struct OwnLedger(Option<PathBuf>);

/// The ledger's kinds in the groups that programs count: device, stream-ordered, managed, host.
const KINDS: [(&str, &[AllocKind]); 4] = [
    ("device", &[AllocKind::Device, AllocKind::Pitch]),
    ("async", &[AllocKind::Async]),
    ("managed", &[AllocKind::Managed]),
    ("host", &[AllocKind::HostPinned]),
];

impl OwnLedger {
    /// Finds the ledger. It exists only after the first GPU call.
    pub fn find() -> Self {
        let find = || {
            let dir = std::env::var_os("GPUMEM_DIR")?;
            let begin = format!("{}-", std::process::id());
            let entries = std::fs::read_dir(dir).ok()?.filter_map(Result::ok);
            let mut paths = entries.map(|entry| entry.path());
            paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begin)))
        };
        Self(find())
    }

    /// Compares the ledger with the bytes of each kind that the program knows to be live. `Some` says what differs.
    pub fn differs(&self, live: [u64; 4]) -> Option<String> {
        let file = File::open(self.0.as_ref()?).ok()?;
        let snapshot = match Snapshot::read(&file) {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(why)) => return Some(why.to_string()),
            Err(why) => return Some(why.to_string()),
        };
        let mut wrong = Vec::new();
        for ((name, kinds), live) in KINDS.into_iter().zip(live) {
            let sum = |of: fn(AllocKind) -> usize| kinds.iter().map(|kind| snapshot.counter(of(*kind))).sum::<u64>();
            let counted = sum(counters::alloc_bytes).wrapping_sub(sum(counters::free_bytes));
            let listed: u64 = (snapshot.allocs.iter())
                .filter(|alloc| kinds.iter().any(|kind| alloc.kind == *kind as u8))
                .map(|alloc| alloc.bytes)
                .sum();
            if (counted, listed) != (live, live) {
                wrong.push(format!("{name}: {live} bytes are live, {counted} counted, {listed} listed"));
            }
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}
