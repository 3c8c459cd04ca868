//! The file that an address belongs to, and the path to read it by.

use super::apart::Apart;
use super::question::CodeFile;
use super::words::Shared;
use crate::source::process::Process;
use crate::source::world::World;
use crate::source::{budget, maps};
use crate::text;
use gpumem_wire::read::Snapshot;
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// File system in which the paths of a ledger hold.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// `/proc/PID/root` of a running process, else `/`.
    pub root: PathBuf,
    /// `/proc/PID` of a running process.
    pub proc: Option<PathBuf>,
}

impl Place {
    /// Returns the file system of a running process.
    pub(crate) fn of(world: &World, process: &Process) -> Self {
        Self { root: process.root(world), proc: Some(world.proc.join(process.pid.to_string())) }
    }

    /// Returns the inspector's own file system.
    pub(crate) fn here() -> Self {
        Self { root: "/".into(), proc: None }
    }
}

/// A file with code that was mapped.
#[derive(Debug)]
pub(super) struct Module {
    pub path: Rc<str>,
    start: u64,
    end: u64,
    bias: u64,
    first_ns: u64,
    gone: bool,
    build_id: Vec<u8>,
    file: OnceCell<Option<CodeFile>>,
}

impl Module {
    /// Converts an address of the process to an ELF virtual address of the file.
    pub(crate) fn address(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

/// All modules of a ledger.
#[derive(Debug)]
pub(super) struct Modules {
    modules: Vec<Module>,
    /// Start addresses of ranges, in order, with the module of each range. `None`: no module covers it.
    bounds: Vec<(u64, Option<usize>)>,
    place: Place,
    exe: String,
}

impl Modules {
    /// Returns the modules of a ledger.
    pub(crate) fn new(snapshot: &Snapshot, place: Place) -> Self {
        let mut shared = Shared::of(snapshot);
        let modules = snapshot.modules.iter().map(|slot| Module {
            path: shared.text(slot.path),
            start: slot.start,
            end: slot.end,
            bias: slot.bias,
            first_ns: slot.first_ns,
            gone: slot.gone_ns != 0,
            build_id: slot.build_id[..(slot.build_id_len as usize).min(slot.build_id.len())].to_vec(),
            file: OnceCell::new(),
        });
        let mut modules: Vec<_> = modules.collect();
        // Order of preference: modules mapped now, then the latest ones.
        modules.sort_by_key(|module| (module.gone, Reverse(module.first_ns)));
        let bounds = bounds(&modules);
        Self { modules, bounds, place, exe: snapshot.text(snapshot.header.exe).into_owned() }
    }

    /// Returns the module of a return address.
    pub(crate) fn find(&self, address: u64) -> Option<&Module> {
        let call = address.checked_sub(1)?;
        let behind = self.bounds.partition_point(|(start, _)| *start <= call);
        let (_, module) = self.bounds.get(behind.checked_sub(1)?)?;
        self.modules.get((*module)?)
    }

    /// Returns the file of a module: the one that was mapped, not a later file of the same name.
    pub(super) fn readable<'a>(&self, module: &'a Module, files: &Apart) -> Option<&'a CodeFile> {
        module.file.get_or_init(|| self.open(module, files)).as_ref()
    }

    fn open(&self, module: &Module, files: &Apart) -> Option<CodeFile> {
        if !module.path.starts_with('/') {
            return None;
        }
        let path = Path::new(module.path.trim_end_matches(" (deleted)"));
        let named = CodeFile { root: self.place.root.clone().into(), path: path.into(), kept: None };
        if is_this(&named, module, files) {
            return Some(named);
        }
        // The file was deleted or replaced while the program runs. The kernel still has it.
        let proc = self.place.proc.as_ref()?;
        let is_exe = |exe: &PathBuf| {
            let runs = std::fs::read_link(exe).unwrap_or_default();
            *module.path == self.exe && runs.to_string_lossy().trim_end_matches(" (deleted)") == path.to_string_lossy()
        };
        let exe = Some(proc.join("exe")).filter(is_exe);
        let mapped = || mapped_range(proc, module).map(|range| proc.join("map_files").join(range));
        let kept = |kept: PathBuf| CodeFile { kept: Some(kept.into()), ..named };
        let file = exe.or_else(mapped).map(kept).filter(|file| is_this(file, module, files));
        if file.is_none() {
            tracing::info!(
                "{}: gone or replaced since it was mapped; its symbols are not used",
                text::clean(&module.path)
            );
        }
        file
    }
}

/// Splits the address space into ranges; each gets the first of the modules that cover it.
fn bounds(modules: &[Module]) -> Vec<(u64, Option<usize>)> {
    let mut starts: Vec<usize> = (0..modules.len()).filter(|&at| modules[at].start < modules[at].end).collect();
    starts.sort_by_key(|&at| modules[at].start);
    let mut edges: Vec<u64> = starts.iter().flat_map(|&at| [modules[at].start, modules[at].end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut starts = starts.into_iter().peekable();
    // Modules that have begun, the first one on top. An ended module is removed when it gets to the top.
    let mut open: BinaryHeap<Reverse<usize>> = BinaryHeap::new();
    let mut bounds: Vec<(u64, Option<usize>)> = Vec::new();
    for edge in edges {
        while let Some(at) = starts.next_if(|&at| modules[at].start <= edge) {
            open.push(Reverse(at));
        }
        while open.peek().is_some_and(|&Reverse(at)| modules[at].end <= edge) {
            open.pop();
        }
        let first = open.peek().map(|&Reverse(at)| at);
        if bounds.last().is_none_or(|&(_, last)| last != first) {
            bounds.push((edge, first));
        }
    }
    bounds
}

/// True if a regular file has the module's build id, or if neither has one.
fn is_this(file: &CodeFile, module: &Module, files: &Apart) -> bool {
    match files.build_id(file) {
        Some(Some(found)) => module.build_id.is_empty() || found == module.build_id,
        Some(None) => module.build_id.is_empty(),
        None => false,
    }
}

/// Returns the name under `/proc/PID/map_files` of a mapping of this module.
fn mapped_range(proc: &Path, module: &Module) -> Option<String> {
    let mut range = None;
    let is_of = |line: &str| {
        let (start, _) = line.split_ascii_whitespace().next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        (line.contains(&*module.path) && (module.start..module.end).contains(&start)).then_some(())
    };
    let seen = maps::each_line(proc, maps::MOST, budget::TIME, |line| {
        let line = String::from_utf8_lossy(line);
        if is_of(&line).is_none() {
            return ControlFlow::Continue(());
        }
        range = line.split_ascii_whitespace().next().map(str::to_owned);
        ControlFlow::Break(())
    });
    seen.ok().and(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_module_that_covers_an_address_has_it() {
        let module = |start, end| Module {
            path: "".into(),
            start,
            end,
            bias: 0,
            first_ns: 0,
            gone: false,
            build_id: Vec::new(),
            file: OnceCell::new(),
        };
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |most: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % most
        };
        for _ in 0..200 {
            let modules: Vec<_> = (0..next(12)).map(|_| module(next(40), next(40))).collect();
            let place = Place { root: "/".into(), proc: None };
            let all = Modules { bounds: bounds(&modules), modules, place, exe: String::new() };
            for address in 0..42_u64 {
                let covers = |module: &&Module| (module.start + 1..=module.end).contains(&address);
                let wanted = all.modules.iter().find(covers).map(std::ptr::from_ref);
                assert_eq!(all.find(address).map(std::ptr::from_ref), wanted, "{address} in {:?}", all.modules);
            }
        }
    }
}
