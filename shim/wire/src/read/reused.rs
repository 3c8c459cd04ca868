//! Tells code apart that was mapped at the same addresses, one file after the other, as plugins are.
//!
//! A file that is gone and shares addresses with another one is moved up by a multiple of [`APART`], together with the
//! frames of the stacks that were first seen while it was there. So each address of a snapshot belongs to one file. A
//! stack with the same return addresses in both files is one stack: the ledger has it once.

use super::Stack;
use crate::layout::{ModuleSlot, PythonFrame, StackRef};
use std::collections::HashMap;

/// No address of code has this bit or one above it: a process gets higher addresses only where it asks for them.
const APART: u64 = 1 << 48;
/// Maximum number of files that share addresses and are told apart: a bound on the time that a reader takes.
const MOST: usize = 255;

/// Returns an address as the process had it.
pub const fn as_mapped(address: u64) -> u64 {
    address & (APART - 1)
}

/// A file at its addresses, with the times at which it was found there.
struct File {
    slots: Vec<usize>,
    start: u64,
    end: u64,
    since: Vec<u64>,
    /// Amount by which its addresses are moved.
    by: u64,
}

/// Moves the files that share addresses with others, and the frames of their stacks.
pub(super) fn part(modules: &mut [ModuleSlot], stacks: &HashMap<StackRef, Stack>, frames: &mut [u64]) {
    let mut files = files(modules);
    files.retain(|file| file.end <= APART);
    files.sort_by_key(|file| file.start);
    let mut shared = vec![false; files.len()];
    let mut last = 0;
    for at in 1..files.len() {
        if files[at].start < files[last].end {
            (shared[at], shared[last]) = (true, true);
        }
        if files[at].end > files[last].end {
            last = at;
        }
    }
    let mut shared = shared.iter();
    files.retain(|_| shared.next() == Some(&true));
    files.sort_by_key(|file| file.since[0]);
    files.truncate(MOST);
    for (at, file) in files.iter_mut().enumerate() {
        if file.slots.iter().all(|&slot| modules[slot].gone_ns != 0) {
            file.by = APART * (at as u64 + 1);
        }
    }
    if files.iter().all(|file| file.by == 0) {
        return;
    }
    for stack in stacks.values() {
        let first = stack.first_frame as usize;
        let Some(its) = frames.get_mut(first..first + stack.frames as usize) else { continue };
        for frame in its.iter_mut().filter(|frame| PythonFrame::of(**frame).is_none()) {
            *frame += owner(&files, *frame, stack.first_ns).map_or(0, |file| file.by);
        }
    }
    for file in &files {
        for &slot in &file.slots {
            let module = &mut modules[slot];
            (module.start, module.end) = (module.start + file.by, module.end + file.by);
            module.bias = module.bias.wrapping_add(file.by);
        }
    }
}

/// Returns the files, each once.
fn files(modules: &[ModuleSlot]) -> Vec<File> {
    let mut known: HashMap<_, usize> = HashMap::new();
    let mut files: Vec<File> = Vec::new();
    for (slot, module) in modules.iter().enumerate() {
        let what = (module.path, module.build_id, module.start, module.end, module.bias);
        let at = *known.entry(what).or_insert_with(|| {
            let (start, end) = (module.start, module.end);
            files.push(File { slots: Vec::new(), start, end, since: Vec::new(), by: 0 });
            files.len() - 1
        });
        files[at].slots.push(slot);
        files[at].since.push(module.first_ns);
    }
    files.iter_mut().for_each(|file| file.since.sort_unstable());
    files
}

