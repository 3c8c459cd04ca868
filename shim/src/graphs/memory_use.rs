//! References of live graphs to memory, found in the content of their nodes. A graph that cannot be read may refer to
//! any memory.

use super::ExecStore;
use super::class::{Class, Shape};
use super::handle::Handle;
use super::handle_arguments::exec_index;
use super::sources::Sources;
use super::sources::folded::GraphHandle;
use crate::backend::source::Source;
use crate::shim::Shim;
use gpumem_abi::types::GraphExec;
use gpumem_wire::kinds::Vendor;
use std::ops::Range;
use std::sync::Arc;

/// State of a handle of the shim.
enum LiveHandle {
    Exec(&'static Handle),
    Graph(&'static GraphHandle),
}

/// Returns all handles that were ever given out.
fn all(cache: &ExecStore) -> impl Iterator<Item = LiveHandle> {
    let execs = cache.handles().execs().all().map(|(_, handle)| LiveHandle::Exec(handle));
    execs.chain(cache.sources().all_graphs().map(|(_, handle)| LiveHandle::Graph(handle)))
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
    for cache in super::caches() {
        for live in all(cache) {
            let found = live.refers(cache.sources(), ranges);
            if matches!(found, Reference::Refers | Reference::MayRefer) {
                return true;
            }
            live.count(found, &mut ours);
        }
    }
    of_library(shim, ours) > 0
}

/// Returns true if a live graph certainly refers to this memory. Unreadable graphs do not count.
pub(crate) fn refers_to(memory: &Range<u64>) -> bool {
    // The address just after this memory may be the start of the next allocation.
    let within = memory.start..memory.end.saturating_sub(1);
    let range = std::slice::from_ref(&within);
    super::caches().any(|cache| all(cache).any(|live| live.refers(cache.sources(), range) == Reference::Refers))
}

/// Returns true if a launched graph certainly refers to one of these ranges, which are sorted.
pub(crate) fn exec_refers_to(vendor: Vendor, exec: GraphExec, ranges: &[Range<u64>]) -> bool {
    let found = super::cache(vendor).and_then(|cache| {
        let handle = cache.handles().execs().get(exec_index(vendor, exec)?)?;
        Some(LiveHandle::Exec(handle).refers(cache.sources(), ranges))
    });
    found == Some(Reference::Refers)
}

/// Passes the content of the nodes of all live graphs and execs to `each`, record by record. Returns the number of
/// graphs and execs that cannot be read, or not now. Waits for no lock.
pub(crate) fn each_record(shim: &Shim, mut each: impl FnMut(&[u8])) -> usize {
    let (mut ours, mut unread) = ((0, 0), 0);
    for cache in super::caches() {
        for live in all(cache) {
            let read = live.read(cache.sources(), &mut each);
            unread += usize::from(read == Reference::MayRefer);
            live.count(read, &mut ours);
        }
    }
    unread + of_library(shim, ours)
}

/// Result of reading the nodes of one exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceRead {
    Whole,
    /// A thread is launching or changing the exec: ask again.
    Busy,
    /// The exec is the library's own, or stays with one real exec for good.
    Unreadable,
}

/// Passes the content of one exec's nodes to `each`, as a launch would run them now: without nodes that the program
/// switched off. Waits for no lock, and holds none of the exec's locks while `each` runs.
pub(crate) fn each_record_of_exec(exec: u64, mut each: impl FnMut(&[u8])) -> SourceRead {
    let handle_in = |cache: &'static ExecStore| {
        let index = exec_index(cache.library().vendor, exec as GraphExec)?;
        Some((cache, cache.handles().execs().get(index)?))
    };
    match super::caches().find_map(handle_in) {
        Some((cache, handle)) => each_enabled(cache.sources(), handle, &mut each),
        None => SourceRead::Unreadable,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reference {
    /// The handle is not in use.
    Unused,
    Refers,
    /// The graph cannot be read, or not now.
    MayRefer,
    DoesNot,
}

impl LiveHandle {
    /// Counts a live handle, readable or not.
    fn count(&self, found: Reference, (execs, graphs): &mut (usize, usize)) {
        let count = if matches!(self, Self::Exec(_)) { execs } else { graphs };
        *count += usize::from(found != Reference::Unused);
    }

    /// Checks for references to one of these ranges.
    fn refers(&self, sources: &Sources, ranges: &[Range<u64>]) -> Reference {
        let mut found = false;
        let read = self.read(sources, &mut |record| found = found || holds(record, ranges));
        if found { Reference::Refers } else { read }
    }

    /// Passes the content to `each`, record by record. Returns [`Reference::DoesNot`] if it could be read.
    fn read(&self, sources: &Sources, each: &mut dyn FnMut(&[u8])) -> Reference {
        match self {
            Self::Exec(handle) => each_of_exec(sources, handle, each),
            Self::Graph(handle) => match handle.recipe_if_free() {
                None => Reference::Unused,
                Some(None) => Reference::MayRefer,
                Some(Some(recipe)) => each_of_source(sources, &recipe.shape, &recipe.source, each),
            },
        }
    }
}

fn each_of_exec(sources: &Sources, handle: &Handle, each: &mut dyn FnMut(&[u8])) -> Reference {
    let Ok(body) = handle.body.try_lock() else { return Reference::MayRefer };
    match (&body.class, &body.source) {
        // Nothing can be launched in a context that is gone.
        _ if body.apart().ended.is_some() => Reference::DoesNot,
        (None, _) => Reference::Unused,
        (Some(class), Some(source)) if !class.alone && !body.apart().owned => {
            let read = each_of_source(sources, &class.shape, source, each);
            // Changes count in addition to the earlier content, which is read again if the changes are taken back.
            if read == Reference::DoesNot {
                body.edits().changes.iter().for_each(|(_, record)| each(record));
            }
            read
        }
        _ => Reference::MayRefer,
    }
}

/// Passes a source's content to `each`. Returns [`Reference::DoesNot`] if it could be read.
fn each_of_source(sources: &Sources, shape: &Shape, source: &Source, each: &mut dyn FnMut(&[u8])) -> Reference {
    sources.with_work(|work| {
        if !work.unpack(shape, source) {
            return Reference::MayRefer;
        }
        (0..work.target.len()).for_each(|index| each(work.target.get(index)));
        Reference::DoesNot
    })
}

fn each_enabled(sources: &Sources, handle: &Handle, each: &mut impl FnMut(&[u8])) -> SourceRead {
    let Ok(body) = handle.body.try_lock() else { return SourceRead::Busy };
    let is_readable = |class: &&Arc<Class>| !class.alone && !body.apart().owned && body.apart().ended.is_none();
    let (Some(class), Some(source)) = (body.class.as_ref().filter(is_readable), &body.source) else {
        return SourceRead::Unreadable;
    };
    let (shape, source) = (class.shape.clone(), source.clone());
    let (changes, disabled) = (body.edits().changes.clone(), body.edits().disabled.clone());
    // A launch may wait for this lock, and unfolding a large graph takes a while.
    drop(body);
    sources.with_work(|work| {
        if !work.unpack(&shape, &source) {
            return SourceRead::Unreadable;
        }
        changes.iter().for_each(|(at, record)| work.target.replace(*at as usize, record));
        let enabled = (0..work.target.len()).filter(|&at| !disabled.contains(&(at as u32)));
        enabled.for_each(|at| each(work.target.get(at)));
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
