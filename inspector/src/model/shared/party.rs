//! The shared memory in one ledger.

use super::is_import;
use crate::model::Ledger;
use crate::model::sites::Sites;
use gpumem_wire::kinds::{AllocKind, SharedKind};
use gpumem_wire::layout::{AllocSlot, SHARED_ROWS, SharedSlot};
use rustc_hash::{FxHashMap, FxHashSet};

/// The name of an allocation, the same in all processes.
pub(super) type Hash = [u8; 16];

/// One process.
#[derive(Debug)]
pub(super) struct Party {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) exports: Vec<Export>,
    pub(super) imports: Vec<Import>,
}

/// An allocation that other processes may have open.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) hash: Hash,
    pub(super) bytes: u64,
    pub(super) time_ns: u64,
    pub(super) freed: bool,
    pub(super) site: String,
}

/// Memory of another process that is open in this one.
#[derive(Debug)]
pub(super) struct Import {
    /// `None`: it has no name.
    pub(super) hash: Option<Hash>,
    pub(super) bytes: u64,
    pub(super) time_ns: u64,
    pub(super) kind: AllocKind,
    pub(super) site: String,
}

impl Party {
    /// Returns the shared memory in a ledger. `wanted`: only these names.
    pub(super) fn of(ledger: &Ledger, wanted: Option<&FxHashSet<Hash>>) -> Self {
        let is_wanted = |row: &SharedSlot| wanted.is_none_or(|wanted| wanted.contains(&row.hash));
        let rows = |kind: SharedKind| {
            let all = ledger.snapshot.shared.iter().take(SHARED_ROWS as usize);
            all.filter(move |row| row.kind == kind as u8).filter(|row| is_wanted(row))
        };
        let kind = |alloc: &AllocSlot| AllocKind::from_u8(alloc.kind).filter(|&kind| is_import(kind));
        let named: FxHashMap<u64, Hash> = rows(SharedKind::Imported).map(|row| (row.serial, row.hash)).collect();
        let open: Vec<_> = ledger.snapshot.allocs.iter().filter_map(|alloc| Some((alloc, kind(alloc)?))).collect();
        let open = open.into_iter().filter(|(alloc, _)| wanted.is_none() || named.contains_key(&alloc.serial));
        let open: Vec<_> = open.collect();
        // A live export is recognised by its serial.
        let exported: FxHashSet<u64> = rows(SharedKind::Exported).map(|row| row.serial).collect();
        let listed = ledger.snapshot.allocs.iter().map(|alloc| alloc.serial);
        let live: FxHashSet<u64> = listed.filter(|serial| exported.contains(serial)).collect();
        let stacks = open.iter().map(|(alloc, _)| alloc.stack).chain(rows(SharedKind::Exported).map(|row| row.stack));
        let sites = match wanted {
            // The same names as in other views of this process.
            None if stacks.clone().next().is_some() => Sites::of_allocs(ledger),
            _ => Sites::of(ledger, stacks),
        };
        let export = |row: &SharedSlot| Export {
            hash: row.hash,
            bytes: row.bytes,
            time_ns: row.time_ns,
            freed: !live.contains(&row.serial),
            site: sites.name(row.stack).to_string(),
        };
        let sizes = if open.iter().any(|(alloc, _)| alloc.bytes == 0) { mapped(ledger) } else { FxHashMap::default() };
        let import = |&(alloc, kind): &(&AllocSlot, AllocKind)| Import {
            hash: named.get(&alloc.serial).copied().filter(|_| kind == AllocKind::IpcImport),
            bytes: alloc
                .bytes
                .max(sizes.get(&alloc.addr).copied().filter(|_| kind == AllocKind::VmmImport).unwrap_or(0)),
            time_ns: alloc.time_ns,
            kind,
            site: sites.name(alloc.stack).to_string(),
        };
        Self {
            pid: ledger.pid(),
            name: ledger.name(),
            exports: rows(SharedKind::Exported).map(export).collect(),
            imports: open.iter().map(import).collect(),
        }
    }

    /// Returns the names of all shared memory.
    pub(super) fn hashes(&self) -> FxHashSet<Hash> {
        let imports = self.imports.iter().filter_map(|import| import.hash);
        self.exports.iter().map(|export| export.hash).chain(imports).collect()
    }
}

/// Returns the bytes of the largest mapping of each physical handle: the call that imports a handle does not give its
/// size.
fn mapped(ledger: &Ledger) -> FxHashMap<u64, u64> {
    let mut mapped = FxHashMap::default();
    let kind = AllocKind::VmmMapping as u8;
    for mapping in ledger.snapshot.allocs.iter().filter(|alloc| alloc.kind == kind) {
        let bytes: &mut u64 = mapped.entry(mapping.extra).or_default();
        *bytes = mapping.bytes.max(*bytes);
    }
    mapped
}
