//! References of live graphs to memory, found in the content of their nodes. A graph that cannot be read may refer to
//! any memory.

use super::ExecStore;
use super::class::Shape;
use super::handle::{Edits, Handle};
use super::handle_arguments::exec_index;
use super::sources::Sources;
use super::sources::folded::GraphHandle;
use crate::backend::source::Source;
use crate::shim::Shim;
use gpumem_abi::types::GraphExec;
use std::ops::Range;

/// State of a handle of the shim.
enum LiveHandle {
    Exec(&'static Handle),
    Graph(&'static GraphHandle),
}

/// Returns all handles that were ever given out, each with what it is made of.
fn all() -> impl Iterator<Item = (&'static Sources, LiveHandle)> {
    super::caches().flat_map(|cache| {
        let execs = cache.handles().execs().all().map(|(_, handle)| LiveHandle::Exec(handle));
        let graphs = cache.sources().all_graphs().map(|(_, handle)| LiveHandle::Graph(handle));
        execs.chain(graphs).map(|live| (cache.sources(), live))
    })
}

/// Returns the handle of an exec of the shim.
fn of_exec(exec: u64) -> Option<(&'static Sources, &'static Handle)> {
    let handle_in = |cache: &'static ExecStore| {
        let index = exec_index(cache.library().vendor, exec as GraphExec)?;
        Some((cache.sources(), cache.handles().execs().get(index)?))
    };
    super::caches().find_map(handle_in)
}

/// Returns the number of execs and graphs that are the library's own, given how many are the shim's. The library's own
/// cannot be read.
fn of_library(shim: &Shim, (execs, graphs): (usize, usize)) -> usize {
    shim.registry.execs.len().saturating_sub(execs) + shim.registry.graphs.len().saturating_sub(graphs)
}

/// Returns true if a live graph may refer to one of these ranges of addresses, which are sorted. Waits for no lock: a
/// graph that another thread has locked may refer to any memory.
pub(crate) fn may_refer_to(shim: &Shim, ranges: &[Range<u64>]) -> bool {
    let mut ours = (0, 0);
    let may = |(sources, live): (&Sources, LiveHandle)| {
        let (refers, read) = live.refers(sources, ranges);
        live.count(read, &mut ours);
        refers || read.is_unknown()
    };
    all().any(may) || of_library(shim, ours) > 0
}

/// Returns true if a live graph certainly refers to this memory. Unreadable graphs do not count.
pub(crate) fn refers_to(memory: &Range<u64>) -> bool {
    // The address just after this memory may be the start of the next allocation.
    let within = memory.start..memory.end.saturating_sub(1);
    all().any(|(sources, live)| live.refers(sources, std::slice::from_ref(&within)).0)
}

/// Returns true if a launched graph certainly refers to one of these ranges, which are sorted.
pub(crate) fn exec_refers_to(exec: GraphExec, ranges: &[Range<u64>]) -> bool {
    of_exec(exec as u64).is_some_and(|(sources, handle)| LiveHandle::Exec(handle).refers(sources, ranges).0)
}

/// Passes the content of the nodes of all live graphs and execs to `each`, record by record. Returns the number of
/// graphs and execs that cannot be read, or not now. Waits for no lock.
pub(crate) fn each_record(shim: &Shim, mut each: impl FnMut(&[u8])) -> usize {
    let (mut ours, mut unread) = ((0, 0), 0);
    for (sources, live) in all() {
        let read = live.read(sources, &mut each);
        unread += usize::from(read.is_unknown());
        live.count(read, &mut ours);
    }
    unread + of_library(shim, ours)
}

/// Result of reading the nodes of one exec or graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceRead {
    /// The handle is not in use.
    Unused,
    Whole,
    /// A thread is launching or changing it: ask again.
    Busy,
    /// It is the library's own, or stays with one real exec for good.
    Unreadable,
}

impl SourceRead {
    fn is_unknown(self) -> bool {
        matches!(self, Self::Busy | Self::Unreadable)
    }
}

/// Passes the content of one exec's nodes to `each`, as a launch would run them now: without nodes that the program
/// switched off. Waits for no lock, and holds none of the exec's locks while `each` runs.
pub(crate) fn each_record_of_exec(exec: u64, mut each: impl FnMut(&[u8])) -> SourceRead {
    let read = |(sources, handle)| each_of_exec(sources, handle, true, &mut each);
    of_exec(exec).map_or(SourceRead::Unreadable, read)
}

