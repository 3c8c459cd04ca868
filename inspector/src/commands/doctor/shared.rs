//! Checks for memory that one process has freed and another has open.

use super::finding::{Finding, info, warning};
use super::subject::Whole;
use crate::report::shared::{export, import};

/// Reports freed memory that is still open.
pub(super) fn check(of: &Whole) -> Vec<Finding> {
    let here = of.sharing.exported.iter().filter(|row| row.freed).map(|row| (export(row), row.bytes));
    let there = of.sharing.imported.iter().filter(|row| row.freed).map(|row| (import(row), row.bytes));
    let fixes = [
        "have it closed there (cuIpcCloseMemHandle, cudaIpcCloseMemHandle): the memory goes back to the device with the last \
         close, or with the end of that process",
        "close it here (cuIpcCloseMemHandle, cudaIpcCloseMemHandle) if it is not needed: that it is open keeps it on the \
         device",
    ];
    let freed = [here.collect::<Vec<_>>(), there.collect()];
    let all = freed.iter().zip(fixes).filter_map(|(rows, fix)| {
        let bytes = rows.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let more = match rows.len() {
            0 | 1 => String::new(),
            n => format!("; and {} more: gpumem leaks shows them", n - 1),
        };
        Some(warning(format!("{}{more}", rows.first()?.0)).bytes(bytes).fix(fix))
    });
    all.chain(of.sharing.remarks.iter().map(info)).collect()
}
