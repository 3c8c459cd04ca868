//! Which file an address belongs to, and where that file can be read from here.

use blazesym::helper::read_elf_build_id;
use gpumem_wire::read::Snapshot;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// Where the paths of a ledger hold.
#[derive(Clone, Debug)]
pub struct Place {
    /// `/proc/PID/root` of a running process, else `/`.
    pub root: PathBuf,
    /// `/proc/PID` of a running process.
    pub proc: Option<PathBuf>,
}

/// A file with code, as it was mapped.
#[derive(Debug)]
pub struct Module {
    pub path: String,
    start: u64,
    end: u64,
    bias: u64,
    first_ns: u64,
    gone: bool,
    build_id: Vec<u8>,
    file: OnceCell<Option<PathBuf>>,
}

impl Module {
    /// An address of the process as an ELF virtual address of the file.
    pub fn address(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

/// All of them.
#[derive(Debug)]
pub struct Modules {
    modules: Vec<Module>,
    place: Place,
    exe: String,
}

impl Modules {
    /// The modules of a ledger.
    pub fn new(snapshot: &Snapshot, place: Place) -> Self {
        let modules = snapshot.modules.iter().map(|slot| Module {
            path: snapshot.text(slot.path).into_owned(),
            start: slot.start,
            end: slot.end,
            bias: slot.bias,
            first_ns: slot.first_ns,
            gone: slot.gone_ns != 0,
            build_id: slot.build_id[..(slot.build_id_len as usize).min(slot.build_id.len())].to_vec(),
            file: OnceCell::new(),
        });
        let mut modules: Vec<_> = modules.collect();
        // The first that fits is taken: what is mapped now, then what came last.
        modules.sort_by_key(|module| (module.gone, std::cmp::Reverse(module.first_ns)));
        Self { modules, place, exe: snapshot.text(snapshot.header.exe).into_owned() }
    }

    /// The module of a return address.
    pub fn find(&self, address: u64) -> Option<&Module> {
        let call = address.checked_sub(1)?;
        self.modules.iter().find(|module| (module.start..module.end).contains(&call))
    }

    /// Directories with separate debug information.
    pub fn debug_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.place.root.join("usr/lib/debug")];
        if self.place.root != Path::new("/") {
            dirs.push("/usr/lib/debug".into());
        }
        dirs
    }

    /// The file of a module: the one that was mapped, not one that took its name since.
    pub fn readable<'a>(&self, module: &'a Module) -> Option<&'a Path> {
        module.file.get_or_init(|| self.open(module)).as_deref()
    }

    fn open(&self, module: &Module) -> Option<PathBuf> {
        if !module.path.starts_with('/') {
            return None;
        }
        let path = Path::new(module.path.trim_end_matches(" (deleted)"));
        let named = self.place.root.join(path.strip_prefix("/").unwrap_or(path));
        if is_this(&named, module) {
            return Some(named);
        }
        // Deleted or replaced while it runs: the kernel still has it.
        let proc = self.place.proc.as_ref()?;
        let is_exe = |exe: &PathBuf| {
            let runs = std::fs::read_link(exe).unwrap_or_default();
            module.path == self.exe && runs.to_string_lossy().trim_end_matches(" (deleted)") == path.to_string_lossy()
        };
        let exe = Some(proc.join("exe")).filter(is_exe);
        let mapped = || mapped_range(proc, module).map(|range| proc.join("map_files").join(range));
        let file = exe.or_else(mapped).filter(|file| is_this(file, module));
        if file.is_none() {
            tracing::info!("{}: gone or replaced since it was mapped; its symbols are not used", module.path);
        }
        file
    }
}

/// True for a regular file with the module's build id (or one of the two without an id).
fn is_this(path: &Path, module: &Module) -> bool {
    // A pipe or a device under that name must not be opened.
    if !std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
        return false;
    }
    match read_elf_build_id(path) {
        Ok(Some(found)) => module.build_id.is_empty() || *found == *module.build_id,
        Ok(None) => true,
        Err(error) => {
            tracing::debug!("{}: {error:#}", path.display());
            false
        }
    }
}

/// The name under `/proc/PID/map_files` of a mapping of this module.
fn mapped_range(proc: &Path, module: &Module) -> Option<String> {
    let maps = String::from_utf8_lossy(&std::fs::read(proc.join("maps")).ok()?).into_owned();
    maps.lines().filter(|line| line.contains(&module.path)).find_map(|line| {
        let range = line.split_ascii_whitespace().next()?;
        let (start, _) = range.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        (module.start..module.end).contains(&start).then(|| range.to_owned())
    })
}
