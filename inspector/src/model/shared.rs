//! Memory shared between processes: exported here and open elsewhere, or open here and owned elsewhere.
//!
//! The ledgers of two processes name a shared allocation by the same hash. A pair is reported only if both ledgers have
//! it.
//!
//! * [`party`]: the shared memory in one ledger.

mod party;
#[cfg(test)]
mod tests;

use super::Ledger;
use crate::failure::Result;
use crate::source::choose;
use crate::source::find::FoundProcess;
use crate::source::world::World;
use crate::text::units;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{SHARED_ROWS, SharedSlot, TableKind};
use gpumem_wire::read::Snapshot;
use party::{Export, Hash, Import, Party};
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most bytes of a table of shared memory: twice what the shim writes.
const MOST: u64 = 2 * SHARED_ROWS * size_of::<SharedSlot>() as u64;
/// The driver's page size in bytes: sizes that differ by less are equal.
const UNIT: u64 = 2 << 20;

/// Memory that one process shares with others.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Shared {
    /// Owned by this process and open in another one. Freed blocks come first, the largest first.
    pub exported: Vec<Exported>,
    /// Owned by another process and open in this one.
    pub imported: Vec<Imported>,
    /// Contradictions between ledgers, and processes that could not be read.
    pub remarks: Vec<String>,
}

/// Blocks that were allocated at one call site and are open in one other process.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Exported {
    pub bytes: u64,
    pub live: u64,
    /// This process has freed them: they still take device memory, but no list of live memory has them.
    pub freed: bool,
    pub site: String,
    /// The process that has them open, and the call site that opened them.
    pub pid: u32,
    pub name: String,
    pub opened_at: String,
}

/// Blocks of one process that were opened here at one call site.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Imported {
    pub bytes: u64,
    pub live: u64,
    /// Their owner has freed them.
    pub freed: bool,
    pub kind: &'static str,
    pub site: String,
    /// Their owner. `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Shared {
    /// True if there is nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// True if other processes have to be read.
pub(crate) fn is_shared(ledger: &Ledger) -> bool {
    is_believed(ledger) && !ledger.snapshot.shared.is_empty()
}

/// True if the ledger's process is visible and running. Other ledgers (no process, another user, another place) are in
/// no pair.
fn is_believed(ledger: &Ledger) -> bool {
    ledger.status.is_here() && ledger.process.is_some()
}

/// Returns the memory that a process shares with those of `others` that run and have their own ledger. `read` reads all
/// of one of those ledgers.
pub(crate) fn of(
    world: &World,
    ledger: &Ledger,
    others: &[FoundProcess],
    read: impl Fn(&FoundProcess) -> Result<Ledger>,
) -> Shared {
    let mut own = Party::of(ledger, None);
    let mut remarks = Vec::new();
    let mut parties = Vec::new();
    let hashes = own.hashes();
    if !is_believed(ledger) {
        own.exports.clear();
    } else if !hashes.is_empty() {
        for found in others.iter().filter(|found| found.is_live() && found.process.is_some()) {
            if found.pid == own.pid || !has_one_of(world, found, &hashes) {
                continue;
            }
            match read(found) {
                Ok(other) if is_believed(&other) => parties.push(Party::of(&other, Some(&hashes))),
                Ok(_) => {}
                Err(why) => remarks.push(format!("pid {} ({}) was left out: {}", found.pid, found.name(), why.what)),
            }
        }
    }
    let mut shared = pair(&own, &parties);
    shared.remarks.extend(remarks);
    shared
}

/// True if a process's table of shared memory has one of these names. False if it cannot be read.
fn has_one_of(world: &World, found: &FoundProcess, hashes: &FxHashSet<Hash>) -> bool {
    let has = |snapshot: Snapshot| snapshot.shared.iter().any(|row| hashes.contains(&row.hash));
    choose::read_tables(world, found, |kind| kind == TableKind::Shared, MOST).is_ok_and(|opened| has(opened.snapshot))
}

/// The owner of a name, which may be ambiguous.
enum Whose<'a> {
    One(&'a Party, &'a Export),
    /// Several processes claim it.
    Several(Vec<u32>),
    Nobodys,
}

/// Returns the owner of an import: the process that made the last export before the memory was opened. An address that
/// is reused may get the same handle as before (small blocks of CUDA do).
fn whose<'a>(import: &Import, parties: impl Iterator<Item = &'a Party>) -> Whose<'a> {
    let Some(hash) = import.hash else { return Whose::Nobodys };
    let mut found = Vec::new();
    for party in parties {
        let all = || party.exports.iter().filter(|export| export.hash == hash);
        let before = all().filter(|export| export.time_ns <= import.time_ns).max_by_key(|export| export.time_ns);
        found.extend(before.or_else(|| all().min_by_key(|export| export.time_ns)).map(|export| (party, export)));
    }
    match found.as_slice() {
        [] => Whose::Nobodys,
        [(party, export)] => Whose::One(party, export),
        several => Whose::Several(several.iter().map(|(party, _)| party.pid).collect()),
    }
}

