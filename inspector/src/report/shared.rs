//! Memory that no other list has, one line for each group: shared between processes, or left behind by graphs.

use crate::model::Ledger;
use crate::model::left::{LeftByGraphs, held_by_driver};
use crate::model::shared::{Exported, Imported, Shared};
use crate::text::{clean, count, units};
use crate::view::table::{DIM, WARN, paint};
use std::io::Write;

/// Lines that are shown of each kind, unless all are requested.
const LINES: usize = 8;

/// Returns the shared memory that no other view of the process has. With `all` also memory that is live in both
/// processes.
pub(crate) fn lines(shared: &Shared, all: bool) -> Vec<String> {
    let exported = shared.exported.iter().filter(|row| all || row.freed).map(export);
    let imported = shared.imported.iter().filter(|row| all || row.freed || row.pid.is_none()).map(import);
    let cut = |lines: Vec<String>| {
        let hidden = if all { 0 } else { lines.len().saturating_sub(LINES) };
        let more = (hidden > 0).then(|| format!("… {} more: --all shows them", units::number(hidden as u64)));
        let shown = lines.len() - hidden;
        lines.into_iter().take(shown).chain(more)
    };
    let remarks = shared.remarks.iter().map(|remark| clean(remark).into_owned());
    cut(exported.collect()).chain(cut(imported.collect())).chain(cut(remarks.collect())).collect()
}

/// `1.0 GiB`, `3.0 GiB in 3 blocks`.
fn size(bytes: u64, live: u64) -> String {
    match live {
        _ if bytes == 0 => format!("{} of unknown size", count(live, "block")),
        1 => units::bytes(bytes),
        _ => format!("{} in {}", units::bytes(bytes), count(live, "block")),
    }
}

/// `1.0 GiB freed, exported, still open in pid 12 (worker), opened at attach b.c:7; allocated at publish a.c:3`.
pub(crate) fn export(row: &Exported) -> String {
    let Exported { bytes, live, freed, site, pid, name, opened_at } = row;
    let state = if *freed { "freed, exported, still open" } else { "exported, open" };
    let (size, name) = (size(*bytes, *live), clean(name));
    format!("{size} {state} in pid {pid} ({name}), opened at {}; allocated at {}", clean(opened_at), clean(site))
}

/// `1.0 GiB of pid 11 (trainer), which has freed it, opened at attach b.c:7`.
pub(crate) fn import(row: &Imported) -> String {
    let Imported { bytes, live, freed, site, pid, name, .. } = row;
    let (size, site) = (size(*bytes, *live), clean(site));
    let Some(pid) = pid else { return format!("{size} imported at {site}, from whom is not known") };
    let freed = match (freed, live) {
        (false, _) => "",
        (true, 1) => ", which has freed it",
        (true, _) => ", which has freed them",
    };
    format!("{size} of pid {pid} ({}){freed}, opened at {site}", clean(name.as_deref().unwrap_or_default()))
}

/// Prints the lines, each marked.
pub(crate) fn print(out: &mut dyn Write, shared: &Shared, all: bool) -> std::io::Result<()> {
    let lines = lines(shared, all);
    if !lines.is_empty() {
        writeln!(out)?;
    }
    for line in lines {
        let style = if line.starts_with('…') { DIM } else { WARN };
        writeln!(out, "{} {line}", paint(style, "shared:"))?;
    }
    Ok(())
}

/// Prints the memory that destroyed graphs left behind, and what the driver holds for it.
pub(crate) fn print_left(out: &mut dyn Write, left: &[LeftByGraphs], ledger: &Ledger) -> std::io::Result<()> {
    if !left.is_empty() {
        writeln!(out)?;
    }
    for LeftByGraphs { site, bytes, live } in left.iter().take(LINES) {
        let size = match live {
            1 => units::bytes(*bytes),
            _ if bytes % live == 0 => {
                format!(
                    "{} {} times, {} in all,",
                    units::bytes(bytes / live),
                    units::number(*live),
                    units::bytes(*bytes)
                )
            }
            _ => size(*bytes, *live),
        };
        let which = if *live == 1 { "a graph whose exec is gone" } else { "graphs whose execs are gone" };
        writeln!(out, "{} {size} allocated by {which}, at {}", paint(WARN, "left:"), clean(site))?;
    }
    let more = left.len().saturating_sub(LINES) as u64;
    if more > 0 {
        writeln!(out, "{} … {} more", paint(DIM, "left:"), units::number(more))?;
    }
    let all = left.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
    match held_by_driver(ledger) {
        held if left.is_empty() || held <= all => Ok(()),
        held => {
            let held = units::bytes(held);
            writeln!(out, "{} the driver holds {held} for graphs: it takes 32 MiB at a time", paint(DIM, "left:"))
        }
    }
}
