//! A trace, which has every allocation and free (GPUMEM_ALLOC_TRACE), in the columns of RMM's log:
//! Thread,Time,Action,Pointer,Size,Stream. Only device and managed memory with a pointer.

use crate::failure::{Failure, Result, plain};
use crate::source::open;
use crate::text::units;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::trace::{self, Action, Record, Trace};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;

/// Returns the trace in a file; `None` if the file has none.
///
/// # Errors
/// Those of reading it.
pub(super) fn named(path: &Path) -> Result<Option<Trace>> {
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
        return Ok(None);
    }
    let mut magic = [0; trace::MAGIC.len()];
    if !open::any(path)?.read_exact(&mut magic).is_ok_and(|()| magic == trace::MAGIC) {
        return Ok(None);
    }
    let trace = trace::read(&open::any(path)?).map_err(|why| Failure::error(format!("{}: {why}", path.display())))?;
    if trace.torn > 0 {
        tracing::warn!("{}: {} records are missing or damaged and left out", path.display(), trace.torn);
    }
    if trace.header.stopped != 0 {
        let why = std::io::Error::from_raw_os_error(trace.header.stopped as i32);
        tracing::warn!("{}: the trace stopped before the process did: {}", path.display(), plain(&why));
    }
    Ok(Some(trace))
}

/// Writes it as RMM's logging_resource_adaptor does, except that the thread is the kernel's thread id.
pub(super) fn csv(out: &mut dyn Write, trace: &Trace) -> std::io::Result<()> {
    writeln!(out, "Thread,Time,Action,Pointer,Size,Stream")?;
    let undone = undone(&trace.records);
    let shown = trace.records.iter().zip(undone).filter(|(record, undone)| !undone && has_pointer(record.kind));
    let mut clock = Clock::default();
    for (record, _) in shown {
        let Record { tid, addr, bytes, .. } = *record;
        // A damaged header may have any value.
        let since = record.time_ns.wrapping_sub(trace.header.created_ns) as i64;
        let time = clock.time(trace.header.created_real_ns.saturating_add_signed(since));
        let stream = if record.stream == 0 { "0".to_owned() } else { format!("{:#x}", record.stream) };
        match record.action {
            Action::Alloc => writeln!(out, "{tid},{time},allocate,{addr:#x},{bytes},{stream}")?,
            Action::Free => writeln!(out, "{tid},{time},free,{addr:#x},{bytes},{stream}")?,
            Action::Failed => writeln!(out, "{tid},{time},allocate failure,(nil),{bytes},{stream}")?,
            Action::Unfreed => {}
        }
    }
    Ok(())
}

/// True for kinds that RMM can make; arrays, virtual and host memory it cannot.
fn has_pointer(kind: AllocKind) -> bool {
    matches!(kind, AllocKind::Device | AllocKind::Pitch | AllocKind::Managed | AllocKind::Async)
}

/// For each record: true if it is a refused free, or the note of one.
fn undone(records: &[Record]) -> Vec<bool> {
    let mut undone = vec![false; records.len()];
    let mut freed: HashMap<u64, usize> = HashMap::new();
    for (index, record) in records.iter().enumerate() {
        match record.action {
            Action::Free => drop(freed.insert(record.addr, index)),
            Action::Unfreed => {
                undone[index] = true;
                freed.remove(&record.addr).into_iter().for_each(|free| undone[free] = true);
            }
            _ => {}
        }
    }
    undone
}

/// Time of day in this machine's zone, which is queried once per second of the trace.
#[derive(Default)]
struct Clock {
    second: u64,
    text: String,
}

impl Clock {
    fn time(&mut self, real_ns: u64) -> String {
        let (second, micros) = (real_ns / 1_000_000_000, real_ns / 1000 % 1_000_000);
        if self.text.is_empty() || self.second != second {
            (self.second, self.text) = (second, units::time_of_day(second));
        }
        format!("{}.{micros:06}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_refused_free_is_left_out_with_its_note() {
        let record = |action, addr, bytes, kind| Record {
            time_ns: 5_000_000_123,
            addr,
            bytes,
            stream: if action == Action::Alloc { 0x55aa } else { 0 },
            tid: 7,
            stack: 0,
            action,
            kind,
        };
        let records = vec![
            record(Action::Alloc, 0x1000, 10, AllocKind::Device),
            record(Action::Free, 0x1000, 10, AllocKind::Device),
            record(Action::Unfreed, 0x1000, 10, AllocKind::Device),
            record(Action::Alloc, 0x2000, 99, AllocKind::HostPinned),
            record(Action::Failed, 0, 20, AllocKind::Device),
            record(Action::Free, 0x1000, 10, AllocKind::Device),
        ];
        let mut header = trace::Header::new_zeroed();
        (header.created_ns, header.created_real_ns) = (5_000_000_000, 3_600_000_000_000);
        let mut out = Vec::new();
        csv(&mut out, &Trace { header, records, torn: 0 }).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(rows[0], ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]);
        let without_time: Vec<String> = rows[1..].iter().map(|row| [&row[..1], &row[2..]].concat().join(" ")).collect();
        assert_eq!(
            without_time,
            ["7 allocate 0x1000 10 0x55aa", "7 allocate failure (nil) 20 0", "7 free 0x1000 10 0"]
        );
        assert!(rows[1..].iter().all(|row| row[1].ends_with(":00.000000") && row[1].len() == 15), "{text}");
    }
}
