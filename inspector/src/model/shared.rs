//! Memory that processes share: what was exported here and is open elsewhere, and what is open here and whose it is.
//!
//! The ledgers of two processes name a shared allocation by the same hash. What is said of a pair is what both ledgers say.
//!
//! * [`party`]: what one ledger says of it.

mod party;
#[cfg(test)]
mod tests;

use super::Ledger;
use crate::failure::Result;
use crate::source::choose;
use crate::source::find::FoundProcess;
use crate::source::liveness::Life;
use crate::source::world::World;
use crate::text::units;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{SHARED_ROWS, SharedSlot, TableKind};
use gpumem_wire::read::Snapshot;
use party::{Export, Hash, Import, Party};
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::collections::BTreeMap;

/// The most bytes that a table of shared memory has: twice what the shim writes.
const MOST: u64 = 2 * SHARED_ROWS * size_of::<SharedSlot>() as u64;
/// What the driver takes at a time, bytes: sizes that differ by less are one size.
const UNIT: u64 = 2 << 20;

/// Memory that one process shares with others.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Shared {
    /// Of this process, and open in another one. What was freed comes first, the largest first.
    pub exported: Vec<Exported>,
    /// Of another process, and open in this one.
    pub imported: Vec<Imported>,
    /// Where ledgers contradict each other, and what could not be looked at.
    pub remarks: Vec<String>,
}

/// Blocks that were allocated at one call site and are open in one process.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Exported {
    pub bytes: u64,
    pub live: u64,
    /// This process has freed them: they are on the card, and among no live memory.
    pub freed: bool,
    pub site: String,
    /// Where they are open, and at which of its call sites they were opened.
    pub pid: u32,
    pub name: String,
    pub opened_at: String,
}

/// Blocks of one process that were opened here at one call site.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Imported {
    pub bytes: u64,
    pub live: u64,
    /// Their process has freed them.
    pub freed: bool,
    pub kind: &'static str,
    pub site: String,
    /// Whose they are. `None`: that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Shared {
    /// True if there is nothing to say.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// True if other processes have to be looked at.
pub(crate) fn is_shared(ledger: &Ledger) -> bool {
    is_believed(ledger) && !ledger.snapshot.shared.is_empty()
}

/// True if a ledger is that of a process that can be seen and runs: one of nobody, of another user, or of somewhere else is in
/// no pair.
fn is_believed(ledger: &Ledger) -> bool {
    ledger.status.life == Life::Running && ledger.process.is_some()
}

/// What a process shares with those of `others` that run and have a ledger of their own. `read` reads one of them as a
/// whole.
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

/// True if the table of shared memory of a process has one of these names. One that cannot be read has none.
fn has_one_of(world: &World, found: &FoundProcess, hashes: &FxHashSet<Hash>) -> bool {
    let has = |snapshot: Snapshot| snapshot.shared.iter().any(|row| hashes.contains(&row.hash));
    choose::read_tables(world, found, |kind| kind == TableKind::Shared, MOST).is_ok_and(|opened| has(opened.snapshot))
}

/// A name that may stand for several, and what is known of it.
enum Whose<'a> {
    One(&'a Party, &'a Export),
    /// Several processes say that it is theirs.
    Several(Vec<u32>),
    Nobodys,
}

/// Whose memory an import is: a process that has exported it. An address that is given out again may have the same handle
/// as before (small blocks of CUDA do), so it is the last export before the memory was opened.
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

/// Pairs what a process has exported with what others have open, and the other way round.
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

/// Adds a block to what its group has: `_`, bytes, blocks.
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

/// What is wrong if two ledgers tell two sizes of one block.
fn differ(of: &Party, export: &Export, to: &Party, import: &Import) -> Option<String> {
    let rounded = |bytes: u64| bytes.checked_next_multiple_of(UNIT).unwrap_or(bytes);
    // 0: the driver did not tell.
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

/// What is said if several processes have exported the same.
fn unclear(pids: &[u32], to: &Party, import: &Import) -> String {
    let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
    format!(
        "pids {} each say that they exported what pid {} has open, at {}: whose it is cannot be told",
        pids.join(", "),
        to.pid,
        import.site
    )
}

/// True of kinds of memory that another process may own.
fn is_import(kind: AllocKind) -> bool {
    matches!(kind, AllocKind::IpcImport | AllocKind::VmmImport)
}
