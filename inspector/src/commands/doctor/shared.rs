//! Checks of one process: memory that one of two processes has freed, and the other has open.

use super::finding::{Finding, Severity};
use super::reading::Reading;
use crate::model::Ledger;
use crate::model::shared::{self, Exported, Imported, Shared};
use crate::report;
use crate::source::world::World;

/// Whether something was freed that is still open.
pub(super) fn check(world: &World, ledger: &Ledger, reading: &Reading) -> Vec<Finding> {
    if !shared::is_shared(ledger) {
        return vec![in_order()];
    }
    let Shared { exported, imported, remarks } =
        shared::of(world, ledger, reading.others(), |found| reading.read(world, found));
    let finding = |severity, text: String, bytes| Finding::new("shared", severity, text).bytes(bytes);
    let freed_here: Vec<&Exported> = exported.iter().filter(|row| row.freed).collect();
    let freed_there: Vec<&Imported> = imported.iter().filter(|row| row.freed).collect();
    let mut findings = Vec::new();
    if let Some(first) = freed_here.first() {
        let bytes = freed_here.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
        let text = report::shared::export(first) + &more(freed_here.len());
        findings.push(finding(Severity::Warning, text, bytes).fix(
            "have it closed there (cuIpcCloseMemHandle, cudaIpcCloseMemHandle): the memory goes back to the device with the last \
             close, or with the end of that process",
        ));
    }
    if let Some(first) = freed_there.first() {
        let bytes = freed_there.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
        let text = report::shared::import(first) + &more(freed_there.len());
        findings.push(finding(Severity::Warning, text, bytes).fix(
            "close it here (cuIpcCloseMemHandle, cudaIpcCloseMemHandle) if it is not needed: that it is open keeps it on the \
             device",
        ));
    }
    findings.extend(remarks.into_iter().map(|remark| Finding::new("shared", Severity::Info, remark)));
    if findings.is_empty() { vec![in_order()] } else { findings }
}

fn in_order() -> Finding {
    Finding::new("shared", Severity::Ok, "nothing that was freed is still open in another process")
}

/// What is said behind the first of several groups.
fn more(groups: usize) -> String {
    match groups {
        1 => String::new(),
        n => format!("; and {} more: gpumem leaks shows them", n - 1),
    }
}