/// Pairs this process's exports with the imports of others, and the other way round.
fn pair(own: &Party, others: &[Party]) -> Shared {
    let (mut exported, mut imported, mut remarks) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let everyone = || std::iter::once(own).chain(others);
    for other in others {
        for import in &other.imports {
            match whose(import, everyone()) {
                Whose::One(party, export) if party.pid == own.pid => match differ(own, export, other, import) {
                    Some(remark) => remarks.push(remark),
                    None => {
                        let key = (!export.freed, export.site.clone(), other.pid, import.site.clone());
                        add(exported.entry(key).or_insert((other, 0, 0)), export.bytes);
                    }
                },
                Whose::Several(pids) if pids.contains(&own.pid) => remarks.push(unclear(&pids, other, import)),
                _ => {}
            }
        }
    }
    for import in &own.imports {
        let whose = match whose(import, others.iter()) {
            Whose::One(other, export) => match differ(other, export, own, import) {
                Some(remark) => {
                    remarks.push(remark);
                    None
                }
                None => Some((other, export)),
            },
            Whose::Several(pids) => {
                remarks.push(unclear(&pids, own, import));
                None
            }
            Whose::Nobodys => None,
        };
        let freed = whose.is_some_and(|(_, export)| export.freed);
        let other = whose.map(|(other, _)| other);
        let key = (!freed, import.site.clone(), other.map(|other| other.pid), import.kind.name());
        add(imported.entry(key).or_insert((other, 0, 0)), import.bytes);
    }
    remarks.sort_unstable();
    remarks.dedup();
    Shared { exported: exports(exported), imported: imports(imported), remarks }
}

/// Adds a block to the sums of its group: `_`, bytes, blocks.
fn add<T>(group: &mut (T, u64, u64), bytes: u64) {
    group.1 = group.1.saturating_add(bytes);
    group.2 += 1;
}

type Groups<'a, Key, Of> = BTreeMap<Key, (Of, u64, u64)>;

fn exports(groups: Groups<'_, (bool, String, u32, String), &Party>) -> Vec<Exported> {
    let row = |((is_live, site, pid, opened_at), (other, bytes, live)): ((bool, _, _, _), (&Party, _, _))| Exported {
        bytes,
        live,
        freed: !is_live,
        site,
        pid,
        name: other.name.clone(),
        opened_at,
    };
    let mut rows: Vec<_> = groups.into_iter().map(row).collect();
    rows.sort_by_key(|row| (!row.freed, std::cmp::Reverse(row.bytes)));
    rows
}

fn imports(groups: Groups<'_, (bool, String, Option<u32>, &'static str), Option<&Party>>) -> Vec<Imported> {
    let row = |((is_live, site, pid, kind), (other, bytes, live)): ((bool, _, _, _), (Option<&Party>, _, _))| {
        Imported { bytes, live, freed: !is_live, kind, site, pid, name: other.map(|other| other.name.clone()) }
    };
    let mut rows: Vec<_> = groups.into_iter().map(row).collect();
    rows.sort_by_key(|row| (!row.freed, std::cmp::Reverse(row.bytes)));
    rows
}

/// Returns a message if two ledgers give different sizes of one block.
fn differ(of: &Party, export: &Export, to: &Party, import: &Import) -> Option<String> {
    let rounded = |bytes: u64| bytes.checked_next_multiple_of(UNIT).unwrap_or(bytes);
    // 0: the driver did not report it.
    let is_alike = import.bytes == 0 || export.bytes == 0 || rounded(import.bytes) == rounded(export.bytes);
    (!is_alike).then(|| {
        format!(
            "pid {} exported {} and pid {} has {} of it open, at {}: one of the two ledgers is wrong, and this block is in no sum",
            of.pid,
            units::bytes(export.bytes),
            to.pid,
            units::bytes(import.bytes),
            import.site
        )
    })
}

/// Returns the message if several processes have exported the same memory.
fn unclear(pids: &[u32], to: &Party, import: &Import) -> String {
    let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
    format!(
        "pids {} each say that they exported what pid {} has open, at {}: whose it is cannot be told",
        pids.join(", "),
        to.pid,
        import.site
    )
}

/// True for kinds of memory that another process may own.
fn is_import(kind: AllocKind) -> bool {
    matches!(kind, AllocKind::IpcImport | AllocKind::VmmImport)
}