/// Returns the file to which a return address belonged at a time: the one that was found there last before, or else
/// the one that was found first.
fn owner(files: &[File], address: u64, at_ns: u64) -> Option<&File> {
    let there = |file: &&File| (file.start..file.end).contains(&address.wrapping_sub(1));
    let last_before = |file: &File| {
        let behind = file.since.partition_point(|&since| since <= at_ns);
        Some(file.since[behind.checked_sub(1)?])
    };
    let before = files.iter().filter(there).filter_map(|file| Some((last_before(file)?, file)));
    let before = before.max_by_key(|(since, _)| *since).map(|(_, file)| file);
    before.or_else(|| files.iter().filter(there).min_by_key(|file| file.since[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f00_0000_0000;

    /// A file that was found at times, and is gone or there.
    fn module(path: u32, start: u64, bytes: u64, first_ns: u64, is_gone: bool) -> ModuleSlot {
        let gone_ns = if is_gone { 99 } else { 0 };
        ModuleSlot { path, start, end: start + bytes, bias: start, first_ns, gone_ns, ..Default::default() }
    }

    /// Returns the file's path and the offset of each frame of stacks that were first seen at these times.
    fn offsets(modules: &mut [ModuleSlot], stacks: &[(u64, &[u64])]) -> Vec<Vec<(u32, u64)>> {
        let mut frames = Vec::new();
        let stacks = stacks.iter().enumerate().map(|(at, (first_ns, its))| {
            let (first_frame, count) = (frames.len() as u32, its.len() as u32);
            frames.extend_from_slice(its);
            let first_ns = *first_ns;
            (at as u32, Stack { first_frame, frames: count, first_ns, allocs: 0, alloc_bytes: 0, graphs: 0, execs: 0 })
        });
        let stacks: HashMap<StackRef, Stack> = stacks.collect();
        part(modules, &stacks, &mut frames);
        let place = |&frame: &u64| {
            let its = modules.iter().filter(|module| (module.start..module.end).contains(&(frame - 1)));
            let mut paths: Vec<_> = its.map(|module| (module.path, frame - module.bias)).collect();
            paths.dedup();
            assert!(paths.len() <= 1, "{frame:#x} is in one file: {paths:?}");
            paths.first().copied().unwrap_or((0, as_mapped(frame)))
        };
        (0..stacks.len() as u32)
            .map(|at| {
                let first = stacks[&at].first_frame as usize;
                frames[first..first + stacks[&at].frames as usize].iter().map(place).collect()
            })
            .collect()
    }

    /// Two plugins take turns at the same addresses. The stacks of each belong to it, whichever is there now.
    #[test]
    fn code_at_the_same_addresses_is_told_apart_by_time() {
        let program = module(1, 0x40_0000, 0x1000, 10, false);
        let (a, b) = (module(2, AT, 0x4000, 20, true), module(3, AT + 0x1000, 0x5000, 30, true));
        let (again, there) = (module(2, AT, 0x4000, 40, true), module(3, AT + 0x1000, 0x5000, 50, false));
        let inner = [AT + 0x1500, 0x40_0100];
        let stacks: Vec<(u64, &[u64])> = [20, 29, 30, 40, 45, 50, 60].map(|at| (at, &inner[..])).into();
        let of = |path, offset| vec![(path, offset), (1, 0x100)];
        let (in_a, in_b) = (of(2, 0x1500), of(3, 0x500));
        let wanted = [&in_a, &in_a, &in_b, &in_a, &in_a, &in_b, &in_b].map(Clone::clone);
        assert_eq!(offsets(&mut [program, a, b, again, there], &stacks), wanted);
        // A stack from before the first one is the first one's, and addresses of one file alone are its own.
        let before = offsets(&mut [program, a, b], &[(5, &inner), (35, &[AT + 0x100]), (25, &[AT + 0x5100])]);
        assert_eq!(before, [in_a, vec![(2, 0x100)], vec![(3, 0x4100)]]);
    }

    /// A dump of such a snapshot is read as it is.
    #[test]
    fn what_was_moved_stays_where_it_is() {
        let mut modules = [module(2, AT, 0x4000, 20, true), module(3, AT, 0x5000, 30, true)];
        part(&mut modules, &HashMap::new(), &mut []);
        let moved = modules;
        assert!(moved[0].start > AT && moved[1].start > AT && as_mapped(moved[0].start) == AT);
        part(&mut modules, &HashMap::new(), &mut []);
        assert_eq!(modules, moved);
    }

    /// A file that was loaded again at its place, and files beside each other, stay.
    #[test]
    fn nothing_moves_without_need() {
        let mut modules = [
            module(2, AT, 0x4000, 20, true),
            module(2, AT, 0x4000, 40, false),
            module(3, AT + 0x4000, 0x1000, 30, true),
            module(4, u64::MAX - 0x2000, 0x1000, 30, true),
            module(5, u64::MAX - 0x2000, 0x1800, 40, true),
        ];
        let before = modules;
        part(&mut modules, &HashMap::new(), &mut []);
        assert_eq!(modules, before);
    }
}