impl LiveHandle {
    /// Counts a live handle, readable or not.
    fn count(&self, read: SourceRead, (execs, graphs): &mut (usize, usize)) {
        let count = if matches!(self, Self::Exec(_)) { execs } else { graphs };
        *count += usize::from(read != SourceRead::Unused);
    }

    /// Returns true if it certainly refers to one of these ranges, and the result of reading it.
    fn refers(&self, sources: &Sources, ranges: &[Range<u64>]) -> (bool, SourceRead) {
        let mut found = false;
        let read = self.read(sources, &mut |record| found = found || holds(record, ranges));
        (found, read)
    }

    /// Passes all content that it has or may have again to `each`, record by record.
    fn read(&self, sources: &Sources, each: &mut dyn FnMut(&[u8])) -> SourceRead {
        match self {
            Self::Exec(handle) => each_of_exec(sources, handle, false, each),
            Self::Graph(handle) => match handle.recipe_if_free() {
                None => SourceRead::Unused,
                Some(None) => SourceRead::Unreadable,
                Some(Some(recipe)) => {
                    each_of_source(sources, &recipe.shape, &recipe.source, &Edits::default(), false, each)
                }
            },
        }
    }
}

/// Passes the content of an exec to `each`. `launched`: as a launch would run it now.
fn each_of_exec(sources: &Sources, handle: &Handle, launched: bool, each: &mut dyn FnMut(&[u8])) -> SourceRead {
    let Ok(body) = handle.body.try_lock() else { return SourceRead::Busy };
    let (shape, source) = match (&body.class, &body.source) {
        // Nothing can be launched in a context that is gone.
        _ if body.apart().ended.is_some() => return SourceRead::Whole,
        (None, _) => return SourceRead::Unused,
        (Some(class), Some(source)) if !class.alone && !body.apart().owned => (class.shape.clone(), source.clone()),
        _ => return SourceRead::Unreadable,
    };
    let edits = body.edits().clone();
    // A launch may wait for this lock, and unfolding a large graph takes a while.
    drop(body);
    each_of_source(sources, &shape, &source, &edits, launched, each)
}

/// Passes a source's content, with these edits, to `each`. Unless it is `launched`, changes count in addition to the
/// earlier content, which is read again if the changes are taken back, and nodes that are off count as well.
fn each_of_source(
    sources: &Sources,
    shape: &Shape,
    source: &Source,
    Edits { changes, disabled }: &Edits,
    launched: bool,
    each: &mut dyn FnMut(&[u8]),
) -> SourceRead {
    sources.with_work(|work| {
        if !work.unpack(shape, source) {
            return SourceRead::Unreadable;
        }
        for (at, record) in changes {
            if launched { work.target.replace(*at as usize, record) } else { each(record) }
        }
        let runs = (0..work.target.len()).filter(|&at| !launched || !disabled.contains(&(at as u32)));
        runs.for_each(|at| each(work.target.get(at)));
        SourceRead::Whole
    })
}

/// Returns true if any eight bytes of a record are an address in a range. Parameters may be anywhere in a record.
fn holds(record: &[u8], ranges: &[Range<u64>]) -> bool {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return false };
    record.windows(8).any(|bytes| {
        let address = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        address >= first.start
            && address <= last.end
            && ranges[..ranges.partition_point(|range| range.start <= address)]
                .last()
                // Some programs point to the end of a block.
                .is_some_and(|range| address <= range.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_wherever_it_lies() {
        let ranges = [0x7f00_0000_0000..0x7f00_0010_0000, 0x7f00_0020_0000..0x7f00_0030_0000];
        for (address, found) in [
            (0x7f00_0000_0000_u64, true),
            (0x7f00_000f_ffff, true),
            (0x7f00_0018_0000, false),
            (0x7f00_0030_0000, true),
            (0x7f00_0030_0001, false),
            (0x7eff_ffff_ffff, false),
        ] {
            for offset in 0..17 {
                let mut record = [0xee; 40];
                record[offset..offset + 8].copy_from_slice(&address.to_le_bytes());
                assert_eq!(holds(&record, &ranges), found, "{address:#x} at {offset}");
            }
        }
        assert!(!holds(&[0; 4], &ranges) && !holds(&[0; 64], &[]));
    }
}
